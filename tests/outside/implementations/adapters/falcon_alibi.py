import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers.models.falcon.modeling_falcon import build_alibi_tensor

PRECISION = {"float32": {"preset": "fused", "exp_ulps": 20, "bias_form": "absolute"}}


def alibi_attention(query, key, value, visible=None):
    (_, H, N, D), M = query.shape, key.shape[2]
    bias = build_alibi_tensor(torch.ones(1, M), H, query.dtype).view(1, H, 1, M) / D**0.5
    seen = torch.ones(N, M, dtype=torch.bool).tril(M - N)
    seen = seen if visible is None else seen & visible
    bias = bias.masked_fill(~seen, -torch.inf)
    return scaled_dot_product_attention(query, key, value, attn_mask=bias)
