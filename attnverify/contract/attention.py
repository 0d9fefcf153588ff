"""Scores, and the attentions of one head or several beside each other."""

from collections.abc import Sequence
from typing import Any

from attnverify.contract.arguments import (
    check_align,
    check_draw,
    check_finite,
    check_integer,
    check_integers,
    check_mask,
    check_options,
    check_share,
)
from attnverify.contract.arrays import Arrays
from attnverify.contract.shapes import check, pattern

SHIFTED, SCORE, WEIGHTS = (
    pattern("x [... N M]"),
    pattern("score [... N M]"),
    pattern("weights [...]"),
)
D_SCORE, D_WEIGHTS = pattern("d_output [... N M]"), pattern("d_output [...]")
LEARNED_WEIGHTS = pattern("w_query [A Q], w_key [A K], w_score [A]")
ADDITIVE_SCORE = pattern("query [... N Q], key [... M K]") + LEARNED_WEIGHTS
SCALED_SCORE = pattern("query [... N D], key [... M D]")
ADDITIVE = pattern("query [B N Q], key [B M K], value [B M E]") + LEARNED_WEIGHTS
HEADS = pattern("query [B H N D], key [B H M D], value [B H M E]")
PRODUCTS = pattern("query [B H N D], key [B H M D]")
POSITIONS = pattern("position [H M D], u [H D], v [H D]")
TABLES = pattern("key_pos_embeddings [2P H D], key_pos_bias [2P H], query_pos_bias [H D]")
D_PRODUCTS, D_HEADS = pattern("d_output [B H N M]"), pattern("d_output [B H N E]")
D_ADDITIVE = pattern("d_output [B N E]")
SHARED_HEADS = pattern("query [B H N D], key [B G M D], value [B G M E], sink? [H]")
LATENT = pattern(
    "query [B H N E], query_rope [B H N D], latent [B M E], key_rope [B M D], sink? [H]"
)
PARTS = pattern("outputs [C B H N E], lses [C B H N]")
D_WITH_LSE = D_HEADS + pattern("d_lse [B H N]")


def check_softmax(arrays: Arrays, score: Any, mask: Any) -> dict[str, Any]:
    """Hold a score to its axes, and a mask to what broadcasts to it."""
    sizes = check(arrays, SCORE, score)
    check_mask(arrays, "mask", mask, score.shape, float_too=True)
    return sizes


def check_dropout(arrays: Arrays, weights: Any, keep: Any, p: Any) -> dict[str, Any]:
    """Hold a draw to what broadcasts to the weights, and the share that is dropped."""
    check_share(arrays, keep, p)
    sizes = check(arrays, WEIGHTS, weights)
    check_mask(arrays, "keep", keep, weights.shape)
    return sizes


def check_additive(
    arrays: Arrays, inputs: Sequence[Any], mask: Any, keep: Any, p: Any
) -> dict[str, Any]:
    """Hold query, key, value and the three weights of the score to their sizes, and the options."""
    at = check(arrays, ADDITIVE, *inputs)
    check_options(arrays, mask, keep, p, (at["B"], at["N"], at["M"]))
    return at


def check_attention(
    arrays: Arrays,
    query: Any,
    key: Any,
    value: Any,
    mask: Any = None,
    keep: Any = None,
    p: Any = 0.0,
) -> dict[str, Any]:
    """Hold query, key and value to their sizes, and the options to those of the scores."""
    at = check(arrays, HEADS, query, key, value)
    check_options(arrays, mask, keep, p, pairs(at))
    return at


def pairs(at: dict[str, Any]) -> tuple[int, int, int, int]:
    """The shape of the scores [B H N M]."""
    return at["B"], at["H"], at["N"], at["M"]


def check_visible_heads(
    arrays: Arrays,
    query: Any,
    key: Any,
    value: Any,
    visible: Any,
    keep: Any = None,
    p: Any = 0.0,
) -> dict[str, Any]:
    """Hold an attention's inputs to their sizes, and what is visible to those of its scores."""
    at = check(arrays, HEADS, query, key, value)
    check_mask(arrays, "visible", visible, pairs(at))
    check_draw(arrays, keep, p, pairs(at))
    return at


def check_transformer_xl(
    arrays: Arrays, query: Any, key: Any, position: Any, u: Any, v: Any
) -> dict[str, Any]:
    """Hold query, key, positions and the two biases of Transformer-XL's score to their sizes."""
    return check(arrays, PRODUCTS + POSITIONS, query, key, position, u, v)


def check_learned(
    arrays: Arrays, query: Any, key: Any, tables: Sequence[Any], align: Any
) -> dict[str, Any]:
    """Hold query, key and the tables of learned positions to their sizes."""
    return check_tables(arrays, tables, align, **check(arrays, PRODUCTS, query, key))


