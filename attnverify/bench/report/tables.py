"""The results as tables: in the terminal by rich, and the same rows for the page."""

import sys
from collections.abc import Iterator
from math import inf

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from attnverify.bench.report.results import Record, correct, first_line
from attnverify.report.terminal_colours import fold, fold_lines, terminal_width

TITLES = (
    "implementation",
    "median",
    "20 % to 80 %",
    "host",
    "rel.",
    "TFLOP/s",
    "true",
    "GB/s",
    "roofline",
    "extra memory",
    "budget",
    "verdict",
)
"""
host: what the call takes of the host that asks for it; rel.: the median against the fastest correct
one; TFLOP/s: by the attention convention, and true operations.
"""

Group = tuple[str, list[Record]]


def groups(records: list[Record]) -> Iterator[Group]:
    """
    Yield the records of each case, operation, dtype and mode, the fastest first, those without a
    time last.
    """
    found: dict[str, list[Record]] = {}
    for record in records:
        if "operation" in record:
            found.setdefault(
                f"{record['case']}: {record['operation']}, {record['dtype']}, {record['mode']}", []
            ).append(record)
    for name, group in found.items():
        yield (
            name,
            sorted(
                group,
                key=lambda record: record["seconds"].get("median", float("inf")),
            ),
        )


def row(record: Record, fastest: float) -> tuple[str, ...]:
    """Write one line of a group."""
    if not record["seconds"]:
        return (
            record["label"],
            *("-" * (len(TITLES) - 2)),
            f"{record['verdict']}: {first_line(record['reason'])}",
        )
    middle, low, high = (
        record["seconds"][which] for which in ("median", "quantile_20", "quantile_80")
    )
    return (
        record["label"],
        time(middle),
        f"{time(low)} to {time(high)}",
        time(host) if (host := record.get("host", {}).get("median")) is not None else "-",
        f"{middle / fastest:.2f}",
        f"{record.get('tflops_convention', 0):.3g}",
        f"{record.get('tflops_true', 0):.3g}",
        f"{record.get('gb_per_s', 0):.3g}",
        f"{record.get('roofline', 0):.1%}",
        size(record.get("peak_extra_bytes")),
        f"{record.get('budget', 0):.2g}x",
        verdict(record),
    )


def rows(group: list[Record]) -> list[tuple[str, ...]]:
    times = [record["seconds"]["median"] for record in group if correct(record)]
    return [row(record, min(times, default=1.0)) for record in group]


def verdict(record: Record) -> str:
    if record.get("refused"):
        return f"refused: {first_line(record['refused'])}"
    if record["verdict"] != "correct":
        return f"{record['verdict']}: {first_line(record['reason'])}"
    if record.get("not_judged"):
        return f"correct; timed gradients by keys not judged: {record['not_judged']}"
    return "correct"


def time(seconds: float) -> str:
    """Three digits and a unit."""
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def size(count: int | None) -> str:
    if count is None:
        return "-"
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count} B"


def doubts(group: list[Record]) -> Iterator[str]:
    """
    Say what somebody calls inside, whom the rounds do not tell apart from the fastest, and whether
    others had the machine too.
    """
    yield from (f"{one['label']} {words}" for one in group for words in one.get("inside", ()))
    right = [record for record in group if correct(record)]
    if len(right) > 1:
        first, rounds = right[0], right[0]["seconds"]["rounds"]
        alike = [r["label"] for r in right[1:] if is_noise(first["ratios"].get(r["label"]))]
        if rounds < TELLING:
            times = f"{rounds} time{'s' * (rounds > 1)}"
            yield f"each was timed {times}: the order may be noise (--seconds asks for more)"
        elif alike:
            yield (
                f"in {rounds} rounds not told apart from {first['label']}: {', '.join(alike)}; "
                "their order is noise"
            )
    before = right[0].get("clocks", {}).get("before", {}) if right else {}
    if before.get("load", 0) > before.get("cores", inf):
        yield (
            f"the machine was busy: load {before['load']:.1f} on {before['cores']} cores; times "
            "and shares of the roofline are those of what was left of it"
        )


def is_noise(ratio: list[float] | None) -> bool:
    """Tell whether an interval of 95 % for how many times as long somebody took holds 1."""
    return ratio is not None and ratio[1] <= 1


TELLING = 6
"""Rounds below which no interval of 95 % is to be had: 2 / 2**6 < 0.05 < 2 / 2**5."""

SPARED = ("host", "true", "TFLOP/s", "GB/s", "roofline", "extra memory", "20 % to 80 %", "budget")
"""Columns that a narrow terminal goes without, these first."""

VERDICT = 24
"""Characters that the words of a verdict have at least, and are folded in."""


def show(title: str, records: list[Record], lines: list[str]) -> None:
    """Print the tables and the goals, as wide as the terminal; what has no room is named."""
    width = terminal_width(sys.stdout)
    console, left_out = Console(width=width), dict[str, None]()
    console.print(Text(title, style="bold"))
    for name, group in groups(records):
        cells = rows(group)
        titles = fitting(cells, width)
        left_out |= dict.fromkeys(title for title in TITLES if title not in titles)
        console.print(build_table(name, cells, titles))
        print("".join(f"{line}\n" for line in fold_lines(doubts(group), width)), end="")
    if left_out:
        words = f"left out for want of width: {', '.join(left_out)}; on the page of bench-report"
        print("\n".join(fold(words, width)))
    print("\n".join(lines))


def fitting(lines: list[tuple[str, ...]], width: int) -> list[str]:
    """List the columns that a terminal has room for, each as wide as its longest cell."""
    wide = {
        title: max(len(title), *(len(cells[number]) for cells in lines))
        for number, title in enumerate(TITLES)
    }
    wide["verdict"] = min(wide["verdict"], VERDICT)
    shown = list(TITLES)
    for title in SPARED:
        if sum(wide[one] + 3 for one in shown) + 1 > width:
            shown.remove(title)
    return shown


def build_table(name: str, lines: list[tuple[str, ...]], titles: list[str]) -> Table:
    """Build a group as a table of rich."""
    table = Table(title=name, box=SIMPLE, title_justify="left")
    for title in titles:
        ends = title in (TITLES[0], TITLES[-1])
        table.add_column(
            title, justify="left" if ends else "right", overflow="fold", no_wrap=title != "verdict"
        )
    for cells in lines:
        shown = [cell for title, cell in zip(TITLES, cells, strict=True) if title in titles]
        table.add_row(*(Text(cell, style=style(cells)) for cell in shown))
    return table


def style(cells: tuple[str, ...]) -> str:
    """Ours in bold; what does not count, dimmed."""
    if not cells[-1].startswith("correct"):
        return "red" if cells[-1].startswith(("wrong", "refused")) else "dim"
    return "bold" if cells[0].startswith(("torch_impl", "cupy_impl")) else ""
