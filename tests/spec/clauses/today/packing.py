"""Clauses of sequences that lie end to end."""

from typing import Any

import numpy as np
from numpy import ndarray

from attnverify import spec
from attnverify.conventions.packing import AS_ONE, changed, in_the_whole_array, seeing
from tests.spec.clauses.registry import Function, answering, clause, given, refuses
from tests.support.random_arrays import all_close, close

PACKED, BACK = "packed_attention", "packed_attention_grad"
Call = dict[str, Any]


def drawn(T: int = 7, U: int = 9, H: int = 4, G: int = 2, **more: Any) -> Call:
    rng = np.random.default_rng(0)
    shapes = {"query": (T, H, 4), "key": (U, G, 4), "value": (U, G, 3)}
    arrays = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    return arrays | starts([0, 3, T], [0, 4, U]) | more


def starts(queries: list[int], keys: list[int]) -> Call:
    return {"query_starts": np.array(queries), "key_starts": np.array(keys)}


def level(*values: float, T: int = 2, **more: Any) -> Call:
    """One head of T rows whose scores are all 0, over these values."""
    U = len(values)
    arrays = {"query": np.zeros((T, 1, 2)), "key": np.zeros((U, 1, 2))}
    return arrays | {"value": np.array(values).reshape(U, 1, 1)} | more


def last_left_in(query_starts: ndarray, query: ndarray, **_: Any) -> Call:
    """Twin: the row at a sequence's end belongs to it."""
    moved = query_starts.copy()
    moved[1:-1] += 1
    return {"query_starts": np.minimum(moved, len(query))}


@clause(
    PACKED,
    1,
    false=[
        changed(**AS_ONE),
        given(PACKED, last_left_in),
        given(PACKED, lambda query_starts, **_: {"key_starts": query_starts}),
    ],
)
def each_sequence_is_an_attention_of_its_own(attention: Function) -> None:
    call = drawn()
    output, lse = attention(**call)
    for t, u in ((slice(3), slice(4)), (slice(3, 7), slice(4, 9))):
        own = {"query": call["query"][t], "key": call["key"][u], "value": call["value"][u]}
        alone = spec.grouped_attention(**{n: x.swapaxes(0, 1)[None] for n, x in own.items()})
        found = output[t].swapaxes(0, 1)[None], lse[t].T[None]
        assert all_close(found, alone)


def aligned_at_the_start(query_starts: ndarray, **_: Any) -> Call:
    return {"offset": np.zeros(len(query_starts) - 1, int)}


@clause(PACKED, 2, false=[seeing(in_the_whole_array), given(PACKED, aligned_at_the_start),
                          given(PACKED, lambda **_: {"pinned": 0})])  # fmt: skip
def positions_are_counted_in_each_sequence(attention: Function) -> None:
    call = level(1.0, 2.0, 4.0, 1.0, 2.0, 4.0, **starts([0, 1, 2], [0, 3, 6]))
    first, second = attention(**call, causal=True, window=(0, None), pinned=1)[0].ravel()
    assert close(first, 2.5) and close(second, 2.5)
    run = attention(**call, chunk=2)[0].ravel()
    assert close(run, [4.0, 4.0])


def at_all_keys(query_starts: ndarray, key_starts: ndarray, offset: Any = None, **_: Any) -> Call:
    ends = np.diff(key_starts) - np.diff(query_starts)
    return {"offset": ends if offset is None else offset}


def first_offset(offset: Any = None, **_: Any) -> Call:
    return {"offset": None if offset is None else np.full_like(offset, offset[0])}


@clause(PACKED, 3, false=[
    given(PACKED, lambda **_: {"lengths": None}), given(PACKED, at_all_keys),
    given(PACKED, first_offset), given(PACKED, lambda **_: {"offset": None}),
])  # fmt: skip
def lengths_cut_a_sequence_and_offsets_are_its_own(attention: Function) -> None:
    call = level(1.0, 3.0, np.nan, 5.0, 7.0, 9.0, **starts([0, 1, 2], [0, 3, 6]))
    output, _ = attention(**call, lengths=np.array([2, 2]), window=(0, 0))
    assert close(output.ravel(), [3.0, 7.0])
    moved = {"lengths": np.array([2, 3]), "offset": np.array([0, 2])}
    assert close(attention(**call, **moved, causal=True)[0].ravel(), [1.0, 7.0])


