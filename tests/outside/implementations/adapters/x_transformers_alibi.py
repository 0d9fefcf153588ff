import torch  # noqa: F401
from x_transformers.attend import Attend
from x_transformers.x_transformers import AlibiPositionalBias


def alibi_attention(query, key, value, visible=None):
    bias = AlibiPositionalBias(query.shape[1])(query.shape[2], key.shape[2])
    mask = visible[None, None] if visible is not None and visible.ndim == 2 else visible
    return Attend(causal=True)(query, key, value, mask=mask, attn_bias=bias)[0]
