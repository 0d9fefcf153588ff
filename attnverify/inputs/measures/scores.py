"""
Which pairs of a case see each other, and how large the scores of those are that do and that do not.
"""

from typing import Protocol

import numpy as np
from numpy import ndarray

from attnverify.catalogue.dtypes import largest
from attnverify.catalogue.operation import CATALOGUE
from attnverify.catalogue.packing import heads_first
from attnverify.inputs.masks import visible_pairs
from attnverify.inputs.recipe import Inputs, Recipe


class Case(Protocol):
    """What a condition may ask of a case (:class:`attnverify.judge.case.Case`)."""

    @property
    def recipe(self) -> Recipe: ...
    @property
    def dtype(self) -> str: ...
    @property
    def inputs(self) -> Inputs: ...


def pairs_of_case(case: Case) -> ndarray:
    """Which pairs see each other; one pair that does, for operations without pairs."""
    inputs = case.inputs
    visible = visible_pairs(CATALOGUE[case.recipe.operation], inputs)
    if "score" in inputs and visible is not None:
        visible = visible & (inputs["score"] > -np.inf)  # a score of -inf hides as a mask does
    return np.ones((1, 1), bool) if visible is None else visible


def by_heads(case: Case) -> Inputs:
    """The arrays of a case with heads in front of positions."""
    otherwise = CATALOGUE[case.recipe.operation].lies_otherwise
    return heads_first(case.inputs) if otherwise else case.inputs


def absent_parts(case: Case) -> ndarray:
    """Which parts of what is merged have no key (C, ...); none where nothing is merged."""
    return np.asarray(case.inputs.get("lses", np.zeros((1, 1))) == -np.inf)


def has_hidden_gap(case: Case) -> bool:
    visible = pairs_of_case(case)
    before, after = (
        np.logical_or.accumulate(visible, -1),
        np.logical_or.accumulate(visible[..., ::-1], -1)[..., ::-1],
    )
    return bool((before & after & ~visible).any())


def holds_nonfinite(case: Case) -> bool:
    arrays = [
        x
        for name, x in case.inputs.items()
        if isinstance(x, ndarray) and name not in ("mask", "attn_mask")
    ]
    return not all(np.isfinite(x).all() for x in arrays)


def scores(case: Case) -> ndarray:
    """
    Return the scaled scores before any mask, ALiBi's bias left out; no scores for operations that
    do not tell them.
    """
    operation, inputs = CATALOGUE[case.recipe.operation], by_heads(case)
    if "score" in inputs:
        return np.asarray(inputs["score"])
    own = f"{operation.forward.name.removesuffix('_attention')}_score"
    score = CATALOGUE.get(own, CATALOGUE["scaled_dot_product_score"])
    if not set(score.arguments) <= set(inputs) or "w_query" in inputs or "parameters" in inputs:
        return np.zeros((1, 1))
    given = {name: inputs[name] for name in score.arguments}
    if operation.shares_keys:
        groups = inputs["query"].shape[1] // inputs["key"].shape[1]
        given["key"] = np.repeat(inputs["key"], groups, axis=1)
    with np.errstate(all="ignore"):
        found: ndarray = score.reference(**given)
    return found


def score_overflow(case: Case) -> bool:
    products = scores(case) * np.sqrt(case.recipe.sizes.get("D", 1))
    return case.dtype != "bool" and bool(
        (~pairs_of_case(case) & (products > largest(case.dtype))).any()
    )


def gradient_overflow(case: Case) -> bool:
    inputs, hidden = by_heads(case), ~pairs_of_case(case)
    if not {"d_output", "value"} <= set(inputs) or "parameters" in inputs:
        return False  # a layer's values and weights are its own
    with np.errstate(all="ignore"):
        d_output, value = inputs["d_output"], inputs["value"]
        if d_output.ndim > 3:  # heads of rows may share those of values
            value = np.repeat(value, d_output.shape[1] // value.shape[1], axis=1)
        d_weights = d_output @ value.swapaxes(-1, -2)
        return bool((hidden & (np.abs(d_weights) > largest(case.dtype))).any())


def hidden_score_lead(case: Case) -> float:
    """
    Return the largest margin of a hidden score over the visible scores of its row: an additive mask
    of less than that does not hide the key.
    """
    visible, score = np.broadcast_arrays(pairs_of_case(case), scores(case))
    seen_most = np.where(visible, score, -np.inf).max(axis=-1)
    hidden_most = np.where(visible, -np.inf, score).max(axis=-1)
    with np.errstate(invalid="ignore"):
        return nanmax((hidden_most - seen_most)[visible.any(axis=-1)])


def lowest_row(case: Case) -> float:
    """
    Return how far below 0 all scores lie that some row sees, a float mask added: exponentials
    underflow in such a row unless its maximum is subtracted.
    """
    mask = case.inputs.get("mask")
    bias = mask if isinstance(mask, ndarray) and mask.dtype != bool else np.zeros(())
    visible, score, bias = np.broadcast_arrays(pairs_of_case(case), scores(case), bias)
    with np.errstate(invalid="ignore"):
        seen_most = np.where(visible, score + bias, -np.inf).max(axis=-1)
    return nanmax(-seen_most[visible.any(axis=-1)])


def largest_score(case: Case) -> float:
    """Return the largest score that its row sees."""
    return nanmax(np.where(pairs_of_case(case), scores(case), -np.inf))


def nanmax(x: ndarray) -> float:
    return float(np.max(x[~np.isnan(x)], initial=-np.inf))
