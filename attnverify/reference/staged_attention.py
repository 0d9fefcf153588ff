"""
An attention in stages: product, positions, scale, bias, mask, weights, dropout, values, each of
which can be replaced alone.

The record that :func:`stages` makes of an operation and its inputs is the law's; a convention or a
fit replaces one of its fields. Everything is NumPy in float64, gradients included, so that an
alternative costs about as much as the reference.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.operation import CATALOGUE, Operation
from attnverify.catalogue.traits import TRAITS
from attnverify.inputs.masks import causal_pairs, scores_shape
from attnverify.inputs.recipe import Inputs

HIDDEN = -np.inf


@dataclass(frozen=True)
class StagedAttention:
    """
    What stands between the inputs of an attention and its output.

    scale     the factor on the whole product
    place     [N M]: where in the scores of the position table [N rows], read as one line, each pair
              finds its own; -1 for zero
    position  the factor on these scores; None where there is no table
    slopes    [H] and distance [N M]: their product is added after the scale
    bias      the float mask, added as well
    exponent  the factor on the scores with all their biases
    causal    what a frontier alone leaves visible; visible: what the masks leave, both broadcast to
              the scores
    empty     the weights of a row that sees no key
    kept      the factor on the weights that dropout keeps
    dtype     what the inputs are stored in
    """

    operation: Operation
    inputs: Inputs
    dtype: str = "float64"
    scale: float = 1.0
    place: Any = None
    position: float = 1.0
    slopes: Any = None
    distance: Any = None
    bias: Any = None
    exponent: float = 1.0
    causal: Any = None
    visible: Any = None
    empty: Any = 0.0
    kept: float = 1.0

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the scores."""
        shape = scores_shape(self.operation, self.inputs)
        assert shape is not None
        return shape

    @property
    def sees(self) -> ndarray:
        """Which pairs see each other, in the shape of the scores."""
        both: Any = True
        for part in (self.causal, self.visible):
            both = both if part is None else both & part
        return np.broadcast_to(both, self.shape)


Change = Callable[[StagedAttention], StagedAttention]


def spec_stages(operation: Operation, inputs: Inputs, dtype: str = "float64") -> StagedAttention:
    """The stages as the law has them. ValueError for an operation that does not consist of them."""
    if not operation.traits.staged:
        staged = ", ".join(name for name, row in TRAITS.items() if row.staged)
        raise ValueError(f"operation: wanted one of {staged}, got {operation.name}")
    made = StagedAttention(operation, inputs, dtype)
    N, M = made.shape[-2:]
    if "query" in inputs and "w_score" not in inputs:
        made = replace(made, scale=1 / sqrt(inputs["query"].shape[-1]))
    if "position" in inputs:
        made = replace(made, place=shift_indices(CATALOGUE["rel_shift"].reference, N, M))
    elif "key_pos_bias" in inputs:
        made = replace(
            made, place=table_rows(inputs, N, M, M - N if inputs["align"] == "end" else 0)
        )
    if operation.traits.slopes:
        made = replace(
            made,
            slopes=CATALOGUE["get_slopes"].reference(made.shape[-3]),
            distance=np.arange(M) - (np.arange(N)[:, None] + M - N),
        )
    if operation.traits.causal:
        made = replace(made, causal=causal_pairs(N, M))
    return with_mask(made, inputs.get("mask", inputs.get("visible")))


def with_mask(made: StagedAttention, mask: ndarray | None) -> StagedAttention:
    """The stages under a mask, and with the factor of their dropout."""
    made = replace(made, kept=1 / (1 - made.inputs.get("p", 0.0)))
    if mask is None or mask.dtype == bool:
        return replace(made, visible=mask)
    return replace(made, visible=mask != HIDDEN, bias=np.where(mask == HIDDEN, 0.0, mask))


def shift_indices(shift: Callable[[ndarray], ndarray], N: int, rows: int) -> ndarray:
    """
    The places that a shift of [N rows] reads, found by shifting the places themselves; -1 where it
    puts a zero.
    """
    return shift(np.arange(1.0, N * rows + 1).reshape(N, rows)).astype(int) - 1


def table_rows(inputs: Inputs, N: int, M: int, offset: int, sign: int = 1) -> ndarray:
    """The places of a learned table whose middle row belongs to distance 0; -1 beyond its ends."""
    rows = len(inputs["key_pos_bias"])
    row = rows // 2 + sign * (np.arange(M) - np.arange(N)[:, None] - offset)
    return np.where((row >= 0) & (row < rows), np.arange(N)[:, None] * rows + row, -1)


def gather_positions(x: ndarray, place: ndarray) -> ndarray:
    """x [... N rows] read at the places [N M]."""
    line = x.reshape(*x.shape[:-2], -1)
    return np.where(place < 0, 0.0, line[..., np.maximum(place, 0)])


def scatter_positions(y: ndarray, place: ndarray, rows: int) -> ndarray:
    """The adjoint of :func:`gathered`: y [... N M] added up at its places."""
    line = np.zeros((*y.shape[:-2], y.shape[-2] * rows + 1))
    where: Any = (..., np.where(place < 0, line.shape[-1] - 1, place))
    np.add.at(line, where, y)
    return line[..., :-1].reshape(*y.shape[:-1], rows)


