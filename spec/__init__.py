"""
The specification: what every attention operation is, in NumPy that reads like the formula.

One chapter a file, the same file names in every column. Read them in this order:
:mod:`scores`, :mod:`masks`, :mod:`attention`, :mod:`shifts`, :mod:`relative`, :mod:`alibi`,
:mod:`memory`, :mod:`layers`, :mod:`grouped`, :mod:`latent`, :mod:`selected`, :mod:`packed`,
:mod:`paged`, :mod:`quantized`, :mod:`rotary`.

Nothing here knows a dtype, a device, a seed or a tile. Arrays are float64 (complex where a
test takes a derivative by a complex step), sizes are the letters B H N M D E Q K F A P S I C G R
T U W Y Z J, and True in ``visible`` means "may attend".
"""

from .alibi import alibi_attention, alibi_attention_grad, get_alibi_biases, get_slopes
from .attention import (
    additive_attention,
    additive_attention_grad,
    dropout,
    dropout_grad,
    scaled_dot_product_attention,
    scaled_dot_product_attention_grad,
    softmax,
    softmax_grad,
)
from .grouped import (
    grouped_attention,
    grouped_attention_grad,
    merge_attention,
    merge_attention_grad,
)
from .latent import latent_attention, latent_attention_grad
from .layers import (
    alibi_multi_head_attention,
    alibi_multi_head_attention_grad,
    multi_head_attention,
    multi_head_attention_grad,
    multi_head_self_attention,
    multi_head_self_attention_grad,
    relative_multi_head_attention,
    relative_multi_head_attention_grad,
    self_attention,
    self_attention_grad,
    transformer_xl,
    transformer_xl_grad,
    transformer_xl_layer,
    transformer_xl_layer_grad,
)
from .masks import causal_mask, merge_masks, visible_keys
from .memory import init_mems, update_mems, update_mems_grad
from .packed import packed_attention, packed_attention_grad
from .paged import paged_attention
from .quantized import dequantize
from .relative import (
    learned_relative_attention,
    learned_relative_attention_grad,
    learned_relative_score,
    learned_relative_score_grad,
    sinusoidal_positions,
    transformer_xl_attention,
    transformer_xl_attention_grad,
    transformer_xl_score,
    transformer_xl_score_grad,
)
from .rotary import rotary_embedding, rotary_embedding_grad
from .scores import (
    additive_score,
    additive_score_grad,
    scaled_dot_product_score,
    scaled_dot_product_score_grad,
)
from .selected import selected_attention, selected_attention_grad
from .shifts import rel_shift, rel_shift_grad, shift_right, shift_right_grad

__all__ = [
    "additive_attention",
    "additive_attention_grad",
    "additive_score",
    "additive_score_grad",
    "alibi_attention",
    "alibi_attention_grad",
    "alibi_multi_head_attention",
    "alibi_multi_head_attention_grad",
    "causal_mask",
    "dequantize",
    "dropout",
    "dropout_grad",
    "get_alibi_biases",
    "get_slopes",
    "grouped_attention",
    "grouped_attention_grad",
    "init_mems",
    "latent_attention",
    "latent_attention_grad",
    "learned_relative_attention",
    "learned_relative_attention_grad",
    "learned_relative_score",
    "learned_relative_score_grad",
    "merge_attention",
    "merge_attention_grad",
    "merge_masks",
    "multi_head_attention",
    "multi_head_attention_grad",
    "multi_head_self_attention",
    "multi_head_self_attention_grad",
    "packed_attention",
    "packed_attention_grad",
    "paged_attention",
    "rel_shift",
    "rel_shift_grad",
    "relative_multi_head_attention",
    "relative_multi_head_attention_grad",
    "rotary_embedding",
    "rotary_embedding_grad",
    "scaled_dot_product_attention",
    "scaled_dot_product_attention_grad",
    "scaled_dot_product_score",
    "scaled_dot_product_score_grad",
    "selected_attention",
    "selected_attention_grad",
    "self_attention",
    "self_attention_grad",
    "shift_right",
    "shift_right_grad",
    "sinusoidal_positions",
    "softmax",
    "softmax_grad",
    "transformer_xl",
    "transformer_xl_attention",
    "transformer_xl_attention_grad",
    "transformer_xl_grad",
    "transformer_xl_layer",
    "transformer_xl_layer_grad",
    "transformer_xl_score",
    "transformer_xl_score_grad",
    "update_mems",
    "update_mems_grad",
    "visible_keys",
]
