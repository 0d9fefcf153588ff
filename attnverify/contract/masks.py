"""Masks: what merges, and who sees whom."""

from typing import Any

from attnverify.contract.arguments import check_flag, check_integer, check_integers
from attnverify.contract.arrays import BOOL, FLOAT, Arrays


def check_merged(arrays: Arrays, attn_mask: Any, key_padding_mask: Any, num_heads: Any) -> None:
    """Hold the two masks of a layer to what they are, and to each other."""
    check_integer(arrays, "num_heads", num_heads)
    B = M = None
    if attn_mask is not None:
        check_attn_mask(arrays, attn_mask, num_heads)
        shape = tuple(attn_mask.shape)
        B, M = (shape[0] // num_heads if len(shape) == 3 else None), shape[-1]
    if key_padding_mask is not None:
        check_padding(arrays, key_padding_mask, B=B, M=M)


def check_attn_mask(arrays: Arrays, attn_mask: Any, H: int) -> None:
    """Hold an attention mask to booleans or floats [N M] or [B*H N M]."""
    if arrays.kind(attn_mask) not in (BOOL, FLOAT):
        raise ValueError(
            f"attn_mask: wanted a boolean or float {arrays.noun}, got {arrays.describe(attn_mask)}"
        )
    shape = tuple(attn_mask.shape)
    if len(shape) not in (2, 3) or 0 in shape or (len(shape) == 3 and shape[0] % H):
        raise ValueError(f"attn_mask: wanted shape [N M] or [B*H N M] with H={H}, got {shape}")


def check_padding(arrays: Arrays, key_padding_mask: Any, **sizes: Any) -> None:
    """Hold the padding to booleans [B M], and to those of the two sizes that are known."""
    if arrays.kind(key_padding_mask) != BOOL:
        raise ValueError(
            f"key_padding_mask: wanted a boolean {arrays.noun}, got "
            f"{arrays.describe(key_padding_mask)}"
        )
    shape = tuple(key_padding_mask.shape)
    known = {letter: size for letter, size in sizes.items() if size is not None}
    found = dict(zip("BM", shape, strict=False))
    if len(shape) != 2 or 0 in shape or any(found[letter] != known[letter] for letter in known):
        wanted = " ".join(f"{letter}={size}" for letter, size in known.items())
        raise ValueError(
            f"key_padding_mask: wanted shape [B M] with {wanted or 'sizes of at least 1'}, got "
            f"{shape}"
        )


def check_layer_masks(
    arrays: Arrays, attn_mask: Any, key_padding_mask: Any, B: int, H: int, N: int, M: int
) -> None:
    """The same, and both to the sizes of query and key."""
    if attn_mask is None and key_padding_mask is None:
        return
    check_merged(arrays, attn_mask, key_padding_mask, H)
    if attn_mask is not None and tuple(attn_mask.shape) not in ((N, M), (B * H, N, M)):
        raise ValueError(
            f"attn_mask: wanted shape [N M] or [B*H N M] with B={B} H={H} N={N} M={M}, got "
            f"{tuple(attn_mask.shape)}"
        )
    if key_padding_mask is not None:
        check_padding(arrays, key_padding_mask, B=B, M=M)


def check_visible(arrays: Arrays, visible: Any, name: str = "visible") -> None:
    """Hold what is visible to booleans [N M]."""
    if arrays.kind(visible) != BOOL:
        raise ValueError(
            f"{name}: wanted a boolean {arrays.noun} [N M], got {arrays.describe(visible)}"
        )
    if len(visible.shape) != 2 or 0 in visible.shape:
        raise ValueError(
            f"{name}: wanted shape [N M] with sizes of at least 1, got {tuple(visible.shape)}"
        )


def check_square(arrays: Arrays, visible: Any, N: int, name: str = "visible") -> None:
    """Hold what is visible to booleans [N N]."""
    check_visible(arrays, visible, name)
    if tuple(visible.shape) != (N, N):
        raise ValueError(f"{name}: wanted shape [N N] with N={N}, got {tuple(visible.shape)}")


def check_visibility(
    arrays: Arrays,
    B: Any,
    N: Any,
    M: Any,
    *,
    causal: Any = False,
    window: Any = None,
    chunk: Any = None,
    offset: Any = None,
    lengths: Any = None,
    query_lengths: Any = None,
    segments: Any = None,
    blocks: Any = None,
    pinned: Any = 0,
) -> None:
    """Hold the options of who sees whom to what they may be."""
    for name, size in (("B", B), ("N", N), ("M", M)):
        check_integer(arrays, name, size)
    check_flag("causal", causal)
    check_window(arrays, window)
    if chunk is not None:
        check_integer(arrays, "chunk", chunk)
    check_integer(arrays, "pinned", pinned, least=0)
    check_integers(arrays, "offset", offset, (B,))
    check_integers(arrays, "lengths", lengths, (B,), 0, M)
    check_integers(arrays, "query_lengths", query_lengths, (B,), 0, N)
    check_segments(arrays, segments, (B, N), (B, M))
    check_integers(arrays, "blocks", blocks, (B, M), -1)


def check_window(arrays: Arrays, window: Any) -> None:
    """Hold a window to a pair of counts of other keys, each of which may be None."""
    if window is None:
        return
    if not isinstance(window, (tuple, list)) or len(window) != 2:
        raise ValueError(f"window: wanted two counts of other keys (left, right), got {window!r}")
    for count in window:
        if count is not None:
            check_integer(arrays, "window", count, least=0)


def check_segments(arrays: Arrays, segments: Any, *shapes: tuple[int, ...]) -> None:
    """Hold segments to a pair of arrays of integers, those of the queries and of the keys."""
    if segments is None:
        return
    came = arrays.describe(segments)
    if isinstance(segments, (tuple, list)) and len(segments) == 2:
        if segments[0] is not None and segments[1] is not None:
            for numbers, shape in zip(segments, shapes, strict=True):
                check_integers(arrays, "segments", numbers, shape)
            return
        came = "None"
    raise ValueError(f"segments: wanted those of queries and of keys, got {came}")
