"""
ALiBi attention in plain JAX, compiled by jax.jit and computed in float32, whatever it is given.

Without ``DTYPES`` it is judged in float64 as well, which is unsupported unless x64 is on.
"""

import math

import jax
import jax.numpy as jnp

DTYPES = ("float32", "float16", "bfloat16")


def slopes(heads):
    """A geometric series for a power of two; beyond it every other slope of the next one."""
    power = 2 ** int(math.log2(heads))
    first = [2 ** (-8 * (h + 1) / power) for h in range(power)]
    return first + [2 ** (-4 * (2 * h + 1) / power) for h in range(heads - power)]


@jax.jit
def alibi_attention(query, key, value, visible=None):
    (B, H, N, D), M, dtype = query.shape, key.shape[2], value.dtype
    query, key, value = (x.astype(jnp.float32) for x in (query, key, value))
    distance = jnp.arange(M) - (jnp.arange(N)[:, None] + M - N)
    seen = distance <= 0 if visible is None else (distance <= 0) & visible
    used = jnp.broadcast_to(seen, (B, H, N, M)).any(2)[..., None]  # a weight of 0 times NaN is NaN
    key, value = (jnp.where(used, x, 0) for x in (key, value))
    score = jnp.einsum("bhnd,bhmd->bhnm", query, key) / math.sqrt(D)
    score = score + jnp.asarray(slopes(H))[:, None, None] * distance
    top = jnp.max(score, -1, keepdims=True, initial=-1e30, where=seen)
    weight = jnp.where(seen, jnp.exp(jnp.where(seen, score - top, 0)), 0)
    total = weight.sum(-1, keepdims=True)
    output = jnp.einsum("bhnm,bhme->bhne", weight / jnp.where(total == 0, 1, total), value)
    return output.astype(dtype)
