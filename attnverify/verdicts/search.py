"""
Searching a cell for failures: recipe after recipe, recorded ones first.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from attnverify.backends.calls.arguments import CAUSAL_MASKS
from attnverify.backends.calls.terms import has_causal_option, line_of, may_be_causal, words_of
from attnverify.backends.declarations import (
    CAUSAL_ALONE,
    NO_GRADIENT,
    STRICT,
    TAKES_NO,
    features_of,
)
from attnverify.backends.implementation import Implementation
from attnverify.diagnosis.alignment import ALIGNED_AT_START, TOP_LEFT, is_aligned_at_start
from attnverify.diagnosis.call_budget import CallBudget, price_of
from attnverify.diagnosis.cause import describe_sizes
from attnverify.diagnosis.regions.failing_region import Draws, offers
from attnverify.failures.finding import Finding, KnownFailureLine, is_wide, offered_line
from attnverify.failures.record import FailureRecord
from attnverify.failures.store import save_or_say
from attnverify.inputs.fixed_cases import fixed_recipe
from attnverify.inputs.given import recipe_of_file
from attnverify.inputs.real.required_kinds import (
    NUMBERS,
    OF_MASKS,
    REAL,
    TRUTH,
    is_roomy,
    kinds_of,
    stand_ins,
    with_judged_mask,
)
from attnverify.inputs.real.required_options import options_of
from attnverify.inputs.recipe import Recipe
from attnverify.inputs.sampling import shrink_key
from attnverify.judge.case import Case, case_of
from attnverify.judge.errors import DOES_NOT_COMPILE
from attnverify.judge.weak_cases import arrays
from attnverify.verdicts.cell import Cell
from attnverify.verdicts.findings import (
    MAX_KINDS_REPORTED,
    Failures,
    describe_detached,
    describe_failures,
)
from attnverify.verdicts.fitting import (
    fitted_real,
    fitted_recipes,
    limits_draws,
    untaken_features,
)
from attnverify.verdicts.found_out import (
    ABOUT_DTYPES,
    ASKED,
    DOES_NOT_TAKE,
    MEANT,
    WIDTHS,
    describe_terms,
    find_narrower,
    find_plain_terms,
    find_terms,
    find_untaken_dtype,
    has_heads_of_any_width,
    saying,
    sorted_by_size,
    supported_variants,
)
from attnverify.verdicts.one_case import judge_one, note
from attnverify.verdicts.shown import Shown, is_sampled, shown_recipes, take_few
from attnverify.verdicts.shrinking import bisect_sizes
from attnverify.verdicts.tally import Options, Tally, unsupported


def forward_and_gradient(cell: Cell) -> list[Implementation]:
    """Give the implementation and its gradient, once each."""
    without = cell.implementation.backend.declared.features.get("gradient") is False
    gradient = None if without else cell.gradient
    return list(dict.fromkeys(i for i in (cell.implementation, gradient) if i is not None))


MASKED = ("mask", "float mask")
"""The features that a required case may be there to show."""

LOOKED_AT = 3
"""Failing cases whose own bound is searched."""

BOUND_EXCEEDED = (
    "not judged: our bound is wrong here, a legal evaluation of your specification is {share:.3g}x "
    "of it ({sizes}); please report it"
)

EARLIER = "an earlier run's failing case, replayed"

MORE_KEYS = {"B": 2, "H": 3, "N": 5, "M": 8, "D": 8, "E": 8}
"""A call of more keys than queries: where they are causal, one query sees four of them at least."""

UNEQUAL = "N != M"
FROM_START = next(words for words, align in CAUSAL_MASKS.items() if align == "start")

MODELS = 2
"""Calls that were judged, in whose sizes a required case is asked once more."""


@dataclass
class Search:
    """What the recipes of one search have shown so far."""

    implementation: Implementation
    dtype: str
    options: Options
    tally: Tally = field(default_factory=Tally)
    failing: dict[str, list[Case]] = field(default_factory=dict)
    """By the kind of the failure."""
    passing: list[Case] = field(default_factory=list)
    refused: dict[Recipe, str] = field(default_factory=dict)
    """What the function says that it does not support, and why."""
    detached: list[Case] = field(default_factory=list)
    """Those whose outputs came without a gradient."""
    drawn: int = 0
    """So many recipes of the seed were drawn, from the first on."""
    kind: str = "any"
    """What is drawn: "nan" where hidden slots hold NaN."""
    earlier: tuple[Recipe, ...] = ()
    """What an earlier run has recorded and this one would not have shown."""
    aspect: str = ""
    """The column, where what fails is told as it is found."""
    first: FailureRecord | None = None
    """What failed first, where that is told."""
    narrower: str = ""
    """The dtype in which the function computes, which explains some failures and not all."""

    def judge(self, recipe: Recipe) -> None:
        case = case_of(recipe, self.dtype)
        tally, kind = judge_one(self.implementation, case, self.options, self.tally.budget)
        # what an earlier run has recorded is no case of this one: the same seed, the same counts
        self.tally += replace(tally, cases=0, strong=0) if recipe in self.earlier else tally
        if kind:
            self.failing.setdefault(kind, []).append(case)
            self.tell_failure(case)
        elif tally.cases:
            self.passing.append(case)
        elif NO_GRADIENT in tally.reasons:
            if any(
                leaf.any() for leaf in arrays(case.expected)
            ):  # else there is nothing to hand on
                self.detached.append(case)
        elif tally.unsupported:
            self.refused[recipe] = next(iter(tally.reasons))

    def tell_failure(self, case: Case) -> None:
        """Tell what fails so far: the first kind and case of it, and how many there are in all."""
        if self.aspect:
            self.first = self.first or FailureRecord.of(self.implementation, case, self.aspect)
            share = self.share_of(chain(*self.failing.values()))
            note(self.first, next(iter(self.failing)), share)

    def look_at_rows(self, large: Case) -> None:
        """
        Put the rows of a large call that fail as calls of their own in its place, where there are
        any: they are small enough to be explained.
        """
        alone = Search(self.implementation, self.dtype, self.options)
        for row in large.rows:
            alone.judge(row.recipe)
        if alone.failing:
            self.failing, self.passing = alone.failing, alone.passing

    def look_at_smaller(self) -> None:
        """
        Put smaller calls that fail as the large ones do in their place, and those just below them
        that pass beside them: they are small enough to be explained.
        """
        self.passing = [case for case in self.passing if not case.recipe.is_large]
        for kind, cases in list(self.failing.items()):
            alone = Search(self.implementation, self.dtype, self.options)

            def fails(recipe: Recipe, alone: Search = alone, kind: str = kind) -> bool:
                alone.judge(recipe)
                return case_of(recipe, self.dtype) in alone.failing.get(kind, ())

            large = min((case.recipe for case in cases), key=shrink_key)
            smallest = case_of(bisect_sizes(large, fails), self.dtype)
            small = [case for case in alone.failing.get(kind, ()) if not case.recipe.is_large]
            self.failing[kind], self.tally = small or [smallest], self.tally + alone.tally
            self.passing += [case for case in alone.passing if not case.recipe.is_large]

    def is_unsupported(self) -> bool:
        """Tell whether every call so far was said to be unsupported."""
        return self.tally.unsupported > 0 and not (self.tally.cases or self.tally.known)

    def uncompiled(self) -> dict[str, int]:
        """Return what the compiler said, and of how many calls."""
        found = self.tally.reasons.items()
        return {words: count for words, count in found if words.startswith(DOES_NOT_COMPILE)}

    def wants_other_widths(self) -> bool:
        """Tell whether sizes that kernels are written for would show more than those drawn."""
        few = self.tally.unsupported > 4 * (self.tally.cases + self.tally.known)
        few = few or sum(self.uncompiled().values()) > self.tally.cases
        return few and has_heads_of_any_width(self.implementation.operation)

    def never_compiled(self) -> str:
        """Quote the compiler, where no call was answered; "" otherwise."""
        answered = not self.is_unsupported() or NO_GRADIENT in self.tally.reasons
        return "" if answered else next(iter(self.uncompiled()), "")

    def judge_supported(self, recipe: Recipe, widths: list[int]) -> None:
        """Judge a recipe of sizes that kernels are written for, as far as it is supported."""
        for width in list(widths):
            for variant in supported_variants(recipe, width):
                before = self.tally.unsupported
                self.judge(variant)
                if self.tally.unsupported == before:
                    widths.append(widths.pop(0))  # each width has its turn
                    return
            if not self.passing and not self.failing:
                widths.remove(width)

    def uncompiled_by_dtype(self, recipes: tuple[Recipe, ...]) -> str:
        """
        Quote the compiler where the dtype alone, which the file does not name, keeps from compiling
        what compiles in float32; "" otherwise.
        """
        if self.dtype in ("float32", *self.implementation.backend.declared.dtypes):
            return ""
        other, widths = Search(self.implementation, "float32", self.options), list(WIDTHS)
        for recipe in recipes[:ASKED]:
            other.judge_supported(recipe, widths)
        answered = [*other.passing, *chain(*other.failing.values())]
        alike = Search(self.implementation, self.dtype, self.options)
        for case in answered[:1]:
            alike.judge(case.recipe)
        return next(iter(alike.uncompiled()), "")

    def budget(self) -> CallBudget:
        """Return the calls that its findings may make."""
        judged = chain(self.passing, *self.failing.values())
        number = min(len(self.failing), MAX_KINDS_REPORTED)
        return CallBudget.of_findings(number, judged, price_of(self.implementation))

    def leave_out_narrower(self) -> str:
        """
        Leave out the failures that arithmetic in a narrower dtype explains; say so where it
        explains them all.
        """
        found = find_narrower(self.implementation, [*chain(*self.failing.values())], self.passing)
        if found is None:
            return ""
        kept = {
            kind: left
            for kind, cases in self.failing.items()
            if (left := [case for case in cases if case not in found.explained])
        }
        self.failing, self.narrower = kept, found.dtype
        return "" if kept else str(found)

    def seen_in_narrower(self) -> "Search":
        """
        Show what is left of the failures in the dtype in which the function computes, where nothing
        else is wrong with them: in the wider one a smaller call fails by its rounding alone.
        """
        other = replace(self, dtype=self.narrower, failing={}, passing=[], aspect="")
        for case in chain(self.passing, *self.failing.values()):
            other.judge(case.recipe)
        other.tally = self.tally
        alike = other.failing and {*other.failing} <= {*self.failing}
        return other if alike else self

    def find_undeclared(self) -> str:
        """
        Say what the function does with a dtype that its file does not name, where that explains
        every failure; "" otherwise.
        """
        if self.dtype in self.implementation.backend.declared.dtypes or not self.failing:
            return ""
        if any(case.rows for case in chain(*self.failing.values())):
            return ""  # the specification has not seen all of them
        own, hidden = self.implementation, self.kind != "any"
        if not self.passing and (words := find_untaken_dtype(own, self.failing, hidden)):
            return words
        return "" if self.options.inputs else self.leave_out_narrower()

    def find_unsaid(self, cell: Cell) -> dict[str, Any]:
        """Find the terms that its file does not say and that explain every failure."""
        own = cell.implementation
        if said := find_plain_terms(own, self.dtype):
            return said
        if self.dtype == "float64" and not self.passing:  # as who computes in float32 is right
            return find_plain_terms(own, "float32")
        return find_terms(self.implementation, self.failing, self.passing)

    def of_unequal_lengths(self) -> list[Case]:
        """List the failing calls of other numbers of keys than of queries."""
        return [c for c in chain(*self.failing.values()) if UNEQUAL in features_of(c.inputs)]

    def is_aligned_at_start(self, own: Implementation) -> bool:
        """
        Tell whether a function that causal calls of N != M show to be wrong, and whose file does
        not say that it takes them, aligns its mask at the start.
        """
        declared, operation = own.backend.declared, own.operation
        said = declared.terms.get("CAUSAL") == "start" or UNEQUAL in declared.features
        if declared is STRICT or said or operation.is_gradient:
            return False
        if not (may_be_causal(operation) and self.of_unequal_lengths()):
            return False
        sizes = MORE_KEYS | ({"G": MORE_KEYS["H"]} if operation.shares_keys else {})
        longer = fixed_recipe(operation, sizes)
        (causal,) = fitted_recipes([longer], {**declared.limits, CAUSAL_ALONE: True})
        return is_aligned_at_start(own, case_of(causal, self.dtype))

    def find_exceeded(self) -> str:
        """
        Say where a legal evaluation of somebody's own specification is beyond our bound of the
        smallest cases that fail: then nothing is said against the implementation. "" otherwise.
        """
        outside = self.implementation.operation.outside
        if outside is None:
            return ""
        precision = self.implementation.precision(self.dtype)
        for case in sorted_by_size([*chain(*self.failing.values())])[:LOOKED_AT]:
            share = outside.nearest_to_bound(case.inputs, precision)
            if share > 1:
                return BOUND_EXCEEDED.format(share=share, sizes=describe_sizes(case).strip(" ()"))
        return ""

    def find_left_out(self, recipes: tuple[Recipe, ...]) -> str:
        """Say why the dtype is not judged, where the function leaves it out; "" otherwise."""
        if reason := self.find_undeclared():
            return reason
        words = self.uncompiled_by_dtype(recipes) if self.never_compiled() else ""
        return f"{DOES_NOT_TAKE} {self.dtype}: {words}" if words else ""

    def judge_shown(self, shown: Shown, cases: int) -> None:
        """Judge what a cell is shown, and further draws while these say nothing."""
        self.drawn, self.earlier = cases, shown.earlier
        for recipe in (*shown.at_first, *shown.drawn, *shown.causal):
            self.judge(recipe)
        self.replace_fixed(shown)
        for recipe in shown.further(self.untaken()) if self.wants_more(cases) else ():
            if not self.wants_more(cases):
                break
            self.judge(recipe)
            self.drawn += 1
        self.replace_required(shown.required)
        if self.wants_other_widths():
            widths = list(WIDTHS)
            for recipe in shown.drawn:
                self.judge_supported(recipe, widths)
        if not self.failing:
            for recipe in shown.hunted():
                self.judge(recipe)
        if not self.failing and not self.is_unsupported():
            self.judge_real(shown.real)
            self.look_at_smaller()

    def share_of(self, cases: Iterable[Case]) -> str:
        """Say how many of this run's own cases fail; what an earlier run recorded where none do."""
        own = sum(case.recipe not in self.earlier for case in cases)
        return f"{own} of {self.tally.cases} cases" if own else EARLIER

    def untaken(self) -> dict[str, Any]:
        """Say as FEATURES does what is not taken: what the file declares, and what was refused."""

        def features(recipe: Recipe) -> frozenset[str]:
            return frozenset(features_of(case_of(recipe, self.dtype).inputs))

        answered = chain(self.passing, *self.failing.values())
        found = untaken_features(
            (features(case.recipe) for case in answered), map(features, self.refused)
        )
        options = dict.fromkeys(self.lacking() & {*self.implementation.operation.domains}, False)
        return found | options | self.implementation.backend.declared.limits

    def lacking(self) -> set[str]:
        """Name the arguments that calls were refused for, since the file has none of that name."""
        return {
            reason.removeprefix(TAKES_NO)
            for reason in self.refused.values()
            if reason.startswith(TAKES_NO)
        }

    def replace_fixed(self, shown: Shown) -> None:
        """
        Judge the probes that were refused without what the file does not take, so that what it
        takes meets: its cap its masks. Hidden slots hold ordinary numbers; NaN is asked elsewhere.
        """
        left = [
            replace(recipe, poison=None)
            for recipe in shown.at_first
            if recipe in self.refused and recipe not in shown.required
        ]
        judged = {case.recipe for case in chain(self.passing, *self.failing.values())}
        while left:  # a refusal names one argument, the next call may be refused for another
            fitted = {*fitted_recipes(left, self.untaken())} - judged - {*self.refused}
            judged |= fitted
            for recipe in sorted(fitted, key=shrink_key):
                self.judge(recipe)
            left = [recipe for recipe in fitted if recipe in self.refused]

    def replace_required(self, required: tuple[Recipe, ...]) -> None:
        """
        Judge what stands in for each required case that was refused; say which kinds no case could
        show, and why.
        """
        refused = [recipe for recipe in required if recipe in self.refused]
        if self.failing or not refused or self.is_unsupported():
            return
        met = [
            *(recipe for recipe in required if recipe not in refused),
            *(case.recipe for case in self.passing),
        ]
        seen = {kind for recipe in met for kind in kinds_of(recipe)}
        untaken = {name: value for name, value in self.untaken().items() if name not in MASKED}
        models = [case.recipe for case in self.passing if is_roomy(case.recipe)][:MODELS]
        unseen = dict[str, str]()
        for recipe in refused:
            (fitted,) = fitted_recipes((recipe,), untaken)
            lacks = self.refused[recipe] in {f"{TAKES_NO}{name}" for name in options_of(recipe)}
            if not lacks and self.takes_one_of(stand_ins(recipe, fitted, models)):
                seen |= {*kinds_of(recipe)}
            else:
                unseen |= dict.fromkeys(kinds_of(recipe), self.refused[recipe])
        seen |= {*OF_MASKS} if not {TRUTH, NUMBERS} & seen else set()
        self.tally += Tally(unseen={kind: why for kind, why in unseen.items() if kind not in seen})

    def takes_one_of(self, recipes: Iterator[Recipe]) -> bool:
        """Judge recipe after recipe up to the first that is not refused."""
        for recipe in recipes:
            if recipe not in self.refused:
                self.judge(recipe)
            if recipe not in self.refused:
                return True
        return False

    def judge_real(self, real: tuple[Recipe, ...]) -> None:
        """Judge real calls, fitted to what was taken of smaller ones."""
        if self.refused and real:
            judged = [case.recipe for case in self.passing]
            fitted = fitted_real(real, self.untaken())
            real = tuple(dict.fromkeys(with_judged_mask(recipe, judged) for recipe in fitted))
        for recipe in real:
            self.judge(recipe)
        refused = [self.refused[recipe] for recipe in real if recipe in self.refused]
        if real and len(refused) == len(real):
            self.tally += Tally(unseen={REAL: refused[0]})

    def wants_more(self, cases: int) -> bool:
        """
        Tell whether further draws are worth it in place of those that were weak or not supported.
        """
        tally = self.tally
        limited = limits_draws(self.implementation.backend.declared.limits)
        some_judged = limited or tally.cases + tally.known > 0
        return not self.failing and some_judged and tally.strong + tally.known < cases


