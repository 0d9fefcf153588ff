"""
The normalised row: p_j = e_j / (sum_k e_k + rest), e = exp(s - m), with any sink in the rest.

For all |log e'_j - log e_j| <= r_j, where r is the error of s and the exponential's own (the shift
m moves all alike, and divides out):

    p'_j <= top_j = p_j e^r_j / (p_j e^r_j + sum_others p e^-r)

and since the derivatives of a row sum to nothing, any number may be taken from what multiplies it
first: sum p' g - sum p g with g' = g - sum p g is at most min(drift, max |g'|),

    drift = sum p (e^r - 1) |g'| / sum p e^-r
"""

from dataclasses import dataclass, replace
from math import log

import numpy as np
from numpy import ndarray

from attnverify.bounds.error_rules import accumulation_error, gamma, rounding_error
from attnverify.bounds.gradients.steps import maximum_error
from attnverify.bounds.softmax_rows import rows, sum_of_others
from attnverify.derived.budgets.state import TINIEST, Errors
from attnverify.derived.forms import source_of
from attnverify.derived.row import Row
from attnverify.derived.tracing.node import Node

NO_NUMBER = 1e-290
"""What is smaller, float64 holds no useful number for."""


@dataclass(frozen=True)
class RowErrors:
    """r; which exponentials float64 holds; rows in which one that it does not hold may matter."""

    r: ndarray
    seen: ndarray
    risky: ndarray


def row_errors(at: Errors, row: Row) -> RowErrors:
    """Bound how far the exponents of a row may be off, their common shift left out."""
    e = row.exponential
    argument, E = e.inputs[0], at.E[e]
    seen, d = e.value > NO_NUMBER, argument.value
    if row.shifted:
        r = np.broadcast_to(at.E[argument.inputs[0]], e.shape) + at.own[e]
    else:
        r = np.where(seen, np.log1p(E / np.where(seen, e.value, 1.0)), 600.0)
    r = np.where(np.isnan(r), np.inf, r)
    risky = (~seen & (d > -np.inf) & (d + r > -600)).any(row.axes, keepdims=True)
    return RowErrors(np.where(seen, np.minimum(r, 300.0), 0.0), seen, np.asarray(risky))


def rest_of(row: Row) -> ndarray:
    """Compute what a sink has of each row."""
    rest = 1 - row.quotient.value.sum(row.axes, keepdims=True)
    return np.where(rest > 1e-12, rest, 0.0)


def bound_row_quotient(at: Errors, node: Node, propagated: ndarray) -> ndarray:
    """A weight stays between 0 and 1; a row whose maximum left the format is inf."""
    row, x = at.graph.rows[node], node.value
    inputs = source_of(row.exponential.inputs[0]).inputs
    out: ndarray | bool = False
    if len(inputs) > 1 and inputs[1].shape == row.total.shape:
        out = np.isinf(at.E[inputs[1]])
    propagated = np.where(out, np.inf, np.fmin(propagated, np.maximum(x, 1 - x)))
    if node in at.given:
        given = np.fmin(propagated, at.given[node])
        propagated = np.where(np.isinf(propagated), np.inf, given)
    return propagated


@dataclass(frozen=True)
class Reach:
    """
    Where weights may lie whose exponents are off by r, whatever the normaliser loses:

        bottom_j = p_j e^-r_j / (p_j e^-r_j + sum_others p e^r) <= p'_j <= top_j

    up, down  p e^r and p e^-r
    floor     sum p e^-r, the rest included
    """

    up: ndarray
    down: ndarray
    floor: ndarray
    top: ndarray
    bottom: ndarray

    @classmethod
    def of(cls, row: Row, r: ndarray) -> "Reach":
        p, axes, rest = row.quotient.value, row.axes, rest_of(row)
        up, down, worst = p * np.exp(r), p * np.exp(-r), r.max(axes, keepdims=True)
        floor = down.sum(axes, keepdims=True) + rest * np.exp(-worst)
        others = np.maximum(floor - down, 0.0)
        top = np.where(up > 0, up / np.maximum(up + others, TINIEST), 0.0)
        most = up.sum(axes, keepdims=True)
        others = np.maximum(most - up, 0.0) + 1e-15 * most + rest * np.exp(worst)
        bottom = down / np.maximum(down + others, TINIEST)
        return cls(up, down, np.maximum(floor, TINIEST), top, bottom)

    def moved(self, p: ndarray) -> ndarray:
        return np.maximum(self.top - p, p - self.bottom)


