import jax.numpy as jnp
from flax.linen import dot_product_attention

LAYOUT = "BNHD"


def scaled_dot_product_attention(query, key, value, mask=None):
    if mask is not None and mask.dtype != jnp.bool_:
        return dot_product_attention(query, key, value, bias=mask)
    return dot_product_attention(query, key, value, mask=mask)
