"""
Single changes of right files, which nobody chose: those that the quick profile's calls let pass are
held to more calls, and what these show to be wrong to a quick run.

    python -m tests.sight.changed FILE... --changes 400 --seed 1
"""

import argparse
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from attnverify.backends.implementation import Implementation
from attnverify.inputs.fixed_cases import fixed_cases
from attnverify.inputs.real.required_kinds import required_cases
from attnverify.inputs.recipe import Recipe
from attnverify.inputs.sampling import draw_recipes
from attnverify.judge.case import Case, case_of
from attnverify.options import PROFILES
from attnverify.repair.calls import LONGEST, is_right, larger_calls, outcome
from attnverify.repair.changes import Change, single_changes
from attnverify.repair.copies import Copies
from attnverify.repair.search import changed_copy, reached_by
from attnverify.verdicts.fitting import fitted_recipes
from attnverify.verdicts.found_out import loaded
from tests.support.run_attnverify import verify

DTYPE = "float32"
MORE = 300
"""
So many draws of another seed hold what has passed, without those of subnormal numbers: weights that
are kept smaller by a size, and divided by as much at the end, lose digits there alone.
"""


def passed(own: Implementation, recipes: Sequence[Recipe]) -> list[Case]:
    """The calls that a right file takes, and says something of."""
    fitted = fitted_recipes(recipes, own.backend.declared.limits)
    cases = (case_of(recipe, DTYPE) for recipe in fitted)
    return [case for case in cases if outcome(own, case) == "passed"]


def unseen(
    source: str, changes: int, seed: int, folder: str
) -> Iterator[tuple[int, Change | None]]:
    """
    Yield the number of each change that is tried, and the change if a quick run is green and more
    calls are not.
    """
    own = loaded(source).implementations[0]
    copies, name = Copies(own, folder), own.operation.name
    few = draw_recipes(name, "any", PROFILES["quick"], 0)
    quick = passed(own, (*fixed_cases(name), *required_cases(name), *few))
    quick += [case for case in larger_calls(own, DTYPE) if outcome(own, case) == "passed"]
    drawn = draw_recipes(name, "any", MORE, seed + 1)
    more = passed(own, [recipe for recipe in drawn if recipe.values["family"] != "subnormal"])
    found = [*single_changes(copies.text, *reached_by(copies, quick))]
    random.Random(seed).shuffle(found)
    for number, change in enumerate(found[:changes], 1):
        new = changed_copy(copies, change)
        passes = new is not None and is_right(new, quick, LONGEST)
        is_wrong = passes and not is_right(new, more, LONGEST)
        yield number, change if is_wrong and is_green(change.text, name, folder) else None


def is_green(text: str, operation: str, folder: str) -> bool:
    path = Path(folder) / "changed.py"
    path.write_text(text)
    options = ("--op", operation, "--dtype", DTYPE, "--profile", "quick", "-k", "values", "-q")
    return verify("run", str(path), *options).status == 0


def main() -> None:
    """Print what is green, and how many changes were tried of each file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--changes", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    for file in asked.files:
        with TemporaryDirectory() as folder:
            found = [*unseen(file, asked.changes, asked.seed, folder)]
        green = [change for _, change in found if change]
        print(f"{file}: {len(found)} changes, {len(green)} unseen", flush=True)
        for change in green:
            print(f"  line {change.line}: {change.words}")


if __name__ == "__main__":
    main()
