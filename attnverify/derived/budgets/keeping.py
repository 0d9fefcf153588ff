"""The rounding of a node to what it is kept in."""

from dataclasses import replace

import numpy as np
from numpy import ndarray

from attnverify.bounds.error_rules import gamma, partial_sums
from attnverify.derived.budgets.roles import also_kept, is_power_of_two, kept
from attnverify.derived.budgets.state import Errors, round_off
from attnverify.derived.forms import LINEAR, goes_on, is_scale, is_sum, scaled_input, source_of
from attnverify.derived.tracing.node import Node
from attnverify.precision import Format


def keeping(at: Errors, node: Node, E: ndarray) -> ndarray:
    """
    Bound the rounding of a node to what it is kept in; at the last node of a sum, all that its
    other trees may keep: u (2 sum |terms| + the largest sum of partial sums over all trees).
    """
    fmt = kept(at, node)
    if fmt is None or node in at.graph.exponents:
        return np.zeros(node.shape)  # what an exponent loses is said by its exponential
    if is_sum(node):
        L = _kept_sum(at, node, E)
    elif node in at.graph.rows:
        L = _kept_row(at, node, E)
    else:
        L = round_off(node.value, E, fmt)
    if node.name in ("add", "subtract") and _has_common_factor(at, node):
        L = L + gamma(1, at.P.joined.u) * at.A[node]  # q k + q a may be q (k + a)
    extra = also_kept(at, node)
    if extra is not None and extra.p < fmt.p:
        L = L + round_off(node.value, E, extra)
    if at.graph.backward and extra is at.P.prob and at.P.score.p < fmt.p:
        L = L + round_off(node.value, E, at.P.score)
    return L


def between_uses(at: Errors, node: Node) -> ndarray:
    """
    Bound how far apart two uses of a node may read it: one what was kept of it, the other what was
    not rounded yet, as a fused kernel does that stores x, and takes the mean of x before.
    """
    formats = {fmt for fmt in (kept(at, node), also_kept(at, node)) if fmt and fmt.p < at.P.acc.p}
    E = at.E[node]
    return np.asarray(sum((round_off(node.value, E, fmt) for fmt in formats), np.zeros(node.shape)))


def _kept_sum(at: Errors, node: Node, E: ndarray) -> ndarray:
    graph, fmt = at.graph, _coarsest(at, node)
    terms, root = graph.terms(node), graph.is_root(node)
    most, L, u = np.abs(node.value), np.zeros(node.shape), gamma(1, fmt.u)
    sizes = np.asarray(sum(np.abs(t) for t in terms))
    if len(terms) > 2 and root:
        partial, top = partial_sums(terms)
        L = u * (2 * sizes + partial + most + len(terms) * E) + 2 * len(terms) * fmt.eta
        L = np.where(top + E > fmt.max / (1 + 2 * fmt.u), np.inf, L)
    elif len(terms) == 2 and node.kind == "einsum" and root:
        L = u * (sizes + most + 2 * E) + 3 * fmt.eta
    elif len(terms) <= 2 and (root or not graph.root_has_many(node)):
        exact = is_power_of_two(node) and is_sum(source_of(scaled_input(node)))  # kept already
        L = np.full(node.shape, fmt.eta) if exact else round_off(node.value, E, fmt)
    top = partial_sums(terms)[1] if len(terms) > 2 and not root else most
    beyond = np.isfinite(node.value) & (top + E > fmt.max / (1 + 2 * fmt.u))
    return np.where(beyond, np.inf, L)


def _coarsest(at: Errors, node: Node) -> Format:
    """
    Find what the last node of a chain of sums and scales answers for: the coarsest format that any
    of its steps is kept in, which flushes where the lossiest of them does. Another node answers for
    itself.
    """
    steps = _chain(node) if at.graph.is_root(node) else [node]
    formats = [fmt for each in steps if (fmt := kept(at, each)) is not None]
    coarsest = max(formats, key=lambda fmt: fmt.u, default=at.P.acc)
    lossiest = max(formats, key=lambda fmt: fmt.eta, default=at.P.acc)
    if coarsest is lossiest:
        return coarsest
    return replace(coarsest, emin=lossiest.emin, ftz=lossiest.ftz)


def _chain(node: Node) -> list[Node]:
    found, stack = {node}, [node]
    while stack:
        sources = [source_of(each) for each in stack.pop().inputs]
        new = [each for each in sources if goes_on(each) and each not in found]
        found.update(new)
        stack += new
    return list(found)


def _kept_row(at: Errors, node: Node, E: ndarray) -> ndarray:
    """Of a weight below the normal numbers: an ulp of every step on its way."""
    P, fmt = at.P, at.P.softmax
    more = 2 * P.exp_ulps * (1 + P.by_lse)
    small = (node.value > 0) & (node.value < 2 * fmt.tiny)
    return np.where(small, np.minimum(fmt.eta, np.abs(node.value) + E) * (1 + more), 0.0)


def _has_common_factor(at: Errors, node: Node) -> bool:
    """Tell whether it adds two products q k + q a, which may be one of q and k + a."""
    first, second = (
        [{p for i in product.inputs for p in _parts_of(at, i)} for product in _products(side)]
        for side in node.inputs
    )
    return any(x & y for x in first for y in second)


def _products(node: Node) -> list[Node]:
    found, stack, seen = [], [node], {node}
    while stack:
        each = stack.pop()
        if each.kind == "einsum":
            found.append(each)
        elif each.name in LINEAR or is_scale(each):
            new = [one for one in each.inputs if one not in seen]
            seen.update(new)
            stack += new
    return found


def _parts_of(at: Errors, node: Node) -> list[Node]:
    node = source_of(node)
    joined = at.graph.joined(node)
    return [node, *(p for i in node.inputs if joined for p in _parts_of(at, i))]
