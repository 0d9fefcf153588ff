"""
Facts about operations.
"""

from attnverify.spec import layers

EXACT = frozenset(
    {"causal_mask", "merge_masks", "shift_right", "rel_shift", "init_mems", "update_mems"}
)

CHAPTERS = ("scores", "masks", "attention", "shifts", "relative", "alibi", "memory", "layers")
DTYPES = ("float64", "float32", "float16", "bfloat16")
ASPECTS = ("values", "gradients", "refusals", "side effects", "hidden NaN")
"""The columns of a verdict."""

WITHOUT_FLOATS = frozenset(
    {"get_slopes", "sinusoidal_positions", "init_mems", "get_alibi_biases", "merge_masks"}
)
"""Operations whose result is float though no input need be: they take a keyword ``dtype``."""

LAYER_PARAMETERS = {
    "self_attention": "w_query [K F], w_key [K F], w_value [E F]",
    "multi_head_attention": layers.MULTI_HEAD,
    "multi_head_self_attention": layers.MULTI_HEAD,
    "relative_multi_head_attention": layers.RELATIVE,
    "alibi_multi_head_attention": layers.ALIBI,
    "transformer_xl_layer": layers.TRANSFORMER_XL,
    "transformer_xl": layers.TRANSFORMER_XL,
}


SCALAR_ARGUMENT_SIZES = {
    "n_heads": "H",
    "num_heads": "H",
    "N": "N",
    "M": "M",
    "F": "F",
    "n_layers": "L",
    "batch": "B",
    "width": "F",
}
CAUSAL = frozenset(
    {"transformer_xl_attention", "alibi_attention", "transformer_xl_layer", "transformer_xl"}
)
SQUARE = frozenset({"self_attention", "multi_head_self_attention", "alibi_multi_head_attention"})
WITHOUT_ARRAY_INPUTS = frozenset({"causal_mask", "get_slopes", "sinusoidal_positions", "init_mems"})
"""Operations that are given no array: what is drawn for them are sizes, and many of them."""

STAGED = (
    *(
        "scaled_dot_product_score",
        "additive_score",
        "transformer_xl_score",
        "learned_relative_score",
        "softmax",
    ),
    *("additive_attention", "scaled_dot_product_attention", "alibi_attention"),
    *("transformer_xl_attention", "learned_relative_attention"),
)
"""The operations that consist of these stages; the gradients of the attentions do as well."""
