"""The backward passes of layers: those of their attention between the gradients of projections."""

from typing import Any

from numpy import ndarray

from tests.rounding_variants.gradients import (
    dot_parts,
    mask_gradient,
    score_gradient,
    weight_gradient,
)
from tests.rounding_variants.machine import Machine
from tests.rounding_variants.scores import masked_scores

Inputs = dict[str, Any]


def self_attention_gradient(
    at: Machine, d_output: ndarray, x: ndarray, parameters: Inputs, mask: ndarray | None = None
) -> tuple[Any, ...]:
    names, x = ("w_query", "w_key", "w_value"), at.read(x)
    weights = {name: at.read(parameters[name]) for name in names}
    q, k, v = (at.stage(at.product(x, weights[name].T)) for name in names)
    inputs = {"query": q, "key": k, "value": v, "d_output": d_output, "mask": mask}
    dS, dV = score_gradient(at, masked_scores(at, q, k, mask), inputs)
    dQ, dK = dot_parts(at, dS, inputs)
    d_projected = [at.stage(d) for d in (dQ, dK, dV)]
    total, d_weights = None, {}
    for name, d in zip(names, d_projected, strict=True):
        if at.order.addend == "first" and total is not None:
            total = at.stage(at.product(d, weights[name], total))
        else:
            part = at.stage(at.product(d, weights[name]))
            total = part if total is None else at.stage(total + part)
        d_weights[name] = at.out(at.stage(weight_gradient(at, d, x)))
    assert total is not None
    d_parameters = {name: d_weights[name] for name in parameters}
    rest = tuple(at.out(d) for d in mask_gradient(at, dS, inputs))
    return at.out(total), d_parameters, *rest


LAYER_GRADIENTS = {"self_attention_grad": self_attention_gradient}
