"""
The catalogue in CuPy: on a device where there is one, and through ``cupy.get_array_module`` on
NumPy arrays where there is none.

One chapter a file, as in :mod:`spec`. Importing the package needs no CuPy, so that :func:`missing`
can say that it is not there; a chapter does. ``<operation>_cuda`` are fused kernels in CUDA C++
(:mod:`cupy_impl.cuda.kernels`), which the CPU runs too, slowly.
"""

import os
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

# Narrow floats are computed in float32 and rounded once. CUPY_TF32=1 would round the operands of
# float32 products to TF32.
WIDE = (
    {"preset": "wide"}
    if os.environ.get("CUPY_TF32", "0") in ("", "0")
    else {"preset": "wide", "operand": "tf32"}
)
# The kernels: weights and gradients of scores are in the storage dtype on their way into a product,
# q + u is rounded to it, all else is float32; what they multiply is multiplied by no library, whose
# settings do not matter. Additive attention is projected in float32 first; its tanh is
# 1 - 2 / (1 + exp(2z)).
FUSED = {"preset": "fused"}
KERNELS = {
    "scaled_dot_product_attention_cuda": FUSED,
    "alibi_attention_cuda": FUSED,
    "transformer_xl_attention_cuda": FUSED,
    "learned_relative_attention_cuda": FUSED,
    "additive_attention_cuda": WIDE | FUSED | {"joined": "float32", "tanh_form": "exponential"},
}
# What CuPy compiles of its own for a device makes float32 subnormals zero (-ftz=true), before a
# kernel of ours and behind it too.
FLUSHED = ("score", "softmax", "bias", "joined", "stage", "prescale")


def claims(on_device: bool) -> dict[str, Any]:
    """What PRECISION declares of every implementation, by dtype where there is a device."""
    if not on_device:
        return {"*": WIDE} | KERNELS
    return {"*": by_dtype(WIDE, FLUSHED)} | {name: by_dtype(x) for name, x in KERNELS.items()}


def by_dtype(claim: dict[str, Any], stages: tuple[str, ...] = ()) -> dict[str, Any]:
    """A claim for arithmetic in float32 that flushes, and float64's that does not."""
    flushing = claim | dict.fromkeys(("acc", *stages), "float32_ftz")
    stored = {dtype: {"storage": f"{dtype}_ftz"} for dtype in ("float32", "bfloat16")}
    return {
        dtype: claim if dtype == "float64" else flushing | stored.get(dtype, {})
        for dtype in ("float64", "float32", "float16", "bfloat16")
    }


def quick_ways(on_device: bool) -> tuple[str, ...]:
    """The ways that the default profile judges as the quick one does: a CPU is a slow GPU."""
    return () if on_device else ("cuda",)


ON_DEVICE = {"PRECISION": claims, "QUICK": quick_ways}


def __getattr__(name: str) -> Any:
    """
    Find an operation in its chapter: ``from attnverify.cupy_impl import alibi_attention``. What
    depends on a device waits until it is asked for, since whether there is one CuPy has to say.
    """
    if name not in ON_DEVICE:
        return find_operation(name)
    if missing():
        return ON_DEVICE[name](on_device=False)
    from . import arrays

    return ON_DEVICE[name](arrays.on_device())


def find_operation(name: str) -> Any:
    """Return an operation of a chapter. Raises AttributeError where there is none, or no CuPy."""
    chapters = [found for _, found, is_package in iter_modules(__path__) if not is_package]
    is_public = name.islower() and not name.startswith("_")
    for chapter in chapters if is_public and not missing() else ():
        source = import_module(f".{chapter}", __name__)
        if name in getattr(source, "__all__", ()):
            return getattr(source, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def from_numpy(x: Any, dtype: Any) -> Any:
    """
    A copy of a NumPy array where this backend computes; floats are rounded to ``dtype``, anything
    else keeps its own.
    """
    from . import arrays

    return arrays.from_numpy(x, dtype)


def to_numpy(x: Any) -> Any:
    """Back to NumPy, exactly; floats are widened to float64."""
    from . import arrays

    return arrays.to_numpy(x)


def synchronize() -> None:
    """Wait for the device, where there is one."""
    import cupy

    from . import arrays

    if arrays.on_device():
        cupy.cuda.Device().synchronize()


def missing() -> str | None:
    """Why this backend cannot run here, in one sentence; None if it can."""
    try:
        import cupy  # noqa: F401
    except ModuleNotFoundError as error:
        return f"the package {error.name or 'cupy'} is not installed"
    except ImportError as error:
        return f"the package cupy cannot be imported: {str(error).strip().splitlines()[0]}"
    return None
