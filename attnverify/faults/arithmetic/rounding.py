"""
Faults of numerics: arithmetic that is coarser than what is claimed. Each claims "wide": computed
wide, rounded once.
"""

from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.dtypes import round_to, tiny
from attnverify.catalogue.pytrees import map_leaves
from attnverify.faults.adapter import widened
from attnverify.faults.registry import fault
from attnverify.reference import attention, gradients, layers

CLAIM = 'PRECISION = "wide"'
FINE = ("float64", "float32")


def rounded_weigh(dtype: str) -> Any:
    return lambda score, visible: round_to(attention.weigh(score, visible), dtype)


def tf32(x: ndarray) -> ndarray:
    """Ten bits behind the leading one."""
    mantissa, exponent = np.frexp(x)
    return np.ldexp(np.round(mantissa * 2**11) / 2**11, exponent)


def half_products(query: ndarray, key: ndarray) -> ndarray:
    """Inner products whose running sum is rounded to float16 at every step."""
    total = np.zeros((*query.shape[:-1], key.shape[-2]))
    for d in range(query.shape[-1]):
        total = (
            (total + query[..., :, None, d] * key[..., None, :, d])
            .astype(np.float16)
            .astype(np.float64)
        )
    return total


@fault(
    "numerics",
    "products summed in float16",
    source="metal-flash-attention #8",
    clause=CLAIM,
    reveals="products near 65504; many terms",
)
def scaled_dot_product_attention_half_sums(**given: Any) -> Any:
    return attention.scaled_dot_product_attention(**given, products=half_products)


@fault(
    "numerics",
    "products summed in float16",
    source="metal-flash-attention #8",
    clause=CLAIM,
    reveals="products near 65504; many terms",
)
def transformer_xl_score_half_sums(**given: Any) -> Any:
    return attention.transformer_xl_score(**given, products=half_products)


@fault(
    "numerics",
    "TF32 products",
    source="triton #1821",
    clause=CLAIM,
    reveals="float32",
    wrong_in=FINE,
)
def scaled_dot_product_attention_tf32(**given: Any) -> Any:
    return attention.scaled_dot_product_attention(
        **given, products=lambda q, k: tf32(q) @ tf32(k).mT
    )


@fault(
    "numerics",
    "TF32 products",
    source="triton #1821",
    clause=CLAIM,
    reveals="float32",
    wrong_in=FINE,
)
def scaled_dot_product_score_tf32(**given: Any) -> Any:
    return attention.scaled_dot_product_score(**given, products=lambda q, k: tf32(q) @ tf32(k).mT)


@fault(
    "numerics",
    "TF32 projections",
    source="triton #1821",
    clause=CLAIM,
    reveals="numbers between the projections",
)
def multi_head_attention_tf32(**given: Any) -> Any:
    def linear(x: ndarray, parameters: Any, name: str) -> ndarray:
        return layers.linear(
            tf32(x),
            {
                key: tf32(part) if key.endswith("weight") else part
                for key, part in parameters.items()
            },
            name,
        )

    return layers.multi_head_attention(**given, linear=linear)


@fault(
    "numerics",
    "weights in bfloat16",
    source="this project",
    clause=CLAIM,
    reveals="two weights that matter",
)
def scaled_dot_product_attention_bfloat16_weights(**given: Any) -> Any:
    return attention.scaled_dot_product_attention(**given, weigh=rounded_weigh("bfloat16"))


@fault(
    "numerics",
    "weights in bfloat16",
    source="this project",
    clause=CLAIM,
    reveals="two weights that matter",
)
def alibi_attention_bfloat16_weights(**given: Any) -> Any:
    return attention.alibi_attention(**given, weigh=rounded_weigh("bfloat16"))


@fault(
    "numerics",
    "weights in bfloat16 on their way into the value's gradient",
    source="this project",
    clause=CLAIM,
    reveals="two weights that matter",
)
def scaled_dot_product_attention_grad_bfloat16_weights(**given: Any) -> Any:
    return gradients.scaled_dot_product_attention_grad(**given, weigh=rounded_weigh("bfloat16"))


@fault(
    "numerics",
    "the score's gradient in bfloat16",
    source="this project",
    clause=CLAIM,
    reveals="several keys",
)
def alibi_attention_grad_bfloat16_score(**given: Any) -> Any:
    score_grad = lambda *parts: round_to(gradients.score_grad(*parts), "bfloat16")
    return gradients.alibi_attention_grad(**given, score_grad=score_grad)


