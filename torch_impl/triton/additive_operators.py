"""
Additive attention as an operator of PyTorch; ``z_query`` [B N A] and ``z_key`` [B M A] are
projected already, in float32.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..transforms.derivatives import entry_by_entry, first_derivatives
from .kernels.additive import COLUMNS, additive_backward, additive_forward, exponentials
from .kernels.block_sizes import blocks, padded
from .kernels.launch import launch
from .kernels.repair import additive_repair
from .operators import differs_by_row, expanded, is_aligned, strides, taken_together

__all__ = ["FusedAdditive", "additive_attention", "additive_attention_grad"]


def constants(kernel: str, z_query: Tensor, z_key: Tensor, value: Tensor) -> dict[str, Any]:
    chosen = blocks(
        kernel, "additive", value, (z_query.shape[-2], z_key.shape[-2]), value.shape[-1]
    )
    columns = (
        padded(value.shape[-1]) if kernel == "forward" else min(padded(value.shape[-1]), COLUMNS)
    )
    sizes = {"BLOCK_N": chosen.queries, "BLOCK_M": chosen.keys, "BLOCK_E": columns}
    return sizes | chosen.options


def exponentials_of(z: Tensor, block: int) -> Tensor:
    """
    exp(2z) of projections [B N A], as :func:`.kernels.additive.exponentials` lays it out for
    blocks of so many rows.
    """
    B, rows, A = z.shape
    blocks = -(-rows // block)
    taken = z.new_empty(B, A + A % 2, blocks * block)
    sizes = {"BLOCK": block, "num_warps": 4, "num_stages": 1}
    even = A % 16 == 0
    launch(exponentials, (B, blocks), z, taken, rows, blocks * block, A, aligned=even, **sizes)
    return taken


def one_head(x: Tensor | None) -> Tensor | None:
    return x if x is None else x.unsqueeze(1)


@torch.library.custom_op("torch_impl::additive_attention", mutates_args=())
def additive_attention(
    z_query: Tensor,
    z_key: Tensor,
    w_score: Tensor,
    value: Tensor,
    mask: Tensor | None,
    keep: Tensor | None,
    share: float,
    deterministic: bool = False,
) -> tuple[Tensor, Tensor]:
    """
    Output [B N E] in the dtype of the value, and log-sum-exp [B N]; ``deterministic`` is for the
    gradients.
    """
    output, lse = fake(z_query, z_key, w_score, value)
    (B, N, A), (M, E) = z_query.shape, value.shape[1:]
    pairs, differs = expanded((B, N, M), mask, keep), differs_by_row(mask, False, N)
    aligned = is_aligned(z_query, value, z_key, output, *pairs, others=(w_score,))
    mask, keep = pairs if aligned else expanded((B, N, M), *taken_together(mask, keep))
    chosen = constants("forward", z_query, z_key, value)
    taken = (
        exponentials_of(z_query, chosen["BLOCK_N"]),
        exponentials_of(z_key, chosen["BLOCK_M"]),
    )
    grid, given = (
        (B, -(-N // chosen["BLOCK_N"])),
        (
            *(z_query, z_key, *taken, w_score, value, output, lse, mask, keep),
            *(strides(one_head(x)) for x in (value, output, mask, keep)),
            *(*(x.shape[-1] for x in taken), N, M, A, E, share),
        ),
    )
    launch(additive_forward, grid, *given, aligned=aligned, **chosen)
    if differs:
        launch(additive_repair, grid, *given, aligned=aligned, **chosen)
    return output, lse


@additive_attention.register_fake
def fake(
    z_query: Tensor, z_key: Tensor, w_score: Tensor, value: Tensor, *rest: Any
) -> tuple[Tensor, Tensor]:
    shape = z_query.shape[:-1]
    return value.new_empty(*shape, value.shape[-1]), value.new_empty(shape, dtype=torch.float32)


@torch.library.custom_op("torch_impl::additive_attention_grad", mutates_args=())
def additive_attention_grad(
    d_output: Tensor,
    output: Tensor,
    lse: Tensor,
    z_query: Tensor,
    z_key: Tensor,
    w_score: Tensor,
    value: Tensor,
    mask: Tensor | None,
    keep: Tensor | None,
    share: float,
    mask_too: bool,
    deterministic: bool = False,
) -> list[Tensor]:
    """
    The gradients of z_query, z_key, w_score, value, and of mask if asked for, in float32.

    Where they are to be deterministic, programs that add to the same place are launched one after
    the other.
    """
    (B, N, A), (M, E) = z_query.shape, value.shape[1:]
    mask_shape = mask.shape if mask_too and mask is not None else None
    shapes = [z_query.shape, z_key.shape, (B, A), value.shape]
    shapes += [] if mask_shape is None else [mask_shape]
    sums = [torch.zeros(shape, dtype=torch.float32, device=value.device) for shape in shapes]
    over = (False, False) if mask_shape is None else (mask_shape[1] < N, mask_shape[2] < M)
    together = B if mask_shape is None or mask_shape[0] == B else 1
    pairs = expanded((B, N, M), mask, keep, sums[4] if mask_too else None)
    dense = z_key, d_output, output, *pairs
    aligned = is_aligned(z_query, value, *dense, others=(w_score,))
    mask, keep = pairs[:2] if aligned else taken_together(mask, keep)
    mask, keep, spread = expanded((B, N, M), mask, keep, pairs[2])
    chosen = constants("backward", z_query, z_key, value)
    taken = (
        exponentials_of(z_query, chosen["BLOCK_N"]),
        exponentials_of(z_key, chosen["BLOCK_M"]),
    )
    for grid, before in (
        in_order(B, together, -(-N // chosen["BLOCK_N"]))
        if deterministic
        else [((B, -(-N // chosen["BLOCK_N"])), (0, 0))]
    ):
        launch(
            additive_backward,
            grid,
            *(d_output, output, lse, z_query, z_key, *taken, w_score, value, mask, keep),
            *(*sums[:4], spread),
            *(strides(one_head(x)) for x in (d_output, output, value, mask, keep, spread)),
            *(*(x.shape[-1] for x in taken), *before, N, M, A, E, share),
            aligned=aligned,
            **chosen,
            OVER_N=over[0],
            OVER_M=over[1],
        )
    return [*sums[:2], sums[2].sum(0), *sums[3:]]


def in_order(
    B: int, together: int, blocks: int
) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Grids of some batch entries and one block of queries each, with what comes before."""
    return (
        ((together, 1), (entry, block))
        for block in range(blocks)
        for entry in range(0, B, together)
    )


