"""
What stands between the inputs of an attention and its output, as a record: product, positions,
scale, bias, mask, weights, dropout, values.

The record that :func:`spec_stages` makes of an operation and its inputs is the specification's; a
convention, a fit or a systematic error replaces one of its fields. :func:`evaluate` computes it by
the stages of :mod:`attnverify.reference.attention`, gradients included, in float64.
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
from attnverify.reference import attention, gradients

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
    rescore   what is made of the scores with their biases; None: nothing
    weigh     how weights are made of scores and of what is visible; None: by a softmax
    stored    what the weights become before their product with the values; None: what they are
    backward  stages of :func:`attnverify.reference.gradients.attend_grad` that are replaced
    d_scale   the factor on the gradients of the products; None: scale times exponent
    dtype     what the inputs are stored in
    """

    operation: Operation
    inputs: Inputs
    dtype: str = "float64"
    scale: Any = 1.0
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
    rescore: Any = None
    weigh: Any = None
    stored: Any = None
    backward: Any = None
    d_scale: Any = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the scores."""
        shape = scores_shape(self.operation, self.inputs)
        assert shape is not None
        return shape

    @property
    def sees_broadcast(self) -> Any:
        """Which pairs see each other, as far as that differs."""
        both: Any = True
        for part in (self.causal, self.visible):
            both = both if part is None else both & part
        return both

    @property
    def sees(self) -> ndarray:
        """Which pairs see each other, in the shape of the scores."""
        return np.broadcast_to(self.sees_broadcast, self.shape)


Change = Callable[[StagedAttention], StagedAttention]
Products = Callable[[ndarray, ndarray], ndarray]


def spec_stages(operation: Operation, inputs: Inputs, dtype: str = "float64") -> StagedAttention:
    """
    Build the stages as the specification has them. ValueError for an operation that does not
    consist of them.
    """
    if not operation.is_staged:
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
    """Put the stages under a mask, and with the factor of their dropout."""
    made = replace(made, kept=1 / (1 - made.inputs.get("p", 0.0)))
    if mask is None or mask.dtype == bool:
        return replace(made, visible=mask)
    return replace(made, visible=mask != HIDDEN, bias=np.where(mask == HIDDEN, 0.0, mask))


def shift_indices(shift: Callable[[ndarray], ndarray], N: int, rows: int) -> ndarray:
    """
    Find the flat source index of each element that a shift of [N rows] gives, found by shifting an
    array of indices; -1 where it puts a zero.
    """
    return shift(np.arange(1.0, N * rows + 1).reshape(N, rows)).astype(int) - 1


def table_rows(inputs: Inputs, N: int, M: int, offset: int, sign: int = 1) -> ndarray:
    """
    Find the places of a learned table whose middle row belongs to distance 0; -1 beyond its ends.
    """
    rows = len(inputs["key_pos_bias"])
    row = rows // 2 + sign * (np.arange(M) - np.arange(N)[:, None] - offset)
    return np.where((row >= 0) & (row < rows), np.arange(N)[:, None] * rows + row, -1)


def gather_positions(x: ndarray, place: ndarray) -> ndarray:
    """x [... N rows] read at the places [N M]."""
    line = x.reshape(*x.shape[:-2], -1)
    return np.where(place < 0, 0.0, line[..., np.maximum(place, 0)])


def scatter_positions(y: ndarray, place: ndarray, rows: int) -> ndarray:
    """Apply the adjoint of :func:`gather_positions`: y [... N M] added up at its places."""
    line = np.zeros((*y.shape[:-2], y.shape[-2] * rows + 1))
    where: Any = (..., np.where(place < 0, line.shape[-1] - 1, place))
    np.add.at(line, where, y)
    return line[..., :-1].reshape(*y.shape[:-1], rows)


def product(s: StagedAttention, products: Products = attention.products) -> ndarray:
    """Compute the scores before their scale."""
    x = s.inputs
    if "score" in x:
        return x["score"]
    if "w_score" in x:
        return attention.additive_score(*(x[name] for name in ADDITIVE))
    if "position" in x:
        parts = {name: x[name] for name in ("query", "key", "position", "u", "v")}
        return attention.transformer_xl_score(
            **parts,
            shift=lambda far: s.position * gather_positions(far, s.place),
            scale=unscaled,
            products=products,
        )
    if "key_pos_bias" in x:
        parts = {name: x[name] for name in ("query", "key", *TABLES, "align")}
        return attention.learned_relative_score(
            **parts,
            read=lambda far, _: s.position * gather_positions(far, s.place),
            scale=unscaled,
            products=products,
        )
    return products(x["query"], x["key"])


ADDITIVE = ("query", "key", "w_query", "w_key", "w_score")
TABLES = ("key_pos_embeddings", "key_pos_bias", "query_pos_bias")


def unscaled(D: int) -> float:
    return 1.0


def scores(s: StagedAttention) -> tuple[ndarray, ndarray]:
    """Compute the scores with scale and biases, and which pairs see each other."""
    score = s.scale * product(s)
    if s.slopes is not None and s.distance is not None:
        score = score + s.slopes[:, None, None] * s.distance
    if s.bias is not None:
        score = score + s.bias
    score = s.exponent * score
    score = score if s.rescore is None else s.rescore(score)
    return score, s.sees_broadcast & (score != HIDDEN)


def weights(s: StagedAttention, score: ndarray, visible: ndarray) -> ndarray:
    """Compute the softmax over what a row sees, and the weights of a row that sees nothing."""
    sees_some = visible.any(axis=-1, keepdims=True)
    weigh = attention.weigh if s.weigh is None else s.weigh
    return np.where(sees_some, weigh(score, visible), s.empty)


def dropped(s: StagedAttention, w: ndarray) -> ndarray:
    keep = s.inputs.get("keep")
    return w * s.kept if keep is None else np.where(keep, w * s.kept, 0.0)


def evaluate(s: StagedAttention) -> Any:
    """Compute what the operation returns by these stages: scores, weights, output or gradients."""
    with np.errstate(all="ignore"):
        if s.operation.is_score:
            return s.scale * product(s)
        score, visible = scores(s)
        if s.operation.is_gradient:
            return evaluate_gradients(s, score, visible)
        w = weights(s, score, visible)
        if "score" in s.inputs:
            return w
        kept = dropped(s, w)
        kept = kept if s.stored is None else s.stored(kept)
        return attention.mix(kept, w != 0, s.inputs["value"])


def evaluate_gradients(s: StagedAttention, score: ndarray, visible: ndarray) -> tuple[ndarray, ...]:
    """One gradient for each differentiable input, in the specification's order."""
    stages = {
        "weigh": lambda score, visible: weights(s, score, visible),
        "drop": lambda w, keep, p: dropped(s, w),
        "drop_back": lambda d, keep, p: dropped(s, d),
        "value_grad": lambda w, visible, d: attention.mix(w.mT, w.mT != 0, d),
    }
    d_score, d_value = gradients.attend_grad(
        s.inputs["d_output"], score, visible, s.inputs["value"], **stages | (s.backward or {})
    )
    scale = s.scale * s.exponent if s.d_scale is None else s.d_scale
    d_query, d_key, *others = product_gradients(s, scale * d_score, visible)
    d_mask = gradients.mask_grad(s.exponent * d_score, s.inputs.get("mask"))
    return d_query, d_key, d_value, *others, *d_mask


