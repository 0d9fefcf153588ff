"""The merge of parts in every order: its parts are keys, their lses exact scores."""

import numpy as np
from numpy import ndarray

from tests.rounding_variants.attention import softmax, weighted
from tests.rounding_variants.gradients import row_gradient, weights_again
from tests.rounding_variants.machine import Machine, clean


def keys_of(at: Machine, outputs: ndarray, lses: ndarray) -> tuple[ndarray, ndarray]:
    """Scores [B H N 1 C] and values [B H N C E]."""
    return at.read(np.moveaxis(lses, 0, -1))[..., None, :], np.moveaxis(clean(outputs), 0, -2)


def merge(at: Machine, outputs: ndarray, lses: ndarray) -> tuple[ndarray, ndarray]:
    """The output stored, the lse in at least float32; weights may be those of the lse kept."""
    s, value = keys_of(at, outputs, lses)
    o, lse = weighted(at, s, value)
    if at.order.saved == "lse":
        again = at.prob(weights_again(at, s, lse))
        o = at.contract(again, np.swapaxes(at.read(value), -1, -2))[..., None, :]
    return at.out(o[..., 0, :]), lse[..., 0, 0].astype(np.float64)


def merge_gradient(
    at: Machine, d_output: ndarray, d_lse: ndarray, outputs: ndarray, lses: ndarray
) -> tuple[ndarray, ndarray]:
    """By weights that were saved or made again; the mean from them or from the output."""
    s, value = keys_of(at, outputs, lses)
    v, dO = at.read(value), at.read(d_output)[..., None, :]
    o, lse = weighted(at, s, value)
    w = at.prob(weights_again(at, s, lse) if at.order.softmax != "row" else softmax(at, s))
    seen = s > -np.inf
    dP = np.where(seen, at.score(at.contract(dO, v)[..., None, :]), 0).astype(at.work)
    if at.order.mean == "output":
        D = at.contract(dO, at.to(o, at.P.storage))[..., None]
    else:
        D = at.contract(w, dP)[..., None]
    arriving = at.read(d_lse)[..., None, None]
    inner = row_gradient(at, w, dP, D)
    d_lses = at.acc(inner + at.acc(w * arriving))
    d_outputs = at.acc(np.swapaxes(w, -1, -2) * dO)
    d_outputs = np.where(np.swapaxes(seen, -1, -2), d_outputs, 0)
    d_lses = np.where(seen, d_lses, 0)
    back = np.moveaxis(at.out(d_outputs), -2, 0), np.moveaxis(d_lses[..., 0, :], -1, 0)
    return back[0], back[1].astype(np.float64)
