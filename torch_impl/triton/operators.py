"""
The kernels as operators of PyTorch: with fake implementations for torch.compile and with gradients.

One operator serves every attention by scaled inner products. Its arguments are those of the
kernels: ``mask`` and ``keep`` have four axes that broadcast to [B H N M], ``table`` [H rows D] and
``table_bias`` [H rows], without gaps, are position rows, of which the pair (i, j) reads row
``first`` - i + j, ``content`` and ``distance`` [H D] are added to the queries for the one score and
the other, ``share`` is 1 / (1 - p).
"""

from math import sqrt
from typing import Any

import torch
from torch import Tensor

from ..transforms.derivatives import entry_by_entry, first_derivatives
from .kernels.attention import backward_key, backward_query, backward_table, forward
from .kernels.block_sizes import blocks, padded
from .kernels.launch import launch
from .kernels.repair import repair

__all__ = ["Fused", "attention", "attention_grad"]


def strides(x: Tensor | None, heads: bool = False) -> tuple[int, ...]:
    """
    The strides of a tensor, with one of 0 for the batch in front where it begins with the heads; of
    None none that is read.
    """
    return (0, 0, 0, 0) if x is None else (0, *x.stride()) if heads else x.stride()


def is_aligned(
    query: Tensor, value: Tensor, *dense: Tensor | None, others: tuple[Tensor | None, ...] = ()
) -> bool:
    """
    Whether a GPU's kernels can be told that widths, addresses and strides are multiples of 16, but
    for last strides, which are 1; of ``others`` the addresses. Where nothing is compiled it makes
    no difference.
    """
    strided = [x for x in (query, value, *dense) if x is not None]
    return not query.is_cuda or (
        all(x.shape[-1] % 16 == 0 for x in (query, value))
        and all(x.data_ptr() % 16 == 0 for x in (*strided, *others) if x is not None)
        and all(x.stride(-1) == 1 for x in strided)
        and all(step % 16 == 0 for x in strided for step in x.stride()[:-1])
    )


def expanded(shape: tuple[int, ...], *tensors: Tensor | None) -> tuple[Tensor | None, ...]:
    return tuple(x if x is None else x.expand(shape) for x in tensors)


