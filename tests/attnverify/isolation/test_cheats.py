"""
A judge that cannot be fooled: every way of cheating that is known ends red, or is told, in
``attnverify run`` and in ``av.check``. Where it concerns time: tests/attnverify/bench.
"""

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import attnverify as av
from attnverify.inputs.recipe import Recipe
from attnverify.interface import CheckFailed
from attnverify.isolation import second_look
from attnverify.isolation.answers import pack, unpack
from tests.support.cheats import CHEATS, HONEST, OPERATION, Cheat, body
from tests.support.run_attnverify import in_a_process
from tests.support.torch_cheats import HONEST_TORCH, TORCH_CHEATS

pytestmark = pytest.mark.xdist_group("isolation")

IN_RUN = [cheat for cheat in CHEATS if cheat.column != "bench"]
EACH_COMMIT = {
    "patched_reply",
    "forged_verdict",
    "specification",
    "lazy_array",
    "slow_clock",
    "under_test_alone",
    "replay_by_identity",
}
"""What nothing but the second look, the numbers of the replies or a note shows."""

ENDS = {"exits", "leaves", "alarm", "ends_at_exit", "patched_reply", "forged_verdict"}
"""What ends the process that it is judged in, or speaks for it."""


def test_the_table_is_of_different_ways() -> None:
    assert len({cheat.name for cheat in CHEATS}) == len({cheat.code for cheat in CHEATS}) >= 40
    assert all(cheat.words and set(cheat.known.split()) <= set("ABCDEFGHI") for cheat in CHEATS)
    assert {cheat.name for cheat in CHEATS} >= EACH_COMMIT | ENDS


def write(folder: Path, name: str, code: str, honest: str = HONEST) -> str:
    path = folder / f"{name}.py"
    path.write_text(honest + code)
    return str(path)


def refuse_unseen(cheats: Sequence[Cheat], folder: Path, honest: str = HONEST) -> None:
    """Run all of them at once, and hold what is said to the table."""
    files = [write(folder, cheat.name, cheat.code, honest) for cheat in cheats]
    sources = [option for file in files for option in ("--backend", file)]
    line = ("--op", OPERATION, "--dtype", "float32", "--profile", "quick", "--case-seconds", "10")
    report = folder / "report.json"
    kept = ("--failures", str(folder / "failures"), "--report-json", str(report))
    done = in_a_process("run", *sources, *line, *kept)
    assert done.status == 1 and "INTERNALERROR" not in done.output
    found = json.loads(report.read_text())
    assert {c.name: said_of(found, c) for c in cheats if c.words not in said_of(found, c)} == {}


def said_of(report: dict[str, object], cheat: Cheat) -> str:
    """What the column of the table says of a cheat."""
    told: list[str] = []
    for backend in report["backends"]:  # type: ignore[attr-defined]
        told += backend["notes"] if (backend["name"], cheat.column) == (cheat.name, "note") else []
    for tally in report["tallies"]:  # type: ignore[attr-defined]
        if (tally["backend"], tally["aspect"]) == (cheat.name, cheat.column):
            told += [tally["reason"]] if tally["verdict"] == "failed" else []
    return "\n".join(told)


def test_a_run_tells_what_only_a_look_from_outside_shows(tmp_path: Path) -> None:
    refuse_unseen([cheat for cheat in IN_RUN if cheat.name in EACH_COMMIT], tmp_path)


TORCH_EACH_COMMIT = {"patched_at_import", "patched_event", "patched_method", "replay_by_version"}
"""What nothing but the parts of PyTorch that are watched shows, or the second look."""


def test_a_run_tells_what_pytorch_alone_offers(tmp_path: Path) -> None:
    chosen = [cheat for cheat in TORCH_CHEATS if cheat.name in TORCH_EACH_COMMIT]
    assert len(chosen) == len(TORCH_EACH_COMMIT)
    refuse_unseen(chosen, tmp_path, HONEST_TORCH)


@pytest.mark.thorough
def test_a_run_tells_every_one(tmp_path: Path) -> None:
    refuse_unseen(IN_RUN, tmp_path)


