"""
Budgets of sums, products and scalings: what any order, factoring or distribution may cost.

Principle. Expand a polynomial into monomials. The mass M = sum |monomials| is the same number
however the polynomial is factored, reordered or distributed, and an evaluation in which a monomial
passes at most k roundings errs by at most gamma_k M, since each monomial carries its own factor
(1 + theta_k). So a bound by M holds for every rewriting by associativity, commutativity and
distributivity. Source: Higham, Accuracy and Stability of Numerical Algorithms, chapters 3 and 4.
"""

from math import ceil, prod

import numpy as np
from numpy import ndarray

from attnverify.bounds.error_rules import accumulation_error, gamma, underflow
from attnverify.derived.budgets.keeping import keeping
from attnverify.derived.budgets.roles import is_power_of_two
from attnverify.derived.budgets.state import SINGLE, Errors, round_off
from attnverify.derived.forms import (
    LINEAR,
    factor_of,
    follows_mean,
    scaled_input,
    source_of,
)
from attnverify.derived.tracing.node import COLLECTED, Node, product
from attnverify.precision import Format

Rule = tuple[ndarray, ndarray]
"""What the inputs' errors become, and what is added at the node."""


def bound_sum(at: Errors, node: Node) -> Rule:
    """
    A sum of n: acc(n) M and its underflow. Of exponentials, whose sum may be made in rescaled
    blocks: gamma(K+2) for the rescales, one rounding of each term in `softmax`, and its underflow.
    """
    P, x = at.P, node.inputs[0]
    count, inner = x.value.size // max(node.value.size, 1), at.n.get(x, 1)
    A = at.summed_mass(x).sum(node.axes, keepdims=True)
    held = at.P.step
    step = accumulation_error(count + inner - 1, P)
    own = step * A - (accumulation_error(inner, P) * A if inner > 1 else 0.0)
    L = own + _sum_of_squares(at, node, count) + np.where(A > 0, underflow(count, P), 0.0)
    propagated = at.E[x].sum(node.axes, keepdims=True)
    if "exp" in at.graph.region_names(node):
        rescaled = gamma(ceil(count / P.block) + 2, P.acc.u) + gamma(1, P.softmax.u)
        L = L + rescaled * A + np.where(A > 0, count * P.softmax.eta, 0.0)
        lost = count * (P.softmax.eta + 2 * P.acc.eta)
        stored = gamma(1, held.u) if held is not None else 0.0
        at.relative[node] = (step + rescaled + stored) * np.abs(node.value) + lost
    else:
        L = L + P.acc.u * (np.abs(node.value) + propagated)
    at.A[node], at.n[node] = A, count + inner - 1
    if held is not None:
        if node.name == COLLECTED:
            L = L + _added_in_memory(held, count, A)
        L = L + round_off(node.value, propagated + L, held)
    return propagated, L


def _added_in_memory(fmt: Format, count: int, A: ndarray) -> ndarray:
    """
    Bound a sum of so many, each of which is added to what is stored: gamma(n) A, and n eta; on the
    way it may be as large as A.
    """
    L = gamma(count, fmt.u) * A + np.where(A > 0, count * fmt.eta, 0.0)
    return np.where(fmt.max / (1 + 2 * fmt.u) < A + L, np.inf, L)


def _sum_of_squares(at: Errors, node: Node, count: int) -> ndarray | float:
    """
    A sum of (z - mean z)^2. Two passes, Welford or Chan: n u kappa, that is 2 acc(n+3)
    sqrt(v sum z^2) by Cauchy-Schwarz, and the error of the mean squared; in one pass, as
    sum z^2 - n mean^2: 4 acc(n+3) sum z^2. Source: Chan, Golub, LeVeque 1983.
    """
    squares, P = node.inputs[0], at.P
    twice = squares.name == "multiply" and squares.inputs[0] is squares.inputs[-1]
    centred = squares.inputs[0] if twice else None
    if centred is None or centred.name != "subtract" or not follows_mean(centred):
        return 0.0
    z, step = at.size(centred.inputs[0]), accumulation_error(count + 3, P)
    total = (z * z).sum(node.axes, keepdims=True)
    if P.variance == "one_pass":
        return 4 * step * total
    mean = accumulation_error(count + 1, P) * z.mean(node.axes, keepdims=True)
    return 2 * step * np.sqrt(node.value * total) + (1 + step) * count * mean**2


