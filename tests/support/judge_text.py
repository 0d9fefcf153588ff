"""A file as a user writes it, judged in the quick profile by its one function."""

from pathlib import Path

from attnverify.backends.loader import load
from attnverify.verdicts.cell import cells
from attnverify.verdicts.columns import judge_cell
from attnverify.verdicts.tally import CellResult, Options


def judged(folder: Path, text: str, dtype: str = "float32", aspect: str = "values") -> CellResult:
    (folder / "mine.py").write_text(text)
    backend = load(str(folder / "mine.py"))
    assert not backend.broken
    cell = next(one for one in cells([backend], (), (dtype,)) if one.aspect == aspect)
    return judge_cell(cell, Options("quick", failures=str(folder / "failures")))
