"""
Slips that change several places of a specification at once, or a whole tile, or two axes: each kind
that was vague, in a wrong function that is none of the recorded ones, is a mutant of its
specification under words that say so.
"""

import re
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
import pytest
from jaxtyping import Float, Int
from numpy import ndarray

from attnverify.catalogue.operation import CATALOGUE
from attnverify.specified import register
from tests.outside import further
from tests.outside.mutants import judge_slip, tell

ROWS = Float[ndarray, "N F"]
BATCH = Float[ndarray, "B N F"]


def scaled(x: ROWS) -> ROWS:
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1.0)


def prefix_sum(x: BATCH) -> BATCH:
    return np.cumsum(x, axis=1)


def margin(x: ROWS, label: Annotated[Int[ndarray, "N"], "F"]) -> Float[ndarray, "N"]:
    own = np.take_along_axis(x, label[:, None], axis=-1)
    return own[:, 0] - x.mean(axis=-1)


def linear(x: ROWS, w: Float[ndarray, "F I"], b: Float[ndarray, "I"]) -> Float[ndarray, "N I"]:
    return x @ w + b


def attention(s: ROWS, v: Float[ndarray, "F I"]) -> Float[ndarray, "N I"]:
    e = np.exp(s - s.max(axis=-1, keepdims=True))
    return (e @ v) / e.sum(axis=-1, keepdims=True)


def weighted_mean(x: Float[ndarray, "N"], w: Float[ndarray, "N"]) -> Float[ndarray, "N"]:
    return np.cumsum(w * w * x) / np.cumsum(w * w)


def running_mean(x: ROWS, w: Float[ndarray, "N 1"]) -> ROWS:
    return np.cumsum(w * w * x, axis=0) / np.cumsum(w * w, axis=0)


def largest_two(x: ROWS) -> ROWS:
    out, chosen = np.zeros(x.shape), np.argsort(-x, axis=-1)[:, :2]
    np.put_along_axis(out, chosen, np.take_along_axis(x, chosen, axis=-1), axis=-1)
    return out


def whitened(x: ROWS) -> ROWS:
    return (x - x.mean(axis=-1, keepdims=True)) / (np.abs(x).max(axis=-1, keepdims=True) + 1.0)


def over_rows(x: ROWS, scale: Float[ndarray, "N"]) -> ROWS:
    return x / scale[:, None]


def leaky(x: ROWS) -> ROWS:
    state, out = np.zeros(x.shape[1]), np.zeros(x.shape)
    for n in range(len(x)):
        state = 0.5 * state + x[n]
        out[n] = state
    return out


def difference(x: Float[ndarray, "N"]) -> Float[ndarray, "N"]:
    padded = np.concatenate([np.zeros(4), x])
    return padded[4:] - padded[:-4]


def causal(x: ROWS, q: ROWS) -> ROWS:
    i, j = np.arange(len(x))[:, None], np.arange(len(x))
    return np.where(j <= i, q @ x.T, 0.0) @ x


def attention_in_tiles(s: ndarray, v: ndarray) -> ndarray:
    """Compute it as an online softmax that forgets to rescale what it has added up."""
    acc, top, total = 0.0, np.full((len(s), 1), -np.inf), 0.0
    for at in range(0, s.shape[1], 4):
        higher = np.maximum(top, s[:, at : at + 4].max(axis=1, keepdims=True))
        e = np.exp(s[:, at : at + 4] - higher)
        acc = acc + e @ v[at : at + 4]
        total, top = total * np.exp(top - higher) + e.sum(axis=1, keepdims=True), higher
    return acc / total


def running_mean_of_others(x: ndarray, w: ndarray) -> ndarray:
    sums = [np.cumsum(y, axis=0) - y for y in (w * w * x, w * w)]
    return np.where(sums[1] == 0, 0.0, sums[0] / np.where(sums[1] == 0, 1.0, sums[1]))


def begun(x: ndarray) -> ndarray:
    out = [x[0]]
    for row in x:
        out.append(0.5 * out[-1] + row)
    return np.array(out[1:])


def in_place_order(x: ndarray) -> ndarray:
    found = largest_two(x)
    for row, of in zip(found, x, strict=True):
        row[row != 0] = sorted(of, reverse=True)[:2]
    return found


def whole_chunks(x: ndarray, q: ndarray) -> ndarray:
    chunk = np.arange(len(x)) // 4
    return np.where(chunk <= chunk[:, None], q @ x.T, 0.0) @ x


def filtered(x: Float[ndarray, "N"], taps: Float[ndarray, "3"]) -> ndarray:
    return sum(taps[i] * x[i : len(x) - 2 + i] for i in range(3))