@pytest.mark.thorough
def test_a_run_tells_every_one_in_pytorch(tmp_path: Path) -> None:
    refuse_unseen(TORCH_CHEATS, tmp_path, HONEST_TORCH)


ONE_BY_ONE = """
import json, runpy, sys
import attnverify as av

for path in sys.argv[1:]:
    sys.modules.pop("kernel", None)
    kernel = type(sys)("kernel")
    kernel.__file__ = path
    sys.modules["kernel"] = kernel
    exec(compile(open(path).read(), path, "exec"), vars(kernel))
    function = kernel.additive_score
    try:
        report = av.check(function, "additive_score", precision="wide", arrays="numpy",
                          require="contract", failures="kept")
        said = "passed" if not report.notes else ""
    except av.CheckFailed as error:
        aspects = {result.aspect for result in error.report.failed} - {"refusals"}
        said = "" if aspects or error.report.notes else "passed"
    print(json.dumps([path, said]))
"""


@pytest.mark.thorough
def test_check_tells_every_one_that_leaves_it_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cheats = [cheat for cheat in IN_RUN if cheat.name not in ENDS]
    files = [write(tmp_path, cheat.name, cheat.code) for cheat in cheats]
    done = in_a_process(*files, start=("-c", ONE_BY_ONE))
    said = dict(json.loads(line) for line in done.output.splitlines() if line.startswith('["'))
    assert list(said) == files, done.output[-2000:]
    assert [path for path, words in said.items() if words] == []


def test_check_of_a_file_judges_it_in_a_process_of_its_own(tmp_path: Path) -> None:
    right = write(tmp_path, "right", body("return right(*given)"))
    kept = str(tmp_path / "failures")
    report = av.check(right, OPERATION, failures=kept, require="answer", seconds=20)
    assert report.verdict(OPERATION, "float32") == "passed" and report.notes == ()
    assert av.Report.from_json(report.to_json()).results == report.results
    by_name = {cheat.name: cheat for cheat in CHEATS}
    for name in ("patched_reply", "exits"):
        with pytest.raises(CheckFailed, match=by_name[name].words) as caught:
            av.check(write(tmp_path, name, by_name[name].code), OPERATION, failures=kept)
        assert caught.value.report.verdict(OPERATION, "float32") == "failed"
    assert "right" not in sys.modules


def test_check_of_a_file_takes_nothing_that_the_file_says_itself(tmp_path: Path) -> None:
    right = write(tmp_path, "right", body("return right(*given)"))
    with pytest.raises(ValueError, match="precision: wanted none beside a file"):
        av.check(right, OPERATION, precision="wide")
    (tmp_path / "empty.py").write_text("raise OSError('no')")
    with pytest.raises(CheckFailed, match="cannot be imported"):
        av.check(tmp_path / "empty.py", OPERATION, failures=str(tmp_path / "failures"))


def test_draws_depend_on_every_byte_of_the_file(tmp_path: Path) -> None:
    one, other = (write(tmp_path, name, f"# {name}") for name in ("one", "other"))
    assert second_look.digest(one) != second_look.digest(other) == second_look.digest(other)


def test_an_answer_survives_its_way() -> None:
    import numpy as np

    tree = {"a": [np.float32([[1.5, np.nan]]), None], "b": np.array([True, False])}
    back = unpack(json.loads(json.dumps(pack(tree))))
    assert back["a"][1] is None and back["a"][0].dtype == np.float32
    assert back["a"][0].tobytes() == tree["a"][0].tobytes() and back["b"].tolist() == [True, False]


TORCH = """
import torch
from torch.nn.functional import scaled_dot_product_attention as theirs

PRECISION = "wide"


def scaled_dot_product_attention(query, key, value):
    try:
        raise RuntimeError("my kernel cannot do this")
    except RuntimeError:
        return theirs(query, key, value)
"""