def bound_row(at: Errors, row: Row) -> ndarray:
    """
    Bound the weights themselves. With a = p (e^r - 1),

        |dp_j| <= (a_j (other p + rest) + p_j other a) / (sum p e^-r + rest e^-r) + p_j R

    and what underflow loses, R what the normaliser loses, its sink included; never more than
    where they may lie.
    """
    off, p, axes = row_errors(at, row), row.quotient.value, row.axes
    a, reach, rest = p * np.expm1(off.r), Reach.of(row, off.r), rest_of(row)
    other_p, other_a = _others(p, axes[0]), _others(a, axes[0])
    E = (a * (other_p + rest) + p * other_a) / reach.floor
    E = np.fmin(E, reach.moved(p))
    lost = at.under[row.exponential] / row.quotient.inputs[1].value
    E = E + (p + E) * normaliser_loss(at, row, reach) + lost
    E = E + p * lost.sum(axes, keepdims=True)
    beyond = ~off.seen & (row.exponential.inputs[0].value > -np.inf)
    return np.where(off.risky, np.inf, np.where(beyond, E + np.exp(-600.0), E))


def normaliser_loss(at: Errors, row: Row, reach: Reach) -> ndarray:
    """
    Bound what the nodes of the normaliser lose themselves, as a share of it; of a sink also how far
    its exponent may be off, the shift that it shares with all others left out. Where the weights
    may grow beside a sink, what their sum loses grows as they do.
    """
    S, total = row.quotient.inputs[1], row.total.value
    least = S.value * reach.floor
    grown = np.minimum(reach.up.sum(row.axes, keepdims=True) / reach.floor, 1.0)
    found, seen, stack = np.zeros(row.total.shape), set[Node](), [S]
    while stack:
        node = stack.pop()
        if node in seen or node is row.exponential:
            continue
        seen.add(node)
        if node is row.total:
            own = at.relative[node] / np.maximum(total, TINIEST) * grown
        elif node.kind in ("move", "select") or node.name == "add":
            stack += [each for each in node.inputs if not each.const]
            size = np.maximum(at.size(node), TINIEST) if node.name == "add" else least
            own = at.L[node] / size
        elif node.name == "exp" and row.shifted:
            off = np.minimum(at.E[node.inputs[0].inputs[0]], 300.0)
            own = (at.L[node] + node.value * np.expm1(off)) / least
        else:
            own = at.E[node] / least
        found = found + np.broadcast_to(own, found.shape)
    return found


def _others(x: ndarray, axis: int) -> ndarray:
    last = np.moveaxis(x, axis, -1)
    return np.moveaxis(sum_of_others(last[None])[0], -1, axis)


def normaliser_error(at: Errors, node: Node) -> ndarray | float:
    """
    Bound what it costs to make a weight again as exp(s - lse), or to merge parts by
    exp(lse_b - lse): gamma(4)(1 + |lse| + log n), and the exponentials' own. In a gradient the
    scores are made again as well, so that the errors of the saved lse, log sum p e^r at most, no
    longer cancel. Where each step is stored, g(1, u_step) (|lse| + max E + 4 log n + 3) besides:
    `stored_lse`, and s - lse in place of s - m.
    """
    e = source_of(node.inputs[0])
    if e.name != "exp" or e.inputs[0].name != "subtract":
        return 0.0
    P, count, u = at.P, at.graph.row_length(e), at.P.softmax.u
    s, m = e.inputs[0].inputs
    lse = m.value + np.log(np.maximum(node.inputs[1].value, 1e-300))
    z = gamma(4, u) * (1 + np.abs(lse) + log(max(count, 1)))
    own = 2 * u * P.exp_ulps
    own = 2 * (-np.log1p(-own) if own < 1 else np.inf) * P.by_lse
    axes = at.graph.rows[node].axes if node in at.graph.rows else (-1,)
    if P.by_lse and P.unit_of_steps:
        worst = np.where(np.isfinite(s.value), at.E[s], 0.0).max(axes, keepdims=True)
        size = np.abs(lse) + worst + 4 * log(max(count, 1)) + 3
        z = z + gamma(1, P.unit_of_steps) * size
    if not at.graph.backward:
        return np.expm1(z + own)
    held = np.isfinite(s.value)
    r = np.where(e.value > 0, np.broadcast_to(at.E[s], e.shape) + at.own[e], 0.0)
    r = np.minimum(np.where(np.isnan(r), np.inf, r), 300.0)
    E_lse = np.log(np.maximum((node.value * np.exp(r)).sum(axes, keepdims=True), 1.0))
    d = np.where(held, np.abs(s.value - lse), 0.0)
    again = gamma(3, u) * (d + E_lse + np.where(held, at.E[s], 0.0))
    return np.expm1(np.minimum(np.where(held, z + own + E_lse + again, 0.0), 700.0))