@additive_attention_grad.register_fake
def _(d_output: Tensor, output: Tensor, lse: Tensor, *rest: Any) -> list[Tensor]:
    (*tensors, mask), mask_too = (
        rest[:5],
        rest[7],
    )  # the last argument is left out where it is its default
    return [
        x.new_empty(x.shape, dtype=torch.float32) for x in (*tensors, *([mask] if mask_too else []))
    ]


def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.share, ctx.deterministic = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*output, *tensors)


def backward(ctx: Any, d_output: Tensor, d_lse: Tensor) -> tuple[Tensor | None, ...]:
    output, lse, *tensors = saved = ctx.saved_tensors
    options = ctx.share, ctx.needs_input_grad[4], ctx.deterministic
    with torch.no_grad():
        found = additive_attention_grad(d_output, *saved, *options)
    grads = first_derivatives(*IN_WORDS, found, d_output, *saved)
    found = [grad.to(x.dtype) for grad, x in zip(grads, tensors, strict=False)]
    return *found, *([] if len(found) == 5 else [None]), None, None, None


IN_WORDS = "additive_attention_triton", "additive_attention (a module: implementation='torch')"

torch.library.register_autograd(
    "torch_impl::additive_attention", backward, setup_context=setup_context
)
for operator in (additive_attention, additive_attention_grad):
    entry_by_entry(operator)


class FusedAdditive(torch.autograd.Function):
    """
    The operator with the same gradient, for ``torch.func`` too, which does not take an operator's.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        z_query: Tensor,
        z_key: Tensor,
        w_score: Tensor,
        value: Tensor,
        mask: Tensor | None,
        keep: Tensor | None,
        share: float,
        deterministic: bool,
    ) -> tuple[Tensor, Tensor]:
        """All by name: torch.compile counts them, to see whether a context comes first."""
        return additive_attention(z_query, z_key, w_score, value, mask, keep, share, deterministic)

    setup_context, backward = staticmethod(setup_context), staticmethod(backward)
