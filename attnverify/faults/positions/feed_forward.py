"""Faults of the position-wise feed-forward in a Transformer-XL layer, forward and backward."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.operation import CATALOGUE
from attnverify.conventions.references import reference_of
from attnverify.faults.changes import where_given, with_outputs, with_parts
from attnverify.faults.registry import OURS, add_faults
from attnverify.reference import layers as staged
from attnverify.reference.layers import feed_forward, layer_norm

CLAUSE, BACKWARD = "transformer_xl_layer, clause 6", "transformer_xl_layer_grad, clause 4"
FED = "a feed-forward"
LAYER = "transformer_xl_layer_grad"
Given = dict[str, Any]


def layer(given: Given, **changed: Any) -> Any:
    """A layer whose feed-forward differs in these stages."""
    return staged.transformer_xl_layer(**given, feed=partial(feed_forward, **changed))


def layer_with(given: Given, change: Callable[[Given], Given]) -> Any:
    """A layer whose feed-forward sees other parameters."""

    return staged.transformer_xl_layer(
        **given, feed=lambda x, parameters, eps: feed_forward(x, change(parameters), eps)
    )


def feed_normed_first(x: ndarray, parameters: Given, eps: float) -> ndarray:
    normed: ndarray = feed_forward(x, parameters, eps, residual=lambda x, y: y)
    return x + normed


def feed_pre_norm(x: ndarray, parameters: Given, eps: float) -> ndarray:
    normed = layer_norm(x, parameters["ff_norm.weight"], parameters.get("ff_norm.bias"), eps)
    unchanged = {"residual": lambda x, y: y, "norm": lambda y, *rest: y}
    return x + feed_forward(normed, parameters, eps, **unchanged)


def turned(p: Given) -> Given:
    """The first map's weight not transposed where it is square."""
    weight = p["ff_in.weight"]
    return p | {"ff_in.weight": weight.T} if weight.shape[0] == weight.shape[1] else p


def of_first_layer(parameters: Any, given: Given) -> Any:
    """The first layer's feed-forward in all layers."""
    first = {name: x for name, x in parameters[0].items() if name.startswith("ff_")}
    return [each | first for each in parameters]


def half_of_inner(d: Any, given: Given) -> Any:
    """Half of the gradient by the first map in the last layer."""
    half = {name: x / 2 for name, x in d[-1].items() if name == "ff_in.weight"}
    return [*d[:-1], d[-1] | half]


# backward


def feed_backward(
    d_output: ndarray,
    x: ndarray,
    p: Given,
    eps: float,
    slope: Callable[[ndarray], ndarray] = lambda a: a > 0,
    residual: float = 1.0,
) -> tuple[ndarray, Given]:
    """The backward pass of a feed-forward, with another derivative or without its residual."""
    a = staged.linear(x, p, "ff_in")
    r = np.maximum(a, 0)
    z = x + staged.linear(r, p, "ff_out")
    centred = z - z.mean(-1, keepdims=True)
    root = np.sqrt((centred**2).mean(-1, keepdims=True) + eps)
    n, d_n = centred / root, d_output * p["ff_norm.weight"]
    mean, along = d_n.mean(-1, keepdims=True), (n * d_n).mean(-1, keepdims=True)
    d_z = (d_n - mean - n * along) / root
    d_a = (d_z @ p["ff_out.weight"]) * slope(a)
    found = {
        "ff_in.weight": np.einsum("bni,bnf->if", d_a, x),
        "ff_in.bias": d_a.sum((0, 1)),
        "ff_out.weight": np.einsum("bnf,bni->fi", d_z, r),
        "ff_out.bias": d_z.sum((0, 1)),
        "ff_norm.weight": (d_output * n).sum((0, 1)),
        "ff_norm.bias": d_output.sum((0, 1)),
    }
    return residual * d_z + d_a @ p["ff_in.weight"], found


def layer_backward(given: Given, **changed: Any) -> Any:
    """The gradients of a layer whose feed-forward goes back in another way."""
    parameters, right = given["parameters"], CATALOGUE[LAYER].reference
    if "ff_in.weight" not in parameters:
        return right(**given)
    rest = {name: x for name, x in parameters.items() if not name.startswith("ff_")}
    forward = {name: x for name, x in given.items() if name != "d_output"} | {"parameters": rest}
    x = staged.transformer_xl_layer(**forward)
    d_x, grads = feed_backward(given["d_output"], x, parameters, given["eps"], **changed)
    d_inputs = right(**given | {"parameters": rest, "d_output": d_x})
    grads |= d_inputs[2]
    return *d_inputs[:2], {name: grads[name] for name in parameters}, *d_inputs[3:]


