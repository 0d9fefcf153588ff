"""
What people do with modules when they train: scaled losses, checkpoints of activations, files,
copies, averages, frozen parts, other dtypes, views, threads, ensembles.

By PyTorch's kernels and by blocks in every run, and one module by all; the others thoroughly.
"""

import copy
import io
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

from tests.support.module_calls import MODULES, WITH_WEIGHTS, arguments, drawn, first
from tests.support.roundings import count_roundings

IMPLEMENTATIONS = ("torch", "eager", "blocked", "triton")
TRAINED = [name for name in MODULES if name != "ScaledDotProductAttention"]
each_module = pytest.mark.parametrize("name", TRAINED)


def by_each_implementation(*names: str) -> pytest.MarkDecorator:
    """These modules, each by every implementation."""
    return pytest.mark.parametrize(
        ("name", "implementation"),
        [
            pytest.param(name, how, marks=[] if often(name, how) else pytest.mark.thorough)
            for name in names
            for how in IMPLEMENTATIONS
        ],
    )


def often(name: str, implementation: str) -> bool:
    return implementation in ("torch", "blocked") or name == "MultiHeadAttention"


each_trained_way = by_each_implementation(*TRAINED)
each_way = by_each_implementation(*MODULES)


def given(name: str) -> dict[str, Any]:
    """Arguments that every implementation takes."""
    return arguments(name) | ({"need_weights": False} if name in WITH_WEIGHTS else {})


def output_of(name: str, module: nn.Module) -> Tensor:
    return first(module(**given(name)))


def gradients(loss: Tensor, module: nn.Module) -> list[Tensor | None]:
    return list(torch.autograd.grad(loss, list(module.parameters()), allow_unused=True))


def in_leaves(change: Callable[[Tensor], Tensor], tree: dict[str, Any]) -> dict[str, Any]:
    """The arguments with their float tensors changed."""

    def changed(x: Any) -> Any:
        if isinstance(x, list):
            return [changed(y) for y in x]
        return change(x) if isinstance(x, Tensor) and x.is_floating_point() else x

    return {name: changed(x) for name, x in tree.items()}


# Training


@each_trained_way
def test_a_scaled_loss_in_a_region_trains(name: str, implementation: str) -> None:
    module, scaler = drawn(name, implementation=implementation), torch.amp.GradScaler("cpu")
    optimiser, losses = torch.optim.AdamW(module.parameters(), 0.05), []
    for _ in range(6):
        with torch.autocast("cpu", torch.bfloat16):
            loss = output_of(name, module).float().square().mean()
        optimiser.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimiser)
        nn.utils.clip_grad_norm_(module.parameters(), 1.0, error_if_nonfinite=True)
        scaler.step(optimiser)
        scaler.update()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def checkpointed(name: str, module: nn.Module, reentrant: bool) -> Tensor:
    """The output of a module whose activations are computed twice."""
    names, values = given(name).keys(), given(name).values()
    # the reentrant form looks for a tensor that needs a gradient among its arguments
    needing = torch.ones((), requires_grad=True)

    def call(_: Tensor, *args: Any) -> Tensor:
        return first(module(**dict(zip(names, args, strict=True))))

    return checkpoint(call, needing, *values, use_reentrant=reentrant)


@pytest.mark.parametrize("reentrant", [False, True])
@each_trained_way
def test_a_checkpoint_draws_the_same_dropout_again(
    name: str, implementation: str, reentrant: bool
) -> None:
    module = drawn(name, implementation=implementation, dropout=0.3).train()
    torch.manual_seed(0)
    expected = gradients(output_of(name, module).square().sum(), module)
    torch.manual_seed(0)
    checkpointed(name, module, reentrant).square().sum().backward()
    for x, wanted in zip(module.parameters(), expected, strict=True):
        assert x.grad is wanted is None or torch.equal(x.grad, wanted)


@each_module
def test_what_is_frozen_stays(name: str) -> None:
    module = drawn(name)
    *rest, (last, trained) = module.named_parameters()
    for _, x in rest:
        x.requires_grad_(False)
    before = copy.deepcopy(module.state_dict())
    optimiser = torch.optim.SGD([x for x in module.parameters() if x.requires_grad], 0.1)
    output_of(name, module).square().sum().backward()
    optimiser.step()
    assert {key for key, x in module.state_dict().items() if not torch.equal(x, before[key])} == {
        last
    }


# Files and copies


@each_trained_way
def test_a_module_and_its_state_survive_a_file(name: str, implementation: str) -> None:
    module, file = drawn(name, implementation=implementation), io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    other = torch.load(file, weights_only=False)
    assert torch.equal(output_of(name, other), output_of(name, module))
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    fresh = MODULES[name](implementation=implementation)
    fresh.load_state_dict(torch.load(file, weights_only=True), strict=True)
    assert torch.equal(output_of(name, fresh), output_of(name, module))


@each_module
def test_an_average_of_a_module_is_a_module(name: str) -> None:
    module = drawn(name)
    average = AveragedModel(module)
    average.update_parameters(module)
    assert torch.equal(output_of(name, average.module), output_of(name, module))
    average.load_state_dict(average.state_dict())


