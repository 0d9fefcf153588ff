"""
Which path answers to the plain name of an attention: the fastest for what it is given, among those
that do all that is asked.

torch    what the chapter computes: ``F.scaled_dot_product_attention``, or the formula
blocked  blocks that stay in the cache of a CPU, from so many pairs of a query and a key on
triton   the fused kernels, on a GPU of NVIDIA's, in the dtypes and widths that they have

Forward mode, ``torch.func``, ``torch.compile`` and what has no numbers are for the first, which has
every derivative. A name with how (``alibi_attention_blocked``) is never another path.
"""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec

import torch
from torch import Tensor

from ..transforms.derivatives import in_forward_mode, is_functorch_wrapped, may_look

__all__ = ["faster", "which_answers"]

COLUMN = __package__.rpartition(".")[0]
NEVER = 2**62
LEAST_PAIRS: dict[str, dict[str, tuple[int, int]]] = {
    "additive_attention": {
        "float64": (128**2, 128**2),
        "float32": (64**2, 128**2),
        "bfloat16": (64**2, 128**2),
        "float16": (64**2, 256**2),
    },
    "alibi_attention": {
        "float64": (128**2, 256**2),
        "float32": (256**2, 512**2),
        "bfloat16": (256**2, 64**2),
        "float16": (64**2, 32**2),
    },
    "learned_relative_attention": {
        "float64": (512**2, 512**2),
        "float32": (1024**2, 1024**2),
        "bfloat16": (NEVER, 1024**2),
        "float16": (32**2, 32**2),
    },
    "transformer_xl_attention": {
        "float64": (64**2, 256**2),
        "float32": (64**2, 256**2),
        "bfloat16": (16**2, 512**2),
        "float16": (16**2, 32**2),
    },
}
"""
N * M from which blocks are faster on a CPU, in calls without and with a gradient: measured by
``python -m benchmarks.choose_paths``, one thread of an AMD EPYC (Zen 4), torch 2.13.
"""


def which_answers(operation: str, *given: Tensor, masks: tuple[Tensor | None, ...] = ()) -> str:
    """Name the path that answers to the plain name of an operation: torch, blocked or triton."""
    if torch.compiler.is_compiling():
        return "torch"
    query, key, *_ = given
    pairs = query.shape[-2] * key.shape[-2]
    if query.device.type == "cpu" and pairs < least_pairs(operation, *given):
        return "torch"
    seen = [*given, *(x for x in masks if x is not None)]
    if in_forward_mode() or not may_look(*seen) or any(map(is_functorch_wrapped, seen)):
        return "torch"
    if query.is_cuda:
        return "triton" if has_kernel(given) else "torch"
    return "blocked" if query.device.type == "cpu" else "torch"


def least_pairs(operation: str, *given: Tensor) -> int:
    """From so many pairs on blocks are faster on a CPU."""
    dtypes = {x.dtype for x in given}
    without, with_gradient = LEAST_PAIRS[operation].get(
        str(given[0].dtype).removeprefix("torch."), (NEVER, NEVER)
    )
    if len(dtypes) > 1:
        return NEVER
    needed = torch.is_grad_enabled() and any(x.requires_grad for x in given)
    return with_gradient if needed else without


def has_kernel(given: tuple[Tensor, ...]) -> bool:
    """Whether the Triton kernels take these tensors."""
    if torch.version.hip is not None or find_spec("triton") is None:
        return False
    try:
        import_module(f"{COLUMN}.triton.attention").check_supported(*given)
    except NotImplementedError:
        return False
    return True


def faster(
    operation: str, *given: Tensor, masks: tuple[Tensor | None, ...] = ()
) -> Callable[..., Tensor] | None:
    """Find the path that answers in place of the chapter's own; None where that does."""
    how = which_answers(operation, *given, masks=masks)
    if how == "torch":
        return None
    module = import_module(f"{COLUMN}.{how}")
    return getattr(module, f"{operation}_{how}")
