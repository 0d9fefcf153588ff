"""Faults of the gradients of layers."""

from typing import Any

import numpy as np

from attnverify.catalogue.operation import CATALOGUE
from attnverify.faults.registry import add_faults, fault

OURS = "this project"


def right(name: str, given: dict[str, Any]) -> Any:
    """What an operation should answer."""
    return CATALOGUE[name].reference(**given)


@fault("backward", "the gradient by the queries' projection doubled", source=OURS,
       clause="the gradients of the attention between the projections",
       reveals="more than one key")  # fmt: skip
def self_attention_grad_doubled_query(**given: Any) -> Any:
    d_x, d_parameters, *rest = right("self_attention_grad", given)
    d_parameters = d_parameters | {"w_query": 2 * d_parameters["w_query"]}
    return d_x, d_parameters, *rest


@fault("backward", "the gradient by x through queries and keys alone", source=OURS,
       clause="x is query, key and value: its gradient is the sum over the three",
       reveals="any input")  # fmt: skip
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


@fault("backward", "the weights' gradients averaged over the batch", source=OURS,
       clause="each in the shape of its parameter, summed over the batch",
       reveals="B > 1")  # fmt: skip
def self_attention_grad_mean_over_batch(**given: Any) -> Any:
    d_x, d_parameters, *rest = right("self_attention_grad", given)
    share = np.float64(1 / len(given["x"]))
    return d_x, {name: share * d for name, d in d_parameters.items()}, *rest


@fault("backward", "the gradient by the query doubled", source=OURS,
       clause="the gradients of the attention between the projections",
       reveals="more than one key")  # fmt: skip
def multi_head_attention_grad_doubled_query(**given: Any) -> Any:
    d_query, *rest = right("multi_head_attention_grad", given)
    return 2 * d_query, *rest


def parts_of_multi_head(given: dict[str, Any]) -> Any:
    """The gradients of query, key, value, of the parameters, and those of a mask as a list."""
    *inputs, d_parameters = (found := right("multi_head_attention_grad", given))[:4]
    return *inputs, d_parameters, found[4:]


@fault("backward",
       "the scale of the model width on the gradient by the keys' projection",
       source=OURS, clause="Head h has D columns; the scale is that of D",
       reveals="H > 1, more than one key")  # fmt: skip
def multi_head_attention_grad_scale_of_width(**given: Any) -> Any:
    *inputs, d_parameters, masks = parts_of_multi_head(given)
    share = 1 / np.sqrt(given["num_heads"])
    wrong = {"k_proj.weight": share * d_parameters["k_proj.weight"]}
    return *inputs, d_parameters | wrong, *masks


@fault("backward", "the biases' gradients of the first position alone", source=OURS,
       clause="the sum over batch and positions", reveals="biases, N > 1")  # fmt: skip
def multi_head_attention_grad_bias_of_first_position(**given: Any) -> Any:
    first = np.zeros_like(given["d_output"])
    first[:, :1] = given["d_output"][:, :1]
    *inputs, d_parameters, masks = parts_of_multi_head(given)
    name = "out_proj.bias"
    wrong = {name: first.sum((0, 1))} if name in d_parameters else {}
    return *inputs, d_parameters | wrong, *masks


@fault("backward",
       "the output projection's gradient with the heads in the order of the columns within a head",
       source=OURS, clause="Head h has the columns h D ... h D + D - 1",
       reveals="H > 1 and D > 1")  # fmt: skip
def multi_head_attention_grad_heads_interleaved(**given: Any) -> Any:
    *inputs, d_parameters, masks = parts_of_multi_head(given)
    d_weight, H = d_parameters["out_proj.weight"], given["num_heads"]
    turned = d_weight.reshape(len(d_weight), H, -1).swapaxes(1, 2).reshape(d_weight.shape)
    return *inputs, d_parameters | {"out_proj.weight": turned}, *masks


@fault("backward", "the gradient by x through the values alone", source=OURS,
       clause="x is query, key and value: its gradient is the sum over the three",
       reveals="more than one key")  # fmt: skip
def multi_head_self_attention_grad_value_alone(x: Any, **given: Any) -> Any:
    both = given | {"query": x, "key": x, "value": x}
    _, _, d_value, *rest = right("multi_head_attention_grad", both)
    return d_value, *rest


@fault("backward", "one gradient for the three projections, that of their sum",
       source=OURS,
       clause="and likewise for key and value, and for the other weights",
       reveals="any input")  # fmt: skip
def multi_head_self_attention_grad_shared_projection(**given: Any) -> Any:
    d_x, d_parameters, *rest = right("multi_head_self_attention_grad", given)
    names = [f"{name}_proj.weight" for name in "qkv"]
    shared = sum(d_parameters[name] for name in names) / 3
    return d_x, d_parameters | dict.fromkeys(names, shared), *rest


@fault("backward", "the tables' gradients of the first batch entry alone",
       source=OURS, clause="The gradients of the tables are those of the attention",
       reveals="B > 1, more than one key")  # fmt: skip
def relative_multi_head_attention_grad_tables_of_first_batch(**given: Any) -> Any:
    *inputs, d_parameters = right("relative_multi_head_attention_grad", given)
    first = np.zeros_like(given["d_output"])
    first[:1] = given["d_output"][:1]
    alone = right("relative_multi_head_attention_grad", given | {"d_output": first})[-1]
    tables = ("key_pos_embeddings", "key_pos_bias", "query_pos_bias")
    return *inputs, d_parameters | {name: alone[name] for name in tables}


@fault("backward", "the gradients by key and value exchanged", source=OURS,
       clause="by query, key, value and the parameters",
       reveals="more than one key")  # fmt: skip
def alibi_multi_head_attention_grad_exchanged(**given: Any) -> Any:
    d_query, d_key, d_value, d_parameters = right("alibi_multi_head_attention_grad", given)
    return d_query, d_value, d_key, d_parameters


@fault("backward", "the scores made again without the biases", source=OURS,
       clause="the gradients of the attention between the projections",
       reveals="more than one visible key")  # fmt: skip
def alibi_multi_head_attention_grad_without_biases(**given: Any) -> Any:
    *_, d_parameters = right("alibi_multi_head_attention_grad", given)
    names = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"}
    renamed = {
        name.replace(".linear", "").replace(old, new): x
        for name, x in given["parameters"].items()
        for old, new in names.items()
        if name.startswith(old)
    }
    (B, N, _), H = given["query"].shape, given["num_heads"]
    alike = {name: given[name] for name in ("d_output", "query", "key", "value", "num_heads")}
    more = {
        "parameters": renamed,
        "attn_mask": ~given["visible"],
        "d_weights": np.zeros((B, H, N, N)),
    }
    return *right("multi_head_attention_grad", alike | more)[:3], d_parameters


add_faults("backward", (
    ("multi_head_attention_grad_output_alone", "what arrives at the weights forgotten", OURS,
     "from what arrives at its weights", "more than one key",
     lambda **given: right("multi_head_attention_grad", given | {"d_weights": 0 *
      given["d_weights"]})),
))  # fmt: skip
