"""The backward passes of layers: those of their attention between the gradients of projections."""

from typing import Any

import numpy as np
from numpy import ndarray

from tests.rounding_variants.attention import weighted
from tests.rounding_variants.gradients import (
    dot_parts,
    learned_parts,
    mask_gradient,
    score_gradient,
    weight_gradient,
)
from tests.rounding_variants.layers import LABML, TABLES, merge_heads, projected, split_heads
from tests.rounding_variants.machine import Machine
from tests.rounding_variants.scores import (
    alibi_bias,
    bias_of,
    dot_scores,
    hide,
    learned_scores,
    masked_scores,
)

Inputs = dict[str, Any]


def self_attention_gradient(
    at: Machine,
    d_output: ndarray,
    x: ndarray,
    parameters: Inputs,
    mask: ndarray | None = None,
    keep: ndarray | None = None,
    p: float = 0.0,
) -> tuple[Any, ...]:
    names, x = ("w_query", "w_key", "w_value"), at.read(x)
    weights = {name: at.read(parameters[name]) for name in names}
    q, k, v = (at.stage(at.product(x, weights[name].T)) for name in names)
    inputs = {"query": q, "key": k, "value": v, "d_output": d_output, "mask": mask}
    inputs |= {"keep": keep, "p": p}
    dS, dV = score_gradient(at, masked_scores(at, q, k, mask), inputs)
    dQ, dK = dot_parts(at, dS, inputs)
    d_projected = [at.stage(d) for d in (dQ, dK, dV)]
    total = added_products(at, d_projected, list(weights.values()))
    d_weights = {
        name: at.out(at.stage(weight_gradient(at, d, x)))
        for name, d in zip(names, d_projected, strict=True)
    }
    d_parameters = {name: d_weights[name] for name in parameters}
    rest = tuple(at.out(d) for d in mask_gradient(at, dS, inputs))
    return at.out(total), d_parameters, *rest


def linear_gradient(
    at: Machine, d: ndarray, x: ndarray, parameters: Inputs, name: str
) -> tuple[ndarray, dict[str, ndarray]]:
    """The gradients of x W^T + b by x, not rounded yet, and by weight and bias."""
    found = {f"{name}.weight": at.out(at.stage(weight_gradient(at, d, x)))}
    if parameters.get(f"{name}.bias") is not None:
        axes = (0, 1) if at.order.addend == "first" else 0
        each = d if at.order.addend == "first" else at.join(at.sum(d, 1))
        found[f"{name}.bias"] = at.out(at.stage(at.sum(each, axes)))
    return at.product(d, at.read(parameters[f"{name}.weight"])), found


def heads_gradient(
    at: Machine,
    d_output: ndarray,
    inputs: Inputs,
    s: ndarray,
    parameters: Inputs,
    name: str,
    products: Any = dot_parts,
    own: tuple[str, ...] = (),
) -> tuple[ndarray, list[ndarray], dict[str, ndarray]]:
    """
    dS, what arrives behind the three projections, and the gradients of the output projection and of
    what the score has of its own.
    """
    o = at.stage(weighted(at, s, inputs["value"], inputs["keep"], inputs["p"])[0])
    d_heard, found = linear_gradient(at, at.read(d_output), merge_heads(o), parameters, name)
    d_heads = split_heads(at.stage(d_heard), s.shape[1])
    dS, dV = score_gradient(at, s, inputs | {"d_output": d_heads, "kept": at.P.stage})
    dQ, dK, *d_own = products(at, dS, inputs)
    found |= {name: at.out(at.stage(d)) for name, d in zip(own, d_own, strict=True)}
    return dS, [at.stage(merge_heads(d)) for d in (dQ, dK, dV)], found


def seen_alone(x: ndarray, s: ndarray) -> ndarray:
    """Keys or values, 0 for those that no query of any head sees."""
    return np.where((s > -np.inf).any((1, 2))[..., None], x, 0).astype(x.dtype)


