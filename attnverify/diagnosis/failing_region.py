"""
From failing cases to the region that they fill: the line that a file of known failures would need,
offered with its evidence.

The region is the shortest conjunction of conditions that is true of every failure and, where there
is such a one, of no pass (:mod:`attnverify.diagnosis.condition_search`). A few failures have much
in common by chance: failing cases are crossed with others, one part at a time, and the region is
tried on fresh draws and sought again with these among the cases, until it holds or the rounds are
over.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle

from attnverify.backends.loader import Implementation
from attnverify.diagnosis.condition_search import find_conjunction
from attnverify.inputs.conditions import Condition, parse_condition
from attnverify.inputs.recipe import Recipe
from attnverify.inputs.sampling import draw_recipes
from attnverify.judge.case import Case, case_of
from attnverify.judge.errors import Disagreement, Unsupported
from attnverify.judge.judging import judge

ROUNDS = 3
SECONDS = 4.0
"""After so long, what was found is offered with the counts that it has."""

OTHER_SEED = 1_000_003
"""Added to the seed of the run, for draws that the run has not seen."""


@dataclass
class LabelledCases:
    """
    Cases that fail in the way of the finding, and cases that pass; ``kinds`` are the failures that
    count as that way.
    """

    implementation: Implementation
    dtype: str
    kinds: frozenset[str]
    failing: list[Case] = field(default_factory=list)
    passing: list[Case] = field(default_factory=list)

    def add(self, recipes: Iterable[Recipe], end: float) -> None:
        """Judge further recipes until the time is over."""
        for recipe in recipes:
            if time.monotonic() > end:
                return
            case = case_of(recipe, self.dtype)
            kind = outcome_kind(self.implementation, case)
            if kind in self.kinds:
                self.failing.append(case)
            elif kind == "passed":
                self.passing.append(case)

    def empty_copy(self) -> "LabelledCases":
        return LabelledCases(self.implementation, self.dtype, self.kinds)

    def merged_with(self, other: "LabelledCases") -> "LabelledCases":
        return replace(
            self, failing=[*self.failing, *other.failing], passing=[*self.passing, *other.passing]
        )


@dataclass(frozen=True)
class RegionOffer:
    """
    A region by its conditions (none: all cases), and of the failures and passes how many lie in
    it: at first, and among fresh ones.
    """

    conditions: tuple[str, ...]
    failures: tuple[int, int]
    passes: tuple[int, int]
    fresh_failures: tuple[int, int]
    fresh_passes: tuple[int, int]
    dtype: str
    """The dtype in which the region fails, or "*" where it fails in every one."""

    @property
    def when(self) -> str | None:
        """The region as a line of the known failures has it; None: all cases."""
        return " and ".join(self.conditions) or None

    @property
    def holds(self) -> bool:
        """
        Whether the fresh draws bear it out: no failure outside, and passes inside only where there
        were some at first.
        """
        inside, all_ = self.fresh_failures
        return inside == all_ and (self.fresh_passes[0] == 0 or self.passes[0] > 0)

    @property
    def exact(self) -> bool:
        """Whether it tells failures from passes, the fresh ones too."""
        every = all(inside == all_ for inside, all_ in (self.failures, self.fresh_failures))
        return every and self.passes[0] == self.fresh_passes[0] == 0

    def line(self, implementation: str, aspect: str) -> str:
        """The line to copy, with a reason still to be given."""
        return (
            f"{implementation} {self.dtype} "
            f"{aspect}{f' when {self.when}' if self.when else ''} : <reason>"
        )

    @property
    def evidence(self) -> str:
        """What speaks for the line."""
        fresh = (
            f"; on fresh draws {format_counts(self.fresh_failures)} and "
            f"{format_counts(self.fresh_passes)}"
        )
        return (
            f"(covers {format_counts(self.failures)} failures, {format_counts(self.passes)} "
            f"passes{fresh})"
        )


def format_counts(counts: tuple[int, int]) -> str:
    return f"{counts[0]} of {counts[1]}"


def outcome_kind(implementation: Implementation, case: Case) -> str:
    """The kind of the failure, "passed", or "" where the case says nothing."""
    try:
        return "passed" if judge(implementation, case).judged else ""
    except Unsupported:
        return ""
    except Disagreement as error:
        return error.kind


def offers(implementation: Implementation, dtype: str, failures: dict[str, list[Case]],
    passing: list[Case], kind: str, count: int,
           seed: int) -> dict[str, RegionOffer]:  # fmt: skip
    """
    A region for each kind of failure: one for all of them where they have one in common, else one
    each.

    ``kind``, ``count`` and ``seed`` are those of the run's draws
    (:func:`attnverify.inputs.sampling.draw`).
    """
    alike = [case for failing in failures.values() for case in failing]
    together = generalise(
        LabelledCases(implementation, dtype, frozenset(failures), alike, [*passing]),
        kind,
        count,
        seed,
    )
    if together.when or len(failures) == 1:
        return dict.fromkeys(failures, together)
    return {
        what: generalise(
            LabelledCases(implementation, dtype, frozenset({what}), [*failing], [*passing]),
            kind,
            count,
            seed,
        )
        for what, failing in failures.items()
    }


def generalise(cases: LabelledCases, kind: str, count: int, seed: int) -> RegionOffer:
    """
    The shortest region of the failures, sought again with the counterexamples that fresh draws
    give.
    """
    end = time.monotonic() + SECONDS
    operation, failed = cases.implementation.operation.name, cases.failing[:4]
    if cases.passing:
        cases.add(
            list(
                cross_recipes(
                    cases.failing, draw_recipes(operation, kind, count, seed + OTHER_SEED)
                )
            ),
            end,
        )
    for round_ in range(1, ROUNDS + 1):
        when, fresh = (
            find_conjunction(cases.failing, cases.passing),
            cases.empty_copy(),
        )
        fresh.add(
            draw_recipes(
                operation,
                kind,
                count if cases.passing else count // 4,
                seed + (round_ + 1) * OTHER_SEED,
            ),
            end,
        )
        found = evaluate_region(when, cases, fresh)
        if found.holds or time.monotonic() > end:
            break
        cases = cases.merged_with(fresh)
    return replace(
        found,
        dtype="*" if fails_in_every_dtype(cases.implementation, failed) else cases.dtype,
    )


def fails_in_every_dtype(implementation: Implementation, failed: list[Case]) -> bool:
    """Whether some of these cases fail in every other dtype too."""
    others = [other for other in implementation.operation.dtypes if other != failed[0].dtype]
    return all(
        any(
            outcome_kind(implementation, case_of(case.recipe, other)) not in ("", "passed")
            for case in failed
        )
        for other in others
    )


def evaluate_region(
    when: tuple[str, ...], known: LabelledCases, fresh: LabelledCases
) -> RegionOffer:
    conditions = [parse_condition(text) for text in when]
    failures, passes, fresh_failures, fresh_passes = (
        count(conditions, cases)
        for cases in (known.failing, known.passing, fresh.failing, fresh.passing)
    )
    return RegionOffer(when, failures, passes, fresh_failures, fresh_passes, known.dtype)


def count(conditions: list[Condition], cases: list[Case]) -> tuple[int, int]:
    """How many of the cases lie in the region, and how many there are."""
    return sum(all(holds(case) for holds in conditions) for case in cases), len(cases)


PARTS = (
    ("values",),
    ("mask", "padding"),
    ("layout",),
    ("poison",),
    ("dropout",),
    ("sizes", "options"),
)


def cross_recipes(failing: list[Case], others: Sequence[Recipe]) -> Iterator[Recipe]:
    """
    The failing cases with one part each taken from another case: where the failure stays, that part
    was not its cause.
    """
    for place, (other, part) in enumerate(zip(others, cycle(PARTS), strict=False)):
        yield replace(
            failing[place % len(failing)].recipe, **{name: getattr(other, name) for name in part}
        )
