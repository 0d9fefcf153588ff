"""
Derivatives of every path by every transformation of PyTorch: right, or refused in words, and never
zero in silence.

Paths without a formula of their own have all of them, but for the second ones of the kernels that
PyTorch takes where values are as wide as keys. Blocks and kernels have first derivatives in reverse
mode, blocks by ``autograd`` those of any order too; flex_attention has none here.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnverify.torch_impl.isolation import sum_seen
from attnverify.torch_impl.transforms.derivatives import first_derivatives
from tests.support.roundings import count_roundings
from tests.support.torch_functions import (
    PATHS,
    differentiable,
    forward_and_gradients,
    inputs_of,
    normal,
    split,
    taking,
)

SPELLED_OUT = taking("", "eager")
FIRST_ALONE = taking("blocked", "triton")
forward_mode = pytest.mark.filterwarnings(
    "ignore:.torch.jit.script. is deprecated"
)  # by PyTorch itself
each_spelled_out = pytest.mark.parametrize("path", SPELLED_OUT)
OF_ANY_ORDER = SPELLED_OUT + taking("blocked")
each_first_alone = pytest.mark.parametrize("path", FIRST_ALONE)
each_with_a_gradient = pytest.mark.parametrize("path", SPELLED_OUT + FIRST_ALONE)

Tensors = dict[str, Tensor]


def as_function(path: str, **options: Any) -> tuple[Callable[[Tensors], Tensor], Tensors]:
    """A path as a function of its tensors alone, and tensors for it."""
    given = inputs_of(path, **options)
    tensors = {name: x.detach() for name, x in given.items() if isinstance(x, Tensor)}
    rest = {name: x for name, x in given.items() if name not in tensors}
    return lambda tensors: PATHS[path](**tensors, **rest), tensors


def tangents_of(tensors: Tensors) -> Tensors:
    """A direction for each tensor."""
    return {name: normal(*x.shape, 1)[..., 0].to(x) for name, x in tensors.items()}


def inner(one: Tensors, other: Tensors) -> Tensor:
    return sum((one[name] * other[name]).sum() for name in one)  # type: ignore[return-value]


# torch.func in reverse mode, and vmap


@each_with_a_gradient
def test_torch_func_has_the_gradient_of_autograd(path: str) -> None:
    attend, tensors = as_function(path)
    weights = normal(*attend(tensors).shape)
    found = torch.func.grad(lambda tensors: (attend(tensors) * weights).sum())(tensors)
    expected = forward_and_gradients(PATHS[path], inputs_of(path))[1:]
    torch.testing.assert_close(list(found.values()), expected)


@each_with_a_gradient
def test_vmap_is_a_loop(path: str) -> None:
    attend, tensors = as_function(path)
    several = {name: torch.stack([x, x.flip(0), x / 2]) for name, x in tensors.items()}
    expected = [attend({name: x[i] for name, x in several.items()}) for i in range(3)]
    torch.testing.assert_close(torch.func.vmap(attend)(several), torch.stack(expected))


@each_with_a_gradient
def test_a_gradient_for_each_entry_is_a_loop_of_gradients(path: str) -> None:
    attend, tensors = as_function(path)
    several = {name: torch.stack([x, x / 2]) for name, x in tensors.items()}
    gradient = torch.func.grad(lambda tensors: attend(tensors).square().sum())
    found = torch.func.vmap(gradient)(several)
    for i in range(2):
        expected = gradient({name: x[i] for name, x in several.items()})
        torch.testing.assert_close({name: x[i] for name, x in found.items()}, expected)


# Forward mode


@forward_mode
@each_spelled_out
def test_forward_mode_is_the_transpose_of_reverse_mode(path: str) -> None:
    attend, tensors = as_function(path, dtype=torch.float64)
    tangents = tangents_of(tensors)
    output, tangent = torch.func.jvp(attend, (tensors,), (tangents,))
    weights = normal(*output.shape).double()
    gradients = torch.func.grad(lambda tensors: (attend(tensors) * weights).sum())(tensors)
    torch.testing.assert_close((tangent * weights).sum(), inner(tangents, gradients))


def refused_in_words(path: str) -> Any:
    """flex_attention is PyTorch's, and so are its words."""
    by_pytorch = path in taking("flex")
    words = r"jvp|forward mode" if by_pytorch else r"has no forward mode \(no jvp\): take .*tention"
    return pytest.raises((NotImplementedError, RuntimeError), match=words)


@forward_mode
@pytest.mark.parametrize("path", FIRST_ALONE + taking("flex"))
def test_forward_mode_is_refused_elsewhere(path: str) -> None:
    attend, tensors = as_function(path)
    with refused_in_words(path):
        torch.func.jvp(attend, (tensors,), (tangents_of(tensors),))