def multi_head_gradient(
    at: Machine,
    d_output: ndarray,
    d_weights: ndarray,
    query: ndarray,
    key: ndarray,
    value: ndarray,
    parameters: Inputs,
    num_heads: int,
    attn_mask: ndarray | None = None,
    key_padding_mask: ndarray | None = None,
    keep: ndarray | None = None,
    p: float = 0.0,
    self_attention: bool = False,
) -> tuple[Any, ...]:
    pairs = {"q_proj": query, "k_proj": key, "v_proj": value}
    q, k, v = projected(at, pairs, parameters, num_heads)
    mask = attn_mask
    if mask is not None:
        mask = mask.reshape(-1, num_heads if mask.ndim == 3 else 1, *mask.shape[-2:])
        mask = ~mask if mask.dtype == bool else mask
    s = hide(at, dot_scores(at, q, k, bias_of(at, mask)), mask)
    s = s if key_padding_mask is None else hide(at, s, ~key_padding_mask[:, None, None, :])
    inputs = {"query": q, "key": k, "value": v, "d_weights": d_weights, "mask": mask}
    inputs |= {"keep": keep, "p": p}
    dS, d_heads, found = heads_gradient(at, d_output, inputs, s, parameters, "out_proj")
    d_inputs, grads = inputs_gradient(at, d_heads, pairs, parameters, s)
    found |= grads
    d_parameters = {name: found[name] for name in parameters}
    rest = (at.out(d).reshape(attn_mask.shape) for d in mask_gradient(at, dS, inputs))
    if self_attention:
        weights = [parameters[f"{name}.weight"] for name in pairs]
        return at.out(added_products(at, d_heads, weights)), d_parameters, *rest
    return *d_inputs, d_parameters, *rest


def inputs_gradient(
    at: Machine, d_heads: list[ndarray], pairs: Inputs, parameters: Inputs, s: ndarray
) -> tuple[list[ndarray], dict[str, ndarray]]:
    """The gradients by query, key and value, and by their projections."""
    query, key, value = pairs.values()
    xs = at.read(query), seen_alone(at.read(key), s), seen_alone(at.read(value), s)
    d_inputs, found = [], {}
    for name, x, d in zip(pairs, xs, d_heads, strict=True):
        d_x, grads = linear_gradient(at, d, x, parameters, name)
        d_inputs.append(at.out(at.stage(d_x)))
        found |= grads
    return d_inputs, found


def relative_gradient(
    at: Machine,
    d_output,
    query,
    key,
    value,
    parameters,
    num_heads,
    align,
    visible=None,
    keep=None,
    p=0.0,
) -> tuple[Any, ...]:  # type: ignore[no-untyped-def]
    pairs = dict(zip(LABML, (query, key, value), strict=True))
    q, k, v = projected(at, pairs, parameters, num_heads)
    tables = {name: parameters[name] for name in TABLES}
    s = learned_scores(at, q, k, *tables.values(), align, visible)
    inputs = {"query": q, "key": k, "value": v, "align": align, "keep": keep, "p": p} | tables
    return labml_gradient(at, d_output, inputs, s, pairs, parameters, learned_parts, TABLES)


def alibi_gradient(
    at: Machine, d_output, query, key, value, parameters, num_heads, visible, keep=None, p=0.0
) -> tuple[Any, ...]:  # type: ignore[no-untyped-def]
    pairs = dict(zip(LABML, (query, key, value), strict=True))
    q, k, v = projected(at, pairs, parameters, num_heads)
    bias = alibi_bias(at, num_heads, np.cumsum(visible, -1))
    s = hide(at, dot_scores(at, q, k, bias), visible)
    inputs = {"query": q, "key": k, "value": v, "keep": keep, "p": p}
    return labml_gradient(at, d_output, inputs, s, pairs, parameters)


def labml_gradient(
    at: Machine,
    d_output: ndarray,
    inputs: Inputs,
    s: ndarray,
    pairs: Inputs,
    parameters: Inputs,
    *own: Any,
) -> tuple[Any, ...]:
    _, d_heads, found = heads_gradient(at, d_output, inputs, s, parameters, "output", *own)
    d_inputs, grads = inputs_gradient(at, d_heads, pairs, parameters, s)
    found |= grads
    return *d_inputs, {name: found[name] for name in parameters}


def added_products(at: Machine, factors: list[ndarray], weights: list[ndarray]) -> ndarray:
    """The sum of d W over several projections: product by product, or one on top of the other."""
    total = None
    for d, weight in zip(factors, weights, strict=True):
        if at.order.addend == "first" and total is not None:
            total = at.stage(at.product(d, at.read(weight), total))
        else:
            part = at.stage(at.product(d, at.read(weight)))
            total = part if total is None else at.stage(total + part)
    assert total is not None
    return total


def multi_head_self_gradient(
    at: Machine, d_output: ndarray, d_weights: ndarray, x: ndarray, *rest: Any, **more: Any
) -> tuple[Any, ...]:
    return multi_head_gradient(at, d_output, d_weights, x, x, x, *rest, **more, self_attention=True)


LAYER_GRADIENTS = {
    "self_attention_grad": self_attention_gradient,
    "multi_head_attention_grad": multi_head_gradient,
    "multi_head_self_attention_grad": multi_head_self_gradient,
    "relative_multi_head_attention_grad": relative_gradient,
    "alibi_multi_head_attention_grad": alibi_gradient,
}
