"""
The 22 slips of attention that acceptance tests let pass in decode (one key, one page, one sink, one
scale), each as a wrong kernel of the operations of today that have it: the quick profile notices
each in every dtype, float32 with each commit.

Those that are registered faults are asked for by their names; the others are told here.
"""

from collections.abc import Callable
from math import log, sqrt
from typing import Any

import numpy as np
import pytest
from numpy import ndarray

from attnverify.backends.array_libraries import array_library
from attnverify.backends.calls.call_adapter import adapt_signature
from attnverify.backends.implementation import Backend, Implementation
from attnverify.catalogue.operation import CATALOGUE, Operation
from attnverify.catalogue.pytrees import map_leaves
from attnverify.catalogue.traits import DTYPES
from attnverify.faults.registry import read_faults
from attnverify.verdicts.tally import Options
from tests.attnverify.faults.first_failure import first_failure, implementation_of

pytestmark = pytest.mark.faults

FAULTS = read_faults()
GROUPED, PLAIN, ALIBI = "grouped_attention", "scaled_dot_product_attention", "alibi_attention"
LEARNED, XL = "learned_relative_attention", "transformer_xl_attention"
ADDITIVE = "additive_attention"
PACKED, PAGED = "packed_attention", "paged_attention"
Inputs = dict[str, Any]
Slip = Callable[[Operation, Inputs], Any]

ONE_DTYPE = [
    pytest.param(dtype, marks=[pytest.mark.every_dtype] * (dtype != "float32")) for dtype in DTYPES
]
"""Each is looked for in float32 with each commit, in the others every night."""

REGISTERED = {
    "window: one key more": "grouped_attention_window_one_more",
    "window: oldest key lost": "grouped_attention_oldest_key_lost",
    "window ignored": "grouped_attention_without_window",
    "last key lost": "grouped_attention_last_key_lost",
    "first key lost": "grouped_attention_first_key_lost",
    "zero keys of a stale page": "grouped_attention_stale_key",
    "sink left out": "grouped_attention_without_sink",
    "sink counted twice": "grouped_attention_sink_twice",
    "sink scaled like a score": "grouped_attention_sink_scaled",
    "sink of the next head": "grouped_attention_sink_of_next_head",
    "soft cap never applied": "grouped_attention_without_cap",
    "soft cap after the mask": "grouped_attention_cap_behind_mask",
    "scale 1/sqrt(D + 1)": "grouped_attention_scale_of_next_width",
    "scale 2 % off": "grouped_attention_scale_off",
    "value scale 5 % off in one head": "grouped_attention_value_scale_of_head",
    "merge: base 2 for base e": "merge_attention_base_two",
    "merge: parts averaged": "merge_attention_averaged",
    "mean of the values": "grouped_attention_mean",
}
"""By the slip, the fault that is it: ``faults/today``."""


