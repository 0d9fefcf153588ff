"""
Modules whose projections are submodules that are called: whatever hooks onto one, computes its
weights or stands in its place takes part in every layer.
"""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune

from attnverify import spec
from attnverify.contract.shapes import PATTERN
from attnverify.torch_impl.modules import MultiHeadAttention, TransformerXL
from tests.support.roundings import count_roundings
from tests.support.torch_modules import (
    BUILD,
    NAMES,
    OPTIONS,
    F,
    H,
    agree,
    built,
    inputs_of,
    of_module,
)

pytestmark = pytest.mark.filterwarnings("error")

PROJECTIONS = [
    (layer, part)
    for layer in BUILD
    for part, module in BUILD[layer]().named_modules()
    if isinstance(module, nn.Linear)
]
WEIGHTS = [
    (layer, part, name)
    for layer in BUILD
    for part, module in BUILD[layer]().named_modules()
    for name, weight in module.named_parameters(recurse=False)
    if weight.ndim > 1
]
each_projection = pytest.mark.parametrize(("layer", "part"), PROJECTIONS)
each_weight = pytest.mark.parametrize(("layer", "part", "name"), WEIGHTS)
each_layer = pytest.mark.parametrize("layer", sorted({layer for layer, _ in PROJECTIONS}))


def module_of(layer: str) -> nn.Module:
    return built(BUILD[layer]).eval()


def put(module: nn.Module, part: str, new: nn.Module) -> None:
    """Put something in the place of a submodule."""
    owner, _, last = part.rpartition(".")
    setattr(module.get_submodule(owner), last, new)


def right(layer: str, module: nn.Module, **changed: Tensor) -> bool:
    """
    Whether the output is that of the specification on the weights as they are, whatever computes
    them, or as they are told.
    """
    names = [name for name, _, _ in PATTERN.findall(NAMES[layer])]
    weights = {name: changed[name] if name in changed else weight(module, name) for name in names}
    inputs, options = inputs_of(layer), OPTIONS.get(layer, {"num_heads": H})
    parameters = {name: x.detach().numpy() for name, x in weights.items() if x is not None}
    expected = getattr(spec, layer)(**inputs, parameters=parameters, **options)
    return agree(of_module(module, inputs), expected)


def weight(module: nn.Module, name: str) -> Tensor:
    owner, _, last = name.rpartition(".")
    return getattr(module.get_submodule(owner), last)


def moves(layer: str, module: nn.Module, change: Callable[[], Any]) -> bool:
    """Whether the output is another after a change."""
    before = of_module(module, inputs_of(layer))
    change()
    return not torch.equal(before, of_module(module, inputs_of(layer)))


# Hooks


@each_projection
def test_a_submodule_is_called_and_its_hooks_are_heard(layer: str, part: str) -> None:
    module, calls = module_of(layer), []
    submodule = module.get_submodule(part)
    submodule.register_forward_pre_hook(lambda *_: calls.append("before"))
    submodule.register_forward_hook(lambda *_: calls.append("after"))
    submodule.register_full_backward_hook(lambda *_: calls.append("backward"))
    inputs = {key: torch.from_numpy(x) for key, x in inputs_of(layer).items()}
    needing = {key: x.requires_grad_(x.is_floating_point()) for key, x in inputs.items()}
    of_module(module, needing).sum().backward()
    assert calls == ["before", "after", "backward"]


@each_projection
def test_what_a_hook_returns_is_what_counts(layer: str, part: str) -> None:
    module = module_of(layer)
    register = module.get_submodule(part).register_forward_hook
    assert moves(layer, module, lambda: register(lambda *call: call[-1] ** 3))


def test_the_norm_of_transformer_xl_may_be_another() -> None:
    layer = "transformer_xl_layer"
    module = module_of(layer)
    assert moves(layer, module, lambda: put(module, "layer_norm", nn.Identity()))


def test_labmls_wrappers_are_called_too() -> None:
    module, calls = module_of("relative_multi_head_attention"), []
    for part in ("query", "key", "value"):
        module.get_submodule(part).register_forward_hook(lambda *_, part=part: calls.append(part))
    of_module(module, inputs_of("relative_multi_head_attention"))
    assert calls == ["query", "key", "value"]


def test_the_layers_of_a_stack_are_called_in_order() -> None:
    module, calls = TransformerXL(3, 2, 6, 4), []
    for index, layer in enumerate(module.layers):
        layer.register_forward_hook(lambda *_, index=index: calls.append(index))
    module(torch.ones(2, 1, 6))
    assert calls == [0, 1, 2]


# Weights that are computed