def product(s: StagedAttention) -> ndarray:
    """The scores before their scale."""
    x = s.inputs
    if "score" in x:
        return x["score"]
    if "w_score" in x:
        score: ndarray = CATALOGUE["additive_score"].reference(
            x["query"], x["key"], x["w_query"], x["w_key"], x["w_score"]
        )
        return score
    content = (x["query"] + content_bias(x)) @ x["key"].mT
    return (
        content
        if s.place is None
        else content + s.position * gather_positions(table_scores(x), s.place)
    )


def content_bias(x: Inputs) -> Any:
    name = "u" if "u" in x else "query_pos_bias"
    return x[name][:, None] if name in x else 0.0


def table_scores(x: Inputs) -> ndarray:
    """Every query against every row of its table, [B H N rows]."""
    if "position" in x:
        return (x["query"] + x["v"][:, None]) @ x["position"].mT
    return x["query"] @ x["key_pos_embeddings"].transpose(1, 2, 0) + x["key_pos_bias"].T[:, None]


def scores(s: StagedAttention) -> ndarray:
    """The scores with scale and biases, minus infinity where a key is hidden."""
    score = s.scale * product(s)
    if s.slopes is not None and s.distance is not None:
        score = score + s.slopes[:, None, None] * s.distance
    if s.bias is not None:
        score = score + s.bias
    return np.where(s.sees, s.exponent * score, HIDDEN)


def weights(s: StagedAttention) -> ndarray:
    score = scores(s)
    top = score.max(axis=-1, keepdims=True)
    w = np.where(score == HIDDEN, 0.0, np.exp(score - np.where(top == HIDDEN, 0.0, top)))
    total = w.sum(axis=-1, keepdims=True)
    return np.where(top == HIDDEN, s.empty, w / np.where(total == 0, 1.0, total))


def dropped(s: StagedAttention, w: ndarray) -> ndarray:
    keep = s.inputs.get("keep")
    return w * s.kept if keep is None else np.where(keep, w * s.kept, 0.0)


def evaluate(s: StagedAttention) -> Any:
    """What the operation returns by these stages: scores, weights, output or gradients."""
    from attnverify.numpy_ref.hidden_keys import sum_seen

    with np.errstate(all="ignore"):
        if s.operation.is_score:
            return s.scale * product(s)
        if "score" in s.inputs:
            return weights(s)
        if s.operation.is_gradient:
            return gradients(s)
        w = weights(s)
        return sum_seen(dropped(s, w), w == 0, s.inputs["value"])


def gradients(s: StagedAttention) -> tuple[ndarray, ...]:
    """One gradient for each differentiable input, in the law's order."""
    from attnverify.numpy_ref.attention import mask_grad
    from attnverify.numpy_ref.hidden_keys import sum_seen

    x, w = s.inputs, weights(s)
    d_value = sum_seen(dropped(s, w).mT, (w == 0).mT, x["d_output"])
    d_weights = dropped(s, x["d_output"] @ x["value"].mT)
    mean = np.where(s.sees, w * d_weights, 0.0).sum(axis=-1, keepdims=True)
    d_score = np.where(s.sees, w * (d_weights - mean), 0.0)
    d_query, d_key, *others = product_gradients(s, s.scale * s.exponent * d_score)
    return d_query, d_key, d_value, *others, *mask_grad(s.exponent * d_score, x.get("mask"))


def product_gradients(s: StagedAttention, d: ndarray) -> tuple[ndarray, ...]:
    """The gradients by query, key and what else the scores before their scale are made of."""
    from attnverify.numpy_ref.hidden_keys import sum_seen

    x, hidden = s.inputs, ~s.sees
    if "w_score" in x:
        return additive_gradients(x, d, s.sees)
    d_query, d_key = (
        sum_seen(d, hidden, x["key"]),
        sum_seen(d.mT, hidden.mT, x["query"] + content_bias(x)),
    )
    if s.place is None:
        return d_query, d_key
    table = x["position"] if "position" in x else x["key_pos_embeddings"].swapaxes(0, 1)
    d_rows = s.position * scatter_positions(d, s.place, table.shape[-2])
    unread = scatter_positions(1.0 * s.sees, s.place, table.shape[-2]) == 0
    d_bias, d_far = d_query.sum((0, 2)), sum_seen(d_rows, unread, table)
    if "position" in x:
        d_table = sum_seen(d_rows.mT, unread.mT, x["query"] + x["v"][:, None]).sum(0)
        return d_query + d_far, d_key, d_table, d_bias, d_far.sum((0, 2))
    d_table = sum_seen(d_rows.mT, unread.mT, x["query"]).sum(0)
    return d_query + d_far, d_key, d_table.swapaxes(0, 1), d_rows.sum((0, 2)).T, d_bias


def additive_gradients(x: Inputs, d: ndarray, sees: ndarray) -> tuple[ndarray, ...]:
    from attnverify.numpy_ref.attention import layer_grad, projection_grad

    asks, asked = np.asarray(sees.any(axis=-1)), np.asarray(sees.any(axis=-2))
    d_q, d_k, d_w_score = layer_grad(
        d, sees, x["query"] @ x["w_query"].T, x["key"] @ x["w_key"].T, x["w_score"]
    )
    d_query, d_w_query = projection_grad(d_q, x["query"], x["w_query"], asks)
    d_key, d_w_key = projection_grad(d_k, x["key"], x["w_key"], asked)
    return d_query, d_key, d_w_query, d_w_key, d_w_score