def bound_product(at: Errors, node: Node) -> Rule:
    """
    A sum of n products: acc(n) M(a) M(b), underflow, and the operands' errors. A mean by weights of
    a row may be made in rescaled blocks.
    """
    P, (a, b), (x, y, out) = at.P, node.inputs, node.spec

    def dot(s: ndarray, t: ndarray) -> ndarray:
        return product(f"{x},{y}->{out}", s, t)

    Ea, Eb = operand(at, a), operand(at, b)
    A = dot(at.mass(a) + Ea - at.E[a], at.mass(b) + Eb - at.E[b])
    count = node.terms * _count_terms(at, a) * _count_terms(at, b)
    propagated = dot(Ea, at.value_size(b) + Eb) if Ea.any() else np.zeros(node.shape)
    propagated = propagated + dot(at.value_size(a), Eb) if Eb.any() else propagated
    L = accumulation_error(count, P) * A + np.where(A > 0, underflow(count, P), 0.0)
    fmt = P.partial or P.acc
    L = np.where(fmt.max / 2 < A, np.inf, L)
    if any(at.graph.through(i) for i in node.inputs):
        L = L + gamma(ceil(node.terms / P.block) + 2, P.acc.u) * A
    at.A[node], at.n[node] = A, count
    L = L + _summed_in_parts(at, node, propagated)
    if P.step is not None and (parts := _parts_of_product(node)) > 1:
        L = L + _added_in_memory(P.step, parts, A)
    return propagated, L + keeping(at, node, propagated + L)


def _parts_of_product(node: Node) -> int:
    """
    Count the parts that a product over several letters may be added up of in memory, as a
    convolution is of the places of its window: all letters but the shortest that is no part.
    """
    (a, b, out), (x, y) = node.spec, node.inputs
    sizes = dict(zip(a + b, x.shape + y.shape, strict=True))
    gone = [n for c, n in sizes.items() if c not in out and n > 1]
    return prod(gone) // min(gone) if len(gone) > 1 else 1


def operand(at: Errors, node: Node) -> ndarray:
    """
    Bound a factor on its way into a product: rounded to the declared operand format (TF32), unless
    that holds every stored number; subnormal numbers of a storage that flushes.
    """
    P, E, x = at.P, at.E[node], node.value
    fmt, storage = P.operand, P.storage
    if fmt is not None and not (at.is_exact(node) and storage.p <= fmt.p):
        E = E + round_off(x, E, fmt)
    if storage.ftz:
        size = np.abs(x) + E
        E = E + np.where(size < 2 * storage.tiny, np.minimum(size, storage.tiny), 0.0)
    return E


def _count_terms(at: Errors, node: Node) -> int:
    return len(at.graph.terms(node)) if at.graph.joined(node) else 1


