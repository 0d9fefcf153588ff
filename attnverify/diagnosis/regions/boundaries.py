"""
Boundaries: a condition on sizes is told where the kernel itself has shown it, in calls that differ
in these sizes alone.

Of a failing case the size is set to where the condition says that it passes, then to what lies
between, until two neighbours are known of which one passes and one fails. What passes there is
asked again with other numbers, for what a kernel does wrongly need not show in every draw. An
answer that refutes the condition joins the cases, among which another is sought.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from attnverify.catalogue.pytrees import leaves
from attnverify.diagnosis import sentences as say
from attnverify.inputs.conditions import COMPARISON, parse_condition
from attnverify.inputs.recipe import Recipe
from attnverify.inputs.sampling import one_part_less, resized, shrink_key
from attnverify.judge.case import Case, case_of

FEW_SIZES = 4
"""So many sizes at most are told of those that were tried."""
REFUTING = ("spotlight", "spread")
"""Families that show what one draw may hide: half of a row's weight at an edge, far scores."""
DRAWS, ROWS = 3, 12
"""So many draws are to pass at an edge, those but the first of so many rows."""


def next_question(
    when: Sequence[str], failing: Sequence[Case], passing: Sequence[Case]
) -> Iterator[Case]:
    """Yield what the kernel is asked next about each condition on sizes, of the plainest case."""
    known, last = {*failing, *passing}, list[Case]()
    of_sizes = [text for text in when if is_of_sizes(text)]
    spoken = {letter for text in when for letter in parse_condition(text).subjects}
    plain = min(
        failing,
        key=lambda case: (sum(1 for _ in one_part_less(case.recipe)), shrink_key(case.recipe)),
    )
    for text in of_sizes:
        asked = [
            case_of(resized(plain.recipe, sizes), plain.dtype)
            for sizes in questions(text, failing, plain.recipe)
            if all(size > 0 for size in sizes.values())
        ]
        if not is_known_edge(text, failing, passing):
            yield from (case for case in asked if case not in known)
        last += [] if is_withstood(text, when, passing) else refuting(text, asked, spoken)
    yield from (case for case in last if case not in known)


def refuting(text: str, asked: Sequence[Case], spoken: set[str]) -> Iterator[Case]:
    """
    Yield what stands nearest beyond the condition with other numbers, and with more rows where
    nothing is said of them, which would refute it.
    """
    edge = next((case for case in asked if not parse_condition(text)(case)), None)
    if edge is None or not holds_numbers(edge):
        return
    own, sizes, square = edge.recipe.values, edge.recipe.sizes, edge.operation.traits.square
    free = "N" in sizes.keys() - spoken and not square
    rows = {"N": max(ROWS, sizes["N"])} if free else {}
    other = next(family for family in REFUTING if family != own["family"])
    other = own["family"] if edge.operation.outside else other
    for number, family in enumerate((own["family"], other), 1):
        values = {"family": family, "seed": own["seed"] + number * OTHER_NUMBERS}
        yield case_of(resized(replace(edge.recipe, values=values), rows), edge.dtype)


OTHER_NUMBERS = 7919
"""Added to the seed of a case for the same with other numbers."""


def holds_numbers(case: Case) -> bool:
    """Whether a case has arrays, of which another draw would be another case."""
    return any(isinstance(leaf, np.ndarray) for leaf in leaves(case.inputs))


def is_withstood(text: str, when: Sequence[str], passing: Sequence[Case]) -> bool:
    """
    Whether what lies nearest beyond one of the conditions, where the others hold, passed with
    several draws of numbers and not with those of one alone.
    """
    match = COMPARISON.fullmatch(text)
    wanted = [(parse_condition(other), other != text) for other in when]
    beyond = [x for x in passing if all(holds(x) == inside for holds, inside in wanted)]
    if match and match[3] in "<>" and not match[2] and match[4].isdigit():
        nearest = min((abs(prod(sizes_of(text, x)) - int(match[4])) for x in beyond), default=0)
        beyond = [x for x in beyond if abs(prod(sizes_of(text, x)) - int(match[4])) == nearest]
    if beyond and not holds_numbers(beyond[0]):
        return True
    return len({str(case.recipe.values) for case in beyond}) >= DRAWS


def is_of_sizes(text: str) -> bool:
    return parse_condition(text).topic == "size"


def sizes_of(text: str, case: Case) -> tuple[int, ...]:
    """The sizes that a condition speaks of; an axis that a recipe does not name is 1 long."""
    letters = sorted(parse_condition(text).subjects)
    return tuple(case.recipe.sizes.get(letter, 1) for letter in letters)


