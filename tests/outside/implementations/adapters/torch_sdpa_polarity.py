from torch.nn import functional

PRECISION = {"float32": {"preset": "fused", "exp_ulps": 20}}


def scaled_dot_product_attention(query, key, value, mask=None):
    if mask is not None and not mask.is_floating_point():
        mask = ~mask  # as nn.MultiheadAttention wants it
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
