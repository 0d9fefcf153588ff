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
``ERRORS`` standard errors beyond that and beyond what the legal roundings of the same call come to
(:mod:`attnverify.reference.rounded_stages`). Where the first call leaves too large a standard error
for ``GOAL``, as many calls are made as it takes (Stein, 1945), and their mean counts.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from math import ceil

import numpy as np
from numpy import ndarray

from attnverify.backends.implementation import Implementation
from attnverify.catalogue.operation import CATALOGUE, Operation
from attnverify.inputs.expand import expand
from attnverify.inputs.fixed_cases import fixed_recipe
from attnverify.inputs.recipe import Inputs
from attnverify.judge.errors import Disagreement, Unsupported
from attnverify.judge.invoke import arrays_of_call, call, dtype_keyword
from attnverify.judge.judging import checked_output
from attnverify.precision import Precision
from attnverify.reference.rounded_stages import legal_answers
from attnverify.reference.staged_attention import StagedAttention, evaluate, spec_stages
from attnverify.timing import account_for

Case = Callable[[Implementation, str], None]
ERRORS = 8.0
STEP = 1e-4
GOAL = 1e-3
"""The error of a factor that should be noticed."""
MOST_CALLS = 16
BEYOND = 4.0
"""
Standard errors beyond what is accused: errors as large are noticed nearly always, though the first
call says only roughly what its error is.
"""

SCALED_STAGE: dict[str, Callable[[StagedAttention, float], StagedAttention]] = {
    "scale": lambda s, gain: replace(s, scale=s.scale * gain),
    "float mask": lambda s, gain: replace(s, bias=s.bias * gain),
    "slopes": lambda s, gain: replace(s, slopes=s.slopes * gain),
    "position scores": lambda s, gain: replace(s, position=gain),
    "output": lambda s, gain: replace(s, kept=s.kept * gain),
}

BIASES = "get_alibi_biases"
"""The one table that is rounded so coarsely that no element shows a factor that is off."""


def factors_of(operation: Operation) -> tuple[str, ...]:
    """List the factors that an operation consists of, those of its scores first."""
    if operation.skips("systematic errors"):
        return ()
    if operation.name == BIASES:
        return ("slopes",)
    if not operation.is_staged:
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
    by, how many standard errors beyond that are wanted, how much of the squared residuals is its
    doing, and how much too large it is in legal roundings of the same call.
    """

    alpha: float
    error: float
    allowed: float
    errors: float = ERRORS
    explained: float = 0.0
    legal: tuple[float, ...] = ()

    @property
    def significant(self) -> bool:
        least, most = min(0.0, 0.0, *self.legal), max(0.0, 0.0, *self.legal)
        beyond = max(self.alpha - most, least - self.alpha)
        return beyond > self.allowed + self.errors * self.error

    def calls_for(self, goal: float, calls: int) -> int:
        """How many calls notice an error of this size, where so many have left this error."""
        room = max(goal - self.allowed - max(map(abs, self.legal), default=0.0), 1e-300)
        return ceil(calls * min(1e6, (self.errors + BEYOND) * self.error / room) ** 2)

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
    """Named checks of one operation: of its factors, and of a float mask's where it takes one."""
    named = {"systematic: every factor": False, "systematic: float mask": True}
    factors = factors_of(CATALOGUE[operation])
    return [
        (name, partial(judge_factors, operation, seed, masked))
        for name, masked in named.items()
        if ("float mask" in factors if masked else factors)
    ]


def judge_factors(
    operation: str, seed: int, masked: bool, implementation: Implementation, dtype: str
) -> None:
    """Raise Disagreement if a factor is systematically off; all that are, are told."""
    measured = measure_factors(implementation, dtype, seed, masked)
    off = {name: found for name, found in measured.items() if found.significant}
    if off:
        raise Disagreement(
            f"{'; '.join(f'{name} is {found}' for name, found in off.items())}; the declared "
            f"arithmetic rounds it by {max(each.allowed for each in off.values()):.1e} at most",
            "systematic error",
        )


def measure_factors(
    implementation: Implementation, dtype: str, seed: int, masked: bool = False
) -> dict[str, Measurement]:
    """
    Measure every factor of the operation, in as many calls as it takes; that of a float mask only
    where there is one.
    """
    measure = partial(measure_in_one_call, implementation, dtype, masked=masked)
    found = [measure(seed)]
    asked = ["float mask"] if masked else list(found[0])
    wanted = max(found[0][name].calls_for(GOAL, calls=1) for name in asked)
    if wanted <= MOST_CALLS:
        found += [measure(seed + APART * number) for number in range(1, wanted)]
    return {name: mean_of([each[name] for each in found]) for name in found[0]}


APART = 1000
"""Between the seeds of the calls of one measurement."""


def mean_of(found: list[Measurement]) -> Measurement:
    """Take the mean of measurements that have nothing in common."""
    error = np.sqrt(np.sum([each.error**2 for each in found])) / len(found)
    alpha = float(np.mean([x.alpha for x in found]))
    legal = tuple(np.mean([x.legal for x in found], axis=0).tolist())
    return replace(found[0], alpha=alpha, error=float(error), legal=legal)