def product_gradients(s: StagedAttention, d: ndarray, visible: ndarray) -> tuple[ndarray, ...]:
    """By query, key and what else the scores before their scale are made of."""
    x = s.inputs
    if "w_score" in x:
        return gradients.additive_score_grad(d, visible, *(x[name] for name in ADDITIVE))
    if s.place is None:
        return gradients.query_grad(d, visible, x["key"]), gradients.key_grad(
            d, visible, x["query"]
        )
    shifted = "position" in x
    bias, far_bias = (x["u"], x["v"][:, None]) if shifted else (x["query_pos_bias"], 0.0)
    table = x["position"] if shifted else x["key_pos_embeddings"].swapaxes(0, 1)
    d_content = gradients.query_grad(d, visible, x["key"])
    d_key = gradients.key_grad(d, visible, x["query"] + bias[:, None])
    d_rows = s.position * scatter_positions(d, s.place, table.shape[-2])
    read = scatter_positions(1.0 * visible, s.place, table.shape[-2]) > 0
    d_far, d_table = gradients.table_grad(d_rows, read, x["query"] + far_bias, table)
    d_bias = d_content.sum((0, 2))
    if shifted:
        return d_content + d_far, d_key, d_table, d_bias, d_far.sum((0, 2))
    return d_content + d_far, d_key, d_table.swapaxes(0, 1), d_rows.sum((0, 2)).T, d_bias
