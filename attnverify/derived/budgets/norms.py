"""
The normalised vector: y = c / sqrt(mean c^2 + eps), what layer and RMS norms are.

A derivative with a radius converges too slowly where the input's error is a third of its spread.
But the quadratic form is exact: for c = z - mean z and any dz,

    var(z + dz) - var(z) = 2 mean(c dz) + var(dz),  var(dz) <= mean(dz^2)

since the mean of c is 0; and |y| stays below sqrt(n - 1), or sqrt(n) where nothing is subtracted,
whatever becomes of z; where the mean is that of a z which was not kept yet, by so much of the root
more.
"""

from dataclasses import dataclass

import numpy as np
from numpy import ndarray

from attnverify.bounds.error_rules import gamma
from attnverify.derived.budgets.keeping import between_uses
from attnverify.derived.budgets.state import Errors
from attnverify.derived.forms import follows_mean, source_of
from attnverify.derived.tracing.node import Node

Rule = tuple[ndarray, ndarray]


@dataclass(frozen=True)
class _Norm:
    """c, its root, the sum of its squares, and the nodes between sum and root."""

    c: Node
    root: Node
    total: Node
    between: tuple[Node, ...]

    @property
    def centred(self) -> bool:
        return self.c.name == "subtract" and follows_mean(self.c)

    @property
    def count(self) -> float:
        return self.total.inputs[0].value.size / self.total.value.size

    def mean(self, x: ndarray) -> ndarray:
        return np.broadcast_to(x, self.total.inputs[0].shape).mean(self.total.axes, keepdims=True)


def _find_norm(node: Node) -> _Norm | None:
    """Recognise a norm by its structure: a root of a sum of the dividend's squares."""
    c, root = node.inputs
    if root.name != "sqrt":
        return None
    stack, between = [root.inputs[0]], list[Node]()
    while stack and len(between) < 8:
        node = stack.pop()
        if node.kind == "sum" and _squares(node.inputs[0], c):
            return _Norm(c, root, node, tuple(between))
        between.append(node)
        if node.kind != "sum":
            stack += [i for i in node.inputs if not i.const and i.kind != "leaf"]
    return None


def _squares(node: Node, c: Node) -> bool:
    return node.name == "multiply" and node.inputs[0] is c and node.inputs[1] is c


def bound_normalised(at: Errors, node: Node, propagated: ndarray, L: ndarray, u: float) -> Rule:
    """
    Bound a quotient that is a normalised vector, and leave any other as it is:

        |dy| <= Ec rstd (1 + r) + |y| r,   (1 + r)^-2 = 1 - (2 mean(|c| Ez) + mean(Ez^2) + l) / v

    with v = mean c^2 + eps and l the roundings between. The factor rstd may be multiplied into
    z and mean z each: gamma(4) of their sizes.
    """
    norm = _find_norm(node)
    if norm is None:
        return propagated, L
    x, rstd = np.abs(node.value), 1 / norm.root.value
    r, Ec = _root_error(at, norm), _centred_error(at, norm)[0]
    near = Ec * rstd * (1 + r) + x * r
    near = np.where(np.isnan(near), np.inf, near)
    L = gamma(4, u) * (x + np.fmin(propagated, near))
    if norm.c.name in ("add", "subtract"):
        parts = np.asarray(sum(at.size(i) for i in norm.c.inputs))
        least = np.maximum(at.floor(norm.root), 1e-300)
        L = L + gamma(4, u) * parts * np.minimum((1 + r) * rstd, 1 / least)
    far = (x + np.sqrt(norm.count - norm.centred)) * (1 + 1e-3) + L
    if norm.centred and (apart := _read_apart(at, norm)).any():
        far = far + apart / np.maximum(at.floor(norm.root), 1e-300)
    return np.fmin(np.fmin(propagated, near), far), L


def _centred_error(at: Errors, norm: _Norm) -> Rule:
    """
    Bound the error of c, and that of z with what mean and difference lose themselves, and what the
    mean is off that read a z which was not kept yet.
    """
    if not norm.centred:
        return at.E[norm.c], at.E[norm.c]
    Ez = at.E[norm.c.inputs[0]]
    own = np.maximum(at.E[norm.c] - Ez - norm.mean(Ez), 0.0) + _read_apart(at, norm)
    return Ez + own + norm.mean(Ez), Ez + own


def _read_apart(at: Errors, norm: _Norm) -> ndarray:
    z = norm.c.inputs[0]
    source = source_of(z)
    apart = between_uses(at, source)
    return norm.mean(apart if source is z else apart.max(initial=0.0))


def _root_error(at: Errors, norm: _Norm) -> ndarray:
    Eo, v = _centred_error(at, norm)[1], norm.root.value**2
    bent = 2 * norm.mean(np.abs(norm.c.value) * Eo) + norm.mean(Eo * Eo)
    squares = at.L[norm.total.inputs[0]]
    rounded = squares.sum(norm.total.axes, keepdims=True) + at.L[norm.total]
    bent = bent + rounded / norm.count
    for node in norm.between:
        bent = bent + _fitted(at.L[node], norm.root.shape)
    rho = np.maximum(bent / v, 0.0)
    r = np.where(rho < 1, 1 / np.sqrt(np.maximum(1 - rho, 1e-300)) - 1, np.inf)
    return r + at.L[norm.root] / norm.root.value * 2


def _fitted(L: ndarray, shape: tuple[int, ...]) -> ndarray:
    """Give an array of as many elements that shape."""
    return np.broadcast_to(L.reshape(shape) if L.size == int(np.prod(shape)) else L, shape)
