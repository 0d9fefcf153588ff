"""
Square layers at 8192 positions: judged in the thorough profile where there is memory for them, and
a lost key shows.
"""

from typing import Any

import numpy as np
import pytest

from attnverify import numpy_ref
from attnverify.backends.array_libraries import array_library
from attnverify.backends.calls.call_adapter import adapt_signature
from attnverify.backends.implementation import Backend, Implementation
from attnverify.catalogue.operation import CATALOGUE
from attnverify.checks import large_sizes
from attnverify.inputs.real.calls import everyday_calls, far_calls
from attnverify.judge.case import Case, case_of, errors_of_large
from attnverify.judge.errors import Disagreement, Unsupported

LAYER = CATALOGUE["self_attention"]
LONGEST = "large: normal N=8192 M=8192"


def self_attention_without_last_key(x: Any, parameters: Any, mask: Any = None) -> Any:
    """It drops the last key of a long sequence."""
    if x.shape[1] > 4096:
        mask = mask & (np.arange(x.shape[1]) < x.shape[1] - 1)
    return numpy_ref.self_attention(x, parameters, mask)


def layer(function: Any) -> Implementation:
    backend = Backend("made", "made", library=array_library("numpy"), precision="wide")
    return Implementation(backend, LAYER, "made", adapt_signature(function, LAYER))


def longest(profile: str = "thorough") -> Any:
    return dict(large_sizes.large_size_checks(LAYER.name, profile)).get(LONGEST)


@pytest.mark.parametrize("name", [n for n, op in CATALOGUE.items() if op.traits.square])
def test_every_square_layer_has_it_in_thorough_alone(name: str) -> None:
    names = [
        dict(large_sizes.large_size_checks(name, profile))
        for profile in ("quick", "default", "thorough")
    ]
    assert [any("N=8192" in one for one in found) for found in names] == [False, False, True]


@pytest.mark.parametrize("name", ["scaled_dot_product_attention", "alibi_attention_grad"])
def test_large_cases_are_worked_out_once_for_all_columns(name: str) -> None:
    """Implementations come one after the other, and each meets all of them."""
    op = CATALOGUE[name]
    recipes = [*everyday_calls(name, "default", 0), *large_sizes.grid_recipes(op, "default")]
    first = [case_of(recipe, "float32") for recipe in recipes]
    again = [case_of(recipe, "float32") for recipe in recipes]
    assert all(one is other for one, other in zip(first, again, strict=True))


def test_without_memory_it_is_not_judged_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_sizes, "available_memory", lambda: 5 << 30)
    with pytest.raises(Unsupported, match="needs 13 GiB of memory, of which 5 are free"):
        longest()(layer(numpy_ref.self_attention), "float32")


def test_what_the_bounds_of_the_longest_share_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are gigabytes, and the next case needs as much."""

    def judge_and_fail(implementation: Implementation, case: Case) -> None:
        errors_of_large(Case(far_calls(LAYER, "default")[0], case.dtype))
        raise Disagreement("wrong")

    monkeypatch.setattr(large_sizes, "judge", judge_and_fail)
    monkeypatch.setattr(large_sizes, "available_memory", lambda: None)
    with pytest.raises(Disagreement):
        longest()(layer(numpy_ref.self_attention), "float32")
    assert errors_of_large.cache_info().currsize == 0


@pytest.mark.thorough
def test_a_key_lost_at_8192_shows() -> None:
    longest()(layer(numpy_ref.self_attention), "float32")
    with pytest.raises(Disagreement):
        longest()(layer(self_attention_without_last_key), "float32")
