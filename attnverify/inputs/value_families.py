"""
Families of numbers: what fills the arrays of a recipe.

Inputs find more faults than tolerances do. Every family starts from standard normal numbers (full
diversity, not the few dozen values of ``hypothesis.extra.numpy``) and bends them until a kind of
fault shows: queries that point at the edge of the mask, logits near the overflow of exp, values
that reveal single weights, ties, cancellation, subnormals.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.dtypes import largest, tiny
from attnverify.inputs.memory_layouts import SHARED
from attnverify.inputs.real.aimed_queries import query_and_key, spotlight

if TYPE_CHECKING:
    from attnverify.inputs.recipe import Inputs, Recipe

Family = Callable[["Inputs", str, np.random.Generator], None]

DATA = (
    "query",
    "key",
    "value",
    "x",
    "score",
    "weights",
    "position",
    "hids",
    "mems",
    "mem",
    "d_output",
    "outputs",
)
SCORING = ("query", "x", "score", "lses")
"""The argument whose size is the size of the scores."""


def apply_family(inputs: "Inputs", recipe: "Recipe", dtype: str, rng: np.random.Generator) -> None:
    """Bend the standard normal arrays to the recipe's family, in place."""
    FAMILIES[recipe.values["family"]](inputs, dtype, rng)
    if recipe.layout["kind"] == SHARED and _are_alike(inputs.get("key"), inputs.get("value")):
        inputs["value"] = inputs["key"].copy()
    if recipe.layout["kind"] in ("expanded", "mixed"):
        make_broadcastable(inputs)


def _are_alike(key: Any, value: Any) -> bool:
    return isinstance(key, ndarray) and isinstance(value, ndarray) and key.shape == value.shape


def make_broadcastable(inputs: "Inputs") -> None:
    """
    One key head for all heads, one gradient for all columns: numbers that a stride of 0 can hold.
    """
    for name, axis in SHARED_AXES.items():
        x = inputs.get(name)
        if isinstance(x, ndarray) and x.ndim >= 3:
            x[...] = x.take([0], axis=axis if x.ndim == 4 or axis < 0 else 0)


SHARED_AXES = {"key": 1, "value": 1, "d_output": -1}


def scale(inputs: "Inputs", factor: float, names: tuple[str, ...]) -> None:
    for name in names:
        leaves = inputs.get(name)
        for leaf in leaves if isinstance(leaves, list) else [leaves]:
            if leaf is not None:
                leaf *= factor


def normal(inputs: "Inputs", dtype: str, rng: np.random.Generator) -> None:
    pass


def small(inputs: "Inputs", dtype: str, rng: np.random.Generator) -> None:
    scale(inputs, 1e-3, DATA)


def wide_logits(inputs: "Inputs", dtype: str, rng: np.random.Generator) -> None:
    """Logits over several units: weights of very different size."""
    scale(inputs, 4.0, SCORING)


def large(inputs: "Inputs", dtype: str, rng: np.random.Generator) -> None:
    """Logits around +-88, where exp of float32 overflows (+-11 is enough in float16)."""
    scale(inputs, 40.0, SCORING)


def near_float16_limit(inputs: "Inputs", dtype: str, rng: np.random.Generator) -> None:
    """Products as large as float16 can hold."""
    query, key = inputs.get("query"), inputs.get("key")
    if isinstance(query, ndarray) and isinstance(key, ndarray) and query.shape[-1] == key.shape[-1]:
        products: ndarray = (
            np.abs(query) @ np.abs(key).swapaxes(-1, -2)
            if query.shape[:-2] == key.shape[:-2]
            else np.ones(1)
        )
        query *= 3e4 / np.maximum(products.max(), 1e-3)
    else:
        scale(inputs, 500.0, SCORING)


def huge_values(inputs: "Inputs", dtype: str, rng: np.random.Generator) -> None:
    scale(inputs, 1e4 if dtype != "float16" else 1e3, ("value", "x", "weights", "outputs"))


def uniform(inputs: "Inputs", dtype: str, rng: np.random.Generator) -> None:
    for name in DATA:
        if isinstance(inputs.get(name), ndarray):
            inputs[name] = rng.random(inputs[name].shape)