def page_of_another(op: Operation, given: Inputs) -> Any:
    """Sixteen keys and values in the middle are another head's."""
    M = given["key"].shape[-2]
    page = slice(M // 2, M // 2 + 16)

    def exchanged(x: ndarray) -> ndarray:
        x = x.copy()
        x[..., page, :] = np.roll(x[..., page, :], 1, axis=1)
        return x

    return op.reference(**given | {name: exchanged(given[name]) for name in ("key", "value")})


def key_counted_twice(op: Operation, given: Inputs) -> Any:
    """The key at a third of them has twice its weight, by a float mask, where there is none."""
    M = given["key"].shape[-2]
    if given.get("mask") is not None:
        return op.reference(**given)
    twice = np.where(np.arange(M) == M // 3, log(2), 0.0)
    return op.reference(**given | {"mask": np.broadcast_to(twice, (given["query"].shape[-2], M))})


def token_of_the_neighbour(op: Operation, given: Inputs) -> Any:
    """The first token of each packed segment belongs to the one before it."""
    if given.get("segments") is None:
        return op.reference(**given)
    queries, keys = given["segments"]
    early = np.where(np.arange(keys.shape[-1]) > 0, np.roll(keys, 1, axis=-1), keys)
    return op.reference(**given | {"segments": (queries, early)})


def zeros(op: Operation, given: Inputs) -> Any:
    return map_leaves(np.zeros_like, op.reference(**given))


def seen_but(lost: Callable[[int], int]) -> Slip:
    def without(op: Operation, given: Inputs) -> Any:
        M = given["key"].shape[-2]
        seen, mask = np.arange(M) != lost(M), given.get(op.mask or "")
        if mask is None:
            mask = np.broadcast_to(seen, (given["query"].shape[-2], M))
        else:
            mask = mask & seen if mask.dtype == bool else np.where(seen, mask, -np.inf)
        return op.reference(**given | {str(op.mask): mask})

    return without


def stale_zero_keys(op: Operation, given: Inputs) -> Any:
    """Sixteen keys and values of zeros are seen behind the last."""

    def longer(x: ndarray) -> ndarray:
        return np.concatenate([x, np.zeros((*x.shape[:-2], 16, x.shape[-1]))], axis=-2)

    own: Inputs = {name: longer(given[name]) for name in ("key", "value")}
    for name, fill in (("mask", 0), ("keep", True)):
        if (x := given.get(name)) is not None:
            wide = np.broadcast_to(x, (*x.shape[:-1], given["key"].shape[-2]))
            behind = np.full((*x.shape[:-1], 16), True if x.dtype == bool else fill, x.dtype)
            own[name] = np.concatenate([wide, behind], axis=-1)
    return op.reference(**given | own)


def scaled(name: str, factor: Callable[[ndarray], float]) -> Slip:
    return lambda op, given: op.reference(**given | {name: given[name] * factor(given[name])})


def value_of_one_head(op: Operation, given: Inputs) -> Any:
    value = given["value"].copy()
    value[:, :1] *= 1.05
    return op.reference(**given | {"value": value})


def mean(op: Operation, given: Inputs) -> Any:
    return op.reference(**given | {"query": given["query"] * 0})


OF_ALL: dict[str, Slip] = {
    "first key lost": seen_but(lambda M: 0),
    "last key lost": seen_but(lambda M: M - 1),
    "one page of 16 is another's": page_of_another,
    "scale 1/sqrt(D + 1)": scaled("query", lambda q: sqrt(q.shape[-1] / (q.shape[-1] + 1))),
    "scale 2 % off": scaled("query", lambda q: 1.02),
    "value scale 5 % off in one head": value_of_one_head,
    "all zeros": zeros,
}
"""In every attention with queries, keys and values in heads."""


def first_key_of_a_sequence_lost(op: Operation, given: Inputs) -> Any:
    """The first key of each packed sequence that has more than one is left out."""
    starts = given["key_starts"]
    lost = starts[:-1][np.diff(starts) > 1]
    return op.reference(
        **given
        | {name: np.delete(given[name], lost, axis=0) for name in ("key", "value")}
        | {"key_starts": starts - np.searchsorted(lost, starts)}
    )


def last_key_of_a_sequence_lost(op: Operation, given: Inputs) -> Any:
    """The last key of each sequence is hidden, by its length."""
    lengths = given.get("lengths")
    lengths = np.diff(given["key_starts"]) if lengths is None else lengths
    return op.reference(**given | {"lengths": np.maximum(lengths - 1, 0)})


def key_of_the_neighbour(op: Operation, given: Inputs) -> Any:
    """The first key of each packed sequence belongs to the one before it."""
    starts = given["key_starts"].copy()
    starts[1:-1] = np.minimum(starts[1:-1] + 1, starts[2:])
    return op.reference(**given | {"key_starts": starts})


def page_of_another_head(op: Operation, given: Inputs) -> Any:
    """The keys and values of a sequence's middle page are another head's."""
    page = given["page_table"][:, given["page_table"].shape[1] // 2]

    def exchanged(x: ndarray) -> ndarray:
        x = x.copy()
        x[page] = np.roll(x[page], 1, axis=-2)
        return x

    own = {name: exchanged(given[name]) for name in ("key_pages", "value_pages")}
    return op.reference(**given | own)


def last_token_of_a_page_lost(op: Operation, given: Inputs) -> Any:
    """The last token of each sequence is hidden, by its length."""
    return op.reference(**given | {"lengths": np.maximum(given["lengths"] - 1, 0)})


def one_token_more(op: Operation, given: Inputs) -> Any:
    """One slot behind the last token of each sequence is seen, where its page has one."""
    room = given["page_table"].shape[1] * given["key_pages"].shape[1]
    return op.reference(**given | {"lengths": np.minimum(given["lengths"] + 1, room)})


def sink_left_out(op: Operation, given: Inputs) -> Any:
    return op.reference(**given | {"sink": None})


def value_of_first_group(name: str) -> Slip:
    def larger(op: Operation, given: Inputs) -> Any:
        value = given[name].copy()
        value[..., :1, :] *= 1.05
        return op.reference(**given | {name: value})

    return larger


OF_CACHES: dict[str, Slip] = {
    "scale 1/sqrt(D + 1)": OF_ALL["scale 1/sqrt(D + 1)"],
    "scale 2 % off": OF_ALL["scale 2 % off"],
    "sink left out": sink_left_out,
    "mean of the values": mean,
    "all zeros": zeros,
}
"""In packed sequences and in pages."""

OF_PACKED = OF_CACHES | {
    "first key lost": first_key_of_a_sequence_lost,
    "last key lost": last_key_of_a_sequence_lost,
    "packed: one token of the neighbour seen": key_of_the_neighbour,
    "value scale 5 % off in one head": value_of_first_group("value"),
}
OF_PAGED = OF_CACHES | {
    "last key lost": last_token_of_a_page_lost,
    "zero keys of a stale page": one_token_more,
    "one page of 16 is another's": page_of_another_head,
    "value scale 5 % off in one head": value_of_first_group("value_pages"),
}
OF_ADDITIVE = ("first key lost", "last key lost", "all zeros")

SLIPS = [
    *((op, name, slip) for op in (PLAIN, ALIBI, LEARNED, XL) for name, slip in OF_ALL.items()),
    *((ADDITIVE, name, OF_ALL[name]) for name in OF_ADDITIVE),
    *((PACKED, name, slip) for name, slip in OF_PACKED.items()),
    *((PAGED, name, slip) for name, slip in OF_PAGED.items()),
    (PLAIN, "zero keys of a stale page", stale_zero_keys),
    (PLAIN, "a chosen key counted twice", key_counted_twice),
    (PLAIN, "mean of the values", mean),
    (GROUPED, "one page of 16 is another's", page_of_another),
    (GROUPED, "a chosen key counted twice", key_counted_twice),
    (GROUPED, "packed: one token of the neighbour seen", token_of_the_neighbour),
    (GROUPED, "all zeros", zeros),
]


def as_wide(x: Any) -> Any:
    is_number = isinstance(x, ndarray) and x.dtype.name in DTYPES
    return x.astype(np.float64) if is_number else x


def implementation(operation: str, slip: Slip) -> Implementation:
    """The slip in float64, stored in the dtype of the query; an lse no narrower than float32."""
    op = CATALOGUE[operation]

    def function(**given: Any) -> Any:
        dtype = given["query"].dtype
        answer = slip(op, {name: map_leaves(as_wide, x) for name, x in given.items()})
        if not isinstance(answer, tuple):
            return answer.astype(dtype)
        lse = answer[1].astype(dtype if dtype.itemsize >= 4 else np.float32)
        return answer[0].astype(dtype), lse

    backend = Backend(
        "slip", "slip", by_name=True, library=array_library("numpy"), precision="wide"
    )
    backend.implementations = [Implementation(backend, op, "", adapt_signature(function, op))]
    return backend.implementations[0]


def is_noticed(implementation: Implementation, dtype: str) -> bool:
    """Whether its numbers are: one that raises, or accepts what is invalid, is wrong otherwise."""
    found = first_failure(implementation, dtype, Options("quick", 0))
    return found.column == "values" and ("differ from" in found.words or "high" in found.words)


def test_each_of_the_22_stands_in_a_table() -> None:
    assert len({*REGISTERED, *(name for _, name, _ in SLIPS)}) == 22
    assert all(set(FAULTS[fault].wrong_in) == set(DTYPES) for fault in REGISTERED.values())


@pytest.mark.parametrize("dtype", ONE_DTYPE)
@pytest.mark.parametrize("name", REGISTERED)
def test_a_registered_slip_is_noticed_by_the_quick_profile(name: str, dtype: str) -> None:
    assert is_noticed(implementation_of(FAULTS[REGISTERED[name]]), dtype)


@pytest.mark.parametrize("dtype", ONE_DTYPE)
@pytest.mark.parametrize(
    ("operation", "slip"),
    [pytest.param(op, slip, id=f"{op}: {name}") for op, name, slip in SLIPS],
)
def test_a_slip_is_noticed_by_the_quick_profile(operation: str, slip: Slip, dtype: str) -> None:
    assert is_noticed(implementation(operation, slip), dtype)


@pytest.mark.parametrize("operation", [PLAIN, ALIBI, LEARNED, ADDITIVE, GROUPED, PACKED, PAGED])
def test_without_a_slip_nothing_is_noticed(operation: str) -> None:
    right = implementation(operation, lambda op, given: op.reference(**given))
    found = first_failure(right, "bfloat16", Options("quick", 0))
    assert found.column in ("", "refusals"), found.words
