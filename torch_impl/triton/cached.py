"""
Attention over caches by a fused Triton kernel: the specification is :mod:`spec.paged` and
:mod:`spec.latent`. No gradient: it is for models that answer.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnverify.contract.attention import check_latent
from attnverify.contract.masks import check_visibility
from attnverify.contract.paged import check_paged, check_pages

from ..arrays import TENSORS
from ..packed import Starts
from ..transforms.autocast import lowered

__all__ = ["latent_attention_triton", "paged_attention_triton"]

STORED = torch.int8, torch.float8_e4m3fn


@lowered
def paged_attention_triton(
    query: Float[Tensor, "T H D"],
    key_pages: Float[Tensor, "Z W G D"],
    value_pages: Float[Tensor, "Z W G E"],
    page_table: Int[Tensor, "B Y"],
    lengths: Int[Tensor, "B"],
    query_starts: Starts,
    soft_cap: float | None = None,
    sink: Float[Tensor, "H"] | None = None,
    scale: float | None = None,
    key_scale: Float[Tensor, "Z W G"] | None = None,
    value_scale: Float[Tensor, "Z W G"] | None = None,
    **options: Any,
) -> tuple[Float[Tensor, "T H E"], Float[Tensor, "T H"]]:
    """
    As :func:`spec.paged.paged_attention`. Pages of torch.int8 or torch.float8_e4m3fn are
    multiplied by their scales as they are read, as :func:`spec.quantized.dequantize` does.
    """
    keys = as_numbers("key", key_pages, key_scale, query)
    values = as_numbers("value", value_pages, value_scale, query)
    check_paged(TENSORS, query, keys, values, page_table, lengths, query_starts,
                soft_cap, sink, scale, **options)  # fmt: skip
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    parts = (query, key_pages, value_pages), (None, None), (key_scale, value_scale)
    offset, counts = options.pop("offset", None), query_starts.diff()
    return run(*parts, page_table, query_starts[:-1], counts, lengths, offset,
               soft_cap, sink, factor, options)  # fmt: skip


def as_numbers(name: str, pages: Tensor, scale: Tensor | None, query: Tensor) -> Tensor:
    """What a check takes for pages: of those stored in 8 bits, a tensor of their shape."""
    if (pages.dtype in STORED) != (scale is not None):
        raise ValueError(
            f"{name}_scale: wanted a tensor [Z W G] beside pages of 8 bits, none beside others, "
            f"got {TENSORS.describe(scale)} beside {pages.dtype}"
        )
    if scale is None:
        return pages
    if scale.dtype != query.dtype or scale.shape != pages.shape[:-1]:
        raise ValueError(
            f"{name}_scale: wanted {query.dtype} {tuple(pages.shape[:-1])}, got "
            f"{TENSORS.describe(scale)}"
        )
    return query.new_empty(()).expand(pages.shape)


@lowered
def latent_attention_triton(
    query: Float[Tensor, "B H N E"],
    query_rope: Float[Tensor, "B H N D"],
    latent: Float[Tensor, "B M E"],
    key_rope: Float[Tensor, "B M D"],
    scale: float,
    soft_cap: float | None = None,
    sink: Float[Tensor, "H"] | None = None,
    **options: Any,
) -> tuple[Float[Tensor, "B H N E"], Float[Tensor, "B H N"]]:
    """As :func:`spec.latent.latent_attention`: each sequence is a page, its latent one head."""
    check_latent(TENSORS, query, query_rope, latent, key_rope, scale, soft_cap, sink)
    (B, H, N, _), M = query.shape, latent.shape[1]
    check_visibility(TENSORS, B, N, M, **options)
    if options.pop("segments", None) is not None or options.pop("blocks", None) is not None:
        raise NotImplementedError("segments and blocks: the kernel knows positions alone")
    each = torch.arange(B, device=query.device)
    lengths, counts = (
        each * 0 + most if given is None else given
        for most, given in (
            (M, options.pop("lengths", None)),
            (N, options.pop("query_lengths", None)),
        )
    )
    q, q_rope = (x.transpose(1, 2).reshape(B * N, H, -1) for x in (query, query_rope))
    c, k_rope = latent[:, :, None], key_rope[:, :, None]
    offset = options.pop("offset", None)
    output, lse = run((q, c, c), (q_rope, k_rope), (None, None), each[:, None], each * N, counts,
                      lengths, offset, soft_cap, sink, scale, options)  # fmt: skip
    return output.unflatten(0, (B, N)).transpose(1, 2), lse.unflatten(0, (B, N)).transpose(1, 2)


def run(
    dense: tuple[Tensor, Tensor, Tensor],
    rope: tuple[Tensor | None, Tensor | None],
    scales: tuple[Tensor | None, Tensor | None],
    table: Tensor,
    first: Tensor,
    counts: Tensor,
    lengths: Tensor,
    offset: Tensor | None,
    soft_cap: float | None,
    sink: Tensor | None,
    scale: float,
    options: dict[str, Any],
) -> tuple[Tensor, Tensor]:
    """The kernel; what rows of no sequence are. The most rows of one waits for the device."""
    query, key, value = dense
    by = check_supported(
        query, *(x for x in (key, value) if x.dtype not in STORED), *rope, *scales, sink
    )
    output = query.new_zeros(*query.shape[:2], value.shape[-1])
    lse = query.new_full(query.shape[:2], -torch.inf, dtype=torch.float32)
    if sink is not None:
        lse[:] = sink
    wrong = counts.new_zeros(len(counts), dtype=torch.int32)
    offsets = lengths - counts if offset is None else offset
    sink = sink if sink is None else sink.contiguous()
    tables = (x.contiguous() for x in (table, first, counts, lengths, offsets, wrong))
    by.launch_cached(dense, rope, scales, sink, output, lse, tuple(tables),
                     int(counts.max()), soft_cap, scale, **options)  # fmt: skip
    if bool(wrong.any()):
        check_pages(table.new_tensor([-1]), len(key))
    return output, lse


def check_supported(*tensors: Tensor | None) -> Any:
    """Say what the kernel cannot do; its launcher."""
    given = [x for x in tensors if x is not None]
    if torch.is_grad_enabled() and any(x.requires_grad for x in given):
        raise NotImplementedError("the kernel has no gradient")
    if len({x.dtype for x in given}) > 1:
        raise NotImplementedError("inputs of different dtypes")
    if given[0].dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise NotImplementedError("the kernel computes in float32: no float64")
    if max(x.shape[-1] for x in given if x.ndim > 2) > WIDEST:
        raise NotImplementedError(f"heads wider than {WIDEST}")
    try:
        from . import cached_operators
    except ImportError as error:
        raise NotImplementedError(f"Triton is not installed: {error}") from None
    return cached_operators


WIDEST = 512
