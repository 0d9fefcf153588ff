"""
Masks of a recipe: which pairs see each other, in every documented shape and kind, and how a mask
says so.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.dtypes import largest
from attnverify.catalogue.packing import Visible, packed_pairs, token_count
from attnverify.spec.masks import Visibility, visible_keys
from attnverify.spec.selected import chosen_pairs

if TYPE_CHECKING:
    from attnverify.catalogue.operation import Operation
    from attnverify.inputs.recipe import Inputs, Recipe

CHOOSING = ("query", "key", "selection", "block")
"""What says which keys a row has chosen."""

PATTERNS: dict[str, Callable[..., Any]] = {
    "random": lambda rng, shape, **_: rng.random(shape) < 0.65,
    "right_padding": lambda j, first, **_: j < np.maximum(first, 1),
    "left_padding": lambda j, first, M, **_: j >= np.minimum(first, M - 1),
    "causal": lambda j, last, N, shape, M, **_: j <= last if shape[-2:-1] == (N,) else j < M,
    "window": lambda j, last, **_: np.abs(j - last) <= 2,
    "first_block": lambda j, M, **_: j >= min(M // 2 + 1, M - 1),
    "last_block": lambda j, M, **_: j < max(M // 2, 1),
    "empty_rows": lambda rng, shape, **_: (
        (rng.random(shape) < 0.7) & (rng.random((*shape[:-1], 1)) < 0.6)
    ),
    "one_key": lambda rng, j, shape, M, **_: j == rng.integers(0, M, size=(*shape[:-1], 1)),
    "sparse": lambda rng, shape, **_: rng.random(shape) < 0.25,
    "nothing": lambda shape, **_: np.zeros(shape, bool),
}
"""
What a row sees, by the keys j of M and the shape of the mask: up to which key each row is causal
(``last``), and a key that is drawn for all rows (``first``).
"""


def draw_visible(mask: dict[str, Any], axes: str, sizes: dict[str, int]) -> ndarray:
    """
    Draw a boolean array with these axes (a literal 1 is broadcast): True where the pattern lets a
    query see a key.
    """
    rng = np.random.default_rng(mask["seed"])
    shape = tuple(
        1 if axis == "1" else int(np.prod([sizes[letter] for letter in axis.split("*")]))
        for axis in axes.split()
    )
    lead, M = shape[:-1], shape[-1]
    i, j = np.arange(shape[-2] if len(shape) > 1 else 1)[:, None], np.arange(M)
    first = (
        rng.integers(0, M + 1, size=(*lead[:-1], 1, 1))
        if len(shape) > 2
        else rng.integers(0, M + 1, size=(*lead, 1))
    )
    offset = 0 if mask.get("align") == "start" else M - sizes.get("N", 1)
    if (pattern := mask["pattern"]) not in PATTERNS:
        raise ValueError(f"pattern: wanted one of {', '.join(PATTERNS)}, got {pattern!r}")
    places = {"j": j, "last": i + offset, "first": first, "M": M, "N": sizes.get("N")}
    visible = PATTERNS[pattern](rng=rng, shape=shape, **places)
    return np.broadcast_to(visible, shape).copy()


def draw_mask(recipe: "Recipe", dtype: str, hidden_is_true: bool) -> ndarray:
    """Draw the mask of the recipe in its form: boolean, or float to add."""
    mask = recipe.mask
    assert mask is not None
    visible = draw_visible(mask, mask["axes"], recipe.sizes)
    if mask["form"] == "bool":
        return ~visible if hidden_is_true else visible
    noise = 2 * np.random.default_rng(mask["seed"] + 1).standard_normal(visible.shape)
    if mask["form"] == "finite":
        return noise
    hidden = {"infinite": -np.inf, "noisy": -np.inf, "lowest": -largest(dtype), "-1e4": -1e4}[
        mask["form"]
    ]
    return np.where(visible, noise if mask["form"] == "noisy" else 0.0, hidden)


def causal_pairs(N: int, M: int, ahead: int = 0) -> ndarray:
    """[N M]: each query sees the keys up to its own place, the ends aligned; or some ``ahead``."""
    return np.tri(N, M, M - N + ahead, dtype=bool)


def visible_pairs(
    operation: "Operation", inputs: "Inputs", by_options: Visible = visible_keys
) -> ndarray | None:
    """
    Which pairs see each other, [B H N M] (or [B N M], [... N M]); None for operations that have no
    pairs. What windows, lengths and the like leave visible may be told otherwise.
    """
    shape = scores_shape(operation, inputs)
    if shape is None:
        return None
    if operation.is_packed:
        return np.broadcast_to(packed_pairs(inputs, by_options), shape)
    visible = np.ones(shape, bool)
    if operation.traits.causal:
        visible &= causal_pairs(*shape[-2:])
    for name in ("mask", "visible"):
        mask = inputs.get(name)
        if mask is not None:
            visible &= mask if mask.dtype == bool else mask > -np.inf
    if operation.shares_keys:
        visible &= seen_by_options(shape, inputs, by_options)
    if operation.is_selected:
        visible &= chosen_pairs(*(inputs[name] for name in CHOOSING))
    return visible & merged_visibility(inputs, shape)


def seen_pairs(
    operation: "Operation", inputs: "Inputs", by_options: Visible = visible_keys
) -> ndarray:
    """The same of an operation that has pairs."""
    found = visible_pairs(operation, inputs, by_options)
    assert found is not None
    return found


def seen_by_options(
    shape: tuple[int, ...], inputs: "Inputs", by_options: Visible = visible_keys
) -> ndarray:
    """What windows, lengths and the like leave visible [B 1 N M]."""
    options = {name: inputs[name] for name in Visibility.__annotations__ if name in inputs}
    B, N, M = shape[0], *shape[-2:]
    return by_options(B=B, N=N, M=M, **options)[:, None]


def merged_visibility(inputs: "Inputs", shape: tuple[int, ...]) -> Any:
    """What attn_mask and key_padding_mask leave visible."""
    visible: Any = True
    attn_mask, padding = inputs.get("attn_mask"), inputs.get("key_padding_mask")
    if attn_mask is not None:
        open_ = ~attn_mask if attn_mask.dtype == bool else attn_mask > -np.inf
        visible = open_ if open_.ndim == 2 else open_.reshape(shape)
    return visible if padding is None else visible & ~padding[:, None, None, :]


def scores_shape(operation: "Operation", inputs: "Inputs") -> tuple[int, ...] | None:
    """Return the shape of the scores; None where there are none, or none that we know of."""
    if operation.outside is not None:
        return None
    if "score" in inputs:
        return tuple(inputs["score"].shape)
    query = inputs.get("query", inputs.get("x"))
    if query is None or operation.chapter in ("shifts", "memory", "masks"):
        return None
    if operation.is_paged:
        return 1, query.shape[1], token_count(query), inputs["key_pages"][..., 0, 0].size
    key: Any = inputs.get("key", inputs.get("latent", query))
    if operation.is_packed:
        return 1, query.shape[1], token_count(query), token_count(key)
    N, M = query.shape[-2], key.shape[-2]
    if operation.has_memory:
        mems = inputs.get("mems") or [inputs.get("mem")]
        M = N + (mems[0].shape[1] if mems and mems[0] is not None else 0)
    H = inputs.get("num_heads", 1)
    return (*query.shape[:-2], N, M) if "num_heads" not in inputs else (query.shape[0], H, N, M)
