"""
The smallest x with which a factor 1 + x is noticed in 19 of 20 seeds: found seed by seed on a grid,
each probe a run of the checks that would notice it.
"""

from collections.abc import Callable

from attnverify.backends.implementation import Implementation
from attnverify.checks.projected_factors import has_projected_factors, measure_projected
from attnverify.checks.systematic_error import factors_of, measure_factors
from attnverify.inputs.sampling import count_draws, draw_recipes
from attnverify.judge.case import case_of
from attnverify.judge.errors import Disagreement
from attnverify.judge.judging import judge
from attnverify.options import PROFILES
from tests.sight.planted import planted

SEEDS = 20
MISSED = 1
"""In how many seeds an error may go unnoticed."""
STEP = 10**0.1
GRID = [1e-6 * STEP**k for k in range(56)]
"""From one millionth, below which nothing is searched, to 30 %."""


def smallest_noticed(
    operation: str, arithmetic: str, dtype: str, factor: str, seeds: int
) -> float | None:
    """
    The size of error that is noticed in all but MISSED of the seeds; None where none is.

    A seed that notices what is the answer so far cannot change it.
    """
    most: list[int] = []
    for seed in range(seeds):
        noticed = lambda k, seed=seed: is_noticed(
            planted(operation, arithmetic, dtype, factor, GRID[k]), dtype, factor, seed
        )
        decided = len(most) > MISSED and (most[0] == len(GRID) or noticed(most[0]))
        if not decided:
            first = first_true(noticed, len(GRID), most[0] if most else len(GRID) // 2)
            most = sorted([*most, first])[-1 - MISSED :]
    return [*GRID, None][most[0]]


def first_true(holds: Callable[[int], bool], end: int, start: int) -> int:
    """The first index where a monotone property holds, sought outwards from a guess; or the end."""
    low, high, width = -1, end, 1
    k = min(start, end - 1)
    while high - low > 1:
        if holds(k):
            high = k
            k = max(low + 1, k - width)
        else:
            low = k
            k = min(high - 1, k + width)
        width *= 2
        if low >= 0 and high < end:
            k = (low + high) // 2
    return high


def is_noticed(implementation: Implementation, dtype: str, factor: str, seed: int) -> bool:
    """Whether the default profile's checks for systematic errors, or its draws, see the error."""
    operation = implementation.operation
    if has_projected_factors(operation):
        measured = measure_projected(implementation, dtype, seed)
    elif factors_of(operation):
        measured = measure_factors(implementation, dtype, seed, masked=factor == "float mask")
    else:
        return is_refuted(implementation, dtype, seed)
    return any(each.significant for each in measured.values())


def is_refuted(implementation: Implementation, dtype: str, seed: int) -> bool:
    """Whether any element of the seed's draws exceeds its bound."""
    name = implementation.operation.name
    for recipe in draw_recipes(name, "any", count_draws(name, PROFILES["default"]), seed):
        try:
            judge(implementation, case_of(recipe, dtype))
        except Disagreement:
            return True
    return False
