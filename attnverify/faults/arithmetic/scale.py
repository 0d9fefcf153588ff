"""Faults of the scale: forgotten, of another width, on more or on less than the score."""

from functools import partial
from math import sqrt
from typing import Any

from attnverify.faults.registry import add_faults, fault
from attnverify.reference import attention, layers
from attnverify.reference.attention import inverse_root

SCALE = "scaled_dot_product_score: q.k / sqrt(D)"


@fault("scale", "an additive score with the scale of a product",
       source="this project", clause="additive_score has no scale", reveals="Q > 1")  # fmt: skip
def additive_attention_scaled(query: Any, **given: Any) -> Any:
    def score(*inputs: Any) -> Any:
        return attention.additive_score(*inputs) * inverse_root(query.shape[-1])

    return attention.additive_attention(query, **given, score=score)


add_faults("scale", (
    ("transformer_xl_attention_power_five", "the scale 1 / D^5", "this project",
     "transformer_xl_score, clause 4", "D > 1",
     {"score": partial(attention.transformer_xl_score, scale=lambda D: 1.0 / D**5)}),
    ("learned_relative_attention_bias_unscaled", "the position bias beside the scale",
     "x-transformers commit 4d74795", "learned_relative_score, clause 5", "D > 1",
     lambda query, key_pos_bias, **given: attention.learned_relative_attention(query,
      key_pos_bias=key_pos_bias * sqrt(query.shape[-1]), **given)),
    ("scaled_dot_product_attention_scale_of_values", "the scale of the value width",
     "this project", SCALE, "E other than D",
     lambda value, **given: attention.scaled_dot_product_attention(value=value, **given,
      scale=lambda D: inverse_root(value.shape[-1]))),
    ("scaled_dot_product_score_padded_width", "the scale of a width padded to a multiple of 16",
     "this project", SCALE, "D no multiple of 16",
     {"scale": lambda D: inverse_root(-(-D // 16) * 16)}),
    ("self_attention_scale_of_model_width", "the scale of the model width", "this project",
     "self_attention, clause 2", "K other than F",
     lambda x, **given: layers.self_attention(x, **given, scale=lambda D:
      inverse_root(x.shape[-1]))),
    ("scaled_dot_product_attention_scaled_twice_when_wide",
     "keys that are scaled a second time beyond 64 columns", "this project", SCALE, "D > 64",
     {"scale": lambda D: inverse_root(D) ** (2 if D > 64 else 1)}),
))  # fmt: skip
