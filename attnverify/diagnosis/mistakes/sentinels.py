"""
Numbers in place of minus infinity for what is hidden, as public code has them: added to the scores
or put in their place, in the dtype of the inputs. Such a number hides nothing where a whole row is
hidden, where a hidden score leads by more, and where a score is infinite already.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.dtypes import largest, numpy_dtype
from attnverify.catalogue.operation import Operation
from attnverify.diagnosis import sentences as say
from attnverify.reference import attention
from attnverify.reference.attention import HIDDEN
from attnverify.reference.staged_attention import Change, StagedAttention


@dataclass(frozen=True)
class Sentinel:
    """
    What stands for minus infinity.

    number    by the dtype of the inputs
    place     where it goes: "added" to the score, "for the score", or "for the bias", in which case
              it is added by a softmax that holds more than the dtype
    softmax   the dtype in which the softmax is taken, where that is not the inputs'
    products  whether the products are stored before they are scaled
    zeroed    which rows are set to 0 all the same
    """

    number: Callable[[str], float]
    place: str = "for the score"
    softmax: str = ""
    products: bool = False
    zeroed: Callable[[StagedAttention], Any] = lambda s: False

    def __call__(self, s: StagedAttention) -> StagedAttention:
        """Put it where the masks and the frontier hide."""
        sees, zeroed = s.sees, np.broadcast_to(self.zeroed(s), (*s.shape[:-1], 1))
        if sees.all():
            return s
        number = stored(np.array(self.number(s.dtype)), s.dtype)

        def rescore(score: ndarray) -> ndarray:
            low = stored(self.lowered(s, score, number), self.softmax or s.dtype)
            return np.where(sees, score, low)

        def score_grad(
            weights: ndarray, visible: ndarray, d_weights: ndarray, mean: ndarray
        ) -> ndarray:
            passes = (sees | (self.place != "for the score")) & ~zeroed
            return np.where(passes, weights * (d_weights - mean), 0)

        return replace(
            s,
            causal=None,
            visible=None,
            bias=None if s.bias is None else np.where(sees, s.bias, 0.0),
            rescore=rescore,
            weigh=lambda score, visible: np.where(zeroed, 0.0, attention.weigh(score, visible)),
            empty=np.where(zeroed, 0.0, np.nan),
            backward=(s.backward or {}) | {"score_grad": score_grad},
        )

    def lowered(self, s: StagedAttention, score: ndarray, number: ndarray) -> ndarray:
        """What stands in the place of scores, as if all were hidden."""
        if self.place == "for the score":
            return np.full_like(score, number)
        if self.place == "for the bias":
            bias = 0.0 if s.slopes is None else s.slopes[:, None, None] * s.distance
            return np.asarray(score - bias + number)
        scale = float(s.scale) if self.products else 1.0
        return stored(stored(score / scale, s.dtype) * scale + number, s.dtype)


def stored(x: ndarray, dtype: str) -> ndarray:
    """What the dtype makes of numbers: infinity of what is beyond its largest."""
    with np.errstate(all="ignore"):
        return x.astype(numpy_dtype(dtype)).astype(np.float64)


def lowest(dtype: str) -> float:
    return -largest(dtype)


def no_lower_than(number: float, dtype: str) -> float:
    return max(number, lowest(dtype))


def emptied_by_mask(s: StagedAttention) -> Any:
    """The rows from which the mask alone hides every key."""
    return False if s.visible is None else ~s.visible.any(axis=-1, keepdims=True)


def emptied(s: StagedAttention) -> Any:
    """The rows that see no key."""
    return ~s.sees.any(axis=-1, keepdims=True)


def minus_infinity_added(s: StagedAttention) -> StagedAttention:
    """A float mask is added with its minus infinities: NaN where the score is plus infinity."""
    mask = s.inputs.get("mask")
    if mask is None or mask.dtype == bool:
        return s
    minus = np.broadcast_to(mask == HIDDEN, s.shape)

    def rescore(score: ndarray) -> ndarray:
        is_infinite = stored(score / s.scale, s.dtype) == np.inf
        return np.where(minus, np.where(is_infinite, np.nan, HIDDEN), score)

    return replace(s, visible=None, rescore=rescore, empty=np.nan)


LOWEST = "the lowest number of the dtype"
IN_FLOAT32 = ", and a softmax in float32"
BUT_FOR_EMPTY = " but for rows that the mask empties"
XLNET = "1e30 subtracted from hidden scores (65500 in float16)"
HALF = f"half {LOWEST} for the bias of hidden scores but for empty rows of a mask"
NUMBERS = (-10.0, -50.0, -100.0, -1e3, -1e4, -1e5, -1e6, -1e7, -1e8, -1e9, -1e30)
SENTINELS: dict[str, Change] = {
    XLNET: Sentinel(
        lambda dtype: -65500.0 if dtype == "float16" else -1e30, "added", products=True
    ),
    f"{LOWEST} added to hidden scores": Sentinel(lowest, "added"),
    f"{LOWEST} added to hidden scores{IN_FLOAT32}": Sentinel(lowest, "added", "float32"),
    f"hidden scores at {LOWEST}": Sentinel(lowest),
    f"hidden scores at {LOWEST}{IN_FLOAT32}": Sentinel(lowest, softmax="float32"),
    f"hidden scores at {LOWEST}{BUT_FOR_EMPTY}{IN_FLOAT32}": Sentinel(
        lowest, softmax="float32", zeroed=emptied_by_mask
    ),
    **{
        say.HIDDEN_AT.format(number=number): Sentinel(partial(no_lower_than, number))
        for number in NUMBERS
    },
    **{
        say.HIDDEN_AT_BUT.format(number=number): Sentinel(
            partial(no_lower_than, number), zeroed=emptied
        )
        for number in NUMBERS
    },
    HALF: Sentinel(
        lambda dtype: lowest(dtype) / 2,
        "for the bias",
        "float64",
        zeroed=lambda s: False if s.visible is None else emptied(s),
    ),
}


def sentinel_mistakes(operation: Operation) -> Iterator[tuple[str, Change]]:
    """Words and change of each, and of minus infinity itself where a score is infinite."""
    relative = "position" in operation.arguments
    yield from ((words, each) for words, each in SENTINELS.items() if relative or words != XLNET)
    yield "minus infinity added to a score that overflows, which is NaN", minus_infinity_added
