"""ALiBi: a matrix product, and a penalty on the distance that is added to it in place."""

from types import ModuleType
from typing import Any

import cupy
from jaxtyping import Bool, Float

from attnverify.contract.arguments import check_integer
from attnverify.contract.attention import D_HEADS, check_visible_heads
from attnverify.contract.masks import check_visible
from attnverify.contract.shapes import check

from .arrays import ARRAYS, Array, default_module, float_dtype, ieee, narrow, wide
from .attention import attend, heads_grad, hide
from .masks import causal
from .scores import scaled_products

__all__ = ["alibi_attention", "alibi_attention_grad", "get_alibi_biases", "get_slopes"]

Visible = Bool[Array, "..."] | None


def get_slopes(n_heads: int, dtype: Any = "float32") -> Float[Array, "H"]:
    """
    See :func:`spec.alibi.get_slopes`.

    Computed in float64 where the arrays are, rounded once.
    """
    check_integer(ARRAYS, "n_heads", n_heads)
    return narrow(slopes(default_module(), n_heads), float_dtype(dtype))


def slopes(xp: ModuleType, H: int) -> Float[Array, "H"]:
    """The exponents of n = 2^k heads, then the odd ones of 2n heads."""
    n = 2 ** (int(H).bit_length() - 1)
    h = xp.arange(H, dtype="float64")
    return xp.exp2(-xp.where(h < n, 8 * (h + 1), 4 * (2 * (h - n) + 1)) / n)


def get_alibi_biases(
    n_heads: int, visible: Bool[Array, "N M"], dtype: Any = "float32"
) -> Float[Array, "H N M"]:
    """
    See :func:`spec.alibi.get_alibi_biases`.

    Counted and multiplied in ``dtype``, or in float32 where that is narrower; float32 counts
    exactly up to 2^24 keys.
    """
    check_visible(ARRAYS, visible)
    check_integer(ARRAYS, "n_heads", n_heads)
    dtype = float_dtype(dtype)
    return narrow(biases(n_heads, visible, "float64" if dtype.itemsize == 8 else "float32"), dtype)


def biases(n_heads: int, visible: Bool[Array, "N M"], dtype: Any) -> Float[Array, "H N M"]:
    xp = cupy.get_array_module(visible)
    return slopes(xp, n_heads).astype(dtype)[:, None, None] * visible.astype(dtype).cumsum(axis=-1)


@ieee
def alibi_attention(
    query: Float[Array, "B H N D"],
    key: Float[Array, "B H M D"],
    value: Float[Array, "B H M E"],
    visible: Visible = None,
) -> Float[Array, "B H N E"]:
    """
    See :func:`spec.alibi.alibi_attention`.

    The bias [H N M] is computed anew in every call and never cached.
    """
    check_visible_heads(ARRAYS, query, key, value, visible)
    dtype = query.dtype
    query, key, value = wide(query, key, value)
    return narrow(attend(causal_score(query, key, visible), value), dtype)


def causal_score(query: Array, key: Array, visible: Visible) -> Float[Array, "B H N M"]:
    """The score with its bias, minus infinity where the causal row or ``visible`` hides."""
    xp, (H, N), M = cupy.get_array_module(query), query.shape[1:3], key.shape[2]
    score = scaled_products(query, key)
    distance = xp.arange(M) - xp.arange(M - N, M)[:, None]
    score += slopes(xp, H).astype(score.dtype)[:, None, None] * distance.astype(score.dtype)
    return hide(score, causal(xp, N, M, visible))


@ieee
def alibi_attention_grad(
    d_output: Float[Array, "B H N E"],
    query: Float[Array, "B H N D"],
    key: Float[Array, "B H M D"],
    value: Float[Array, "B H M E"],
    visible: Visible = None,
) -> tuple[Float[Array, "B H N D"], Float[Array, "B H M D"], Float[Array, "B H M E"]]:
    """
    See :func:`spec.alibi.alibi_attention_grad`.

    Five batched matrix products, the score computed anew.
    """
    check(ARRAYS, D_HEADS, d_output, **check_visible_heads(ARRAYS, query, key, value, visible))
    dtypes = query.dtype, key.dtype, value.dtype
    d_output, query, key, value = wide(d_output, query, key, value)
    _, *grads = heads_grad(d_output, query, key, value, causal_score(query, key, visible))
    return tuple(narrow(x, to) for x, to in zip(grads, dtypes, strict=True))
