"""Clauses of attention in which heads of queries share heads of keys and values."""

from typing import Any

import numpy as np
from numpy import ndarray

from attnverify import spec
from tests.spec.clauses.registry import Function, answering, clause, given, refuses
from tests.support.random_arrays import all_close, close

GROUPED, BACK = "grouped_attention", "grouped_attention_grad"
Call = dict[str, Any]


def drawn(B: int = 1, H: int = 4, G: int = 2, N: int = 3, M: int = 5, seed: int = 0) -> Call:
    rng = np.random.default_rng(seed)
    shapes = {"query": (B, H, N, 4), "key": (B, G, M, 4), "value": (B, G, M, 3)}
    return {name: rng.standard_normal(shape) for name, shape in shapes.items()}


def level(*values: float, **more: Any) -> Call:
    """One head of one row whose scores are all 0, over these values."""
    M = len(values)
    shown = {"query": np.zeros((1, 1, 1, 2)), "key": np.zeros((1, 1, M, 2))}
    return shown | {"value": np.array(values).reshape(1, 1, M, 1)} | more


def steep(*scores: float, **more: Any) -> Call:
    """One head of one row with these scores, over values that tell the keys apart."""
    M = len(scores)
    key, value = np.array(scores).reshape(1, 1, M, 1), 2.0 ** np.arange(M).reshape(1, 1, M, 1)
    return {"query": np.ones((1, 1, 1, 1)), "key": key, "value": value} | more


def in_turns(key: ndarray, value: ndarray, query: ndarray, **_: Any) -> Call:
    """Twin: head h reads head h mod G."""
    r = query.shape[1] // key.shape[1]
    return {"key": np.tile(key, (1, r, 1, 1)), "value": np.tile(value, (1, r, 1, 1))}


def first_heads(query: ndarray, key: ndarray, value: ndarray, **more: Any) -> Any:
    """Twin: a number of heads that does not fit is cut off."""
    H = query.shape[1] // key.shape[1] * key.shape[1]
    return spec.grouped_attention(query[:, :H], key, value, **more)


