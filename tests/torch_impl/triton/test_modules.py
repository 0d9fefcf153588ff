"""
Modules told to use the Triton kernels: against the specification, forwards and backwards, and a
training step of Transformer-XL.
"""

from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from numpy import ndarray
from torch import Tensor, nn

from attnverify import spec
from attnverify.backends.calls.call_adapter import adapt_signature
from attnverify.backends.functions import gradient_by_autograd
from attnverify.backends.implementation import Backend, Implementation
from attnverify.backends.loader import load
from attnverify.catalogue.operation import parse_name
from attnverify.inputs.fixed_cases import fixed_cases
from attnverify.inputs.sampling import draw_recipes
from attnverify.judge.case import case_of
from attnverify.judge.errors import Unsupported
from attnverify.judge.judging import judge
from attnverify.torch_impl.modules import as_operations, attention_modules
from attnverify.torch_impl.modules.transformer_xl import TransformerXL
from attnverify.torch_impl.triton import additive, attention
from tests.support.roundings import count_roundings
from tests.support.torch_modules import BUILD, OPTIONS, H, inputs_of, of_module, rng, turn

WITH_WEIGHTS = ("multi_head_attention", "multi_head_self_attention")
JUDGED = [name for name in as_operations.TRITON if not name.startswith("multi_head")]
LAYERS = ["self_attention", *(name for name in BUILD if name != "self_attention")]
STEP, U = 1e-20, 2.0**-24
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

each_path = pytest.mark.parametrize("name", JUDGED)
each_layer = pytest.mark.parametrize("name", LAYERS)


@pytest.fixture(scope="module")
def backend() -> Backend:
    return load("torch_impl")