add_faults("layers", (
    ("transformer_xl_layer_without_relu", "no ReLU between the two maps", OURS, CLAUSE, FED,
     lambda **given: layer(given, activation=lambda a: a)),
    ("transformer_xl_layer_leaky_relu", "a ReLU that lets 1 % through below 0", OURS, CLAUSE, FED,
     lambda **given: layer(given, activation=lambda a: np.maximum(a, a / 100))),
    ("transformer_xl_layer_feed_without_residual", "no residual around the two maps", OURS,
     CLAUSE, FED, lambda **given: layer(given, residual=lambda x, y: y)),
    ("transformer_xl_layer_without_inner_bias", "no inner bias", OURS, CLAUSE, f"{FED}, biases",
     lambda **given: layer_with(given, lambda p: {n: x for n, x in p.items() if n !=
      "ff_in.bias"})),
    ("transformer_xl_layer_without_outer_bias", "no bias of the second map", OURS, CLAUSE,
     f"{FED}, biases",
     lambda **given: layer_with(given, lambda p: {n: x for n, x in p.items() if n !=
      "ff_out.bias"})),
    ("transformer_xl_layer_one_norm_for_both", "the second norm by the parameters of the first",
     OURS, CLAUSE, FED,
     lambda **given: layer_with(given, lambda p: p | {"ff_norm.weight": p["layer_norm.weight"]})),
    ("transformer_xl_layer_gelu", "GELU in place of the ReLU", "BERT, modeling.py", CLAUSE, FED,
     lambda **given: layer( given, activation=lambda a: a / 2 * (1 + np.tanh(np.sqrt(2 / np.pi)
     * (a + 0.044715 * a**3))), )),
    ("transformer_xl_layer_feed_normed_first", "the feed-forward normed before its residual", OURS,
     CLAUSE, FED, {"feed": feed_normed_first}),
    ("transformer_xl_layer_feed_pre_norm", "a feed-forward of what was normed again",
     "kimiyoung/transformer-xl, pre_lnorm", CLAUSE, FED, {"feed": feed_pre_norm}),
    ("transformer_xl_layer_second_eps", "the eps of another library in the second norm",
     "Keras, LayerNormalization's epsilon of 1e-3", CLAUSE, f"{FED}, eps 1e-5", lambda **given:
     staged.transformer_xl_layer( **given, feed=lambda x, parameters, eps: feed_forward(x,
     parameters, 1e-3) )),
    ("transformer_xl_layer_inner_transposed",
     "the first map's weight not transposed where it is square", OURS,
     "weights as in torch.nn.Linear", f"{FED} with I = F > 1",
     lambda **given: layer_with(given, turned)),
    ("transformer_xl_shared_feed_forward", "the first layer's feed-forward in all layers", OURS,
     "transformer_xl, clause 1", f"{FED}, L > 1",
     where_given(staged.transformer_xl, parameters=of_first_layer)),
))  # fmt: skip


add_faults("backward", (
    ("transformer_xl_layer_grad_relu_at_zero", "the derivative of the ReLU taken for 1 at 0",
     "TensorFlow Playground #19", BACKWARD, f"{FED} with an inner unit that is given 0",
     lambda **given: layer_backward(given, slope=lambda a: a >= 0)),
    ("transformer_xl_layer_grad_relu_half_at_zero",
     "the derivative of the ReLU taken for a half at 0", "jax #37821", BACKWARD,
     f"{FED} with an inner unit that is given 0",
     lambda **given: layer_backward(given, slope=lambda a: (a > 0) + (a == 0) / 2)),
    ("transformer_xl_layer_grad_through_relu", "the ReLU left out on the way back", OURS,
     BACKWARD, FED, lambda **given: layer_backward(given, slope=np.ones_like)),
    ("transformer_xl_layer_grad_feed_without_residual",
     "the gradient through the feed-forward's residual left out", OURS, BACKWARD, FED,
     lambda **given: layer_backward(given, residual=0.0)),
    ("transformer_xl_layer_grad_without_outer_bias", "no gradient of the second map's bias", OURS,
     BACKWARD, f"{FED}, biases",
     with_parts(lambda **given: layer_backward(given), 2, lambda d, x: {name: 0 * d[name] for name
      in {"ff_out.bias"} & d.keys()})),
    ("transformer_xl_grad_half_of_inner",
     "half of the gradient by the first map in the last layer", OURS,
     "transformer_xl_grad, clause 1", FED,
     with_outputs(reference_of("transformer_xl_grad"), {1: half_of_inner})),
))  # fmt: skip
