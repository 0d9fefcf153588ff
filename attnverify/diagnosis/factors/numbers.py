"""Numbers of somebody's own specification that a kernel has otherwise, fitted to what it gives."""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from attnverify.catalogue.operation import Operation
from attnverify.catalogue.outside import Number
from attnverify.diagnosis.candidates import Candidate, from_mutant
from attnverify.diagnosis.factors.least_squares import (
    FactorModel,
    fewest_digits,
    fit_least_squares,
)
from attnverify.judge.observation import Observation

FEW = 3
"""As many observations are fitted."""


def fitted_numbers(operation: Operation, failing: Sequence[Observation]) -> Iterator[Candidate]:
    """Yield the operation with one number exchanged for the one that explains what failed."""
    outside = operation.outside
    few = sorted((o for o in failing if o.is_telling), key=lambda o: o.size)[-FEW:]
    for number in outside.numbers() if outside is not None and few else ():
        if (found := fitted(number, few)) is not None:
            words, _, answer = number
            yield from_mutant(words(found), answer(found), 2)


def fitted(number: Number, few: Sequence[Observation]) -> float | None:
    """Return the number that explains the observations in place of one, if there is one."""
    _, own, answer = number
    if not own:
        return None

    def answered(o: Observation, factor: float) -> object:
        return answer(own * factor)(o.inputs)

    models = [FactorModel(o, partial(answered, o)) for o in few]
    best = own * fit_least_squares(models, [number / own for number in round_numbers(own)])
    return fewest_digits(best, lambda g: g != own and all(fit.fits(g / own) for fit in models))


def round_numbers(own: float) -> list[float]:
    """
    List what is looked at before a number is fitted: 1, 2 and 5 times powers of ten, four of them
    on either side, of both signs. Of a base or a frequency the errors have many local minima, and
    what people write is round.
    """
    power = 10.0 ** np.floor(np.log10(abs(own)))
    sizes = [float(f"{m * power * 10.0**k:.1g}") for k in range(-4, 5) for m in (1, 2, 5)]
    return [*sizes, own, -own, 0.0]