def judged(backend: Backend, name: str, dtype: str, draws: int) -> int:
    """
    Hold the module to the specification, and its gradient where the specification has one; how many
    cases were strong.
    """
    parsed = parse_name(name)
    assert parsed is not None
    operation, how = parsed
    forward = Implementation(
        backend, operation, how, adapt_signature(as_operations.TRITON[name], operation)
    )
    strong = 0
    for implementation in (
        forward,
        *gradient_by_autograd(backend, operation, how, forward.function, {}),
    ):
        called = implementation.operation.name
        for recipe in (
            *islice(fixed_cases(called), draws),
            *draw_recipes(called, "any", draws, 0),
            *draw_recipes(called, "nan", draws // 4, 0),
        ):
            try:
                strong += judge(implementation, case_of(recipe, dtype)).discriminating
            except Unsupported as reason:
                assert "eval mode has no dropout" in str(reason)
    return strong


@each_path
def test_a_module_with_the_kernels_is_what_the_specification_says(
    backend: Backend, name: str
) -> None:
    assert (
        judged(backend, name, "float32", 4 if parse_name(name)[0].gradient else 12) >= 5
    )  # an attention is judged without its module too


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@each_path
def test_a_module_with_the_kernels_is_what_the_specification_says_at_length(
    backend: Backend, name: str, dtype: str
) -> None:
    assert judged(backend, name, dtype, 200) >= 100


# Gradients of the layers, for which the specification has no operation: derivatives of the
# specification itself


def drawn(build: Callable[..., nn.Module], **options: Any) -> nn.Module:
    """A module in float32 with the kernels, whose parameters are all drawn."""
    module, source = build(implementation="triton", **options), rng(0)
    for x in module.parameters():
        x.data.copy_(torch.from_numpy(source.standard_normal(x.shape)) / 3)
    return module


def slope(
    function: Callable[[dict[str, ndarray]], ndarray],
    at: dict[str, ndarray],
    name: str,
    direction: ndarray,
) -> float:
    """The derivative along a direction, to the last bits: the complex step has no cancellation."""
    moved = {key: x.astype(complex) for key, x in at.items()}
    moved[name] += STEP * 1j * direction
    return float(function(moved).imag / STEP)


def roundings(width: int, length: int) -> int:
    """
    As many in a row as lie between a parameter and the loss, and once more on the way back.

    The sums of three projections and a score, exp and sum and product of the softmax, the mean and
    the variance of a layer norm. Of numbers of the size of the largest gradient, for they meet in
    it.
    """
    return 2 * (4 * width + 2 * length + 20)


def far(
    gradients: dict[str, Tensor], function: Any, at: dict[str, ndarray], bound: float
) -> list[str]:
    """
    The gradients that differ along one of three directions from the specification's by more than
    the bound, a share of the largest gradient.

    A direction is of random signs, with which errors add up like the root of their number.
    """
    largest = max(float(x.abs().max()) for x in gradients.values())
    found = []
    for seed, (name, x) in enumerate(gradients.items()):
        for turned in range(3):
            direction = np.sign(rng(seed, turned).standard_normal(x.shape))
            wanted = slope(function, at, name, direction)
            found += [name] * (
                not abs(float((x.double().numpy() * direction).sum()) - wanted)
                <= bound * largest * x.numel() ** 0.5
            )
    return found


def of_layer(name: str) -> tuple[dict[str, Tensor], Any, dict[str, ndarray], float]:
    """The gradients of a layer's parameters, and the specification as a function of them."""
    module, given = (
        drawn(BUILD[name]),
        {
            key: x.astype(np.float32) if x.dtype == float else x
            for key, x in inputs_of(name).items()
        },
    )
    options = {"need_weights": False} if name in WITH_WEIGHTS else {}
    output = of_module(lambda_of(module, options), given)
    weights = rng(9).standard_normal(output.shape)
    (output * torch.from_numpy(weights)).sum().backward()

    def loss(parameters: dict[str, ndarray]) -> Any:
        inputs = {key: x.astype(float) if x.dtype == np.float32 else x for key, x in given.items()}
        output = getattr(spec, name)(
            **inputs, parameters=parameters, **OPTIONS.get(name, {"num_heads": H})
        )
        return ((output[0] if isinstance(output, tuple) else output) * weights).sum()

    gradients = {key: x.grad for key, x in module.named_parameters()}
    at = {key: x.double().numpy() for key, x in module.state_dict().items()}
    return gradients, loss, at, roundings(33, 7) * U


def lambda_of(module: nn.Module, options: dict[str, Any]) -> Any:
    class Asked(nn.Module):
        batch_first = module.batch_first

        def forward(self, **inputs: Any) -> Any:
            return module(**inputs, **options)

    return Asked()


@each_layer
def test_the_gradients_of_a_layer_are_those_of_the_specification(name: str) -> None:
    gradients, loss, at, bound = of_layer(name)
    assert not far(gradients, loss, at, bound)


@each_layer
def test_a_gradient_that_is_a_thousandth_off_is_far(name: str) -> None:
    gradients, loss, at, bound = of_layer(name)
    largest = max(gradients, key=lambda key: float(gradients[key].abs().max()))
    assert largest in far(gradients | {largest: 1.001 * gradients[largest]}, loss, at, bound)


# A training step over two segments

SEGMENTS, F, MEM, LAYER = (4, 3), 6, 5, 2


def stack() -> TransformerXL:
    return drawn(lambda **o: TransformerXL(LAYER, H, F, MEM, batch_first=True, **o)).to(DEVICE)


def segments() -> Iterator[tuple[ndarray, ndarray]]:
    """The numbers that go into each segment and those that its output is weighed with."""
    for seed, length in enumerate(SEGMENTS):
        yield (
            (x := rng(seed, 5).standard_normal((2, length, F)).astype(np.float32)),
            rng(seed, 6).standard_normal(x.shape),
        )


@cache
def of_specification() -> dict[str, ndarray]:
    """The specification's gradients of a training step, element by element."""
    return derivative(loss_of_specification, parameters_of(stack()))


def derivative(
    function: Callable[[dict[str, ndarray]], Any], at: dict[str, ndarray]
) -> dict[str, ndarray]:
    moved, found = (
        {key: x.astype(complex) for key, x in at.items()},
        {key: np.zeros(x.shape) for key, x in at.items()},
    )
    for name, x in at.items():
        for place in np.ndindex(x.shape):
            moved[name][place] = x[place] + STEP * 1j
            found[name][place] = function(moved).imag / STEP
            moved[name][place] = x[place]
    return found


def agree(actual: dict[str, Tensor], expected: dict[str, ndarray]) -> bool:
    """Every element of every gradient, to BOUND of the largest."""
    most = BOUND * max(np.abs(x).max() for x in expected.values())
    return all(
        bool((np.abs(x.double().numpy() - expected[name]) <= most).all())
        for name, x in actual.items()
    )


def trained(module: TransformerXL) -> dict[str, Tensor]:
    """
    The gradients of the loss over both segments; the memory of the first is that of the second.
    """
    mems, loss = module.init_mems(2), torch.zeros((), device=DEVICE)
    for x, weights in segments():
        hidden, mems = module(torch.from_numpy(x).to(DEVICE), mems)
        loss = loss + (hidden * torch.from_numpy(weights).to(DEVICE)).sum()
    loss.backward()
    return {name: x.grad.cpu() for name, x in module.named_parameters()}


def loss_of_specification(stacked: dict[str, ndarray], detached: bool = True) -> Any:
    """
    The same by the specification. A memory that is cut off from the gradient is one without an
    imaginary part.
    """
    parameters = [
        {name[9:]: x for name, x in stacked.items() if name.startswith(f"layers.{layer}.")}
        for layer in range(LAYER)
    ]
    mems, loss = spec.init_mems(LAYER, MEM, 2, F), 0.0
    for x, weights in segments():
        hidden, mems = spec.transformer_xl(x.astype(float), parameters, H, mems, MEM)
        mems = [mem.real for mem in mems] if detached else mems
        loss += (hidden * weights).sum()
    return loss


def parameters_of(module: nn.Module) -> dict[str, ndarray]:
    return {name: x.cpu().double().numpy() for name, x in module.state_dict().items()}


BOUND = LAYER * len(SEGMENTS) * roundings(F, sum(SEGMENTS) + MEM) * U


def test_a_training_step_over_two_segments_has_the_gradients_of_the_specification() -> None:
    assert agree(trained(stack()), of_specification())


def test_gradients_that_are_a_thousandth_off_do_not_agree() -> None:
    assert not agree({name: 1.001 * x for name, x in trained(stack()).items()}, of_specification())


def test_a_memory_that_carries_a_gradient_would_be_noticed() -> None:
    module = stack()
    gradients = trained(module)
    assert far(
        gradients,
        lambda stacked: loss_of_specification(stacked, detached=False),
        parameters_of(module),
        BOUND,
    )


def test_a_training_step_goes_through_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    launched = count(monkeypatch)
    trained(stack())
    assert len(launched) == LAYER * len(SEGMENTS)


# Who computes


def count(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The calls of the operators behind the Triton attentions."""
    called: list[Any] = []
    for place, name in ((attention, "attention"), (additive, "additive_attention")):
        own = place.operators()
        monkeypatch.setattr(own, name, counted(getattr(own, name), called))
    return called


def counted(operator: Callable[..., Any], called: list[Any]) -> Callable[..., Any]:
    def count_and_call(*args: Any) -> Any:
        called.append(operator)
        return operator(*args)

    return count_and_call


BUILT: dict[str, Callable[..., nn.Module]] = {
    **BUILD,
    "additive_attention": lambda **o: attention_modules.AdditiveAttention(3, 5, 7, **o),
    "scaled_dot_product_attention": lambda **o: attention_modules.ScaledDotProductAttention(**o),
    "transformer_xl": lambda **o: TransformerXL(1, H, F, MEM, **o),
}


@pytest.mark.parametrize("name", BUILT)
def test_a_wrong_name_is_refused(name: str) -> None:
    for wrong in ("cuda", "", None, True):
        with pytest.raises(ValueError, match=r"^implementation: wanted .*'triton'.*, got "):
            BUILT[name](implementation=wrong)


@each_layer
def test_a_layer_takes_the_kernels_when_told_so_and_never_else(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = count(monkeypatch)
    given = {
        key: x.astype(np.float32) if x.dtype == float else x for key, x in inputs_of(name).items()
    }
    asked = {"need_weights": False} if name in WITH_WEIGHTS else {}
    of_module(lambda_of(BUILD[name](), asked), given)
    of_module(lambda_of(BUILD[name](implementation="torch"), asked), given)
    assert not called
    of_module(lambda_of(BUILD[name](implementation="triton"), asked), given)
    assert len(called) == 1


@pytest.mark.parametrize("name", ["additive_attention", "scaled_dot_product_attention"])
def test_the_attentions_take_the_kernels_when_told_so(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = count(monkeypatch)
    shapes = ((2, 3, 3), (2, 5, 3 if name.startswith("scaled") else 5), (2, 5, 4))
    given = [torch.from_numpy(rng(2).standard_normal(shape)).float() for shape in shapes]
    BUILT[name]()(*given)
    assert not called
    BUILT[name](implementation="triton")(*given)
    assert len(called) == 1


@pytest.mark.parametrize("name", WITH_WEIGHTS)
def test_weights_that_no_kernel_keeps_are_not_made_up(name: str) -> None:
    given = {
        key: x.astype(np.float32) if x.dtype == float else x for key, x in inputs_of(name).items()
    }
    with pytest.raises(NotImplementedError, match="need_weights=False"):
        of_module(BUILD[name](implementation="triton"), given)
    module = BUILD[name](batch_first=True)
    output, weights = module(
        **{key: torch.from_numpy(x) for key, x in given.items()}, need_weights=False
    )
    torch.testing.assert_close(
        output, module(**{key: torch.from_numpy(x) for key, x in given.items()})[0]
    )
    assert weights is None


def test_what_the_kernels_do_not_support_is_not_computed_otherwise() -> None:
    with pytest.raises(NotImplementedError, match="no float64"):
        of_module(
            BUILD["self_attention"](implementation="triton", dtype=torch.float64),
            inputs_of("self_attention"),
        )


@each_layer
def test_dropout_drops_the_same_weights(name: str) -> None:
    given = {
        key: x.astype(np.float32) if x.dtype == float else x for key, x in inputs_of(name).items()
    }
    asked = {"need_weights": False} if name in WITH_WEIGHTS else {}
    outputs = []
    for implementation in ("torch", "triton"):
        module = BUILD[name](dropout=0.4, implementation=implementation)
        for x in module.parameters():
            x.data.copy_(torch.from_numpy(rng(x.numel()).standard_normal(x.shape)) / 3)
        torch.manual_seed(0)
        outputs.append(of_module(lambda_of(module, asked), given).detach())
    assert count_roundings(*outputs) <= roundings(33, 7)


def test_under_autocast_the_layers_come_out_in_its_dtype() -> None:
    module = stack()
    with torch.autocast(DEVICE, torch.bfloat16):
        x = torch.from_numpy(next(segments())[0]).to(DEVICE)
        assert turn(module, module.layers[0].qkv_net(x)).dtype == torch.bfloat16
        hidden, _ = module(x, module.init_mems(2))
    assert hidden.isfinite().all()
    hidden.sum().backward()
    assert all(p.grad.isfinite().all() for p in module.parameters())
