"""What the layers' clauses share: projections, heads, names, dropout, and twins of these."""

from typing import Any

import numpy as np
from numpy import ndarray

from tests.spec.clauses.registry import Function, answering, given, refuses
from tests.support.random_arrays import normals

Inputs = dict[str, Any]
B, H, N, M, D, F = 2, 2, 3, 4, 3, 6


def projections(*names: str, bias: bool = True) -> Inputs:
    """For each name a weight [F F], and a bias [F]."""
    drawn = normals(*[(F, F), (F,)] * len(names), seed=1)
    keys = [f"{name}.{part}" for name in names for part in ("weight", "bias")]
    return {
        key: x / np.sqrt(F) if x.ndim == 2 else x
        for key, x in zip(keys, drawn, strict=True)
        if bias or x.ndim == 2
    }


def linear(x: ndarray, parameters: Inputs, name: str) -> ndarray:
    return x @ parameters[f"{name}.weight"].T + parameters.get(f"{name}.bias", 0.0)


def in_heads(x: ndarray) -> ndarray:
    return np.stack([x[..., h * D : (h + 1) * D] for h in range(H)], axis=1)


def side_by_side(x: ndarray) -> ndarray:
    return np.concatenate([x[:, h] for h in range(H)], axis=-1)


def interleaved(x: ndarray, heads: int) -> ndarray:
    """Twin of the split into heads: head h has every H-th column."""
    return x.reshape(*x.shape[:2], -1, heads).transpose(0, 3, 1, 2)


def known_names_alone(*names: str) -> Function:
    """Twin: what is unknown is dropped in silence."""

    def change(parameters: Inputs, **_: Any) -> Inputs:
        return {"parameters": {name: parameters[name] for name in names if name in parameters}}

    return change


def without(*names: str) -> Function:
    """Twin: these parameters are not looked at."""

    def change(parameters: Inputs, **_: Any) -> Inputs:
        return {"parameters": {key: x for key, x in parameters.items() if key not in names}}

    return change


def transposed(name: str) -> Function:
    def change(parameters: Inputs, **_: Any) -> Inputs:
        return {"parameters": parameters | {name: parameters[name].T}}

    return change


def refuses_other_names(layer: Function, inputs: Inputs, unknown: str) -> bool:
    """Whether a name that nobody knows is refused, and one that misses."""
    parameters = inputs["parameters"]
    first = next(iter(parameters))
    missing = {name: x for name, x in parameters.items() if name != first}
    more = parameters | {unknown: np.ones(F)}
    return all(
        refuses(layer, "parameters: wanted", **inputs | {"parameters": wrong})
        for wrong in (missing, more)
    )


def drawn(*shape: int) -> ndarray:
    return np.random.default_rng(5).random(shape) < 0.6


def of_the_first(keep: ndarray, **_: Any) -> Inputs:
    return {"keep": keep[:1]}


def twins_of_dropout(name: str, *broken: Function) -> list[Function]:
    """Twins: no dropout, the others dropped, one draw for the batch, and not scaled up."""

    def unscaled(found: Any, p: float, **_: Any) -> Any:
        return tuple((1 - p) * x for x in found) if isinstance(found, tuple) else (1 - p) * found

    return [
        given(name, lambda **_: {"keep": None, "p": 0.0}),
        given(name, lambda keep, **_: {"keep": ~keep}),
        given(name, of_the_first),
        answering(name, unscaled),
        *broken,
    ]


def ones_where_absent(*names: str) -> Function:
    """Twin: an absent bias is 1."""

    def change(parameters: Inputs, **_: Any) -> Inputs:
        return {"parameters": {f"{name}.bias": np.ones(F) for name in names} | parameters}

    return change
