"""
How modules begin: sizes that are refused, what they say of themselves, the meta device, a reset,
and on which device what is given no tensor comes to stand.
"""

import copy
import pickle
from collections.abc import Callable
from inspect import signature
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnverify.torch_impl import alibi, masks, memory, relative
from attnverify.torch_impl.modules import (
    AdditiveAttention,
    AlibiMultiHeadAttention,
    MultiHeadAttention,
    MultiHeadSelfAttention,
    RelativeMultiHeadAttention,
    ScaledDotProductAttention,
    SelfAttention,
    TransformerXL,
    TransformerXLLayer,
)

pytestmark = pytest.mark.filterwarnings("error")

MODULES: dict[str, Callable[..., nn.Module]] = {
    "AdditiveAttention": lambda **o: AdditiveAttention(3, 5, 7, **o),
    "SelfAttention": lambda **o: SelfAttention(6, 3, 5, **o),
    "MultiHeadAttention": lambda **o: MultiHeadAttention(6, 2, **o),
    "MultiHeadSelfAttention": lambda **o: MultiHeadSelfAttention(6, 2, **o),
    "RelativeMultiHeadAttention": lambda **o: RelativeMultiHeadAttention(2, 6, P=8, **o),
    "AlibiMultiHeadAttention": lambda **o: AlibiMultiHeadAttention(2, 6, **o),
    "TransformerXLLayer": lambda **o: TransformerXLLayer(2, 6, **o),
    "TransformerXL": lambda **o: TransformerXL(2, 2, 6, 4, **o),
}
each_module = pytest.mark.parametrize("name", MODULES)


def alike(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.state_dict().items(), other.state_dict().items(), strict=True)
    return all(a == b and torch.equal(x, y) for (a, x), (b, y) in pairs)


def seeded(make: Callable[[], Any]) -> Any:
    torch.manual_seed(3)
    return make()


@each_module
def test_a_module_from_the_meta_device_begins_like_any_other(name: str) -> None:
    module = MODULES[name](device="meta")
    assert all(x.is_meta for x in module.parameters())
    module.to_empty(device="cpu")
    for x in module.parameters():
        x.data.fill_(torch.nan)
    seeded(module.reset_parameters)
    assert all(x.isfinite().all() for x in module.parameters())
    assert seeded(lambda: alike(reset(MODULES[name]()), module))


def reset(module: nn.Module) -> nn.Module:
    seeded(module.reset_parameters)
    return module


@each_module
def test_a_module_names_the_device_and_dtype_that_skip_init_asks_for(name: str) -> None:
    """As ``torch.nn.utils.skip_init`` looks for them: in the signature of the class."""
    parameters = signature(type(MODULES[name]())).parameters
    assert {"device", "dtype"} <= set(parameters)
    assert all(x.kind is not x.VAR_POSITIONAL for x in parameters.values())


def test_skip_init_builds_a_module_without_a_beginning() -> None:
    module = nn.utils.skip_init(MultiHeadSelfAttention, 6, 2, dtype=torch.float64)
    assert {x.shape[0] for x in module.parameters()} == {6} and module.embed_dim == 6
    assert all(x.dtype == torch.float64 and x.is_cpu for x in module.parameters())


@each_module
def test_a_reset_forgets_everything(name: str) -> None:
    module, other = MODULES[name](), MODULES[name]()
    with torch.no_grad():
        for x in module.parameters():
            x.add_(1)
    assert not alike(module, other)
    assert alike(reset(module), reset(other))


@each_module
def test_entries_begin_within_the_range_of_a_linear_layer(name: str) -> None:
    for key, x in MODULES[name]().named_parameters():
        if x.ndim == 2 and not key.endswith((".u", ".v", "u", "v", "bias")):
            assert 0 < x.abs().max() <= x.shape[1] ** -0.5


@each_module
def test_a_module_survives_copies_and_pickles(name: str) -> None:
    module = MODULES[name]()
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert alike(module, other) and repr(other) == repr(module)
        other.load_state_dict(module.state_dict())