def search_for_failures(
    cell: Cell, implementation: Implementation, options: Options, kind: str, cases: int
) -> Tally:
    """
    Judge recipe after recipe, recorded failures first, then let Hypothesis hunt; of each kind of
    failure shrink one and tell.
    """
    search = Search(implementation, cell.dtype, options, kind=kind, aspect=cell.aspect)
    if options.inputs:
        return judge_given_inputs(search, cell, kind)
    shown = shown_recipes(implementation, cell.aspect, options, kind, cases, cell.dtype)
    if is_sampled(implementation, options):
        shown = take_few(shown, implementation, cell.dtype, options)
    search.judge_shown(shown, cases)
    if reason := search.find_left_out(shown.drawn):
        return unsupported(reason)
    if words := search.never_compiled():
        return search.tally + Tally(findings=[Finding(DOES_NOT_COMPILE, message=words)])
    if exceeded := search.find_exceeded():
        return unsupported(exceeded)
    if search.narrower:
        search = search.seen_in_narrower()
        cell = replace(cell, dtype=search.dtype)
    if search.is_aligned_at_start(cell.implementation):
        return judge_equal_lengths(search, cell, cases)
    if search.failing and (said := search.find_unsaid(cell)):
        return search.tally + Tally(findings=[not_said(search, cell, said)])
    found = describe_found(search, cell, kind, min(max(cases, 40), 100))
    if search.detached and search.tally.cases and cell.aspect == "gradients":
        found.append(describe_detached(implementation, search.detached, search.tally, options))
    return search.tally + Tally(findings=found)


