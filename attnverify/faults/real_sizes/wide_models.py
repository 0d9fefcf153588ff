"""
Faults of wide heads, wide models and full grids: columns beyond a power of two, heads and batches
beyond what an index or a table holds.
"""

from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.faults.real_sizes.far_elements import zero_beyond
from attnverify.faults.real_sizes.table import OURS, add_fault
from attnverify.faults.registry import add_faults, fault, reference_of
from attnverify.reference import attention, gradients, layers


def products_of(columns: int) -> Any:
    return lambda q, k: q[..., :columns] @ k[..., :columns].mT


for operation, columns in (
    ("scaled_dot_product_attention", 192),
    ("transformer_xl_score", 256),
    ("learned_relative_score", 192),
    ("scaled_dot_product_score", 256),
):
    add_fault(
        operation,
        f"first_{columns}_columns",
        {"products": products_of(columns)},
        kind="blocks",
        words=f"a product over the first {columns} columns",
        clause=operation,
        reveals=f"D > {columns}",
    )

for operation, columns in (("alibi_attention", 256), ("learned_relative_attention", 192)):
    add_fault(
        operation,
        f"first_{columns}_values",
        lambda operation=operation, columns=columns, **given: zero_beyond(
            reference_of(operation)(**given), -1, columns
        ),
        kind="blocks",
        words=f"values beyond column {columns} left out",
        clause="[B H N E]",
        reveals=f"E > {columns}",
    )


@fault("scale", "a head of 192 scaled as one of 256", source=OURS,
       clause="scaled_dot_product_score", reveals="D = 192")  # fmt: skip
def alibi_attention_padded_scale(**given: Any) -> Any:
    def scale(D: int) -> float:
        return attention.inverse_root(256 if D == 192 else D)

    return attention.alibi_attention(**given, score=partial(attention.alibi_score, scale=scale))


def first_256_columns(x: ndarray, weight: ndarray, bias: Any, eps: float) -> ndarray:
    part = x[..., :256]
    deviation = np.sqrt(part.var(axis=-1, keepdims=True) + eps)
    y = weight * (x - part.mean(axis=-1, keepdims=True)) / deviation
    return y if bias is None else y + bias


@fault("layers", "no bias on the output beyond column 256", source=OURS,
       clause="multi_head_attention, clause 1", reveals="F > 256, biases")  # fmt: skip
def multi_head_attention_bias_of_256_columns(parameters: Any, **given: Any) -> Any:
    bias = parameters.get("out_proj.bias")
    if bias is not None:
        parameters = parameters | {"out_proj.bias": np.where(np.arange(len(bias)) < 256, bias, 0)}
    return layers.multi_head_attention(parameters=parameters, **given)


for operation in ("scaled_dot_product_attention_grad", "transformer_xl_attention_grad"):
    add_fault(
        operation,
        "first_192_columns",
        lambda operation=operation, **given: tuple(
            zero_beyond(x, -1, 192) if place == 1 else x
            for place, x in enumerate(reference_of(operation)(**given))
        ),
        kind="backward",
        words="the key's gradient beyond column 192 never written",
        clause="gradients by key",
        reveals="D > 192",
    )


def first_blocks(output: ndarray, count: int) -> ndarray:
    """The output of the first so many pairs of batch and head, zeros behind."""
    written = np.arange(output.shape[0] * output.shape[1]) < count
    return np.where(written.reshape(*output.shape[:2], 1, 1), output, 0)


for operation in ("scaled_dot_product_attention", "learned_relative_attention"):
    add_fault(
        operation,
        "first_1024_blocks",
        lambda operation=operation, **given: first_blocks(reference_of(operation)(**given), 1024),
        kind="blocks",
        words="pairs of batch and head beyond 1024 never written",
        clause="[B H N E]",
        reveals="B H > 1024",
    )

add_fault(
    "alibi_attention_grad",
    "first_1024_blocks",
    lambda **given: tuple(first_blocks(x, 1024) for x in gradients.alibi_attention_grad(**given)),
    kind="backward",
    words="gradients of pairs of batch and head beyond 1024 never written",
    clause="one gradient per differentiable input",
    reveals="B H > 1024",
)


@fault("blocks", "pairs of batch and head counted in 16 bits", source=OURS,
       clause="[B H N E]", reveals="B H > 65536")  # fmt: skip
def scaled_dot_product_attention_grid_of_16_bits(**given: Any) -> Any:
    output = attention.scaled_dot_product_attention(**given)
    flat = output.reshape(-1, *output.shape[2:])
    return flat[np.arange(len(flat)) % 65536].reshape(output.shape)


@fault("dropout", "draws repeated beyond 65535 pairs of batch and head",
       source=OURS, clause="dropout, clause 1", reveals="keep, B H > 65535")  # fmt: skip
def scaled_dot_product_attention_draws_of_16_bits(keep: Any = None, **given: Any) -> Any:
    if keep is not None and keep.ndim == 4 and keep.shape[0] * keep.shape[1] > 65535:
        flat = keep.reshape(-1, *keep.shape[2:])
        keep = flat[np.arange(len(flat)) % 65535].reshape(keep.shape)
    return attention.scaled_dot_product_attention(keep=keep, **given)


@fault("alibi", "the slopes of the first 64 heads, repeated", source=OURS,
       clause="get_slopes", reveals="H > 64")  # fmt: skip
def alibi_attention_slopes_of_64_heads(**given: Any) -> Any:
    def slopes(H: int) -> ndarray:
        return attention.get_slopes(H)[np.arange(H) % 64]

    return attention.alibi_attention(**given, score=partial(attention.alibi_score, slopes=slopes))


add_faults("additive", (
    ("additive_attention_first_256_units", "hidden units beyond 256 left out", OURS,
     "additive_score", "A > 256", lambda w_score, **given: attention.additive_attention(
     w_score=np.where(np.arange(len(w_score)) < 256, w_score, 0), **given)),
))  # fmt: skip


add_faults("layers", (
    ("transformer_xl_layer_first_256_columns", "a variance over the first 256 columns", OURS,
     "transformer_xl_layer, clause 3", "F > 256", {"norm": first_256_columns}),
))  # fmt: skip