class Cube(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x**3


@each_weight
def test_a_parametrization_takes_part(layer: str, part: str, name: str) -> None:
    module = module_of(layer)
    owner = module.get_submodule(part)
    assert moves(layer, module, lambda: parametrize.register_parametrization(owner, name, Cube()))
    assert right(layer, module)
    of_module(module, inputs_of(layer)).square().sum().backward()
    assert owner.parametrizations[name].original.grad.abs().max() > 0


@pytest.mark.parametrize(
    "compute", [parametrizations.weight_norm, parametrizations.spectral_norm, prune.identity]
)
@each_weight
def test_a_weight_that_is_normed_or_pruned_is_used_as_it_is(
    layer: str, part: str, name: str, compute: Callable[..., Any]
) -> None:
    module = module_of(layer)
    compute(module.get_submodule(part), name)
    assert right(layer, module)


@each_weight
def test_what_is_pruned_is_gone(layer: str, part: str, name: str) -> None:
    module = module_of(layer)
    owner = module.get_submodule(part)
    assert moves(layer, module, lambda: prune.l1_unstructured(owner, name, 0.5))
    assert right(layer, module) and (getattr(owner, name) == 0).float().mean() >= 0.4


# What stands in the place of a projection


class Lora(nn.Module):
    """A frozen projection and a product of two thin matrices."""

    def __init__(self, base: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        factory = {"dtype": base.weight.dtype}
        self.down = nn.Linear(base.in_features, rank, bias=False, **factory)
        self.up = nn.Linear(rank, base.out_features, bias=False, **factory)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


@each_projection
def test_an_adapter_in_the_place_of_a_projection_learns_alone(layer: str, part: str) -> None:
    module = module_of(layer)
    adapter = Lora(module.get_submodule(part))
    put(module, part, adapter)
    changed = adapter.base.weight + adapter.up.weight @ adapter.down.weight
    bias = {} if adapter.base.bias is None else {f"{part}.bias": adapter.base.bias}
    assert right(layer, module, **{f"{part}.weight": changed}, **bias)
    of_module(module, inputs_of(layer)).square().sum().backward()
    assert adapter.up.weight.grad.abs().max() > 0 and adapter.base.weight.grad is None


def quantised(module: nn.Module) -> nn.Module:
    """By PyTorch's own form, which warns that it goes."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        small = torch.ao.quantization.quantize_dynamic(module, {nn.Linear}, torch.qint8)
    assert any("torch.ao.quantization is deprecated" in str(warning.message) for warning in told)
    return small


@each_layer
def test_dynamic_quantisation_replaces_every_projection(layer: str) -> None:
    module = module_of(layer).float()
    inputs = {
        key: x.astype("float32") if x.dtype == float else x for key, x in inputs_of(layer).items()
    }
    expected, small = of_module(module, inputs), quantised(module)
    assert not any(type(x) is nn.Linear for x in small.modules())
    output = of_module(small, inputs)
    assert 0 < (output - expected).abs().max() < 0.1 * expected.abs().max()


# Weights that are shared


def test_tied_weights_are_one_weight_with_one_gradient() -> None:
    layer = "multi_head_attention"
    module, apart = module_of(layer), module_of(layer)
    module.k_proj.weight = module.q_proj.weight
    apart.k_proj.weight.data.copy_(apart.q_proj.weight)
    assert len(list(module.parameters())) == len(list(apart.parameters())) - 1
    assert right(layer, module)
    for each in (module, apart):
        of_module(each, inputs_of(layer)).square().sum().backward()
    both = apart.q_proj.weight.grad + apart.k_proj.weight.grad
    assert count_roundings(module.q_proj.weight.grad, both) < 16


def test_one_projection_may_be_two() -> None:
    module = module_of("multi_head_attention")
    module.v_proj = module.k_proj
    assert right("multi_head_attention", module)


def test_layers_may_share_their_biases() -> None:
    """As Transformer-XL's do, unless they are untied."""
    module = TransformerXL(2, 2, 6, 4)
    first, second = module.layers
    second.u, second.v = first.u, first.v
    hidden, mems = module(torch.randn(3, 2, 6), module.init_mems(2))
    module(torch.randn(3, 2, 6), mems)[0].square().sum().backward()
    assert first.u.grad.abs().max() > 0 and len(list(module.parameters())) == 18


# Subclasses


class Tempered(MultiHeadAttention):
    """A temperature of its own."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.temperature = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))

    def forward(self, query: Tensor, *rest: Any, **options: Any) -> Any:
        return super().forward(query * self.temperature, *rest, **options)


def test_a_subclass_may_have_parameters_of_its_own() -> None:
    layer = "multi_head_attention"
    module, plain = built(partial(Tempered, F, H)).eval(), module_of(layer)
    plain.load_state_dict(module.state_dict(), strict=False)
    inputs = inputs_of(layer)
    with torch.no_grad():
        warmed = inputs | {"query": inputs["query"] * module.temperature.item()}
    output = of_module(module, inputs)
    assert torch.allclose(output, of_module(plain, warmed))
    output.square().sum().backward()
    assert module.temperature.grad.abs() > 0


def test_a_projection_may_lose_its_bias() -> None:
    module = module_of("multi_head_attention")
    module.q_proj.bias = None
    assert right("multi_head_attention", module)
