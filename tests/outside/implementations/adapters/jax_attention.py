import jax

LAYOUT = "BNHD"
FEATURES = {"float mask": False, "E != D": False}


def scaled_dot_product_attention(query, key, value, mask=None):
    if mask is not None:
        mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    return jax.nn.dot_product_attention(query, key, value, mask=mask)
