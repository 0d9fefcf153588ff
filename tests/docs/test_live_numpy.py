"""
The little NumPy of the live cells: the specification's own source, run on it, gives NumPy's
numbers.
"""

import json
import subprocess
import sys

import numpy as np
import pytest

from attnverify import ROOT, spec

LIVE = ROOT / "docs" / "live_cells"

SIZES = [(N, M) for N in range(1, 6) for M in range(1, 7)]
WANTED = {
    "shift_right": [
        spec.shift_right(np.arange(1.0, N * M + 1).reshape(N, M)).tolist() for N, M in SIZES
    ],
    "rel_shift": [
        spec.rel_shift(np.arange(1.0, N * M + 1).reshape(N, M)).tolist() for N, M in SIZES
    ],
    "causal_mask": [spec.causal_mask(N, M).tolist() for N, M in SIZES],
    "get_alibi_biases": [
        spec.get_alibi_biases(N, spec.causal_mask(N, M)).tolist() for N, M in SIZES
    ],
    "update_mems": [
        [
            spec.update_mems(
                [np.arange(1.0, N + 1).reshape(1, N, 1)],
                [np.arange(9.0, 9 + M).reshape(1, M, 1)],
                L,
            )[0]
            .ravel()
            .tolist()
            for L in range(8)
        ]
        for N, M in SIZES
    ],
}

PROGRAM = """
import json, sys
import numpy as np
from attnverify.spec import alibi, masks, memory, shifts
SIZES = json.loads(sys.argv[1])
made = lambda N, M: np.arange(1.0, N * M + 1).reshape(N, M)
line = lambda first, n: np.arange(first, first + n).reshape(1, n, 1)
def kept(N, M, mem_len):
    return memory.update_mems([line(1.0, N)], [line(9.0, M)], mem_len)[0].reshape(-1).tolist()

found = {
    "shift_right": [shifts.shift_right(made(N, M)).tolist() for N, M in SIZES],
    "rel_shift": [shifts.rel_shift(made(N, M)).tolist() for N, M in SIZES],
    "causal_mask": [masks.causal_mask(N, M).tolist() for N, M in SIZES],
    "get_alibi_biases": [
        alibi.get_alibi_biases(N, masks.causal_mask(N, M)).tolist() for N, M in SIZES
    ],
    "update_mems": [[kept(N, M, mem_len) for mem_len in range(8)] for N, M in SIZES],
}
wrong = (
    (shifts.rel_shift, np.arange(3)),
    (masks.causal_mask, 0, 1),
    (alibi.get_alibi_biases, 2, made(2, 2)),
)
for call, *arguments in wrong:
    try:
        call(*arguments)
    except ValueError as error:
        found.setdefault("refused", []).append(str(error))
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What the specification's files say where `import numpy` finds the one of docs/live_cells."""
    folder = tmp_path_factory.mktemp("live")
    package = folder / "attnverify" / "spec"
    package.mkdir(parents=True)
    for above in (package.parent, package):
        (above / "__init__.py").write_text("")
    for path in (ROOT / "spec").glob("*.py"):
        if path.name != "__init__.py":
            (package / path.name).write_text(path.read_text())
    for path in LIVE.glob("*.py"):
        (folder / path.name).write_text(path.read_text())
    run = [
        sys.executable,
        "-S",
        "-E",
        "-c",
        f"import sys; sys.path.insert(0, {str(folder)!r})\n{PROGRAM}",
        json.dumps(SIZES),
    ]
    return json.loads(subprocess.run(run, capture_output=True, text=True, check=True).stdout)


@pytest.mark.parametrize("operation", WANTED)
def test_the_specification_gives_the_same_numbers_as_on_numpy(found, operation):
    assert found[operation] == WANTED[operation]


def test_it_refuses_what_the_specification_refuses(found):
    assert [words.partition(":")[0] for words in found["refused"]] == ["x", "N", "visible"]


def test_a_live_cell_names_an_operation_and_its_own_sliders():
    sys.path.insert(0, str(ROOT / "docs" / "_ext"))
    from book.live_cells import CELLS

    for operation, (code, sliders) in CELLS.items():
        names = {
            "np": np,
            **vars(spec),
            **{letter: first for letter, (_, first, _) in sliders.items()},
        }
        exec(code, names)
        assert (
            operation in code
            and names["show"]
            and all(least <= first <= most for least, first, most in sliders.values())
        )