def ties(inputs: "Inputs", dtype: str, rng: np.random.Generator) -> None:
    """Small integers: many equal scores."""
    for name in ("query", "key", "x", "score", "value", "lses", "frequencies"):
        if isinstance(inputs.get(name), ndarray):
            np.round(inputs[name], out=inputs[name])


def eighths(inputs: "Inputs", dtype: str, rng: np.random.Generator) -> None:
    """Multiples of 1/8: products and short sums are exact in every dtype."""
    for name in DATA:
        if isinstance(inputs.get(name), ndarray):
            inputs[name] = np.round(inputs[name] * 8) / 8


def zero_sum(inputs: "Inputs", dtype: str, rng: np.random.Generator) -> None:
    """Queries and keys that sum to zero, under a large common offset: the product cancels."""
    for name in ("query", "x"):
        if isinstance(inputs.get(name), ndarray):
            inputs[name] -= inputs[name].mean(axis=-1, keepdims=True)
    if isinstance(inputs.get("key"), ndarray):
        inputs["key"] += 30.0


def offset_values(inputs: "Inputs", dtype: str, rng: np.random.Generator) -> None:
    for name in ("value", "x"):
        if isinstance(inputs.get(name), ndarray):
            inputs[name] += 100.0


def one_signed(inputs: "Inputs", dtype: str, rng: np.random.Generator) -> None:
    """Near-uniform weights over values of one sign: the worst for accumulators."""
    scale(inputs, 0.05, SCORING)
    for name in ("value", "d_output"):
        if isinstance(inputs.get(name), ndarray):
            inputs[name] = 1 + np.abs(inputs[name])


def identity(inputs: "Inputs", dtype: str, rng: np.random.Generator) -> None:
    """
    Values that are unit vectors: the output is the weights themselves, and no average hides one.
    """
    scale(inputs, 3.0 if dtype == "float16" else 8.0, SCORING)
    value = inputs.get("value")
    if isinstance(value, ndarray):
        M, E = value.shape[-2:]
        value[...] = np.arange(M)[:, None] % E == np.arange(E)


def columns(inputs: "Inputs", dtype: str, rng: np.random.Generator) -> None:
    """
    Near-uniform weights over values whose column e is nonzero for the keys j = e mod E alone: a
    key that is lost takes E / M off its column, however many there are.
    """
    one_signed(inputs, dtype, rng)
    scale(inputs, 0.05, ("u", "v", "w_score", "key_pos_bias", "query_pos_bias"))
    value = inputs.get("value")
    if isinstance(value, ndarray):
        M, E = value.shape[-2:]
        value[...] = np.where(np.arange(M)[:, None] % E == np.arange(E), 2.0, 0.0)


def far_below(inputs: "Inputs", dtype: str, rng: np.random.Generator) -> None:
    """
    Scores that all lie far below zero, yet apart by more than they may err: a finite number that
    stands for "hidden" stands above them. (In float16 none is below a quarter of its range, where
    what is added to a score may overflow.)
    """
    lower_scores(inputs, rng, {"float16": 8e3, "bfloat16": 2e4}.get(dtype, 2e6))


def farthest_below(inputs: "Inputs", dtype: str, rng: np.random.Generator) -> None:
    """
    Return the same as far as the arithmetic goes: float16 ends at 65504, and beyond 1e9 a shift
    that the exponents of a row share may leave float32, so that no bound is finite.
    """
    lower_scores(inputs, rng, {"float64": 2e15, "float16": 2e4}.get(dtype, 2e8))


def lower_scores(inputs: "Inputs", rng: np.random.Generator, depth: float) -> None:
    """Bend the arrays that make up the scores: all scores between once and nine times -depth."""
    for name in ("score", "w_score"):
        if isinstance(inputs.get(name), ndarray):
            inputs[name] = -(1 + rng.random(inputs[name].shape)) * depth
    if "w_score" in inputs:
        inputs["w_score"] *= 2 / len(inputs["w_score"])
        for name, most in {"query": 4.0, "key": 0.7, "w_query": 4.0, "w_key": 0.7}.items():
            inputs[name] = most * rng.random(inputs[name].shape) ** (6 if most > 1 else 1)
    elif query_and_key(inputs)[0] is not None:
        size = np.sqrt(depth / np.sqrt(inputs["query"].shape[-1]))
        for name, sign in (("query", size), ("key", -size)):
            inputs[name] = sign * (1 + 0.5 * rng.random(inputs[name].shape))