@fault(
    "numerics",
    "scores in bfloat16",
    source="this project",
    clause=CLAIM,
    reveals="scores of several units",
)
def learned_relative_attention_bfloat16_scores(**given: Any) -> Any:
    return attention.learned_relative_attention(
        **given, weigh=lambda s, v: attention.weigh(round_to(s, "bfloat16"), v)
    )


@fault(
    "numerics",
    "scores in bfloat16",
    source="this project",
    clause=CLAIM,
    reveals="scores of several units",
)
def additive_attention_bfloat16_scores(**given: Any) -> Any:
    return attention.additive_attention(
        **given, weigh=lambda s, v: attention.weigh(round_to(s, "bfloat16"), v)
    )


@fault(
    "numerics",
    "exp of a float16 argument",
    source="this project",
    clause=CLAIM,
    reveals="scores of several units",
)
def softmax_half_exp(**given: Any) -> Any:
    def weigh(score: ndarray, visible: ndarray) -> ndarray:
        top = np.where(visible, score, attention.HIDDEN).max(axis=-1, keepdims=True)
        shifted = np.where(visible, score - np.where(top == attention.HIDDEN, 0, top), 0)
        return attention.weigh(shifted.astype(np.float16).astype(np.float64), visible)

    return attention.softmax(**given, weigh=weigh)


def power_of_two(log2_e: float) -> Any:
    return lambda score, visible: attention.weigh(score * (log2_e * np.log(2)), visible)


@fault(
    "numerics",
    "exp as 2^(1.4427 x)",
    source="this project",
    clause=CLAIM,
    reveals="scores far apart",
    wrong_in=FINE,
)
def softmax_five_digits(**given: Any) -> Any:
    return attention.softmax(**given, weigh=power_of_two(1.4427))


@fault(
    "numerics", "exp as 2^(1.44 x)", source="this project", clause=CLAIM, reveals="scores far apart"
)
def softmax_three_digits(**given: Any) -> Any:
    return attention.softmax(**given, weigh=power_of_two(1.44))


@fault(
    "numerics", "exp as 2^(1.44 x)", source="this project", clause=CLAIM, reveals="scores far apart"
)
def transformer_xl_attention_three_digits(**given: Any) -> Any:
    return attention.transformer_xl_attention(**given, weigh=power_of_two(1.44))


@fault(
    "numerics",
    "a scale of bfloat16",
    source="this project",
    clause=CLAIM,
    reveals="D no power of four, scores of several units",
)
def scaled_dot_product_attention_bfloat16_scale(**given: Any) -> Any:
    return attention.scaled_dot_product_attention(
        **given, scale=lambda D: float(round_to(np.array(attention.inverse_root(D)), "bfloat16"))
    )


@fault(
    "numerics",
    "an output that is cut off instead of rounded",
    source="this project",
    clause=CLAIM,
    reveals="float16, bfloat16",
    raw=True,
    wrong_in=("float16", "bfloat16"),
)
def scaled_dot_product_attention_truncated(**given: Any) -> Any:
    dtype = given["query"].dtype
    exact = attention.scaled_dot_product_attention(**map_leaves(widened, given))
    stored = exact.astype(dtype)
    beyond = np.abs(stored.astype(np.float64)) > np.abs(exact)
    return np.where(beyond, np.nextafter(stored, np.zeros_like(stored)), stored)


@fault(
    "numerics",
    "subnormal outputs flushed",
    source="this project",
    clause=CLAIM,
    reveals="values around the smallest normal number",
    raw=True,
)
def scaled_dot_product_attention_flushed(**given: Any) -> Any:
    exact = attention.scaled_dot_product_attention(**map_leaves(widened, given))
    return np.where(np.abs(exact) < tiny(given["query"].dtype.name), 0, exact)


@fault(
    "numerics",
    "slopes in bfloat16",
    source="llm-foundry commit fbfdf68f1",
    clause="get_slopes",
    reveals="H no power of two",
    wrong_in=("float64", "float32", "float16"),
)
def get_slopes_bfloat16(n_heads: int) -> Any:
    return round_to(attention.get_slopes(n_heads), "bfloat16")


@fault(
    "numerics",
    "slopes in bfloat16",
    source="llm-foundry commit fbfdf68f1",
    clause=CLAIM,
    reveals="H no power of two",
)
def alibi_attention_bfloat16_slopes(**given: Any) -> Any:
    score = lambda q, k: attention.alibi_score(
        q, k, slopes=lambda H: round_to(attention.get_slopes(H), "bfloat16")
    )
    return attention.alibi_attention(**given, score=score)