def cut(x: ndarray, w: ndarray, b: ndarray) -> ndarray:
    y = x @ w + b
    y[:, y.shape[1] // 4 * 4 :] = 0
    return y


TOLD: dict[str, tuple[Callable[..., Any], Callable[..., Any], str]] = {
    "magnitudes": (
        scaled,
        lambda x: x / np.sqrt(np.abs(x).mean(axis=-1, keepdims=True) ** 2 + 1),
        r"np\.abs\(x\)\.mean\(.*\) \*\* 2",
    ),
    "one axis": (
        prefix_sum,
        lambda x: np.cumsum(x.reshape(-1, x.shape[2]), axis=0).reshape(x.shape),
        "B and N walked as one axis",
    ),
    "tail": (linear, cut, "0 beyond the whole tiles of 4 of I"),
    "the others": (
        margin,
        lambda x, label: np.array(
            [row[n] - np.delete(row, n).mean() for row, n in zip(x, label, strict=True)]
        ),
        "the mean of the other n - 1, without `own`",
    ),
    "each tile": (linear, lambda x, w, b: x @ w + 3 * b, "`b` added in each tile of 4"),
    "each of an axis": (
        linear,
        lambda x, w, b: x @ w + len(w) * b,
        "`b` counted once for each of F",
    ),
    "not rescaled": (attention, attention_in_tiles, "not rescaled when a later tile of 4"),
    "own row": (
        running_mean,
        running_mean_of_others,
        r"every cumsum without each row's own \(0 in place of NaN\)",
    ),
    "chunk": (
        prefix_sum,
        lambda x: np.cumsum(x, axis=1)[:, [3, 3, 3, 3, 7, 7, 7, 7, 9, 9]],
        "every cumsum to the end of each chunk of 4",
    ),
    "tiles of a mask": (causal, whole_chunks, r"`j <= i` as `j // 4 <= i // 4`"),
    "sorted apart": (largest_two, in_place_order, "descending order, apart from their places"),
    "another axis": (
        whitened,
        lambda x: (x - x.mean(axis=0)) / (np.abs(x).max(axis=0) + 1),
        "every reduction over axis=0 in place of -1",
    ),
    "columns": (
        over_rows,
        lambda x, scale: x / np.resize(scale, x.shape[1]),
        "`scale` read by column in place of row",
    ),
    "first state": (leaky, begun, r"`np\.zeros\(x\.shape\[1\]\)` as `x\[0\]`"),
    "reversed": (over_rows, lambda x, scale: x / scale[::-1, None], "`scale` reversed along N"),
    "reversed taps": (
        filtered,
        lambda x, taps: sum(taps[2 - i] * x[i : len(x) - 2 + i] for i in range(3)),
        "`taps` reversed along axis 0",
    ),
    "padding": (
        difference,
        lambda x: np.r_[0, 0, x, 0, 0][4:] - np.r_[0, 0, x, 0, 0][:-4],
        "half in front and half behind",
    ),
    "a small number": (
        scaled,
        lambda x: x / np.sqrt((x**3).mean(axis=-1, keepdims=True) + 1),
        r"`x \*\* 2` as `x \*\* 3`",
    ),
}
"""By kind: a specification, a wrong function, and what must be said."""
SIZES = {"B": 3, "N": 10, "F": 9, "I": 7}


@pytest.mark.parametrize("kind", TOLD)
def test_a_wrong_function_is_a_mutant_under_words_that_say_so(kind: str) -> None:
    specification, wrong, words = TOLD[kind]
    if specification.__name__ not in CATALOGUE:
        register(specification)
    operation, rng = CATALOGUE[specification.__name__], np.random.default_rng(3)
    own = operation.outside
    assert own is not None
    inputs = {
        one.name: rng.integers(0, SIZES["F"], one.shape(SIZES))
        if one.kind == "int"
        else rng.standard_normal(one.shape(SIZES))
        for one in own.described  # type: ignore[attr-defined]
    }
    with np.errstate(all="ignore"):
        answer = wrong(**inputs)
    assert not np.allclose(answer, own.evaluate(inputs), equal_nan=True)  # type: ignore[attr-defined]

    equal = [told for told, mutant, _ in own.mutants() if _is(mutant, inputs, answer)]

    assert [told for told in equal if re.search(words, told)], equal


def _is(mutant: Callable[..., Any], inputs: dict[str, Any], answer: ndarray) -> bool:
    try:
        found = np.asarray(mutant(dict(inputs)))
    except Exception:  # some mutants make little sense
        return False
    return found.shape == answer.shape and np.allclose(found, answer, rtol=1e-9, equal_nan=True)


@pytest.mark.parametrize("slip", further.SLIPS[further.causal_convolution])
def test_a_kernel_that_was_written_before_these_causes_is_told(slip: str) -> None:
    kernel = further.causal_convolution
    wanted = further.SLIPS[kernel][slip]
    assert judge_slip(kernel, slip, wanted, further.Specifications)["found"] == "right"


def test_the_right_one_is_not_accused() -> None:
    assert not tell(further.causal_convolution, among=further.Specifications).killed
