"""
The layers of :mod:`tests.support.scalar_oracle`: each for one batch entry, [N F] in rows, in the
order of its paper or of the code that it comes from, and then of a whole batch.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.support.scalar_oracle import (
    COMPLEX,
    LONG,
    Inputs,
    Matrix,
    add_up,
    alibi_biases,
    causal,
    exponentials,
    learned,
    masked,
    scaled,
    sinusoidal_positions,
    tables_of,
    times,
    transformer_xl,
)

Score = Callable[[Any, Any, int], Matrix]


def in_heads(x: Any, H: int) -> list[Matrix]:
    """[N F] as [H N D]."""
    D = len(x[0]) // H
    return [[list(row[h * D : h * D + D]) for row in x] for h in range(H)]


def joined(heads: Any) -> Matrix:
    """[H N D] as [N F]."""
    return [[x for head in heads for x in head[i]] for i in range(len(heads[0]))]


def linear(x: Any, P: Inputs, name: str) -> Matrix:
    return times(P[f"{name}.weight"], x, P.get(f"{name}.bias"))


def sum_of(x: Any, y: Any) -> Matrix:
    return [[a + b for a, b in zip(*rows, strict=True)] for rows in zip(x, y, strict=True)]


def weights_of(s: Matrix, mask: Any, keep: Any, p: float) -> Matrix:
    """The softmax of one head, where a kept weight is 1 / (1 - p) times as large."""
    s, seen = masked(s, mask)
    rows = [exponentials(row, seen[i]) for i, row in enumerate(s)]
    if keep is None:
        return rows
    share = 1 - LONG(p)
    return [
        [w / share if kept else LONG(0) for w, kept in zip(*each, strict=True)]
        for each in zip(rows, keep, strict=True)
    ]


def means(weights: Matrix, values: Any) -> Matrix:
    columns = range(len(values[0]))
    return [
        [add_up(w * v[e] for w, v in zip(row, values, strict=True)) for e in columns]
        for row in weights
    ]


def at_head(x: Any, h: int) -> Any:
    return None if x is None else x[h]


def attend(q: Any, k: Any, v: Any, score: Score, x: Inputs) -> tuple[Matrix, list[Matrix]]:
    """Heads side by side, and the weights of each; mask and keep are [H N M]."""
    weights = [
        weights_of(score(q[h], k[h], h), at_head(x["mask"], h), at_head(x["keep"], h), x["p"])
        for h in range(len(q))
    ]
    return joined([means(w, v[h]) for h, w in enumerate(weights)]), weights


# The layers


def self_attention(x: Inputs) -> list[Any]:
    q, k, v = ([times(x["parameters"][f"w_{name}"], x["x"])] for name in ("query", "key", "value"))
    return [attend(q, k, v, lambda q, k, h: scaled(q, k), x)[0]]


def multi_head(x: Inputs, names: str, score: Score) -> list[Any]:
    """Projections by these names, H heads, and the output's projection; also the weights."""
    *names_of_inputs, output = names.split()
    given = (x["query"], x["key"], x["value"])
    q, k, v = (
        in_heads(linear(rows, x["parameters"], name), x["num_heads"])
        for rows, name in zip(given, names_of_inputs, strict=True)
    )
    attended, weights = attend(q, k, v, score, x)
    return [linear(attended, x["parameters"], output), weights]


def multi_head_attention(x: Inputs) -> list[Any]:
    return multi_head(x, "q_proj k_proj v_proj out_proj", lambda q, k, h: scaled(q, k))


def multi_head_self_attention(x: Inputs) -> list[Any]:
    return multi_head_attention(x | {name: x["x"] for name in ("query", "key", "value")})


LABML = "query.linear key.linear value.linear output"


def relative_multi_head_attention(x: Inputs) -> list[Any]:
    tables = x["parameters"] | {"align": x["align"]}
    score: Score = lambda q, k, h: learned(q, k, *tables_of(tables, h))
    return multi_head(x, LABML, score)[:1]


def alibi_multi_head_attention(x: Inputs) -> list[Any]:
    biases = alibi_biases(x["num_heads"], x["visible"])
    score: Score = lambda q, k, h: sum_of(scaled(q, k), biases[h])
    return multi_head(x, LABML, score)[:1]


def normed(x: Any, P: Inputs, name: str, eps: float) -> Matrix:
    """Ba 2016."""
    rows, shift = [], P.get(f"{name}.bias")
    for row in x:
        mean = add_up(row) / len(row)
        spread = np.sqrt(add_up((z - mean) ** 2 for z in row) / len(row) + LONG(eps))
        y = [g * (z - mean) / spread for z, g in zip(row, P[f"{name}.weight"], strict=True)]
        rows.append(y if shift is None else [a + b for a, b in zip(y, shift, strict=True)])
    return rows


def fed_forward(x: Any, P: Inputs, eps: float) -> Matrix:
    """Vaswani 2017, section 3.3, post-norm: max(0, x W1 + b1) W2 + b2, residual."""
    inner = [[a if np.real(a) > 0 else LONG(0) for a in row] for row in linear(x, P, "ff_in")]
    return normed(sum_of(x, linear(inner, P, "ff_out")), P, "ff_norm", eps)