def near_overflow(inputs: "Inputs", dtype: str, rng: np.random.Generator) -> None:
    """Values between 30000 and 60000: float16 ends at 65504."""
    value = inputs.get("value")
    if isinstance(value, ndarray):
        wide_logits(inputs, dtype, rng)
        inputs["value"] = np.copysign(3e4 + 3e4 * rng.random(value.shape), value)


def subnormal(inputs: "Inputs", dtype: str, rng: np.random.Generator) -> None:
    """Values around the smallest normal number of the dtype."""
    scale(
        inputs,
        tiny(dtype) if dtype in ("float16", "bfloat16", "float32") else 1e-308,
        ("value", "weights"),
    )


def cliff(inputs: "Inputs", dtype: str, rng: np.random.Generator) -> None:
    """
    The last keys, a sixteenth, far above all before in one row and far below them in the next: a
    running maximum that is not raised, or not kept, overflows where a tile ends before them.
    """
    query, key = query_and_key(inputs)
    if query is not None and key is not None:
        size = np.sqrt(CLIFF / np.sqrt(query.shape[-1]))
        query[...] = signs_of_rows(query) * size * (1 + 0.1 * rng.random(query.shape))
        key[...] += size * sides_of_keys(key.shape[-2])[:, None]
    elif isinstance(score := inputs.get("score"), ndarray):
        score += CLIFF * signs_of_rows(score) * sides_of_keys(score.shape[-1])
    else:
        wide_logits(inputs, dtype, rng)


CLIFF = 400.0
"""Half of it is twice what lies between 0 and the overflow of exp in float32."""


def signs_of_rows(x: ndarray) -> ndarray:
    """Return 1 and -1 [N 1], by turns."""
    return 1.0 - 2 * (np.arange(x.shape[-2])[:, None] % 2)


