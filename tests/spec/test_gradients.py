"""
The specification's gradients against the complex-step derivative of the specification itself.

With h = 2^-70 the derivative Im f(x + ih) / h has no cancellation, so that it is right to the last
bits of float64: a gradient that misses a term, however small, is far outside of 1e-12.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy import ndarray

from attnverify import spec
from tests.spec.derivatives import derivative
from tests.support.random_arrays import normals

B, H, D, E, Q, K, A, P = 2, 2, 3, 2, 3, 2, 5, 5
Inputs = dict[str, Any]


def some(*shape: int, share: float = 0.6) -> ndarray:
    return np.random.default_rng(3).random(shape) < share


def without_first_row(visible: ndarray) -> ndarray:
    return visible & (np.arange(visible.shape[-2]) > 0)[:, None]


def hiding(visible: ndarray) -> ndarray:
    """A float mask: numbers, and minus infinity where a key is hidden."""
    return np.where(visible, normals(visible.shape, seed=4)[0], -np.inf)


ARRAYS: dict[str, Callable[[int, int], dict[str, tuple[int, ...]]]] = {
    "scaled_dot_product_attention": lambda N, M: {
        "query": (B, H, N, D),
        "key": (B, H, M, D),
        "value": (B, H, M, E),
    },
    "additive_attention": lambda N, M: {
        **{"query": (B, N, Q), "key": (B, M, K), "value": (B, M, E)},
        **{"w_query": (A, Q), "w_key": (A, K), "w_score": (A,)},
    },
    "transformer_xl_attention": lambda N, M: {
        **{"query": (B, H, N, D), "key": (B, H, M, D), "value": (B, H, M, E)},
        **{"position": (H, M, D), "u": (H, D), "v": (H, D)},
    },
    "learned_relative_attention": lambda N, M: {
        **{"query": (B, H, N, D), "key": (B, H, M, D), "value": (B, H, M, E)},
        **{
            "key_pos_embeddings": (2 * P, H, D),
            "key_pos_bias": (2 * P, H),
            "query_pos_bias": (H, D),
        },
    },
    "alibi_attention": lambda N, M: {
        "query": (B, H, N, D),
        "key": (B, H, M, D),
        "value": (B, H, M, E),
    },
}
OPERATIONS = tuple(ARRAYS)
WITH_MASK = OPERATIONS[:2]


def draw(operation: str, N: int, M: int, **options: Any) -> Inputs:
    shapes = ARRAYS[operation](N, M)
    align = {"align": "end"} if operation == "learned_relative_attention" else {}
    return dict(zip(shapes, normals(*shapes.values()), strict=True)) | align | options


def d_output(inputs: Inputs) -> ndarray:
    return normals((*inputs["query"].shape[:-1], E), seed=2)[0]


def gradients(operation: str, inputs: Inputs) -> dict[str, ndarray]:
    """The specification's gradients by the names of the arrays that they belong to."""
    names = [name for name, x in inputs.items() if isinstance(x, ndarray) and x.dtype == float]
    return dict(
        zip(names, getattr(spec, f"{operation}_grad")(d_output(inputs), **inputs), strict=True)
    )


def complex_step(operation: str, inputs: Inputs, name: str) -> ndarray:
    return derivative(operation, inputs, name, d_output(inputs))


def worst(operation: str, inputs: Inputs) -> float:
    """
    The largest error of any gradient, relative to its largest element; NaN is infinitely wrong.
    """
    errors = [0.0]
    for name, gradient in gradients(operation, inputs).items():
        wanted = complex_step(operation, inputs, name)
        error = np.max(np.abs(gradient - wanted)) / max(np.max(np.abs(wanted)), 1e-3)
        errors.append(np.inf if np.isnan(error) or gradient.shape != wanted.shape else float(error))
    return max(errors)


MASKS: dict[str, Callable[[int, int], ndarray | None]] = {
    "no mask": lambda N, M: None,
    "causal": lambda N, M: spec.causal_mask(N, M),
    "bool [N M], a row without keys": lambda N, M: without_first_row(some(N, M)),
    "bool [M]": lambda N, M: some(M),
    "bool [N 1]": lambda N, M: some(N, 1),
    "float [N M]": lambda N, M: normals((N, M), seed=4)[0],
    "float [N M] with -inf, a row without keys": lambda N, M: hiding(without_first_row(some(N, M))),
    "float [B 1 M] with -inf": lambda N, M: hiding(some(B, 1, M)),
    "float [1 1] with everything hidden": lambda N, M: np.array([[-np.inf]]),
    "float [] of no axes": lambda N, M: np.array(0.5),
}
each_mask = pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
each_size = pytest.mark.parametrize(("N", "M"), [(3, 5), (5, 3), (1, 1)])


@pytest.mark.parametrize("operation", WITH_MASK)
@each_size
@each_mask
def test_gradients_under_a_mask_are_the_derivatives(operation, N, M, mask):
    assert worst(operation, draw(operation, N, M, mask=mask(N, M))) < 1e-12


@pytest.mark.parametrize("operation", WITH_MASK)
@pytest.mark.parametrize("keep", [(3, 5), (B, 1, 1), (5,)])
def test_gradients_through_dropout_are_the_derivatives(operation, keep):
    mask = hiding(without_first_row(some(3, 5)))
    assert worst(operation, draw(operation, 3, 5, mask=mask, keep=some(*keep), p=0.25)) < 1e-12


