"""Each step stored in the dtype: what a library leaves that is called step by step."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy import ndarray

from attnverify.derived import Derived, derive, derive_gradient
from attnverify.precision import FORMATS, PRESETS, Precision
from attnverify.specified.form import followed


def preset(name: str, dtype: str) -> Precision:
    return PRESETS[name](FORMATS[dtype])


def numbers(*shape: int, scale: float = 1.0, seed: int = 0, dtype: Any = torch.bfloat16) -> ndarray:
    x = scale * torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))
    return x.to(dtype).double().numpy()


def by_autograd(function: Callable[..., Any], x: ndarray, dtype: torch.dtype) -> ndarray:
    own = torch.from_numpy(x).to(dtype).requires_grad_()
    answer = function(own)
    return torch.autograd.grad(answer, own, torch.ones_like(answer))[0].double().numpy()


def gradient_at(function: Callable[..., Any], x: ndarray) -> Derived:
    shape = np.shape(derive(followed(function), {"x": x}).values)
    return derive_gradient(followed(function), {"x": x}, [np.ones(shape)], ["x"])


def test_a_difference_that_is_stored_is_within_stepwise_alone() -> None:
    x = numbers(40, scale=3.0)
    own = ((torch.from_numpy(x).bfloat16() * 1.3 + 0.7) - 0.7).double().numpy()
    found = derive(lambda x: x * 1.3 + 0.7 - 0.7, {"x": x})
    error = np.abs(own - found.values)
    assert (error <= found.errors(preset("stepwise", "bfloat16"))).all()
    assert (error > found.errors(preset("fused", "bfloat16"))).any()


def test_what_is_added_in_memory_is_rounded_at_each_part() -> None:
    """A gradient of what was broadcast, added row by row to what is stored."""
    d_output, bias = numbers(40, 6), numbers(6)
    total = torch.zeros(6, dtype=torch.bfloat16)
    for row in torch.from_numpy(d_output).bfloat16():
        total += row
    given = {"x": numbers(40, 6), "bias": bias}
    found = derive_gradient(lambda x, bias: x + bias, given, [d_output], ["bias"])
    error = np.abs(total.double().numpy() - found.values[0])
    assert (error <= found.errors(preset("stepwise", "bfloat16"))[0]).all()
    assert (error > found.errors(preset("sloppy", "bfloat16"))[0]).any()


def test_a_product_in_another_order_overflows() -> None:
    """PyTorch's gradient of rsqrt cubes it: 100^3 is no number of float16."""
    x = numbers(4, scale=1e-2, dtype=torch.float16)

    def norm(x: Any) -> Any:
        return x * torch.rsqrt(x.pow(2).mean() + 1e-6)

    assert not np.isfinite(by_autograd(norm, x, torch.float16)).all()
    found = gradient_at(norm, x)
    assert np.isinf(found.errors(preset("stepwise", "float16"))[0]).all()
    assert np.isfinite(found.errors(preset("eager", "float16"))[0]).all()


def test_what_a_librarys_sum_leaves_out_underflows() -> None:
    """The same cube behind a sum over rows of size 100: 1e-6 is kept in four bits by float16."""
    x = np.array([100.3125, 99.4375, 100.9375, 101.125, 101.5625])
    gain = np.array([99.8125, 99.8125, 99.0625, 100.0, 100.625])
    d_output = np.array([-0.02693176, -1.23828125, -0.50048828, -0.84765625, -1.02832031])

    def norm(x: Any, gain: Any) -> Any:
        return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-6) * gain

    own, g, d = (torch.from_numpy(a).half() for a in (x, gain, d_output))
    own.requires_grad_()
    (own * torch.rsqrt(own.pow(2).mean(-1, keepdim=True) + 1e-6) * g).backward(d)
    found = derive_gradient(norm, {"x": x, "gain": gain}, [d.double().numpy()], ["x"])
    assert own.grad is not None
    error = np.abs(own.grad.double().numpy() - found.values[0])
    bound = found.errors(preset("stepwise", "float16"))[0]
    assert (error <= bound).all() and np.isfinite(bound).all()


