"""Every module of torch_impl, batch first, with arguments of any length and batch."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

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

F, H = 6, 2

MODULES: dict[str, Callable[..., nn.Module]] = {
    "AdditiveAttention": lambda **o: AdditiveAttention(3, 5, 7, **o),
    "ScaledDotProductAttention": lambda **o: ScaledDotProductAttention(**o),
    "SelfAttention": lambda **o: SelfAttention(F, 3, 5, **o),
    "MultiHeadAttention": lambda **o: MultiHeadAttention(F, H, batch_first=True, **o),
    "MultiHeadSelfAttention": lambda **o: MultiHeadSelfAttention(F, H, batch_first=True, **o),
    "RelativeMultiHeadAttention": lambda dropout=0.0, **o: RelativeMultiHeadAttention(
        H, F, dropout, P=32, batch_first=True, **o
    ),
    "AlibiMultiHeadAttention": lambda dropout=0.0, **o: AlibiMultiHeadAttention(
        H, F, dropout, batch_first=True, **o
    ),
    "TransformerXLLayer": lambda **o: TransformerXLLayer(H, F, batch_first=True, **o),
    "TransformerXL": lambda **o: TransformerXL(2, H, F, mem_len=4, batch_first=True, **o),
}
WITH_WEIGHTS = ("MultiHeadAttention", "MultiHeadSelfAttention")
UNSEEN_BIASES = ("k_proj.bias", "key.linear.bias", "r_net.bias")
"""They add one number to all scores of a row, which the softmax does not see."""


def drawn(name: str, **options: Any) -> nn.Module:
    """A module whose parameters are all drawn: tables of zeros would prove little."""
    module, draw = MODULES[name](**options), torch.Generator().manual_seed(1)
    for x in module.parameters():
        x.data.copy_(torch.randn(x.shape, generator=draw) / 3)
    return module


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def arguments(name: str, length: int = 3, more: int = 2, batch: int = 2) -> dict[str, Any]:
    """The arguments of a call by name: tensors, and lists of them."""
    keys = length + more
    x, key = normal(batch, length, F), normal(batch, keys, F)
    square = torch.ones(length, length, dtype=torch.bool).tril()
    cross = {"query": x, "key": key, "value": key + 1}
    return {
        "AdditiveAttention": {
            "query": normal(batch, length, 3),
            "key": normal(batch, keys, 5),
            "value": normal(batch, keys, 8),
        },
        "ScaledDotProductAttention": cross,
        "SelfAttention": {"x": x},
        "MultiHeadAttention": cross | {"key_padding_mask": normal(batch, keys) > 2},
        "MultiHeadSelfAttention": {"x": x},
        "RelativeMultiHeadAttention": cross,
        "AlibiMultiHeadAttention": {"query": x, "key": x + 1, "value": x, "mask": square},
        "TransformerXLLayer": {
            "x": x,
            "position": normal(keys, F),
            "mem": normal(batch, more, F),
        },
        "TransformerXL": {"x": x, "mems": [normal(batch, 4, F), normal(batch, 4, F) + 1]},
    }[name]


def sizes(name: str, of: Callable[[str], Any]) -> dict[str, Any]:
    """What stands for each axis whose size may be any: ``of("batch")`` and so on."""
    B, N, M = of("batch"), of("length"), of("keys")
    query, keys = {0: B, 1: N}, {0: B, 1: M}
    cross = {"query": query, "key": keys, "value": keys}
    return {
        "AdditiveAttention": cross,
        "ScaledDotProductAttention": cross,
        "SelfAttention": {"x": query},
        "MultiHeadAttention": cross | {"key_padding_mask": keys},
        "MultiHeadSelfAttention": {"x": query},
        "RelativeMultiHeadAttention": cross,
        "AlibiMultiHeadAttention": {
            "query": query,
            "key": query,
            "value": query,
            "mask": {0: N, 1: N},
        },
        "TransformerXLLayer": {"x": query, "position": {0: M}, "mem": {0: B, 1: of("memory")}},
        "TransformerXL": {"x": query, "mems": [{0: B, 1: of("memory")}] * 2},
    }[name]


def first(output: Any) -> Tensor:
    """The output itself, without weights or memories."""
    return output[0] if isinstance(output, tuple) else output


def forward_and_gradients(
    call: Callable[..., Any], module: nn.Module, given: dict[str, Any]
) -> list[Tensor]:
    """The output of a call of the module, and the gradients of a weighted sum of it."""
    output = first(call(**given))
    parameters = list(module.parameters())
    if not parameters:
        return [output]
    loss = (output * normal(*output.shape)).sum()
    return [output, *torch.autograd.grad(loss, parameters, allow_unused=True)]