def weight_times_gradient(at: Errors, node: Node) -> ndarray | float:
    """
    In a gradient, w dw: its sum over a row may be taken from the output, sum dO o, the same product
    of three in another order, with o stored; and w (dw - D) of parts merged by their lse.
    """
    a, b = node.inputs
    for p, d in ((a, b), (b, a)):
        row = at.graph.rows.get(source_of(p))
        if row is None:
            continue
        if d in at.A and any(user.kind == "sum" for user in at.graph.users[node]):
            at.A[node], at.n[node] = at.size(p) * at.A[d], at.n[d]
            return (gamma(1, at.P.prob.u) + gamma(1, at.P.storage.u)) * at.A[node]
        if d.name == "subtract":
            merged = at.size(p) * _merged_back(at, row, d, node.shape) if at.P.lse_merge else 0.0
            differentiated = at.P.maximum == "differentiated"
            return merged + (_by_the_maximum(at, row, node, d) if differentiated else 0.0)
    return 0.0


def _by_the_maximum(at: Errors, row: Row, node: Node, d: Node) -> ndarray:
    """Bound what arrives by way of the maximum: `maximum_error`, its row along the last axis."""
    (dw, mean), scores, u = d.inputs, row.exponential.inputs[0].inputs[0], at.P.softmax.u

    def last(x: ndarray) -> ndarray:
        return np.moveaxis(np.broadcast_to(x, node.shape), row.axes[0], -1)

    s, p, E_P = last(scores.value), last(row.quotient.value), last(at.E[row.quotient])
    size, dS = last(at.size(d)), last(node.value)
    seen = np.isfinite(s)
    chain = replace(rows(np.where(seen, s, 0.0), seen), p=p)
    E_dS = E_P * size + p * last(at.E[d]) + gamma(4, u) * (p + E_P) * size + 3 * at.P.softmax.eta
    E_dS = rounding_error(dS, E_dS, at.P.score)
    mass = last(at.summed_mass(dw)) + last(at.size(mean))
    own = E_P, mass, last(at.E[mean]), last(at.E[scores]), at.n.get(dw, 1), at.P
    return np.moveaxis(maximum_error(chain, dS, E_dS, *own), -1, row.axes[0])


def _merged_back(at: Errors, row: Row, d: Node, shape: tuple[int, ...]) -> ndarray:
    P, e, axes, dw = at.P, row.exponential, row.axes, d.inputs[0]
    scores = e.inputs[0].inputs[0]
    off = (at.own[e] + at.E[scores] * (e.value > 0)).max(axes, keepdims=True) * 2
    rebuilt = np.broadcast_to(normaliser_error(at, row.quotient), e.shape)
    r = np.expm1(np.minimum(300.0, off + rebuilt.max(axes, keepdims=True)))
    seen = np.broadcast_to(e.value > 0, shape)
    most = np.where(seen, at.summed_mass(dw), 0.0).max(axes, keepdims=True)
    u = max(P.acc.u, P.score.u)
    steps = 2 * accumulation_error(at.graph.row_length(e) + at.n.get(dw, 1), P)
    mean = (r + gamma(1, P.prob.u) + steps + gamma(2, u)) * most
    worst = at.E[dw].max(axes, keepdims=True)
    return np.asarray(2 * (mean + worst) + 4 * (r + gamma(4, u)) * most)