def test_what_a_librarys_sum_leaves_out_overflows() -> None:
    """The same cube for small rows: 100^3 is no number of float16, though 100^2 is."""
    x = numbers(1, 16, scale=2e-3, dtype=torch.float16)

    def norm(x: Any) -> Any:
        return x / np.sqrt(np.sum(x * x, axis=-1, keepdims=True) + 1e-6)

    def own(x: Any) -> Any:
        return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)

    assert not np.isfinite(by_autograd(own, x, torch.float16)).all()
    found = derive_gradient(norm, {"x": x}, [np.ones((1, 16))], ["x"])
    assert np.isinf(found.errors(preset("stepwise", "float16"))[0]).all()


def test_a_long_sum_keeps_the_roundings_of_its_first_terms() -> None:
    """Beyond six terms a sum is taken for one number: what it was made of is rounded as well."""
    x = numbers(9, 50)
    found = derive(
        lambda x: ((x[0] + x[1]) + (x[2] + x[3])) + sum(x[4:], start=0.0) - x[0], {"x": x}
    )
    t = torch.from_numpy(x).bfloat16()
    own = ((t[0] + t[1]) + (t[2] + t[3])) + sum(t[4:], start=torch.zeros(50).bfloat16()) - t[0]
    bound = found.errors(preset("stepwise", "bfloat16"))
    assert (np.abs(own.double().numpy() - found.values) <= bound).all()
    assert (bound >= 2.0**-9 * np.abs(x).sum(0) / 4).all()


KINKS: dict[str, tuple[Callable[..., Any], ndarray]] = {
    "ties of a maximum": (
        lambda x: x.amax(-1),
        np.array([[2.0, 1.0, 2.0], [0.0, 0.0, -1.0]]),
    ),
    "ties of a pool": (lambda x: F.max_pool1d(x, 2), np.array([[[2.0, 2.0, 1.0, 1.0]]])),
    "ends of a clamp": (lambda x: x.clamp(-1, 1), np.array([-1.0, 0.5, 1.0, 2.0])),
    "zero of a modulus": (lambda x: x.abs() + F.relu(x), np.array([0.0, -1.0, 1.0])),
    "two alike": (lambda x: torch.maximum(x[0], x[1]), np.array([[1.0, 2.0], [1.0, 0.0]])),
}


@pytest.mark.parametrize("name", KINKS)
def test_at_a_kink_every_slope_between_its_sides_is_right(name: str) -> None:
    function, x = KINKS[name]
    found = gradient_at(function, x)
    (bound,) = found.errors(preset("eager", "float32"))
    error = np.abs(by_autograd(function, x, torch.float32) - found.values[0])
    assert (error <= bound).all()
    assert (bound < 3.5).all()
    assert (bound >= 0.5).sum() < bound.size or name.startswith("ties"), (
        "away from kinks it is small"
    )


def test_which_is_the_largest_may_be_what_rounding_says() -> None:
    """The scores are computed: two that rounding cannot tell apart may both have the gradient."""
    x = np.array([[1.0, 1.0 + 2.0**-7, -3.0]])

    def top(x: Any) -> Any:
        return (1.1 * x).amax(-1)

    (bound,) = gradient_at(top, x).errors(preset("stepwise", "bfloat16"))
    assert (bound[0, :2] >= 1).all() and bound[0, 2] < 0.1


def test_the_sign_of_what_is_computed_may_be_the_other() -> None:
    x = np.array([1.0, 1.0 + 2.0**-7, 3.0])
    (bound,) = gradient_at(lambda x: F.relu(1.1 * x - 1.1), x).errors(
        preset("stepwise", "bfloat16")
    )
    assert bound[0] >= 1 and bound[2] < 0.1