@forward_mode
@each_first_alone
def test_forward_over_reverse_is_refused_in_the_same_words(path: str) -> None:
    attend, tensors = as_function(path)
    gradient = torch.func.grad(lambda tensors: attend(tensors).sum())
    with refused_in_words(path):
        torch.func.jvp(gradient, (tensors,), (tangents_of(tensors),))


@each_first_alone
def test_what_has_no_tangent_is_computed_beside_what_has_one(path: str) -> None:
    attend, tensors = as_function(path)
    expected = attend(tensors)
    with forward_ad.dual_level():
        assert torch.equal(attend(tensors), expected)


@forward_mode
@pytest.mark.parametrize("path", FIRST_ALONE + taking("flex"))
def test_no_tangent_is_lost_in_silence(path: str) -> None:
    attend, tensors = as_function(path)
    with forward_ad.dual_level():
        name, x = next(iter(tensors.items()))
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        with refused_in_words(path):
            attend(tensors | {name: dual})


# Derivatives of the second order


def along(path: str, **options: Any) -> tuple[Tensor, Callable[[float], Tensor]]:
    """
    The second derivative of a path along a direction by autograd, twice, and its first derivative
    at any step into that direction.
    """
    attend, tensors = as_function(path, **options)
    tangents = tangents_of(tensors)

    def first(step: Tensor) -> Tensor:
        moved = {name: x + step * tangents[name] for name, x in tensors.items()}
        loss = attend(moved).square().sum()
        return torch.autograd.grad(loss, step, create_graph=True)[0]

    zero = torch.zeros((), dtype=torch.float64, requires_grad=True)
    second = torch.autograd.grad(first(zero), zero)[0]
    return second, lambda step: first(zero.detach().add(step).requires_grad_()).detach()


def near_its_differences(path: str) -> bool:
    second, first = along(path, dtype=torch.float64)
    difference = (first(1e-5) - first(-1e-5)) / 2e-5
    return count_roundings(second, difference) < 1e-5 * 2**53


@pytest.mark.parametrize("path", OF_ANY_ORDER)
def test_a_second_derivative_is_the_difference_of_first_ones(path: str) -> None:
    assert near_its_differences(path)


def test_a_second_derivative_that_is_lost_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def detached(query: Tensor, key: Tensor) -> Tensor:
        return query @ key.mT + (query.detach() ** 2).sum() * query.sum()

    monkeypatch.setitem(PATHS, "scaled_dot_product_score", detached)
    assert not near_its_differences("scaled_dot_product_score")


@pytest.mark.parametrize("path", taking("triton"))
def test_a_derivative_of_the_gradient_is_refused_in_words(path: str) -> None:
    """Also where PyTorch would take it for zero: of an input that the gradient depends on alone."""
    given = inputs_of(path)
    needing = differentiable(given)
    gradients = torch.autograd.grad(PATHS[path](**given).sum(), needing, create_graph=True)
    for gradient in gradients:
        if gradient.requires_grad:
            with pytest.raises(NotImplementedError, match="has first derivatives alone"):
                torch.autograd.grad(gradient.sum(), needing, allow_unused=True, retain_graph=True)
    assert any(gradient.requires_grad for gradient in gradients)


@each_first_alone
def test_torch_func_refuses_it_too(path: str) -> None:
    attend, tensors = as_function(path)

    def length(tensors: Tensors) -> Tensor:
        found = torch.func.grad(lambda tensors: attend(tensors).sum())(tensors)
        return inner(found, found)

    with pytest.raises((NotImplementedError, RuntimeError), match=r"first derivatives|jvp"):
        torch.func.grad(length)(tensors)


def test_a_gradient_that_nobody_derives_costs_no_graph() -> None:
    x = torch.ones(3, requires_grad=True)
    with torch.no_grad():
        assert first_derivatives("it", "another", [x], x) == [x]


# flex_attention on a CPU


@pytest.mark.parametrize("path", taking("flex"))
def test_flex_attention_has_no_gradient_on_a_cpu_and_says_so(path: str) -> None:
    given = inputs_of(path)
    with pytest.raises(NotImplementedError, match="no gradient on a CPU"):
        PATHS[path](**given)
    attend, tensors = as_function(path)
    with pytest.raises(NotImplementedError, match="no gradient on a CPU"):
        torch.func.grad(lambda tensors: attend(tensors).sum())(tensors)


@pytest.mark.parametrize("path", taking("flex"))
def test_flex_attention_has_no_vmap_and_says_so(path: str) -> None:
    attend, tensors = as_function(path)
    with pytest.raises(NotImplementedError, match="no vmap"):
        torch.func.vmap(attend)({name: x[None] for name, x in tensors.items()})


# Values as wide as keys: PyTorch takes a kernel of its own, which has first derivatives alone,
# unless a mask of positions needs a gradient

FUSED_BY_PYTORCH = [path for path in taking("") if path.endswith("attention")]
FUSED_BY_PYTORCH.remove("additive_attention")
OF_POSITIONS = [path for path in FUSED_BY_PYTORCH if path.startswith(("transformer", "learned"))]


