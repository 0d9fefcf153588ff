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
    if operation.traits.causal:
        return _single_causal_row(inputs, i)
    if "key_pos_bias" in inputs:
        return _single_row_of_tables(inputs, i)
    return _single_query(inputs, i)


def _single_query(inputs: Inputs, i: int) -> Inputs:
    N, masks = (
        inputs["query"].shape[-2],
        {
            name: inputs[name]
            for name in ("mask", "visible", "keep")
            if inputs.get(name) is not None
        },
    )
    rows = {
        name: mask[..., i : i + 1, :] if mask.ndim > 1 and mask.shape[-2] == N else mask
        for name, mask in masks.items()
    }
    queries = [name for name in ("query", "d_output") if name in inputs]
    return inputs | rows | {name: inputs[name][..., i : i + 1, :] for name in queries}


def _single_causal_row(inputs: Inputs, i: int) -> Inputs:
    """Row i of an end-aligned causal attention: one query against the keys up to its own."""
    N, M = inputs["query"].shape[-2], inputs["key"].shape[-2]
    seen = max(M - N + i + 1, 1)
    cut = {"key": inputs["key"][..., :seen, :], "value": inputs["value"][..., :seen, :]}
    if "position" in inputs:
        cut["position"] = inputs["position"][:, M - seen :]
    row = _single_query(inputs, i) | cut
    if M - N + i < 0:  # a row before all keys
        return row | {"visible": np.zeros((1, 1), bool)}
    visible = row.get("visible")
    return row if visible is None else row | {"visible": visible[..., :seen]}


def _single_row_of_tables(inputs: Inputs, i: int) -> Inputs:
    """Row i with its tables moved, so that a single query reads what row i reads."""
    N, M, P = inputs["query"].shape[-2], inputs["key"].shape[-2], len(inputs["key_pos_bias"]) // 2
    first = P - i - (M - N if inputs["align"] == "end" else 0)  # the row that key 0 reads
    rows = np.clip(np.arange(-M, M) + first, 0, 2 * P - 1)
    tables = {name: inputs[name][rows] for name in ("key_pos_embeddings", "key_pos_bias")}
    return _single_query(inputs, i) | tables | {"align": "start"}