def nothing_as(output: float, lse: float) -> Function:
    """Twin: other numbers where a row sees nothing."""

    def change(found: Any, **_: Any) -> Any:
        empty = (found[0] == 0).all(-1)
        return np.where(empty[..., None], output, found[0]), np.where(empty, lse, found[1])

    return answering(PACKED, change)


def empty_left_out(query_starts: ndarray, key_starts: ndarray, **_: Any) -> Call:
    """Twin: the keys of a sequence without a query go to the next one."""
    moved, empty = key_starts.copy(), np.diff(query_starts) == 0
    moved[1:][empty] = key_starts[:-1][empty]
    return {"key_starts": np.minimum.accumulate(moved[::-1])[::-1]}


@clause(PACKED, 4, false=[nothing_as(np.nan, -np.inf), nothing_as(0.0, np.inf),
                          given(PACKED, empty_left_out)])  # fmt: skip
def a_sequence_may_lack_queries_or_keys(attention: Function) -> None:
    call = level(1.0, 3.0, 8.0, T=2) | starts([0, 0, 1, 1, 2], [0, 1, 1, 1, 3])
    output, lse = attention(**call)
    assert (
        close(output.ravel(), [0.0, 5.5]) and lse[0, 0] == -np.inf and close(lse[1, 0], np.log(2))
    )
    _, lse = attention(**call, sink=np.array([3.0]))
    assert close(lse.ravel(), [3.0, np.log(2 + np.exp(3))])


def to_the_ends(query: ndarray, query_starts: ndarray, **_: Any) -> Call:
    """Twin: rows in front and behind belong to the nearest sequence."""
    moved = query_starts.copy()
    moved[0], moved[-1] = 0, len(query)
    return {"query_starts": moved}


def times_zero(found: Any, value: ndarray, key_starts: ndarray, **_: Any) -> Any:
    return found[0] + 0 * value[key_starts[-1] :].sum(), found[1]


def sunk_nowhere(found: Any, query_starts: ndarray, **_: Any) -> Any:
    lse = found[1].copy()
    lse[query_starts[-1] :] = -np.inf
    return found[0], lse


@clause(PACKED, 5, false=[given(PACKED, to_the_ends), answering(PACKED, times_zero),
                          answering(PACKED, sunk_nowhere)])  # fmt: skip
def tokens_of_no_sequence_are_not_looked_at(attention: Function) -> None:
    call = level(np.nan, 3.0, 5.0, np.nan, T=3, **starts([1, 2], [1, 3]))
    call["query"][[0, 2]], call["key"][[0, 3]] = np.nan, np.inf
    output, lse = attention(**call, sink=np.array([0.0]))
    assert close(output.ravel(), [0.0, 8 / 3, 0.0]) and close(lse.ravel(), [0.0, np.log(3), 0.0])


def sorted_starts(query_starts: ndarray, query: ndarray, **_: Any) -> Call:
    return {"query_starts": np.clip(np.sort(query_starts), 0, len(query))}


def clipped(lengths: Any = None, key_starts: Any = None, **_: Any) -> Call:
    return {} if lengths is None else {"lengths": np.minimum(lengths, np.diff(key_starts))}


@clause(PACKED, 6, false=[given(PACKED, sorted_starts), given(PACKED, clipped)])
def starts_that_fall_or_run_past_are_refused(attention: Function) -> None:
    call = drawn()
    for wrong in ([0, 8, 7], [-1, 3, 7], [0, 3, 8]):
        assert refuses(
            attention, "query_starts: wanted", **call | {"query_starts": np.array(wrong)}
        )
    assert refuses(attention, "lengths: wanted", **call, lengths=np.array([5, 1]))
    assert refuses(attention, "key_starts: wanted", **call | {"key_starts": np.array([0, 9])})


def as_narrow(found: Any, query: ndarray, **_: Any) -> Any:
    return tuple(x.astype(query.dtype) for x in found)


