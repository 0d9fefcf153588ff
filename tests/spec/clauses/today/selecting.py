"""Clauses of attention over chosen blocks."""

from typing import Any

import numpy as np
from numpy import ndarray

from attnverify import spec
from attnverify.conventions.caches import selecting
from attnverify.faults.today.selecting import from_the_end, without_last
from tests.spec.clauses.registry import Function, answering, clause, given, refuses
from tests.support.random_arrays import all_close, close

SELECTED, BACK = "selected_attention", "selected_attention_grad"
Call = dict[str, Any]
SELECTION = np.array([[[2, 0], [-1, 1]], [[0, 1], [2, -1]]])[None]
"""Of two heads of keys and two rows."""


def drawn(**more: Any) -> Call:
    """Four heads of two, two rows that choose up to two blocks of two of five keys."""
    rng = np.random.default_rng(0)
    shapes = {"query": (1, 4, 2, 3), "key": (1, 2, 5, 3), "value": (1, 2, 5, 4)}
    call = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    return call | {"selection": SELECTION, "block": 2} | more


def level(values: list[float], selection: list[list[int]], block: int, **more: Any) -> Call:
    """One head whose scores are all 0: the mean of the values that each row sees."""
    rows, key = np.zeros((1, 1, len(selection), 1)), np.zeros((1, 1, len(values), 1))
    call = {"query": rows, "key": key, "value": np.array(values).reshape(key.shape)}
    return call | {"selection": np.array([[selection]]), "block": block} | more


def means(attention: Function, *call: Any, **more: Any) -> list[float]:
    found: list[float] = attention(**level(*call, **more))[0].ravel().round(9).tolist()
    return found


def under(pairs: Any) -> Function:
    """Twin: another mask of what is chosen."""
    return selecting.under(pairs)


def choices(change: Any) -> Function:
    return under(lambda x: selecting.chosen(x, change(x["selection"])))


@clause(SELECTED, 1, false=[
    choices(lambda s: s + (s >= 0)), choices(lambda s: s[:, ::-1]),
    choices(lambda s: s[:, :, ::-1]), under(selecting.heads_in_turn),
    under(selecting.from_own_number),
    given(SELECTED, lambda **_: {"causal": False}),
])  # fmt: skip
def rows_see_the_blocks_that_they_have_chosen(attention: Function) -> None:
    seen = np.zeros((1, 4, 2, 5), bool)
    seen[0, :2, 0, [0, 1, 4]] = seen[0, :2, 1, 2:4] = True
    seen[0, 2:, 0, :4] = seen[0, 2:, 1, 4] = True
    call = drawn(causal=True, offset=np.array([3]))
    whole = {name: x for name, x in call.items() if name not in ("selection", "block")}
    assert all_close(attention(**call), spec.grouped_attention(**whole, mask=seen))


@clause(SELECTED, 2, false=[
    under(selecting.last_for_none), under(selecting.first_for_none), under(selecting.up_to_none),
])  # fmt: skip
def no_choice_is_none_and_their_order_is_nothing(attention: Function) -> None:
    call = drawn()
    assert all_close(attention(**call), attention(**call | {"selection": SELECTION[..., ::-1]}))
    assert means(attention, [2.0, 4.0, 8.0], [[-1, 1, -1], [-1, -1, 0]], 1) == [4.0, 2.0]


@clause(SELECTED, 3, false=[
    under(selecting.chosen), choices(lambda s: np.where(s > 2, -1, s)),
])  # fmt: skip
def a_choice_is_a_block_that_is_named_once(attention: Function) -> None:
    for wrong in ([[3]], [[-2]], [[0, 0]], [[1, -1, 1]]):
        assert refuses(attention, "selection: wanted", **level([1.0] * 5, wrong, 2))
    assert means(attention, [1.0, 3.0], [[-1, 0, -1]], 2) == [2.0]


@clause(SELECTED, 4, false=[under(without_last), under(from_the_end)])
def blocks_are_counted_from_the_first_key(attention: Function) -> None:
    values = [1.0, 2.0, 3.0, 4.0, 9.0]
    assert means(attention, values, [[0], [1], [2]], 2) == [1.5, 3.5, 9.0]
    assert means(attention, values, [[0]], 16) == [3.8]


