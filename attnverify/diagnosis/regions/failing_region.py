"""
From failing cases to the region that they fill: the line that a file of known failures would need,
offered with its evidence.

The region is the shortest conjunction of conditions that is true of every failure and, where there
is such a one, of no pass (:mod:`attnverify.diagnosis.regions.condition_search`). A few failures
have much in common by chance: of failing cases with one thing changed those are judged on which the
possible regions are most divided (:mod:`attnverify.diagnosis.regions.rival_conditions`), and the
region is tried on fresh draws and sought again with these among the cases, until it holds or the
rounds are over.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, cycle

from attnverify.backends.implementation import Implementation
from attnverify.diagnosis import sentences as say
from attnverify.diagnosis.call_budget import CallBudget
from attnverify.diagnosis.regions.boundaries import (
    describe_tried,
    in_plain_numbers,
    is_edge,
    is_of_sizes,
    is_withstood,
    next_question,
)
from attnverify.diagnosis.regions.condition_search import find_conjunction
from attnverify.diagnosis.regions.rival_conditions import find_rivals, most_dividing
from attnverify.inputs.conditions import Condition, parse_condition
from attnverify.inputs.recipe import Recipe
from attnverify.inputs.sampling import draw_recipes, one_part_less, resized, shrink_key
from attnverify.judge.case import Case, case_of

ROUNDS = 3
TRIES = 2
"""So many failing cases at most are judged in another dtype."""

FOR_FRESH = 4, 2
"""Calls of the kernel and of the oracle that are kept for fresh draws."""
FOR_BOUNDARIES = 16, 16
"""Those that are kept for the boundaries of sizes."""
CHANGED = 3
"""So many failing cases are changed in every size."""
BETWEEN = (2, 5, 9, 24, 48, 80)
"""Sizes between those at which kernels change, and multiples of tiles that are no power of two."""
FEW = 4
"""Of fewer failures no region is offered that nothing else bears out."""
LARGE = 1_000_000
"""The product of the sizes of a case that is asked for to tell conditions apart."""

OTHER_SEED = 1_000_003
"""Added to the seed of the run, for draws that the run has not seen."""


@dataclass(frozen=True)
class Draws:
    """How the run drew its cases (:func:`attnverify.inputs.sampling.draw_recipes`)."""

    kind: str
    count: int
    seed: int

    def others(self, operation: str, number: int) -> tuple[Recipe, ...]:
        """Draws that the run has not seen, others for each number."""
        return draw_recipes(operation, self.kind, self.count, self.seed + number * OTHER_SEED)


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

    def add(self, recipes: Iterable[Recipe], budget: CallBudget) -> None:
        """Judge further recipes for as long as the budget lasts."""
        for recipe in recipes:
            case = case_of(recipe, self.dtype)
            self.label(case, budget.outcome(self.implementation, case))
            if not all(budget.left):
                return

    def label(self, case: Case, kind: str) -> None:
        """Put a case where its outcome belongs."""
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
    tried: dict[str, str] = field(default_factory=dict)
    """Of each condition on sizes the calls that have shown it, "" where none have."""

    @property
    def when(self) -> str | None:
        """The region as a line of the known failures has it; None: all cases."""
        return " and ".join(self.conditions) or None

    @property
    def told(self) -> tuple[str, ...]:
        """
        Its conditions, where the kernel has shown each that speaks of sizes, and more than a few
        cases the others; else none.
        """
        few = min(self.failures[1], self.passes[1]) < FEW and not self.tried
        return self.conditions if all(self.tried.values()) and not few else ()

    @property
    def counts(self) -> str:
        """Of how many failing and passing cases it holds, and what was tried of its sizes."""
        failures, passes = (
            format_counts((one[0] + two[0], one[1] + two[1]))
            for one, two in ((self.failures, self.fresh_failures), (self.passes, self.fresh_passes))
        )
        words = say.HOLDS.format(failures=failures, passes=passes)
        return "; ".join((words, *filter(None, self.tried.values())))

    @property
    def holds(self) -> bool:
        """
        Whether the fresh draws bear it out: no failure outside, and no larger share of the passes
        inside than at first.
        """
        failed, all_failed = self.fresh_failures
        passed, all_passed = self.fresh_passes
        inside, all_ = self.passes
        return failed == all_failed and passed * all_ <= inside * all_passed

    @property
    def exact(self) -> bool:
        """Whether it tells failures from passes, the fresh ones too."""
        every = all(inside == all_ for inside, all_ in (self.failures, self.fresh_failures))
        return every and self.passes[0] == self.fresh_passes[0] == 0

    def line(self, implementation: str, aspect: str) -> str:
        """Return the line to copy, with a reason still to be given."""
        return (
            f"{implementation} {self.dtype} "
            f"{aspect}{f' when {self.when}' if self.when else ''} : <reason>"
        )

    @property
    def evidence(self) -> str:
        """What speaks for the line."""
        names = ("failures", "passes", "fresh_failures", "fresh_passes")
        words = say.COVERS if self.fresh_failures[1] else say.NONE_FAILED
        if self.fresh_failures[1] + self.fresh_passes[1] == 0:
            words = say.NOT_TRIED
        tried = "".join(f"; {shown}" for shown in self.tried.values() if shown)
        counts = {name: format_counts(getattr(self, name)) for name in names}
        return words.format(tried=tried, **counts)


def format_counts(counts: tuple[int, int]) -> str:
    return say.OF.format(inside=counts[0], all=counts[1])


def offers(
    implementation: Implementation,
    dtype: str,
    failures: dict[str, list[Case]],
    passing: list[Case],
    draws: Draws,
    budget: CallBudget,
) -> dict[str, RegionOffer]:
    """
    Return a region for each kind of failure: one for all wrong numbers where they have one in
    common, else one each; an exception, which tells itself, has its own.
    """
    raised = [[kind] for kind in failures if kind.startswith("raised")]
    groups = [[kind for kind in failures if [kind] not in raised], *raised]
    if len(groups := [group for group in groups if group]) > 1:
        few = budget.part(*(left // len(groups) for left in budget.left))
        each = [{kind: failures[kind] for kind in group} for group in groups]
        found = [offers(implementation, dtype, part, passing, draws, few) for part in each]
        return {kind: region for regions in found for kind, region in regions.items()}

    def region(kinds: Iterable[str], calls: CallBudget) -> RegionOffer:
        failing = list(chain.from_iterable(failures[kind] for kind in kinds))
        known = LabelledCases(implementation, dtype, frozenset(kinds), failing, [*passing])
        return generalise(known, draws, calls)

    parts = 1 if len(failures) == 1 else 2
    kernel, oracle = (left // parts for left in budget.left)
    together = region(failures, budget.part(kernel, oracle))
    if together.when or len(failures) == 1:
        return dict.fromkeys(failures, together)
    kernel, oracle = (left // len(failures) for left in budget.left)
    return {what: region([what], budget.part(kernel, oracle)) for what in failures}


def generalise(cases: LabelledCases, draws: Draws, budget: CallBudget) -> RegionOffer:
    """
    Return the shortest region of the failures, sought again with the answers to the cases on which
    it and its rivals are most divided, and borne out by fresh draws.
    """
    implementation, failed = cases.implementation, cases.failing[:TRIES]
    for case, kind in budget.outcomes.items():
        cases.label(case, kind)
    others = [dtype for dtype in implementation.operation.dtypes if dtype != cases.dtype]
    calls = budget.less(len(others), len(others))
    if cases.passing:
        ask_what_divides(cases, draws, calls.less(*FOR_FRESH).less(*FOR_BOUNDARIES))
    else:
        cases.add(aligned(cases.failing), calls)
    for round_ in range(1, ROUNDS + 1):
        when, fresh = ask_boundaries(cases, calls.less(*FOR_FRESH)), cases.empty_copy()
        fresh.add(draws.others(implementation.operation.name, round_ + 1), half_of(calls))
        found = evaluate_region(when, cases, fresh)
        if found.holds:
            break
        cases = cases.merged_with(fresh)
    if found.fresh_failures[1] == 0 and len(cases.failing) < FEW and not found.tried:
        found = evaluate_region((), cases, fresh)  # what so few have in common may be chance
    everywhere = fails_in_every_dtype(implementation, failed, others, budget)
    return replace(found, dtype="*" if everywhere else cases.dtype)


def ask_what_divides(cases: LabelledCases, draws: Draws, budget: CallBudget) -> None:
    """Judge the cases on which the rivals for the region are most divided, while they are."""
    recipes = changed_recipes(cases.failing, draws.others(cases.implementation.operation.name, 1))
    left = {case_of(recipe, cases.dtype) for recipe in recipes if shrink_key(recipe)[0] <= LARGE}
    left -= {*cases.failing, *cases.passing}
    while all(budget.left):
        rivals = find_rivals(cases.failing, cases.passing)
        asked = most_dividing(rivals, sorted(left, key=lambda case: case.recipe.text))
        if asked is None:
            return
        left.remove(asked)
        cases.add([asked.recipe], budget)


def ask_boundaries(cases: LabelledCases, budget: CallBudget) -> tuple[str, ...]:
    """Find the conditions, and ask what their sizes hang on until no answer changes them."""
    asked = set[Case]()
    while True:
        when = find_conjunction(cases.failing, cases.passing)
        questions = next_question(when, cases.failing, cases.passing)
        case = next((case for case in questions if case not in asked), None)
        if case is None or not all(budget.left):
            return when
        asked.add(case)
        cases.add([case.recipe], budget)


def aligned(failing: Sequence[Case]) -> Iterator[Recipe]:
    """Where nothing passes: the same in sizes that every tile divides."""
    plain = min((case.recipe for case in failing), key=lambda r: shrink_key(r))
    for size in ALIGNED:
        yield resized(plain, {letter: size for letter in "NMDEF" if letter in plain.sizes})


ALIGNED = (16, 64, 128)


def half_of(budget: CallBudget) -> CallBudget:
    """Half of what is left of the oracle's calls, which are the fewer."""
    kernel, oracle = budget.left
    return budget.part(kernel, (oracle + 1) // 2)


def fails_in_every_dtype(
    implementation: Implementation, failed: list[Case], others: Sequence[str], budget: CallBudget
) -> bool:
    """Whether one of these cases fails in every other dtype too."""
    return all(
        any(
            budget.outcome(implementation, case_of(case.recipe, other)) not in ("", "passed")
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
    both = known.merged_with(fresh)
    of_sizes = [text for text in when if is_of_sizes(text)]
    tried = {
        text: describe_tried(text, both.failing, both.passing)
        if is_withstood(text, when, both.passing)
        else ""
        for text in of_sizes
    }
    plain = {text: in_plain_numbers(text) for text in when if is_edge(text, both.failing)}
    when = tuple(plain.get(text, text) for text in when)
    tried = {plain.get(text, text): words for text, words in tried.items()}
    return RegionOffer(when, failures, passes, fresh_failures, fresh_passes, known.dtype, tried)


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


def changed_recipes(failing: list[Case], others: Sequence[Recipe]) -> Iterator[Recipe]:
    """
    Failing cases with one thing changed: a part taken from another case, or left out, a size, or
    all that are of one size. Where the failure stays, what was changed was not its cause.
    """
    for place, (other, part) in enumerate(zip(others, cycle(PARTS), strict=False)):
        yield replace(
            failing[place % len(failing)].recipe, **{name: getattr(other, name) for name in part}
        )
    for case in failing[:CHANGED]:
        yield from one_part_less(case.recipe)
        for size in set(case.recipe.sizes.values()):
            alike = [letter for letter, own in case.recipe.sizes.items() if own == size]
            for new in {max(size - 1, 1), size + 1, *BETWEEN}:
                yield from (resized(case.recipe, {letter: new}) for letter in alike)
                yield resized(case.recipe, dict.fromkeys(alike, new))
    yield from others
