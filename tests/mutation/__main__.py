"""
Try mutants until the file tells of so many, and go on where it ends.

    nice python -m tests.mutation --file tests/mutation/mutants.json --number 300
    python -m tests.mutation --file tests/mutation/mutants.json --table docs/data/mutants.md
    python -m tests.mutation --by-hand

Who survives is told apart by hand, in the file: `why` says that a mutant is equivalent, or which
test it asks for.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.mutation.changes import Mutant
from tests.mutation.first_contact import FIRST_CONTACT
from tests.mutation.sabotages import SABOTAGES
from tests.mutation.targets import choose_tests, target_files
from tests.mutation.trial import Limits, copy_tree, draw_mutants, try_mutant

ROOT = Path(__file__).resolve().parents[2]


def go_on(file: Path, number: int, seed: int, only: str = "") -> None:
    """Try the next mutants until the file has so many."""
    told: list[dict[str, Any]] = json.loads(file.read_text()) if file.exists() else []
    files = [path for path in target_files(ROOT) if only in path]
    known, limits = {each["mutant"] for each in told}, Limits()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Path(folder)
        copy_tree(ROOT, tree)
        for mutant in draw_mutants(ROOT, seed, files):
            if len(told) >= number:
                break
            if mutant.name in known:
                continue
            told.append(tell(tree, mutant, limits))
            file.write_text("[\n" + ",\n".join(map(json.dumps, told)) + "\n]\n")
            print(f"{told[-1]['verdict']} {told[-1]['seconds']} s {mutant.name}", flush=True)


def tell(tree: Path, mutant: Mutant, limits: Limits) -> dict[str, Any]:
    """A mutant and its verdict, as the file has them."""
    tests = choose_tests(mutant.path)
    verdict = try_mutant(tree, mutant, {each: limits.of(tree, each) for each in tests})
    return {
        "mutant": mutant.name,
        "file": mutant.path,
        "verdict": "killed" if verdict.killed_by else "survived",
        "by": verdict.killed_by,
        "seconds": verdict.seconds,
    }


def try_sabotages(word: str) -> int:
    """Try the sabotages made by hand whose name has this word; 1 where one is not noticed."""
    limits, survived = Limits(), 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Path(folder)
        copy_tree(ROOT, tree)
        for sabotage in (*SABOTAGES, *FIRST_CONTACT):
            if word not in sabotage.name:
                continue
            seconds = limits.of(tree, sabotage.tests)
            verdict = try_mutant(tree, sabotage.mutant(ROOT), {sabotage.tests: seconds})
            survived += not verdict.killed_by
            told = "noticed" if verdict.killed_by else "NOT NOTICED"
            print(f"{told} {verdict.seconds} s: {sabotage.name}", flush=True)
    return int(survived > 0)


def format_table(told: list[dict[str, Any]]) -> str:
    """The share killed by package, and the survivors with what they are."""
    lines = ["# Mutants, and how many of them a test notices", ""]
    lines += [
        "| what is changed | mutants | killed | equivalent | share |",
        "|---|--:|--:|--:|--:|",
    ]
    several = {each["file"].rpartition("/")[0] for each in told}
    for package in (*sorted(several), ""):
        here = [each for each in told if each["file"].startswith(package)]
        killed = sum(each["verdict"] == "killed" for each in here)
        same = sum(each.get("why", "").startswith("equivalent") for each in here)
        share = 100 * killed / max(1, len(here) - same)
        name = f"`{package}`" if package else "in all"
        lines.append(f"| {name} | {len(here)} | {killed} | {same} | {share:.0f} % |")
    lines += ["", "Those that survived:", ""]
    for each in told:
        if each["verdict"] == "survived":
            change = " ".join(each["mutant"].split())
            lines.append(f"- `{change}`: {each.get('why', 'not looked at yet')}")
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--file", type=Path)
    chosen.add_argument(
        "--by-hand", nargs="?", const="", metavar="WORD", help="sabotages whose name has this word"
    )
    parser.add_argument(
        "--number", type=int, default=300, help="in all, those of the file included"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", metavar="WORD", help="files whose path has this word")
    parser.add_argument("--table", type=Path, help="write what the file tells, and try no more")
    given = parser.parse_args(arguments)
    if given.by_hand is not None:
        return try_sabotages(given.by_hand)
    if given.table:
        given.table.write_text(format_table(json.loads(given.file.read_text())))
    else:
        go_on(given.file, given.number, given.seed, given.only)
    return 0


if __name__ == "__main__":
    sys.exit(main())