def not_said(search: Search, cell: Cell, said: dict[str, Any]) -> Finding:
    """
    Tell the terms that explain every failure: none of them need be looked at. The smallest is kept.
    """
    failed = sorted_by_size([*chain(*search.failing.values())])
    share = search.share_of(failed)
    what = "; ".join(words_of(name, value) for name, value in said.items())
    record = FailureRecord.of(search.implementation, failed[0], cell.aspect)
    kept = save_or_say(record, search.options.failures, search.implementation)
    more = ""
    if search.is_aligned_at_start(saying(cell.implementation, said)):
        what = f"{what}; {TOP_LEFT}"
        by_option = has_causal_option(cell.implementation.operation)
        said |= {} if by_option else {"CAUSAL": "start"}
        line = search.implementation.backend.declared.line_without(UNEQUAL)
        more = f"; {line}" if by_option else ""
    told = describe_terms(said) + more
    return Finding(what, share=share, record=record, notes=(told, *kept))


def line_at_start(own: Implementation) -> str:
    """
    Write the line that says of a causal mask that it is aligned at the start; where only an option
    asks for it, that N != M is not taken.
    """
    declared, flag = own.backend.declared, getattr(own.function, "causal", "")
    if flag in declared.arguments:
        return declared.line_with({flag: FROM_START})
    if "CAUSAL" in declared.terms and not has_causal_option(own.operation):
        return line_of("CAUSAL", "start")
    return declared.line_without(UNEQUAL)


