"""Clauses of latents that all heads share."""

from typing import Any

import numpy as np
from numpy import ndarray

from attnverify import spec
from attnverify.conventions.caches.latents import PARTS, with_values
from attnverify.faults.today.latents import values_behind
from tests.spec.clauses.registry import Function, answering, clause, given, refuses
from tests.support.random_arrays import all_close, close

LATENT, BACK = "latent_attention", "latent_attention_grad"
Call = dict[str, Any]


def drawn(**more: Any) -> Call:
    """Two entries, three heads, five rows and seven keys, of six channels and four for position."""
    rng = np.random.default_rng(0)
    shapes = {"query": (2, 3, 5, 6), "query_rope": (2, 3, 5, 4)}
    shapes |= {"latent": (2, 7, 6), "key_rope": (2, 7, 4)}
    return {name: rng.standard_normal(shape) for name, shape in shapes.items()} | more


def level(*latents: float, **more: Any) -> Call:
    """One head of one row whose scores are all 0, over these latents of one channel."""
    M = len(latents)
    rows = {"query": np.zeros((1, 1, 1, 1)), "query_rope": np.zeros((1, 1, 1, 1))}
    keys = {"latent": np.array(latents).reshape(1, M, 1), "key_rope": np.zeros((1, M, 1))}
    return rows | keys | {"scale": 1.0} | more


def part(name: str, change: Any) -> Function:
    return given(LATENT, lambda **x: {name: change(x[name])})


def head_by_head(query_rope: ndarray, **_: Any) -> Call:
    """Twin: the position is read by the first head alone."""
    return {"query_rope": query_rope * (np.arange(query_rope.shape[1]) == 0)[:, None, None]}


@clause(LATENT, 1, false=[
    part("latent", lambda c: c[::-1]), part("key_rope", lambda k: k[::-1]),
    given(LATENT, head_by_head),
])  # fmt: skip
def all_heads_read_one_latent(attention: Function) -> None:
    call = drawn()
    output, lse = attention(**call, scale=0.5)
    for h in range(3):
        row = {name: call[name][:, h : h + 1] for name in ("query", "query_rope")}
        alone = (
            np.concatenate([*row.values()], -1),
            np.concatenate([call["latent"], call["key_rope"]], -1),
        )
        found = spec.grouped_attention(
            alone[0], alone[1][:, None], call["latent"][:, None], scale=0.5
        )
        assert all_close([output[:, h : h + 1], lse[:, h : h + 1]], found)


def latent_alone_scaled(query_rope: ndarray, scale: float, **_: Any) -> Call:
    return {"query_rope": query_rope / scale}


@clause(LATENT, 2, false=[
    given(LATENT, latent_alone_scaled), part("query_rope", lambda q: 0 * q),
    part("query", lambda q: 0 * q),
])  # fmt: skip
def both_products_are_scaled(attention: Function) -> None:
    call = level(2.0, 4.0, scale=0.5)
    call |= {"query": np.array([[[[3.0]]]]), "query_rope": np.array([[[[1.0]]]])}
    call |= {"key_rope": np.array([[[10.0], [4.0]]])}
    _, lse = attention(**call)
    assert close(lse.item(), np.logaddexp(8.0, 8.0))


def of_both_widths(query: ndarray, query_rope: ndarray, **_: Any) -> Call:
    return {"scale": (query.shape[-1] + query_rope.shape[-1]) ** -0.5}


def of_latent(query: ndarray, scale: float | None = None, **_: Any) -> Call:
    """Twin: where no scale is given it is that of the latent."""
    return {"scale": query.shape[-1] ** -0.5 if scale is None else scale}


@clause(LATENT, 3, false=[given(LATENT, of_both_widths), given(LATENT, of_latent)])
def the_scale_is_given(attention: Function) -> None:
    call = drawn()
    doubled = call | {name: 2 * call[name] for name in ("query", "query_rope")}
    assert all_close(attention(**call, scale=0.5), attention(**doubled, scale=0.25))
    for wrong in (None, np.inf):
        assert refuses(attention, "scale: wanted", **call, scale=wrong)


@clause(LATENT, 4, false=[with_values, values_behind])
def the_position_is_no_value(attention: Function) -> None:
    call = drawn(scale=0.0)
    output, _ = attention(**call)
    assert output.shape == call["query"].shape
    assert close(output[:, 0, 0], call["latent"].mean(axis=1))


