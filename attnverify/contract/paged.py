"""Sequences in pages of a pool: which pages are whose, and how many keys are there."""

from typing import Any

from attnverify.contract.arguments import check_integers
from attnverify.contract.arrays import Arrays
from attnverify.contract.attention import check_shared_heads
from attnverify.contract.masks import check_visibility
from attnverify.contract.packed import check_starts
from attnverify.contract.shapes import check, pattern

PAGED = pattern("query [T H D], key_pages [Z W G D], value_pages [Z W G E], sink? [H]")


def check_paged(
    arrays: Arrays,
    query: Any,
    key_pages: Any,
    value_pages: Any,
    page_table: Any,
    lengths: Any,
    query_starts: Any,
    soft_cap: Any,
    sink: Any,
    scale: Any,
    *,
    causal: Any = False,
    window: Any = None,
    chunk: Any = None,
    offset: Any = None,
    pinned: Any = 0,
) -> dict[str, Any]:
    """
    Hold rows and pages to their sizes, starts to numbers that never fall, lengths to the slots of
    a sequence, and the options to what they may be. Starts and lengths wait for a device.
    """
    at = check(arrays, PAGED, query, key_pages, value_pages, sink)
    check_shared_heads(at, soft_cap, scale)
    B = at["B"] = check_starts(arrays, "query_starts", query_starts, at["T"])
    Y = at["Y"] = table_width(arrays, page_table)
    check_integers(arrays, "page_table", page_table, (B, Y))
    check_integers(arrays, "lengths", lengths, (B,), 0, at["W"] * Y)
    options = {"causal": causal, "window": window, "chunk": chunk, "pinned": pinned}
    check_visibility(arrays, B, at["T"], at["W"] * Y, offset=offset, **options)
    return at


def table_width(arrays: Arrays, page_table: Any) -> int:
    """How many pages each row of a table names."""
    shape: Any = getattr(page_table, "shape", ())
    if len(shape) != 2 or not shape[1]:
        raise ValueError(f"page_table: wanted integers [B Y], got {arrays.describe(page_table)}")
    return int(shape[1])


def check_pages(named: Any, Z: int) -> None:
    """Hold the entries of a table that are looked at to the pages there are; waits for a device."""
    if bool(((named < 0) | (named >= Z)).any()):
        raise ValueError(f"page_table: wanted 0 to {Z - 1} where a row sees a page, got others")
