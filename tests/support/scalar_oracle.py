"""
Every operation once more, from the formulas of its paper or of the code that it comes from, and not
from ``spec/``: one scalar after the other in long double, so that no axis is summed by a library.

Complex numbers pass through all of it: :mod:`tests.spec.scalar_derivatives` makes a gradient of the
imaginary part of a difference.
"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy import ndarray

LONG, COMPLEX = np.longdouble, np.clongdouble
Matrix = list[list[Any]]
Inputs = dict[str, Any]


def long(x: Any) -> Any:
    """Floats in long double, complex ones too; the rest as it is."""
    if isinstance(x, dict):
        return {name: long(value) for name, value in x.items()}
    if isinstance(x, list):
        return [long(value) for value in x]
    floats = isinstance(x, ndarray) and x.dtype.kind == "f"
    return x.astype(LONG) if floats else x


def add_up(terms: Iterable[Any]) -> Any:
    total = LONG(0)
    for term in terms:
        total = total + term
    return total


def dot(x: Any, y: Any) -> Any:
    return add_up(a * b for a, b in zip(x, y, strict=True))


def times(matrix: Any, rows: Any, bias: Any = None) -> Matrix:
    """What a linear layer makes of each row."""
    return [
        [dot(row, weight) + (0 if bias is None else bias[k]) for k, weight in enumerate(matrix)]
        for row in rows
    ]


# The scores of one head: Bahdanau 2015; Vaswani 2017; Dai 2019; labml's relative; Press 2022


def additive(q: Any, k: Any, w_q: Any, w_k: Any, w: Any) -> Matrix:
    from_q, from_k = times(w_q, q), times(w_k, k)
    return [
        [add_up(w[a] * np.tanh(x[a] + y[a]) for a in range(len(w))) for y in from_k] for x in from_q
    ]


def scaled(q: Any, k: Any) -> Matrix:
    return [[dot(x, y) / np.sqrt(LONG(len(x))) for y in k] for x in q]


def transformer_xl(q: Any, k: Any, r: Any, u: Any, v: Any) -> Matrix:
    """
    Terms (a) to (d) of section 3.3; the shift as appendix B has it: a column of zeros in front, the
    numbers in a row, as many as there are queries cut off, and rows again.
    """
    N, M = len(q), len(k)
    flat: list[Any] = []
    for x in q:
        flat += [LONG(0), *(dot(x, r[c]) + dot(v, r[c]) for c in range(M))]
    flat = flat[N:]
    return [
        [
            (dot(q[i], k[j]) + dot(u, k[j]) + flat[i * M + j]) / np.sqrt(LONG(len(u)))
            for j in range(M)
        ]
        for i in range(N)
    ]


def learned(q: Any, k: Any, rows: Any, biases: Any, b: Any, align: str) -> Matrix:
    """
    (A + C) and (B + D) of labml's page: the slice of the tables as its code takes it, of which
    query i reads from N - i on, since each row is shifted by one more.
    """
    N, M, P = len(q), len(k), len(rows) // 2
    first = P - M if align == "end" else P - N
    R, S = rows[first : first + N + M], biases[first : first + N + M]
    return [
        [
            (dot(x, y) + dot(b, y) + dot(x, R[N - i + j]) + S[N - i + j]) / np.sqrt(LONG(len(b)))
            for j, y in enumerate(k)
        ]
        for i, x in enumerate(q)
    ]


def slopes(H: int) -> list[Any]:
    """Press 2022, as its authors' ``get_slopes`` has it."""
    if H & (H - 1) == 0:
        start = LONG(2) ** (LONG(-8) / H)
        return [start * start**h for h in range(H)]
    lower = 1
    while 2 * lower <= H:
        lower *= 2
    return slopes(lower) + slopes(2 * lower)[0::2][: H - lower]


def with_slope(s: Matrix, slope: Any) -> Matrix:
    """Press 2022: minus the slope for every place that the key lies before the query."""
    N, M = len(s), len(s[0])
    return [[s[i][j] - slope * (M - N + i - j) for j in range(M)] for i in range(N)]


# Softmax, dropout and the values