def questions(text: str, failing: Sequence[Case], recipe: Recipe) -> Iterator[dict[str, int]]:
    """Sizes that are asked about one condition, those first that would refute it."""
    if text.endswith("power of two"):
        yield from ({text[0]: size} for size in (4, 3, 2, 6))
        return
    if " are multiples of " in text:
        tile, letters = int(text.split()[-1]), sorted(parse_condition(text).subjects)
        yield {x: tile * (recipe.sizes[x] // tile | 1) for x in letters}
        yield from ({x: recipe.sizes[x] + by} for by in (tile // 2, 1) for x in letters)
        return
    match = COMPARISON.fullmatch(text)
    assert match is not None
    left, modulus, sign, right = match.groups()
    one, *further = left.split("*")
    if modulus:
        k, rest = int(modulus), int(right)
        whole = k * (recipe.sizes[one] // k | 1) + rest  # odd, for a larger k to be refuted
        yield from ({one: size} for size in (whole, whole + k // 2, whole + 1, whole + k))
    elif not right.isdigit():
        yield from ({one: recipe.sizes[right] + by} for by in (0, 1, -1))
    elif sign in ("==", "!="):
        yield from ({one: int(right) + by} for by in (1, 0, -1))
    else:
        failed = [prod(sizes_of(text, case)) for case in failing]
        nearest = min(failed) if sign == ">" else max(failed)
        alone = dict.fromkeys(further, 1)
        yield from ({one: size} | alone for size in (int(right), nearest))
        if abs(nearest - int(right)) > 1:
            low, high = sorted((int(right), nearest))
            yield {one: middle(low, high)} | alone
        yield from ({one: 1, other: size} for other in further for size in (int(right), nearest))


def middle(low: int, high: int) -> int:
    """
    A size between two: kernels change at powers of two, which are asked first, and their
    neighbours.

    >>> middle(17, 1024), middle(63, 129), middle(64, 128), middle(70, 90)
    (128, 128, 65, 80)
    """
    powers = [1 << k for k in range(low.bit_length(), high.bit_length()) if low < 1 << k < high]
    if powers:
        return powers[len(powers) // 2]
    if low & (low - 1) == 0:
        return low + 1
    return high - 1 if high & (high - 1) == 0 else (low + high) // 2


# What was shown of them


def is_edge(text: str, failing: Sequence[Case]) -> bool:
    """Whether the size next to the number of a comparison is among those that fail."""
    match = COMPARISON.fullmatch(text)
    if not match or match[2] or not match[4].isdigit():
        return False
    next_to = int(match[4]) + {">": 1, "<": -1}.get(match[3], 0)
    return any(prod(sizes_of(text, case)) == next_to for case in failing)


def is_known_edge(text: str, failing: Sequence[Case], passing: Sequence[Case]) -> bool:
    """Whether two calls that differ in this size alone have shown both sides of the edge."""
    if "*" in text:
        return False
    tried = describe_tried(text, failing, passing) if is_edge(text, failing) else ""
    return bool(tried) and not tried.endswith(say.TRIED_APART.removeprefix(say.TRIED))


def in_plain_numbers(text: str) -> str:
    """
    Write a boundary as its author would.

    >>> [in_plain_numbers(text) for text in ("M < 17", "D > 63", "N < 2", "M > 16")]
    ['M <= 16', 'D >= 64', 'N == 1', 'M > 16']
    """
    match = COMPARISON.fullmatch(text)
    if not match or match[2] or not match[4].isdigit():
        return text
    left, _, sign, right = match.groups()
    number = int(right)
    if (sign, number) == ("<", 2):
        return f"{left} == 1"
    if sign == "<" and number % 8:
        return f"{left} <= {number - 1}"
    return f"{left} >= {number + 1}" if sign == ">" and number % 8 == 7 else text


def describe_tried(text: str, failing: Sequence[Case], passing: Sequence[Case]) -> str:
    """
    Say of a condition on sizes which calls have shown it, that differ in these sizes alone:
    ``M = 16 passed, M = 17 failed``; "" where none have.
    """
    letters = sorted(parse_condition(text).subjects)

    def rest(case: Case) -> tuple[Any, ...]:
        sizes = {k: n for k, n in case.recipe.sizes.items() if k not in {*letters, "P"}}
        return replace(case.recipe, sizes={}).text, *sizes.items()

    holds, groups = parse_condition(text), dict[Any, tuple[set[Any], set[Any]]]()
    for cases, side in ((failing, 0), (passing, 1)):
        for case in cases:
            if holds(case) == (side == 0):
                groups.setdefault(rest(case), (set(), set()))[side].add(sizes_of(text, case))
    both = [group for group in groups.values() if all(group)]
    if not both:
        return ""
    failed, passed = min(both, key=lambda group: closeness(*group))
    near, far = (
        sorted(one, key=lambda own: min(apart(own, x) for x in other))[:FEW_SIZES]
        for one, other in ((failed, passed), (passed, failed))
    )
    if "%" not in text:
        near, far = near[:1], far[:1]
    is_edge = ">" in text or "<" in text
    gap = is_edge and abs(prod(near[0]) - prod(far[0])) > 1 and text[-1].isdigit()
    template = say.TRIED_APART if gap else say.TRIED
    return template.format(passed=write_sizes(letters, far), failed=write_sizes(letters, near))


def apart(one: Sequence[int], other: Sequence[int]) -> int:
    return sum(abs(a - b) for a, b in zip(one, other, strict=True))


def closeness(failed: set[Any], passed: set[Any]) -> int:
    return min(apart(one, other) for one in failed for other in passed)


def write_sizes(letters: Sequence[str], sizes: Sequence[Sequence[int]]) -> str:
    """Write ``N = 5, M = 4`` or ``N = 16 and 32``."""
    if len(letters) == 1:
        told = sorted(own[0] for own in sizes)
        return f"{letters[0]} = {' and '.join(map(str, told))}"
    return " ".join(f"{k}={n}" for k, n in zip(letters, sizes[0], strict=True))
