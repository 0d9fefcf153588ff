"""
What only moves numbers, in torch_impl: views where the layout allows, one pass where it does not.
By addresses and by bytes.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from attnverify.torch_impl.masks import merge_masks
from attnverify.torch_impl.memory import SlidingMemory, update_mems
from attnverify.torch_impl.relative import learned_relative_score, transformer_xl_score
from attnverify.torch_impl.scores import apart
from attnverify.torch_impl.shifts import columns_read, rel_shift, shift_right, skewed, slanted
from tests.support.memory_passes import Passes

B, H, N, M, D, F = 2, 3, 37, 53, 5, 6


def normal(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def passes(function: Callable[[], Any]) -> Passes:
    with Passes() as counted:
        function()
    return counted


def test_passes_are_counted() -> None:
    x = normal(N, M)
    assert passes(lambda: (x + 1).mul_(2).T).written == [N * M, N * M]


# Shifts


def with_room(zero: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """A buffer with a column of zeros, the first or the last, and the numbers beside it."""
    buffer = torch.zeros(B, H, N, M + 1, dtype=dtype)
    x = buffer[..., 1:] if zero == 0 else buffer[..., :-1]
    return buffer, x.copy_(normal(B, H, N, M))


@pytest.mark.parametrize(("shift", "zero", "first"), [(shift_right, -1, 0), (rel_shift, 0, N)])
def test_in_a_buffer_with_room_for_the_zeros_a_shift_is_a_view(
    shift: Any, zero: int, first: int
) -> None:
    buffer, x = with_room(zero)
    view = slanted(buffer) if shift is shift_right else skewed(buffer, M)
    assert torch.equal(view, shift(x))
    assert view.data_ptr() == buffer.data_ptr() + first * buffer.itemsize and view.stride()[
        -2:
    ] == (M, 1)
    assert not passes(
        lambda: slanted(buffer) if shift is shift_right else skewed(buffer, M)
    ).written


@pytest.mark.parametrize("shift", [shift_right, rel_shift])
def test_without_room_a_shift_is_one_pass(shift: Any) -> None:
    for x in (normal(B, H, N, M), normal(B, N, M, H).permute(0, 3, 1, 2)):
        assert passes(lambda x=x: shift(x)).large(N) == [
            B * H * N,
            B * H * N * (M + 1),
        ]  # the zeros, and the copy


@pytest.mark.parametrize("shift", [shift_right, rel_shift])
def test_a_shift_shares_no_memory_with_its_input(shift: Any) -> None:
    buffer, x = with_room(0 if shift is rel_shift else -1)
    assert shift(x).untyped_storage().data_ptr() != buffer.untyped_storage().data_ptr()


@pytest.mark.parametrize("zero", [0, -1])
def test_the_gradient_of_a_view_is_that_of_the_shift(zero: int) -> None:
    buffer, x = (t.requires_grad_() for t in (with_room(zero)[0], with_room(zero)[1].clone()))
    view, shifted = (
        (skewed(buffer, M), rel_shift(x)) if zero == 0 else (slanted(buffer), shift_right(x))
    )
    weights = normal(B, H, N, M)
    (of_buffer,), (of_x,) = (
        torch.autograd.grad(view, buffer, weights),
        torch.autograd.grad(shifted, x, weights),
    )
    assert torch.equal(of_buffer[..., 1:] if zero == 0 else of_buffer[..., :-1], of_x)


@pytest.mark.parametrize("W", [N + M, M + N + 3])
def test_the_columns_that_visible_pairs_read_are_those_of_the_skewed_view(W: int) -> None:
    visible = torch.zeros(2, N, M, dtype=torch.bool)
    visible[0, 4, 7] = visible[1, 5:7, 7] = visible[1, -1, 0] = True
    column = skewed(torch.arange(W).expand(2, N, W), M)
    expected = [[w in column[each][visible[each]] for w in range(W)] for each in range(2)]
    assert columns_read(visible, W).tolist() == expected


@pytest.mark.parametrize("learned", [False, True])
def test_the_scores_of_relative_attention_shift_for_nothing(learned: bool) -> None:
    q, k, u = normal(B, H, N, D), normal(B, H, M, D), normal(H, D)
    tables = (
        (normal(2 * M, H, D), normal(2 * M, H), u, "end") if learned else (normal(H, M, D), u, u)
    )
    score = learned_relative_score if learned else transformer_xl_score
    width = N + M if learned else M + 1
    products = [B * H * N * M, B * H * N * width, B * H * N * M]  # two products and their sum
    assert sorted(passes(lambda: score(q, k, *tables)).large(B * H * N * M)) == sorted(products)


# Masks

FULL = B * H * N * M
PADDING = torch.arange(M) >= torch.tensor([[M - 3], [M]])


@pytest.mark.parametrize(
    ("attn_mask", "padding", "size"),
    [
        (normal(N, M).gt(0), None, N * M),
        (normal(B * H, N, M).gt(0), None, FULL),
        (normal(N, M).gt(0), PADDING, B * N * M),
        (normal(B * H, N, M).gt(0), PADDING, FULL),
        (normal(N, M), None, N * M),
        (normal(N, M), PADDING, B * N * M),
        (normal(B * H, N, M), PADDING, FULL),
    ],
)
def test_masks_are_merged_in_one_pass(attn_mask: Tensor, padding: Tensor | None, size: int) -> None:
    assert passes(lambda: merge_masks(attn_mask, padding, H)).large(N * M) == [size]


# Products


@pytest.mark.parametrize(("width", "wanted"), [(31, 32), (32, 32), (33, 64)])
def test_rows_of_a_bfloat16_score_are_filled_up_where_a_product_could_read_on(
    width: int, wanted: int
) -> None:
    x = normal(N, width, dtype=torch.bfloat16)
    (filled,) = apart(x)
    assert filled.shape == (N, wanted)
    assert torch.equal(filled, torch.nn.functional.pad(x, (0, wanted - width)))
    assert apart(x.float())[0].shape == x.shape


# Memory


@pytest.mark.parametrize(
    ("S", "length", "mem_len"), [(8, 3, 8), (8, 3, 5), (8, 20, 8), (4, 3, 8), (8, 8, 0)]
)
def test_only_what_stays_is_copied(S: int, length: int, mem_len: int) -> None:
    mem, hid = normal(B, S, F), normal(B, length, F)
    assert passes(lambda: update_mems([hid], [mem], mem_len)).written == [
        B * min(mem_len, S + length) * F
    ]


@pytest.mark.parametrize(
    "lengths", [(3, 3, 3, 3, 3, 3, 3), (1,) * 30, (8, 8, 8), (20, 1, 7, 9), (2, 11, 5)]
)
@pytest.mark.parametrize("S", [0, 3, 8, 12])
def test_a_sliding_memory_is_the_memory(S: int, lengths: tuple[int, ...]) -> None:
    mems = [normal(B, S, F)]
    sliding = SlidingMemory(mems[0], 8)
    mems = [mems[0][:, max(0, S - 8) :]]
    for seed, length in enumerate(lengths):
        hid = normal(B, length, F) + seed
        mems = update_mems([hid], mems, 8)
        assert torch.equal(sliding.update(hid), mems[0])
        assert torch.equal(sliding.mem, mems[0])


def test_a_sliding_memory_stays_where_it_is() -> None:
    sliding = SlidingMemory(normal(B, 8, F), 8)
    assert sliding.buffer.shape[1] == 2 * 8
    buffer, size = sliding.buffer.data_ptr(), sliding.buffer.itemsize
    places = [(sliding.update(normal(B, 2, F)).data_ptr() - buffer) // (F * size) for _ in range(9)]
    assert places == [
        2,
        4,
        6,
        8,
        0,
        2,
        4,
        6,
        8,
    ]  # 16 positions: after four segments of two the memory moves to the front
    counted = passes(lambda: [sliding.update(normal(B, 2, F)) for _ in range(40)])
    moved = sum(numbers // (B * F) for numbers in counted.written if numbers == B * 6 * F)
    assert 0 < moved < 40 * 2  # positions, where copying all but the two would have been 40 * 6


def test_a_sliding_memory_shares_nothing_with_what_comes_and_keeps_no_gradient() -> None:
    mem, hid = normal(B, 8, F), normal(B, 3, F).requires_grad_()
    sliding = SlidingMemory(mem, 8)
    assert not sliding.update(hid).requires_grad
    assert len({x.untyped_storage().data_ptr() for x in (mem, hid, sliding.buffer)}) == 3


def test_a_graph_that_kept_a_view_of_the_memory_is_refused_its_gradient() -> None:
    sliding, weight = SlidingMemory(normal(B, 8, F), 8), normal(F, F).requires_grad_()
    output = sliding.mem * weight[0]
    sliding.update(normal(B, 3, F))
    with pytest.raises(RuntimeError, match="inplace operation"):
        output.sum().backward()


@pytest.mark.parametrize("wrong", [normal(B, 3, F + 1), normal(B + 1, 3, F), normal(3, F)])
def test_a_segment_of_another_batch_or_width_is_refused(wrong: Tensor) -> None:
    with pytest.raises(ValueError, match=r"^hid: wanted "):
        SlidingMemory(normal(B, 8, F), 8).update(wrong)
