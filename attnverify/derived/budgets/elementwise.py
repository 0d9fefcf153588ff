"""Budgets of elementwise functions, of movement, choices and maxima."""

from math import ceil, log, log1p

import numpy as np
from numpy import ndarray

from attnverify.bounds.error_rules import gamma
from attnverify.derived.budgets.keeping import keeping
from attnverify.derived.budgets.norms import bound_normalised
from attnverify.derived.budgets.orders import other_orders
from attnverify.derived.budgets.roles import kept
from attnverify.derived.budgets.rows import (
    bound_row_quotient,
    normaliser_error,
    weight_times_gradient,
)
from attnverify.derived.budgets.state import SINGLE, Errors, round_off
from attnverify.derived.budgets.sums import Rule, bound_linear, bound_scale
from attnverify.derived.forms import LINEAR, chosen_alone, is_scale, source_of
from attnverify.derived.tracing.node import Node, refuse

CUTS = ("rint", "floor", "ceil", "trunc")


def bound_leaf(at: Errors, node: Node) -> Rule:
    """
    An input is exact, and so are whole numbers and halves. Other tables of constants are made by
    the kernel itself: by the steps of the specification, whose own arithmetic may be float32 where
    it is PyTorch's, or where those are not known by functions of a few ulps, 17 u. They are kept in
    `bias`, or in `stage` where something is multiplied by it.
    """
    zero = np.zeros(node.shape)
    if not node.const or node.is_number:
        return zero, zero
    x = np.where(np.isfinite(node.value), node.value, 0.0)
    if node.made is None or at.made is None:
        off = 17 * at.P.acc.u * np.abs(x)
        return np.where(2 * x == np.rint(2 * x), 0.0, off + at.P.bias.u * np.abs(x)), zero
    off = at.made.E[node.made] + np.where(np.isfinite(x), np.abs(x - node.made.value), 0.0)
    users = at.graph.users_behind_moves(node)
    multiplies = any(user is not None and user.name == "multiply" for user in users)
    rounded = round_off(x, off, at.P.stage if multiplies else at.P.bias)
    return np.where((2 * x == np.rint(2 * x)) & (off == 0), 0.0, off + rounded), zero


def bound_move(at: Errors, node: Node) -> Rule:
    def flat(arrays: list[ndarray]) -> ndarray:
        if not any(each.any() for each in arrays):
            return np.zeros(node.shape)
        pairs = zip(arrays, node.inputs, strict=True)
        whole = [np.broadcast_to(a, i.shape).ravel() for a, i in pairs]
        return np.concatenate([*whole, [0.0]])[node.index]

    if any(i in at.A for i in node.inputs):
        at.A[node] = flat([at.summed_mass(i) for i in node.inputs])
        at.n[node] = max(at.n.get(i, 1) for i in node.inputs)
    return flat([at.E[i] for i in node.inputs]), np.zeros(node.shape)


def bound_select(at: Errors, node: Node) -> Rule:
    """
    A choice. Where the error of what decides it may turn it over, it may come out as the other
    one: |a - b| more.
    """
    a, b = node.inputs
    if a in at.A or b in at.A:
        at.A[node] = np.where(node.condition, at.summed_mass(a), at.summed_mass(b))
        at.n[node] = max(at.n.get(a, 1), at.n.get(b, 1))
    E = np.broadcast_to(np.where(node.condition, at.E[a], at.E[b]), node.shape)
    open_ = undecided(at, node)
    if not open_.any():
        return E, np.zeros(node.shape)
    apart = np.where(a.value == b.value, 0.0, np.abs(a.value - b.value))
    return np.where(open_, np.maximum(at.E[a], at.E[b]), E), np.where(open_, apart, 0.0)


def undecided(at: Errors, node: Node) -> ndarray:
    """
    Find where a condition may come out otherwise: a margin within its own error; at a kink, one of
    0 as well.
    """
    found = np.zeros(node.shape, bool)
    for margin in node.margins:
        E = np.broadcast_to(at.E[margin], node.shape)
        if node.axes:
            found |= _may_be_largest(margin.value, E, node.axes)
        else:
            near = np.abs(np.broadcast_to(margin.value, node.shape)) <= E
            found |= near & ((E > 0) | bool(node.fill))
    return found


