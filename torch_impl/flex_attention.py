"""
FlexAttention: one kernel for a score that is changed pair by pair.

On a GPU ``torch.compile`` makes the kernel, and a block mask skips what nobody sees. On a CPU the
compiler takes half a minute for every new kind of shape, so there flex_attention runs uncompiled:
the same operator with the same score function, as plain PyTorch operations, without blocks. What it
does not have is NotImplementedError: a gradient on a CPU, and ``vmap`` and forward mode anywhere.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
import torch.nn.attention.flex_attention as flexible
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from .attention import explicit, without_hidden
from .isolation import is_lost, reaches_neighbours

ScoreMod = Callable[..., Tensor]
NARROWEST = 16
"""The least width of a head that inductor takes (torch/_inductor/kernel/flex/flex_attention.py)."""


def flex(
    query: Tensor, key: Tensor, value: Tensor, score_mod: ScoreMod, visible: Tensor | None
) -> Tensor:
    """Attention of the score that score_mod makes of q.k / sqrt(D), over the visible pairs."""
    check_supported(query, key, value)
    query, key, value = without_hidden(query, key, value, visible)
    odd = reaches_neighbours(query, query.shape[-1], *value.shape[-2:])
    if odd or is_lost(visible is not None, None, query, key, value):
        return explicit(query, key, value, on_all_pairs(score_mod, query, key), visible)[0]
    seen = None if visible is None else visible.expand(*query.shape[:-1], key.shape[-2])
    return (on_gpu if query.is_cuda else on_cpu)(query, key, value, score_mod, seen)


def on_all_pairs(score_mod: ScoreMod, query: Tensor, key: Tensor) -> Tensor:
    """What the score function adds to the scores [B H N M]."""
    shape = (*query.shape[:-1], key.shape[-2])
    places = torch.meshgrid(*(torch.arange(n, device=key.device) for n in shape), indexing="ij")
    wide = torch.promote_types(query.dtype, torch.float32)
    return score_mod(query.new_zeros(shape, dtype=wide), *places)


def check_supported(*tensors: Tensor) -> None:
    """Refuse what would end in a KeyError of PyTorch, or in a tangent that is lost."""
    if torch.compiler.is_compiling():
        return
    if any(forward_ad.unpack_dual(x).tangent is not None for x in tensors):
        raise NotImplementedError("flex_attention has no forward mode")
    if any(map(torch._C._functorch.is_batchedtensor, tensors)):
        raise NotImplementedError("flex_attention has no vmap")


def masking(score_mod: ScoreMod, seen: Tensor | None) -> ScoreMod:
    """The score function, with minus infinity for what is hidden."""
    if seen is None:
        return score_mod

    def masked(score: Tensor, b: Any, h: Any, i: Any, j: Any) -> Tensor:
        return torch.where(seen[b, h, i, j], score_mod(score, b, h, i, j), -torch.inf)

    return masked


def on_gpu(
    query: Tensor, key: Tensor, value: Tensor, score_mod: ScoreMod, seen: Tensor | None
) -> Tensor:
    if min(query.shape[-1], value.shape[-1]) < NARROWEST:
        raise NotImplementedError(f"flex_attention has no heads below {NARROWEST} on a GPU")
    if seen is None:
        return compiled()(query, key, value, score_mod=score_mod)
    B, H, N, M = seen.shape
    blocks = create_block_mask(lambda b, h, i, j: seen[b, h, i, j], B, H, N, M, device=seen.device)
    return compiled()(query, key, value, score_mod=score_mod, block_mask=blocks)


@cache
def compiled() -> Callable[..., Tensor]:
    return torch.compile(flex_attention)


def on_cpu(
    query: Tensor, key: Tensor, value: Tensor, score_mod: ScoreMod, seen: Tensor | None
) -> Tensor:
    if torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value)):
        raise NotImplementedError("flex_attention has no gradient on a CPU")
    # without a gradient it refuses what could have one as well
    query, key, value = (x.detach() for x in (query, key, value))
    score_mod = masking(score_mod, seen)
    if torch.compiler.is_compiling():
        return flex_attention(query, key, value, score_mod=score_mod)
    with warnings.catch_warnings(), untraced():
        warnings.filterwarnings("ignore", "flex_attention called without torch.compile")
        return flex_attention(query, key, value, score_mod=score_mod)


@contextmanager
def untraced() -> Iterator[None]:
    """
    PyTorch's own switch for plain operations: without it every new shape is traced first, which
    takes a second.
    """
    before = getattr(flexible, SWITCH, None)
    setattr(flexible, SWITCH, True)
    try:
        yield
    finally:
        setattr(flexible, SWITCH, before)


SWITCH = "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG"
