"""
The same number by another formula: sums in another order, products distributed and scales moved,
exponentials in base 2, normalisers block by block, quotients by reciprocals, variances by Welford.
Each rewriting gives None where it does not apply.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.dtypes import round_to
from attnverify.derived.forms import LINEAR, factor_of, follows_mean, is_scale, scaled_input
from attnverify.derived.tracing.node import Node

LOG2E = float(np.log2(np.e))

Rewriting = Callable[[Any, Node, np.random.Generator], ndarray | None]
"""Of an evaluation, one of its nodes, and a choice."""


def in_another_order(run: Any, node: Node, rng: np.random.Generator) -> ndarray | None:
    """a + b - c, from whichever term one begins."""
    if node.name not in LINEAR or node in run.at.graph.exponents:
        return None
    terms = [s * np.broadcast_to(run.values[each], node.shape) for s, each in _terms(run, node)]
    if len(terms) < 3:
        return None
    first, *rest = (terms[k] for k in rng.permutation(len(terms)))
    total = run.acc(first)
    for term in rest:
        total = run.acc(total + term)
    return total


def _terms(run: Any, node: Node, sign: float = 1.0, inside: bool = False) -> Iterator[Any]:
    alone = len(run.at.graph.users[node]) == 1 and node not in run.at.graph.ends
    if node.name not in LINEAR or (inside and not alone):
        yield sign, node
    elif node.name == "negative":
        yield from _terms(run, node.inputs[0], -sign, True)
    else:
        yield from _terms(run, node.inputs[0], sign, True)
        yield from _terms(run, node.inputs[1], -sign if node.name == "subtract" else sign, True)


def distributed(run: Any, node: Node, rng: np.random.Generator) -> ndarray | None:
    """(a + b) c as a c + b c."""
    if node.name != "multiply":
        return None
    for one, other in (node.inputs, node.inputs[::-1]):
        if one.name in ("add", "subtract"):
            c = run.values[other]
            parts = [run.acc(run.values[each] * c) for each in one.inputs]
            signed = -parts[1] if one.name == "subtract" else parts[1]
            return np.broadcast_to(run.acc(parts[0] + signed), node.shape)
    return None


def product_of_parts(run: Any, node: Node, rng: np.random.Generator) -> ndarray | None:
    """(q + u) . k as q . k + u . k."""
    for place, each in enumerate(node.inputs):
        if each.name in ("add", "subtract") and run.at.graph.joined(each):
            parts = []
            for sign, part in zip(
                (1, -1 if each.name == "subtract" else 1), each.inputs, strict=True
            ):
                factors = [run.values[i] for i in node.inputs]
                factors[place] = sign * np.broadcast_to(run.values[part], each.shape)
                parts.append(run.product(node, factors, rng))
            return np.asarray(run.acc(parts[0] + parts[1]))
    return None


def scale_moved(run: Any, node: Node, rng: np.random.Generator) -> ndarray | None:
    """c (a . b) as (c a) . b, and c sum x as sum c x, each of which is made within the kernel."""
    x = scaled_input(node) if is_scale(node) else node
    if x is node or x.kind not in ("einsum", "sum"):
        return None
    c = float(run.acc(np.asarray(factor_of(node))))
    factors = [run.values[i] for i in x.inputs]
    place = int(rng.integers(len(factors)))
    fmt = (run.at.P.prescale if x.kind == "einsum" else None) or run.at.P.acc
    factors[place] = run.to(c * factors[place], fmt)
    return np.broadcast_to(
        run.product(x, factors, rng) if x.kind == "einsum" else run.total(x, factors[0], rng),
        node.shape,
    )


def by_reciprocal(run: Any, node: Node, rng: np.random.Generator) -> ndarray | None:
    """a / b as a (1 / b)."""
    if node.name != "divide" or node.inputs[1].const:
        return None
    a, b = (run.values[i] for i in node.inputs)
    reciprocal = run.acc(1 / b)
    return np.asarray(run.acc(a * reciprocal)) if np.isfinite(reciprocal).all() else None


def by_normaliser(run: Any, node: Node, rng: np.random.Generator) -> ndarray | None:
    """A weight as exp(s - lse), where that is declared, or the gradient makes it again."""
    row = run.at.graph.rows.get(node)
    if row is None or not (run.at.graph.backward or run.at.P.by_lse):
        return None
    given = row.exponential.inputs[0]
    if given.name != "subtract":
        return None
    s, m = (run.values[i] for i in given.inputs)
    kept = run.at.P.step.name.removesuffix("_ftz") if run.at.P.by_lse and run.at.P.step else ""
    keep = (lambda x: round_to(run.acc(x), kept)) if kept else run.acc
    lse = keep(m + keep(np.log(run.values[node.inputs[1]])))
    return np.asarray(run.acc(np.where(s == -np.inf, 0.0, np.exp(keep(s - lse)))))


def in_base_two(run: Any, node: Node, rng: np.random.Generator) -> ndarray | None:
    """e^(s - m) as 2^(s log2 e - m log2 e)."""
    given = node.inputs[0]
    if node.name != "exp":
        return None
    scale = float(run.acc(np.asarray(LOG2E)))
    if given.name != "subtract":
        return np.asarray(run.acc(np.exp2(run.acc(run.values[given] * scale))))
    s, m = (run.acc(run.values[i] * scale) for i in given.inputs)
    shown = run.values[given] > -np.inf
    return np.where(shown, run.acc(np.exp2(run.acc(s - m))), 0.0)


def block_by_block(run: Any, node: Node, rng: np.random.Generator) -> ndarray | None:
    """
    The normaliser of a row: rescaled whenever a block of keys raises the maximum, of exponentials
    that are not those of the weights. That is done within a kernel, which keeps them wide.
    """
    graph, P, e = run.at.graph, run.at.P, node.inputs[0]
    if P.step is not None or P.softmax.p < P.acc.p or node not in graph.totals:
        return None
    if len(node.axes) != 1 or e.inputs[0].name != "subtract":
        return None
    s = np.broadcast_to(run.values[e.inputs[0].inputs[0]], e.shape)
    last = run.values[e.inputs[0].inputs[1]]
    axis, block = node.axes[0], P.block
    highest, total = np.full(node.shape, -np.inf), np.zeros(node.shape)
    for start in range(0, e.shape[axis], block):
        part = np.take(s, range(start, min(start + block, e.shape[axis])), axis)
        higher = np.maximum(highest, part.max(axis, keepdims=True))
        safe = np.where(np.isfinite(higher), higher, 0.0)
        shift = run.acc(np.where(highest == -np.inf, 0.0, np.exp(highest - safe)))
        shown = np.where(part == -np.inf, 0.0, np.exp(part - safe))
        shown = np.where(part == safe, 1.0, run.erring("exp", shown, rng))
        own = run.acc(run.acc(shown).sum(axis, keepdims=True))
        highest, total = higher, run.acc(run.acc(total * shift) + own)
    safe = np.where(np.isfinite(highest), highest, last)
    return np.asarray(run.acc(total * run.acc(np.exp(safe - last))))


def by_welford(run: Any, node: Node, rng: np.random.Generator) -> ndarray | None:
    """sum (x - mean x)^2, the mean of what was read so far moved on with each."""
    squares = node.inputs[0]
    if squares.name != "multiply" or squares.inputs[0] is not squares.inputs[-1]:
        return None
    centred = squares.inputs[0]
    if centred.name != "subtract" or not follows_mean(centred) or len(node.axes) != 1:
        return None
    x = np.moveaxis(np.broadcast_to(run.values[centred.inputs[0]], centred.shape), node.axes[0], 0)
    mean, total = np.zeros(x.shape[1:]), np.zeros(x.shape[1:])
    for count, each in enumerate(x, 1):
        off = run.acc(each - mean)
        mean = run.acc(mean + run.acc(off / count))
        total = run.acc(total + run.acc(off * run.acc(each - mean)))
    return np.expand_dims(total, node.axes[0])


REWRITINGS: dict[str, tuple[Rewriting, ...]] = {
    "ew": (
        *(in_another_order, distributed, scale_moved, by_normaliser, by_reciprocal, in_base_two),
    ),
    "sum": (block_by_block, by_welford),
    "einsum": (product_of_parts,),
}


def rewritten(run: Any, node: Node, rng: np.random.Generator) -> ndarray | None:
    """Compute a node by the first rewriting that applies, and is chosen."""
    for rule in REWRITINGS.get(node.kind, ()):
        if rng.random() < 0.5 and (found := rule(run, node, rng)) is not None:
            return found
    return None