@fault(
    "numerics",
    "absolute biases in bfloat16",
    source="TensorRT-Model-Connect #667",
    clause=CLAIM,
    reveals="many keys",
)
def alibi_attention_bfloat16_biases(**given: Any) -> Any:
    def score(query: ndarray, key: ndarray) -> ndarray:
        H, M = query.shape[1], key.shape[2]
        biases = round_to(attention.get_slopes(H)[:, None, None] * np.arange(M), "bfloat16")
        return attention.scaled_dot_product_score(query, key) + biases

    return attention.alibi_attention(**given, score=score)


@fault(
    "numerics",
    "counts in float16",
    source="this project",
    clause="get_alibi_biases",
    reveals="H no power of two",
    wrong_in=("float64", "float32", "bfloat16"),
)
def get_alibi_biases_float16(**given: Any) -> Any:
    return attention.get_alibi_biases(**given).astype(np.float16).astype(np.float64)


@fault(
    "numerics",
    "a variance as the mean of squares minus the square of the mean, in float16",
    source="this project",
    clause=CLAIM,
    reveals="a mean far from 0",
)
def transformer_xl_layer_one_pass(**given: Any) -> Any:
    def norm(x: ndarray, weight: ndarray, bias: Any, eps: float) -> ndarray:
        half, mean = x.astype(np.float16), x.mean(axis=-1, keepdims=True)
        squares = (half * half).mean(axis=-1, keepdims=True)
        variance = np.maximum(
            squares.astype(np.float64) - mean.astype(np.float16).astype(np.float64) ** 2, 0
        )
        y = weight * (x - mean) / np.sqrt(variance + eps)
        return y if bias is None else y + bias

    return layers.transformer_xl_layer(**given, norm=norm)


@fault("numerics", "a residual in bfloat16", source="this project", clause=CLAIM, reveals="any")
def transformer_xl_layer_bfloat16_residual(**given: Any) -> Any:
    return layers.transformer_xl_layer(**given, residual=lambda x, y: x + round_to(y, "bfloat16"))


@fault(
    "numerics",
    "a tanh with an error of 2^-11",
    source="PTX tanh.approx",
    clause=CLAIM,
    reveals="any",
)
def additive_score_fast_tanh(**given: Any) -> Any:
    return attention.additive_score(
        **given, bend=lambda z: np.tanh(z) * (1 + 2.0**-11 * np.cos(40 * z))
    )


@fault(
    "numerics",
    "angles in float16",
    source="this project",
    clause="sinusoidal_positions",
    reveals="M > 20",
)
def sinusoidal_positions_half_angles(M: int, F: int) -> Any:
    angle = (
        np.multiply.outer(np.arange(M)[::-1], 1e4 ** (-2 * np.arange(F // 2) / F))
        .astype(np.float16)
        .astype(np.float64)
    )
    return np.concatenate([np.sin(angle), np.cos(angle)], axis=-1)


@fault(
    "numerics",
    "partial results of split keys in bfloat16",
    source="this project",
    clause=CLAIM,
    reveals="M > 1",
)
def learned_relative_attention_bfloat16_partials(**given: Any) -> Any:
    def mix(weights: ndarray, visible: ndarray, value: ndarray) -> ndarray:
        first = np.arange(weights.shape[-1]) < (weights.shape[-1] + 1) // 2
        parts = [
            attention.mix(np.where(half, weights, 0), visible & half, value)
            for half in (first, ~first)
        ]
        return round_to(parts[0], "bfloat16") + round_to(parts[1], "bfloat16")

    return attention.learned_relative_attention(**given, mix=mix)


@fault(
    "numerics",
    "a division by 1 - p in float16",
    source="this project",
    clause="dropout: w / (1 - p)",
    reveals="p other than 0.5 or 0.75",
    wrong_in=("float64", "float32", "float16"),
)
def dropout_half_factor(**given: Any) -> Any:
    return attention.dropout(
        **given,
        drop=lambda w, keep, p: np.where(
            True if keep is None else keep, w * float(np.float16(1 / (1 - p))), 0
        ),
    )


@fault(
    "numerics",
    "an output half of which passed through bfloat16",
    source="this project",
    clause=CLAIM,
    reveals="a finer dtype than bfloat16",
    wrong_in=("float64", "float32", "float16"),
)
def transformer_xl_bfloat16_output(x: ndarray, **given: Any) -> Any:
    hidden, mems = layers.transformer_xl(x, **given)
    return (round_to(hidden, "bfloat16") + hidden) / 2, mems