def _summed_in_parts(at: Errors, node: Node, propagated: ndarray) -> ndarray | float:
    """
    A parameter's gradient, summed over batch and positions: one sum, or one for each batch element,
    each stored in `joined`, and their sum; in blocks that keep partial gradients, those. Of a
    matrix and a vector the products may be stored one by one.
    """
    (a, b, out), P = node.spec, at.P
    gone = [c for c in a if c in b and c not in out]
    if not at.graph.backward or "exp" in at.graph.region_names(node):
        return 0.0
    L: ndarray | float = 0.0
    if P.grad_partial:
        L = gamma(16, P.grad_partial.u) * at.A[node] + 16 * P.grad_partial.eta
    if set(out) <= set(a) or set(out) <= set(b):
        return L + gamma(1, P.joined.u) * at.A[node] + node.terms * P.joined.eta * (at.A[node] > 0)
    if len(gone) < 2:
        return L
    x, y = (each.value for each in node.inputs)
    parts = product(f"{a},{b}->{out}{''.join(gone[:-1])}", x, y)
    whole = np.abs(parts).sum(tuple(range(len(out), parts.ndim)))
    lost = np.where(whole > 0, parts.size // max(whole.size, 1) * P.joined.eta, 0.0)
    return L + gamma(1, P.joined.u) * (whole + propagated) + lost


def bound_linear(at: Errors, node: Node) -> Rule:
    """
    a + b or a - b. On top of a product, a sum may begin with the addend, so that every step rounds
    at its size: acc(n1 + n2) (M1 + M2), less what was counted before.
    """
    P, graph = at.P, at.graph
    propagated = np.asarray(sum(np.broadcast_to(at.E[i], node.shape) for i in node.inputs))
    L = np.zeros(node.shape)
    if any(i in at.A for i in node.inputs):
        counts = [at.n.get(i, 1) for i in node.inputs]
        held = np.isfinite(node.value)
        masses = [
            np.where(held, np.broadcast_to(at.summed_mass(i), node.shape), 0.0) for i in node.inputs
        ]
        pairs = list(zip(counts, masses, strict=True))
        done = sum(accumulation_error(c, P) * m for c, m in pairs if c > 1)
        at.A[node], at.n[node] = np.asarray(sum(masses)), sum(counts)
        free = node.name != "negative" and node not in graph.exponents
        if sum(counts) > 1 and free and not follows_mean(node):
            L = accumulation_error(sum(counts), P) * at.A[node] - done
    if node.name == "negative":
        return propagated, L
    L = L + _rounded_constants(at, node)
    return propagated, L + keeping(at, node, propagated + L)


def _rounded_constants(at: Errors, node: Node) -> float:
    """A number that is added is rounded to `acc` itself, where that does not hold it."""
    numbers = (i.number for i in node.inputs if i.is_number and np.isfinite(i.number))
    return sum(at.P.acc.u * abs(c) for c in numbers if c != np.float32(c))


def bound_scale(at: Errors, node: Node) -> Rule:
    """
    A product with a constant: the constant itself (2 u_const) unless it is a power of two; before,
    after or split around a product, as alpha of a BLAS: 4 roundings of the mass, and the underflow
    of a scaled factor times the other's sizes. A GPU's own quotient, by a power of two as well, is
    2 ulps from the rounded one, which is less than these.
    """
    P, x, c = at.P, scaled_input(node), factor_of(node)
    propagated = np.abs(c) * at.E[x]
    exact, size = is_power_of_two(node), np.abs(node.value)
    size = np.where(np.isfinite(size), size, 0.0)
    L = np.zeros(node.shape)
    if not exact:
        L = 2 * (P.scale_const or P.acc).u * (size + propagated)
    is_alpha = x in at.A and _scales_product(x) and c != 1
    if x in at.A:
        at.A[node], at.n[node] = np.abs(c) * at.summed_mass(x), at.n[x]
    if is_alpha:
        fmt = P.prescale or P.acc
        lost = at.n[x] * P.acc.eta + 2 * fmt.eta * _largest_other(at, x)
        L = L + gamma(4, fmt.u) * at.A[node] + lost
    elif node.name == "divide" and P.acc.u == SINGLE and not at.constants:
        L = L + gamma(5, SINGLE) * (size + propagated)
    if at.graph.backward:
        L = L + _scaled_back(at, node, exact, size, propagated, L)
    return propagated, L + keeping(at, node, propagated + L)


def _scaled_back(
    at: Errors, node: Node, exact: bool, size: ndarray, propagated: ndarray, L: ndarray
) -> ndarray:
    """
    In a gradient the scale may stand at another factor, or twice; where it scales the gradient of a
    score, that may be stored in `prob` and in `score`.
    """
    P, graph = at.P, at.graph
    fmt = P.prescale or P.acc
    steps = gamma(4, fmt.u) * (not exact) + gamma(3, P.acc.u)
    own = steps * (size + propagated) + P.prob.eta + P.score.eta
    if "exp" in graph.region_names(node) and node not in graph.before_exponential:
        so_far = propagated + L + own
        own = own + round_off(node.value, so_far, P.prob) + round_off(node.value, so_far, P.score)
    return own


def _scales_product(node: Node) -> bool:
    node = source_of(node)
    summed = node.name in LINEAR and any(_scales_product(each) for each in node.inputs)
    return node.kind == "einsum" or summed


def _largest_other(at: Errors, node: Node) -> float:
    """Sum the sizes that multiply the underflow of a scaled factor, over all products in a sum."""
    node = source_of(node)
    if node.kind == "einsum":
        (a, b), (x, y, _) = node.inputs, node.spec
        first, second = _beside(at, node, (x, a), (y, b)), _beside(at, node, (y, b), (x, a))
        return float((first + second).max(initial=0.0))
    return sum(_largest_other(at, i) for i in node.inputs) if node.name in LINEAR else 0.0


def _beside(at: Errors, node: Node, own: tuple[str, Node], other: tuple[str, Node]) -> ndarray:
    """
    Sum what of the other factor multiplies each element of this one: the largest sum along the
    letters that both have and that stay, in their order.
    """
    (x, a), (y, b), out = own, other, node.spec[2]
    alone = prod(n for c, n in zip(x, a.shape, strict=True) if c not in y + out)
    gone = tuple(j for j, c in enumerate(y) if c not in out)
    left = [c for c in y if c in out]
    sums = at.mass(b).sum(gone).max(tuple(j for j, c in enumerate(left) if c not in x), initial=0.0)
    both = [c for c in left if c in x]
    return np.asarray(alone * sums).transpose([both.index(c) for c in out if c in both])
