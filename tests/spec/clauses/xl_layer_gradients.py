"""Clauses of the gradient of the layer of Transformer-XL."""

from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.spec import layers, projections
from tests.spec.clauses.multi_head_gradients import are_derivatives, present_as_it_is
from tests.spec.clauses.projections import B, F, N
from tests.spec.clauses.registry import Function, answering, clause, patched
from tests.spec.clauses.xl_layer import LAYER, S, given_to_the_norm, layer_call
from tests.spec.derivatives import derivative
from tests.support.random_arrays import close, normals

Inputs = dict[str, Any]
GRADIENT = f"{LAYER}_grad"
ARRIVING = normals((B, N, F), seed=3)[0]


def at_the_norm(d_output: ndarray, parameters: Inputs, eps: float = 1e-5, **call: Any) -> ndarray:
    """What arrives at the sum of x and the attention."""
    y = given_to_the_norm(parameters=parameters, **call)
    return projections.layer_norm_grad(d_output, y, parameters, eps)[0]


def without_the_residual(found: Any, **inputs: Any) -> Any:
    return found[0] - at_the_norm(**inputs), *found[1:]


def the_residual_alone(found: Any, **inputs: Any) -> Any:
    return at_the_norm(**inputs), *found[1:]


def unnormed_residual(found: Any, d_output: ndarray, **inputs: Any) -> Any:
    d_y = at_the_norm(d_output=d_output, **inputs)
    return found[0] - d_y + d_output, *found[1:]


@clause(
    GRADIENT,
    1,
    false=[
        answering(GRADIENT, without_the_residual),
        answering(GRADIENT, the_residual_alone),
        answering(GRADIENT, unnormed_residual),
    ],
)
def the_residual_hands_on_beside_the_attention(gradient: Function) -> None:
    call = layer_call()
    found = gradient(d_output=ARRIVING, **call)
    assert close(found[0], derivative(LAYER, call, "x", ARRIVING))
    silent = call["parameters"] | {"o_net.weight": np.zeros((F, F))}
    alone = gradient(d_output=ARRIVING, **call | {"parameters": silent})
    assert close(alone[0], at_the_norm(ARRIVING, **call | {"parameters": silent}))


def memory_with_a_gradient(found: Any, mem: ndarray, **_: Any) -> Any:
    return *found[:-1], found[-1] + 1e-30 * mem


def of_the_memory_as_of_x(found: Any, mem: ndarray, d_output: ndarray, **inputs: Any) -> Any:
    """Twin: no stop."""
    call = inputs | {"mem": mem}
    return *found[:-1], derivative(LAYER, call, "mem", d_output)


def segment_alone(x: ndarray, visible: ndarray) -> ndarray:
    """Twin of ``present``: the memory's keys give nothing to qkv_net."""
    return np.where(np.arange(x.shape[1])[:, None] < S, 0.0, x)


def queries_of_the_memory(found: Any, mem: ndarray, parameters: Inputs, **_: Any) -> Any:
    more = np.zeros_like(parameters["qkv_net.weight"])
    more[:F] = mem.sum(axis=(0, 1))
    net = found[2]["qkv_net.weight"] + more
    return *found[:2], found[2] | {"qkv_net.weight": net}, *found[3:]


def the_memory_is_a_constant(gradient: Function) -> None:
    found = gradient(d_output=ARRIVING, **layer_call())
    assert len(found) == 4 and found[3].shape == (B, S, F) and not found[3].any()


clause(
    LAYER,
    4,
    by=GRADIENT,
    false=[
        answering(GRADIENT, memory_with_a_gradient),
        answering(GRADIENT, of_the_memory_as_of_x),
    ],
)(the_memory_is_a_constant)


@clause(
    GRADIENT,
    2,
    false=[
        answering(GRADIENT, memory_with_a_gradient),
        answering(GRADIENT, of_the_memory_as_of_x),
        answering(GRADIENT, queries_of_the_memory),
        patched(GRADIENT, layers, "present", segment_alone),
    ],
)
def keys_of_the_memory_have_their_part_in_qkv_net(gradient: Function) -> None:
    the_memory_is_a_constant(gradient)
    call = layer_call()
    found = gradient(d_output=ARRIVING, **call)
    assert are_derivatives(LAYER, found, call, ("x", "position"), ARRIVING)


def of_the_unseen_too(found: Any, mem: ndarray, **_: Any) -> Any:
    net = found[2]["qkv_net.weight"] + mem[:, :1].sum(axis=(0, 1))
    return *found[:2], found[2] | {"qkv_net.weight": net}, *found[3:]


@clause(
    GRADIENT,
    3,
    false=[
        patched(GRADIENT, layers, "present", present_as_it_is),
        answering(GRADIENT, of_the_unseen_too),
    ],
)
def a_key_of_the_memory_that_no_query_sees_is_absent(gradient: Function) -> None:
    call = layer_call(visible=np.arange(N + S) > 0)
    for number in (np.nan, 7.0):
        call["mem"][:, 0] = number
        found = gradient(d_output=ARRIVING, **call)
        cut = call | {"mem": call["mem"][:, 1:], "position": call["position"][1:]}
        wanted = gradient(d_output=ARRIVING, **cut | {"visible": None})
        assert close(found[0], wanted[0]) and close(found[1][1:], wanted[1])
        assert all(close(found[2][name], by) for name, by in wanted[2].items())


def not_fed(d_output: ndarray, x: ndarray, parameters: Inputs, eps: float) -> Any:
    """Twin of the feed-forward's gradient: what arrives goes to the first norm as it is."""
    right = projections.feed_forward_grad(d_output, x, parameters, eps)
    return d_output, right[1]


def sloped_at_zero(d_y: ndarray, x: ndarray) -> ndarray:
    return np.where(x < 0, 0.0, d_y)


def half_at_zero(d_y: ndarray, x: ndarray) -> ndarray:
    return np.where(x == 0, d_y / 2, np.where(x < 0, 0.0, d_y))


@clause(
    GRADIENT,
    4,
    false=[
        patched(GRADIENT, layers, "feed_forward_grad", not_fed),
        patched(GRADIENT, projections, "relu_grad", sloped_at_zero),
        patched(GRADIENT, projections, "relu_grad", half_at_zero),
    ],
)
def what_arrives_at_the_norm_comes_through_the_feed_forward(gradient: Function) -> None:
    call = layer_call(fed=True)
    call["parameters"]["ff_in.weight"][0], call["parameters"]["ff_in.bias"][0] = 0.0, 0.0
    found = gradient(d_output=ARRIVING, **call)
    assert are_derivatives(LAYER, found, call, ("x", "position"), ARRIVING)
    assert not found[2]["ff_in.weight"][0].any() and found[2]["ff_in.bias"][0] == 0
