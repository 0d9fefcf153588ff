"""Masks: which key a query may see, and how two ways of saying so become one."""

from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray

from .shapes import check_integer, kind

__all__ = ["causal_mask", "merge_masks"]


def causal_mask(N: int, M: int) -> Bool[ndarray, "N M"]:
    r"""
    True where a query may attend to a key: no key may lie behind its query.

    .. math:: \text{visible}_{ij} = \big[\, j \le M - N + i \,\big]

    1. The two ends are aligned: the last query stands at the place of the last key, for every N and
       M. Memory and caches come first.
    2. With N > M the first N - M queries see no key at all.

    >>> causal_mask(2, 4).astype(int)
    array([[1, 1, 1, 0],
           [1, 1, 1, 1]])
    >>> causal_mask(3, 2).astype(int)
    array([[0, 0],
           [1, 0],
           [1, 1]])

    Source: this project's choice. It is the alignment of FlashAttention since 2.1; ``is_causal`` of
    PyTorch aligns the starts.
    """
    check_integer("N", N)
    check_integer("M", M)
    i, j = np.arange(N)[:, None], np.arange(M)[None, :]
    return j <= M - N + i


def merge_masks(
    attn_mask: Bool[ndarray, "... N M"] | Float[ndarray, "... N M"] | None,
    key_padding_mask: Bool[ndarray, "B M"] | None,
    num_heads: int,
) -> Float[ndarray, "B H N M"]:
    r"""
    One float mask to add to the scores of multi-head attention, from the two that PyTorch's layer
    takes.

    .. math:: \text{mask}_{bhij} = \begin{cases} -\infty & \text{attn\_mask hides } ij \text{, or
              key\_padding\_mask hides } bj \\
              \text{attn\_mask}_{(bh)ij} & \text{otherwise, when it is float} \\ 0 &
              \text{otherwise} \end{cases}

    1. Here True means *hidden*, as in PyTorch's ``nn.MultiheadAttention``: the opposite of
       ``visible``.
    2. A three-axis ``attn_mask`` is batch-major: entry b * H + h belongs to batch b, head h.
    3. Hidden is minus infinity, not a large negative number: see
       :func:`attnverify.spec.attention.softmax` for the rows that lose every key.
    4. An axis that nothing fixes has size 1: the batch without a padding mask, the heads and
       queries of a padding mask alone.
    5. Infinity is not lost in a sum: where either mask hides, the other's number does not matter.

    >>> attn_mask = np.array([[False, True], [False, False]])
    >>> key_padding_mask = np.array([[True, False]])
    >>> merge_masks(attn_mask, key_padding_mask, num_heads=1)
    array([[[[-inf, -inf],
             [-inf,   0.]]]])
    >>> merge_masks(None, np.array([[True, False], [False, False]]), num_heads=2).shape
    (2, 1, 1, 2)
    >>> merge_masks(np.zeros((1, 2)), np.zeros((1, 3), bool), num_heads=1)
    Traceback (most recent call last):
    ValueError: key_padding_mask: wanted shape [B M] with M=2, got (1, 3)

    Source: the documentation of ``torch.nn.MultiheadAttention`` (seed 001, section 4.2).

    Errata: a fill with -1e9 "to avoid NaN" (seed 001; the Annotated Transformer's -1e9). A row that
    loses every key then attends to hidden keys: in float64 as if nothing were hidden, in float32
    and bfloat16 evenly, because -1e9 swallows the scores (in float32 those up to 32, half its last
    place); in float16 it does not fit, and the fill raises. In a float attn_mask the -1e9 also
    overwrites the mask's own -inf: under left padding a causal row whose only key is padded attends
    to padded keys in its future. A text on attention explains padding as rows of K that
    become -inf "so that" columns of the product do (seed 001, section 4.1.1); such scores are -inf,
    +inf or NaN, by the signs of the query.
    """
    check_integer("num_heads", num_heads)
    mask = np.zeros((1, 1, 1, 1))
    if attn_mask is not None:
        mask = to_add(four_axes(attn_mask, num_heads))
    if key_padding_mask is not None:
        check_padding(key_padding_mask, attn_mask, num_heads)
        mask = np.where(key_padding_mask[:, None, None, :], -np.inf, mask)
    return mask.copy()


def four_axes(attn_mask: Any, H: int) -> ndarray:
    """[N M] becomes [1 1 N M], and [B*H N M] becomes [B H N M]."""
    if not (isinstance(attn_mask, ndarray) and attn_mask.dtype.kind in "bfc"):
        raise ValueError(f"attn_mask: wanted a boolean or float array, got {kind(attn_mask)}")
    if (
        attn_mask.ndim not in (2, 3)
        or 0 in attn_mask.shape
        or (attn_mask.ndim == 3 and len(attn_mask) % H)
    ):
        raise ValueError(
            f"attn_mask: wanted shape [N M] or [B*H N M] with H={H}, got {attn_mask.shape}"
        )
    return (
        attn_mask[None, None]
        if attn_mask.ndim == 2
        else attn_mask.reshape(-1, H, *attn_mask.shape[1:])
    )


def to_add(attn_mask: ndarray) -> ndarray:
    return np.where(attn_mask, -np.inf, 0.0) if attn_mask.dtype == bool else attn_mask


def check_padding(key_padding_mask: Any, attn_mask: ndarray | None, H: int) -> None:
    if not (isinstance(key_padding_mask, ndarray) and key_padding_mask.dtype == bool):
        raise ValueError(f"key_padding_mask: wanted a boolean array, got {kind(key_padding_mask)}")
    B = len(attn_mask) // H if attn_mask is not None and attn_mask.ndim == 3 else None
    M = attn_mask.shape[-1] if attn_mask is not None else None
    shape = key_padding_mask.shape
    if len(shape) != 2 or 0 in shape or B not in (None, shape[0]) or M not in (None, shape[1]):
        known = " ".join(
            f"{letter}={size}" for letter, size in [("B", B), ("M", M)] if size is not None
        )
        raise ValueError(
            f"key_padding_mask: wanted shape [B M]{' with ' * bool(known)}{known}, got {shape}"
        )
