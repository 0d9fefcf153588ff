r"""
Systematic errors: a factor that is wrong by less than any single element shows.

A scale that is 0.3 % off moves every output in bfloat16 by less than its own rounding, but all in
one direction: that of the derivative by the logarithm of the scale. The residual of one large call
is projected on the derivatives by all factors of the operation at once,

.. math:: \hat\alpha = (G^T G)^{-1} G^T (o - \bar o), \qquad G_{\cdot k} = \partial \bar o /
          \partial \log c_k,

each row weighted by the size of its outputs. The standard errors take the residuals of one row as
dependent (rounding a score moves the whole row), and those of one head (a projected key is rounded
once for all queries); of scores those of one query, of one key and of one offset. A factor is
accused if it is off by more than the declared arithmetic may round one constant, and by more than
``ERRORS`` standard errors beyond that.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np
from numpy import ndarray

from attnverify.backends.loader import Implementation
from attnverify.catalogue.operation import CATALOGUE, Operation
from attnverify.inputs.expand import expand
from attnverify.inputs.fixed_cases import fixed_recipe
from attnverify.inputs.recipe import Inputs
from attnverify.judge.errors import Disagreement, Unsupported
from attnverify.judge.invoke import call, to_backend_array
from attnverify.judge.judging import checked_output
from attnverify.precision import Precision
from attnverify.reference.staged_attention import StagedAttention, evaluate, spec_stages
from attnverify.timing import account_for

Case = Callable[[Implementation, str], None]
ERRORS = 8.0
STEP = 1e-4

SCALED_STAGE: dict[str, Callable[[StagedAttention, float], StagedAttention]] = {
    "scale": lambda s, gain: replace(s, scale=s.scale * gain),
    "float mask": lambda s, gain: replace(s, bias=s.bias * gain),
    "slopes": lambda s, gain: replace(s, slopes=s.slopes * gain),
    "position scores": lambda s, gain: replace(s, position=gain),
    "output": lambda s, gain: replace(s, kept=s.kept * gain),
}


def factors_of(operation: Operation) -> tuple[str, ...]:
    """List the factors that an operation consists of, those of its scores first."""
    if not operation.is_staged or operation.skips("systematic errors"):
        return ()
    has = {
        "scale": True,
        "slopes": operation.traits.slopes,
        "position scores": "position" in operation.arguments
        or "key_pos_bias" in operation.arguments,
        "output": operation.is_attention,
        "float mask": operation.mask == "mask",
    }
    return tuple(factor for factor, applies in has.items() if applies)


@dataclass(frozen=True)
class Measurement:
    """
    How much too large a factor is, its standard error, what the declared arithmetic may round it
    by, how many standard errors beyond that are wanted, and how much of the squared residuals is
    its doing.
    """

    alpha: float
    error: float
    allowed: float
    errors: float = ERRORS
    explained: float = 0.0

    @property
    def significant(self) -> bool:
        return abs(self.alpha) > self.allowed + self.errors * self.error

    def __str__(self) -> str:
        share = (
            f"{abs(self.alpha):.2%}"
            if abs(self.alpha) > 1e-4
            else f"{abs(self.alpha):.1e} of itself"
        )
        return (
            f"{share} {'low' if self.alpha < 0 else 'high'} "
            f"({abs(self.alpha) / max(self.error, 1e-300):.0f} standard errors)"
        )


def systematic_error_checks(operation: str, seed: int) -> list[tuple[str, Case]]:
    """Named checks of one operation: one for each of its factors."""
    return [
        (f"systematic: {factor}", partial(judge_factor, operation, factor, seed))
        for factor in factors_of(CATALOGUE[operation])
    ]


def judge_factor(
    operation: str, factor: str, seed: int, implementation: Implementation, dtype: str
) -> None:
    """Raise Disagreement if the factor is systematically off."""
    found = measure_factors(implementation, dtype, seed, masked=factor == "float mask")[factor]
    if found.significant:
        raise Disagreement(
            f"{factor} is {found}; the declared arithmetic rounds it by {found.allowed:.1e} at "
            "most",
            "systematic error",
        )


def measure_factors(
    implementation: Implementation, dtype: str, seed: int, masked: bool = False
) -> dict[str, Measurement]:
    """
    Measure every factor of the operation in one call; that of a float mask only where there is one.
    """
    operation = implementation.operation.name
    inputs = large_inputs(operation, dtype, seed, masked)
    expected, columns = derivatives(operation, dtype, seed, masked)
    precision = implementation.precision(dtype)
    output = call(
        implementation,
        {name: to_backend_array(implementation, x, dtype) for name, x in inputs.items()},
    )
    residual = checked_output(output, expected, dtype, implementation, "output") - expected
    if not np.isfinite(residual).all():
        raise Unsupported("not finite: told under values")
    weight = 1 / np.sqrt(np.mean(expected**2, axis=-1, keepdims=True))
    spread = score_spreads if implementation.operation.is_score else output_spreads
    alpha, error = estimate_coefficients(
        residual * weight, [column * weight for column in columns.values()], spread
    )
    return {
        name: Measurement(a, e, allowed_rounding(name, precision, inputs))
        for name, a, e in zip(columns, alpha, error, strict=True)
    }


def estimate_coefficients(
    residual: ndarray, columns: list[ndarray], spreads: Callable[[ndarray], list[ndarray]]
) -> tuple[list[float], list[float]]:
    """
    Estimate the coefficients of a residual on its columns, and the largest of their standard errors
    under what ``spreads`` takes as dependent.
    """
    G, r = np.stack([column.ravel() for column in columns], axis=-1), residual.ravel()
    inverse = np.linalg.inv(G.T @ G)
    alpha = inverse @ (G.T @ r)
    moments = (G * (r - G @ alpha)[:, None]).reshape(*residual.shape, len(columns))
    variances = [np.diag(inverse @ spread @ inverse) for spread in spreads(moments)]
    return alpha.tolist(), np.sqrt(np.max(variances, axis=0)).tolist()


def output_spreads(moments: ndarray) -> list[ndarray]:
    """
    Compute the covariance of the sum of [... N E k], where rows are dependent, and where heads are.
    """
    rows = moments.sum(axis=-2)
    heads = rows.sum(axis=-2).reshape(-1, rows.shape[-1])
    return [covariance(rows), covariance(heads) * len(heads) / (len(heads) - 1)]


def score_spreads(moments: ndarray) -> list[ndarray]:
    """
    Compute the same of scores [... N M k], by query, by key, by offset, and by all three: what they
    have in common, single elements, is counted once (Cameron, Gelbach and Miller, 2011).
    """
    N, M, k = moments.shape[-3:]
    offsets = np.zeros((N + M - 1, k))
    together = moments.reshape(-1, N, M, k).sum(axis=0)
    np.add.at(offsets, np.arange(M) - np.arange(N)[:, None] + N - 1, together)
    each = [covariance(x) for x in (moments.sum(axis=-2), moments.sum(axis=-3), offsets)]
    return [*each, np.sum(each, axis=0) - 2 * covariance(moments)]


def covariance(sums: ndarray) -> ndarray:
    """Of the total of independent sums [... k]."""
    flat = sums.reshape(-1, sums.shape[-1])
    found: ndarray = flat.T @ flat
    return found


def allowed_rounding(factor: str, precision: Precision, inputs: Inputs) -> float:
    """
    Bound what one rounded constant and one biased function may do to a factor.

    The constant itself, twice (1/sqrt(D) and log2(e)); an exp that errs alike wherever it is;
    operands that are cut off, both of them; accumulators with coarser steps; slopes in their own
    format.
    """
    constant = precision.scale_const or precision.acc
    share = 2 * constant.u + (precision.exp_ulps + 3) * precision.softmax.u
    if precision.operand is not None:
        share += 2 * precision.operand.u
    if precision.acc_unit is not None:
        share += precision.acc_unit * max(inputs["query"].shape[-1], inputs["key"].shape[-2])
    return share + (
        2 * precision.bias.u if factor in ("slopes", "float mask", "position scores") else 0.0
    )


LARGE = {"B": 3, "H": 4, "N": 128, "M": 160, "D": 16, "E": 16, "Q": 12, "K": 12, "A": 8, "P": 160}


@lru_cache(maxsize=64)
def large_inputs(operation: str, dtype: str, seed: int, masked: bool) -> Inputs:
    """
    Draw a well-conditioned call with about twenty-five thousand outputs, under a float mask of
    ordinary numbers or none.

    What goes through a tanh is kept small: where that saturates, roundings before it outweigh what
    stands behind it.
    """
    op = CATALOGUE[operation]
    heads = LARGE["H"] if "H" not in op.sizes else 1  # as many rows, without an axis for them
    mask = {"pattern": "random", "axes": "N M", "form": "finite", "seed": seed} if masked else None
    recipe = fixed_recipe(op, LARGE | {"B": heads * LARGE["B"]}, "normal", mask, seed + 1)
    if "B" not in op.sizes:
        lead = (LARGE["B"], LARGE["H"])
        recipe = replace(recipe, options=recipe.options | {"lead": lead})
    inputs = expand(recipe, dtype)
    return inputs | {name: inputs[name] / 8 for name in ("query", "key") if "w_score" in inputs}


@lru_cache(maxsize=64)
def derivatives(
    operation: str, dtype: str, seed: int, masked: bool
) -> tuple[ndarray, dict[str, ndarray]]:
    """Compute the specification's output, and its derivatives by the logarithm of each factor."""
    inputs = large_inputs(operation, dtype, seed, masked)
    op = CATALOGUE[operation]
    factors = [factor for factor in factors_of(op) if masked or factor != "float mask"]
    with account_for("oracle"):
        stages = spec_stages(op, inputs)
        return op.reference(**inputs), {factor: derivative(stages, factor) for factor in factors}


def derivative(stages: StagedAttention, factor: str) -> ndarray:
    above, below = (evaluate(SCALED_STAGE[factor](stages, gain)) for gain in (1 + STEP, 1 - STEP))
    column: ndarray = (above - below) / (2 * STEP)
    return column