@clause(PACKED, 7, false=[
    given(PACKED, lambda **_: {"soft_cap": None}), given(PACKED, lambda **_: {"sink": None}),
    given(PACKED, lambda **_: {"scale": None}), answering(PACKED, as_narrow),
])  # fmt: skip
def cap_sink_and_scale_are_those_of_grouped_attention(attention: Function) -> None:
    from attnverify.catalogue.operation import CATALOGUE

    numbers = {"soft_cap": 1.5, "sink": np.array([0.5, -np.inf, 2.0, 1.0]), "scale": 0.75}
    call = drawn() | starts([0, 7], [0, 9])
    whole = {n: call[n].swapaxes(0, 1)[None] for n in ("query", "key", "value")}
    output, lse = attention(**call, **numbers)
    found = output.swapaxes(0, 1)[None], lse.T[None]
    assert all_close(found, spec.grouped_attention(**whole, **numbers))
    half = {n: x.astype(np.float16) for n, x in level(1.0, 1.0).items()} | starts([0, 2], [0, 2])
    lse = attention(**half, sink=np.array([1000.25]))[1]
    assert close(lse.ravel(), [1000.25, 1000.25], 1e-7)
    assert CATALOGUE[PACKED].dtype_of_output(1, "float16") == "float32"


# the gradient


def arriving(d_output: float, d_lse: float, call: Call) -> Call:
    shape = (*call["query"].shape[:2], call["value"].shape[-1])
    return {"d_output": np.full(shape, d_output), "d_lse": np.full(shape[:-1], d_lse)} | call


def whole(**x: Any) -> Call:
    """Twin: all tokens as one sequence."""
    return {name: make(x) for name, make in AS_ONE.items()}


@clause(
    BACK,
    1,
    false=[
        given(BACK, whole),
        given(BACK, lambda query_starts, **_: {"key_starts": query_starts}),
    ],
)
def a_sequence_receives_from_its_own_rows(gradient: Function) -> None:
    call = arriving(1.0, 0.5, drawn())
    found, t, u = gradient(**call), slice(3, 7), slice(4, 9)
    own = {n: call[n][t] for n in ("d_output", "d_lse", "query")}
    own |= {n: call[n][u] for n in ("key", "value")}
    alone = spec.grouped_attention_grad(**{n: x.swapaxes(0, 1)[None] for n, x in own.items()})
    mine = (found[0][t], found[1][u], found[2][u])
    assert all_close([x.swapaxes(0, 1)[None] for x in mine], alone)


def from_all(found: Any, query: ndarray, **_: Any) -> Any:
    """Twin: 0 times what stands in a query of no sequence."""
    return found[0], found[1] + 0 * query.sum(), found[2]


@clause(BACK, 2, false=[answering(BACK, from_all), given(BACK, lambda **_: {"lengths": None})])
def what_takes_no_part_receives_nothing(gradient: Function) -> None:
    call = arriving(3.0, 5.0, level(1.0, 2.0, np.nan, T=2, **starts([0, 1], [0, 2])))
    call["query"][1], call["key"][2] = np.nan, np.nan
    d_query, d_key, d_value = gradient(**call, lengths=np.array([1]))
    assert np.isfinite(d_query).all() and not d_query[1].any()
    assert not d_key[1:].any() and not d_value[1:].any() and np.isfinite(d_key).all()


def rows_of_none_left_out(found: Any, d_lse: ndarray, query_starts: ndarray, **_: Any) -> Any:
    return *found[:-1], found[-1] - d_lse[query_starts[-1] :].sum(0)


def handed_through(found: Any, d_lse: ndarray, sink: Any = None, **_: Any) -> Any:
    """Twin: the lse of a row without a key to a sink that is none."""
    return *found[:-1], found[-1] + d_lse.sum(0) * (sink == -np.inf)


@clause(BACK, 3, false=[answering(BACK, rows_of_none_left_out), answering(BACK, handed_through),
                        given(BACK, lambda d_lse, **_: {"d_lse": 0 * d_lse})])  # fmt: skip
def a_sink_receives_from_every_row(gradient: Function) -> None:
    call = arriving(0.0, 2.0, level(1.0, 5.0, T=4, **starts([0, 1, 2], [0, 1, 1])))
    assert close(gradient(**call, sink=np.array([0.0]))[3].item(), 1 + 2 + 2 + 2)
    assert gradient(**call, sink=np.array([-np.inf]))[3].item() == 0
