"""Clauses of the layer of Transformer-XL."""

from typing import Any

import numpy as np
from numpy import ndarray

from attnverify import spec
from attnverify.spec import layers, projections
from tests.spec.clauses.projections import (
    B,
    D,
    F,
    H,
    N,
    drawn,
    in_heads,
    known_names_alone,
    linear,
    refuses_other_names,
    side_by_side,
    transposed,
    twins_of_dropout,
    without,
)
from tests.spec.clauses.registry import Function, clause, given, patched, refuses
from tests.support.random_arrays import close, normals

Inputs = dict[str, Any]
LAYER = "transformer_xl_layer"
S, INNER = 2, 5
SHAPES = {"qkv_net": (3 * F, F), "r_net": (F, F), "o_net": (F, F), "layer_norm": (F,)}
FED = {"ff_in": (INNER, F), "ff_out": (F, INNER), "ff_norm": (F,)}


def weights_of(shapes: dict[str, tuple[int, ...]], bias: bool = True, seed: int = 1) -> Inputs:
    found: Inputs = {}
    for place, (name, shape) in enumerate(shapes.items()):
        weight, shift = normals(shape, shape[:1], seed=10 * seed + place)
        found[f"{name}.weight"] = weight / np.sqrt(shape[-1])
        found |= {f"{name}.bias": shift} if bias else {}
    return found


def parameters_of(fed: bool = False, bias: bool = True, seed: int = 1) -> Inputs:
    u, v = normals((H, D), (H, D), seed=seed + 30)
    return weights_of(SHAPES | (FED if fed else {}), bias, seed) | {"u": u, "v": v}


def layer_call(fed: bool = False, bias: bool = True, memory: int = S, **options: Any) -> Inputs:
    x, mem = normals((B, N, F), (B, memory, F))
    inputs = {"x": x, "position": normals((N + memory, F), seed=4)[0], "num_heads": H}
    inputs |= {"mem": mem} if memory else {}
    return inputs | {"parameters": parameters_of(fed, bias)} | options


def normed(y: ndarray, parameters: Inputs, name: str, eps: float) -> ndarray:
    centred = y - y.mean(axis=-1, keepdims=True)
    spread = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + eps)
    shift = parameters.get(f"{name}.bias", 0.0)
    return parameters[f"{name}.weight"] * centred / spread + shift


def given_to_the_norm(
    x: ndarray,
    position: ndarray,
    parameters: Inputs,
    mem: Any = None,
    visible: Any = None,
    keep: Any = True,
    p: float = 0.0,
    **_: Any,
) -> ndarray:
    """The residual and what the attention adds to it."""
    keys = x if mem is None else np.concatenate([mem, x], axis=1)
    q, k, v = (in_heads(part) for part in np.split(linear(keys, parameters, "qkv_net"), 3, axis=-1))
    r = in_heads(linear(position, parameters, "r_net")[None])[0]
    q = q[:, :, -x.shape[1] :]
    score = spec.transformer_xl_score(q, k, r, parameters["u"], parameters["v"])
    causal = spec.causal_mask(*score.shape[-2:])
    weights = spec.softmax(score, causal if visible is None else causal & visible)
    attended = side_by_side(np.where(keep, weights / (1 - p), 0.0) @ v)
    return x + linear(attended, parameters, "o_net")


def formula(eps: float = 1e-5, **call: Any) -> ndarray:
    parameters = call["parameters"]
    y = normed(given_to_the_norm(**call), parameters, "layer_norm", eps)
    if "ff_in.weight" not in parameters:
        return y
    inner = np.maximum(linear(y, parameters, "ff_in"), 0.0)
    return normed(y + linear(inner, parameters, "ff_out"), parameters, "ff_norm", eps)


def in_another_order(*thirds: int) -> Function:
    """Twin: the rows of qkv_net are these of the three."""

    def change(parameters: Inputs, **_: Any) -> Inputs:
        moved = {
            name: np.concatenate([np.split(x, 3)[third] for third in thirds])
            for name, x in parameters.items()
            if name.startswith("qkv_net")
        }
        return {"parameters": parameters | moved}

    return change


def ones_where_absent(parameters: Inputs, **_: Any) -> Inputs:
    biases = {f"{name}.bias": np.ones(shape[0]) for name, shape in SHAPES.items()}
    return {"parameters": biases | parameters}


@clause(
    LAYER,
    1,
    false=[
        *[given(LAYER, in_another_order(*order)) for order in ((0, 2, 1), (1, 0, 2), (2, 1, 0))],
        given(LAYER, ones_where_absent),
        given(LAYER, known_names_alone(*parameters_of())),
        *[given(LAYER, transposed(f"{name}.weight")) for name in ("r_net", "o_net")],
        *[given(LAYER, without(f"{name}.bias")) for name in ("qkv_net", "o_net", "layer_norm")],
        given(
            LAYER,
            lambda parameters, **_: {
                "parameters": parameters | {"u": parameters["v"], "v": parameters["u"]}
            },
        ),
    ],
)
def rows_of_qkv_net_are_query_key_and_value(layer: Function) -> None:
    for call in (layer_call(), layer_call(bias=False)):
        assert close(layer(**call), formula(**call))
    assert refuses_other_names(layer, layer_call(), "qvk_net.weight")