def judge_equal_lengths(search: Search, cell: Cell, cases: int) -> Tally:
    """
    Tell that a causal mask is aligned at the start as a convention, by the smallest call that shows
    it, and judge the rest as if the file said that it takes no N != M.
    """
    own, declared = search.implementation, search.implementation.backend.declared
    equal = replace(declared, features={**declared.features, UNEQUAL: False})
    said = replace(own, backend=replace(own.backend, declared=equal))
    forward = replace(cell.implementation, backend=said.backend)
    cell_said = replace(cell, implementation=forward)
    rest = search_for_failures(cell_said, said, search.options, search.kind, cases)
    failed = sorted_by_size(search.of_unequal_lengths())
    record = FailureRecord.of(own, failed[0], cell.aspect)
    kept = save_or_say(record, search.options.failures, own)
    right = "" if rest.findings else "the same calls are right where N = M; "
    line = f"{cell.implementation.name} * {cell.aspect} when {UNEQUAL} : <reason>"
    of_all = len([*chain(*search.failing.values())])
    found = Finding(
        TOP_LEFT,
        share=search.share_of(failed),
        message=ALIGNED_AT_START,
        condition=(UNEQUAL,),
        record=record,
        notes=(f"{right}{MEANT}{line_at_start(cell.implementation)}", *kept),
        offer=KnownFailureLine(line, f"(covers {len(failed)} of {of_all} failures)"),
    )
    return replace(rest, unseen=search.tally.unseen, findings=[found, *rest.findings])


