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
from attnverify.faults.changes import with_outputs
from attnverify.faults.registry import add_faults, fault
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


def tf32_linear(x: ndarray, parameters: Any, name: str) -> ndarray:
    return layers.linear(
        tf32(x),
        {key: tf32(part) if key.endswith("weight") else part for key, part in parameters.items()},
        name,
    )


def half_exp(score: ndarray, visible: ndarray) -> ndarray:
    top = np.where(visible, score, attention.HIDDEN).max(axis=-1, keepdims=True)
    shifted = np.where(visible, score - np.where(top == attention.HIDDEN, 0, top), 0)
    return attention.weigh(shifted.astype(np.float16).astype(np.float64), visible)


def power_of_two(log2_e: float) -> Any:
    return lambda score, visible: attention.weigh(score * (log2_e * np.log(2)), visible)


@fault("numerics", "an output that is cut off instead of rounded",
       source="this project", clause=CLAIM, reveals="float16, bfloat16", raw=True,
       wrong_in=("float16", "bfloat16"))  # fmt: skip
def scaled_dot_product_attention_truncated(**given: Any) -> Any:
    dtype = given["query"].dtype
    exact = attention.scaled_dot_product_attention(**map_leaves(widened, given))
    stored = exact.astype(dtype)
    beyond = np.abs(stored.astype(np.float64)) > np.abs(exact)
    return np.where(beyond, np.nextafter(stored, np.zeros_like(stored)), stored)


@fault("numerics", "subnormal outputs flushed", source="this project", clause=CLAIM,
       reveals="values around the smallest normal number", raw=True)  # fmt: skip
def scaled_dot_product_attention_flushed(**given: Any) -> Any:
    exact = attention.scaled_dot_product_attention(**map_leaves(widened, given))
    return np.where(np.abs(exact) < tiny(given["query"].dtype.name), 0, exact)


def bfloat16_biases(query: ndarray, key: ndarray) -> ndarray:
    H, M = query.shape[1], key.shape[2]
    biases = round_to(attention.get_slopes(H)[:, None, None] * np.arange(M), "bfloat16")
    return attention.scaled_dot_product_score(query, key) + biases


def one_pass(x: ndarray, weight: ndarray, bias: Any, eps: float) -> ndarray:
    half, mean = x.astype(np.float16), x.mean(axis=-1, keepdims=True)
    squares = (half * half).mean(axis=-1, keepdims=True)
    variance = np.maximum(
        squares.astype(np.float64) - mean.astype(np.float16).astype(np.float64) ** 2, 0
    )
    y = weight * (x - mean) / np.sqrt(variance + eps)
    return y if bias is None else y + bias


@fault("numerics", "angles in float16", source="this project",
       clause="sinusoidal_positions", reveals="M > 20")  # fmt: skip
