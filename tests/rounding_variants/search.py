"""
Search for the largest share of a bound that a correct implementation can reach.

    python -m tests.rounding_variants.search --evaluations 2000 --file shares.json
    python -m tests.rounding_variants.search --file shares.json --table docs/data/bound_shares.md \
        --witnesses tests/rounding_variants/witnesses.json

Random cases first, then hill climbing from the best of them, over choices, sizes and numbers. The
file holds the worst case of each operation, dtype and code path as it was found, and how long it
was searched for; the command goes on where the file ends, and exits with 1 if a share exceeds 1.
"""

import argparse
import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from attnverify.bounds import BOUNDS
from attnverify.machine import describe_machine
from attnverify.precision import DTYPES
from tests.rounding_variants import share_of_bound
from tests.rounding_variants.cases import Case, case_from, draw_case, neighbour

DRAWS = 12
"""Cases that a climb is chosen from."""

PATIENCE = 60
"""Moves that may gain nothing before the search begins elsewhere."""


@dataclass
class Search:
    """
    The state of a search for one operation and dtype, among elements whose bound is ``beyond``
    times the rounding of the output.
    """

    operation: str
    dtype: str
    seed: int = 0
    beyond: float = 0.0
    best: Case | None = None
    share: float = 0.0
    evaluations: int = 0
    seconds: float = 0.0
    _drawn: list[tuple[float, int, Case]] = field(default_factory=list, repr=False)
    _climb: tuple[Case, float, int] | None = field(default=None, repr=False)

    def go_on(self, evaluations: int, until: float = float("inf")) -> "Search":
        """So many more evaluations, or fewer if the share reaches `until`."""
        words = self.operation, self.dtype, self.seed, self.evaluations
        rng, start = Random(" ".join(map(str, words))), time.monotonic()
        for _ in range(evaluations):
            if self.share >= until:
                break
            self._evaluate(rng)
        self.seconds += time.monotonic() - start
        return self

    def _evaluate(self, rng: Random) -> None:
        """One more case: of those that a climb is chosen from, or one beside where it stands."""
        if self._climb is None:
            if len(self._drawn) < DRAWS:
                case = self.best if self.best and not rng.randrange(3 * DRAWS) else None
                case = case or draw_case(rng, self.operation, self.dtype)
                self._drawn.append((self._look(case), len(self._drawn), case))
                return
            share, _, case = max(self._drawn)
            self._climb, self._drawn = (case, share, 0), []
        here, share, idle = self._climb
        case = neighbour(rng, here, self.dtype)
        found = self._look(case)
        if found >= share:
            self._climb = case, found, 0 if found > share else idle + 1
        else:
            self._climb = here, share, idle + 1
        if self._climb[2] > PATIENCE:
            self._climb = None

    def _look(self, case: Case) -> float:
        self.evaluations += 1
        share = share_of_bound(case.derived, case.inputs(self.dtype), self.dtype, self.beyond)
        if share > self.share:
            self.best, self.share = case, share
        return share

    @property
    def direction(self) -> str:
        return "backward" if self.operation.endswith("_grad") else "forward"

    @property
    def data(self) -> dict[str, Any]:
        """The search as the file holds it."""
        found = self.best.data if self.best else {}
        return {
            "operation": self.operation.removesuffix("_grad"),
            "direction": self.direction,
            "dtype": self.dtype,
            **({"beyond": self.beyond} if self.beyond else {}),
            "share": self.share,
            "evaluations": self.evaluations,
            "seconds": round(self.seconds, 1),
            **found,
        }


def search_from(data: dict[str, Any]) -> Search:
    """The search that the file tells of, to go on with."""
    name = data["operation"] + ("_grad" if data["direction"] == "backward" else "")
    best = case_from(data) if "recipe" in data else None
    told = {key: data[key] for key in ("share", "evaluations", "seconds")}
    return Search(name, data["dtype"], beyond=data.get("beyond", 0.0), best=best, **told)


