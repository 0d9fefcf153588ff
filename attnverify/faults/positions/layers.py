"""Faults of the layers: projections, biases, the residual and the norm."""

from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.faults.registry import fault
from attnverify.reference import layers
from attnverify.reference.layers import layer_norm

NORM = "transformer_xl_layer, clause 3"


def without(parameters: Any, *names: str) -> Any:
    return {name: x for name, x in parameters.items() if name not in names}


@fault(
    "layers",
    "no bias on the output",
    source="this project",
    clause="multi_head_attention, clause 1",
    reveals="out_proj.bias",
)
def multi_head_attention_without_output_bias(parameters: Any, **given: Any) -> Any:
    return layers.multi_head_attention(parameters=without(parameters, "out_proj.bias"), **given)


@fault(
    "layers",
    "no bias on the values",
    source="this project",
    clause="multi_head_attention, clause 1",
    reveals="v_proj.bias",
)
def multi_head_self_attention_without_value_bias(parameters: Any, **given: Any) -> Any:
    return layers.multi_head_self_attention(parameters=without(parameters, "v_proj.bias"), **given)


@fault(
    "layers",
    "zeros instead of the bias where a row sees no key",
    source="this project",
    clause="multi_head_attention, clause 4",
    reveals="a row that sees no key, biases",
)
def multi_head_attention_empty_rows_zero(**given: Any) -> Any:
    output, weights = layers.multi_head_attention(**given)
    return np.where((weights == 0).all(axis=(1, 3))[..., None], 0, output), weights


@fault(
    "layers",
    "keys projected by the query's matrix",
    source="this project",
    clause="multi_head_attention, clause 1",
    reveals="any",
)
def multi_head_attention_one_projection(parameters: Any, **given: Any) -> Any:
    return layers.multi_head_attention(
        parameters=parameters | {"k_proj.weight": parameters["q_proj.weight"]}, **given
    )


@fault(
    "layers",
    "values projected from the keys",
    source="onnxruntime PR #16721",
    clause="multi_head_attention",
    reveals="value other than key",
)
def multi_head_attention_values_from_keys(value: ndarray, key: ndarray, **given: Any) -> Any:
    return layers.multi_head_attention(value=key, key=key, **given)


@fault(
    "layers",
    "a matrix that is not transposed",
    source="this project",
    clause="weights as in torch.nn.Linear",
    reveals="F > 1",
)
def relative_multi_head_attention_output_transposed(parameters: Any, **given: Any) -> Any:
    turned = parameters | {"output.weight": parameters["output.weight"].T}
    return layers.relative_multi_head_attention(parameters=turned, **given)


@fault(
    "layers",
    "no bias on the values",
    source="this project",
    clause="relative_multi_head_attention, clause 1",
    reveals="value.linear.bias",
)
def relative_multi_head_attention_without_value_bias(parameters: Any, **given: Any) -> Any:
    return layers.relative_multi_head_attention(
        parameters=without(parameters, "value.linear.bias"), **given
    )


@fault(
    "layers",
    "no bias on the queries",
    source="this project",
    clause="alibi_multi_head_attention, clause 1",
    reveals="query.linear.bias",
)
def alibi_multi_head_attention_without_query_bias(parameters: Any, **given: Any) -> Any:
    return layers.alibi_multi_head_attention(
        parameters=without(parameters, "query.linear.bias"), **given
    )


@fault(
    "layers",
    "values by the matrix of the keys where it fits",
    source="this project",
    clause="self_attention",
    reveals="K = E",
)
def self_attention_values_by_key_matrix(x: Any, parameters: Any, mask: Any = None) -> Any:
    same = parameters["w_key"].shape == parameters["w_value"].shape
    return layers.self_attention(
        x, parameters | {"w_value": parameters["w_key"]} if same else parameters, mask
    )


@fault("layers", "no residual", source="this project", clause=NORM, reveals="any")
def transformer_xl_layer_without_residual(**given: Any) -> Any:
    return layers.transformer_xl_layer(**given, residual=lambda x, y: y)


@fault("layers", "the norm before the residual", source="this project", clause=NORM, reveals="any")
def transformer_xl_layer_norm_first(x: ndarray, parameters: Any, **given: Any) -> Any:
    normed = layers.transformer_xl_layer(x, parameters=parameters, **given, residual=lambda x, y: y)
    return x + normed


def norm_by(variance: Any) -> Any:
    def norm(x: ndarray, weight: ndarray, bias: Any, eps: float) -> ndarray:
        y = weight * (x - x.mean(axis=-1, keepdims=True)) / variance(x, eps)
        return y if bias is None else y + bias

    return norm


@fault(
    "layers",
    "a variance that divides by F - 1",
    source="this project",
    clause="layer_norm, clause 1",
    reveals="any",
)
def transformer_xl_layer_sample_variance(**given: Any) -> Any:
    def deviation(x: ndarray, eps: float) -> ndarray:
        return np.sqrt(x.var(axis=-1, keepdims=True) * x.shape[-1] / max(x.shape[-1] - 1, 1) + eps)

    return layers.transformer_xl_layer(**given, norm=norm_by(deviation))


@fault("layers", "eps beside the root", source="this project", clause=NORM, reveals="eps 1e-3")
def transformer_xl_layer_eps_outside(**given: Any) -> Any:
    deviation = lambda x, eps: x.std(axis=-1, keepdims=True) + eps
    return layers.transformer_xl_layer(**given, norm=norm_by(deviation))


@fault(
    "layers",
    "the eps of another library",
    source="Keras, LayerNormalization's epsilon of 1e-3",
    clause=NORM,
    reveals="eps 1e-5, a small variance",
)
def transformer_xl_other_eps(eps: float, **given: Any) -> Any:
    return layers.transformer_xl(eps=1e-3, **given)


@fault(
    "layers",
    "no bias of the norm",
    source="this project",
    clause="transformer_xl_layer, clause 1",
    reveals="layer_norm.bias",
)
def transformer_xl_layer_without_norm_bias(**given: Any) -> Any:
    return layers.transformer_xl_layer(
        **given, norm=lambda x, weight, bias, eps: layer_norm(x, weight, None, eps)
    )


@fault(
    "layers",
    "layer 0's parameters for all layers",
    source="this project",
    clause="transformer_xl, clause 1",
    reveals="L > 1",
)
def transformer_xl_shared_parameters(parameters: Any, **given: Any) -> Any:
    return layers.transformer_xl(parameters=[parameters[0]] * len(parameters), **given)


@fault(
    "layers",
    "the last layer left out",
    source="this project",
    clause="transformer_xl: h_L",
    reveals="L > 1",
)
def transformer_xl_one_layer_less(parameters: Any, **given: Any) -> Any:
    hidden, _ = layers.transformer_xl(
        parameters=parameters[: max(len(parameters) - 1, 1)], **given | {"mems": None}
    )
    return hidden, layers.transformer_xl(parameters=parameters, **given)[1]
