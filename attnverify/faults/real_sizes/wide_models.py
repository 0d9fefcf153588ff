"""
Faults of wide heads, wide models and full grids: columns beyond a power of two, heads and batches
beyond what an index or a table holds.
"""

from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.faults.changes import first, normed_by, where_given, with_outputs, written
from attnverify.faults.registry import OURS, add_faults, reference_of
from attnverify.reference import attention, gradients, layers

NARROW = (
    ("scaled_dot_product_attention", 192),
    ("transformer_xl_score", 256),
    ("learned_relative_score", 192),
    ("scaled_dot_product_score", 256),
)
"""What multiplies its first columns alone."""


def products_of(columns: int) -> Any:
    return lambda q, k: q[..., :columns] @ k[..., :columns].mT


def wrapped(x: ndarray, count: int) -> ndarray:
    """The first so many pairs of batch and head, again and again."""
    flat = x.reshape(-1, *x.shape[2:])
    return flat[np.arange(len(flat)) % count].reshape(x.shape)


def biased(**changed: Any) -> dict[str, Any]:
    return {"score": partial(attention.alibi_score, **changed)}


def first_blocks(output: ndarray, count: int) -> ndarray:
    """The output of the first so many pairs of batch and head, zeros behind."""
    written = np.arange(output.shape[0] * output.shape[1]) < count
    return np.where(written.reshape(*output.shape[:2], 1, 1), output, 0)


add_faults("additive", (
    ("additive_attention_first_256_units", "hidden units beyond 256 left out", OURS,
     "additive_score", "A > 256", lambda w_score, **given: attention.additive_attention(
     w_score=np.where(np.arange(len(w_score)) < 256, w_score, 0), **given)),
))  # fmt: skip


add_faults("layers", (
    ("transformer_xl_layer_first_256_columns", "a variance over the first 256 columns", OURS,
     "transformer_xl_layer, clause 3", "F > 256", {"norm": partial(normed_by, 256)}),
    ("multi_head_attention_bias_of_256_columns", "no bias on the output beyond column 256", OURS,
     "multi_head_attention, clause 1", "F > 256, biases",
     where_given(layers.multi_head_attention, parameters=lambda own, x: own |
      {name: first(256)(own[name]) for name in ["out_proj.bias"] if own.get(name) is not None})),
))  # fmt: skip

add_faults("blocks", (
    *((f"{operation}_first_{columns}_columns", f"a product over the first {columns} columns", OURS,
       operation, f"D > {columns}", {"products": products_of(columns)})
      for operation, columns in NARROW),
    *((f"{operation}_first_{columns}_values", f"values beyond column {columns} left out", OURS,
       "[B H N E]", f"E > {columns}",
       with_outputs(reference_of(operation), {0: written(columns, -1)}))
      for operation, columns in (("alibi_attention", 256), ("learned_relative_attention", 192))),
    *((f"{operation}_first_1024_blocks", "pairs of batch and head beyond 1024 never written", OURS,
       "[B H N E]", "B H > 1024",
       with_outputs(reference_of(operation), {0: lambda y, x: first_blocks(y, 1024)}))
      for operation in ("scaled_dot_product_attention", "learned_relative_attention")),
    ("scaled_dot_product_attention_grid_of_16_bits",
     "pairs of batch and head counted in 16 bits", OURS, "[B H N E]", "B H > 65536",
     with_outputs(attention.scaled_dot_product_attention, {0: lambda y, x: wrapped(y, 65536)})),
))  # fmt: skip

add_faults("backward", (
    *((f"{operation}_grad_first_192_columns",
       "the key's gradient beyond column 192 never written", OURS, "gradients by key", "D > 192",
       with_outputs(reference_of(f"{operation}_grad"), {1: written(192, -1)}))
      for operation in ("scaled_dot_product_attention", "transformer_xl_attention")),
    ("alibi_attention_grad_first_1024_blocks",
     "gradients of pairs of batch and head beyond 1024 never written", OURS,
     "one gradient per differentiable input", "B H > 1024",
     lambda **given: tuple(first_blocks(x, 1024) for x in
      gradients.alibi_attention_grad(**given))),
))  # fmt: skip

add_faults("dropout", (
    ("scaled_dot_product_attention_draws_of_16_bits",
     "draws repeated beyond 65535 pairs of batch and head", OURS, "dropout, clause 1",
     "keep, B H > 65535",
     where_given(attention.scaled_dot_product_attention, keep=lambda keep, x:
      wrapped(keep, 65535) if keep.ndim == 4 else keep)),
))  # fmt: skip

add_faults("scale", (
    ("alibi_attention_padded_scale", "a head of 192 scaled as one of 256", OURS,
     "scaled_dot_product_score", "D = 192",
     biased(scale=lambda D: attention.inverse_root(256 if D == 192 else D))),
))  # fmt: skip

add_faults("alibi", (
    ("alibi_attention_slopes_of_64_heads", "the slopes of the first 64 heads, repeated", OURS,
     "get_slopes", "H > 64", biased(slopes=lambda H: attention.get_slopes(H)[np.arange(H) % 64])),
))  # fmt: skip
