"""A dtype and a style as rounding functions."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.dtypes import numpy_dtype
from attnverify.precision import DTYPES

Inputs = Mapping[str, Any]


@dataclass(frozen=True)
class Style:
    """
    How an implementation computes: what it keeps in storage, its key blocks, the direction, exp or
    exp2, how parts merge.
    """

    declared: Any
    score: bool = False  # scores are rounded to storage
    prob: bool = False  # weights are rounded to storage before their product
    soft: bool = False  # so are maximum, exponents, exp and normaliser
    joined: bool = True  # sums before a product are rounded to storage, and so are a layer's stages
    prescale: bool = False
    block: int = 0  # keys of an online softmax; 0: the whole row at once
    split: int = 0  # parts that are merged through their log-sum-exp
    backwards: bool = False
    base2: bool = False
    fold: bool = False  # the other algebraic form
    tf32: bool = False  # operands of matrix products lose their last 13 bits
    narrow: bool = False  # products and sums of a matrix product are rounded to storage one by one


STYLES = {
    "eager": Style("eager", score=True, prob=True),
    "eager_divided": Style("eager", score=True, prob=True, fold=True),
    "sloppy": Style("sloppy", score=True, prob=True, soft=True),
    "wide": Style("wide", joined=False, prescale=True),
    "wide_reversed": Style("wide", joined=False, backwards=True, base2=True),
    "online_1": Style({"preset": "fused", "block": 1}, prob=True, block=1),
    "online_2_exp2": Style({"preset": "fused", "block": 2}, prob=True, block=2, base2=True),
    "online_3_reversed": Style({"preset": "fused", "block": 3}, prob=True, block=3, backwards=True),
    "online_16": Style("fused", prob=True, block=16, base2=True),
    "online_4_wide": Style({"preset": "wide", "block": 4}, joined=False, block=4),
    "split_2": Style(
        {"preset": "fused", "block": 2, "lse_merge": True}, prob=True, split=2, block=2
    ),
    "split_3_exp2": Style(
        {"preset": "fused", "block": 1, "lse_merge": True}, prob=True, split=3, block=1, base2=True
    ),
    "fused_row": Style("fused", prob=True, fold=True),
    "tf32": Style({"preset": "fused", "operand": "tf32"}, prob=True, tf32=True),
    "narrow": Style(
        {d: {"preset": "eager", "acc": d} for d in DTYPES}, score=True, prob=True, narrow=True
    ),
}


@dataclass(frozen=True)
class Machine:
    """A dtype and a style as rounding functions."""

    dtype: str
    style: Style

    @property
    def acc(self) -> Any:
        return np.float64 if self.dtype == "float64" else np.float32

    def read(self, x: Any) -> ndarray:
        return np.asarray(x).astype(self.acc)

    def store(self, x: ndarray, when: bool = True) -> ndarray:
        return x.astype(numpy_dtype(self.dtype)).astype(self.acc) if when else x

    def score(self, x: ndarray) -> ndarray:
        return self.store(x, self.style.score)

    def prob(self, x: ndarray) -> ndarray:
        return self.store(x, self.style.prob)

    def join(self, x: ndarray) -> ndarray:
        return self.store(x, self.style.joined)

    def soft(self, x: ndarray) -> ndarray:
        return self.store(x, self.style.soft)

    def exp(self, s: ndarray, m: ndarray) -> ndarray:
        if not self.style.base2:
            return self.soft(np.exp(self.soft(s - m)))
        # a mask near -max overflows here, and -inf - -inf is NaN: a kernel of this form must clamp,
        # since such a mask hides nothing
        lowest, log2e = np.finfo(self.acc).min, self.acc(1.4426950408889634)
        return np.where(
            s > -np.inf, np.exp2(np.maximum(s * log2e, lowest) - np.maximum(m * log2e, lowest)), 0
        )

    def product(self, a: ndarray, b: ndarray) -> ndarray:
        """a @ b."""
        if self.style.tf32 and self.acc == np.float32:
            a, b = (
                (np.ascontiguousarray(x).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
                for x in (a, b)
            )
        if not self.style.narrow:
            return np.asarray(a @ b)
        total = self.store(a[..., :, :1] * b[..., :1, :])
        for k in range(1, a.shape[-1]):
            total = self.store(total + self.store(a[..., :, k : k + 1] * b[..., k : k + 1, :]))
        return total

    def scaled(self, raw: ndarray, D: int) -> ndarray:
        if self.style.prescale:
            return raw
        return self.score(
            raw / self.acc(sqrt(D)) if self.style.fold else raw * self.acc(1 / sqrt(D))
        )

    def prescaled(self, x: ndarray, D: int) -> ndarray:
        return x * self.acc(D**-0.25) if self.style.prescale else x

    def out(self, x: Any) -> Any:
        return self.store(x).astype(np.float64)


def T(x: ndarray) -> ndarray:
    return x.swapaxes(-1, -2)


def clean(x: ndarray) -> ndarray:
    return np.nan_to_num(x, nan=0.0, posinf=0.0, neginf=0.0)
