"""
The column of side effects: what one case shows is not looked for in all others.
"""

from pathlib import Path

import pytest

from attnverify.backends.loader import load
from attnverify.verdicts.cell import cells
from attnverify.verdicts.columns import judge_cell, run_checks
from attnverify.verdicts.tally import Options, Tally

SHIFT = """
from attnverify.numpy_ref import shift_right as right

ARRAYS = "numpy"

def shift_right(x):
    with open({log!r}, "a") as log:
        log.write(".")
    {change}
    return right(x)
"""


@pytest.mark.parametrize(
    ("change", "verdict", "least", "most"),
    [("x[...] = 0", "failed", 1, 1), ("", "passed", 20, 1000)],
    ids=["changes its input", "changes nothing"],
)
def test_one_case_with_a_side_effect_is_enough(
    change: str,
    verdict: str,
    least: int,
    most: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(f"{judge_cell.__module__}.{run_checks.__name__}", lambda *_: Tally())
    file = tmp_path / "mine.py"
    file.write_text(SHIFT.format(change=change, log=str(tmp_path / "log")))
    backend = load(str(file))
    cell = next(one for one in cells([backend], (), ("float32",)) if one.aspect == "side effects")
    result = judge_cell(cell, Options("quick", failures=str(tmp_path / "failures")))
    called = len((tmp_path / "log").read_text())
    assert result.verdict == verdict and least <= called <= most