def sides_of_keys(keys: int) -> ndarray:
    """Return 1/2 for the last sixteenth of the keys and -1/2 for the others."""
    return np.where(np.arange(keys) < keys - max(keys // 16, 1), -0.5, 0.5)


def peaked(inputs: "Inputs", dtype: str, rng: np.random.Generator) -> None:
    """One dominant key for all queries."""
    query, key = query_and_key(inputs)
    if query is not None and key is not None:
        towards = rng.standard_normal(query.shape[-1])
        query += towards
        key[..., rng.integers(key.shape[-2]), :] = (
            8 * towards / np.maximum(np.linalg.norm(towards), 0.5)
        )
    else:
        wide_logits(inputs, dtype, rng)


def needle_keys(inputs: "Inputs", dtype: str, rng: np.random.Generator) -> None:
    """
    Each query parallel to one key: at the frontier of the causal mask, one behind or before it, the
    first, the last, a tile's edge.
    """
    query, key = query_and_key(inputs)
    if query is None or key is None or query.shape[:-2] != key.shape[:-2]:
        wide_logits(inputs, dtype, rng)
        return
    N, M = query.shape[-2], key.shape[-2]
    frontier = np.arange(N) + M - N
    edge = np.full(N, rng.choice([15, 16, 31, 32, 63, 64]))
    choices = np.stack([frontier, frontier + 1, frontier - 1, 0 * edge, 0 * edge + M - 1, edge])
    target = np.clip(choices[rng.integers(len(choices), size=N), np.arange(N)], 0, M - 1)
    sharpness = 6.0 / np.maximum(np.linalg.norm(key, axis=-1, keepdims=True), 0.5)
    query[...] = (key * sharpness)[..., target, :] + 0.1 * query


def correlated(inputs: "Inputs", dtype: str, rng: np.random.Generator) -> None:
    """Keys that repeat the queries: the diagonal stands out."""
    query, key = query_and_key(inputs)
    if query is not None and key is not None and query.shape[:-2] == key.shape[:-2]:
        key[...] = query[..., np.arange(key.shape[-2]) % query.shape[-2], :] + 0.1 * key


def one_hot(inputs: "Inputs", dtype: str, rng: np.random.Generator) -> None:
    """
    A gradient that arrives at one output of each row, and at some rows not at all: no sum hides a
    term.
    """
    d_output = inputs.get("d_output")
    if isinstance(d_output, ndarray):
        E = d_output.shape[-1]
        d_output[...] = rng.integers(-1, E, size=(*d_output.shape[:-1], 1)) == np.arange(E)


def special(inputs: "Inputs", dtype: str, rng: np.random.Generator) -> None:
    """NaN, infinities, the zero with a sign, subnormals: what a copy must carry unchanged."""
    odd = np.array(
        [
            np.nan,
            np.inf,
            -np.inf,
            -0.0,
            0.0,
            tiny(dtype) / 2 if dtype != "bool" else 0.0,
            largest(dtype) if dtype != "bool" else 1.0,
        ]
    )
    for name in ("x", "hids", "mems", "d_output", "d_new_mems"):
        leaves: Any = inputs.get(name)
        for leaf in leaves if isinstance(leaves, list) else [leaves]:
            if leaf is not None:
                chosen = rng.random(leaf.shape) < 0.5
                leaf[chosen] = rng.choice(odd, size=int(chosen.sum()))


def minus_infinity(inputs: "Inputs", dtype: str, rng: np.random.Generator) -> None:
    """Scores that are minus infinity: keys hidden by their score, whole rows now and then."""
    score = inputs.get("score")
    if isinstance(score, ndarray):
        score[rng.random(score.shape) < 0.3] = -np.inf
        score[rng.random(score.shape[:-1]) < 0.2] = -np.inf


def absent_parts(inputs: "Inputs", dtype: str, rng: np.random.Generator) -> None:
    """Parts that saw no key, with NaN in their outputs; in some rows all of them."""
    lses, outputs = inputs["lses"], inputs["outputs"]
    lses[rng.random(lses.shape) < 0.4] = -np.inf
    lses[:, rng.random(lses.shape[1:]) < 0.2] = -np.inf
    outputs[lses == -np.inf] = np.nan


def far_lses(inputs: "Inputs", dtype: str, rng: np.random.Generator) -> None:
    """Rows that lie far above or below 0, beyond what may stand for minus infinity."""
    lses = inputs["lses"]
    lses += rng.choice([-1e5, -6e4, -700.0, 90.0, 5e3], lses.shape[1:])


def quiet(inputs: "Inputs", dtype: str, rng: np.random.Generator) -> None:
    """
    Layers of small scores: at the width of models, where a projection errs by as much as it sums,
    the bounds of others say nothing.
    """
    layers_of: Any = inputs.get("parameters")
    for parameters in layers_of if isinstance(layers_of, list) else [layers_of or {}]:
        for name, x in parameters.items():
            if name.startswith(SCORED) or name in ("u", "v"):
                x /= 8
        if "qkv_net.weight" in parameters:
            scored = len(parameters["qkv_net.weight"]) // 3 * 2
            parameters["qkv_net.weight"][:scored] /= 8
            parameters["o_net.weight"] /= 8


SCORED = (
    *("w_query", "w_key", "q_proj", "k_proj", "query.linear", "key.linear"),
    *("key_pos", "query_pos", "r_net"),
)
"""How the parameters begin that go into a layer's scores."""


FAMILIES: dict[str, Family] = {
    "normal": normal,
    "spotlight": spotlight,
    "quiet": quiet,
    "needles": needle_keys,
    "identity": identity,
    "spread": wide_logits,
    "peaked": peaked,
    "cliff": cliff,
    "correlated": correlated,
    "large": large,
    "brink": near_float16_limit,
    "ties": ties,
    "lattice": eighths,
    "zero_sum": zero_sum,
    "uniform": uniform,
    "small": small,
    "offset_values": offset_values,
    "one_signed": one_signed,
    "huge_values": huge_values,
    "near_overflow": near_overflow,
    "columns": columns,
    "far_below": far_below,
    "farthest_below": farthest_below,
    "subnormal": subnormal,
    "one_hot": one_hot,
    "special": special,
    "minus_infinity": minus_infinity,
    "absent_parts": absent_parts,
    "far_lses": far_lses,
}
