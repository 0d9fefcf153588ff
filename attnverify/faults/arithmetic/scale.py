"""Faults of the scale: forgotten, of another width, on more or on less than the score."""

from functools import partial
from math import sqrt
from typing import Any

from attnverify.faults.registry import fault
from attnverify.reference import attention, layers
from attnverify.reference.attention import inverse_root

SCALE = "scaled_dot_product_score: q.k / sqrt(D)"


@fault("scale", "no scale on the score", source="mlc-llm PR #3426", clause=SCALE, reveals="D > 1")
def scaled_dot_product_attention_unscaled(**given: Any) -> Any:
    return attention.scaled_dot_product_attention(**given, scale=lambda D: 1.0)


@fault(
    "scale",
    "the scale of the model width H D",
    source="speechbrain, RelPosMHAXL",
    clause=SCALE,
    reveals="H > 1",
)
def scaled_dot_product_attention_scale_of_model_width(query: Any, **given: Any) -> Any:
    return attention.scaled_dot_product_attention(
        query, **given, scale=lambda D: inverse_root(D * query.shape[1])
    )


@fault(
    "scale",
    "the scale 1 / D^5",
    source="this project",
    clause="transformer_xl_score, clause 4",
    reveals="D > 1",
)
def transformer_xl_attention_power_five(**given: Any) -> Any:
    return attention.transformer_xl_attention(
        **given, score=partial(attention.transformer_xl_score, scale=lambda D: 1.0 / D**5)
    )


@fault(
    "scale",
    "the float mask scaled with the score",
    source="tt-metal PR #42891",
    clause="softmax, clause 1",
    reveals="a finite float mask, D > 1",
)
def scaled_dot_product_attention_scaled_mask(query: Any, mask: Any = None, **given: Any) -> Any:
    if mask is not None and mask.dtype != bool:
        mask = mask * inverse_root(query.shape[-1])
    return attention.scaled_dot_product_attention(query, mask=mask, **given)


@fault(
    "scale",
    "the position bias beside the scale",
    source="x-transformers commit 4d74795",
    clause="learned_relative_score, clause 5",
    reveals="D > 1",
)
def learned_relative_attention_bias_unscaled(query: Any, key_pos_bias: Any, **given: Any) -> Any:
    return attention.learned_relative_attention(
        query, key_pos_bias=key_pos_bias * sqrt(query.shape[-1]), **given
    )


@fault(
    "scale",
    "the scale of the value width",
    source="this project",
    clause=SCALE,
    reveals="E other than D",
)
def scaled_dot_product_attention_scale_of_values(value: Any, **given: Any) -> Any:
    return attention.scaled_dot_product_attention(
        value=value, **given, scale=lambda D: inverse_root(value.shape[-1])
    )


@fault("scale", "the score divided by D", source="this project", clause=SCALE, reveals="D > 1")
def scaled_dot_product_score_by_width(**given: Any) -> Any:
    return attention.scaled_dot_product_score(**given, scale=lambda D: 1.0 / D)


@fault(
    "scale",
    "the scale of a width padded to a multiple of 16",
    source="this project",
    clause=SCALE,
    reveals="D no multiple of 16",
)
def scaled_dot_product_score_padded_width(**given: Any) -> Any:
    return attention.scaled_dot_product_score(
        **given, scale=lambda D: inverse_root(-(-D // 16) * 16)
    )


@fault(
    "scale",
    "the scale on the content score alone",
    source="this project",
    clause="transformer_xl_score, clause 4",
    reveals="D > 1",
)
def transformer_xl_score_content_alone(query: Any, **given: Any) -> Any:
    return attention.transformer_xl_score(
        query, **given, shift=lambda x: attention.rel_shift(x) * sqrt(query.shape[-1])
    )


@fault(
    "scale",
    "the bias inside the scale",
    source="this project",
    clause="alibi_attention: the bias is added after the scale",
    reveals="D > 1",
)
def alibi_attention_bias_scaled(query: Any, **given: Any) -> Any:
    def score(query: Any, key: Any) -> Any:
        return attention.alibi_score(
            query, key, slopes=lambda H: attention.get_slopes(H) * inverse_root(query.shape[-1])
        )

    return attention.alibi_attention(query, **given, score=score)


@fault(
    "scale",
    "the scale of the model width",
    source="speechbrain, RelPosMHAXL",
    clause="multi_head_attention, clause 2",
    reveals="H > 1",
)
def multi_head_attention_scale_of_model_width(query: Any, **given: Any) -> Any:
    return layers.multi_head_attention(
        query, **given, scale=lambda D: inverse_root(query.shape[-1])
    )


@fault(
    "scale",
    "the scale of the model width",
    source="this project",
    clause="self_attention, clause 2",
    reveals="K other than F",
)
def self_attention_scale_of_model_width(x: Any, **given: Any) -> Any:
    return layers.self_attention(x, **given, scale=lambda D: inverse_root(x.shape[-1]))


@fault(
    "scale",
    "no scale on the score",
    source="mlc-llm PR #3426",
    clause="alibi_multi_head_attention",
    reveals="D > 1",
)
def alibi_multi_head_attention_unscaled(**given: Any) -> Any:
    return layers.alibi_multi_head_attention(**given, scale=lambda D: 1.0)


@fault(
    "scale",
    "an additive score with the scale of a product",
    source="this project",
    clause="additive_score has no scale",
    reveals="Q > 1",
)
def additive_attention_scaled(query: Any, **given: Any) -> Any:
    def score(*inputs: Any) -> Any:
        return attention.additive_score(*inputs) * inverse_root(query.shape[-1])

    return attention.additive_attention(query, **given, score=score)


@fault(
    "scale",
    "keys that are scaled a second time beyond 64 columns",
    source="this project",
    clause=SCALE,
    reveals="D > 64",
)
def scaled_dot_product_attention_scaled_twice_when_wide(**given: Any) -> Any:
    return attention.scaled_dot_product_attention(
        **given, scale=lambda D: inverse_root(D) ** (2 if D > 64 else 1)
    )