class File:
    """What is known, by code path: one search for each operation and dtype."""

    def __init__(self, path: Path, code_path: str) -> None:
        self.path, self.code_path = path, code_path
        self.whole: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        here = self.whole.setdefault(code_path, {"machine": describe_machine(), "searches": []})
        self.searches = {
            (each.operation, each.dtype): each for each in map(search_from, here["searches"])
        }

    def save(self) -> None:
        told = [self.searches[key].data for key in sorted(self.searches)]
        self.whole[self.code_path]["searches"] = told
        aside = self.path.with_suffix(".partial")
        aside.write_text(json.dumps(self.whole, indent=1) + "\n")
        aside.replace(self.path)


def format_tables(whole: dict[str, Any]) -> str:
    """The largest share found by operation, direction and dtype: a table for each code path."""
    lines = [
        "# The largest share of its bound that a correct implementation was found to reach",
        "",
    ]
    for path, here in whole.items():
        told = here["searches"]
        seconds, evaluations = (sum(s[key] for s in told) for key in ("seconds", "evaluations"))
        lines += [f"## {path}", "", *(f"- {name}: {x}" for name, x in here["machine"].items())]
        lines += [f"- {evaluations} implementations and inputs, {seconds:.0f} s", ""]
        lines += ["| operation | direction | " + " | ".join(DTYPES) + " |"]
        lines += ["| --- | --- |" + " --- |" * len(DTYPES)]
        shares = {(s["operation"], s["direction"], s["dtype"]): s["share"] for s in told}
        for operation, direction in dict.fromkeys(key[:2] for key in shares):
            found = (shares.get((operation, direction, dtype)) for dtype in DTYPES)
            cells = " | ".join("-" if share is None else f"{share:.3f}" for share in found)
            lines.append(f"| {operation} | {direction} | {cells} |")
        lines.append("")
    return "\n".join(lines)


def format_witnesses(whole: dict[str, Any], path: str) -> str:
    """
    The worst case of each search of code paths that begin with these words, one on each line: what
    `test_witnesses.py` computes again.
    """
    left_out = {"evaluations", "seconds"}
    chosen = (here for name, here in whole.items() if name.startswith(path))
    searches = [each for here in chosen for each in here["searches"]]
    told = [search_from(each).data for each in searches if "recipe" in each]
    lines = [json.dumps({k: x for k, x in each.items() if k not in left_out}) for each in told]
    return "[\n" + ",\n".join(lines) + "\n]\n"


def write_found(given: argparse.Namespace) -> int:
    """Write what the file tells where it is asked for."""
    whole = json.loads(given.file.read_text())
    if given.table:
        given.table.write_text(format_tables(whole))
    if given.witnesses:
        given.witnesses.write_text(format_witnesses(whole, given.path))
    return 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("--evaluations", type=int, default=2000, help="for each cell, in all")
    parser.add_argument(
        "--beyond", type=float, default=0.0, help="bounds of so many roundings of the output alone"
    )
    parser.add_argument("--path", default="default", help="the name of this code path")
    parser.add_argument("--operation", action="append", choices=list(BOUNDS))
    parser.add_argument("--table", type=Path, help="write the shares as Markdown; search no more")
    parser.add_argument("--witnesses", type=Path, help="write the worst cases; search no more")
    given = parser.parse_args(arguments)
    if given.table or given.witnesses:
        return write_found(given)
    file = File(given.file, given.path)
    for step in range(250, given.evaluations + 250, 250):
        for operation in given.operation or BOUNDS:
            for dtype in DTYPES:
                begun = Search(operation, dtype, beyond=given.beyond)
                search = file.searches.setdefault((operation, dtype), begun)
                missing = min(step, given.evaluations) - search.evaluations
                if missing > 0:
                    search.go_on(missing)
                    file.save()
                    print(f"{operation} {dtype} {search.share:.3f} of the bound", flush=True)
    return int(any(search.share > 1 for search in file.searches.values()))


if __name__ == "__main__":
    sys.exit(main())