@dataclass(frozen=True)
class Centred:
    """
    What a sweep needs of a row: derivatives by the exponentials (middle, radius) and by the
    normaliser, the displacement of a target linear in the weights, and |g'| p.
    """

    by_exponential: tuple[ndarray, ndarray]
    by_normaliser: tuple[ndarray, ndarray]
    displacement: ndarray
    weighted: ndarray


def differentiate_row(at: Errors, row: Row, gm: ndarray, gr: ndarray) -> Centred:
    """
    Bound the derivatives of a target by a row, from its adjoint (middle gm, radius gr, a leading
    axis of seeds): |d(p.g)/d log e_j| <= top_j (|g'_j| + drift). The normaliser's own rounding
    counts with the uncentred sum p g; a sink has g' = -sum p g.
    """
    off, p, S = row_errors(at, row), row.quotient.value, row.quotient.inputs[1]
    axes, seeds = row.axes, tuple(a + 1 for a in row.axes)
    seen, rest, reach = off.seen, rest_of(row), Reach.of(row, off.r)
    up, floor, top = reach.up, reach.floor, reach.top
    worst = off.r.max(axes, keepdims=True)
    c, certain_slopes = (p * gm).sum(seeds, keepdims=True), not gr.any()
    centred = gm - c
    g = centred if seen.all() else np.where(seen, centred, 0.0)
    sure = np.abs(g)
    size = sure if certain_slopes else sure + np.where(seen, gr, 0.0)
    drift = (up - p) * sure
    shift = (drift if certain_slopes else drift + up * gr).sum(seeds, keepdims=True) / floor
    shift = shift + rest * np.abs(c) * np.expm1(worst)
    most = size.max(seeds, keepdims=True)
    most = np.where(rest > 0, np.maximum(most, np.abs(c)), most)
    certain = np.where(np.isnan(shift) | off.risky, np.inf, shift)
    by = np.where(seen, 1 / np.where(seen, row.exponential.value, 1.0), 0.0)
    middle = p * g * by
    radius = np.maximum(top * (size + np.fmin(shift, most)) * by - np.abs(middle), 0.0)
    radius = np.where(off.risky & seen, np.inf, radius) if off.risky.any() else radius
    moved = np.minimum(at.E[row.quotient], reach.moved(p))
    lost = np.abs(gm) * moved
    lost = (lost if certain_slopes else lost + gr * top).sum(seeds, keepdims=True)
    return Centred(
        (middle, radius),
        _by_normaliser(at, S, -c, lost, rest),
        _displacement(row, centred, gr, c, rest, certain),
        sure * p,
    )


def _by_normaliser(
    at: Errors, S: Node, out: ndarray, lost: ndarray, rest: ndarray
) -> tuple[ndarray, ndarray]:
    middle, radius = out / S.value, lost / S.value
    if rest.any():
        low = np.maximum(np.abs(S.value) - at.E[S], TINIEST)
        wide = lost / low + np.abs(out) * (1 / low - np.abs(1 / S.value))
        radius = np.where(rest > 0, wide, radius)
    return middle, radius


def _displacement(
    row: Row, g: ndarray, gr: ndarray, c: ndarray, rest: ndarray, certain: ndarray
) -> ndarray:
    """Bound how far a mean may move, of values among which it stays: min(drift, max |g'|)."""
    visible = row.exponential.inputs[0].value > -np.inf
    seeds = tuple(a + 1 for a in row.axes)
    spread = np.abs(g if visible.all() else np.where(visible, g, 0.0))
    spread = spread + 2 * np.where(visible, gr, 0.0) if gr.any() else spread
    edge = spread.max(seeds, keepdims=True)
    edge = np.fmin(np.where(rest > 0, np.maximum(edge, np.abs(c)), edge), certain)
    whole = np.zeros(g.shape)
    first = tuple(slice(None, 1) if a in seeds else slice(None) for a in range(g.ndim))
    whole[first] = edge
    return whole
