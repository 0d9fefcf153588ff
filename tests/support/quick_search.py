"""What the quick profile's small cases show of a file, none of them explained."""

from pathlib import Path

from attnverify.backends.loader import load
from attnverify.inputs.sampling import count_draws
from attnverify.verdicts.cell import Cell, cells
from attnverify.verdicts.search import Search
from attnverify.verdicts.shown import shown_recipes
from attnverify.verdicts.tally import Options


def cell_of(folder: Path, text: str, dtype: str, aspect: str = "values") -> Cell:
    file = folder / "mine.py"
    file.write_text(text)
    backend = load(str(file))
    assert not backend.broken
    return next(one for one in cells([backend], (), (dtype,)) if one.aspect == aspect)


def search_quick(
    folder: Path, text: str, seed: int, dtype: str = "float64", aspect: str = "values"
) -> Search:
    cell = cell_of(folder, text, dtype, aspect)
    own = cell.gradient if aspect == "gradients" and cell.gradient else cell.implementation
    options = Options("quick", seed=seed, failures=str(folder / "failures"))
    search, cases = Search(own, dtype, options), count_draws(own.operation.name, options.cases)
    shown = shown_recipes(own, aspect, options, "any", cases, dtype)
    search.judge_shown(shown._replace(real=()), cases)
    return search
