"""Sequences laid end to end: where each begins, and how many keys of it are there."""

from typing import Any

from attnverify.contract.arguments import check_integers
from attnverify.contract.arrays import INTEGER, Arrays
from attnverify.contract.attention import check_shared_heads
from attnverify.contract.masks import check_visibility
from attnverify.contract.shapes import check, pattern

PACKED = pattern("query [T H D], key [U G D], value [U G E], sink? [H]")
D_PACKED = pattern("d_output [T H E], d_lse [T H]")


def check_packed(
    arrays: Arrays,
    query: Any,
    key: Any,
    value: Any,
    query_starts: Any,
    key_starts: Any,
    soft_cap: Any,
    sink: Any,
    scale: Any,
    *,
    causal: Any = False,
    window: Any = None,
    chunk: Any = None,
    offset: Any = None,
    lengths: Any = None,
    pinned: Any = 0,
) -> dict[str, Any]:
    """
    Hold tokens to their sizes, starts to numbers that never fall, and the options to what they may
    be. Starts and lengths wait for a device.
    """
    at = check(arrays, PACKED, query, key, value, sink)
    check_shared_heads(at, soft_cap, scale)
    at["B"] = check_starts(arrays, "query_starts", query_starts, at["T"])
    check_starts(arrays, "key_starts", key_starts, at["U"], at["B"])
    options = {"causal": causal, "window": window, "chunk": chunk, "pinned": pinned}
    check_visibility(arrays, at["B"], at["T"], at["U"], offset=offset, lengths=lengths, **options)
    if lengths is not None and bool((lengths > key_starts[1:] - key_starts[:-1]).any()):
        raise ValueError("lengths: wanted at most the keys of each sequence, got more")
    return at


def check_starts(arrays: Arrays, name: str, starts: Any, end: int, B: int | None = None) -> int:
    """Hold starts to integers that never fall, from 0 to the tokens there are; how many but one."""
    is_one = arrays.kind(starts) == INTEGER and len(starts.shape) == 1 and starts.shape[0] > 1
    if not is_one:
        raise ValueError(f"{name}: wanted integers [B+1], got {arrays.describe(starts)}")
    count = int(starts.shape[0]) - 1
    check_integers(arrays, name, starts, ((count if B is None else B) + 1,), 0, end)
    if bool((starts[1:] < starts[:-1]).any()):
        raise ValueError(f"{name}: wanted numbers that never fall, got some that do")
    return count
