"""Masks: which key a query may see, and how two ways of saying so become one."""

from typing import Annotated, Any, TypedDict, Unpack

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from attnverify.contract.arguments import check_sizes
from attnverify.contract.masks import check_merged, check_visibility

from .arrays import ARRAYS
from .domains import Choices, Integers, Refused

__all__ = ["causal_mask", "merge_masks", "visible_keys"]

Pair = tuple[Int[ndarray, "B N"], Int[ndarray, "B M"]]


Causal = Annotated[bool, Choices(False, True), Refused("causal", None)]
Window = Annotated[
    tuple[int | None, int | None] | None,
    Choices(None, (2, None), (0, 0), (None, 1), (1, 2), (40, None)),
    Refused(3, (-1, 0), (0.5, None), (1, 1, 1)),
]
Chunk = Annotated[int | None, Choices(None, 3, 1, 16), Refused(0, -2, 1.5)]
Pinned = Annotated[int, Choices(0, 1, 3), Refused(-1, 0.5, None)]


class Visibility(TypedDict, total=False):
    """The options of :func:`visible_keys`, which every attention of today takes and hands on."""

    causal: Causal
    window: Window
    chunk: Chunk
    offset: Annotated[Int[ndarray, "B"] | None, Integers("-N", "M")]
    lengths: Annotated[Int[ndarray, "B"] | None, Integers(0, "M", ("below", "above"))]
    query_lengths: Annotated[Int[ndarray, "B"] | None, Integers(0, "N", ("below", "above"))]
    segments: Annotated[Pair | None, Integers(-1, 2)]
    blocks: Annotated[Int[ndarray, "B M"] | None, Integers(-1, 2, ("below",))]
    pinned: Pinned


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
    check_sizes(ARRAYS, N=N, M=M)
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

    .. math:: \text{mask}_{bhij} = \begin{cases} -\infty &
              \text{attn\_mask hides } ij \text{, or key\_padding\_mask hides } bj \\
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
    check_merged(ARRAYS, attn_mask, key_padding_mask, num_heads)
    mask = np.zeros((1, 1, 1, 1))
    if attn_mask is not None:
        mask = to_add(four_axes(attn_mask, num_heads))
    if key_padding_mask is not None:
        mask = np.where(key_padding_mask[:, None, None, :], -np.inf, mask)
    return mask.copy()


def four_axes(attn_mask: ndarray, H: int) -> ndarray:
    """[N M] becomes [1 1 N M], and [B*H N M] becomes [B H N M]."""
    return (
        attn_mask[None, None]
        if attn_mask.ndim == 2
        else attn_mask.reshape(-1, H, *attn_mask.shape[1:])
    )


def to_add(attn_mask: ndarray) -> ndarray:
    return np.where(attn_mask, -np.inf, 0.0) if attn_mask.dtype == bool else attn_mask