def _may_be_largest(x: ndarray, E: ndarray, axes: tuple[int, ...]) -> ndarray:
    """Find what may be the largest along some axes, where another may be as well."""
    may = x + E >= (x - E).max(axes, keepdims=True)
    return np.asarray(may & (may.sum(axes, keepdims=True) > 1))


def bound_max(at: Errors, node: Node) -> Rule:
    x, E, axes = node.inputs[0].value, at.E[node.inputs[0]], node.axes
    up = (x + E).max(axes, keepdims=True) - node.value
    low = np.where(np.isfinite(x), x - E, -np.inf)
    down = node.value - low.max(axes, keepdims=True)
    moved = np.where(np.isfinite(node.value), np.maximum(up, down), 0.0)
    return moved, np.zeros(node.shape)


def bound_elementwise(at: Errors, node: Node) -> Rule:
    """Bound an elementwise function: by its inputs' errors, and what it loses itself."""
    if node.name in LINEAR:
        return bound_linear(at, node)
    if is_scale(node):
        propagated, L = bound_scale(at, node)
        return propagated, L + other_orders(at, node)
    if node.name not in RULES:
        raise refuse(f"the error of {node.name}")
    propagated, L = RULES[node.name](at, node)
    if node.name in ("multiply", "divide"):
        L = L + other_orders(at, node)
    if node.name in ("exp", "absolute", "maximum", "minimum", *CUTS, "cast"):
        return propagated, L
    return propagated, L + keeping(at, node, propagated + L)


def _unit(at: Errors, node: Node) -> float:
    return (kept(at, node) or at.P.acc).u


def _multiply(at: Errors, node: Node) -> Rule:
    """(a + Ea)(b + Eb) - a b; a product with a sum may be distributed: gamma(2) of its parts."""
    (a, b), u = node.inputs, _unit(at, node)
    Ea, Eb = at.E[a], at.E[b]
    propagated = np.abs(a.value) * Eb + Ea * np.abs(b.value) + Ea * Eb
    propagated = np.where(np.isnan(propagated), np.inf, propagated)
    L = np.zeros(node.shape)
    if at.graph.backward:
        L = L + weight_times_gradient(at, node) + _slope_by_output(at, node)
    for this, other in ((a, b), (b, a)):
        parts = spread_terms(at, this)
        if parts is not None and not other.const:
            L = L + gamma(2, u) * parts * at.size(other)
    return propagated, L


def _slope_by_output(at: Errors, node: Node) -> ndarray | float:
    """
    The slope of a sigmoid 1 / (1 + e), which is made of its output as s (1 - s): where s is nearly
    1, the difference keeps the roundings of s, gamma(2) of the adjoint times 1 + e; gamma(4) where
    a GPU's own quotient is 2 ulps off, which are two roundings there.
    """
    for e, d in (node.inputs, node.inputs[::-1]):
        if e.name == "exp" and d.name == "divide":
            divisor = d.inputs[1]
            if divisor.name == "add" and e in map(source_of, divisor.inputs):
                u = max(at.P.stage.u, at.P.softmax.u)
                return gamma(2 + 2 * (u == SINGLE), u) * at.size(d) * at.size(divisor)
    return 0.0


def _divide(at: Errors, node: Node) -> Rule:
    """
    (Ea + |q| Eb) / (|b| - Eb), and never more than what a divisor from there to infinity leaves:
    (|a| + Ea) / low + |q|. A sum in the dividend may be divided term by term. A GPU's own quotient
    of float32 numbers, Triton's too, is 2 ulps from the rounded one (``div.full.f32``, PTX ISA):
    gamma(5); other ones are made by a reciprocal. A row has as much to spare in its exponentials.
    """
    (a, b), x, u = node.inputs, np.abs(node.value), _unit(at, node)
    low = at.lowest(b)
    top = at.E[a] + x * at.E[b]
    propagated = np.where(top == 0, 0.0, top / low)
    propagated = np.fmin(propagated, at.size(a) / low + x)
    is_row = node in at.graph.rows
    if is_row:
        propagated = bound_row_quotient(at, node, propagated)
    L = gamma(2 if is_row else 5 if u == SINGLE else 3, u) * (x + propagated)
    L = L if is_row else L + _stored_reciprocal(at, node)
    if at.P.by_lse or at.graph.backward:
        L = L + normaliser_error(at, node) * (x + propagated)
    parts = spread_terms(at, a)
    if parts is not None and not a.const:
        L = L + gamma(4, u) * parts / low
    if is_row:
        L = np.where(np.isinf(propagated), np.inf, np.fmin(L, 1.0))
    return bound_normalised(at, node, propagated, L, u)