def sinusoidal_positions_half_angles(M: int, F: int) -> Any:
    angle = (
        np.multiply.outer(np.arange(M)[::-1], 1e4 ** (-2 * np.arange(F // 2) / F))
        .astype(np.float16)
        .astype(np.float64)
    )
    return np.concatenate([np.sin(angle), np.cos(angle)], axis=-1)


def bfloat16_partials(weights: ndarray, visible: ndarray, value: ndarray) -> ndarray:
    first = np.arange(weights.shape[-1]) < (weights.shape[-1] + 1) // 2
    parts = [
        attention.mix(np.where(half, weights, 0), visible & half, value) for half in (first, ~first)
    ]
    return round_to(parts[0], "bfloat16") + round_to(parts[1], "bfloat16")


add_faults("numerics", (
    ("scaled_dot_product_attention_half_sums", "products summed in float16",
     "metal-flash-attention #8", CLAIM, "products near 65504; many terms",
     {"products": half_products}),
    ("transformer_xl_score_half_sums", "products summed in float16", "metal-flash-attention #8",
     CLAIM, "products near 65504; many terms", {"products": half_products}),
    ("scaled_dot_product_score_tf32", "TF32 products", "triton #1821", CLAIM, "float32",
     {"products": lambda q, k: tf32(q) @ tf32(k).mT}, {"wrong_in": FINE}),
    ("scaled_dot_product_attention_bfloat16_weights", "weights in bfloat16", "this project",
     CLAIM, "two weights that matter", {"weigh": rounded_weigh("bfloat16")}),
    ("alibi_attention_bfloat16_weights", "weights in bfloat16", "this project", CLAIM,
     "two weights that matter", {"weigh": rounded_weigh("bfloat16")}),
    ("scaled_dot_product_attention_grad_bfloat16_weights",
     "weights in bfloat16 on their way into the value's gradient", "this project", CLAIM,
     "two weights that matter", {"weigh": rounded_weigh("bfloat16")}),
    ("learned_relative_attention_bfloat16_scores", "scores in bfloat16", "this project", CLAIM,
     "scores of several units",
     {"weigh": lambda s, v: attention.weigh(round_to(s, "bfloat16"), v)}),
    ("additive_attention_bfloat16_scores", "scores in bfloat16", "this project", CLAIM,
     "scores of several units",
     {"weigh": lambda s, v: attention.weigh(round_to(s, "bfloat16"), v)}),
    ("softmax_five_digits", "exp as 2^(1.4427 x)", "this project", CLAIM, "scores far apart",
     {"weigh": power_of_two(1.4427)}, {"wrong_in": FINE}),
    ("softmax_three_digits", "exp as 2^(1.44 x)", "this project", CLAIM, "scores far apart",
     {"weigh": power_of_two(1.44)}),
    ("transformer_xl_attention_three_digits", "exp as 2^(1.44 x)", "this project", CLAIM,
     "scores far apart", {"weigh": power_of_two(1.44)}),
    ("scaled_dot_product_attention_bfloat16_scale", "a scale of bfloat16", "this project", CLAIM,
     "D no power of four, scores of several units",
     {"scale": lambda D: float(round_to(np.array(attention.inverse_root(D)), "bfloat16"))}),
    ("get_slopes_bfloat16", "slopes in bfloat16", "llm-foundry commit fbfdf68f1", "get_slopes",
     "H no power of two", lambda n_heads: round_to(attention.get_slopes(n_heads), "bfloat16"),
     {"wrong_in": ("float64", "float32", "float16")}),
    ("get_alibi_biases_float16", "counts in float16", "this project", "get_alibi_biases",
     "H no power of two",
     lambda **given: attention.get_alibi_biases(**given).astype(np.float16).astype(np.float64),
     {"wrong_in": ("float64", "float32", "bfloat16")}),
    ("transformer_xl_layer_bfloat16_residual", "a residual in bfloat16", "this project", CLAIM,
     "any", {"residual": lambda x, y: x + round_to(y, "bfloat16")}),
    ("additive_score_fast_tanh", "a tanh with an error of 2^-11", "PTX tanh.approx", CLAIM, "any",
     {"bend": lambda z: np.tanh(z) * (1 + 2.0 ** (-11) * np.cos(40 * z))}),
    ("dropout_half_factor", "a division by 1 - p in float16", "this project",
     "dropout: w / (1 - p)", "p other than 0.5 or 0.75",
     {"drop": lambda w, keep, p: np.where(True if keep is None else keep, w * float(np.float16(1 /
      (1 - p))), 0)}, {"wrong_in": ("float64", "float32", "float16")}),
    ("scaled_dot_product_attention_tf32", "TF32 products", "triton #1821", CLAIM, "float32",
     lambda **given: attention.scaled_dot_product_attention( **given, products=lambda q, k:
     tf32(q) @ tf32(k).mT ), {"wrong_in": FINE}),
    ("multi_head_attention_tf32", "TF32 projections", "triton #1821", CLAIM,
     "numbers between the projections", {"linear": tf32_linear}),
    ("alibi_attention_grad_bfloat16_score", "the score's gradient in bfloat16", "this project",
     CLAIM, "several keys", lambda **given: gradients.alibi_attention_grad(**given,
     score_grad=lambda *parts: round_to(gradients.score_grad(*parts), "bfloat16"))),
    ("softmax_half_exp", "exp of a float16 argument", "this project", CLAIM,
     "scores of several units", {"weigh": half_exp}),
    ("alibi_attention_bfloat16_slopes", "slopes in bfloat16", "llm-foundry commit fbfdf68f1",
     CLAIM, "H no power of two", lambda **given: attention.alibi_attention(**given, score=lambda q,
     k: attention.alibi_score(q, k, slopes=lambda H: round_to(attention.get_slopes(H),
     "bfloat16") ))),
    ("alibi_attention_bfloat16_biases", "absolute biases in bfloat16",
     "TensorRT-Model-Connect #667", CLAIM, "many keys", {"score": bfloat16_biases}),
    ("transformer_xl_layer_one_pass",
     "a variance as the mean of squares minus the square of the mean, in float16", "this project",
     CLAIM, "a mean far from 0", {"norm": one_pass}),
    ("learned_relative_attention_bfloat16_partials", "partial results of split keys in bfloat16",
     "this project", CLAIM, "M > 1", {"mix": bfloat16_partials}),
    ("transformer_xl_bfloat16_output", "an output half of which passed through bfloat16",
     "this project", CLAIM, "a finer dtype than bfloat16",
     with_outputs(layers.transformer_xl, {0: lambda y, x: (round_to(y, "bfloat16") + y) / 2}),
     {"wrong_in": ("float64", "float32", "float16")}),
))  # fmt: skip
