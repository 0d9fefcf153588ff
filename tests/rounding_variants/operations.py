"""Scores, softmax, dropout, positions, slopes and biases as operations of their own."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy import ndarray

from tests.rounding_variants.arithmetic import STYLES, Inputs, Machine, Style, clean
from tests.rounding_variants.attention import normalised, two_step
from tests.rounding_variants.scores import slopes, with_mask


def op_scores(function: Callable[..., ndarray], style: Style) -> Callable[[Inputs, str], Any]:
    def run(inputs: Inputs, dtype: str) -> ndarray:
        at = Machine(dtype, style)
        return at.out(function(at, **inputs))

    return run


def op_softmax(style: Style) -> Callable[[Inputs, str], Any]:
    def run(inputs: Inputs, dtype: str) -> ndarray:
        at = Machine(dtype, style)
        s = with_mask(at, at.read(clean(inputs["score"])), inputs.get("mask"))
        return at.out(normalised(at, s) if style.block else two_step(at, s))

    return run


def op_dropout(fold: bool) -> Callable[[Inputs, str], Any]:
    def run(inputs: Inputs, dtype: str) -> ndarray:
        at = Machine(dtype, STYLES["eager"])
        kept, p = np.where(inputs["keep"], at.read(inputs["weights"]), 0), inputs["p"]
        return at.out(kept * (at.acc(1) / at.acc(1 - p)) if fold else kept / at.acc(1 - p))

    return run


def positions(exponential: bool) -> Callable[[Inputs, str], Any]:
    def run(inputs: Inputs, dtype: str) -> ndarray:
        at, M, F = Machine(dtype, STYLES["eager"]), inputs["M"], inputs["F"]
        steps = np.arange(0, F, 2).astype(at.acc)
        by_exp, by_pow = (
            np.exp(steps * at.acc(-np.log(10000.0) / F)),
            at.acc(1) / np.power(at.acc(10000), steps / at.acc(F)),
        )
        angle = np.arange(M - 1, -1, -1).astype(at.acc)[:, None] * (
            by_exp if exponential else by_pow
        )
        return at.out(np.concatenate([np.sin(angle), np.cos(angle)], -1))

    return run


def op_slopes(powers: bool) -> Callable[[Inputs, str], Any]:
    def run(inputs: Inputs, dtype: str) -> ndarray:
        at, H = Machine(dtype, STYLES["eager"]), inputs["n_heads"]
        return at.out(
            slopes(at, H)
            if not powers
            else slopes(Machine("float64", STYLES["eager"]), H).astype(at.acc)
        )

    return run


def op_biases(inputs: Inputs, dtype: str) -> ndarray:
    at = Machine(dtype, STYLES["eager"])
    return at.out(
        slopes(at, inputs["n_heads"])[:, None, None]
        * np.cumsum(inputs["visible"], -1).astype(at.acc)
    )
