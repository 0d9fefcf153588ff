"""
Where an operation stands: verdicts, budgets and kill scores from the committed files of docs/data,
speed from those of benchmarks/results, and nothing that is not in them.
"""

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from attnverify.bench.report import results, tables
from attnverify.catalogue.operation import Operation
from attnverify.catalogue.traits import DTYPES

DATA = Path(__file__).parents[2] / "data"
RESULTS = DATA.parents[1] / "benchmarks" / "results"
PARTS = RESULTS.with_name("parts")
"""Results of the operations that no goal names, recorded by themselves."""
NOT_MEASURED = "not measured yet"
NOTICED = ("faults", "entries", "noticed_before", "noticed_since")
"""The columns of the table of new faults."""


@lru_cache
def read(name: str) -> Any:
    """A committed file, or None where there is none yet."""
    path = DATA / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def read_of(name: str, operation: Operation) -> dict[str, Any]:
    """
    The committed file that has the operation: that of the whole catalogue, or one of what was
    specified since; {} where nobody measured it.
    """
    return next((found for found in files_of(name) if operation.name in found["operations"]), {})


def files_of(name: str) -> list[dict[str, Any]]:
    """The committed file of the whole catalogue, and each ``<name>_later...`` measured since."""
    stems = [name, *sorted(path.stem for path in DATA.glob(f"{name}_later*.json"))]
    return [found for stem in stems if (found := read(stem))]


def origin(found: dict[str, Any]) -> str:
    """When and on what a file was measured, as it says itself."""
    return (
        f"Measured {found['date']} at commit ``{found['commit']}``, {found['profile']} "
        f"profile, {found['installed']}."
    )


def section(operation: Operation) -> Iterator[str]:
    yield from verdicts(operation)
    yield from kills(operation)
    yield from speed(operation)


def verdicts(operation: Operation) -> Iterator[str]:
    """Implementations by dtypes: the columns passed of those judged."""
    found = read_of("verdicts", operation)
    if not found:
        yield f"Verdicts: {NOT_MEASURED}.\n"
        return
    rows = found["operations"][operation.name]
    dtypes = [
        dtype for dtype in (*DTYPES, "bool") if any(dtype in cells for cells in rows.values())
    ]
    yield (
        "Columns of the verdict that are passed, of those that are judged, for each "
        "implementation and dtype:\n"
    )
    yield from listed(
        ["implementation", *dtypes],
        [[f"``{name}``", *(verdict(cells.get(d)) for d in dtypes)] for name, cells in rows.items()],
    )
    yield f"{origin(found)} {found['device']}\n"


def verdict(cell: dict[str, Any] | None) -> str:
    if cell is None:
        return "-"
    words = f"{cell['passed']}/{cell['judged']}"
    return (
        words if cell["passed"] == cell["judged"] else f"**{words}** " + ", ".join(cell["others"])
    )


def budgets(operation: Operation) -> Iterator[str]:
    """The worst error as a share of the bound."""
    found = read_of("verdicts", operation)
    if operation.exact or not found:
        return
    rows = found["operations"][operation.name]
    yield (
        "The largest share of the bound that an implementation used, over all cases of that run "
        "(1x is the bound itself):\n"
    )
    yield from listed(
        ["implementation", *DTYPES],
        [[f"``{name}``", *(share(cells.get(d)) for d in DTYPES)] for name, cells in rows.items()],
    )


def share(cell: dict[str, Any] | None) -> str:
    return "-" if cell is None else f"{cell['budget']:.2g}x"


def every_operation() -> Iterator[str]:
    """All operations by columns: what is passed of what is judged, and the worst budget."""
    files = files_of("verdicts")
    if not files:
        yield f"{NOT_MEASURED}.\n"
    for found in files:
        yield from in_columns(found)


def in_columns(found: dict[str, Any]) -> Iterator[str]:
    """The table of one file."""
    columns = sorted(
        {name.partition(":")[0] for rows in found["operations"].values() for name in rows}
    )
    yield from listed(
        ["operation", *columns],
        [
            [f":doc:`/operations/{name}`", *(one_column(rows, column) for column in columns)]
            for name, rows in found["operations"].items()
        ],
        kind="measured",
    )
    yield f"{origin(found)} {found['device']}\n"


def one_column(rows: dict[str, dict[str, dict[str, Any]]], column: str) -> str:
    """What all implementations of a column have passed, over all dtypes."""
    mine = {name: cells for name, cells in rows.items() if name.partition(":")[0] == column}
    cells = [cell for each in mine.values() for cell in each.values()]
    others = sorted(name.partition(":")[2] for name in mine if ":" in name)
    passed, judged = (sum(cell[key] for cell in cells) for key in ("passed", "judged"))
    budget = max((cell["budget"] for cell in cells), default=0.0)
    return f"{passed}/{judged} {budget:.2g}x" + f" (also {', '.join(others)})" * bool(others)


