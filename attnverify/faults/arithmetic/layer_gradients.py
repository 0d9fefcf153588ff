"""Faults of the gradients of layers."""

from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.conventions.references import reference_of as right
from attnverify.faults.changes import exchanged, first, with_outputs, with_parts
from attnverify.faults.registry import OURS, add_faults, fault
from attnverify.inputs.recipe import Inputs

SELF, MULTI_HEAD, RELATIVE, ALIBI = (
    right(f"{name}attention_grad")
    for name in ("self_", "multi_head_", "relative_multi_head_", "alibi_multi_head_")
)
QKV = [f"{name}_proj.weight" for name in "qkv"]
TABLES = ("key_pos_embeddings", "key_pos_bias", "query_pos_bias")


def without_value(d_x: ndarray, given: Inputs) -> ndarray:
    """The gradient by x less what comes through the values."""
    x, parameters = given["x"], given["parameters"]
    q, k, v = ((x @ parameters[f"w_{name}"].T)[:, None] for name in ("query", "key", "value"))
    mask = given.get("mask")
    mask = mask if mask is None or mask.ndim < 3 else mask[:, None]
    forward = {"query": q, "key": k, "value": v, "mask": mask}
    d = right("scaled_dot_product_attention_grad")(d_output=given["d_output"][:, None], **forward)
    return d_x - d[2][:, 0] @ parameters["w_value"]


def interleaved(d_weight: ndarray, H: int) -> ndarray:
    return d_weight.reshape(len(d_weight), H, -1).swapaxes(1, 2).reshape(d_weight.shape)


def tables_of_first_entry(d_parameters: Inputs, given: Inputs) -> Inputs:
    alone = RELATIVE(**given | {"d_output": first(1)(given["d_output"])})[-1]
    return {name: alone[name] for name in TABLES}


@fault("backward", "the scores made again without the biases", source=OURS,
       clause="the gradients of the attention between the projections",
       reveals="more than one visible key")  # fmt: skip
def alibi_multi_head_attention_grad_without_biases(**given: Any) -> Any:
    *_, d_parameters = ALIBI(**given)
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
    return *MULTI_HEAD(**alike | more)[:3], d_parameters


add_faults("backward", (
    ("multi_head_attention_grad_output_alone", "what arrives at the weights forgotten", OURS,
     "from what arrives at its weights", "more than one key",
     lambda **given: MULTI_HEAD(**given | {"d_weights": 0 * given["d_weights"]})),
    ("self_attention_grad_doubled_query", "the gradient by the queries' projection doubled", OURS,
     "the gradients of the attention between the projections", "more than one key",
     with_parts(SELF, 1, lambda d, x: {"w_query": 2 * d["w_query"]})),
    ("self_attention_grad_without_value", "the gradient by x through queries and keys alone", OURS,
     "x is query, key and value: its gradient is the sum over the three", "any input",
     with_outputs(SELF, {0: without_value})),
    ("self_attention_grad_mean_over_batch", "the weights' gradients averaged over the batch", OURS,
     "each in the shape of its parameter, summed over the batch", "B > 1",
     with_parts(SELF, 1, lambda d, x: {name: y * np.float64(1 / len(x["x"])) for name, y in
      d.items()})),
    ("multi_head_attention_grad_doubled_query", "the gradient by the query doubled", OURS,
     "the gradients of the attention between the projections", "more than one key",
     with_outputs(MULTI_HEAD, {0: lambda d, x: 2 * d})),
    ("multi_head_attention_grad_scale_of_width",
     "the scale of the model width on the gradient by the keys' projection", OURS,
     "Head h has D columns; the scale is that of D", "H > 1, more than one key",
     with_parts(MULTI_HEAD, 3, lambda d, x: {"k_proj.weight": d["k_proj.weight"] * (1 /
      np.sqrt(x["num_heads"]))})),
    ("multi_head_attention_grad_bias_of_first_position",
     "the biases' gradients of the first position alone", OURS,
     "the sum over batch and positions", "biases, N > 1",
     with_parts(MULTI_HEAD, 3, lambda d, x: {name: first(1, axis=1)(x["d_output"]).sum((0, 1))
      for name in {"out_proj.bias"} & d.keys()})),
    ("multi_head_attention_grad_heads_interleaved",
     "the output projection's gradient with the heads in the order of the columns within a head",
     OURS, "Head h has the columns h D ... h D + D - 1", "H > 1 and D > 1",
     with_parts(MULTI_HEAD, 3, lambda d, x: {"out_proj.weight":
      interleaved(d["out_proj.weight"], x["num_heads"])})),
    ("multi_head_self_attention_grad_value_alone", "the gradient by x through the values alone",
     OURS, "x is query, key and value: its gradient is the sum over the three",
     "more than one key",
     lambda x, **given: MULTI_HEAD(**given, query=x, key=x, value=x)[2:]),
    ("multi_head_self_attention_grad_shared_projection",
     "one gradient for the three projections, that of their sum", OURS,
     "and likewise for key and value, and for the other weights", "any input",
     with_parts(right("multi_head_self_attention_grad"), 1, lambda d, x: dict.fromkeys(QKV,
      sum(d[name] for name in QKV) / 3))),
    ("relative_multi_head_attention_grad_tables_of_first_batch",
     "the tables' gradients of the first batch entry alone", OURS,
     "The gradients of the tables are those of the attention", "B > 1, more than one key",
     with_parts(RELATIVE, 3, tables_of_first_entry)),
    ("alibi_multi_head_attention_grad_exchanged", "the gradients by key and value exchanged", OURS,
     "by query, key, value and the parameters", "more than one key", exchanged(ALIBI, 1, 2)),
))  # fmt: skip