@clause(LATENT, 5, false=[
    given(LATENT, of_both_widths), part("query_rope", lambda q: 0 * q), with_values,
])  # fmt: skip
def it_is_the_attention_of_heads_before_absorption(attention: Function) -> None:
    rng, call = np.random.default_rng(1), drawn()
    nope, rope = rng.standard_normal((2, 3, 5, 8)), call["query_rope"]
    W, V = (rng.standard_normal((3, 8, 6)) for _ in range(2))
    absorbed = call | {"query": np.einsum("bhnd,hde->bhne", nope, W)}
    output, lse = attention(**absorbed, scale=12**-0.5)
    shared = np.repeat(call["key_rope"][:, None], 3, axis=1)
    key, value = (np.einsum("bme,hde->bhmd", call["latent"], x) for x in (W, V))
    heads = np.concatenate([nope, rope], -1), np.concatenate([key, shared], -1), value
    found = np.einsum("bhne,hde->bhnd", output, V), lse
    assert all_close(found, spec.grouped_attention(*heads))


def times_zero(name: str) -> Function:
    """Twin: 0 times what stands in hidden keys."""
    return answering(LATENT, lambda found, **x: (found[0] + 0 * x[name].sum(), found[1]))


@clause(LATENT, 6, false=[
    times_zero("latent"), times_zero("key_rope"), given(LATENT, lambda **_: {"lengths": None}),
    given(LATENT, lambda **_: {"window": None}), given(LATENT, lambda **_: {"causal": False}),
])  # fmt: skip
def a_hidden_key_is_absent(attention: Function) -> None:
    call = level(1.0, 3.0, 5.0, np.nan, lengths=np.array([3]))
    call["key_rope"][:, 3] = np.nan
    assert close(attention(**call)[0].item(), 3.0)
    assert close(attention(**call, window=(1, None))[0].item(), 4.0)
    assert close(attention(**call, causal=True, offset=np.array([1]))[0].item(), 2.0)


def as_narrow(found: Any, query: ndarray, **_: Any) -> Any:
    return tuple(x.astype(query.dtype) for x in found)


def nothing_as(output: float, lse: float) -> Function:
    """Twin: other numbers where a row sees nothing."""

    def change(found: Any, sink: Any = None, **_: Any) -> Any:
        empty = found[1] == (-np.inf if sink is None else sink[:, None])
        return np.where(empty[..., None], output, found[0]), np.where(empty, lse, found[1])

    return answering(LATENT, change)


@clause(LATENT, 7, false=[
    given(LATENT, lambda **_: {"soft_cap": None}), given(LATENT, lambda **_: {"sink": None}),
    nothing_as(np.nan, -np.inf), nothing_as(0.0, np.inf), answering(LATENT, as_narrow),
])  # fmt: skip
def cap_sink_and_empty_rows_are_those_of_grouped_attention(attention: Function) -> None:
    from attnverify.catalogue.operation import CATALOGUE

    numbers = {"soft_cap": 1.5, "sink": np.array([0.5, -np.inf, 2.0]), "scale": 0.75}
    call = drawn()
    q = np.concatenate([call["query"], call["query_rope"]], -1)
    k = np.concatenate([call["latent"], call["key_rope"]], -1)
    wanted = spec.grouped_attention(q, k[:, None], call["latent"][:, None], **numbers)
    assert all_close(attention(**call, **numbers), wanted)
    output, lse = attention(**level(1.0, lengths=np.array([0])))
    assert (output.item(), lse.item()) == (0.0, -np.inf)
    assert attention(**level(1.0, lengths=np.array([0]), sink=np.array([3.0])))[1].item() == 3.0
    arrays = {name: x for name, x in level(1.0).items() if name != "scale"}
    half = {name: x.astype(np.float16) for name, x in arrays.items()}
    assert close(attention(**half, scale=1.0, sink=np.array([1000.25]))[1].item(), 1000.25, 1e-7)
    assert CATALOGUE[LATENT].dtype_of_output(1, "float16") == "float32"


# the gradient


def arriving(d_output: float, d_lse: float, call: Call) -> Call:
    """The same at every row."""
    at_output = np.full(call["query"].shape, d_output)
    return {"d_output": at_output, "d_lse": np.full(at_output.shape[:3], d_lse)} | call


def of_one_group(call: Call) -> Any:
    """The gradients of the same call as one group of heads whose values are an array of its own."""
    parts = [call[name] for name in ("query", "query_rope", "latent", "key_rope")]
    q, k = np.concatenate(parts[:2], -1), np.concatenate(parts[2:], -1)
    others = {name: x for name, x in call.items() if name not in ("query", *PARTS)}
    return spec.grouped_attention_grad(query=q, key=k[:, None], value=parts[2][:, None], **others)


def received(index: int) -> Function:
    """Twin: the latent receives as keys (1) or as values (2) alone."""

    def alone(found: Any, **call: Any) -> Any:
        by_latent = of_one_group(call)[index][:, 0, :, : call["latent"].shape[-1]]
        return *found[:2], by_latent, *found[3:]

    return answering(BACK, alone)


