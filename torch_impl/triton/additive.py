"""
Additive attention by a fused Triton kernel: the specification is :mod:`spec.attention`.

Queries and keys are projected in float32 by PyTorch, and all else happens block by block in
:mod:`torch_impl.triton.kernels.additive`. On a CPU the kernels run in Triton's interpreter
(:mod:`torch_impl.triton.kernels.launch`).
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from attnverify.contract.attention import check_additive

from ..arrays import TENSORS
from ..attention import (
    Keep,
    Mask,
    bias_and_visible,
    without_hidden,
)
from ..scores import wide
from ..transforms.autocast import lowered
from ..transforms.derivatives import applied
from .attention import check_supported

__all__ = ["additive_attention_triton"]


@lowered
def additive_attention_triton(
    query: Float[Tensor, "B N Q"],
    key: Float[Tensor, "B M K"],
    value: Float[Tensor, "B M E"],
    w_query: Float[Tensor, "A Q"],
    w_key: Float[Tensor, "A K"],
    w_score: Float[Tensor, "A"],
    mask: Mask = None,
    keep: Keep = None,
    p: float = 0.0,
) -> Float[Tensor, "B N E"]:
    """As :func:`spec.attention.additive_attention`."""
    check_additive(TENSORS, (query, key, value, w_query, w_key, w_score), mask, keep, p)
    check_supported(query, key, value, w_query, w_key, w_score)
    _, visible = bias_and_visible(mask, 3)
    query, key, value = without_hidden(query, key, value, visible)
    z_query, z_key = F.linear(*wide(query, w_query)), F.linear(*wide(key, w_key))
    mask, keep = (x if x is None else x[(None,) * (3 - x.ndim)] for x in (mask, keep))
    deterministic = torch.are_deterministic_algorithms_enabled()
    given = z_query, z_key, w_score.contiguous(), value, mask, keep, 1 / (1 - p), deterministic
    by = operators()
    return applied(by.FusedAdditive, *by.IN_WORDS, *given)[0]


def operators() -> Any:
    """
    The operators: triton is imported when an implementation that needs it is called for the first
    time.
    """
    try:
        from . import additive_operators
    except ImportError as error:
        raise NotImplementedError(f"Triton is not installed: {error}") from None
    return additive_operators