@each_module
def test_a_state_may_be_put_in_the_place_of_one_on_the_meta_device(name: str) -> None:
    module, other = drawn(name), MODULES[name](device="meta")
    other.load_state_dict(module.state_dict(), assign=True)
    assert torch.equal(output_of(name, other), output_of(name, module))


# Other numbers


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
@each_trained_way
def test_a_module_of_another_dtype_computes_in_it(
    name: str, implementation: str, dtype: torch.dtype
) -> None:
    if implementation == "triton" and dtype == torch.float64:
        return  # which is refused: test_kernels
    module = drawn(name, implementation=implementation).to(dtype)
    output = first(module(**in_leaves(lambda x: x.to(dtype), given(name))))
    assert output.dtype == dtype
    for x in gradients(output.sum(), module):
        assert x is None or (x.dtype == dtype and x.isfinite().all())


@each_module
def test_a_default_dtype_is_honoured(name: str) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        assert {x.dtype for x in MODULES[name]().parameters()} == {torch.float64}
    finally:
        torch.set_default_dtype(torch.float32)


@each_way
def test_a_call_stays_with_its_tensors_whatever_the_default_device(
    name: str, implementation: str
) -> None:
    """Draws, positions and masks are made beside what was given, in the backward pass too."""
    module = drawn(name, implementation=implementation, dropout=0.3).train()
    tensors, outputs = given(name), []
    for default in ("cpu", "meta"):
        torch.manual_seed(0)
        with torch.device(default):
            outputs.append(first(module(**tensors)))
            if outputs[-1].requires_grad:
                outputs[-1].sum().backward()
    assert torch.equal(*outputs)


def scattered(x: Tensor) -> Tensor:
    """The same numbers with others between them."""
    room = torch.full((*x.shape, 2), 9.0)
    room[..., 0] = x
    return room[..., 0]


@each_way
def test_numbers_may_lie_anywhere(name: str, implementation: str) -> None:
    module = drawn(name, implementation=implementation)
    output = first(module(**in_leaves(scattered, given(name))))
    assert count_roundings(output, output_of(name, module)) < 16


# Several at once


@each_way
def test_threads_may_share_a_module(name: str, implementation: str) -> None:
    module = drawn(name, implementation=implementation).eval()
    expected = output_of(name, module)
    with ThreadPoolExecutor(4) as pool:
        outputs = list(pool.map(lambda _: output_of(name, module), range(8)))
    assert all(torch.equal(output, expected) for output in outputs)


def of_state(module: nn.Module, tensors: dict[str, Any]) -> Callable[..., Tensor]:
    """The module on these arguments as a function of its state."""
    return lambda state: first(functional_call(module, state, (), tensors))


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # by PyTorch, of its own kernel
@each_trained_way
def test_vmap_computes_an_ensemble(name: str, implementation: str) -> None:
    modules = [drawn(name, implementation=implementation) for _ in range(2)]
    for x in modules[1].parameters():
        x.data.mul_(0.5)
    outputs = vmap(of_state(modules[0], given(name)))(stack_module_state(modules)[0])
    for output, module in zip(outputs, modules, strict=True):
        assert count_roundings(output, output_of(name, module)) < 64


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@each_trained_way
def test_vmap_computes_a_gradient_for_each_example(name: str, implementation: str) -> None:
    module = drawn(name, implementation=implementation)
    state = {key: x.detach() for key, x in module.named_parameters()}
    tensors = given(name)
    argument, x = next(iter(tensors.items()))
    examples = torch.stack([x, x / 2])

    def gradient(x: Tensor) -> dict[str, Tensor]:
        call = of_state(module, tensors | {argument: x})
        return grad(lambda state: call(state).square().sum())(state)

    several = vmap(gradient)(examples)
    for i, x in enumerate(examples):
        alone = gradient(x)
        torch.testing.assert_close({key: y[i] for key, y in several.items()}, alone)


@each_module
def test_a_dropout_under_vmap_is_drawn_as_it_is_told(name: str) -> None:
    module = drawn(name, dropout=0.5).train()
    state, _ = stack_module_state([module, module])
    call = of_state(module, given(name))
    one, other = vmap(call, randomness="different")(state)
    assert not torch.equal(one, other)
    one, other = vmap(call, randomness="same")(state)
    assert torch.equal(one, other)
    with pytest.raises(RuntimeError, match="randomness"):
        vmap(call)(state)


# Compiled


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
@each_module
def test_a_compiled_module_learns_as_the_module_itself(name: str) -> None:
    torch._dynamo.reset()
    losses = []
    for compiled in (False, True):
        module = drawn(name)
        call = torch.compile(module) if compiled else module
        optimiser = torch.optim.SGD(module.parameters(), 0.01)
        for _ in range(3):
            loss = first(call(**given(name))).square().mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
    assert losses[2] < losses[0]
    torch.testing.assert_close(losses[3:], losses[:3])