def judge_given_inputs(search: Search, cell: Cell, kind: str) -> Tally:
    """Judge somebody's own arrays: a failure is diagnosed and recorded, and not made smaller."""
    implementation, options = search.implementation, search.options
    recipe = recipe_of_file(implementation.operation, options.inputs, as_it_is=kind == "nan")
    search.judge(recipe)
    if search.failing:
        search.look_at_rows(case_of(recipe, cell.dtype))
    if reason := search.find_undeclared():
        return unsupported(reason)
    judged = len(search.passing) + sum(map(len, search.failing.values()))
    failures = Failures(implementation, cell.dtype, cell.aspect, options, judged)
    found = describe_failures(failures, search.failing, search.budget())
    return search.tally + Tally(findings=list(found.values()))


def leaves_dtype_out(tally: Tally) -> str:
    """Give the reason, where a search has shown that the dtype is not judged, and nothing else."""
    return next((reason for reason in tally.reasons if reason.startswith(ABOUT_DTYPES)), "")


def left_out_by_values(cell: Cell, options: Options) -> str:
    """
    Say why the values of a cell's dtype are not judged, where its file does not name the dtype; ""
    otherwise. Where they were not judged before, they are as far as that asks.
    """
    own, dtype = cell.implementation, cell.dtype
    if dtype in ("float32", "bool", *own.backend.declared.dtypes) or options.inputs:
        return ""
    if (own.name, dtype) not in own.backend.left_out:
        search = Search(own, dtype, options)
        shown = shown_recipes(own, "values", options, "any", options.cases, dtype)
        search.judge_shown(shown, options.cases)
        own.backend.left_out[own.name, dtype] = search.find_left_out(shown.drawn)
    return own.backend.left_out[own.name, dtype]