def of_block_starts(x: Call) -> ndarray:
    """Twin: causality of whole blocks, by their first keys."""
    B, N, M = len(x["query"]), x["query"].shape[2], x["key"].shape[2]
    seen = spec.visible_keys(B, N, M, causal=True)[:, None]
    return selecting.chosen(x) & seen[..., np.arange(M) // x["block"] * x["block"]]


@clause(SELECTED, 5, false=[
    lambda **x: under(of_block_starts)(**x | {"causal": False}),
    given(SELECTED, lambda **_: {"window": None}), given(SELECTED, lambda **_: {"lengths": None}),
])  # fmt: skip
def causality_holds_within_a_block(attention: Function) -> None:
    values = [1.0, 2.0, 3.0, 4.0, 9.0]
    both = [[0, 1]] * 4
    assert means(attention, values[:4], both, 2, causal=True) == [1.0, 1.5, 2.0, 2.5]
    assert means(attention, values[:4], both, 2, window=(0, 1)) == [1.5, 2.5, 3.5, 4.0]
    assert means(attention, values, [[1]], 3, lengths=np.array([4])) == [4.0]


def times_zero(name: str) -> Function:
    """Twin: 0 times what stands in keys that nobody has chosen."""
    return answering(SELECTED, lambda found, **x: (found[0] + 0 * x[name].sum(), found[1]))


@clause(SELECTED, 6, false=[times_zero("key"), times_zero("value")])
def what_nobody_has_chosen_is_absent(attention: Function) -> None:
    call = level([1.0, 3.0, np.nan, np.nan, 7.0], [[0], [2]], 2)
    call["key"][:, :, 2:4] = np.nan
    assert attention(**call)[0].ravel().tolist() == [2.0, 7.0]


def as_narrow(found: Any, query: ndarray, **_: Any) -> Any:
    return tuple(x.astype(query.dtype) for x in found)


@clause(SELECTED, 7, false=[
    under(selecting.all_for_none), given(SELECTED, lambda **_: {"soft_cap": None}),
    given(SELECTED, lambda **_: {"sink": None}), given(SELECTED, lambda **_: {"scale": None}),
    answering(SELECTED, as_narrow),
])  # fmt: skip
def cap_sink_and_empty_rows_are_those_of_grouped_attention(attention: Function) -> None:
    from attnverify.catalogue.operation import CATALOGUE

    numbers = {"soft_cap": 1.5, "sink": np.array([0.5, -np.inf, 2.0, 1.0]), "scale": 0.75}
    call = drawn(**numbers)
    whole = {name: x for name, x in call.items() if name not in ("selection", "block")}
    assert all_close(
        attention(**call), spec.grouped_attention(**whole, mask=selecting.chosen(call))
    )
    none = level([1.0, 3.0], [[-1, -1]], 1)
    assert [x.item() for x in attention(**none)] == [0.0, -np.inf]
    assert attention(**none, sink=np.array([3.0]))[1].item() == 3.0
    half = {name: x.astype(np.float16) for name, x in none.items() if name not in ("selection",
            "block")} | {"selection": none["selection"], "block": 1}  # fmt: skip
    assert close(attention(**half, sink=np.array([1000.25]))[1].item(), 1000.25, 1e-7)
    assert CATALOGUE[SELECTED].dtype_of_output(1, "float16") == "float32"


# the gradient


def arriving(d_output: float, d_lse: float, call: Call) -> Call:
    """The same at every row."""
    rows = call["query"].shape[:3]
    at_output = np.full((*rows, call["value"].shape[-1]), d_output)
    return {"d_output": at_output, "d_lse": np.full(rows, d_lse)} | call


def back_under(pairs: Any) -> Function:
    return selecting.under(pairs, "grouped_attention_grad")


def of_last_row(found: Any, d_output: ndarray, d_lse: ndarray, **call: Any) -> Any:
    """Twin: keys and values receive from the last row alone."""
    last = np.arange(d_lse.shape[2]) == d_lse.shape[2] - 1
    part = {"d_output": d_output * last[:, None], "d_lse": d_lse * last}
    return found[0], *spec.selected_attention_grad(**part, **call)[1:3], *found[3:]


@clause(BACK, 1, false=[
    answering(BACK, of_last_row),
    back_under(lambda x: selecting.chosen(x, x["selection"][:, ::-1])),
])  # fmt: skip
def a_key_receives_from_rows_that_have_chosen_it(gradient: Function) -> None:
    call = arriving(1.0, 0.5, drawn())
    _, by_key, by_value = gradient(**call)
    for b, g, i in np.ndindex(1, 2, 2):
        mine = np.zeros((1, 4, 2))
        mine[b, 2 * g : 2 * g + 2, i] = 1
        part = {"d_output": call["d_output"] * mine[..., None], "d_lse": call["d_lse"] * mine}
        _, from_row_key, from_row_value = gradient(**call | part)
        seen = np.isin(np.arange(5) // 2, SELECTION[b, g, i])
        assert (np.abs(from_row_value[b, g]).sum(-1) > 0).tolist() == seen.tolist()
        by_key, by_value = by_key - from_row_key, by_value - from_row_value
    assert close(by_key, 0 * by_key) and close(by_value, 0 * by_value)


@clause(BACK, 2, false=[
    back_under(lambda x: np.ones_like(selecting.chosen(x))),
    back_under(lambda x: selecting.chosen(x, x["selection"] + (x["selection"] >= 0))),
])  # fmt: skip
def weights_are_those_among_the_chosen_keys(gradient: Function) -> None:
    call = arriving(1.0, 0.0, level([2.0, 9.0, 4.0, 4.0], [[0, 2]], 1))
    d_query, _, d_value = gradient(**call)
    assert close(d_value.ravel(), [0.5, 0.0, 0.5, 0.0]) and len(gradient(**call)) == 3
    assert close(d_query.ravel(), [0.0])


def times_zero_back(name: str, at: int) -> Function:
    def leaking(found: Any, **call: Any) -> Any:
        return *found[:at], found[at] + 0 * call[name].sum(), *found[at + 1 :]

    return answering(BACK, leaking)


@clause(BACK, 3, false=[
    times_zero_back("key", 0), times_zero_back("value", 0), times_zero_back("query", 1),
    back_under(selecting.all_for_none),
])  # fmt: skip
def what_takes_no_part_receives_nothing(gradient: Function) -> None:
    call = arriving(3.0, 5.0, level([1.0, np.nan, 2.0], [[0], [-1]], 1))
    call["key"][:, :, 1], call["query"][:, :, 1] = np.nan, np.nan
    d_query, d_key, d_value, d_sink = gradient(**call, sink=np.array([0.0]))
    assert np.isfinite(d_query).all() and not d_query[:, :, 1].any()
    assert not d_key[:, :, 1:].any() and not d_value[:, :, 1:].any()
    assert close(d_sink.item(), 5.0 + 0.5 * (5.0 - 1.5))


def lse_to_values(found: Any, d_lse: ndarray, **_: Any) -> Any:
    return found[0], found[1], found[2] + d_lse.sum(), *found[3:]


@clause(BACK, 4, false=[
    answering(BACK, lse_to_values), given(BACK, lambda **_: {"soft_cap": None}),
    given(BACK, lambda d_lse, **_: {"d_lse": 0 * d_lse}),
    given(BACK, lambda **_: {"scale": None}),
])  # fmt: skip
def cap_sink_and_lse_are_those_of_grouped_attention(gradient: Function) -> None:
    numbers = {"soft_cap": 1.5, "sink": np.array([0.5, -np.inf, 2.0, 1.0]), "scale": 0.75}
    call = arriving(1.0, 0.5, drawn(**numbers))
    whole = {name: x for name, x in call.items() if name not in ("selection", "block")}
    wanted = spec.grouped_attention_grad(**whole, mask=selecting.chosen(call))
    assert all_close(gradient(**call), wanted)
