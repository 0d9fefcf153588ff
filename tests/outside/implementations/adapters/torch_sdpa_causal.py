from torch.nn import functional

PRECISION = {"float32": {"preset": "fused", "exp_ulps": 20}}


def scaled_dot_product_attention(query, key, value, mask=None):
    causal = mask is None
    return functional.scaled_dot_product_attention(query, key, value, mask, is_causal=causal)
