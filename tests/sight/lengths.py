"""
At which lengths a lost key is noticed, and a sum over tiles of keys whose running total is narrow.

Every recipe of the default profile whose length is asked about is judged; the length counts as seen
where any of them is refuted.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.backends.array_libraries import array_library
from attnverify.backends.calls.call_adapter import adapt_signature
from attnverify.backends.implementation import Backend, Implementation
from attnverify.catalogue.dtypes import numpy_dtype
from attnverify.catalogue.operation import CATALOGUE, Operation
from attnverify.catalogue.pytrees import map_leaves
from attnverify.faults.real_sizes.lost_keys import ATTENTIONS
from attnverify.faults.real_sizes.narrow_sums import mix_in, weigh_in
from attnverify.faults.registry import reference_of
from attnverify.inputs.fixed_cases import fixed_cases
from attnverify.inputs.real.calls import far_calls
from attnverify.inputs.recipe import Recipe
from attnverify.inputs.sampling import count_draws, draw_recipes
from attnverify.judge.case import case_of
from attnverify.judge.errors import Disagreement
from attnverify.judge.judging import judge
from attnverify.options import PROFILES
from attnverify.reference import attention
from tests.sight.planted import widened

Check = Callable[[Implementation, str], None]
Lengths = dict[str, Any]
OPERATIONS = (*ATTENTIONS, *(f"{name}_grad" for name in ATTENTIONS))
TILES = (16, 32, 64, 128)

LOST: dict[str, Callable[[int], int]] = {
    "first": lambda M: 0,
    "last": lambda M: M - 1,
    "drawn": lambda M: int(np.random.default_rng(M).integers(M)),
}


def lengths_seen(operation: str, dtype: str, lost: str) -> Lengths:
    """At which numbers of keys above one the loss of this key is noticed."""
    weigh = partial(weigh_without, LOST[lost])
    return lengths_noticed(wrong(operation, dtype, {"weigh": weigh}), dtype, shortest=2)


def sums_seen(operation: str, dtype: str, tile: int, narrow: str, what: str) -> Lengths:
    """The same of a narrow running total, at lengths of 32 tiles and more."""
    stages = {"mix": mix_in(narrow, tile)} if what == "sum" else {"weigh": weigh_in(narrow, tile)}
    return lengths_noticed(wrong(operation, dtype, stages), dtype, shortest=32 * tile)


def lengths_noticed(implementation: Implementation, dtype: str, shortest: int) -> Lengths:
    """How many lengths are judged, from the shortest on, and at which nothing is noticed."""
    judged = checks_by_length(implementation.operation.name)
    lengths = sorted(M for M in judged if shortest <= M)
    missed = [M for M in lengths if not any(refutes(c, implementation, dtype) for c in judged[M])]
    return {"lengths": len(lengths), "missed": missed}


def weigh_without(lost: Callable[[int], int], score: ndarray, visible: ndarray) -> ndarray:
    kept = np.ones(score.shape[-1], bool)
    kept[lost(score.shape[-1])] = False
    return attention.weigh(score, visible & kept)


def wrong(operation: str, dtype: str, stages: dict[str, Any]) -> Implementation:
    """The operation in stages, some of them replaced, told as a fused kernel."""
    op, reference = CATALOGUE[operation], reference_of(operation)

    def function(**given: Any) -> Any:
        with np.errstate(all="ignore"):
            result = reference(**map_leaves(widened, given), **stages)
        return map_leaves(lambda x: x if x is None else x.astype(numpy_dtype(dtype)), result)

    backend = Backend("wrong", "wrong", library=array_library("numpy"), precision="fused")
    backend.implementations = [Implementation(backend, op, "", adapt_signature(function, op))]
    return backend.implementations[0]


def refutes(check: Check, implementation: Implementation, dtype: str) -> bool:
    try:
        check(implementation, dtype)
    except Disagreement:
        return True
    return False


@lru_cache(maxsize=1)
def checks_by_length(operation: str) -> dict[int, list[Check]]:
    """What the default profile judges, by the number of keys."""
    found: dict[int, list[Check]] = defaultdict(list)
    for M, check in judged(CATALOGUE[operation]):
        found[M].append(check)
    return dict(found)


def judged(op: Operation) -> Iterator[tuple[int, Check]]:
    number = count_draws(op.name, PROFILES["default"])
    for recipe in (*fixed_cases(op.name), *draw_recipes(op.name, "any", number, 0)):
        yield recipe.sizes["M"], partial(judge_recipe, recipe)
    for recipe in far_calls(op, "default"):
        yield recipe.sizes["M"], partial(judge_recipe, recipe)


def judge_recipe(recipe: Recipe, implementation: Implementation, dtype: str) -> None:
    judge(implementation, case_of(recipe, dtype))
