"""
The modules under packages that train, shrink or published them, where these are installed: peft's
LoRA, torchao's quantisation, and Transformer-XL's own class, which transformers has up to 4.57.

None of them is a dependency: ``pip install peft torchao``, and transformers 4 in an environment of
its own. What they do to a module is also done by hand in test_submodules and test_state_dicts.
"""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnverify.torch_impl.modules import TransformerXL, TransformerXLLayer
from attnverify.torch_impl.relative import sinusoidal_positions
from tests.support.module_calls import MODULES, arguments, drawn, first
from tests.support.published_state_dicts import transfo_xl
from tests.support.roundings import count_roundings

pytestmark = pytest.mark.filterwarnings("ignore")  # of packages that meet a newer PyTorch


def projections(module: nn.Module) -> list[str]:
    return [name for name, part in module.named_modules() if isinstance(part, nn.Linear)]


WITH_PROJECTIONS = [name for name in MODULES if projections(MODULES[name]())]
each_module = pytest.mark.parametrize("name", WITH_PROJECTIONS)


def output_of(name: str, module: nn.Module) -> Tensor:
    return first(module(**arguments(name)))


# peft


def adapted(name: str) -> nn.Module:
    """A module with peft's LoRA at every projection, which begins as if it were not there."""
    peft = pytest.importorskip("peft", reason="peft is not installed: pip install peft")
    module = drawn(name).eval()
    config = peft.LoraConfig(r=2, target_modules=projections(module))
    return peft.inject_adapter_in_model(config, module)


def moved(module: nn.Module) -> nn.Module:
    """The same with something in its adapters."""
    draw = torch.Generator().manual_seed(0)
    for key, x in module.named_parameters():
        if "lora_B" in key:
            x.data.copy_(torch.randn(x.shape, generator=draw))
    return module


@each_module
def test_lora_of_peft_learns_alone(name: str) -> None:
    module = adapted(name)
    assert torch.equal(output_of(name, module), output_of(name, drawn(name).eval()))
    output_of(name, moved(module)).square().sum().backward()
    learning = {key for key, x in module.named_parameters() if x.grad is not None}
    assert learning == {key for key, x in module.named_parameters() if "lora" in key}
    assert all(x.grad.abs().max() > 0 for x in module.parameters() if x.grad is not None)


@each_module
def test_lora_of_peft_may_be_merged(name: str) -> None:
    module = moved(adapted(name))
    apart = output_of(name, module)
    assert not torch.allclose(apart, output_of(name, drawn(name).eval()))
    for part in module.modules():
        if callable(merge := getattr(part, "merge", None)):
            merge()
    assert count_roundings(output_of(name, module), apart) < 64


# torchao


@pytest.mark.parametrize("kind", ["Int8WeightOnlyConfig", "Int8DynamicActivationInt8WeightConfig"])
@each_module
def test_torchao_quantises_every_projection(name: str, kind: str) -> None:
    torchao = pytest.importorskip(
        "torchao.quantization", reason="torchao is not installed: pip install torchao"
    )
    module = drawn(name).eval()
    expected = output_of(name, module).detach()
    torchao.quantize_(module, getattr(torchao, kind)())
    weights = [part.weight for part in module.modules() if isinstance(part, nn.Linear)]
    assert weights and all(type(weight.data) is not Tensor for weight in weights)
    with torch.no_grad():
        output = output_of(name, module)
    assert 0 < (output - expected).abs().max() < 0.1 * expected.abs().max()


# Transformer-XL


def published(**options: Any) -> Any:
    """``TransfoXLModel`` with drawn parameters: a vocabulary of 11, two layers of two heads."""
    package = "transformers.models.deprecated.transfo_xl"
    reason = "TransfoXLModel is not installed: pip install 'transformers<5'"
    modeling = pytest.importorskip(f"{package}.modeling_transfo_xl", reason=reason)
    sizes = {"d_model": 6, "d_embed": 6, "n_head": 2, "d_head": 3, "d_inner": 12, "n_layer": 2}
    config = modeling.TransfoXLConfig(
        vocab_size=11, cutoffs=[], div_val=1, dropout=0.0, dropatt=0.0, **sizes, **options
    )
    model = modeling.TransfoXLModel(config).eval()
    draw = torch.Generator().manual_seed(2)
    for x in model.parameters():
        x.data.copy_(torch.randn(x.shape, generator=draw) / 2)
    return model


@pytest.mark.parametrize("untied", [False, True])
def test_the_published_state_dict_has_the_names_and_shapes_that_others_tests_take(
    untied: bool,
) -> None:
    state = published(untie_r=untied).state_dict()
    ours = transfo_xl(layers=2, heads=2, width=6, untied=untied)
    expected = {name.removeprefix("transformer."): x.shape for name, x in ours.items()}
    assert {name: x.shape for name, x in state.items()} == expected


@pytest.mark.parametrize("untied", [False, True])
def test_the_published_stack_loads_but_for_its_words_and_feed_forward(untied: bool) -> None:
    theirs = published(untie_r=untied)
    stack = TransformerXL(2, 2, 6, 4, bias=False)
    report = stack.load_state_dict(theirs.state_dict(), strict=False)
    assert not report.missing_keys
    assert all("word_emb" in name or "pos_ff" in name for name in report.unexpected_keys)
    for layer, published_layer in zip(stack.layers, theirs.layers, strict=True):
        assert torch.equal(layer.u, published_layer.dec_attn.r_w_bias)


def test_a_published_layer_computes_what_ours_does_with_its_memory() -> None:
    theirs = published()
    attention, ours = theirs.layers[0].dec_attn, TransformerXLLayer(2, 6, bias=False).eval()
    ours.load_state_dict(attention.state_dict())
    draw = torch.Generator().manual_seed(3)
    x, mem = (torch.randn(length, 2, 6, generator=draw) for length in (4, 3))
    distances = torch.arange(6.0, -1.0, -1.0)
    position = theirs.pos_emb(distances)
    hidden = torch.ones(4, 7, dtype=torch.bool).triu(4)
    expected = attention(x, position, attn_mask=hidden[..., None], mems=mem)[0]
    torch.testing.assert_close(position[:, 0], sinusoidal_positions(7, 6))
    torch.testing.assert_close(ours(x, position[:, 0], mem), expected)