def check_tables(arrays: Arrays, tables: Sequence[Any], align: Any, **sizes: Any) -> dict[str, Any]:
    """Hold the tables to the sizes that are known, and to rows enough for all pairs."""
    at = check(arrays, TABLES, *tables, **sizes)
    check_align(align)
    N, M, P = at["N"], at["M"], at["P"]
    if max(N, M) > P:
        raise ValueError(
            f"key_pos_embeddings: wanted at least 2P rows with P >= N={N} and P >= M={M}, got P={P}"
        )
    return at


def check_xl_attention(
    arrays: Arrays,
    heads: Sequence[Any],
    positions: Sequence[Any],
    visible: Any,
    keep: Any = None,
    p: Any = 0.0,
) -> dict[str, Any]:
    """Hold query, key and value, and position, u and v, to their sizes, and the options."""
    query, key, value = heads
    at = check_visible_heads(arrays, query, key, value, visible, keep, p)
    return check(arrays, POSITIONS, *positions, **at)


def check_learned_attention(
    arrays: Arrays,
    heads: Sequence[Any],
    tables: Sequence[Any],
    align: Any,
    visible: Any,
    keep: Any = None,
    p: Any = 0.0,
) -> dict[str, Any]:
    """Hold query, key and value, and the tables, to their sizes, and the options."""
    query, key, value = heads
    at = check_visible_heads(arrays, query, key, value, visible, keep, p)
    return check_tables(arrays, tables, align, **at)


def check_grouped(
    arrays: Arrays,
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    soft_cap: Any,
    sink: Any,
    scale: Any,
    keep: Any,
    p: Any,
) -> dict[str, Any]:
    """Hold heads that share keys and values to their sizes, and the numbers to their domains."""
    at = check(arrays, SHARED_HEADS, query, key, value, sink)
    check_shared_heads(at, soft_cap, scale)
    check_options(arrays, mask, keep, p, pairs(at))
    return at


def check_latent(
    arrays: Arrays,
    query: Any,
    query_rope: Any,
    latent: Any,
    key_rope: Any,
    scale: Any,
    soft_cap: Any,
    sink: Any,
) -> dict[str, Any]:
    """Hold heads that share a latent to its sizes, and the numbers to their domains."""
    at = check(arrays, LATENT, query, query_rope, latent, key_rope, sink)
    if scale is None:
        raise ValueError("scale: wanted a finite number, got None")
    check_shared_heads(at | {"G": 1}, soft_cap, scale)
    return at


def check_selected(
    arrays: Arrays,
    query: Any,
    key: Any,
    value: Any,
    selection: Any,
    block: Any,
    soft_cap: Any,
    sink: Any,
    scale: Any,
) -> dict[str, Any]:
    """
    Hold heads that share keys to their sizes, the numbers to their domains, and choices to -1 and
    the blocks there are, which waits for a device.
    """
    at = check(arrays, SHARED_HEADS, query, key, value, sink)
    check_shared_heads(at, soft_cap, scale)
    check_integer(arrays, "block", block)
    shape: Any = getattr(selection, "shape", ())
    if len(shape) != 4 or not shape[3]:
        raise ValueError(f"selection: wanted integers [B G N J], got {arrays.describe(selection)}")
    rows = (at["B"], at["G"], at["N"], shape[3])
    check_integers(arrays, "selection", selection, rows, -1, -(-at["M"] // block) - 1)
    return at


def check_once(times: Any) -> None:
    """Hold what each row names, counted, to blocks that it names once; waits for a device."""
    if bool((times > 1).any()):
        raise ValueError(
            f"selection: wanted each block at most once in a row, got one {int(times.max())} times"
        )


def check_parts(arrays: Arrays, outputs: Any, lses: Any) -> dict[str, Any]:
    """
    Hold parts of an attention to their sizes, and a log-sum-exp to numbers and minus infinity,
    which waits for a device.
    """
    at = check(arrays, PARTS, outputs, lses)
    if not bool((lses.real < float("inf")).all()):
        raise ValueError("lses: wanted numbers or minus infinity, got plus infinity or NaN")
    return at


def check_shared_heads(at: dict[str, Any], soft_cap: Any, scale: Any) -> None:
    """Hold heads of queries to a multiple of those of keys, and two numbers to their domains."""
    if at["H"] % at["G"]:
        raise ValueError(f"query: wanted heads that are a multiple of G={at['G']}, got H={at['H']}")
    check_finite("soft_cap", soft_cap)
    check_finite("scale", scale)
    if soft_cap is not None and soft_cap <= 0:
        raise ValueError(f"soft_cap: wanted a positive number or None, got {soft_cap!r}")
