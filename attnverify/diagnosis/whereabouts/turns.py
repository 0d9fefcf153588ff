"""
Rotary positions: the cosines and sines by which pairs were turned, solved from what came out, so
that a table that is wrong alone, or read at another place, is told without another call.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy import ndarray

from attnverify.conventions.turning import frequencies, pairs
from attnverify.diagnosis import sentences as say
from attnverify.diagnosis.cause import Cause, Explanation
from attnverify.diagnosis.whereabouts.outputs import exceeds_bound
from attnverify.faults.today.turning import channels
from attnverify.judge.observation import Observation

ERRORS = 2.0
"""So many bounds may a solved number err: it is made of both channels of its pair."""


@dataclass(frozen=True)
class Table:
    """The cosines or the sines of a call [B H N R]: as solved, by the specification, the slack."""

    own: ndarray
    law: ndarray
    slack: ndarray

    def shifted(self, by: int) -> bool:
        """Whether each pair has what the specification gives to the pair so many places on."""
        R = self.law.shape[-1]
        at = np.arange(max(0, -by), min(R, R - by))
        law = self.law[..., at + by]
        return not exceeds_bound(self.own[..., at], law, self.slack[..., at]).any()

    @property
    def shift(self) -> int:
        """How many pairs further on it is read, the fewest; 0 where nothing tells."""
        R = self.law.shape[-1]
        tried = (sign * by for by in range(1, R) for sign in (1, -1))
        return next((by for by in tried if self.shifted(by)), 0)


def tables_of(o: Observation) -> dict[str, Table]:
    """Solve both tables from one call: a turned pair and the pair give its cosine and sine."""
    x, y, bound = o.inputs["x"], o.actual[0], o.bounds[0]
    assert bound is not None
    first, second = channels(pairs(o.inputs), o.inputs["pairing"])
    angle = np.asarray(o.inputs["positions"])[:, None, :, None] * frequencies(o.inputs)
    a, b = x[..., first], x[..., second]
    square = a * a + b * b
    solved = {
        "cosines": (np.cos(angle), a * y[..., first] + b * y[..., second], (a, b)),
        "sines": (np.sin(angle), a * y[..., second] - b * y[..., first], (b, a)),
    }
    found = {}
    for name, (law, product, (by_first, by_second)) in solved.items():
        slack = np.abs(by_first) * bound[..., first] + np.abs(by_second) * bound[..., second]
        law = np.broadcast_to(law, square.shape)
        known = (square > 0) & np.isfinite(product)
        with np.errstate(all="ignore"):
            own = np.where(known, product / square, law)
            found[name] = Table(own, law, np.where(known, ERRORS * slack / square, np.inf))
    return found


def describe_turns(observed: Sequence[Observation]) -> Cause | None:
    """Tell which of the tables is wrong where the other is right in every call, and how."""
    wrong = [o for o in observed if o.wrong and o.actual[0].shape == o.expected[0].shape]
    found = [tables_of(o) for o in wrong]
    for name, other in (("sines", "cosines"), ("cosines", "sines")):
        if not found or any(not t[other].shifted(0) or t[name].shifted(0) for t in found):
            continue
        shifts = {(pairs(o.inputs), t[name].shift) for o, t in zip(wrong, found, strict=True)}
        if not all(by for _, by in shifts) or len(dict(shifts)) < len(shifts):
            return Cause(say.TABLE_WRONG.format(name=name, other=other))
        told = [say.PAIRS_ON.format(by=by, pairs=R) for R, by in sorted(shifts)[-2:]]
        moved = say.TABLE_SHIFTED.format(name=name)
        shown = say.TABLE_SHIFTED_BY.format(moved=moved, shifts=", ".join(told), other=other)
        return Cause(shown, (Explanation.of(moved),))
    return None