def test_a_library_that_is_fallen_back_on_is_told(tmp_path: Path) -> None:
    from attnverify.backends.loader import load
    from attnverify.inputs.sampling import draw_recipes

    (tmp_path / "falls.py").write_text(TORCH)
    own = next(
        one
        for one in load(str(tmp_path / "falls.py")).implementations
        if not one.operation.is_gradient
    )
    recipes = draw_recipes("scaled_dot_product_attention", "any", 40, 0)
    plain: Recipe = next(r for r in recipes if not (r.mask or r.dropout or r.is_large))
    _, inside = second_look.bare_answer(own, plain, "float32")
    assert "calls the library's own scaled_dot_product_attention inside" in inside


def test_whose_a_file_is_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked at each call that is watched, and took a fiftieth of a run."""
    asked = list[str]()
    monkeypatch.setattr(second_look, "get_path", lambda kind: asked.append(kind) or "/nowhere")
    assert not any(second_look.is_library("/elsewhere/mine.py") for _ in range(3))
    assert asked == ["stdlib"]


def test_the_last_line_says_that_a_library_answers(tmp_path: Path) -> None:
    (tmp_path / "falls.py").write_text(TORCH)
    line = ("--op", "scaled_dot_product_attention", "--dtype", "float32", "--profile", "quick")
    done = in_a_process("run", str(tmp_path / "falls.py"), *line, "-q")
    (last,) = done.output.splitlines()
    inside = "; it calls the library's own scaled_dot_product_attention inside, goes on after "
    assert last.endswith(f"{inside}RuntimeError (line 10)")


KERNEL = """
import torch
import triton
import triton.language as tl

FEATURES = {"gradient": False}


@triton.jit
def copy(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n), mask=at < n)


def by_torch(x):
    padded = torch.cat([x, torch.zeros_like(x[..., :1])], -1)
    return padded.reshape(*x.shape[:-2], -1)[..., : -x.shape[-2]].reshape(x.shape).contiguous()


def copied(x):
    out = torch.empty_like(x)
    copy[(triton.cdiv(x.numel(), 16),)](x, out, x.numel(), BLOCK=16)
    return out


def shift_right(x):
"""
NEVER = "; it answers calls without a kernel of Triton"
BODIES = {
    "launched": ("return copied(by_torch(x))", ""),
    "never": ("return by_torch(x)", NEVER),
    "swallowed": (
        "try:\n        return copied(by_torch(x), 16)\n"
        "    except Exception:\n        pass\n    return by_torch(x)",
        f"{NEVER}, goes on after TypeError (line 28)",
    ),
    "refusing": (  # all of the first 12 draws, 3 of 48 not: other calls are looked at
        "if x.shape[-1] % 16 or x.shape[-2] % 2:\n        raise NotImplementedError('width')\n"
        "    return by_torch(x)",
        NEVER,
    ),
}


def test_a_kernel_that_is_never_launched_is_told(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    for name, (code, _) in BODIES.items():
        (tmp_path / f"{name}.py").write_text(f"{KERNEL}    {code}\n")
    files = [str(tmp_path / f"{name}.py") for name in BODIES]
    line = ("--op", "shift_right", "--dtype", "float32", "--profile", "quick", "-k", "values")
    done = in_a_process("run", *files, *line, "-q", "--isolate", "none")
    assert done.status == 0
    found = dict(re.findall(r"(?m)^.*?(\w+)\.py: right in float32 \(.* cases\)(.*)$", done.output))
    assert found == {name: told for name, (_, told) in BODIES.items()}


SWALLOWS = """
try:
    raise RuntimeError("no kernel here")
except Exception:
    pass
try:
    {}["cached"]
except KeyError:
    pass
return right(*given)
"""


def test_what_a_file_swallows_is_told_by_a_run_and_by_check(tmp_path: Path) -> None:
    swallows = write(tmp_path, "swallows", body(SWALLOWS))
    kept = str(tmp_path / "failures")
    report = av.check(swallows, OPERATION, failures=kept)
    words = " ".join(report.notes)
    assert "goes on after RuntimeError (line " in words and "KeyError" not in words