@clause(GROUPED, 1, false=[given(GROUPED, in_turns), first_heads])
def neighbours_share_a_head_of_keys(attention: Function) -> None:
    call = drawn()
    output, _ = attention(**call)
    for h in range(4):
        alone = {"query": call["query"][:, h : h + 1]}
        alone |= {name: call[name][:, h // 2 : h // 2 + 1] for name in ("key", "value")}
        assert close(output[:, h : h + 1], attention(**alone)[0])
    assert refuses(attention, "query: wanted heads that are a multiple", **drawn(H=5))


def of_width(scale: float | None = None, **_: Any) -> Call:
    return {"scale": None}


def root_of_one_more(query: ndarray, scale: float | None = None, **_: Any) -> Call:
    return {"scale": (query.shape[-1] + 1) ** -0.5 if scale is None else scale}


@clause(GROUPED, 2, false=[given(GROUPED, of_width), given(GROUPED, root_of_one_more)])
def the_scale_is_given_or_that_of_the_width(attention: Function) -> None:
    call = drawn()
    assert all_close(attention(**call), attention(**call, scale=0.5))
    doubled = call | {"query": 2 * call["query"]}
    assert all_close(attention(**doubled), attention(**call, scale=1.0))
    assert refuses(attention, "scale: wanted", **call, scale=np.inf)


def behind_the_mask(mask: Any, soft_cap: Any, query: ndarray, key: ndarray, **more: Any) -> Any:
    """Twin: mask and score capped together."""
    score = np.einsum("bhnd,bhmd->bhnm", query, key) / np.sqrt(query.shape[-1]) + mask
    capped = soft_cap * np.tanh(score / soft_cap)
    return spec.grouped_attention(0 * query, key, mask=capped, **more)


def zero_for_none(soft_cap: Any = None, **_: Any) -> Call:
    return {"soft_cap": soft_cap or None}


@clause(GROUPED, 3, false=[behind_the_mask, given(GROUPED, lambda **_: {"soft_cap": None}),
                           given(GROUPED, zero_for_none)])  # fmt: skip
def the_cap_bends_scores_and_no_mask(attention: Function) -> None:
    call = steep(100.0, -100.0, soft_cap=2.0)
    _, lse = attention(**call, mask=np.zeros((1, 2)))
    assert close(lse.item(), np.logaddexp(2.0, -2.0))
    _, lse = attention(**call, mask=np.array([[-np.inf, 7.0]]))
    assert close(lse.item(), 5.0)
    for cap in (0.0, -1.0):
        refused = steep(1.0) | {"soft_cap": cap, "mask": np.zeros((1, 1))}
        assert refuses(attention, "soft_cap: wanted", **refused)


def times_zero(found: Any, value: ndarray, **_: Any) -> Any:
    """Twin: 0 times what stands in a hidden value."""
    return found[0] + 0 * value.sum(), found[1]


def mask_alone(**_: Any) -> Call:
    return {"lengths": None, "causal": False}


@clause(GROUPED, 4, false=[answering(GROUPED, times_zero), given(GROUPED, mask_alone),
                           given(GROUPED, lambda **_: {"mask": None})])  # fmt: skip
def options_and_mask_hide_and_what_is_hidden_is_absent(attention: Function) -> None:
    call = level(1.0, 2.0, 5.0, np.nan, mask=np.array([[True, False, True, True]]))
    call |= {"lengths": np.array([3]), "causal": True}
    call["key"][0, 0, 3] = np.nan
    output, lse = attention(**call)
    assert close(output.item(), 3.0) and close(lse.item(), np.log(2.0))


def scaled_sink(sink: Any, query: ndarray, **_: Any) -> Call:
    return {"sink": sink / np.sqrt(query.shape[-1])}


def dropped_too(found: Any, sink: Any, p: float = 0.0, **_: Any) -> Any:
    """Twin: dropout drops the sink, and its weight goes back to the keys."""
    return (found[0] / (1 - np.exp(sink[0] - found[1][0, 0, 0])) if p else found[0]), found[1]


@clause(GROUPED, 5, false=[
    given(GROUPED, lambda **_: {"sink": None}), given(GROUPED, scaled_sink),
    given(GROUPED, lambda sink, **_: {"sink": sink + np.log(2.0)}),
    given(GROUPED, lambda sink, **_: {"sink": np.roll(sink, 1)}),
    given(GROUPED, lambda sink, **_: {"sink": np.maximum(sink, -3.0)}),
    answering(GROUPED, dropped_too),
])  # fmt: skip
def the_sink_takes_weight_and_brings_no_value(attention: Function) -> None:
    call = level(1.0, 2.0, 5.0)
    output, lse = attention(**call, sink=np.array([np.log(5.0)]))
    assert close(output.item(), 1.0) and close(lse.item(), np.log(8.0))
    half = {"keep": np.ones((1, 3), bool), "p": 0.5}
    assert close(attention(**call, sink=np.array([np.log(5.0)]), **half)[0].item(), 2.0)
    two = call | {"query": np.zeros((1, 2, 1, 2))}
    output, _ = attention(**two, sink=np.array([-np.inf, np.log(5.0)]))
    assert close(output.ravel(), [8 / 3, 1.0])


def of_base_two(found: Any, **_: Any) -> Any:
    return found[0], found[1] / np.log(2.0)


def without_sink(sink: Any = None, **more: Any) -> Any:
    return spec.grouped_attention(**more, sink=sink)[0], spec.grouped_attention(**more)[1]


def after_dropout(found: Any, p: float = 0.0, **_: Any) -> Any:
    return found[0], found[1] - np.log(1 - p)


@clause(GROUPED, 6, false=[answering(GROUPED, of_base_two), without_sink,
                           answering(GROUPED, after_dropout)])  # fmt: skip
def lse_is_the_logarithm_of_the_denominator(attention: Function) -> None:
    call = steep(0.0, 1.0, 3.0, sink=np.array([2.0]), keep=np.array([[True, False, True]]), p=0.25)
    wanted = np.log(np.exp([0.0, 1.0, 3.0, 2.0]).sum())
    assert close(attention(**call)[1].item(), wanted)


def instead(output: float, lse: float) -> Function:
    """Twin: other numbers where a row sees nothing."""

    def change(found: Any, **_: Any) -> Any:
        empty = (found[0] == 0).all(-1)
        return np.where(empty[..., None], output, found[0]), np.where(empty, lse, found[1])

    return answering(GROUPED, change)


@clause(GROUPED, 7, false=[instead(np.nan, -np.inf), instead(3.0, -np.inf), instead(0, np.inf),
                           instead(0, -5e4)])  # fmt: skip
def a_row_that_sees_nothing_is_an_absent_part(attention: Function) -> None:
    call = level(1.0, 5.0)
    empty = attention(**call, lengths=np.array([0]))
    assert not empty[0].any() and (empty[1] == -np.inf).all()
    output, lse = attention(**call, lengths=np.array([0]), sink=np.array([4.0]))
    assert not output.any() and close(lse.item(), 4.0)
    parts = [np.stack(x) for x in zip(attention(**call), empty, strict=True)]
    assert all_close(spec.merge_attention(*parts), attention(**call))


def as_narrow(found: Any, query: ndarray, **_: Any) -> Any:
    return tuple(x.astype(query.dtype) for x in found)


@clause(GROUPED, 8, false=answering(GROUPED, as_narrow))
def a_log_sum_exp_beside_a_half_output_is_no_half(attention: Function) -> None:
    from attnverify.catalogue.operation import CATALOGUE

    call = {name: x.astype(np.float16) for name, x in steep(1000.25, 1000.25).items()}
    assert close(attention(**call)[1].item(), 1000.0 + np.log(2), 1e-7)
    assert CATALOGUE[GROUPED].dtype_of_output(1, "float16") == "float32"
    assert CATALOGUE[BACK].dtype_of("d_lse", "bfloat16") == "float32"


# the gradient


def arriving(d_output: float, d_lse: float, call: Call) -> Call:
    shape = (*call["query"].shape[:3], call["value"].shape[-1])
    return {"d_output": np.full(shape, d_output), "d_lse": np.full(shape[:-1], d_lse)} | call


def last_head(found: Any, d_output: ndarray, query: ndarray, key: ndarray, **more: Any) -> Any:
    """Twin: keys and values receive what one head of the group sends."""
    r = query.shape[1] // key.shape[1]
    alone = np.arange(query.shape[1]) % r == r - 1
    part = spec.grouped_attention_grad(
        d_output * alone[:, None, None], query=query, key=key, **more
    )
    return found[0], part[1], part[2]


@clause(BACK, 1, false=answering(BACK, last_head))
def a_shared_key_receives_the_sum_over_its_heads(gradient: Function) -> None:
    call = arriving(1.0, 0.0, drawn())
    shared = gradient(**call)
    apart = call | {name: np.repeat(call[name], 2, axis=1) for name in ("key", "value")}
    whole = gradient(**apart)
    for k in (1, 2):
        assert close(shared[k], whole[k].reshape(1, 2, 2, *whole[k].shape[2:]).sum(2))


def straight(**x: Any) -> Any:
    """Twin: no derivative of the cap."""
    found = spec.grouped_attention_grad(**x)
    factor = 1 / np.sqrt(x["query"].shape[-1])
    capped = x["soft_cap"] * np.tanh(x["query"] @ x["key"].mT * factor / x["soft_cap"])
    flat = x | {"soft_cap": None, "query": 0 * x["query"], "mask": capped + x["mask"]}
    d_score = spec.grouped_attention_grad(**flat)[3]
    return d_score @ x["key"] * factor, *found[1:]


def of_masked_score(**x: Any) -> Any:
    """Twin: the slope at the score with the mask in it."""
    found = spec.grouped_attention_grad(**x)
    score = x["query"] @ x["key"].mT / np.sqrt(x["query"].shape[-1])
    capped = x["soft_cap"] * np.tanh(score / x["soft_cap"])
    slope = 1 - ((capped + x["mask"]) / x["soft_cap"]) ** 2
    d_score = found[3] * slope
    return d_score @ x["key"] / np.sqrt(x["query"].shape[-1]), *found[1:]


@clause(BACK, 2, false=[straight, of_masked_score])
def through_the_cap_by_its_slope(gradient: Function) -> None:
    call = arriving(0.0, 1.0, steep(1.0, 3.0, soft_cap=2.0, mask=np.array([[0.5, 0.0]])))
    capped = 2 * np.tanh(np.array([0.5, 1.5]))
    w = np.exp(capped + np.array([0.5, 0.0]))
    wanted = (w / w.sum() * (1 - (capped / 2) ** 2) * [1.0, 3.0]).sum()
    assert close(gradient(**call)[0].item(), wanted)


def none_for_sink(found: Any, d_lse: ndarray, **_: Any) -> Any:
    """Twin: the sink receives nothing from the lse."""
    return *found[:-1], found[-1] - d_lse.sum((0, 2)) * 0.5


def empty_rows_sunk(found: Any, d_lse: ndarray, lengths: ndarray | None = None, **_: Any) -> Any:
    """Twin: the lse of an empty row goes nowhere, though there is a sink."""
    gone = 0 if lengths is None else d_lse.sum((0, 2))
    return *found[:-1], found[-1] - gone


@clause(BACK, 3, false=[given(BACK, lambda d_lse, **_: {"d_lse": 0 * d_lse}),
                        answering(BACK, none_for_sink),
                        answering(BACK, empty_rows_sunk)])  # fmt: skip
def what_arrives_at_the_lse_is_shared_by_weight(gradient: Function) -> None:
    call = arriving(0.0, 2.0, level(1.0, 5.0, sink=np.array([np.log(2.0)])))
    call |= {"mask": np.zeros((1, 2))}
    *_, d_mask, d_sink = gradient(**call)
    assert close(d_mask, [[0.5, 0.5]]) and close(d_sink.item(), 1.0)
    *_, d_mask, d_sink = gradient(**call, lengths=np.array([0]))
    assert not d_mask.any() and close(d_sink.item(), 2.0)


def from_all(found: Any, value: ndarray, **_: Any) -> Any:
    """Twin: 0 times what stands in a hidden value."""
    return found[0] + 0 * value.sum(), *found[1:]


def handed_through(found: Any, d_lse: ndarray, sink: ndarray | None = None, **_: Any) -> Any:
    """Twin: the lse of an empty row to a sink that is none."""
    return *found[:-1], found[-1] + d_lse.sum((0, 2)) * (sink == -np.inf)


@clause(BACK, 4, false=[answering(BACK, from_all), answering(BACK, handed_through)])
def what_takes_no_part_receives_nothing(gradient: Function) -> None:
    call = arriving(3.0, 5.0, level(1.0, np.nan, sink=np.array([-np.inf])))
    call["key"][0, 0, 1] = np.nan
    call["query"][:] = 1.0
    d_query, d_key, d_value, d_sink = gradient(**call, lengths=np.array([1]))
    assert not d_key[0, 0, 1].any() and not d_value[0, 0, 1].any() and not d_sink.any()
    assert np.isfinite(d_query).all()
    assert not any(x.any() for x in gradient(**call, lengths=np.array([0])))