def transformer_xl_layer(x: Inputs) -> list[Any]:
    """Dai 2019, section 3.3, post-norm: memory in front, a head's share of q, k and v, residual."""
    P, H, segment, mem = x["parameters"], x["num_heads"], x["x"], x["mem"]
    both, F = [*mem, *segment], len(segment[0])
    third = [
        [row[part * F : part * F + F] for row in linear(both, P, "qkv_net")] for part in range(3)
    ]
    q, k, v = (in_heads(part, H) for part in (third[0][len(mem) :], third[1], third[2]))
    r = in_heads(linear(x["position"], P, "r_net"), H)
    score: Score = lambda q, k, h: transformer_xl(q, k, r[h], P["u"][h], P["v"][h])
    seen = [causal(len(segment), len(both), at_head(x["mask"], h)) for h in range(H)]
    attended, _ = attend(q, k, v, score, x | {"mask": seen})
    y = normed(sum_of(segment, linear(attended, P, "o_net")), P, "layer_norm", x["eps"])
    return [fed_forward(y, P, x["eps"]) if "ff_in.weight" in P else y]


def transformer_xl_stack(x: Inputs) -> list[Any]:
    """A segment through all layers; each remembers what it was given."""
    mems, hidden, kept = x["mems"], x["x"], []
    length = len(mems[0]) + len(hidden)
    position = sinusoidal_positions(length, len(hidden[0]))
    for layer, (P, mem) in enumerate(zip(x["parameters"], mems, strict=True)):
        rows = [*mem, *hidden][max(0, length - x["mem_len"]) :]
        kept.append(np.array(rows).reshape(len(rows), len(hidden[0])))
        own = {"x": hidden, "mem": mem, "position": position, "parameters": P}
        (hidden,) = transformer_xl_layer(x | own | {"keep": at_head(x["keep"], layer)})
    return [hidden, *kept]


LAYERS: dict[str, Callable[[Inputs], list[Any]]] = {
    "self_attention": self_attention,
    "multi_head_attention": multi_head_attention,
    "multi_head_self_attention": multi_head_self_attention,
    "relative_multi_head_attention": relative_multi_head_attention,
    "alibi_multi_head_attention": alibi_multi_head_attention,
    "transformer_xl_layer": transformer_xl_layer,
    "transformer_xl": transformer_xl_stack,
}


# A batch of them


def visible_pairs(x: Inputs, shape: tuple[int, ...]) -> Any:
    """The mask [B H N M] of a layer, to be added or True where a key is seen; None without one."""
    mask = x.get("mask", x.get("visible"))
    if mask is not None:
        return np.broadcast_to(mask[:, None] if mask.ndim == 3 else mask, shape)
    attn_mask, padding = x.get("attn_mask"), x.get("key_padding_mask")
    return None if attn_mask is None and padding is None else added(attn_mask, padding, shape)


def added(attn_mask: Any, padding: Any, shape: tuple[int, ...]) -> Any:
    """
    PyTorch's two masks as one to add: True hides, and entry b * H + h of a mask for every head is
    that of batch entry b and head h.
    """
    found = np.zeros(shape, COMPLEX if np.iscomplexobj(attn_mask) else LONG)
    for b, h, i, j in np.ndindex(shape):
        if attn_mask is not None:
            number = attn_mask[i, j] if attn_mask.ndim == 2 else attn_mask[b * shape[1] + h, i, j]
            found[b, h, i, j] = number if attn_mask.dtype != bool else -np.inf if number else 0
        if padding is not None and padding[b, j]:
            found[b, h, i, j] = -np.inf
    return found


def of_batch(layer: str, x: Inputs) -> list[Any]:
    """Compute the outputs of a layer, one batch entry after the other."""
    first = x["query"] if "query" in x else x["x"]
    memory = x["mem"].shape[1] if x.get("mem") is not None else 0
    memory = x["mems"][0].shape[1] if "mems" in x else memory
    M = x["key"].shape[1] if "key" in x else first.shape[1] + memory
    shape = (len(first), x.get("num_heads", 1), first.shape[1], M)
    pairs, keep = visible_pairs(x, shape), kept(x, shape)
    entries = [
        LAYERS[layer](
            {"eps": 1e-5, "p": 0.0}
            | x
            | {name: x[name][b] for name in ("query", "key", "value", "x") if name in x}
            | {"mem": x["mem"][b] if x.get("mem") is not None else []}
            | {"mems": [mem[b] for mem in x.get("mems", [])]}
            | {"mask": None if pairs is None else pairs[b]}
            | {"keep": None if keep is None else keep[..., b, :, :, :]}
        )
        for b in range(shape[0])
    ]
    return [np.array(output) for output in zip(*entries, strict=True)]


def kept(x: Inputs, shape: tuple[int, ...]) -> Any:
    """The draw [B H N M], or [L B H N M] of a stack."""
    keep = x.get("keep")
    if keep is None:
        return None
    keep = keep[:, None] if "num_heads" not in x and keep.ndim == 3 else keep
    return np.broadcast_to(keep, (len(x["parameters"]), *shape) if "mems" in x else shape)
