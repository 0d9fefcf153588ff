"""
The calls that a change of a file is tried on, and what becomes of them: those that fail unchanged,
those that are right, fresh ones, and those of what stands beside it.
"""

import signal
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, cycle, islice, pairwise
from typing import Any

import numpy as np

from attnverify.backends.declarations import CAUSAL_ALONE, TAKES_NO
from attnverify.backends.implementation import Implementation
from attnverify.inputs.fixed_cases import fixed_cases
from attnverify.inputs.real.calls import everyday_calls, far_calls
from attnverify.inputs.real.required_kinds import required_cases
from attnverify.inputs.recipe import Recipe
from attnverify.inputs.sampling import draw_recipes, resized
from attnverify.judge.case import Case, case_of
from attnverify.judge.errors import Disagreement, Unsupported
from attnverify.judge.invoke import convert_and_call
from attnverify.judge.judging import judge
from attnverify.repair.copies import with_name
from attnverify.verdicts.fitting import fitted_recipes
from attnverify.verdicts.shown import causal_recipes

DRAWS, MORE_DRAWS, BESIDE, ALIKE = 60, 5, 20, 4
MOST_FAILING, MOST_PASSING = 25, 12
LARGEST = 70
"""The largest size of a call that changes are tried on; larger ones, where no such call fails."""
SHORTEST, LONGEST, SLOWER = 0.2, 2.0, 10
"""
Seconds that a call of a changed file may take at least and at most, and how many times those of the
slowest call of the original.
"""
TOO_SLOW, REFUSED = "too slow", "refused"
SAYS_NOTHING, RAISED = ("", TOO_SLOW, REFUSED), "raised"
APART = (RAISED, "NaN")
"""What is no number fails in a way of its own."""


class TooSlow(Exception):
    """A call takes longer than it may."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise TooSlow where what is done takes more of the processor's time, whoever else uses it."""

    def end(*_: Any) -> None:
        raise TooSlow

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, seconds, seconds)  # again, should it be caught
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def outcome(implementation: Implementation, case: Case, longest: float = LONGEST) -> str:
    """
    The kind of a failure, "passed", "" where a right answer has nothing to judge, or that it is
    refused or takes too long.
    """
    try:
        with within(longest):
            return "passed" if judge(implementation, case).judged else ""
    except TooSlow:
        return TOO_SLOW
    except Unsupported:
        return REFUSED
    except Disagreement as error:
        return error.kind


def limits_of(own: Implementation, dtype: str) -> dict[str, Any]:
    """What a file does not take, as it says, and as its functions say when they are called."""
    key = own.backend.source, own.name
    if key not in LIMITS:
        LIMITS[key] = limits = dict(own.backend.declared.limits)
        for recipe in draw_recipes(own.operation.name, "any", DRAWS, 0):
            while (left_out := refused_in(own, recipe, dtype)) not in ("", *limits):
                limits[left_out] = False
    return LIMITS[key]


FEATURE = {"keep": "dropout", "p": "dropout"}
LIMITS = dict[tuple[str, str], dict[str, Any]]()
"""The feature that an argument is of; what each file that was asked does not take."""


def refused_in(own: Implementation, recipe: Recipe, dtype: str) -> str:
    """Name what a file says it does not take of a call that is fitted to what is known."""
    (fitted,) = fitted_recipes([recipe], LIMITS[own.backend.source, own.name])
    if max(fitted.sizes.values()) > LARGEST:
        return ""
    try:
        with within(LONGEST):
            convert_and_call(own, case_of(fitted, dtype))
    except Unsupported as error:
        _, is_said, name = str(error).partition(TAKES_NO)
        return FEATURE.get(name, name) if is_said else ""
    except (TooSlow, Disagreement):
        pass
    return ""


def calls_of(own: Implementation, dtype: str, seed: int = 0) -> Iterator[Case]:
    """
    Small calls that a kernel takes as its file says: required ones and drawn ones, these once more
    with its flag for the causal mask.
    """
    name, limits = own.operation.name, limits_of(own, dtype)
    drawn = draw_recipes(name, "any", DRAWS, seed)
    required = required_cases(name) if seed == 0 else ()
    recipes = [*fitted_recipes([*required, *drawn], limits)]
    if getattr(own.function, "causal", ""):
        recipes += causal_recipes(own) if seed == 0 else ()
        align = own.function.aligned  # type: ignore[attr-defined]
        recipes += fitted_recipes(drawn, {**limits, CAUSAL_ALONE: align})
    for recipe in recipes:
        if max(recipe.sizes.values()) <= LARGEST:
            yield case_of(recipe, dtype)


def larger_calls(own: Implementation, dtype: str) -> Iterator[Case]:
    """Calls of several tiles of keys, and of thousands: what small calls do not show."""
    name, limits = own.operation.name, limits_of(own, dtype)
    large = [x for x in fixed_cases(name) if max(x.sizes.values()) > LARGEST]
    large += [x for x in required_cases(name) if max(x.sizes.values()) > LARGEST]
    large += everyday_calls(name, "quick", 0, emulated=True)
    large += far_calls(own.operation.forward, "quick") if not own.operation.is_gradient else []
    for recipe in fitted_recipes(large, limits):
        yield case_of(recipe, dtype)


