"""
FlexAttention: one kernel for a score that is changed pair by pair.

On a GPU ``torch.compile`` makes the kernel, once for each kind of shape. On a CPU the compiler takes half a minute for every new
shape, so there flex_attention runs uncompiled: the same operator with the same functions, as plain PyTorch operations. It has no
gradient on a CPU and says so with NotImplementedError.
"""

import warnings
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from torch_impl.attention import without_hidden

ScoreMod = Callable[..., Tensor]


@cache
def compiled() -> Callable[..., Tensor]:
    return torch.compile(flex_attention, dynamic=None)


def flex(query: Tensor, key: Tensor, value: Tensor, score_mod: ScoreMod, visible: Tensor | None) -> Tensor:
    """Attention of the score that score_mod makes of q.k / sqrt(D), over the visible pairs."""
    if not query.is_cuda and torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value)):
        raise NotImplementedError("flex_attention has no gradient on a CPU")
    (B, H, N, _), M = query.shape, key.shape[-2]
    query, key, value = without_hidden(query, key, value, visible)
    blocks = None
    if visible is not None:
        seen = visible.expand(B, H, N, M)
        blocks = create_block_mask(lambda b, h, i, j: seen[b, h, i, j], B, H, N, M, device=query.device)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "flex_attention called without torch.compile")
        run = compiled() if query.is_cuda else flex_attention
        return run(query.contiguous(), key, value, score_mod=score_mod, block_mask=blocks)