def describe_found(search: Search, cell: Cell, kind: str, fresh: int) -> list[Finding]:
    """
    Write the findings of a search, each with the region that its failures fill; ``fresh`` draws
    bear it out.
    """
    implementation, options = search.implementation, search.options
    cases, passing = search.tally.cases, tuple(search.passing)
    drawn = search.drawn
    failures = Failures(implementation, cell.dtype, cell.aspect, options, cases, passing, drawn)
    budget = search.budget()
    found = describe_failures(failures, search.failing, budget)
    if not found:
        return []
    failing = {what: search.failing[what] for what in found}
    draws = Draws(kind, fresh, options.seed)
    regions = offers(implementation, cell.dtype, failing, search.passing, draws, budget)
    lacking = {what: lacked_feature(search, what, finding) for what, finding in found.items()}
    line = implementation.backend.declared.line_without(*filter(None, lacking.values()))
    return [
        replace(
            finding,
            share=search.share_of(search.failing[what]),
            condition=(told := () if is_wide(regions[what]) else regions[what].told),
            held=regions[what].counts if told else "",
            notes=(*finding.notes, *how_to_say_so(what, line if lacking[what] else "")),
            offer=offered_line(regions[what], cell.implementation.name, cell.aspect),
        )
        for what, finding in found.items()
    ]


