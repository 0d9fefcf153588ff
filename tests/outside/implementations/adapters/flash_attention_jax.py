import jax.numpy as jnp
from flash_attention_jax import flash_attention

FEATURES = {"E != D": False}


def scaled_dot_product_attention(query, key, value):
    seen = jnp.ones((key.shape[0], key.shape[2]), bool)
    return flash_attention(query, key, value, seen)