def taken_together(mask: Tensor | None, keep: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """
    A mask and a draw of dropout as the general variant of a kernel takes them, both or neither: for
    the one that is not given stands a single True.
    """
    if (mask is None) == (keep is None):
        return mask, keep
    given = mask if keep is None else keep
    assert given is not None
    true = given.new_ones((1,) * given.ndim, dtype=torch.bool)
    return (mask, true) if keep is None else (true, keep)


def constants(
    kernel: str, query: Tensor, key: Tensor, value: Tensor, mask: Any, table: Any, causal: bool
) -> dict[str, Any]:
    D, E = query.shape[-1], value.shape[-1]
    scores = "relative" if table is not None else "plain" if mask is None else "masked"
    chosen = blocks(kernel, scores, query, (query.shape[-2], key.shape[-2]), max(D, E))
    return {
        "CAUSAL": causal,
        # somebody may be hidden from everyone
        "HIDING": mask is not None or (causal and query.shape[-2] > key.shape[-2]),
        "BLOCK_N": chosen.queries,
        "BLOCK_M": chosen.keys,
        "BLOCK_D": padded(D),
        "BLOCK_E": padded(E),
        **chosen.options,
    }


def numbers(
    query: Tensor, key: Tensor, value: Tensor, table: Tensor | None, first: int, share: float
) -> tuple[Any, ...]:
    (H, N, D), (M, E) = query.shape[1:], value.shape[-2:]
    return H, N, M, D, E, 0 if table is None else table.shape[1], first, 1 / sqrt(D), share


@torch.library.custom_op("torch_impl::attention", mutates_args=())
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    keep: Tensor | None,
    slopes: Tensor | None,
    content: Tensor | None,
    distance: Tensor | None,
    table: Tensor | None,
    table_bias: Tensor | None,
    causal: bool,
    first: int,
    share: float,
    deterministic: bool = False,
) -> tuple[Tensor, Tensor]:
    """Output [B H N E] and log-sum-exp [B H N]; ``deterministic`` is for the gradients."""
    output, lse = attention_fake(
        query,
        key,
        value,
        mask,
        keep,
        slopes,
        content,
        distance,
        table,
        table_bias,
        causal,
        first,
        share,
    )
    full, differs = (*query.shape[:-1], key.shape[-2]), differs_by_row(mask, causal, query.shape[2])
    others = slopes, content, distance, table_bias
    pairs = expanded(full, mask, keep)
    aligned = is_aligned(query, value, key, output, *pairs, table, others=others)
    mask, keep = pairs if aligned else expanded(full, *taken_together(mask, keep))
    chosen = constants("forward", query, key, value, mask, table, causal)
    B, H, N = query.shape[:3]
    grid, given = (
        (B * H, -(-N // chosen["BLOCK_N"])),
        (
            *(
                query,
                key,
                value,
                output,
                lse,
                mask,
                keep,
                slopes,
                content,
                distance,
                table,
                table_bias,
            ),
            *(strides(x) for x in (query, key, value, output, mask, keep)),
            strides(table, heads=True),
            *numbers(query, key, value, table, first, share),
        ),
    )
    launch(forward, grid, *given, aligned=aligned, **chosen)
    if differs:
        launch(repair, grid, *given, aligned=aligned, **chosen)
    return output, lse


def differs_by_row(mask: Tensor | None, causal: bool, N: int) -> bool:
    """Whether some rows may see a key that others do not."""
    return N > 1 and (causal or (mask is not None and mask.shape[-2] > 1))


@attention.register_fake
def attention_fake(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    shape = query.shape[:-1]
    return query.new_empty(*shape, value.shape[-1]), query.new_empty(shape, dtype=torch.float32)


@torch.library.custom_op("torch_impl::attention_grad", mutates_args=())
def attention_grad(
    d_output: Tensor,
    output: Tensor,
    lse: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    keep: Tensor | None,
    slopes: Tensor | None,
    content: Tensor | None,
    distance: Tensor | None,
    table: Tensor | None,
    table_bias: Tensor | None,
    causal: bool,
    first: int,
    share: float,
    mask_too: bool,
    deterministic: bool = False,
) -> list[Tensor]:
    """
    The gradients of query, key, value, and in float32 of mask, content, distance, table and
    table_bias: of what is None nothing.

    ``deterministic``: no two programs that run at a time add to the same place.
    """
    B, H, N, M, D = *query.shape[:3], *key.shape[2:]
    if mask is None and differs_by_row(mask, causal, N):  # with a mask the kernel does it
        key = torch.nan_to_num(key, nan=0.0, posinf=0.0, neginf=0.0)
    if mask_too and mask is not None:
        d_pairs, d_rows, d_columns = mask_sums(mask, lse, M)
    else:
        d_pairs = d_rows = d_columns = None
    others, mask_shape = (slopes, table_bias), () if mask is None else mask.shape
    pairs = expanded((B, H, N, M), mask, keep, d_pairs)
    asking = with_bias(query, content), None if table is None else with_bias(query, distance)
    dense = *asking, key, d_output, output, *pairs, table
    aligned = is_aligned(query, value, *dense, others=others)
    if not aligned:
        mask, keep = taken_together(mask, keep)
    chosen = constants("backward", query, key, value, mask, table, causal)
    blocks_n = -(-N // chosen["BLOCK_N"])
    d_query, d_key, d_value = (x.new_empty(x.shape) for x in (query, key, value))
    d_content, d_distance = (
        x if x is None else lse.new_empty(B, H, blocks_n, D) for x in (content, distance)
    )
    d_table, d_bias = (x if x is None else lse.new_zeros(x.shape) for x in (table, table_bias))
    added = (None, None) if deterministic else (d_table, d_bias)
    delta = torch.empty_like(lse)
    mask, keep, spread = expanded((B, H, N, M), mask, keep, d_pairs)
    given = (*asking, key, value, mask, keep, slopes, table, table_bias)
    placed = (
        *(strides(x) for x in (*asking, key, value, mask, keep)),
        strides(table, heads=True),
    )
    sizes = numbers(query, key, value, table, first, share)
    one_by_one = deterministic and d_pairs is not None and d_pairs.shape[:2] != (B, H)
    for before in range(B * H) if one_by_one else [0]:
        launch(
            backward_query,
            (1 if one_by_one else B * H, blocks_n),
            *(
                d_output,
                output,
                lse,
                delta,
                *given,
                d_query,
                spread,
                d_rows,
                d_content,
                d_distance,
                *added,
            ),
            *(strides(d_output), strides(output), *placed, strides(d_query), strides(spread)),
            *(before, *sizes),
            aligned=aligned,
            **chosen,
        )
    of_keys = constants("backward keys", query, key, value, mask, table, causal)
    launch(
        backward_key,
        (B * H, -(-M // of_keys["BLOCK_M"])),
        *(d_output, lse, delta, *given, d_key, d_value, d_columns),
        *(strides(d_output), *placed, strides(d_key), strides(d_value)),
        *sizes,
        aligned=aligned,
        **of_keys,
    )
    if deterministic and table is not None:
        of_rows = constants("backward rows", query, key, value, mask, table, causal)
        launch(
            backward_table,
            (H, -(-table.shape[1] // of_rows["BLOCK_N"])),
            *(d_output, lse, delta, *given[:6], *given[7:], d_table, d_bias),
            *(strides(d_output), *placed),
            *(B, *sizes),
            aligned=aligned,
            **of_rows,
        )
    sums = [x if x is None else x.sum((0, 2)) for x in (d_content, d_distance)] + [d_table, d_bias]
    of_mask = [x.sum_to_size(mask_shape) for x in (d_pairs, d_rows, d_columns) if x is not None]
    return [d_query, d_key, d_value, *of_mask, *(x for x in sums if x is not None)]


def with_bias(query: Tensor, bias: Tensor | None) -> Tensor:
    """The queries [B H N D] and a bias of each head [H D], in the dtype of both."""
    return query if bias is None else query + bias[:, None]


def mask_sums(
    mask: Tensor, lse: Tensor, M: int
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """
    Where the gradient of a mask goes, in float32: one of three.

    Pairs, of the mask's own shape; or [B H N 1] and [B H 1 M], its sums over the keys and over the
    queries.
    """
    B, H, N = lse.shape
    if mask.shape[3] < M:
        return None, lse.new_empty(B, H, N, 1), None
    if mask.shape[2] < N:
        return None, None, lse.new_empty(B, H, 1, M)
    return lse.new_zeros(mask.shape), None, None


@attention_grad.register_fake
def _(
    d_output: Tensor,
    output: Tensor,
    lse: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *rest: Any,
) -> list[Tensor]:
    (mask, _, _, *shared), mask_too = (
        rest[:7],
        rest[10],
    )  # of the last arguments PyTorch leaves out those that are their defaults
    sums = [x for x in (mask if mask_too else None, *shared) if x is not None]
    return [
        *(x.new_empty(x.shape) for x in (query, key, value)),
        *(x.new_empty(x.shape, dtype=torch.float32) for x in sums),
    ]


def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.causal, ctx.first, ctx.share, ctx.deterministic = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*output, *tensors)


def backward(ctx: Any, d_output: Tensor, d_lse: Tensor) -> tuple[Tensor | None, ...]:
    saved, mask_too = ctx.saved_tensors, ctx.needs_input_grad[3]
    options = ctx.causal, ctx.first, ctx.share, mask_too, ctx.deterministic
    with torch.no_grad():
        found = attention_grad(d_output, *saved, *options)
    grads = iter(first_derivatives(*IN_WORDS, found, d_output, *saved))
    _, _, *tensors = saved
    query, key, value, mask, _, _, *shared = tensors
    found = [
        next(grads),
        next(grads),
        next(grads),
        next(grads).to(mask.dtype) if mask_too else None,
        None,
        None,
    ]
    return (
        *found,
        *(x if x is None else next(grads).to(x.dtype) for x in shared),
        None,
        None,
        None,
        None,
    )


IN_WORDS = (
    "a fused attention",
    "the attention of that name that ends in _eager (a module: implementation='eager')",
)

torch.library.register_autograd("torch_impl::attention", backward, setup_context=setup_context)
for operator in (attention, attention_grad):
    entry_by_entry(operator)


class Fused(torch.autograd.Function):
    """
    The operator with the same gradient, for ``torch.func`` too, which does not take an operator's.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        keep: Tensor | None,
        slopes: Tensor | None,
        content: Tensor | None,
        distance: Tensor | None,
        table: Tensor | None,
        table_bias: Tensor | None,
        causal: bool,
        first: int,
        share: float,
        deterministic: bool,
    ) -> tuple[Tensor, Tensor]:
        """All by name: torch.compile counts them, to see whether a context comes first."""
        biases = slopes, content, distance, table, table_bias
        return attention(
            query, key, value, mask, keep, *biases, causal, first, share, deterministic
        )

    setup_context, backward = staticmethod(setup_context), staticmethod(backward)
