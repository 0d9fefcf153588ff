"""NumPy's functions that sum: reductions, products of matrices, einsum."""

from math import prod
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_tuple

from attnverify.derived.tracing.array import FUNCTIONS, REDUCTIONS, UFUNCS, Traced, move, node_of
from attnverify.derived.tracing.elementwise import elementwise
from attnverify.derived.tracing.node import Node, product, refuse, stepped
from attnverify.derived.tracing.steps import step

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def axes_of(axis: Any, ndim: int) -> tuple[int, ...]:
    if axis is None:
        return tuple(range(ndim))
    return tuple(sorted(normalize_axis_tuple(axis, ndim)))


@step
def reduced(kind: str, x: Any, axis: Any = None, keepdims: bool = False) -> Traced:
    """Make the node of a sum, a maximum or a minimum, of the negated, over some axes."""
    if kind == "min":
        return -reduced("max", -x, axis, keepdims)
    node = node_of(x)
    axes = axes_of(axis, node.value.ndim)
    with np.errstate(all="ignore"):
        value = getattr(node.value, kind)(axes, keepdims=True)
    out = Traced(stepped(kind, kind, [node], value, axes=axes))
    kept = tuple(n for a, n in enumerate(node.shape) if a not in axes)
    return out if keepdims else move(lambda i: i.reshape(kept), [out])


