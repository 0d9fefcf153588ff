"""
State dicts with other names: PyTorch's, the sources', Transformer-XL's; loaded as they are, and
what has no place here is reported.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnverify.torch_impl.modules import (
    AdditiveAttention,
    AlibiMultiHeadAttention,
    MultiHeadAttention,
    MultiHeadSelfAttention,
    RelativeMultiHeadAttention,
    SelfAttention,
    TransformerXL,
    TransformerXLLayer,
)
from tests.support.published_state_dicts import transfo_xl

pytestmark = pytest.mark.filterwarnings("error")


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


# PyTorch's joined projections


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("inside", [False, True], ids=["alone", "inside another module"])
def test_pytorchs_own_attention_loads_and_computes_the_same(bias: bool, inside: bool) -> None:
    theirs, ours = (
        nn.MultiheadAttention(6, 2, bias=bias, batch_first=True),
        MultiHeadAttention(6, 2, bias=bias, batch_first=True),
    )
    for x in theirs.parameters():
        x.data.copy_(normal(*x.shape))
    if inside:
        nn.ModuleDict({"attn": ours}).load_state_dict(nn.ModuleDict({"attn": theirs}).state_dict())
    else:
        ours.load_state_dict(theirs.state_dict())
    query, key, hidden = normal(2, 3, 6), normal(2, 5, 6), normal(2, 5) > 1
    output, weights = ours(query, key, key, key_padding_mask=hidden)
    expected, theirs_weights = theirs(
        query, key, key, key_padding_mask=hidden, average_attn_weights=False
    )
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(weights, theirs_weights)


def test_the_three_projections_of_pytorch_load_where_they_are_square() -> None:
    ours, three = MultiHeadAttention(6, 2), nn.MultiheadAttention(6, 2, kdim=6, vdim=6)
    state = three.state_dict()
    weights = state.pop("in_proj_weight").chunk(3)
    state |= {f"{name}_proj_weight": x for name, x in zip("qkv", weights, strict=True)}
    ours.load_state_dict(state)
    assert torch.equal(ours.k_proj.weight, weights[1])


def test_what_pytorchs_attention_has_besides_is_reported() -> None:
    state = nn.MultiheadAttention(6, 2, add_bias_kv=True).state_dict()
    with pytest.raises(RuntimeError, match="bias_k"):
        MultiHeadAttention(6, 2).load_state_dict(state)


def test_a_bias_that_misses_is_reported() -> None:
    state = nn.MultiheadAttention(6, 2, bias=False).state_dict()
    with pytest.raises(RuntimeError, match=r"q_proj\.bias"):
        MultiHeadAttention(6, 2).load_state_dict(state)


def test_a_joined_projection_of_another_width_is_reported() -> None:
    state = nn.MultiheadAttention(8, 2).state_dict()
    with pytest.raises(RuntimeError, match="size mismatch"):
        MultiHeadAttention(6, 2).load_state_dict(state)


# Seed 001


class PrintedAdditiveAttention(nn.Module):
    """Seed 001, section 2.3, but for its ``squeeze`` without an axis."""

    def __init__(self, query_size: int, key_size: int, hidden_size: int) -> None:
        super().__init__()
        self.W_q = nn.Linear(query_size, hidden_size, bias=False)
        self.W_k = nn.Linear(key_size, hidden_size, bias=False)
        self.W_v = nn.Linear(hidden_size, 1, bias=False)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        query, key = self.W_q(query).unsqueeze(2), self.W_k(key).unsqueeze(1)
        scores = self.W_v(torch.tanh(query + key)).squeeze(-1)
        return torch.softmax(scores, dim=-1) @ value


def test_the_additive_attention_of_seed_001_loads_and_computes_the_same() -> None:
    printed, ours = PrintedAdditiveAttention(3, 5, 7), AdditiveAttention(3, 5, 7)
    ours.load_state_dict(printed.state_dict())
    given = normal(2, 4, 3), normal(2, 6, 5), normal(2, 6, 8)
    torch.testing.assert_close(ours(*given), printed(*given))


class PrintedSelfAttention(nn.Module):
    """Seed 001, section 4.4: the attention is a submodule."""

    def __init__(self, mha: nn.Module) -> None:
        super().__init__()
        self.mha = mha

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.mha(x, x, x)


def test_the_multi_head_self_attention_of_seed_001_loads_and_computes_the_same() -> None:
    printed, ours = PrintedSelfAttention(MultiHeadAttention(6, 2)), MultiHeadSelfAttention(6, 2)
    ours.load_state_dict(printed.state_dict())
    x = normal(4, 2, 6)
    torch.testing.assert_close(ours(x), printed(x))


# labml's own classes, where its package is installed


def labml(module: str) -> Any:
    return pytest.importorskip(
        f"labml_nn.transformers.{module}", reason="labml-nn is not installed: pip install labml-nn"
    )


def test_labmls_relative_attention_loads_and_computes_the_same() -> None:
    theirs = labml("xl.relative_mha").RelativeMultiHeadAttention(2, 6, dropout_prob=0.0)
    for x in theirs.parameters():
        x.data.copy_(normal(*x.shape))
    ours = RelativeMultiHeadAttention(2, 6, dropout_prob=0.0, align="end")
    ours.load_state_dict(theirs.state_dict())
    query, key = normal(3, 2, 6), normal(5, 2, 6)
    mask = torch.ones(3, 5, 2, dtype=torch.bool).tril(2)
    found = ours(query=query, key=key, value=key, mask=mask[..., None])
    expected = theirs(query=query, key=key, value=key, mask=mask)
    torch.testing.assert_close(found, expected)


def test_labmls_alibi_attention_loads_and_computes_the_same() -> None:
    theirs = labml("alibi").AlibiMultiHeadAttention(2, 6, dropout_prob=0.0)
    for x in theirs.parameters():
        x.data.copy_(normal(*x.shape))
    ours = AlibiMultiHeadAttention(2, 6, dropout_prob=0.0)
    ours.load_state_dict(theirs.state_dict())
    x, mask = normal(4, 2, 6), torch.ones(4, 4, dtype=torch.bool).tril()
    found = ours(query=x, key=x, value=x, mask=mask)
    torch.testing.assert_close(found, theirs(query=x, key=x, value=x, mask=mask[..., None]))


# Transformer-XL


def test_a_published_layer_of_transformer_xl_loads() -> None:
    state = transfo_xl(layers=1, heads=2, width=6)
    prefix = "transformer.layers.0.dec_attn."
    layer = TransformerXLLayer(2, 6, bias=False)
    layer.load_state_dict(
        {name.removeprefix(prefix): x for name, x in state.items() if name.startswith(prefix)}
    )
    assert torch.equal(layer.u, state[f"{prefix}r_w_bias"])
    assert torch.equal(layer.v, state[f"{prefix}r_r_bias"])
    assert torch.equal(layer.qkv_net.weight, state[f"{prefix}qkv_net.weight"])


def test_a_published_stack_loads_but_for_what_it_has_besides() -> None:
    state = {
        name.removeprefix("transformer."): x
        for name, x in transfo_xl(layers=2, heads=2, width=6).items()
    }
    stack = TransformerXL(2, 2, 6, 4, bias=False)
    report = stack.load_state_dict(state, strict=False)
    assert not report.missing_keys
    assert {name.split(".")[0] for name in report.unexpected_keys} == {"word_emb", "layers"}
    assert all("pos_ff" in name for name in report.unexpected_keys if name.startswith("layers"))
    assert torch.equal(stack.layers[1].v, state["layers.1.dec_attn.r_r_bias"])
    with pytest.raises(RuntimeError, match=r"pos_ff\.CoreNet"):
        stack.load_state_dict(state)


def test_a_published_stack_loads_its_feed_forward_where_ours_has_one() -> None:
    state = {
        name.removeprefix("transformer."): x
        for name, x in transfo_xl(layers=2, heads=2, width=6).items()
    }
    stack = TransformerXL(2, 2, 6, 4, bias=False, feed_forward=12)
    report = stack.load_state_dict(state, strict=False)
    assert not report.missing_keys
    assert all("word_emb" in name for name in report.unexpected_keys)
    assert torch.equal(stack.layers[1].ff_out.weight, state["layers.1.pos_ff.CoreNet.3.weight"])


def test_biases_that_all_layers_share_come_to_all_of_them() -> None:
    state = transfo_xl(layers=2, heads=2, width=6, untied=False)
    inner = {
        name.removeprefix("transformer."): x
        for name, x in state.items()
        if "dec_attn" in name or name.endswith(("r_w_bias", "r_r_bias"))
    }
    stack = TransformerXL(2, 2, 6, 4, bias=False)
    stack.load_state_dict(inner)
    assert all(torch.equal(layer.u, inner["r_w_bias"]) for layer in stack.layers)


def test_seed_003s_name_of_the_joined_projection_loads() -> None:
    """Named query-value-key, and split as query, key, value."""
    layer, other = TransformerXLLayer(2, 6), TransformerXLLayer(2, 6)
    names = {"qkv_net": "qvk_net", "u": "r_w_bias", "v": "r_r_bias"}
    other.load_state_dict(
        {
            ".".join([names.get(head, head), *rest]): x
            for name, x in layer.state_dict().items()
            for head, *rest in [name.split(".")]
        }
    )
    assert torch.equal(other.qkv_net.weight, layer.qkv_net.weight)
    assert torch.equal(other.u, layer.u)


# Round trips

MODULES: dict[str, Callable[[], nn.Module]] = {
    "additive": lambda: AdditiveAttention(3, 5, 7),
    "self": lambda: SelfAttention(6, 3, 5),
    "multi head": lambda: MultiHeadAttention(6, 2),
    "multi head self": lambda: MultiHeadSelfAttention(6, 2),
    "layer": lambda: TransformerXLLayer(2, 6),
    "stack": lambda: TransformerXL(2, 2, 6, 4),
}


@pytest.mark.parametrize("name", MODULES)
def test_our_own_names_load_and_are_the_only_ones_saved(name: str) -> None:
    module, other = MODULES[name](), MODULES[name]()
    state = module.state_dict()
    other.load_state_dict(state)
    assert list(state) == [key for key, _ in module.named_parameters()]
    assert all(torch.equal(x, other.state_dict()[key]) for key, x in state.items())


@pytest.mark.parametrize("name", MODULES)
def test_a_name_that_nobody_knows_is_reported(name: str) -> None:
    module = MODULES[name]()
    with pytest.raises(RuntimeError, match="Unexpected key"):
        module.load_state_dict(module.state_dict() | {"W_z.weight": torch.ones(1)})


@pytest.mark.parametrize("name", MODULES)
def test_the_state_dict_that_is_given_stays_as_it_is(name: str) -> None:
    theirs = {
        "additive": PrintedAdditiveAttention(3, 5, 7),
        "multi head": nn.MultiheadAttention(6, 2),
    }.get(name, MODULES[name]())
    state = theirs.state_dict()
    before = list(state)
    MODULES[name]().load_state_dict(state)
    assert list(state) == before
