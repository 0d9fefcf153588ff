"""What tracing understands gives the specification's own numbers; the rest is refused by name."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy import ndarray

from attnverify.derived import NotUnderstood, derive, derive_gradient
from attnverify.precision import FORMATS, PRESETS
from tests.outside.draws import draw
from tests.outside.specifications import OUTSIDE

WIDE = PRESETS["wide"](FORMATS["float32"])
X = np.arange(12.0).reshape(3, 4) - 5.5


@pytest.mark.parametrize("specification", OUTSIDE, ids=lambda f: f.__name__)
def test_a_traced_specification_gives_its_own_numbers(specification: Callable[..., Any]) -> None:
    given = draw(specification, "float32", 3)
    traced, plain = derive(specification, given).values, specification(**given)
    plain = plain if isinstance(plain, tuple) else (plain,)
    traced = traced if isinstance(traced, tuple) else (traced,)
    for found, wanted in zip(traced, plain, strict=True):
        assert (np.abs(found - wanted) <= 1e-12 * np.abs(wanted).max()).all()


def written_by_loops(x: ndarray) -> ndarray:
    weights = np.zeros(x.shape)
    for row in range(len(x)):
        for column in range(x.shape[1]):
            weights[row][column] = x[row, column] * column
    weights[0] += x[1]
    return weights


def written_into_a_view(x: ndarray) -> ndarray:
    whole = x.copy()
    part = whole[1:]
    part[:, 0] = 2.0
    whole[2] = whole[1] + part[0]
    return whole + part.sum()


def chosen_by_values(x: ndarray) -> ndarray:
    return np.where((x > 0) & ~(x > 3), x, 0.01 * x) * (x < 5)


def made_of_a_list(x: ndarray) -> ndarray:
    return np.array([row.sum() for row in x])


def with_methods(x: ndarray) -> ndarray:
    return x.clip(-1, 4).reshape(-1, 2).T.swapaxes(0, 1).mean(axis=-1) ** 3 - abs(x).min()


def by_products(x: ndarray) -> ndarray:
    return np.tensordot(x, x.T, 1) + np.dot(x, x[0])[:, None] + np.inner(x[0], x[1]) + x.std()


def sorts_what_it_computed(x: ndarray) -> ndarray:
    return np.sort(x @ x.T)[..., ::-1] + np.sort(np.sqrt(x * x), axis=0)[:, :3]


def sorts_a_single_one(x: ndarray) -> ndarray:
    return np.sort(x[:, :1] * 3)


def indexed_by_a_cut_logarithm(x: ndarray) -> ndarray:
    far = np.log(np.arange(1.0, 4.0)).astype(int)
    return x[np.where(np.arange(3) < 2, 2, far)] + (x * 2)[far]


UNDERSTOOD = (
    *(written_by_loops, written_into_a_view, chosen_by_values, made_of_a_list),
    *(with_methods, by_products, sorts_what_it_computed, sorts_a_single_one),
    indexed_by_a_cut_logarithm,
)


@pytest.mark.parametrize("function", UNDERSTOOD, ids=lambda f: f.__name__)
def test_what_numpy_code_does_is_understood(function: Callable[..., Any]) -> None:
    np.testing.assert_allclose(derive(function, {"x": X}).values, function(X), rtol=1e-12)


def inverts(x: ndarray) -> ndarray:
    return np.linalg.inv(x[:, :3])


def sorts_too_many(x: ndarray) -> ndarray:
    return np.sort(np.tile(x * 3, 17))


def leaves_numpy(x: ndarray) -> float:
    return float(x[0, 0]) * 2


@pytest.mark.parametrize(
    ("function", "what"),
    [
        (inverts, "np.linalg.inv"),
        (sorts_too_many, "np.sort of more than 64 computed values"),
        (leaves_numpy, "a plain number made of a traced array"),
    ],
)
def test_what_is_not_understood_is_refused_with_its_line(
    function: Callable[..., Any], what: str
) -> None:
    line = function.__code__.co_firstlineno + 1
    words = f"test_tracing.py:{line}: {what} is not understood"
    with pytest.raises(NotUnderstood, match=re.escape(words)):
        derive(function, {"x": X})


def test_numpy_is_itself_again_after_a_refusal() -> None:
    with pytest.raises(NotUnderstood):
        derive(inverts, {"x": X})
    assert inverts.__globals__["np"] is np


def by_sign_of_a_sum(x: ndarray) -> ndarray:
    return np.where(x.sum(axis=-1) > 0, 1.0, -1.0)


def test_a_choice_within_its_own_error_may_come_out_as_the_other() -> None:
    x = np.array([[0.1, 0.2, -0.3], [1.0, 1.0, 1.0]])
    open_, decided = derive(by_sign_of_a_sum, {"x": x}).errors(WIDE)
    assert open_ >= 2
    assert decided < 1e-6


def hides_minus_infinity(x: ndarray) -> ndarray:
    return np.where(x - 1.0 != -np.inf, x, 0.0)


def test_rounding_makes_no_number_infinite() -> None:
    """What hides scores of minus infinity hides the same ones in every arithmetic."""
    x = np.array([-3e38, 0.0])
    assert derive(hides_minus_infinity, {"x": x}).outputs.margins == ()


def by_order(x: ndarray) -> ndarray:
    return x[np.argsort(x[:, 0] * 3)]


def test_an_order_that_rounding_may_change_leaves_the_result_open() -> None:
    apart, near = np.array([[1.0], [2.0]]), np.array([[1.0], [1.0]])
    assert np.isfinite(derive(by_order, {"x": apart}).errors(WIDE)).all()
    assert np.isinf(derive(by_order, {"x": near}).errors(WIDE)).all()


def test_a_sorted_value_errs_as_the_largest_error_of_its_row() -> None:
    def scaled(x: ndarray) -> ndarray:
        return x * 1.1

    def ordered(x: ndarray) -> ndarray:
        return np.sort(scaled(x))

    rng = np.random.default_rng(0)
    for x in (np.array([[4.0, 1.0, 1.0, -7.0], [1.0, 1.0 + 1e-8, 1.0, 3.0]]), X):
        plain, found = (derive(f, {"x": x}).errors(WIDE) for f in (scaled, ordered))
        moved = scaled(x) + rng.choice([-1, 1], (100, *x.shape)) * plain
        seen = np.abs(np.sort(moved) - ordered(x)).max(axis=0)
        assert (seen <= found).all() and (seen > 0.5 * plain.min()).all()
        assert (found <= 1.34 * plain.max(axis=-1, keepdims=True)).all()


def shifted_by_one(x: ndarray) -> ndarray:
    return np.concatenate([0 * x[:1], x[:-1]]) - 2 * x


@pytest.mark.parametrize("rows", [1, 3])
def test_a_slice_that_holds_nothing_hands_no_gradient_on(rows: int) -> None:
    arriving = np.arange(1.0, 1 + rows)[:, None]
    back = derive_gradient(shifted_by_one, {"x": X[:rows, :1]}, [arriving], ["x"])
    np.testing.assert_array_equal(
        back.values[0], np.append(arriving[1:], [[0.0]], 0) - 2 * arriving
    )


def unit_rows(x: ndarray) -> ndarray:
    return x / np.maximum(np.sqrt((x * x).sum(axis=-1, keepdims=True)), 0.5)


def guarded_quotients(x: ndarray) -> ndarray:
    total = x.sum(axis=-1, keepdims=True)
    return np.where(total == 0, 0.0, x / total)


def guarded_logarithms(x: ndarray) -> ndarray:
    return np.where(x > 0, np.log(np.maximum(x, 0)), 0.0)


@pytest.mark.parametrize(
    ("guarded", "first"), [(unit_rows, 2.0), (guarded_quotients, 0.0), (guarded_logarithms, 0.0)]
)
def test_what_a_guard_leaves_out_hands_no_gradient_on(
    guarded: Callable[..., Any], first: float
) -> None:
    x = np.array([[0.0, 0.0], [3.0, 4.0]])
    back = derive_gradient(guarded, {"x": x}, [np.ones((2, 2))], ["x"])
    assert (back.values[0][0] == first).all() and np.isfinite(back.values[0]).all()
    assert np.isfinite(back.errors(WIDE)[0]).all()


def rounds_to_integers(x: ndarray) -> ndarray:
    return np.round(x.sum(axis=-1))


def test_rounding_to_integers_errs_by_a_step_at_its_edges_alone() -> None:
    x = np.array([[0.3, 0.2], [0.3, 0.3]])
    assert (derive(rounds_to_integers, {"x": x}).errors(WIDE) == [1.0, 0.0]).all()


@pytest.mark.parametrize("axis", [2, -3])
def test_an_axis_that_is_not_there_is_refused_as_numpy_does(axis: int) -> None:
    with pytest.raises(np.exceptions.AxisError):
        derive(lambda x: np.sum(x, axis=axis), {"x": np.ones((2, 3))})