def as_wide(path: str) -> tuple[Callable[[Tensors], Tensor], Tensors]:
    """A path as a function of query, key and value, the values as wide as the keys."""
    attend, tensors = as_function(path, dtype=torch.float64)
    tensors["value"] = tensors["value"][..., : tensors["key"].shape[-1]]
    moving = {name: tensors[name] for name in ("query", "key", "value")}
    return lambda some: attend(tensors | some), moving


def gradient_of(attend: Callable[[Tensors], Tensor]) -> Callable[[Tensors], Tensors]:
    """The gradient of a length, as a function."""
    return torch.func.grad(lambda tensors: attend(tensors).square().sum())


def second_by_reverse_mode(path: str) -> Tensors:
    """The derivative of the gradient's sum, by autograd twice."""
    attend, tensors = as_wide(path)
    leaves = {name: x.detach().requires_grad_() for name, x in tensors.items()}
    inputs = list(leaves.values())
    length = attend(leaves).square().sum()
    first = torch.autograd.grad(length, inputs, create_graph=True)
    second = torch.autograd.grad(sum(x.sum() for x in first), inputs)  # type: ignore[arg-type]
    return dict(zip(leaves, second, strict=True))


def second_by_forward_mode(path: str) -> Tensors:
    """The same by the directional derivative of the gradient."""
    attend, tensors = as_wide(path)
    ones = {name: torch.ones_like(x) for name, x in tensors.items()}
    return torch.func.jvp(gradient_of(attend), (tensors,), (ones,))[1]


@forward_mode
@pytest.mark.parametrize("path", FUSED_BY_PYTORCH)
def test_forward_mode_takes_the_formula_in_place_of_the_kernel(path: str) -> None:
    attend, tensors = as_wide(path)
    tangents = tangents_of(tensors)
    output, tangent = torch.func.jvp(attend, (tensors,), (tangents,))
    weights = normal(*output.shape).double()
    gradients = torch.func.grad(lambda tensors: (attend(tensors) * weights).sum())(tensors)
    torch.testing.assert_close((tangent * weights).sum(), inner(tangents, gradients))


@forward_mode
@pytest.mark.parametrize("path", FUSED_BY_PYTORCH)
def test_forward_over_reverse_gives_second_derivatives(path: str) -> None:
    attend, tensors = as_wide(path)
    up, down = (
        gradient_of(attend)({name: x + step for name, x in tensors.items()})
        for step in (1e-5, -1e-5)
    )
    for name, x in second_by_forward_mode(path).items():
        torch.testing.assert_close(x, (up[name] - down[name]) / 2e-5)


@forward_mode
@pytest.mark.parametrize("path", FUSED_BY_PYTORCH)
def test_reverse_over_reverse_is_the_same_by_the_formula(path: str) -> None:
    with nullcontext() if path in OF_POSITIONS else sdpa_kernel(SDPBackend.MATH):
        second = second_by_reverse_mode(path)
    torch.testing.assert_close(second, second_by_forward_mode(path))


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # by PyTorch, of its own kernel
@pytest.mark.parametrize("path", FUSED_BY_PYTORCH)
def test_a_mask_under_vmap_may_need_a_gradient(path: str) -> None:
    """``torch.func.stack_module_state`` gives such parameters."""
    attend, tensors = as_wide(path)
    both = {name: torch.stack([x, x / 2]).requires_grad_() for name, x in tensors.items()}
    several = torch.func.vmap(attend)(both)
    alone = torch.stack([attend({name: x[i] for name, x in both.items()}) for i in range(2)])
    torch.testing.assert_close(several, alone)
    inputs = list(both.values())
    found, expected = (
        torch.autograd.grad(output.square().sum(), inputs) for output in (several, alone)
    )
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("path", sorted({*FUSED_BY_PYTORCH} - {*OF_POSITIONS}))
def test_reverse_over_reverse_is_refused_by_a_kernel_of_pytorch(path: str) -> None:
    with pytest.raises(RuntimeError, match=r"derivative for \S+flash\S+ is not implemented"):
        second_by_reverse_mode(path)


def test_every_path_stands_in_one_of_these_lists() -> None:
    assert {*SPELLED_OUT, *FIRST_ALONE, *taking("flex")} == set(PATHS)
    assert {split(path)[1] for path in PATHS} == {"", "eager", "blocked", "triton", "flex"}


@forward_mode
def test_a_product_of_what_rows_see_has_every_derivative() -> None:
    weights, value = (
        torch.randn(shape, dtype=torch.float64, generator=torch.manual_seed(1), requires_grad=True)
        for shape in ((2, 3, 4), (2, 4, 5))
    )
    visible = torch.tensor([True, False, True, True]).expand(3, 4)

    def product(weights: Tensor, value: Tensor) -> Tensor:
        return sum_seen(weights, visible, value)

    assert torch.autograd.gradcheck(product, (weights, value), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(product, (weights, value))