@each_module
def test_a_module_says_its_sizes_and_how_it_computes(name: str) -> None:
    text = repr(MODULES[name](implementation="eager"))
    assert text.startswith(f"{name}(") and "implementation='eager'" in text
    assert not text.startswith(f"{name}()") and "dropout=" in text


def test_scaled_dot_product_attention_says_its_dropout() -> None:
    assert "dropout=0.25" in repr(ScaledDotProductAttention(0.25))


@pytest.mark.parametrize(
    ("argument", "build"),
    [
        ("embed_dim", lambda: MultiHeadAttention(0, 1)),
        ("num_heads", lambda: MultiHeadAttention(6, 4)),
        ("heads", lambda: RelativeMultiHeadAttention(4, 6)),
        ("P", lambda: RelativeMultiHeadAttention(2, 6, P=0)),
        ("align", lambda: RelativeMultiHeadAttention(2, 6, align="middle")),
        ("hidden_size", lambda: AdditiveAttention(3, 5, 0)),
        ("value_size", lambda: SelfAttention(6, 3, 2.0)),
        ("n_layer", lambda: TransformerXL(0, 2, 6, 4)),
        ("mem_len", lambda: TransformerXL(1, 2, 6, -1)),
        ("eps", lambda: TransformerXLLayer(2, 6, eps=-1.0)),
        ("dropout", lambda: MultiHeadAttention(6, 2, 1.0)),
        ("implementation", lambda: SelfAttention(6, 3, 5, implementation="cuda")),
        ("drouput", lambda: AdditiveAttention(3, 5, 7, drouput=0.1)),
    ],
)
def test_a_size_that_cannot_be_is_refused_at_once(argument: str, build: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match=rf"^{argument}: wanted .+, got "):
        build()


def test_a_keyword_that_nobody_knows_is_refused() -> None:
    with pytest.raises(TypeError, match="hidden"):
        AdditiveAttention(3, 5, 7, hidden=3)


@pytest.mark.parametrize("share", [0, 0.5, torch.tensor(0.5).numpy()[()]])
def test_a_share_may_be_any_number(share: Any) -> None:
    assert MultiHeadAttention(6, 2, share).dropout == float(share)


# Devices

WITHOUT_TENSORS: dict[str, Callable[..., Tensor]] = {
    "causal_mask": lambda **o: masks.causal_mask(2, 3, **o),
    "merge_masks": lambda **o: masks.merge_masks(None, None, 2, **o),
    "sinusoidal_positions": lambda **o: relative.sinusoidal_positions(3, 4, **o),
    "get_slopes": lambda **o: alibi.get_slopes(6, **o),
    "init_mems": lambda **o: memory.init_mems(1, 2, 3, 4, **o)[0],
}
each_without_tensors = pytest.mark.parametrize("name", WITHOUT_TENSORS)


@each_without_tensors
def test_what_is_given_no_tensor_stands_on_the_default_device(name: str) -> None:
    make = WITHOUT_TENSORS[name]
    assert make().device.type == torch.get_default_device().type == "cpu"
    with torch.device("meta"):
        assert make().device.type == "meta"
        assert make(device="cpu").device.type == "cpu"


@each_without_tensors
def test_a_default_device_that_is_set_is_honoured(name: str) -> None:
    torch.set_default_device("meta")
    try:
        assert WITHOUT_TENSORS[name]().device.type == "meta"
    finally:
        torch.set_default_device(None)


@each_module
def test_a_module_stands_on_the_default_device(name: str) -> None:
    with torch.device("meta"):
        module = MODULES[name]()
    assert all(x.is_meta for x in module.parameters())


def test_a_tensor_takes_its_device_with_it() -> None:
    """Whatever the default is: what a function makes stands beside what it was given."""
    x = torch.ones(1, 2, 3, 4)
    with torch.device("meta"):
        assert alibi.alibi_attention(x, x, x).device.type == "cpu"
        assert relative.transformer_xl_attention(x, x, x, x[0], x[0, :, 0], x[0, :, 0]).sum() == 24
        assert alibi.get_alibi_biases(2, torch.ones(2, 2, dtype=torch.bool, device="cpu")).is_cpu
    module = TransformerXL(1, 2, 6, 4)
    with torch.device("meta"):
        assert module.init_mems(2)[0].is_cpu
