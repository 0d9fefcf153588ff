"""
Attention on a CPU in blocks that stay in a cache: right however the blocks fall, and without a
tensor of all pairs.

The differential suite judges these implementations as they are. Few of its cases have more than one
block, so here the blocks are small.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from attnverify.backends.implementation import Implementation
from attnverify.backends.loader import load
from attnverify.inputs.recipe import Recipe
from attnverify.inputs.sampling import draw_recipes
from attnverify.judge.case import case_of
from attnverify.judge.errors import Disagreement
from attnverify.judge.judging import judge
from attnverify.torch_impl.alibi import alibi_attention_eager
from attnverify.torch_impl.attention import additive_attention, scaled_dot_product_attention_eager
from attnverify.torch_impl.blocked import additive_operators, tiles
from attnverify.torch_impl.blocked.additive import additive_attention_blocked
from attnverify.torch_impl.blocked.attention import (
    alibi_attention_blocked,
    learned_relative_attention_blocked,
    scaled_dot_product_attention_blocked,
    transformer_xl_attention_blocked,
)
from attnverify.torch_impl.blocked.tiles import below, blocks, exponentials
from tests.support.memory_passes import Passes
from tests.support.roundings import count_roundings

BLOCKED = {x.name: x for x in load("torch_impl").implementations if x.name.endswith("_blocked")}
EXTENTS = [(3, 40), (2, 150), (64, 2000)]
"""
Rows of a block and its numbers: one head and few queries; some heads; several batch entries. The
last is left at more than one block.
"""

B, H, N, M, D, E = 2, 3, 7, 9, 4, 5


def cut(monkeypatch: pytest.MonkeyPatch, rows: int, elements: int) -> None:
    monkeypatch.setattr(tiles, "ROWS", rows)
    monkeypatch.setattr(tiles, "ELEMENTS", elements)
    monkeypatch.setattr(additive_operators, "ELEMENTS", elements)


def stays_within_bounds(implementation: Implementation, cases: int = 12) -> bool:
    """
    Whether the first draws of the differential suite are as the specification says, with NaN in
    hidden slots and without.
    """
    try:
        for kind in ("any", "nan"):
            for recipe in draw_recipes(implementation.operation.name, kind, cases, 0):
                judge(implementation, case_of(recipe, "float64"))
    except Disagreement:
        return False
    return True


def normal(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=dtype)


def inputs(name: str, N: int = N, M: int = M, H: int = H) -> list[Any]:
    """Arguments of an attention, all of which need a gradient."""
    heads = [normal(B, H, N, D), normal(B, H, M, D), normal(B, H, M, E)]
    P = max(N, M)
    rest = {
        "scaled_dot_product_attention": [],
        "alibi_attention": [],
        "transformer_xl_attention": [normal(H, M, D), normal(H, D), normal(H, D) + 1],
        "learned_relative_attention": [normal(2 * P, H, D), normal(2 * P, H), normal(H, D), "end"],
        "additive_attention": [normal(E, D), normal(E, D) + 1, normal(E)],
    }[name]
    given = [*([x[:, 0] for x in heads] if name == "additive_attention" else heads), *rest]
    return [x.requires_grad_() if isinstance(x, Tensor) else x for x in given]


def both_ways(attend: Callable[..., Tensor], given: list[Any]) -> list[Tensor]:
    output = attend(*given)
    return [output, *torch.autograd.grad(output.sum(), [x for x in given if isinstance(x, Tensor)])]


ATTENTIONS = {
    "scaled_dot_product_attention": scaled_dot_product_attention_blocked,
    "alibi_attention": alibi_attention_blocked,
    "transformer_xl_attention": transformer_xl_attention_blocked,
    "learned_relative_attention": learned_relative_attention_blocked,
    "additive_attention": additive_attention_blocked,
}
each_attention = pytest.mark.parametrize("name", ATTENTIONS)


@pytest.mark.parametrize("extent", EXTENTS, ids=str)
@pytest.mark.parametrize("name", BLOCKED)
def test_the_specification_holds_however_the_blocks_fall(
    name: str, extent: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    cut(monkeypatch, *extent)
    assert stays_within_bounds(BLOCKED[name])


@pytest.mark.parametrize("N, M", [(7, 9), (9, 7), (1, 1)])
@pytest.mark.parametrize("extent", [*EXTENTS, (64, 2**18)], ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_blocks_cover_every_pair_once(
    N: int, M: int, extent: tuple[int, int], causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut(monkeypatch, *extent)
    times = torch.zeros(B, H, N, M, dtype=torch.int)
    for block in blocks(B, H, N, M, causal):
        times[block.at_rows][..., : block.keys] += 1
    wanted = torch.ones(N, M).tril(M - N) > 0 if causal else torch.ones(N, M) > 0
    assert times.max() == 1 and bool((times > 0)[:, :, wanted].all())


# Each step of a block is needed


def spoilt(name: str) -> Callable[..., Any]:
    """A step of the blocks that has gone wrong."""
    true = getattr(tiles, name)
    return {
        "masked": lambda S, mask, block, causal: true(S, mask, block, False),
        "add_product": lambda total, a, b: true(total.zero_(), a, b),
        "part": lambda x, block: true(
            x, block._replace(rows=slice(0, block.rows.stop - block.rows.start))
        ),
        "present": lambda mask, N, M, *rest: tuple(
            torch.ones(1, 1, size, 1, dtype=torch.bool) for size in (N, M, 1)
        ),
    }[name]


SPOILT = {
    "masked": ("alibi_attention_blocked", "blocked.operators"),
    "add_product": ("scaled_dot_product_attention_grad_blocked", "blocked.tiles"),
    "part": ("scaled_dot_product_attention_blocked", "blocked.tiles"),
    "present": ("learned_relative_attention_blocked", "blocked.attention"),
}


@pytest.mark.parametrize("step", SPOILT)
def test_a_step_gone_wrong_is_noticed(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cut(monkeypatch, 2, 150)
    name, module = SPOILT[step]
    monkeypatch.setattr(f"attnverify.torch_impl.{module}.{step}", spoilt(step))
    assert not stays_within_bounds(BLOCKED[name], cases=40)


# Memory


def largest(run: Callable[[], Any]) -> int:
    """The numbers of the largest tensor that any operation writes."""
    with Passes() as counted:
        run()
    return max(counted.written)


@each_attention
def test_no_tensor_of_all_pairs_is_made_either_way(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut(monkeypatch, 8, 2**10)
    given = inputs(name, 100, 100, 2)
    assert largest(lambda: both_ways(ATTENTIONS[name], given)) < 100 * 100 / 2


def test_a_tensor_of_all_pairs_would_be_noticed() -> None:
    for name, eager in (
        ("scaled_dot_product_attention", scaled_dot_product_attention_eager),
        ("additive_attention", additive_attention),
    ):
        given = inputs(name, 100, 100, 2)
        output = eager(*given)
        assert largest(lambda eager=eager, given=given: eager(*given)) >= 100 * 100
        assert largest(lambda output=output: output.sum().backward()) >= 100 * 100


# Numbers


@each_attention
def test_nothing_that_is_given_or_kept_changes(name: str) -> None:
    given = inputs(name)
    before = [x.detach().clone() if isinstance(x, Tensor) else x for x in given]
    output = ATTENTIONS[name](*given)
    needed = [x for x in given if isinstance(x, Tensor)]
    first = torch.autograd.grad(output.sum(), needed, retain_graph=True)
    again = torch.autograd.grad(output.sum(), needed)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert all(
        torch.equal(a, b) for a, b in zip(given, before, strict=True) if isinstance(a, Tensor)
    )


@each_attention
def test_half_types_are_computed_in_float32_and_rounded_once(name: str) -> None:
    given = [x.detach().to(torch.bfloat16) if isinstance(x, Tensor) else x for x in inputs(name)]
    wide = [x.float() if isinstance(x, Tensor) else x for x in given]
    assert torch.equal(ATTENTIONS[name](*given), ATTENTIONS[name](*wide).to(torch.bfloat16))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_weight_is_subnormal(dtype: torch.dtype) -> None:
    tiny = torch.finfo(dtype).tiny
    S = torch.linspace(-1.1, 0, 4000, dtype=dtype) * -torch.tensor(tiny, dtype=dtype).log()
    weights = below(S.clone(), torch.zeros(1, dtype=dtype))
    assert bool(((weights == 0) | (weights >= tiny)).all()) and 0 < int((weights == 0).sum()) < 1000
    relative = 1e-4 if dtype == torch.float32 else 1e-12
    expected = S.exp().where(S.exp() >= tiny, 0)
    assert bool(((weights - expected).abs() <= relative * expected + 2 * tiny).all())


def test_a_row_without_keys_has_no_weights_and_the_sum_one() -> None:
    S = torch.full((2, 3), -torch.inf)
    top, norm = exponentials(S)
    assert bool(top.isfinite().all()) and norm.tolist() == [[1.0], [1.0]] and not S.any()


@pytest.mark.parametrize("slopes", [1, 12])
def test_far_keys_of_alibi_are_as_eager_has_them(slopes: int) -> None:
    """Distances at which weights underflow."""
    given = [normal(1, slopes, 300, 4) for _ in range(3)]
    assert count_roundings(alibi_attention_blocked(*given), alibi_attention_eager(*given)) < 64


@pytest.mark.parametrize("size", [42.9, 44.0, 60.0, float("nan")])
def test_terms_beyond_an_exponential_are_added_first(size: float) -> None:
    """Terms of opposite signs whose sum is small, where a product of exponentials is no number."""
    query, key = (torch.full((1, 1, 3, 4), x) for x in (size, 0.5 - size))
    at = additive_operators.Terms(query, key, key[..., :2], None, None, torch.ones(4))
    (block,) = additive_operators.blocks_of(at)
    room = additive_operators.three_rooms(at)[1]
    ((_, found),) = additive_operators.hidden(at, block, room)
    wanted = torch.tanh(query[0, 0, :, None] + key[0, 0])
    if size <= additive_operators.SMALL:
        assert not torch.equal(found, wanted) and ((found - wanted).abs() <= 1e-5 * wanted).all()
    else:
        assert torch.equal(found, wanted) or bool(found.isnan().all() and wanted.isnan().all())


def test_a_key_that_is_no_number_does_not_hide_a_large_one() -> None:
    query, key = torch.full((1, 1, 2, 4), -60.0), torch.full((1, 1, 2, 4), 60.5)
    key[0, 0, 0] = torch.nan
    at = additive_operators.Terms(query, key, key[..., :2], None, None, torch.ones(4))
    (block,) = additive_operators.blocks_of(at)
    ((_, found),) = additive_operators.hidden(at, block, additive_operators.three_rooms(at)[1])
    assert torch.equal(found[:, 1], torch.tanh(query[0, 0] + key[0, 0, 1]))
    assert found[:, 0].isnan().all()


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_a_row_of_infinity_with_a_weight_of_zero_reaches_no_other_row(dtype: str) -> None:
    """The score is minus infinity and the output finite; the row is a factor of the gradient."""
    name, sizes = "transformer_xl_attention_grad", dict.fromkeys("BDEH", 1) | {"N": 2, "M": 2}
    values = {"family": "normal", "seed": 6282}
    recipe = Recipe(name, sizes, values, poison="inf for some")
    judge(BLOCKED[f"{name}_blocked"], case_of(recipe, dtype))