def _stored_reciprocal(at: Errors, node: Node) -> ndarray:
    """
    A quotient may be made by a reciprocal that is stored, a sigmoid: below the normal numbers that
    loses eta, times the dividend.
    """
    a, b = node.inputs
    fmt = kept(at, node) or at.P.acc
    small = np.abs(1 / b.value) < 2 * fmt.tiny
    return np.where(small, fmt.eta * at.size(a), 0.0)


def _exp(at: Errors, node: Node) -> Rule:
    """
    e^(s - m) in base 2, fused, online or merged: gamma(3)(|s-m| + E + max(|s|, |m|) + log n), and
    (K+1) times the exponential's own ulps; nothing is lost at s - m itself. Below the normal
    numbers an ulp is 2 eta, whatever the size.
    """
    P, arg, count = at.P, node.inputs[0], at.graph.row_length(node)
    fmt, v, E, x = P.softmax, arg.value, at.E[arg], node.value
    blocks = ceil(count / P.block) if count > 1 else 0
    width = np.abs(v) + E
    if arg.name == "subtract":
        sizes = [np.broadcast_to(at.size(i), node.shape) for i in arg.inputs]
        width = width + np.maximum(*sizes) + log(max(count, 1))
    width = np.where(np.isfinite(width), width, 0.0)
    own = gamma(3, fmt.u) * width + (blocks + 1) * exponential_error(at)
    at.own[node], shown = own, v > -np.inf

    def grown(e: ndarray) -> ndarray:
        near = x * np.expm1(np.minimum(e, 1.0))
        return np.where(e < 1, near, np.exp(np.where(shown, v, 0) + e) - x)

    propagated = np.where(shown, grown(E), 0.0)
    near = x * np.exp(np.minimum(E, 1)) * np.expm1(np.minimum(own, 1.0))
    L = np.where(E + own < 1, near, grown(E + own) - propagated)
    beyond = 0.0 if fmt.ftz else max(2 * P.exp_ulps - 1, 0.0)
    lost = np.minimum(fmt.eta, x) * (1 + beyond)
    at.under[node] = np.where(x < 2 * fmt.tiny, lost, 0.0)
    L = np.where(shown, L, 0.0) + at.under[node]
    overflows = x * np.exp(np.minimum(E + own, 1)) > fmt.max / (1 + 2 * fmt.u)
    return propagated, np.where(overflows, np.inf, L)


def exponential_error(at: Errors) -> float:
    """Bound an exponential's ulps as an error of its exponent: -log(1 - 2 u exp_ulps)."""
    off = 2 * at.P.softmax.u * at.P.exp_ulps
    return -log1p(-off) if off < 1 else np.inf


def _tanh(at: Errors, node: Node) -> Rule:
    """
    Ulps, or by exponentials (1 - 2 / (1 + e^2z)), whose error is of the size of 1 near zero too.
    """
    P, arg, u = at.P, node.inputs[0], at.P.softmax.u
    E, t = at.E[arg], np.abs(node.value)
    low = np.maximum(np.abs(arg.value) - E, 0.0)
    propagated = np.fmin(2.0, E * (1 - np.tanh(low) ** 2 + 1e-300))
    if P.tanh_form == "relative":
        return propagated, 2 * P.tanh_ulps * u * t
    z = np.asarray(sum(np.abs(part) for part in at.graph.terms(arg)))
    L = (1 - t * t) * (2 * P.exp_ulps * u + gamma(3, u) * z + u) + gamma(5, u) * (1 + t)
    return propagated, L


def _erf(at: Errors, node: Node) -> Rule:
    """A few ulps, as tanh; its slope is at most 2 / sqrt(pi) exp(-z^2) of the nearest z to 0."""
    arg = node.inputs[0]
    low = np.maximum(np.abs(arg.value) - at.E[arg], 0.0)
    propagated = np.fmin(2.0, at.E[arg] * (2 / np.sqrt(np.pi) * np.exp(-low * low) + 1e-300))
    return propagated, 2 * at.P.tanh_ulps * at.P.softmax.u * np.abs(node.value)


