"""
The goals as data, one row each, and what a run says of them: met, or missed with its figure, or not
measured with the reason.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from attnverify.bench.measure.cases import FLASH_GRID
from attnverify.bench.report.results import Record, correct, first_line, not_measured
from benchmarks.races.growth import exponents

BEST = "the best correct peer"


@dataclass(frozen=True)
class Goal:
    """
    One row of a table of goals.

    cases    the names of the cases that it speaks of; the worst of them counts
    ours     the label of the implementation that has to reach it, or one of two; against: of whom,
             BEST, or what it is measured by
    measure  time, memory: how many times less than the other. overhead: time by the other's time.
             roofline, tanh, share: itself
    at_most  the figure must stay below the floor and the goal
    """

    what: str
    cases: tuple[str, ...]
    ours: str
    against: str
    floor: float
    goal: float
    mode: str = "forward"
    measure: str = "time"
    at_most: bool = False

    def met(self, figure: float, limit: float) -> bool:
        return figure <= limit if self.at_most else figure >= limit


@dataclass(frozen=True)
class Outcome:
    """What a run says of a goal: the figure with its interval, or why there is none."""

    goal: Goal
    figure: float | None = None
    low: float = 0.0
    high: float = 0.0
    why: str = ""
    case: str = ""

    views: bool = False
    """Where the goal is that nothing is copied: that nothing was."""

    @property
    def word(self) -> str:
        if self.figure is None:
            return "not measured"
        if self.goal.met(self.figure, self.goal.goal) or (
            self.views and self.goal.met(self.figure, self.goal.floor)
        ):
            return "goal met"
        return "floor met" if self.goal.met(self.figure, self.goal.floor) else "MISSED"


NO_CASE = "no such case in this run"

BLOCKED, TRITON, CUDA = "torch_impl:blocked", "torch_impl:triton", "cupy_impl:cuda"
CAUSAL = "torch_impl:causal"
"""Our plain attention with causality in the kernel, as ALiBi and Transformer-XL have it."""
EITHER = f"{TRITON} or {CUDA}"
RELATIVE, ALIBI, ADDITIVE = ("relative N=1024",), ("alibi N=2048",), ("additive square 256",)
SHIFT, SUITE = ("shift N=1024",), ("differential suite",)

CPU = (
    Goal("relative forward, N = M = 1024, H 8, D 64", RELATIVE, BLOCKED, "labml-nn", 2, 4),
    Goal("relative forward + backward", RELATIVE, BLOCKED, "labml-nn", 1.5, 3, "both"),
    Goal("relative forward, peak extra memory", RELATIVE, BLOCKED, "labml-nn", 10, 40,
         measure="memory"),
    Goal("relative forward + backward, peak extra memory", RELATIVE, BLOCKED, "labml-nn", 10, 40,
         "both", "memory"),
    Goal("ALiBi forward, N = 2048", ALIBI, BLOCKED, "labml-nn", 2, 4),
    Goal("ALiBi forward, N = 2048", ALIBI, BLOCKED, "flex, compiled", 0.9, 1.2),
    Goal("additive forward, B 8, 256 x 256 x A 256", ADDITIVE, BLOCKED, "documents", 4, 12),
    Goal("additive forward, peak extra memory", ADDITIVE, BLOCKED, "documents", 20, 100,
         measure="memory"),
    Goal("shift_right, rel_shift (goal: views of a padded buffer)", SHIFT, "torch_impl",
         "documents", 1, float("inf"), measure="views"),
    Goal("suite: share outside backend and oracle", SUITE, "verify", "all of its time", 0.4, 0.2,
         measure="share", at_most=True),
)  # fmt: skip

LONG = tuple(
    f"{kind} B={B} N={N}"
    for kind in ("relative", "transformer-xl")
    for B, N in FLASH_GRID
    if N >= 2048
)
ALIBI_LONG = tuple(f"alibi B={B} N={N}" for B, N in FLASH_GRID if N >= 2048)
PLAIN = {
    D: tuple(f"flash grid B={B} N={N} D={D}" for B, N in FLASH_GRID if N >= 2048) for D in (64, 128)
}
MOVES = ("shift N=4096", "biases N=4096", "memory 1600")
SQUARE = ("additive square 512",)

GPU = (
    Goal("relative forward, N >= 2048", LONG, TRITON, BEST, 1.5, 2.0),
    Goal("relative forward + backward, all gradients", LONG, TRITON, BEST, 2.0, 3.0, "both"),
    Goal("relative forward", LONG, TRITON, "labml-nn", 5, 8),
    Goal("relative forward", LONG, TRITON, "documents", 5, 8),
    Goal("relative forward + backward", LONG, TRITON, "labml-nn", 5, 8, "both"),
    Goal("relative forward + backward", LONG, TRITON, "documents", 5, 8, "both"),
    Goal(
        "learned relative forward time",
        LONG[:4],
        TRITON,
        "own plain forward",
        2.2,
        1.7,
        measure="overhead",
        at_most=True,
    ),
    Goal(
        "Transformer-XL forward time",
        LONG[4:],
        TRITON,
        "own plain causal forward",
        2.2,
        1.7,
        measure="overhead",
        at_most=True,
    ),
    Goal(
        "ALiBi forward time",
        ALIBI_LONG,
        TRITON,
        "own plain causal forward",
        1.05,
        1.03,
        measure="overhead",
        at_most=True,
    ),
    Goal("ALiBi forward + backward", ALIBI_LONG, TRITON, "flex, compiled", 1.0, 1.2, "both"),
    Goal("ALiBi forward + backward", ALIBI_LONG, TRITON, "SDPA", 3, 5, "both"),
    Goal("plain forward, D 64", PLAIN[64], TRITON, "SDPA flash", 1.0, 1.1),
    Goal("plain forward, D 128", PLAIN[128], TRITON, "SDPA flash", 1.0, 1.1),
    Goal("plain forward, D 64", PLAIN[64], TRITON, "SDPA cuDNN", 0.65, 0.85),
    Goal("plain forward, D 128", PLAIN[128], TRITON, "SDPA cuDNN", 0.65, 0.85),
    Goal("additive forward, 512 x 512 x A 256", SQUARE, EITHER, "documents", 8, 12),
    Goal("additive forward, 512 x 512 x A 256", SQUARE, EITHER, "torch.compile", 2, 3),
    Goal(
        "additive forward, 512 x 512 x A 256",
        SQUARE,
        EITHER,
        "the tanh roofline",
        0.9,
        1.4,
        measure="tanh",
    ),
    Goal(
        "memory-bound operations",
        MOVES,
        "torch_impl",
        "device copy in the same run",
        0.90,
        0.95,
        measure="roofline",
    ),
    Goal("CuPy relative forward", LONG, CUDA, TRITON, 0.7, 1.0),
)

GOALS = {"cpu": CPU, "cuda": GPU}


def ratio(slow: Record, fast: Record) -> tuple[float, float, float]:
    """Estimate how many times as long ``slow`` takes, and an interval of 95 % for it."""
    middle, low, high = fast["ratios"][slow["label"]]
    return middle, low, high


def select(records: Iterable[Record], **wanted: Any) -> list[Record]:
    """Select the records that say all of this."""
    return [
        record
        for record in records
        if all(record.get(name) == value for name, value in wanted.items())
    ]


def outcome(goal: Goal, records: list[Record]) -> Outcome:
    """
    Find the worst of the goal's cases; a case that says nothing makes the whole row unmeasured.
    """
    found = [
        measured(goal, pair, records)
        for case in goal.cases
        for pair in group_records(goal, case, records)
    ]
    silent = [one for one in found if one.figure is None]
    if silent or not found:
        return silent[0] if silent else Outcome(goal, why=NO_CASE)
    return (max if goal.at_most else min)(found, key=lambda one: one.figure or 0.0)


def group_records(
    goal: Goal, case: str, records: list[Record]
) -> Iterator[tuple[str, list[Record]]]:
    """Yield the records of a case, apart by operation and dtype."""
    of_case = select(records, case=case, mode=goal.mode)
    kinds = dict.fromkeys((record["operation"], record["dtype"]) for record in of_case)
    for operation, dtype in kinds:
        yield f"{case} {dtype}", select(of_case, operation=operation, dtype=dtype)


def measured(goal: Goal, group: tuple[str, list[Record]], records: list[Record]) -> Outcome:
    case, entrants = group
    ours = find_ours(goal, entrants)
    if ours is None or not correct(ours):
        return Outcome(goal, why=reason_not_counted(ours, goal.ours), case=case)
    if goal.measure in ("roofline", "share"):
        return Outcome(goal, ours[goal.measure], case=case)
    if goal.measure == "tanh":
        return Outcome(goal, tanh_rate(ours) / ours["ceilings"]["tanh"], case=case)
    other, why = baseline_of(goal, ours, entrants, records)
    if other is None:
        return Outcome(goal, why=why, case=case)
    return compare_records(goal, ours, other, case, records)


def find_ours(goal: Goal, entrants: list[Record]) -> Record | None:
    """The record that has to reach the goal; of several, the fastest correct one."""
    named = [record for record in entrants if record["label"] in goal.ours.split(" or ")]
    right = [record for record in named if correct(record)]
    fastest = min(right, key=lambda record: record["seconds"]["median"], default=None)
    return fastest or next(iter(named), None)


def compare_records(
    goal: Goal, ours: Record, other: Record, case: str, records: list[Record]
) -> Outcome:
    """Compare two records as a figure."""
    if goal.measure == "memory":
        return Outcome(
            goal, other["peak_extra_bytes"] / max(ours["peak_extra_bytes"], 1), case=case
        )
    if goal.measure == "overhead":
        return Outcome(goal, ours["seconds"]["median"] / other["seconds"]["median"], case=case)
    middle, low, high = ratio(other, ours)
    return Outcome(
        goal, middle, low, high, case=case, views=goal.measure == "views" and all_views(records)
    )


def all_views(records: list[Record]) -> bool:
    """Tell whether both shifts of a padded buffer were seen to copy nothing."""
    return {
        record["shift"] for record in select(records, case="shift as a view", copied=False)
    } == {
        "shift_right",
        "rel_shift",
    }


def tanh_rate(record: Record) -> float:
    sizes = record["sizes"]
    return float(sizes["B"] * sizes["N"] * sizes["M"] * sizes["A"] / record["seconds"]["median"])


def baseline_of(
    goal: Goal, ours: Record, entrants: list[Record], records: list[Record]
) -> tuple[Record | None, str]:
    """Tell whom a record is held against, or why there is nobody."""
    if goal.measure == "overhead":
        plain = own_plain(goal, ours, records)
        return plain, "own plain attention of this size was not measured"
    if goal.against == BEST:
        peers = [record for record in entrants if not record["ours"] and correct(record)]
        return min(
            peers, key=lambda record: record["seconds"]["median"], default=None
        ), "no correct peer"
    other = next((record for record in entrants if record["label"] == goal.against), None)
    if other is None or not correct(other):
        return None, reason_not_counted(other, goal.against)
    return other, ""


def own_plain(goal: Goal, ours: Record, records: list[Record]) -> Record | None:
    """Our plain attention of the same size and dtype, causal where the goal says so."""
    causal = "causal" in goal.against
    kind, label = ("plain causal", CAUSAL) if causal else ("flash grid", ours["label"])
    letters = ("B", "H", "N", "M", "D")
    plain = select(
        records,
        operation="scaled_dot_product_attention",
        label=label,
        dtype=ours["dtype"],
        mode=ours["mode"],
    )
    same = [
        one
        for one in plain
        if all(one["sizes"][letter] == ours["sizes"][letter] for letter in letters)
    ]
    return next((one for one in same if one["case"].startswith(kind) and correct(one)), None)


def reason_not_counted(record: Record | None, label: str) -> str:
    """Say why a record does not count."""
    if record is None:
        return f"{label} took no part"
    if record["refused"]:
        return f"{label} refused: {record['refused']}"
    return (
        f"{label} {record['verdict']}: {first_line(record['reason'])}"
        if record["verdict"] != "correct"
        else f"{label} has no samples"
    )


def outcomes(records: list[Record], device: str) -> list[Outcome]:
    """List what a run says of each goal; none of a run that has cases, but of no goal."""
    found = [outcome(goal, records) for goal in GOALS[device]]
    return found if not records or any(one.why != NO_CASE for one in found) else []


def closing_lines(records: list[Record], device: str) -> list[str]:
    """
    The table of this device, each row met, missed with its figure, or not measured, and how many
    rows the other has; how cost grows; who did not take part.
    """
    lines = [*scaling_outcome(records), *not_measured(records), ""]
    if not (found := outcomes(records, device)):
        return lines
    other = "cuda" if device == "cpu" else "cpu"
    reason = "no GPU" if other == "cuda" else "this run is on a GPU"
    lines += [
        f"{len(GOALS[other])} more goals, of the other kind of device: not measured, {reason}"
    ]
    return [*lines, "", *map(format_goal, found)]


def scaling_outcome(records: list[Record]) -> list[str]:
    return [f"growth of {name}" for name in exponents(records)]


def title(goal: Goal) -> str:
    sign, unit = ("<=", "") if goal.at_most else (">=", "x")
    wanted = (
        f"floor {sign} {goal.floor:g}{unit}, goal {goal.goal:g}{unit}"
        if goal.goal != float("inf")
        else f"floor {sign} {goal.floor:g}{unit}"
    )
    return f"{goal.what:<58} {goal.against:<27} {wanted:<30}"


def format_goal(one: Outcome) -> str:
    """Format a row with its verdict: ``goal met: 4.31x (4.20 to 4.40)``."""
    return f"{title(one.goal)}  {measured_words(one)}"


def measured_words(one: Outcome) -> str:
    if one.figure is None:
        return f"not measured: {one.why}"
    spread = f" ({one.low:.2f} to {one.high:.2f})" if one.high else ""
    unit = "" if one.goal.at_most else "x"
    return f"{one.word}: {one.figure:.3g}{unit}{spread}"
