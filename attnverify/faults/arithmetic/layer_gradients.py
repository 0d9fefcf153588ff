"""Faults of the gradients of layers."""

from typing import Any

import numpy as np

from attnverify.catalogue.operation import CATALOGUE
from attnverify.faults.registry import fault

OURS = "this project"


def right(name: str, given: dict[str, Any]) -> Any:
    """What an operation should answer."""
    return CATALOGUE[name].reference(**given)


@fault(
    "backward",
    "the gradient by the queries' projection doubled",
    source=OURS,
    clause="the gradients of the attention between the projections",
    reveals="more than one key",
)
def self_attention_grad_doubled_query(**given: Any) -> Any:
    d_x, d_parameters, *rest = right("self_attention_grad", given)
    d_parameters = d_parameters | {"w_query": 2 * d_parameters["w_query"]}
    return d_x, d_parameters, *rest


@fault(
    "backward",
    "the gradient by x through queries and keys alone",
    source=OURS,
    clause="x is query, key and value: its gradient is the sum over the three",
    reveals="any input",
)
def self_attention_grad_without_value(**given: Any) -> Any:
    x, d_output, parameters = given["x"], given["d_output"], given["parameters"]
    d_x, *rest = right("self_attention_grad", given)
    names = ("query", "key", "value")
    q, k, v = ((x @ parameters[f"w_{name}"].T)[:, None] for name in names)
    mask = given.get("mask")
    mask = mask if mask is None or mask.ndim < 3 else mask[:, None]
    forward = {"query": q, "key": k, "value": v, "mask": mask}
    d_value = right("scaled_dot_product_attention_grad", {"d_output": d_output[:, None], **forward})
    return d_x - d_value[2][:, 0] @ parameters["w_value"], *rest


@fault(
    "backward",
    "the weights' gradients averaged over the batch",
    source=OURS,
    clause="each in the shape of its parameter, summed over the batch",
    reveals="B > 1",
)
def self_attention_grad_mean_over_batch(**given: Any) -> Any:
    d_x, d_parameters, *rest = right("self_attention_grad", given)
    share = np.float64(1 / len(given["x"]))
    return d_x, {name: share * d for name, d in d_parameters.items()}, *rest