WITHOUT_A_FEATURE = {
    "a float mask taken as boolean": "float mask",
}
"""The feature without which calls do not show a convention."""

NO_ANSWER = ("raised", "wrong shape", "wrong type")
"""How the kinds of failures begin by which a function may say that it does not do a thing."""


NOT_SUPPORTED = "if this is not supported, say so in the file: "
SAID_OTHERWISE = "if such calls are not supported, raise NotImplementedError in place of "
WHAT_SAYS_SO = ("raised AssertionError", "raised ValueError")
"""How files say what they do not do, in another word than the one that is understood."""


def how_to_say_so(what: str, line: str) -> list[str]:
    """What to write where a kind of failure is of calls that are not supported."""
    if line:
        return [f"{NOT_SUPPORTED}{line}"]
    said = next((error for error in WHAT_SAYS_SO if what.startswith(error)), "")
    return [SAID_OTHERWISE + said.removeprefix("raised ")] if said else []


def lacked_feature(search: Search, what: str, finding: Finding) -> str:
    """
    Name the feature that alone sets these failures apart, or without which calls do not show the
    convention that explains them; "" where there is none.
    """
    own, passing = search.implementation.backend.declared, search.passing
    if not what.startswith(NO_ANSWER) or not passing:
        features = {WITHOUT_A_FEATURE[one] for one in finding.causes if one in WITHOUT_A_FEATURE}
        return "".join(features.difference(own.features)) if len(features) == 1 else ""
    given = [options_of(case.recipe).keys() for case in search.failing[what]]
    if set.intersection(*map(set, given)).difference(*(options_of(x.recipe) for x in passing)):
        return ""  # an option that no feature is about sets them apart
    needed = [list(features_of(case.inputs)) for case in search.failing[what]]
    known = {name for case in passing for name in features_of(case.inputs)} | {*own.features}
    found = [name for name in needed[0] if name not in known and all(name in n for n in needed)]
    return found[-1] if found else ""