def visible_keys(B: int, N: int, M: int, **options: Unpack[Visibility]) -> Bool[ndarray, "B N M"]:
    r"""
    Which keys each query sees, before any mask: True = may attend.

    .. math:: \text{visible}_{bij} = \big[\, j < \text{length}_b \,\wedge\, i < n_b \,\wedge\,
              \text{ahead}_{bij} \,\wedge\, \text{near}_{bij} \,\wedge\, \text{same}_{bij} \,\big]

    .. math:: p_{bi} = \text{offset}_b + i

    Its options are ``causal`` = False, ``window`` = None, ``chunk`` = None, ``offset`` = None [B],
    ``lengths`` = None [B], ``query_lengths`` = None [B], ``segments`` = None, ``blocks`` = None
    [B M] and ``pinned`` = 0. None of them is said by another: each holds beside all others.

    1. Row i stands at position p of the keys. Without an ``offset`` the last row stands at the last
       key, p = length - n + i: the ends are aligned. An offset of 0 is what others call top-left;
       it may be negative, and larger than M - N.
    2. ``lengths``: keys from there onwards are absent; all M without it. 0 is a length.
    3. ``query_lengths``: rows from there onwards are no rows, and see nothing. n is that number,
       and N without it.
    4. ``causal``: a key is *ahead* no further than its row, j <= p.
    5. ``blocks`` soften causality: a row also sees the keys of the block that the key at its own
       position is in (the tokens of an image, the prefix of a prefix-LM). -1 is no block, and a row
       that stands at no key is in none. Without ``causal`` they change nothing.
    6. ``window`` = (left, right) counts *other* keys, p - left <= j <= p + right; None is no limit.
       (0, 0) is the key at the row's own place alone. It holds beside causality and beside blocks.
    7. The first ``pinned`` keys are *near* every row on the window's left side. Its right side and
       whatever else hides them still do.
    8. ``chunk``: row and key stand in the same run of that many positions, counted from key 0.
    9. ``segments`` = (of the rows [B N], of the keys [B M]): a row sees its own segment alone, and
       positions are not counted anew in it. Any integer is a segment, -1 too.
    10. A count that is none (a window of -1, a chunk of 0, a length beyond M) and a window of one
        number are refused: others mean "no limit" by some of them, or a key more.

    >>> visible_keys(1, 2, 3, causal=True).astype(int).tolist()
    [[[1, 1, 0], [1, 1, 1]]]
    >>> visible_keys(1, 2, 3, causal=True, offset=np.array([0])).astype(int).tolist()
    [[[1, 0, 0], [1, 1, 0]]]
    >>> visible_keys(1, 1, 5, causal=True, window=(2, None)).astype(int).tolist()
    [[[0, 0, 1, 1, 1]]]
    >>> visible_keys(1, 1, 5, window=(1, 0), pinned=1, lengths=np.array([4])).astype(
    ...     int
    ... ).tolist()
    [[[1, 0, 1, 1, 0]]]
    >>> image = np.array([[0, 0, 0, -1]])
    >>> visible_keys(1, 4, 4, causal=True, blocks=image, window=(1, 1)).astype(int).tolist()
    [[[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 0], [0, 0, 1, 1]]]

    Source: this project's choices where libraries differ. Windows of other keys, end-aligned:
    FlashAttention 2 and 3, ``window_size``; ONNX Attention 25. Chunks, pinned keys: FlashAttention
    3, ``attention_chunk`` and ``sink_token_length``. Blocks within the window: transformers' masks
    of Gemma 3.

    Errata: a window W of transformers' causal masks, of vLLM and of flash-linear-attention counts
    the row's own key, here (W - 1, None), and so does cuDNN's left bound. JAX and PyTorch's SDPA
    align the starts, here offset 0.
    """
    check_visibility(ARRAYS, B, N, M, **options)
    at = in_numbers(B, N, M, **options)
    seen = np.zeros((B, N, M), bool)
    for b, i, j in np.ndindex(B, N, M):
        p = at["offset"][b] + i
        there = j < at["lengths"][b] and i < at["query_lengths"][b]
        ahead = not at["causal"] or j <= p or in_block(at, b, j, p)
        left, right = at["window"] or (None, None)
        near = (left is None or j >= p - left or j < at["pinned"]) and (
            right is None or j <= p + right
        )
        run = at["chunk"] is None or j // at["chunk"] == p // at["chunk"]
        same = at["segments"] is None or at["segments"][0][b, i] == at["segments"][1][b, j]
        seen[b, i, j] = there and ahead and near and run and same
    return seen


def in_block(at: dict[str, Any], b: int, j: int, p: int) -> bool:
    """Whether key j is in the block of the key at position p, if that is one."""
    blocks = at["blocks"]
    if blocks is None or not 0 <= p < at["lengths"][b]:
        return False
    return bool(blocks[b, j] == blocks[b, p] != -1)


def in_numbers(
    B: int,
    N: int,
    M: int,
    causal: Any = False,
    window: Any = None,
    chunk: Any = None,
    offset: Any = None,
    lengths: Any = None,
    query_lengths: Any = None,
    segments: Any = None,
    blocks: Any = None,
    pinned: Any = 0,
) -> dict[str, Any]:
    """All options, those that are left out too, with lengths and offsets as numbers."""
    m = [M] * B if lengths is None else lengths.tolist()
    n = [N] * B if query_lengths is None else query_lengths.tolist()
    ends = [m[b] - n[b] for b in range(B)]
    p = ends if offset is None else offset.tolist()
    both = {"causal": causal, "window": window, "chunk": chunk, "pinned": pinned}
    both |= {"segments": segments, "blocks": blocks}
    return {"offset": p, "lengths": m, "query_lengths": n, **both}