@clause(BACK, 1, false=[received(1), received(2)])
def the_latent_receives_as_keys_and_as_values(gradient: Function) -> None:
    call = arriving(1.0, 0.5, drawn(scale=0.5))
    _, by_key, by_value = of_one_group(call)
    assert close(gradient(**call)[2], by_key[:, 0, :, :6] + by_value[:, 0])


def of_last_head(at: int) -> Function:
    """Twin: what all heads share receives from the last one alone."""

    def alone(found: Any, d_output: ndarray, d_lse: ndarray, **call: Any) -> Any:
        last = np.arange(d_lse.shape[1]) == d_lse.shape[1] - 1
        arriving = {"d_output": d_output * last[:, None, None], "d_lse": d_lse * last[:, None]}
        part = spec.latent_attention_grad(**arriving, **call)[at]
        return *found[:at], part, *found[at + 1 :]

    return answering(BACK, alone)


@clause(BACK, 2, false=[of_last_head(2), of_last_head(3)])
def what_heads_share_receives_their_sum(gradient: Function) -> None:
    call = arriving(1.0, 0.5, drawn(scale=0.5))
    by_heads = ("d_output", "d_lse", "query", "query_rope")
    apart = [
        gradient(**call | {name: call[name][:, h : h + 1] for name in by_heads}) for h in range(3)
    ]
    found = gradient(**call)
    for shared in (2, 3):
        assert close(found[shared], sum(head[shared] for head in apart))


def position_in_values(found: Any, d_output: ndarray, **_: Any) -> Any:
    """Twin: the position receives what arrives at the output, as if it were a value."""
    return *found[:3], found[3] + d_output.sum((1, 2))[:, None, : found[3].shape[-1]]


def position_unscaled(found: Any, scale: float, **_: Any) -> Any:
    return found[0], found[1] / scale, found[2], found[3] / scale


@clause(BACK, 3, false=[answering(BACK, position_in_values), answering(BACK, position_unscaled)])
def the_position_receives_through_the_scores(gradient: Function) -> None:
    call = arriving(1.0, 0.5, drawn(scale=0.5))
    by_query, by_key, _ = of_one_group(call)
    found = gradient(**call)
    assert all_close([found[1], found[3]], [by_query[..., 6:], by_key[:, 0, :, 6:]])
    level_values = call | {"latent": 0 * call["latent"] + 1.0, "d_lse": 0 * call["d_lse"]}
    assert np.abs(gradient(**level_values)[3]).max() < 1e-12


def lse_to_values(found: Any, d_lse: ndarray, **_: Any) -> Any:
    """Twin: the lse handed on to the values, evenly."""
    evenly = d_lse.sum((1, 2))[:, None, None] / found[2].shape[1]
    return *found[:2], found[2] + evenly, *found[3:]


def without_sink(found: Any, **_: Any) -> Any:
    return *found[:-1], 0 * found[-1]


@clause(BACK, 4, false=[
    answering(BACK, lse_to_values), answering(BACK, without_sink),
    given(BACK, lambda d_lse, **_: {"d_lse": 0 * d_lse}),
    given(BACK, lambda **_: {"soft_cap": None}),
])  # fmt: skip
def the_lse_reaches_the_latent_as_the_keys(gradient: Function) -> None:
    numbers = {"soft_cap": 1.5, "sink": np.array([0.5, -np.inf, 2.0]), "scale": 0.75}
    call = arriving(0.0, 0.5, drawn(**numbers))
    by_query, by_key, by_value, by_sink = of_one_group(call)
    assert not by_value.any()
    found = gradient(**call)
    assert all_close(found[:2], [by_query[..., :6], by_query[..., 6:]])
    assert all_close(found[2:], [by_key[:, 0, :, :6], by_key[:, 0, :, 6:], by_sink])


def times_zero_back(name: str, at: int) -> Function:
    """Twin: 0 times what stands in hidden keys, or in rows that see none."""

    def leaking(found: Any, **call: Any) -> Any:
        return *found[:at], found[at] + 0 * call[name].sum(), *found[at + 1 :]

    return answering(BACK, leaking)


@clause(BACK, 5, false=[
    times_zero_back("latent", 0), times_zero_back("key_rope", 1), times_zero_back("query", 2),
    times_zero_back("query_rope", 3), given(BACK, lambda **_: {"lengths": None}),
])  # fmt: skip
def what_takes_no_part_receives_nothing(gradient: Function) -> None:
    call = arriving(3.0, 5.0, level(1.0, 2.0, np.nan, lengths=np.array([1])))
    call["key_rope"][:, 2] = np.nan
    d_query, d_rope, d_latent, d_position = gradient(**call)
    assert np.isfinite([d_query, d_rope]).all()
    assert not d_latent[:, 1:].any() and not d_position[:, 1:].any()
    for name in ("query", "query_rope"):
        call[name] = call[name] + np.nan
    assert not any(x.any() for x in gradient(**call | {"lengths": np.array([0])}))
