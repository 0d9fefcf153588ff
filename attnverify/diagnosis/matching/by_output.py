"""
A cause for each output that is wrong: gradients are computed one by one, and a mistake in that by
the query says nothing of that by the value.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from attnverify.diagnosis import sentences as say
from attnverify.diagnosis.candidates import Candidate
from attnverify.diagnosis.cause import Cause, Explanation
from attnverify.diagnosis.factors.fit import enumerate_names, has_all, output_of
from attnverify.diagnosis.matching.best import best_matches
from attnverify.diagnosis.whereabouts.outputs import output_names, with_names_of
from attnverify.judge.observation import Observation, arrays

SMALL = 15_000
"""So many numbers at most go into a case that every candidate is held against."""
FEWEST = 2
"""So many cases at least must each cause explain, of numbers enough to tell."""
NUMBERS = 32


def explain_by_output(tried: Sequence[Candidate], seen: Sequence[Observation]) -> Cause | None:
    """
    Find a mistake for each output that is wrong in some case; None unless every one has its own.
    """
    small = [o for o in seen if o.size <= SMALL and has_all(o)]
    most = max(small, key=lambda o: len(o.actual), default=None)
    if most is None or len(most.actual) < 2:
        return None
    small = with_names_of(most, small)
    found = dict[str, list[str]]()
    for number, name in enumerate(output_names(most)):
        parts = [part_of(o, number) for o in small if number < len(o.actual)]
        wrong = [o for o in parts if o.wrong]
        if not wrong:
            continue
        enough = len(wrong) >= FEWEST and sum(o.actual[0].size for o in wrong) >= NUMBERS
        own = (*(of_output(c, number) for c in tried), *arranged(number))
        best = best_matches(own, parts) if enough else []
        if not best:
            return None
        found.setdefault(best[0][0].words, []).append(name)
    told = [
        Explanation(mistake, say.OUTPUT_WITH.format(names=enumerate_names(names), mistake=mistake))
        for mistake, names in found.items()
    ]
    return (
        Cause("; ".join(each.words for each in told), tuple(told), len(told) > 1) if told else None
    )


def part_of(o: Observation, number: int) -> Observation:
    """One output of an observation, wrong where it is."""
    part = output_of(o, number)
    return replace(part, ratio=part.law if o.wrong else 0.0)


def arranged(number: int) -> Iterator[Candidate]:
    """What is right and lies otherwise in memory."""
    for words, change in ARRANGED.items():

        def answer(seen: Observation, change: Change = change) -> np.ndarray:
            return change(seen.expected[0])

        yield Candidate(f"{words} {number}", words, answer, rank=2)


def rolled(x: np.ndarray, axis: int, by: int) -> np.ndarray:
    return np.roll(x, by, axis) if x.ndim >= -axis else x


Change = Callable[[np.ndarray], np.ndarray]
NEIGHBOUR = "that of the {which} {name} in the place of each"
ARRANGED: dict[str, Change] = {
    "its last two axes read as if they were stored in the other order (transposed)": (
        lambda x: x.reshape(*x.shape[:-2], *x.shape[:-3:-1]).mT if x.ndim > 1 else x
    ),
    "its last two axes stored in the other order (transposed)": lambda x: (
        x.mT.reshape(x.shape) if x.ndim > 1 else x
    ),
    "its rows in reverse order": lambda x: x[..., ::-1, :] if x.ndim > 1 else x,
    **{
        NEIGHBOUR.format(which=which, name=name): partial(rolled, axis=axis, by=by)
        for name, axis in (("head", -3), ("batch entry", -4), ("row", -2), ("column", -1))
        for which, by in (("next", -1), ("preceding", 1))
    },
}


def of_output(candidate: Candidate, number: int) -> Candidate:
    """One output of a candidate."""

    return replace(
        candidate, answer=lambda seen: np.asarray(arrays(candidate.answer(seen))[number])
    )
