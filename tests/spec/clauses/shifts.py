"""Clauses of the shifts."""

from typing import Any

import numpy as np
from numpy import ndarray

from attnverify import spec
from tests.spec.clauses.registry import Function, answering, clause, given

SIZES = ((1, 1), (1, 5), (5, 1), (3, 3), (3, 5), (5, 3), (6, 2), (7, 3), (2, 11), (11, 2))


def numbered(N: int, M: int) -> ndarray:
    """Every element another number, none of them 0."""
    return 1.0 + np.arange(N * M).reshape(N, M)


def rows_and_columns(x: ndarray) -> tuple[ndarray, ndarray]:
    return np.arange(x.shape[-2])[:, None], np.arange(x.shape[-1])[None, :]


def zero_before_the_shift(y: ndarray, x: ndarray) -> ndarray:
    i, j = rows_and_columns(x)
    return np.where(j < i, 0.0, y)


def around_its_own_row(y: ndarray, x: ndarray) -> ndarray:
    return np.stack([np.roll(row, i) for i, row in enumerate(x)])


@clause(
    "shift_right",
    1,
    false=[lambda x: x, lambda x: spec.rel_shift(x), lambda x: np.roll(spec.shift_right(x), 1)],
)
def row_i_moves_i_columns_to_the_right(shift: Function) -> None:
    for N, M in SIZES:
        x, y = numbered(N, M), shift(x=numbered(N, M))
        for i, j in np.ndindex(N, M):
            assert j < i or y[i, j] == x[i, j - i]


def only_of_the_row_before(y: ndarray, x: ndarray) -> ndarray:
    """Twin: right where a row is as long as its index, zeros where it is shorter."""
    i, _ = rows_and_columns(x)
    return np.where(i > x.shape[-1], 0.0, y)


@clause(
    "shift_right",
    2,
    false=[
        answering("shift_right", zero_before_the_shift),
        answering("shift_right", around_its_own_row),
        answering("shift_right", only_of_the_row_before),
    ],
)
def on_the_left_come_a_zero_and_the_ends_of_the_rows_before(shift: Function) -> None:
    for N, M in SIZES:
        x, y = numbered(N, M), shift(x=numbered(N, M))
        for i in range(1, N):
            backwards = [z for row in x[:i][::-1] for z in (0.0, *row[::-1])]
            wanted = [backwards[i - 1 - j] for j in range(min(i, M))]
            assert y[i, :i].tolist() == wanted


def as_in_the_first_shift(x: ndarray) -> ndarray:
    return spec.shift_right(x)


@clause(
    "rel_shift",
    1,
    false=[lambda x: x, as_in_the_first_shift, lambda x: np.roll(spec.rel_shift(x), 1)],
)
def row_i_moves_to_the_left_as_far_as_it_is_from_the_last(shift: Function) -> None:
    for N, M in SIZES:
        x, y = numbered(N, M), shift(x=numbered(N, M))
        own = np.array([[j <= M - N + i for j in range(M)] for i in range(N)])
        assert np.array_equal(own, spec.causal_mask(N, M))
        assert all(y[i, j] == x[i, j + N - 1 - i] for i, j in np.argwhere(own))


def zero_behind(y: ndarray, x: ndarray) -> ndarray:
    return np.where(spec.causal_mask(*x.shape), y, 0.0)


def only_of_the_next_row(y: ndarray, x: ndarray) -> ndarray:
    """Twin: zeros in the rows before the last M + 1."""
    i, _ = rows_and_columns(x)
    N, M = x.shape
    return np.where(i < N - M - 1, 0.0, y)


@clause(
    "rel_shift",
    2,
    false=[answering("rel_shift", zero_behind), answering("rel_shift", only_of_the_next_row)],
)
def beyond_come_a_zero_and_the_rows_behind(shift: Function) -> None:
    for N, M in SIZES:
        x, y = numbered(N, M), shift(x=numbered(N, M))
        for i in range(N - 1):
            first = M - N + i + 1
            onwards = [z for row in x[i + 1 :] for z in (0.0, *row)]
            wanted = [onwards[j - first] for j in range(max(0, first), M)]
            assert y[i, max(0, first) :].tolist() == wanted