def failing_and_passing(
    own: Implementation, dtype: str, known: Sequence[Recipe]
) -> tuple[list[Case], list[Case]]:
    """
    Calls that fail in one way, the smallest first, and calls that are right. What is known to fail
    says which way is meant.
    """
    failing, passing = list[tuple[Case, str]](), list[Case]()

    def sort(cases: Iterable[Case]) -> None:
        for case in cases:
            if (kind := outcome(own, case)) == "passed":
                passing.append(case)
            elif fails(kind):
                failing.append((case, way(kind)))

    sort(case_of(recipe, dtype) for recipe in known)
    known_ways = [one for _, one in failing]
    sort(calls_of(own, dtype))
    for seed in range(2, 2 + MORE_DRAWS):
        if not failing:
            sort(calls_of(own, dtype, seed))
    if not failing:
        sort(larger_calls(own, dtype))
    if failing:
        sort(case_of(recipe, dtype) for recipe in varied([x.recipe for x, _ in failing]))
    ways = Counter(known_ways or [one for _, one in failing])
    found = [case for case, one in failing if one == ways.most_common(1)[0][0]]
    return sorted(found, key=size_of)[:MOST_FAILING], sorted(passing, key=size_of)[:MOST_PASSING]


def fails(kind: str) -> bool:
    """Tell whether a call that ends so says something against a kernel."""
    return kind not in ("passed", *SAYS_NOTHING)


def way(kind: str) -> str:
    """Name the way in which calls fail that ends so: an error, NaN, another number."""
    return next((one for one in APART if kind.startswith(one)), "")


def varied(recipes: Sequence[Recipe]) -> Iterator[Recipe]:
    """The same calls of other sizes and numbers: one that fails alone says too little."""
    rng = np.random.default_rng(0)
    for recipe in islice(cycle(recipes), MOST_FAILING):
        sizes = {x: int(rng.integers(1, 10)) for x in recipe.sizes if rng.integers(2)}
        other = resized(recipe, sizes)
        yield replace(other, values=other.values | {"seed": int(rng.integers(2**31))})


def of_each_family(cases: Sequence[Case]) -> Iterator[Case]:
    """The same calls with every kind of numbers: what is given may overflow beside some alone."""
    for case in cases:
        for family in case.operation.families:
            values = case.recipe.values | {"family": family}
            yield case_of(replace(case.recipe, values=values), case.dtype)


def size_of(case: Case) -> int:
    return sum(getattr(x, "size", 0) for x in case.inputs.values())


def is_right(own: Implementation, cases: list[Case], longest: float) -> bool:
    """
    Tell whether nothing is said against it; a right answer may leave nothing to judge. What says
    something is asked first the next time.
    """
    for at, case in enumerate(cases):
        if outcome(own, case, longest) not in ("passed", ""):
            cases.insert(0, cases.pop(at))
            return False
    return True


def seconds_of(own: Implementation, cases: Sequence[Case]) -> float:
    """How long the slowest of these calls takes."""
    seconds = [time.process_time()]
    for case in cases:
        outcome(own, case)
        seconds.append(time.process_time())
    return max(after - before for before, after in pairwise(seconds))


def calls_that_it_mends(
    own: Implementation,
    changed: Implementation | None,
    cases: list[Case],
    dtype: str,
    longest: float,
) -> int:
    """
    Count the fresh calls that are right too, where all others are and none of these is wrong; what
    fails unchanged, in another way than these, may do so still.
    """
    if changed is None or not is_right(changed, cases, longest):
        return 0
    meant, fresh = {way(kind) for kind in (outcome(own, x) for x in cases) if fails(kind)}, 0
    alike = of_each_family(cases[:ALIKE])
    for case in chain(alike, calls_of(changed, dtype, seed=1), larger_calls(changed, dtype)):
        kind = outcome(changed, case)
        if fails(kind) and (way(kind) in meant or kind != outcome(own, case)):
            return 0
        fresh += kind == "passed"
    return fresh


SPOILT, STILL_WRONG = "spoilt", "{} is wrong as before"


def left_beside(own: Implementation, changed: Implementation | None, dtype: str) -> str:
    """
    Say which output or gradient beside it stays wrong, "" of none; or that one is right at the cost
    of another.
    """
    found = ""
    for after in changed.backend.implementations if changed else ():
        before = with_name(own.backend.implementations, after.name)
        if before and before is not own and after.operation.forward is own.operation.forward:
            for case in islice(calls_of(before, dtype, seed=1), BESIDE):
                now = outcome(after, case)
                if now not in ("passed", "", TOO_SLOW) and outcome(before, case) == "passed":
                    return SPOILT
                if fails(now):
                    found = STILL_WRONG.format(after.name)
    return found
