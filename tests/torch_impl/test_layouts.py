"""
The layouts of the modules: those that their sources print, and refusals in the words of the layout
in which the arguments came.
"""

import re
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
    ScaledDotProductAttention,
    SelfAttention,
    TransformerXL,
    TransformerXLLayer,
)

pytestmark = pytest.mark.filterwarnings("error")


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


# Seed 001 as printed: batch first in its single-head classes, sequence first in multi-head


class PrintedSelfAttention(nn.Module):
    """Seed 001, section 3, with its own ScaledDotProductAttention."""

    def __init__(self, embed_dim: int, key_size: int, value_size: int) -> None:
        super().__init__()
        self.W_q = nn.Linear(embed_dim, key_size, bias=False)
        self.W_k = nn.Linear(embed_dim, key_size, bias=False)
        self.W_v = nn.Linear(embed_dim, value_size, bias=False)

    def forward(self, X: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        query, key, value = self.W_q(X), self.W_k(X), self.W_v(X)
        scores = query @ key.transpose(1, 2) / query.size(2) ** 0.5
        if attn_mask is not None:
            scores = scores.masked_fill(attn_mask, float("-inf"))
        return torch.softmax(scores, dim=-1) @ value


@pytest.mark.parametrize("hides", [False, True])
def test_self_attention_takes_what_seed_001_prints(hides: bool) -> None:
    printed, ours = PrintedSelfAttention(6, 3, 5), SelfAttention(6, 3, 5)
    ours.load_state_dict(printed.state_dict())
    x = normal(2, 4, 6)
    mask = torch.ones(2, 4, 4, dtype=torch.bool).triu(1) if hides else None
    torch.testing.assert_close(ours(x, mask), printed(x, mask))


def test_self_attention_may_be_told_to_take_the_sequence_first() -> None:
    first, second = SelfAttention(6, 3, 5), SelfAttention(6, 3, 5, batch_first=False)
    second.load_state_dict(first.state_dict())
    x = normal(2, 4, 6)
    torch.testing.assert_close(second(x.transpose(0, 1)).transpose(0, 1), first(x))


SEQUENCE_FIRST: dict[str, Callable[..., nn.Module]] = {
    "MultiHeadAttention": lambda **o: MultiHeadAttention(6, 2, **o),
    "MultiHeadSelfAttention": lambda **o: MultiHeadSelfAttention(6, 2, **o),
    "RelativeMultiHeadAttention": lambda **o: RelativeMultiHeadAttention(2, 6, P=8, **o),
    "AlibiMultiHeadAttention": lambda **o: AlibiMultiHeadAttention(2, 6, **o),
    "TransformerXLLayer": lambda **o: TransformerXLLayer(2, 6, **o),
    "TransformerXL": lambda **o: TransformerXL(2, 2, 6, 4, **o),
}


@pytest.mark.parametrize("name", SEQUENCE_FIRST)
def test_the_others_take_the_sequence_first_unless_told_otherwise(name: str) -> None:
    assert not SEQUENCE_FIRST[name]().batch_first
    assert SEQUENCE_FIRST[name](batch_first=True).batch_first


# Refusals

x, long = normal(4, 2, 6), normal(5, 2, 6)
seen = torch.ones(4, 4, dtype=torch.bool)

WRONG: list[tuple[str, str, Callable[[], Any]]] = [
    ("query", "[N B F] with F=6, got (4, 6)", lambda: MultiHeadAttention(6, 2)(x[:, 0], x, x)),
    ("query", "[B N F] with F=6, got (2, 6)", lambda: batch_first(MultiHeadAttention)(x[0], x, x)),
    ("key", "[M B F] with B=2 F=6, got (4, 1, 6)", lambda: heads(key=x[:, :1])),
    ("value", "[M B F] with M=4 B=2 F=6, got (5, 2, 6)", lambda: heads(value=long)),
    ("query", "F=6 and sizes of at least 1, got (4, 0, 6)", lambda: heads(query=x[:, :0])),
    ("x", "F=6 and sizes of at least 1, got (0, 2, 6)", lambda: TransformerXL(2, 2, 6, 4)(x[:0])),
    ("mem", "B=2 F=6, got (0, 2, 5)", lambda: TransformerXLLayer(2, 6)(x, x, x[:0, :, :5])),
    ("query", "[N B F] with F=8, got (4, 2, 6)", lambda: MultiHeadAttention(8, 2)(x, x, x)),
    ("x", "[N B F] with F=6, got (4, 6)", lambda: MultiHeadSelfAttention(6, 2)(x[:, 0])),
    ("attn_mask", "[N M] or [B*H N M]", lambda: MultiHeadAttention(6, 2)(x, x, x, seen[:3])),
    ("x", "[B N F] with F=6, got (4, 6)", lambda: SelfAttention(6, 3, 5)(x[:, 0])),
    ("x", "float tensor [B N F], got list", lambda: SelfAttention(6, 3, 5)([[1.0]])),
    ("attn_mask", "broadcasts to (4, 2, 2)", lambda: SelfAttention(6, 3, 5)(x, seen)),
    ("query", "float tensor [B N D], got int", lambda: ScaledDotProductAttention()(1, 2, 3)),
    ("key", "[B M D] with B=4 D=6", lambda: ScaledDotProductAttention()(x, x[:1], x)),
    ("attn_mask", "broadcasts to (4, 2, 2)", lambda: ScaledDotProductAttention()(x, x, x, seen)),
    ("key", "[B M K] with B=4 K=5", lambda: AdditiveAttention(6, 5, 7)(x, x, x)),
    ("query", "[B N Q] with Q=3", lambda: AdditiveAttention(3, 6, 7)(x, x, x)),
    ("attn_mask", "broadcasts to (4, 2, 2)", lambda: AdditiveAttention(6, 6, 7)(x, x, x, seen)),
    ("key", "[M B F] with B=2 F=6", lambda: relative(key=x[:, :1])),
    ("mask", "[N M], [N M B] or [N M B H] with N=4 M=4 B=2 H=2", lambda: relative(mask=seen[:3])),
    ("mask", "boolean tensor, got torch.float32", lambda: relative(mask=seen.float())),
    ("mask", "broadcasts to (2, 2, 4, 4)", lambda: relative(True, mask=seen[:3])),
    ("key", "[N B F] with N=4 B=2 F=6", lambda: alibi(key=long)),
    ("mask", "[N N] with N=4, got (3, 4)", lambda: alibi(mask=seen[:3])),
    ("mask", "boolean tensor [N M], got NoneType", lambda: alibi(mask=None)),
    ("mem", "[S B F] with B=2 F=6", lambda: TransformerXLLayer(2, 6)(x, x[:, 0], x[:, :1])),
    ("position", "[M F] with M=8 F=6", lambda: TransformerXLLayer(2, 6)(x, x[:, 0], x)),
    ("mask", "N=4 M=4", lambda: TransformerXLLayer(2, 6)(x, x[:, 0], mask=seen[:3])),
    ("x", "[N B F] with F=6", lambda: TransformerXL(2, 2, 6, 4)(x[0])),
    ("mems", "a list", lambda: TransformerXL(2, 2, 6, 4)(x, x)),
    ("mems", "each of the 2 layers, got 1", lambda: TransformerXL(2, 2, 6, 4)(x, [x])),
    ("mems.1", "[S B F] with S=4 B=2 F=6", lambda: TransformerXL(2, 2, 6, 4)(x, [x, long])),
]  # fmt: skip


def batch_first(kind: Callable[..., nn.Module]) -> nn.Module:
    return kind(6, 2, batch_first=True)


def heads(**changed: Any) -> Any:
    return MultiHeadAttention(6, 2)(**{"query": x, "key": x, "value": x} | changed)


def relative(turned: bool = False, **changed: Any) -> Tensor:
    module = RelativeMultiHeadAttention(2, 6, P=8, batch_first=turned)
    y = x.transpose(0, 1) if turned else x
    return module(**{"query": y, "key": y, "value": y} | changed)


def alibi(**changed: Any) -> Tensor:
    given = {"query": x, "key": x, "value": x, "mask": seen}
    return AlibiMultiHeadAttention(2, 6)(**given | changed)


@pytest.mark.parametrize(
    ("argument", "words", "call"), WRONG, ids=[f"{a}-{i}" for i, (a, _, _) in enumerate(WRONG)]
)
def test_a_wrong_shape_is_refused_in_the_words_of_its_layout(
    argument: str, words: str, call: Callable[[], Any]
) -> None:
    with pytest.raises(ValueError, match=rf"^{argument}: wanted .*{re.escape(words)}"):
        call()


# Masks of labml


@pytest.mark.parametrize("axes", [2, 3, 4])
def test_labmls_masks_may_leave_out_or_share_what_stands_behind(axes: int) -> None:
    full = normal(4, 4, 2, 2).gt(-1)
    full[:, 0] = True
    one = full[(..., *(0 for _ in range(4 - axes)))]
    alone = one[(..., *(None for _ in range(4 - axes)))].expand(4, 4, 2, 2)
    module = RelativeMultiHeadAttention(2, 6, dropout_prob=0.0, P=8)
    given = {"query": x, "key": x, "value": x}
    torch.testing.assert_close(module(**given, mask=one), module(**given, mask=alone))
    if axes < 4:
        short = one[(..., *(None for _ in range(4 - axes)))]
        torch.testing.assert_close(module(**given, mask=short), module(**given, mask=alone))