def without_memory(position: ndarray, x: ndarray, **_: Any) -> Inputs:
    return {"mem": None, "position": position[-x.shape[1] :]}


def filled_up(position: ndarray, x: ndarray, mem: Any = None, **_: Any) -> Inputs:
    """Twin: positions of the segment alone are taken, zeros in front."""
    missing = x.shape[1] + (0 if mem is None else mem.shape[1]) - len(position)
    return {"position": np.pad(position, ((max(0, missing), 0), (0, 0)))}


def memory_behind(mem: ndarray, x: ndarray, **_: Any) -> Inputs:
    return {"mem": mem[:, ::-1]}


def queries_of_the_memory_too(**call: Any) -> ndarray:
    keys = np.concatenate([call.pop("mem"), call.pop("x")], axis=1)
    return spec.transformer_xl_layer(x=keys, **call)


@clause(
    LAYER,
    2,
    false=[
        given(LAYER, without_memory),
        given(LAYER, memory_behind),
        given(LAYER, filled_up),
        queries_of_the_memory_too,
    ],
)
def keys_come_from_memory_and_segment_and_queries_from_the_segment(layer: Function) -> None:
    call = layer_call()
    assert close(layer(**call), formula(**call))
    short = call | {"position": call["position"][-N:]}
    assert refuses(layer, "position: wanted", **short)


def before_the_attention(x: ndarray, position: ndarray, parameters: Inputs, **call: Any) -> ndarray:
    """Twin: pre-norm."""
    first = normed(x, parameters, "layer_norm", 1e-5)
    return x + given_to_the_norm(first, position, parameters, **call) - first


def normed_before_the_residual(x: ndarray, **call: Any) -> ndarray:
    attended = given_to_the_norm(x, **call) - x
    return x + normed(attended, call["parameters"], "layer_norm", call["eps"])


def by_the_sample(x: ndarray, weight: ndarray, bias: Any, eps: float) -> ndarray:
    """Twin of the norm: the variance divides by F - 1."""
    y = weight * (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True, ddof=1) + eps)
    return y if bias is None else y + bias


def outside_of_the_root(x: ndarray, weight: ndarray, bias: Any, eps: float) -> ndarray:
    y = weight * (x - x.mean(-1, keepdims=True)) / (x.std(-1, keepdims=True) + eps)
    return y if bias is None else y + bias


@clause(
    LAYER,
    3,
    false=[
        before_the_attention,
        normed_before_the_residual,
        patched(LAYER, layers, "layer_norm", by_the_sample),
        patched(LAYER, layers, "layer_norm", outside_of_the_root),
        given(LAYER, lambda **_: {"eps": 1e-5}),
    ],
)
def the_residual_is_added_before_the_norm(layer: Function) -> None:
    for eps in (0.0, 1e-3, 0.5):
        call = layer_call(eps=eps)
        wanted = normed(given_to_the_norm(**call), call["parameters"], "layer_norm", eps)
        assert close(layer(**call), wanted)


@clause(LAYER, 5, false=twins_of_dropout(LAYER))
def weights_of_the_layer_are_dropped_by_the_draw(layer: Function) -> None:
    call, whole = layer_call(), drawn(B, H, N, N + S)
    for keep in (whole, whole[0], whole[:, :1]):
        wanted = formula(**call, keep=keep, p=0.25)
        assert close(layer(**call, keep=keep, p=0.25), wanted)


def without_the_second_residual(x: ndarray, parameters: Inputs, eps: float) -> ndarray:
    inner = np.maximum(linear(x, parameters, "ff_in"), 0.0)
    return normed(linear(inner, parameters, "ff_out"), parameters, "ff_norm", eps)


def with_another_eps(x: ndarray, parameters: Inputs, eps: float) -> ndarray:
    return projections.feed_forward(x, parameters, 1e-5)


@clause(
    LAYER,
    6,
    false=[
        given(LAYER, known_names_alone(*parameters_of())),
        patched(LAYER, projections, "relu", lambda x: x * (x > -1)),
        patched(LAYER, layers, "feed_forward", without_the_second_residual),
        patched(LAYER, layers, "feed_forward", with_another_eps),
        given(LAYER, without("ff_in.bias")),
        given(LAYER, without("ff_out.bias")),
        given(LAYER, without("ff_norm.bias")),
    ],
)
def with_a_feed_forward_the_layer_goes_on(layer: Function) -> None:
    for bias in (True, False):
        call = layer_call(fed=True, bias=bias, eps=0.25)
        assert close(layer(**call), formula(**call))


def lacking_names_are_no_feed_forward(layer: Function) -> None:
    call = layer_call(fed=True)
    for name in ("ff_in.weight", "ff_out.weight", "ff_norm.weight"):
        some = {key: x for key, x in call["parameters"].items() if key != name}
        assert refuses(layer, "parameters: wanted", **call | {"parameters": some})


clause(LAYER, 6, false=given(LAYER, known_names_alone(*parameters_of())))(
    lacking_names_are_no_feed_forward
)
