"""Numbers of somebody's own specification that a kernel has otherwise, fitted to what it gives."""

from collections.abc import Iterator, Sequence
from functools import partial

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
            yield from_mutant(words.format(found), answer(found), 2)


def fitted(number: Number, few: Sequence[Observation]) -> float | None:
    """Return the number that explains the observations in place of one, if there is one."""
    _, own, answer = number

    def answered(o: Observation, factor: float) -> object:
        return answer(own * factor)(o.inputs)

    if not own:
        return None
    best = own * fit_least_squares([FactorModel(o, partial(answered, o)) for o in few])
    return fewest_digits(
        best, lambda g: g != own and all(o.distance(answer(g)(o.inputs)) <= 1 for o in few)
    )