def _monotone(at: Errors, node: Node) -> Rule:
    """
    sqrt, log, log1p, expm1: the ends of the interval, and a few ulps; expm1 by exp(x) - 1 and log1p
    by log(1 + x), where that is declared as it is of tanh, err by one of the size of 1 near zero.
    """
    function, arg = getattr(np, node.name), node.inputs[0]
    v, E = arg.value, at.E[arg]
    low, high = v - E, v + E
    if node.name != "expm1":
        least = -1.0 + 1e-300 if node.name == "log1p" else 0.0
        low = np.where(v > least, np.maximum(low, at.floor(arg)), low)
    off = np.maximum(np.abs(function(high) - node.value), np.abs(node.value - function(low)))
    propagated = np.where(E == 0, 0.0, np.where(np.isnan(off), np.inf, off))
    ulps = 1 if node.name == "sqrt" else 2 * at.P.exp_ulps
    size = np.abs(node.value) + propagated
    if node.name in ("expm1", "log1p") and at.P.tanh_form == "exponential":
        size = size + 1
    return propagated, ulps * at.P.softmax.u * size


def _periodic(at: Errors, node: Node) -> Rule:
    """min(2, |slope| E + E^2 / 2), and a few ulps."""
    arg, slope = node.inputs[0], np.sin if node.name == "cos" else np.cos
    E = at.E[arg]
    propagated = np.fmin(2.0, np.abs(slope(arg.value)) * E + E * E / 2)
    return propagated, 2 * at.P.sin_ulps * at.P.acc.u * np.abs(node.value)


def _absolute(at: Errors, node: Node) -> Rule:
    return at.E[node.inputs[0]], np.zeros(node.shape)


def _larger(at: Errors, node: Node) -> Rule:
    """maximum, minimum: the error of the one that is taken, of both where either may be."""
    a, b = node.inputs
    Ea, Eb = at.E[a], at.E[b]
    apart = ~(np.abs(a.value - b.value) <= Ea + Eb)
    first = a.value > b.value if node.name == "maximum" else a.value < b.value
    taken = np.where(apart, np.where(first, Ea, Eb), np.maximum(Ea, Eb))
    return np.broadcast_to(taken, node.shape), np.zeros(node.shape)


def _cut(at: Errors, node: Node) -> Rule:
    """Rounding to integers: nothing, unless an edge between two of them is within the error."""
    arg, function = node.inputs[0], getattr(np, node.name)
    v, E = arg.value, at.E[arg]
    steps = np.maximum(function(v + E) - node.value, node.value - function(v - E))
    tie = (node.name == "rint") & (E > 0) & (np.abs(v - np.floor(v) - 0.5) <= E)
    return np.maximum(steps, tie * 1.0), np.zeros(node.shape)


def _cast(at: Errors, node: Node) -> Rule:
    """
    A cast that the specification itself makes: of an exact number it is exact, of another it may
    land on a neighbour.
    """
    E = at.E[node.inputs[0]]
    step = node.fill * (np.abs(node.value) + E) + 1e-300
    return np.where(E > 0, E + step, 0.0), np.zeros(node.shape)


RULES = {
    "multiply": _multiply,
    "divide": _divide,
    "exp": _exp,
    "tanh": _tanh,
    "erf": _erf,
    "sqrt": _monotone,
    "log": _monotone,
    "log1p": _monotone,
    "expm1": _monotone,
    "sin": _periodic,
    "cos": _periodic,
    "absolute": _absolute,
    "maximum": _larger,
    "minimum": _larger,
    "cast": _cast,
} | dict.fromkeys(CUTS, _cut)


def spread_terms(at: Errors, node: Node) -> ndarray | None:
    """Find the sizes of the parts of a sum that a factor may be multiplied into; None: no sum."""
    if node.kind == "move" and len(node.inputs) == 1:
        (source,) = node.inputs
        inner = spread_terms(at, source)
        if inner is None:
            return None
        return np.append(np.broadcast_to(inner, source.shape).ravel(), 0.0)[node.index]
    if chosen := chosen_alone(node):
        inner = spread_terms(at, chosen[0])
        return None if inner is None else np.where(chosen[1], inner, 0.0)
    summed = node.name in ("add", "subtract") and node not in at.graph.before_exponential
    if not summed:
        return None
    return np.broadcast_to(np.asarray(sum(at.size(i) for i in node.inputs)), node.shape)