def kills(operation: Operation) -> Iterator[str]:
    """The kill score of the operation's own faults."""
    found = read_of("kills", operation)
    if not found:
        yield f"Kill score: {NOT_MEASURED}.\n"
        return
    score = found["operations"][operation.name]
    yield (
        f"Kill score: {score['killed']} of {score['entries']} seeded faults x dtypes noticed "
        f"({score['faults']} faults; the median took {score['median']:g} "
        f"case{'s' * (score['median'] != 1)}, the hardest, ``{score['hardest']}``, "
        f"{score['worst']}). "
        f"{origin(found)}\n"
    )


def noticed_since() -> Iterator[str]:
    """By kind of fault: how many were noticed before the hard cases were drawn, and since."""
    found = read("noticed")
    if not found:
        yield f"{NOT_MEASURED}.\n"
        return
    kinds = found["kinds"]
    total = {name: sum(row[name] for row in kinds.values()) for name in NOTICED}
    yield from listed(
        ["kind", "faults", "faults x dtypes", "noticed before", "noticed since"],
        [
            [kind, *(str(row[name]) for name in NOTICED)]
            for kind, row in (*kinds.items(), ("all", total))
        ],
    )
    yield f"{origin(found)} Before: commit ``{found['before']}``.\n"


def speed(operation: Operation) -> Iterator[str]:
    """Who took how long, in the newest results of each device."""
    measured = False
    own = {path.parts[-3]: path for path in results.files(PARTS) if raced(path, operation)}
    for path in dict.fromkeys([*newest(), *own.values()]):
        groups = list(tables.groups(raced(path, operation)))
        measured |= bool(groups)
        where = f"on {device(path)}, {path.parts[-2]}{how_busy(path)}:\n"
        for name, group in groups:
            if not GROWTH.match(name):
                yield f"Speed, {name}, {where}"
                yield from listed(
                    SHOWN,
                    [
                        [told[tables.TITLES.index(title)] for title in SHOWN]
                        for told in tables.rows(group)
                    ],
                )
        yield from growth(groups, where)
    if not measured:
        yield f"Speed: {NOT_MEASURED}.\n"
    elif any(row["label"] == "documents" for path in newest() for row in raced(path, operation)):
        yield "``documents`` is eager PyTorch as papers and tutorials print it.\n"


GROWTH = re.compile(r"growth (?P<case>.+) (?P<size>\w+=\d+): (?P<what>.+)")


def growth(groups: list[tables.Group], where: str) -> Iterator[str]:
    """One table for a case that was raced at several sizes: a column for each, and the medians."""
    found: dict[str, dict[str, dict[str, str]]] = {}
    for name, group in groups:
        if grown := GROWTH.match(name):
            medians = {
                record["label"]: tables.time(record["seconds"]["median"]) for record in group
            }
            found.setdefault(f"{grown['case']}: {grown['what']}", {})[grown["size"]] = medians
    for name, sizes in found.items():
        yield f"Growth, {name}, {where}"
        labels = dict.fromkeys(label for medians in sizes.values() for label in medians)
        rows = [[label, *(each.get(label, "-") for each in sizes.values())] for label in labels]
        yield from listed(["implementation", *sizes], rows)


def device(path: Path) -> str:
    """The processor by the name that it gives itself, or else the folder of its results."""
    processor = json.loads(path.read_text()).get("machine_info", {}).get("cpu", {})
    if "brand_raw" not in processor:
        return path.parts[-3]
    return f"{processor['brand_raw'].replace('(R)', '')}, {processor['count']} cores"


def raced(path: Path, operation: Operation) -> list[results.Record]:
    """The timed records of an operation in a file of results."""
    found = results.read(path)
    return [x for x in found if x.get("operation") == operation.name and x["seconds"]]


SHOWN = ["implementation", "median", "rel.", "extra memory", "verdict"]


def newest() -> list[Path]:
    """The last results of each device, of either folder."""
    found = [path for root in (RESULTS, PARTS) for path in results.files(root)]
    return list({path.parts[-4:-2]: path for path in found}.values())


def how_busy(path: Path) -> str:
    """Say where a machine did more than it has cores for: times are longer then, ratios less so."""
    machine = json.loads(path.read_text()).get("machine_info", {})
    load, cores = machine.get("load", 0), machine.get("cpu", {}).get("count", 1)
    return f", while the machine was busy (load {load:g} on {cores} cores)" * (load > cores)


def listed(head: list[str], rows: list[list[str]], kind: str = "") -> Iterator[str]:
    """A table in reStructuredText, of a kind that the style sheet knows."""
    yield ".. list-table::\n   :header-rows: 1\n" + f"   :class: {kind}\n" * bool(kind)
    for row in (head, *rows):
        yield "   * - " + "\n     - ".join(row)
    yield ""
