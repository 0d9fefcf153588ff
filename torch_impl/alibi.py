"""ALiBi: the specification is :mod:`spec.alibi`."""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnverify.contract.arguments import check_integer
from attnverify.contract.attention import check_visible_heads
from attnverify.contract.masks import check_visible

from .arrays import TENSORS
from .attention import explicit, fused
from .flex_attention import flex
from .paths.fastest import faster
from .relative import Visible, causal_and
from .transforms.autocast import lowered

__all__ = [
    "alibi_attention",
    "alibi_attention_eager",
    "alibi_attention_flex",
    "get_alibi_biases",
    "get_slopes",
]


def get_slopes(
    n_heads: int, dtype: torch.dtype = torch.float32, device: Any = None
) -> Float[Tensor, "H"]:
    """
    As :func:`spec.alibi.get_slopes`, computed in float64 and rounded once, on PyTorch's default
    device unless told.
    """
    check_integer(TENSORS, "n_heads", n_heads)
    return slopes(n_heads, device).to(dtype)


def slopes(H: int, device: Any) -> Float[Tensor, "H"]:
    n = 2 ** (int(H).bit_length() - 1)
    h = torch.arange(H, dtype=torch.float64, device=device)
    return torch.exp2(torch.where(h < n, -8 / n * (h + 1), -4 / n * (2 * (h - n) + 1)))


def get_alibi_biases(
    n_heads: int,
    visible: Bool[Tensor, "N M"],
    dtype: torch.dtype = torch.float32,
    device: Any = None,
) -> Float[Tensor, "H N M"]:
    """
    As :func:`spec.alibi.get_alibi_biases`, multiplied in float32 (float64 for float64) and rounded
    once.
    """
    check_visible(TENSORS, visible)
    check_integer(TENSORS, "n_heads", n_heads)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    count = visible.to(device or visible.device).cumsum(dim=-1, dtype=wide)
    return (slopes(n_heads, count.device).to(wide)[:, None, None] * count).to(dtype)


@lowered
def alibi_attention(
    query: Float[Tensor, "B H N D"],
    key: Float[Tensor, "B H M D"],
    value: Float[Tensor, "B H M E"],
    visible: Visible = None,
) -> Float[Tensor, "B H N E"]:
    """
    As :func:`spec.alibi.alibi_attention`, by the path of :mod:`torch_impl.paths.fastest`; its
    own has the biases as the float mask of SDPA (on a GPU in the dtype of the query).
    """
    check_visible_heads(TENSORS, query, key, value, visible)
    if other := faster("alibi_attention", query, key, value, masks=(visible,)):
        return other(query, key, value, visible)
    return fused(query, key, value, distance_biases(query, key), causal_and(visible, query, key))


@lowered
def alibi_attention_eager(
    query: Float[Tensor, "B H N D"],
    key: Float[Tensor, "B H M D"],
    value: Float[Tensor, "B H M E"],
    visible: Visible = None,
) -> Float[Tensor, "B H N E"]:
    """
    The same as product, bias, softmax, product. Half types are computed in float32 and rounded
    once.
    """
    check_visible_heads(TENSORS, query, key, value, visible)
    return explicit(
        query, key, value, distance_biases(query, key), causal_and(visible, query, key)
    )[0]


@lowered
def alibi_attention_flex(
    query: Float[Tensor, "B H N D"],
    key: Float[Tensor, "B H M D"],
    value: Float[Tensor, "B H M E"],
    visible: Visible = None,
) -> Float[Tensor, "B H N E"]:
    """
    The same by flex_attention, which makes the bias in its kernel; see
    :mod:`torch_impl.flex_attention` for CPUs.
    """
    check_visible_heads(TENSORS, query, key, value, visible)
    steep = slopes(query.shape[1], query.device).to(torch.promote_types(query.dtype, torch.float32))
    behind = key.shape[-2] - query.shape[-2]

    def add_bias(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return score + steep[h] * (j - i - behind)

    return flex(query, key, value, add_bias, causal_and(visible, query, key))


def distance_biases(query: Tensor, key: Tensor) -> Float[Tensor, "H N M"]:
    """
    slope * (j - (M - N + i)) for every pair, in float32 at least: halves would not hold the
    distances.
    """
    (H, N), M = query.shape[1:3], key.shape[-2]
    wide = torch.promote_types(query.dtype, torch.float32)
    i = torch.arange(M - N, M, dtype=wide, device=query.device)
    j = torch.arange(M, dtype=wide, device=query.device)
    return slopes(H, query.device).to(wide)[:, None, None] * (j - i[:, None])
