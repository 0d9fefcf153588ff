"""
PyTorch, on the CPU or one GPU: the chapters of :mod:`spec` for torch tensors in float64, float32,
float16 and bfloat16.

As a backend it says how arrays come and go and what its arithmetic claims. A name is an operation
of the catalogue, or that name and how: ``_eager`` spells the formula out, ``_flex`` runs
FlexAttention, ``_module`` calls the ``torch.nn.Module``, ``_autocast`` does so in an autocast
region, ``_triton`` is a fused kernel, and ``_blocked`` stays in the caches of a CPU.
"""

from typing import Any

import numpy as np

from .precision_claims import claims

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]  # every use is behind missing()

DEVICE = "cuda" if torch is not None and torch.cuda.is_available() else "cpu"
DETERMINISTIC = DEVICE == "cpu"
PRECISION = claims(DEVICE == "cuda")
WRAPPED = ("module", "module_train", "module_batch_first", "autocast")
QUICK = WRAPPED if DEVICE == "cuda" else (*WRAPPED, "flex", "triton")
"""
The ways that the default profile judges as the quick one does: a module, also in an autocast
region, calls functions that are judged beside it, and on a CPU FlexAttention is not compiled and
Triton's interpreter a second opinion, and slow.
"""


def from_numpy(x: np.ndarray, dtype: str) -> Any:
    """
    A NumPy array as a tensor on the device; floats rounded to the dtype of that name, everything
    else as it is.
    """
    if x.dtype.kind != "f":
        return torch.from_numpy(np.array(x)).to(DEVICE)
    if dtype in ("float16", "bfloat16"):
        return torch.from_numpy(rounded_to_odd(x)).to(DEVICE, getattr(torch, dtype))
    with np.errstate(over="ignore"):
        return torch.from_numpy(np.array(x, dtype)).to(DEVICE)


def rounded_to_odd(x: np.ndarray) -> np.ndarray:
    """
    Float32 numbers that round to a half type as x itself does.

    To nearest twice is not to nearest once. Towards zero, with the last bit set where something was
    lost, the first rounding never makes a tie for the second.
    """
    with np.errstate(over="ignore"):
        near = np.array(x, np.float32)
    bits = near.view(np.int32)
    lost = ~((near == x) | np.isnan(x))
    return (
        np.where(lost, (bits - (np.abs(near) > np.abs(x))) | 1, bits)
        .astype(np.int32)
        .view(np.float32)
    )


def to_numpy(x: Any) -> np.ndarray:
    """A tensor as a NumPy array, floats widened to float64."""
    x = x.detach().cpu()
    return (x.double() if x.is_floating_point() else x).numpy()


def synchronize() -> None:
    """Wait for the device."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def missing() -> str | None:
    """Why nothing can run here, or None."""
    return "PyTorch is not installed" if torch is None else None


def __getattr__(name: str) -> Any:
    """Find an operation in its chapter: ``from attnverify.torch_impl import alibi_attention``."""
    from importlib import import_module
    from pkgutil import iter_modules

    chapters = [found for _, found, is_package in iter_modules(__path__) if not is_package]
    for chapter in chapters if name.islower() and not name.startswith("_") else ():
        source = import_module(f".{chapter}", __name__)
        if name in getattr(source, "__all__", ()):
            return getattr(source, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