def measure_in_one_call(
    implementation: Implementation, dtype: str, seed: int, masked: bool
) -> dict[str, Measurement]:
    operation = implementation.operation.name
    inputs = large_inputs(operation, dtype, seed, masked)
    expected, columns = derivatives(operation, dtype, seed, masked)
    precision = implementation.precision(dtype)
    given = arrays_of_call(implementation, inputs, dtype)
    output = call(implementation, given | dtype_keyword(implementation, dtype))
    residual = checked_output(output, expected, dtype, implementation, "output") - expected
    if not np.isfinite(residual).all():
        raise Unsupported("not finite: told under values")
    weight = 1 / np.sqrt(np.mean(expected**2, axis=-1, keepdims=True))
    spread = output_spreads if implementation.operation.is_attention else score_spreads
    alpha, error = estimate_coefficients(
        residual * weight, [column * weight for column in columns.values()], spread
    )
    legal = legal_factors(operation, dtype, seed, masked, precision)
    return {
        name: Measurement(a, e, allowed_rounding(name, precision, inputs), legal=own)
        for name, a, e, own in zip(columns, alpha, error, legal, strict=True)
    }


@lru_cache(maxsize=64)
def legal_factors(
    operation: str, dtype: str, seed: int, masked: bool, precision: Precision
) -> list[tuple[float, ...]]:
    """Measure each factor of a large call in the legal roundings of its stages."""
    expected, columns = derivatives(operation, dtype, seed, masked)
    if operation == BIASES:
        return [() for _ in columns]
    weight = 1 / np.sqrt(np.mean(expected**2, axis=-1, keepdims=True))
    G = [column * weight for column in columns.values()]
    with account_for("oracle"):
        stages = spec_stages(CATALOGUE[operation], large_inputs(operation, dtype, seed, masked))
        found = [
            project((answer - expected) * weight, G)[0]
            for answer in legal_answers(stages, precision)
        ]
    return [tuple(float(alpha[at]) for alpha in found) for at in range(len(columns))]


def estimate_coefficients(
    residual: ndarray, columns: list[ndarray], spreads: Callable[[ndarray], list[ndarray]]
) -> tuple[list[float], list[float]]:
    """
    Estimate the coefficients of a residual on its columns, and the largest of their standard errors
    under what ``spreads`` takes as dependent.
    """
    alpha, G, inverse = project(residual, columns)
    r = residual.ravel()
    moments = (G * (r - G @ alpha)[:, None]).reshape(*residual.shape, len(columns))
    variances = [np.diag(inverse @ spread @ inverse) for spread in spreads(moments)]
    return alpha.tolist(), np.sqrt(np.max(variances, axis=0)).tolist()


def project(residual: ndarray, columns: list[ndarray]) -> tuple[ndarray, ndarray, ndarray]:
    """Return the coefficients of a residual on its columns, these, and their inverse products."""
    G = np.stack([column.ravel() for column in columns], axis=-1)
    inverse = np.linalg.inv(G.T @ G)
    return inverse @ (G.T @ residual.ravel()), G, inverse


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
    return np.asarray(flat.T @ flat)


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
    if precision.acc_unit is not None and "query" in inputs:
        share += precision.acc_unit * max(inputs["query"].shape[-1], inputs["key"].shape[-2])
    return share + (
        2 * precision.bias.u if factor in ("slopes", "float mask", "position scores") else 0.0
    )


LARGE = {"B": 3, "H": 4, "N": 128, "M": 160, "D": 16, "E": 16, "Q": 12, "K": 12, "A": 8, "P": 160}
TABLE = {"H": 48, "N": 1, "M": 1024}
"""Of a table of biases: many heads, since powers of two times small numbers are never rounded."""
SMALLER = {"query": 4, "u": 4, "v": 4, "key_pos_bias": 4, "query_pos_bias": 4, "mask": 4}
SMALLER_ADDITIVE = {"query": 8, "key": 8, "w_score": 2, "mask": 4}
"""
What arguments are divided by: rounding a score moves its weight by as much as the score is large,
and where a tanh saturates, roundings before it outweigh what stands behind it.
"""


@lru_cache(maxsize=64)
def large_inputs(operation: str, dtype: str, seed: int, masked: bool) -> Inputs:
    """
    Draw a well-conditioned call with about twenty-five thousand outputs, under a float mask of
    ordinary numbers or none.
    """
    op = CATALOGUE[operation]
    if operation == BIASES:
        return expand(fixed_recipe(op, TABLE, "normal", None, seed + 1), dtype)
    heads = LARGE["H"] if "H" not in op.sizes else 1  # as many rows, without an axis for them
    mask = {"pattern": "random", "axes": "N M", "form": "finite", "seed": seed} if masked else None
    recipe = fixed_recipe(op, LARGE | {"B": heads * LARGE["B"]}, "normal", mask, seed + 1)
    if "B" not in op.sizes:
        lead = (LARGE["B"], LARGE["H"])
        recipe = replace(recipe, options=recipe.options | {"lead": lead})
    inputs = expand(recipe, dtype)
    smaller = SMALLER_ADDITIVE if "w_score" in inputs else SMALLER
    having = {name for name in smaller if getattr(inputs.get(name), "dtype", None) == np.float64}
    return inputs | {name: inputs[name] / by for name, by in smaller.items() if name in having}


@lru_cache(maxsize=64)
def derivatives(
    operation: str, dtype: str, seed: int, masked: bool
) -> tuple[ndarray, dict[str, ndarray]]:
    """Compute the specification's output, and its derivatives by the logarithm of each factor."""
    inputs = large_inputs(operation, dtype, seed, masked)
    op = CATALOGUE[operation]
    factors = [factor for factor in factors_of(op) if masked or factor != "float mask"]
    with account_for("oracle"):
        expected = op.reference(**inputs)
        if operation == BIASES:
            return expected, {"slopes": expected}
        stages = spec_stages(op, inputs)
        return expected, {factor: derivative(stages, factor) for factor in factors}


def derivative(stages: StagedAttention, factor: str) -> ndarray:
    above, below = (evaluate(SCALED_STAGE[factor](stages, gain)) for gain in (1 + STEP, 1 - STEP))
    return np.asarray((above - below) / (2 * STEP))