def total(x: Any, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Traced:
    return reduced("sum", x, axis, keepdims)


def maximum(x: Any, axis: Any = None, keepdims: bool = False, initial: Any = None) -> Traced:
    found = reduced("max", x, axis, keepdims)
    return found if initial is None else np.maximum(found, initial)


def minimum(x: Any, axis: Any = None, keepdims: bool = False) -> Traced:
    return reduced("min", x, axis, keepdims)


def mean(x: Any, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Traced:
    count = prod(x.shape[a] for a in axes_of(axis, x.ndim))
    return total(x, axis, keepdims=keepdims) / float(count)


def variance(x: Any, axis: Any = None, ddof: int = 0, keepdims: bool = False) -> Traced:
    count = prod(x.shape[a] for a in axes_of(axis, x.ndim))
    centred = x - mean(x, axis, keepdims=True)
    return total(centred * centred, axis, keepdims=keepdims) / float(count - ddof)


def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Traced:
    if ord not in (None, 2):
        raise refuse(f"np.linalg.norm with ord={ord!r}")
    return elementwise("sqrt", total(x * x, axis, keepdims=keepdims))


def einsum(subscripts: str, *operands: Any, **_: Any) -> Traced:
    """Make an einsum of any number of factors out of products of two."""
    nodes = [node_of(x) for x in operands]
    ins, out = _spelled(subscripts, nodes)
    while len(nodes) > 2:
        kept = set(out).union(*ins[2:])
        mid = "".join(dict.fromkeys(c for c in ins[0] + ins[1] if c in kept))
        nodes[:2] = [_product(ins[0], ins[1], mid, nodes[0], nodes[1])]
        ins[:2] = [mid]
    if len(nodes) == 1:
        return _of_one(ins[0], out, Traced(nodes[0]))
    return Traced(_product(ins[0], ins[1], out, nodes[0], nodes[1]))


def _spelled(subscripts: str, nodes: list[Node]) -> tuple[list[str], str]:
    """Write the subscripts without dots, one letter for each axis, the result included."""
    text = subscripts.replace(" ", "")
    left, arrow, out = text.partition("->")
    ins = left.split(",")
    if not arrow:
        once = sorted(c for c in set(left) - {",", "."} if left.count(c) == 1)
        out = ("..." if "..." in left else "") + "".join(once)
    if any(len(set(s) - {"."}) != len(s.replace(".", "")) for s in ins):
        raise refuse(f'np.einsum("{subscripts}"), a letter twice in one factor')
    dotted = [(s, n) for s, n in zip(ins, nodes, strict=True) if "..." in s]
    lead = max((n.value.ndim - len(s) + 3 for s, n in dotted), default=0)
    dots = [c for c in reversed(LETTERS) if c not in text][:lead]

    spelled = [
        s.replace("...", "".join(dots[lead - (n.value.ndim - len(s) + 3) :]))
        for s, n in zip(ins, nodes, strict=True)
    ]
    return spelled, out.replace("...", "".join(dots))


def _of_one(letters: str, out: str, x: Traced) -> Traced:
    gone = tuple(i for i, c in enumerate(letters) if c not in out)
    kept = [c for c in letters if c in out]
    left = total(x, gone) if gone else x
    return move(lambda i: i.transpose([kept.index(c) for c in out]), [left])


@step
def _product(a: str, b: str, out: str, x: Node, y: Node) -> Node:
    """Make the product of two: axes of length 1 that are broadcast are taken away first."""
    sizes: dict[str, int] = {}
    for letters, node in ((a, x), (b, y)):
        for c, n in zip(letters, node.shape, strict=True):
            sizes[c] = max(sizes.get(c, 1), n)
    (a, x), (b, y) = (_without_broadcast(s, n, sizes) for s, n in ((a, x), (b, y)))
    terms = prod(n for c, n in sizes.items() if c not in out)
    with np.errstate(all="ignore"):
        value = product(f"{a},{b}->{out}", x.value, y.value)
    name = f"{a},{b}->{out}"
    return stepped("einsum", name, [x, y], value, terms=terms, spec=(a, b, out))


def _without_broadcast(letters: str, node: Node, sizes: dict[str, int]) -> tuple[str, Node]:
    kept = [i for i, c in enumerate(letters) if node.shape[i] == sizes[c]]
    shape = tuple(node.shape[i] for i in kept)
    return "".join(letters[i] for i in kept), move(lambda i: i.reshape(shape), [Traced(node)]).node


def matmul(a: Any, b: Any) -> Traced:
    left, right = np.ndim(a), np.ndim(b)
    lead = "..." if max(left, right) > 1 else ""
    first = "j" if left == 1 else "...ij"
    second = "j" if right == 1 else "...jk"
    return einsum(f"{first},{second}->{lead}{'i' * (left > 1)}{'k' * (right > 1)}", a, b)


def dot(a: Any, b: Any) -> Any:
    if np.ndim(b) > 2:
        raise refuse("np.dot of more than two axes")
    return a * b if 0 in (np.ndim(a), np.ndim(b)) else matmul(a, b)


def tensordot(a: Any, b: Any, axes: Any = 2) -> Traced:
    left, right = np.ndim(a), np.ndim(b)
    pairs = ([*range(left - axes, left)], [*range(axes)]) if isinstance(axes, int) else axes
    first, second = ([p] if isinstance(p, int) else list(p) for p in pairs)
    letters, others = LETTERS[:left], list(LETTERS[left : left + right])
    for i, j in zip(first, second, strict=True):
        others[j] = letters[i]
    both = {letters[i] for i in first}
    out = "".join(c for c in (*letters, *others) if c not in both)
    return einsum(f"{letters},{''.join(others)}->{out}", a, b)


def cumsum(x: Any, axis: Any = None, **_: Any) -> Traced:
    """Write running sums as a product with a triangle of ones."""
    if axis is None:
        return cumsum(x.ravel(), 0)
    letters = LETTERS[: x.ndim]
    gone = letters[axis]
    return einsum(f"{letters},z{gone}->{letters.replace(gone, 'z')}", x, np.tri(x.shape[axis]))


UFUNCS["matmul"] = matmul
REDUCTIONS |= {"add": total, "maximum": maximum, "minimum": minimum}
FUNCTIONS |= {
    np.einsum: einsum,
    np.sum: total,
    np.max: maximum,
    np.amax: maximum,
    np.min: minimum,
    np.amin: minimum,
    np.mean: mean,
    np.var: variance,
    np.std: lambda x, *a, **k: np.sqrt(variance(x, *a, **k)),
    np.linalg.norm: norm,
    np.cumsum: cumsum,
    np.dot: dot,
    np.tensordot: tensordot,
    np.outer: lambda a, b: einsum("i,j->ij", a, b),
    np.inner: lambda a, b: einsum("...i,...i->...", a, b) if np.ndim(b) == 1 else matmul(a, b.mT),
    np.vdot: lambda a, b: einsum("i,i->", a, b),
    np.matmul: matmul,
}
