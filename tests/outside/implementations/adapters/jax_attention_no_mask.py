import jax

LAYOUT = "BNHD"
FEATURES = {"E != D": False}


def scaled_dot_product_attention(query, key, value):
    return jax.nn.dot_product_attention(query, key, value)