def sent_back(forward: Function, d_output: ndarray) -> ndarray:
    """For each element what arrives where it shows, 0 where it does not."""
    shown = forward(numbered(*d_output.shape))
    return np.array([d_output[shown == k].sum() for k in numbered(*d_output.shape).ravel()])


def gradient_goes_back(gradient: Function, forward: Function) -> None:
    """Every element is read at most once, and gets what arrives there."""
    for N, M in SIZES:
        x, shown = numbered(N, M), forward(numbered(N, M))
        assert all((shown == k).sum() <= 1 for k in x.ravel())
        d_output = -numbered(N, M)
        (found,) = gradient(d_output=d_output, x=x)
        assert found.ravel().tolist() == sent_back(forward, d_output).tolist()


def unread(forward: Function, x: ndarray) -> ndarray:
    return ~np.isin(numbered(*x.shape), forward(numbered(*x.shape)))


def with_something_where_none_reads(name: str) -> Function:
    """Twin: what is dropped has a gradient."""

    def change(found: Any, d_output: ndarray, x: ndarray) -> Any:
        return (found[0] + 1e-30 * unread(getattr(spec, name), x),)

    return answering(f"{name}_grad", change)


def read_twice(name: str) -> Function:
    return answering(f"{name}_grad", lambda found, **_: (2 * found[0],))


def from_the_zeros_too(name: str) -> Function:
    """Twin: what arrives at a zero goes to the first element."""

    def change(found: Any, d_output: ndarray, x: ndarray) -> Any:
        lost = d_output[getattr(spec, name)(numbered(*x.shape)) == 0].sum()
        return (found[0] + lost * (numbered(*x.shape) == 1),)

    return answering(f"{name}_grad", change)


TAIL = with_something_where_none_reads("shift_right")
HEAD = with_something_where_none_reads("rel_shift")


@clause("shift_right_grad", 1, false=[TAIL, read_twice("shift_right")])
def what_is_dropped_at_the_tail_gets_zero(gradient: Function) -> None:
    gradient_goes_back(gradient, spec.shift_right)
    x = numbered(3, 5)
    (found,) = gradient(d_output=np.ones_like(x), x=x)
    assert found.ravel()[-3 + 1 :].tolist() == [0.0] * 2  # and a zero behind the last row


@clause("rel_shift_grad", 1, false=[HEAD, read_twice("rel_shift")])
def what_is_dropped_at_the_head_gets_zero(gradient: Function) -> None:
    gradient_goes_back(gradient, spec.rel_shift)
    x = numbered(3, 5)
    (found,) = gradient(d_output=np.ones_like(x), x=x)
    assert found.ravel()[: 3 - 1].tolist() == [0.0] * 2  # and a zero before the first row


def zeros_take_nothing(gradient: Function, forward: Function) -> None:
    for N, M in SIZES:
        zeros = forward(numbered(N, M)) == 0
        d_output = np.where(zeros, 1e9, numbered(N, M))
        (found,) = gradient(d_output=d_output, x=numbered(N, M))
        assert found.sum() == d_output[~zeros].sum()


@clause("shift_right_grad", 2, false=from_the_zeros_too("shift_right"))
def what_arrives_at_a_zero_of_the_right_shift_goes_nowhere(gradient: Function) -> None:
    zeros_take_nothing(gradient, spec.shift_right)


def of_causal_pairs_alone(d_output: ndarray, **_: Any) -> dict[str, ndarray]:
    return {"d_output": np.where(spec.causal_mask(*d_output.shape), d_output, 0.0)}


@clause(
    "rel_shift_grad",
    2,
    false=[from_the_zeros_too("rel_shift"), given("rel_shift_grad", of_causal_pairs_alone)],
)
def what_arrives_at_wrapped_numbers_goes_to_the_next_query(gradient: Function) -> None:
    zeros_take_nothing(gradient, spec.rel_shift)
    d_output = np.zeros((3, 3))
    d_output[0, 2] = 7.0  # behind the zero of row 0
    (found,) = gradient(d_output=d_output, x=numbered(3, 3))
    assert found.tolist() == [[0.0] * 3, [7.0, 0.0, 0.0], [0.0] * 3]