def exponentials(row: Any, seen: Any) -> list[Any]:
    """e^s over its sum, among what is seen; nothing where nothing is."""
    if not any(seen):
        return [LONG(0)] * len(row)
    top = max(np.real(s) for s, sees in zip(row, seen, strict=True) if sees)
    powers = [np.exp(s - top) if sees else LONG(0) for s, sees in zip(row, seen, strict=True)]
    whole = add_up(powers)
    return [power / whole for power in powers]


def masked(s: Matrix, mask: Any) -> tuple[Matrix, Matrix]:
    """The scores of one head with a mask [N M], and what each query sees."""
    if mask is None:
        return s, [[True] * len(row) for row in s]
    if mask.dtype == bool:
        return s, mask.tolist()
    seen = [[x > -np.inf for x in row] for row in np.real(mask)]
    added = [
        [x + m if sees else LONG(0) for x, m, sees in zip(*rows, strict=True)]
        for rows in zip(s, mask, seen, strict=True)
    ]
    return added, seen


def mean_of(s: Matrix, value: Any, mask: Any = None, keep: Any = None, p: float = 0.0) -> Matrix:
    """The values of one head in the proportions of the softmax, where a kept one is 1 / (1 - p)."""
    s, seen = masked(s, mask)
    output = []
    for i, row in enumerate(s):
        w = exponentials(row, seen[i])
        if keep is not None:
            w = [x / (1 - LONG(p)) if kept else LONG(0) for x, kept in zip(w, keep[i], strict=True)]
        output.append([dot(w, [row[e] for row in value]) for e in range(len(value[0]))])
    return output


def causal(N: int, M: int, visible: Any = None) -> ndarray:
    """The last query beside the last key."""
    seen = [[j - (M - 1) <= i - (N - 1) for j in range(M)] for i in range(N)]
    return np.array(seen) if visible is None else np.array(seen) & visible


def visible(B: int, N: int, M: int, **given: Any) -> ndarray:
    """Which keys are left once each option has taken away what it hides, as sets."""
    m = given.get("lengths") if given.get("lengths") is not None else [M] * B
    n = given.get("query_lengths") if given.get("query_lengths") is not None else [N] * B
    seen = np.zeros((B, N, M), bool)
    firsts = given.get("offset")
    for b, first in enumerate(np.subtract(m, n) if firsts is None else firsts):
        for i in range(n[b]):
            left = set(range(m[b])) - hidden_from(first + i, b, i, m[b], **given)
            seen[b, i, sorted(left)] = True
    return seen