def test_the_gradient_by_a_mask_for_every_head_and_batch_has_its_shape_and_is_the_derivative():
    full, shared = hiding(some(B, H, 3, 5)), hiding(some(B, 1, 3, 1))
    assert (
        worst("scaled_dot_product_attention", draw("scaled_dot_product_attention", 3, 5, mask=full))
        < 1e-12
    )
    assert (
        worst(
            "scaled_dot_product_attention", draw("scaled_dot_product_attention", 3, 5, mask=shared)
        )
        < 1e-12
    )


VISIBLE: dict[str, Callable[[int, int], ndarray | None]] = {
    "every key": lambda N, M: None,
    "[N M], a row without keys": lambda N, M: without_first_row(some(N, M)),
    "[B 1 1 M]": lambda N, M: some(B, 1, 1, M),
    "[B H N M]": lambda N, M: some(B, H, N, M),
}


@pytest.mark.parametrize("operation", OPERATIONS[2:])
@each_size
@pytest.mark.parametrize("visible", VISIBLE.values(), ids=VISIBLE)
def test_gradients_with_positions_are_the_derivatives(operation, N, M, visible):
    assert worst(operation, draw(operation, N, M, visible=visible(N, M))) < 1e-12


@each_size
def test_gradients_of_tables_aligned_at_the_start_are_the_derivatives(N, M):
    assert (
        worst(
            "learned_relative_attention",
            draw("learned_relative_attention", N, M) | {"align": "start"},
        )
        < 1e-12
    )


# what is hidden


def hide_keys(operation: str, hidden: ndarray) -> Inputs:
    """A call that hides these keys from every query, by the option that the operation has."""
    return draw(operation, 3, 5, **{"mask" if operation in WITH_MASK else "visible": ~hidden})


HIDDEN = np.array([False, True, False, False, True])


@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_gradient_by_a_hidden_key_or_value_is_exactly_zero_even_if_it_is_no_number(operation):
    inputs = hide_keys(operation, HIDDEN)
    clean = gradients(operation, inputs)
    inputs["key"][..., HIDDEN, :], inputs["value"][..., HIDDEN, :] = np.nan, np.nan
    poisoned = gradients(operation, inputs)
    assert not poisoned["key"][..., HIDDEN, :].any() and not poisoned["value"][..., HIDDEN, :].any()
    assert all(np.array_equal(poisoned[name], clean[name]) for name in clean)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_where_no_key_is_seen_every_gradient_is_exactly_zero(operation):
    inputs = hide_keys(operation, np.ones(5, bool))
    assert not any(gradient.any() for gradient in gradients(operation, inputs).values())


@pytest.mark.parametrize("operation", WITH_MASK)
def test_the_gradient_by_an_infinite_entry_of_the_mask_is_exactly_zero(operation):
    mask = hiding(without_first_row(some(3, 5)))
    gradient = gradients(operation, draw(operation, 3, 5, mask=mask))["mask"]
    assert not gradient[np.isneginf(mask)].any() and gradient[~np.isneginf(mask)].any()


@pytest.mark.parametrize("operation", ["transformer_xl_attention", "alibi_attention"])
def test_a_causal_operation_asks_nothing_of_queries_in_front_of_the_first_key(operation):
    assert not gradients(operation, draw(operation, 5, 3))["query"][:, :, :2].any()


def test_a_row_of_the_tables_that_no_pair_reads_gets_exactly_zero():
    found = gradients("learned_relative_attention", draw("learned_relative_attention", 3, 5))
    read = P + np.unique(np.arange(5) - np.arange(3)[:, None] - 2)
    for name in ("key_pos_embeddings", "key_pos_bias"):
        assert np.flatnonzero(found[name].reshape(2 * P, -1).any(axis=-1)).tolist() == read.tolist()


# sabotage: what these tests must notice


def test_a_boolean_mask_gets_no_gradient():
    assert (
        list(
            gradients(
                "scaled_dot_product_attention",
                draw("scaled_dot_product_attention", 3, 5, mask=some(3, 5)),
            )
        )[3:]
        == []
    )


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_softmax_gradient_without_its_second_term_is_noticed(operation, monkeypatch):
    right = spec.attention.attend_grad

    def without_the_mean(
        d_out: ndarray, score: ndarray, value: ndarray, *rest: Any
    ) -> tuple[ndarray, ndarray]:
        weights = spec.softmax(score, *rest[:1])
        return weights * (d_out @ value.swapaxes(-1, -2)), right(d_out, score, value, *rest)[1]

    for module in (spec.attention, spec.relative, spec.alibi):
        monkeypatch.setattr(module, "attend_grad", without_the_mean)
    assert worst(operation, draw(operation, 3, 5)) > 1e-3


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("place", range(6))
def test_one_element_that_is_wrong_in_the_tenth_digit_is_noticed(operation, place, monkeypatch):
    inputs, right = draw(operation, 3, 5), getattr(spec, f"{operation}_grad")

    def wrong(*args: Any, **options: Any) -> tuple[ndarray, ...]:
        found = right(*args, **options)
        at = np.unravel_index(
            np.argmax(np.abs(found[place % len(found)])), found[place % len(found)].shape
        )
        found[place % len(found)][at] *= 1 + 1e-10
        return found

    monkeypatch.setattr(spec, f"{operation}_grad", wrong)
    assert worst(operation, inputs) > 1e-12


def test_a_gradient_that_is_no_number_is_infinitely_wrong(monkeypatch):
    inputs = draw("alibi_attention", 3, 5)
    nothing = tuple(np.full(inputs[name].shape, np.nan) for name in ("query", "key", "value"))
    monkeypatch.setattr(spec, "alibi_attention_grad", lambda *args, **options: nothing)
    assert worst("alibi_attention", inputs) == np.inf
