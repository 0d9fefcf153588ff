"""Faults of the layers: projections, biases, the residual and the norm."""

from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.faults.changes import with_outputs
from attnverify.faults.registry import add_faults, fault
from attnverify.reference import layers
from attnverify.reference.layers import layer_norm

NORM = "transformer_xl_layer, clause 3"


def without(parameters: Any, *names: str) -> Any:
    return {name: x for name, x in parameters.items() if name not in names}


def without_bias(output: ndarray, given: Any) -> ndarray:
    """Zeros where a row sees no key."""
    _, weights = layers.multi_head_attention(**given)
    return np.where((weights == 0).all(axis=(1, 3))[..., None], 0, output)


def norm_by(variance: Any, x: ndarray, weight: ndarray, bias: Any, eps: float) -> ndarray:
    y = weight * (x - x.mean(axis=-1, keepdims=True)) / variance(x, eps)
    return y if bias is None else y + bias


@fault("layers", "the last layer left out", source="this project",
       clause="transformer_xl: h_L", reveals="L > 1")  # fmt: skip
def transformer_xl_one_layer_less(parameters: Any, **given: Any) -> Any:
    hidden, _ = layers.transformer_xl(
        parameters=parameters[: max(len(parameters) - 1, 1)], **given | {"mems": None}
    )
    return hidden, layers.transformer_xl(parameters=parameters, **given)[1]


add_faults("layers", (
    ("multi_head_attention_without_output_bias", "no bias on the output", "this project",
     "multi_head_attention, clause 1", "out_proj.bias",
     lambda parameters, **given: layers.multi_head_attention(parameters=without(parameters,
      "out_proj.bias"), **given)),
    ("multi_head_self_attention_without_value_bias", "no bias on the values", "this project",
     "multi_head_attention, clause 1", "v_proj.bias",
     lambda parameters, **given: layers.multi_head_self_attention(parameters=without(parameters,
      "v_proj.bias"), **given)),
    ("multi_head_attention_one_projection", "keys projected by the query's matrix",
     "this project", "multi_head_attention, clause 1", "any",
     lambda parameters, **given: layers.multi_head_attention(parameters=parameters |
      {"k_proj.weight": parameters["q_proj.weight"]}, **given)),
    ("multi_head_attention_values_from_keys", "values projected from the keys",
     "onnxruntime PR #16721", "multi_head_attention", "value other than key",
     lambda value, key, **given: layers.multi_head_attention(value=key, key=key, **given)),
    ("relative_multi_head_attention_without_value_bias", "no bias on the values", "this project",
     "relative_multi_head_attention, clause 1", "value.linear.bias",
     lambda parameters, **given:
      layers.relative_multi_head_attention(parameters=without(parameters, "value.linear.bias"),
      **given)),
    ("alibi_multi_head_attention_without_query_bias", "no bias on the queries", "this project",
     "alibi_multi_head_attention, clause 1", "query.linear.bias",
     lambda parameters, **given: layers.alibi_multi_head_attention(parameters=without(parameters,
      "query.linear.bias"), **given)),
    ("transformer_xl_layer_without_residual", "no residual", "this project", NORM, "any",
     {"residual": lambda x, y: y}),
    ("transformer_xl_other_eps", "the eps of another library",
     "Keras, LayerNormalization's epsilon of 1e-3", NORM, "eps 1e-5, a small variance",
     lambda eps, **given: layers.transformer_xl(eps=0.001, **given)),
    ("transformer_xl_layer_without_norm_bias", "no bias of the norm", "this project",
     "transformer_xl_layer, clause 1", "layer_norm.bias",
     {"norm": lambda x, weight, bias, eps: layer_norm(x, weight, None, eps)}),
    ("transformer_xl_shared_parameters", "layer 0's parameters for all layers", "this project",
     "transformer_xl, clause 1", "L > 1",
     lambda parameters, **given: layers.transformer_xl(parameters=[parameters[0]] *
      len(parameters), **given)),
    ("relative_multi_head_attention_output_transposed", "a matrix that is not transposed",
     "this project", "weights as in torch.nn.Linear", "F > 1", lambda parameters, **given:
     layers.relative_multi_head_attention(parameters=parameters | {"output.weight":
     parameters["output.weight"].T}, **given)),
    ("self_attention_values_by_key_matrix", "values by the matrix of the keys where it fits",
     "this project", "self_attention", "K = E", lambda parameters, **given:
     layers.self_attention(parameters=parameters | {"w_value": parameters["w_key"]}
     if parameters["w_key"].shape == parameters["w_value"].shape else parameters, **given)),
    ("transformer_xl_layer_norm_first", "the norm before the residual", "this project", NORM,
     "any", lambda x, parameters, **given: x + layers.transformer_xl_layer(x,
     parameters=parameters, **given, residual=lambda x, y: y)),
    ("transformer_xl_layer_sample_variance", "a variance that divides by F - 1", "this project",
     "layer_norm, clause 1", "any", lambda **given: layers.transformer_xl_layer( **given,
     norm=partial( norm_by, lambda x, eps: np.sqrt( x.var(axis=-1, keepdims=True)
     * x.shape[-1] / max(x.shape[-1] - 1, 1) + eps ), ), )),
    ("transformer_xl_layer_eps_outside", "eps beside the root", "this project", NORM, "eps 1e-3",
     lambda **given: layers.transformer_xl_layer(**given, norm=partial(norm_by, (lambda x, eps:
     x.std(axis=-1, keepdims=True) + eps)))),
    ("multi_head_attention_empty_rows_zero",
     "zeros instead of the bias where a row sees no key", "this project",
     "multi_head_attention, clause 4", "a row that sees no key, biases",
     with_outputs(layers.multi_head_attention, {0: without_bias})),
))  # fmt: skip
