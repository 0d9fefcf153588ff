"""
The bounds of attention as it is written today: derived from the lines of its specification.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.bounds.error_rules import rounding_error
from attnverify.bounds.softmax_rows import added
from attnverify.catalogue.operation import CATALOGUE
from attnverify.catalogue.packing import apart, heads_first, packed_pairs
from attnverify.derived import Derived, derive, derive_gradient
from attnverify.precision import Precision
from attnverify.spec.grouped import attended, to_add
from attnverify.spec.masks import Visibility
from attnverify.spec.selected import chosen_pairs

Inputs = Mapping[str, Any]
FAR = 1e30
"""Whose product with any number that is not 0 the hyperbolic tangent makes 1 of."""

ROWS = "rows"
"""Beside the arguments: the queries, as a slice, of which alone the bound is worked out."""

OPTIONAL = ("mask", "soft_cap", "sink", "scale")


def lines_given(inputs: Inputs) -> dict[str, Any]:
    """
    The arguments of the lines that compute. What is not finite stands in hidden slots, of which
    nothing depends, or makes NaN of the result, of which nothing is said; but a cap makes a number
    of infinite scores, as it does of large ones.
    """
    arrays: dict[str, Any] = {
        name: np.where(np.isfinite(inputs[name]), inputs[name], 0.0)
        for name in ("query", "key", "value")
    }
    if inputs.get("soft_cap"):
        arrays |= {
            name: np.nan_to_num(inputs[name], nan=0.0, posinf=FAR, neginf=-FAR)
            for name in ("query", "key")
        }
    optional: dict[str, Any] = {name: inputs.get(name) for name in OPTIONAL}
    seen = seen_pairs(inputs) & ~lost_pairs(inputs)
    draw = {"keep": inputs.get("keep"), "p": inputs.get("p", 0.0)}
    given = arrays | optional | draw | {"mask": to_add(optional["mask"]), "seen": seen}
    return given if inputs.get(ROWS) is None else given | in_rows(given, inputs[ROWS])


def in_rows(given: Mapping[str, Any], rows: slice) -> dict[str, Any]:
    """What belongs to some queries alone, of what has an axis of them before its last."""
    arrays = {name: given[name] for name in ("query", "mask", "seen", "keep")}
    return {
        name: x[..., rows, :]
        for name, x in arrays.items()
        if isinstance(x, ndarray) and x.ndim > 1 and x.shape[-2] > 1
    }


def seen_pairs(inputs: Inputs) -> ndarray:
    query, key = inputs["query"], inputs["key"]
    if is_packed(inputs):
        seen = packed_pairs(inputs)
        return np.broadcast_to(seen, (1, query.shape[1], *seen.shape))
    options: Any = {name: inputs[name] for name in Visibility.__annotations__ if name in inputs}
    (B, H, N, _), M, mask = query.shape, key.shape[2], inputs.get("mask")
    seen = np.repeat(CATALOGUE["visible_keys"].reference(B, N, M, **options)[:, None], H, axis=1)
    if "selection" in inputs:
        seen = seen & chosen_pairs(query, key, inputs["selection"], inputs["block"])
    return seen if mask is None else seen & (mask if mask.dtype == bool else mask > -np.inf)


def is_packed(inputs: Inputs) -> bool:
    return "query_starts" in inputs


def lost_pairs(inputs: Inputs) -> ndarray | bool:
    """Pairs whose score is minus infinity because a query or a key is infinite: no weight."""
    query, key, factor = inputs["query"], inputs["key"], inputs.get("scale") or 1.0
    if inputs.get("soft_cap") or (np.isfinite(query).all() and np.isfinite(key).all()):
        return False
    keys = np.repeat(key, query.shape[1] // key.shape[1], axis=1)
    return np.asarray(query @ keys.mT * factor == -np.inf)


def attention(inputs: Inputs) -> Derived:
    return derive(attended, lines_given(inputs))


def attention_grad(inputs: Inputs) -> Derived:
    given = lines_given(inputs)
    optional = [name for name in ("mask", "sink") if given[name] is not None]
    arriving, rows = [inputs["d_output"], inputs["d_lse"]], inputs.get(ROWS)
    arriving = [arriving[0][..., rows, :], arriving[1][..., rows]] if rows else arriving
    return derive_gradient(attended, given, arriving, ["query", "key", "value", *optional], True)


Errors = Callable[[Derived, Precision, Sequence[int]], Any]


def latent_errors(inputs: Inputs, derived: Derived, P: Precision, errors: Errors) -> Any:
    """
    Cut the errors of one group, by queries, by keys and by values, into those of a latent's parts.

    The latent receives as keys and as values. Each of the two may be kept in `stage` before they
    are added, as by a library that collects what arrives at one array, and their sum is stored.
    """
    (_, E), narrow = (inputs["latent"].shape[1:]), P.stage.u >= P.storage.u
    found = errors(derived, P, () if narrow else (1, 2))
    if found is None:
        return None
    by_query, by_key, by_value, *by_sink = found
    _, d_key, d_value, *_ = derived.values
    d_position, position = d_key[:, 0, :, E:], by_key[:, 0, :, E:]
    d_latent = d_key[:, 0, :, :E] + d_value[:, 0]
    latent = rounding_error(d_latent, by_key[:, 0, :, :E] + by_value[:, 0], P.storage)
    position = position if narrow else rounding_error(d_position, position, P.storage)
    return by_query[..., :E], by_query[..., E:], latent, position, *by_sink


def bound_by(trace: Callable[[Inputs], Derived], *wide: int) -> Callable[..., Any]:
    """Make a bound, as the functions of :mod:`attnverify.bounds` are, of what is traced."""

    def bound(precision: tuple[Precision, ...], **inputs: Any) -> Any:
        packed, otherwise = is_packed(inputs), is_packed(inputs) or "latent" in inputs
        derived = trace(heads_first(dict(apart(inputs))) if otherwise else inputs)

        def errors(P: Precision, by: Errors = Derived.errors) -> Any:
            if derived.backward and "latent" in inputs:
                return latent_errors(inputs, derived, P, by)
            found = by(derived, P, wide)
            return tuple(map(by_tokens, found)) if packed and found is not None else found

        return added([errors(each) for each in precision]) if precision else errors

    return bound


def by_tokens(errors: ndarray) -> ndarray:
    """Those of heads [1 H T ...] as those of tokens; a sink has neither."""
    return errors if errors.ndim == 1 else errors[0].swapaxes(0, 1)


BOUNDS: dict[str, Callable[..., Any]] = {
    "grouped_attention": bound_by(attention, 1),
    "grouped_attention_grad": bound_by(attention_grad),
    "latent_attention": bound_by(attention, 1),
    "latent_attention_grad": bound_by(attention_grad),
    "selected_attention": bound_by(attention, 1),
    "selected_attention_grad": bound_by(attention_grad),
    "packed_attention": bound_by(attention, 1),
    "packed_attention_grad": bound_by(attention_grad),
    "paged_attention": bound_by(attention, 1),
}
"""By the operation's name; the judge puts them beside those that are written by hand."""
