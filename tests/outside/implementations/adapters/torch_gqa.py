from torch.nn import functional

PRECISION = {"float32": {"preset": "fused", "exp_ulps": 20}}
FEATURES = {"lse": False}


def grouped_attention(query, key, value, scale=None):
    return functional.scaled_dot_product_attention(query, key, value, scale=scale, enable_gqa=True)