def hidden_from(p: int, b: int, i: int, m: int, **given: Any) -> set[int]:
    """The keys of entry b that some option hides from its row i, which stands at p."""
    every, ids = set(range(m)), given.get("blocks")
    friends = set()
    if ids is not None and p in every and ids[b][p] >= 0:
        friends = {j for j in every if ids[b][j] == ids[b][p]}
    left, right = given.get("window") or (None, None)
    hidden = {j for j in every if j > p} - friends if given.get("causal") else set()
    if left is not None:
        hidden |= {j for j in every if p - j > left} - set(range(given.get("pinned", 0)))
    if right is not None:
        hidden |= {j for j in every if j - p > right}
    if chunk := given.get("chunk"):
        begin = (p // chunk) * chunk
        hidden |= every - set(range(begin, begin + chunk))
    if segments := given.get("segments"):
        hidden |= {j for j in every if segments[1][b][j] != segments[0][b][i]}
    return hidden


def heads_of(x: Any, *shape: int) -> Any:
    return None if x is None else np.broadcast_to(x, shape)


def by_head(inputs: Inputs, score: Callable[[Any, Any, int], Matrix], mask: Any) -> Any:
    """The attention [B H N E] of these scores, one batch entry and head after the other."""
    q, k, value = (inputs[name] for name in ("query", "key", "value"))
    shape = (*q.shape[:3], k.shape[2])
    mask, keep = heads_of(mask, *shape), heads_of(inputs.get("keep"), *shape)
    return np.array(
        [
            [
                mean_of(
                    score(q[b, h], k[b, h], h),
                    value[b, h],
                    None if mask is None else mask[b, h],
                    None if keep is None else keep[b, h],
                    inputs.get("p", 0.0),
                )
                for h in range(shape[1])
            ]
            for b in range(shape[0])
        ]
    )


def additive_attention(x: Inputs) -> Any:
    weights = [x[name] for name in ("w_query", "w_key", "w_score")]
    one = {name: x[name][:, None] for name in ("query", "key", "value")}
    one |= {
        "keep": x.get("keep")[:, None] if x.get("keep") is not None else None,
        "p": x.get("p", 0),
    }
    mask = x.get("mask")
    mask = mask[:, None] if mask is not None and mask.ndim == 3 else mask
    return by_head(one, lambda q, k, h: additive(q, k, *weights), mask)[:, 0]


def scaled_dot_product_attention(x: Inputs) -> Any:
    return by_head(x, lambda q, k, h: scaled(q, k), x.get("mask"))


def alibi_attention(x: Inputs) -> Any:
    seen = causal(x["query"].shape[2], x["key"].shape[2], x.get("visible"))
    m = slopes(x["query"].shape[1])
    return by_head(x, lambda q, k, h: with_slope(scaled(q, k), m[h]), seen)


def transformer_xl_attention(x: Inputs) -> Any:
    seen = causal(x["query"].shape[2], x["key"].shape[2], x.get("visible"))
    tables = [x[name] for name in ("position", "u", "v")]
    return by_head(x, lambda q, k, h: transformer_xl(q, k, *(t[h] for t in tables)), seen)


def learned_relative_attention(x: Inputs) -> Any:
    return by_head(x, lambda q, k, h: learned(q, k, *tables_of(x, h)), x.get("visible"))


def tables_of(x: Inputs, h: int) -> tuple[Any, ...]:
    rows, biases, b = (x[name] for name in ("key_pos_embeddings", "key_pos_bias", "query_pos_bias"))
    return rows[:, h], biases[:, h], b[h], x["align"]


ATTENTIONS: dict[str, Callable[[Inputs], Any]] = {
    each.__name__: each
    for each in (
        additive_attention,
        scaled_dot_product_attention,
        alibi_attention,
        transformer_xl_attention,
        learned_relative_attention,
    )
}


# The rest


def sinusoidal_positions(M: int, F: int) -> Matrix:
    """Dai 2019's ``PositionalEmbedding`` of the places M - 1 ... 0."""
    inverse = [1 / LONG(10000) ** (LONG(2 * k) / F) for k in range(F // 2)]
    places = [LONG(M - 1 - c) for c in range(M)]
    return [[*(np.sin(t * f) for f in inverse), *(np.cos(t * f) for f in inverse)] for t in places]


def alibi_biases(H: int, visible: Any) -> Any:
    """labml: the slope times the running count of the mask."""
    count = [[int(sum(row[: j + 1])) for j in range(len(row))] for row in visible.tolist()]
    return [[[m * c for c in row] for row in count] for m in slopes(H)]


def shifted_right(x: Any) -> Matrix:
    """labml: a zero behind each row, the numbers in a row, and rows of the old width again."""
    N, M = x.shape
    flat = [number for row in x.tolist() for number in (*row, 0.0)]
    return [flat[i * M : i * M + M] for i in range(N)]


def shifted_left(x: Any) -> Matrix:
    """Transformer-XL: a zero before each row, the first N cut off."""
    N, M = x.shape
    flat = [number for row in x.tolist() for number in (0.0, *row)][N:]
    return [flat[i * M : i * M + M] for i in range(N)]


def stored_number(byte: int, stored_as: str) -> Any:
    """
    The number of eight bits: two's complement; or a sign, four bits of an exponent less 7 and three
    of a fraction, below which are subnormal numbers (OCP OFP8, section 5.2), with no infinity.
    """
    bits = byte % 256
    if stored_as == "int8":
        return LONG(bits - 256 if bits > 127 else bits)
    sign, exponent, fraction = bits >> 7, bits >> 3 & 15, LONG(bits & 7) / 8
    if bits & 127 == 127:
        return LONG(np.nan)
    size = (1 + fraction) * LONG(2) ** (exponent - 7) if exponent else fraction * LONG(2) ** -6
    return -size if sign else size


def dequantized(stored: Any, scale: Any, stored_as: str) -> Matrix:
    """Each row times its scale."""
    return [
        [stored_number(int(byte), stored_as) * s for byte in row]
        for row, s in zip(stored, long(scale), strict=True)
    ]
