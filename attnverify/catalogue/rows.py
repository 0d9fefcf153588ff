"""
Rows of an attention: a row of the output is the output of its query alone, and a causal one sees
the keys up to its own and no other. So what is too large to be answered whole is answered by rows.
"""

from typing import Any

import numpy as np

from attnverify.catalogue.operation import Operation

Inputs = dict[str, Any]


def has_independent_rows(operation: Operation) -> bool:
    """Tell whether a row of its output is the output of its query alone."""
    return operation.is_attention and not operation.is_gradient


def sampled_rows(N: int) -> list[int]:
    """Choose the first and last rows, the edges of blocks, and some between."""
    rows = {0, N - 1, N // 2, *(edge for edge in (15, 16, 64, 127, 128, 511, 512) if edge < N)}
    return sorted(rows)


def single_row(operation: Operation, inputs: Inputs, i: int) -> Inputs:
    """Cut out the inputs of which row i of the output is the only row."""
    return few_rows(operation, inputs, i, 1)


def few_rows(operation: Operation, inputs: Inputs, first: int, count: int) -> Inputs:
    """Cut out the inputs of which these rows of the output, next to each other, are all rows."""
    if operation.traits.causal:
        return _causal_rows(inputs, first, count)
    if "key_pos_bias" in inputs:
        return _rows_of_tables(inputs, first, count)
    return _queries(inputs, slice(first, first + count))


def _queries(inputs: Inputs, rows: slice) -> Inputs:
    N = inputs["query"].shape[-2]
    masks = {
        name: inputs[name] for name in ("mask", "visible", "keep") if inputs.get(name) is not None
    }
    cut = {
        name: mask[..., rows, :] if mask.ndim > 1 and mask.shape[-2] == N else mask
        for name, mask in masks.items()
    }
    queries = [name for name in ("query", "d_output") if name in inputs]
    return inputs | cut | {name: inputs[name][..., rows, :] for name in queries}


def _causal_rows(inputs: Inputs, first: int, count: int) -> Inputs:
    """Rows of an end-aligned causal attention: their queries against the keys up to the last's."""
    N, M = inputs["query"].shape[-2], inputs["key"].shape[-2]
    seen = max(M - N + first + count, 1)
    cut = {"key": inputs["key"][..., :seen, :], "value": inputs["value"][..., :seen, :]}
    if "position" in inputs:
        cut["position"] = inputs["position"][:, M - seen :]
    rows = _queries(inputs, slice(first, first + count)) | cut
    if M - N + first + count <= 0:  # rows before all keys
        return rows | {"visible": np.zeros((1, 1), bool)}
    visible = rows.get("visible")
    return rows if visible is None else rows | {"visible": visible[..., :seen]}


def _rows_of_tables(inputs: Inputs, first: int, count: int) -> Inputs:
    """Rows with their tables moved, so that the first query reads what row ``first`` reads."""
    N, M, P = inputs["query"].shape[-2], inputs["key"].shape[-2], len(inputs["key_pos_bias"]) // 2
    reach = max(M, count)
    read = P - first - (M - N if inputs["align"] == "end" else 0)  # the row that key 0 reads
    rows = np.clip(np.arange(-reach, reach) + read, 0, 2 * P - 1)
    tables = {name: inputs[name][rows] for name in ("key_pos_embeddings", "key_pos_bias")}
    return _queries(inputs, slice(first, first + count)) | tables | {"align": "start"}
