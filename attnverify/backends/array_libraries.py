"""
Array libraries: numbers to an array on its device and back, and its own gradients.

The adapters serve files that leave the four functions of a backend out. A library is imported only
when it is asked for.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.backends.declarations import NO_GRADIENT
from attnverify.catalogue.dtypes import numpy_dtype

Array = Any
LIBRARIES = ("torch", "cupy", "jax", "numpy")


@dataclass(frozen=True)
class Library:
    """The four functions of a backend, as the adapter of a library has them."""

    name: str
    from_numpy: Callable[[ndarray, str], Array]
    to_numpy: Callable[[Array], ndarray]
    synchronize: Callable[[], None]
    missing: Callable[[], str | None]


def array_library(name: str) -> Library:
    """The adapter of numpy, torch, cupy or jax."""
    if name not in LIBRARIES:
        raise ValueError(f"ARRAYS: wanted one of {', '.join(LIBRARIES)}, got {name!r}")
    make: Callable[[], Library] = {
        "numpy": numpy_library,
        "torch": torch_library,
        "cupy": cupy_library,
        "jax": jax_library,
    }[name]
    return make()


def numpy_library() -> Library:
    return Library("numpy", to_dtype, to_float64, lambda: None, lambda: None)


def to_dtype(x: ndarray, dtype: str) -> ndarray:
    return np.array(x, numpy_dtype(dtype) if x.dtype.kind == "f" else x.dtype)


def to_float64(x: Array) -> ndarray:
    x = np.asarray(x)
    with np.errstate(invalid="ignore"):  # of a signalling NaN, as in memory that nobody has written
        return x if x.dtype.kind in "biu" else x.astype(np.float64)


def torch_library() -> Library:
    torch = import_module("torch")
    device = "cuda" if torch.cuda.is_available() else "cpu"

    def from_numpy(x: ndarray, dtype: str) -> Array:
        tensor = torch.from_numpy(np.array(x))
        return tensor.to(device, getattr(torch, dtype) if x.dtype.kind == "f" else tensor.dtype)

    def to_numpy(x: Array) -> ndarray:
        x = x.detach().cpu()
        back: ndarray = (x.to(torch.float64) if x.is_floating_point() else x).numpy()
        return back

    return Library(
        "torch",
        from_numpy,
        to_numpy,
        torch.cuda.synchronize if device == "cuda" else lambda: None,
        lambda: None,
    )


def cupy_library() -> Library:
    cupy = import_module("cupy")

    def missing() -> str | None:
        return None if cupy.cuda.is_available() else "no CUDA device"

    return Library(
        "cupy",
        lambda x, dtype: cupy.asarray(to_dtype(x, dtype)),
        lambda x: to_float64(cupy.asnumpy(x)),
        lambda: cupy.cuda.Device().synchronize(),
        missing,
    )


def jax_library() -> Library:
    jax = import_module("jax")
    jax.config.update("jax_enable_x64", True)
    return Library(
        "jax",
        lambda x, dtype: jax.numpy.asarray(to_dtype(x, dtype)),
        to_float64,
        lambda: None,
        lambda: None,
    )


def dtype_name(x: Array) -> str:
    """ "float32" for torch.float32, numpy's and everyone's."""
    return str(getattr(x, "dtype", type(x).__name__)).rpartition(".")[2]


def by_autograd(
    function: Callable[..., Array], library: str
) -> Callable[..., tuple[Array, ...]] | None:
    """
    ``<op>_grad`` of a differentiable library's ``<op>``; None where the library has no gradients of
    its own.
    """
    return (
        {"torch": torch_gradient, "jax": jax_gradient}[library](function)
        if library in ("torch", "jax")
        else None
    )


def torch_gradient(function: Callable[..., Array]) -> Callable[..., tuple[Array, ...]]:
    torch = import_module("torch")

    def gradient(d_output: Array, **inputs: Any) -> tuple[Array, ...]:
        leaves = {
            name: x.detach().requires_grad_()
            for name, x in inputs.items()
            if torch.is_tensor(x) and x.is_floating_point()
        }
        output = function(**inputs | leaves)
        outputs = output if isinstance(output, (list, tuple)) else [output]
        if not any(getattr(x, "requires_grad", False) for x in outputs):
            raise NotImplementedError(NO_GRADIENT)
        grads = torch.autograd.grad(output, list(leaves.values()), d_output, allow_unused=True)
        return tuple(
            torch.zeros_like(x) if grad is None else grad
            for x, grad in zip(leaves.values(), grads, strict=True)
        )

    return gradient


def jax_gradient(function: Callable[..., Array]) -> Callable[..., tuple[Array, ...]]:
    jax = import_module("jax")

    def gradient(d_output: Array, **inputs: Any) -> tuple[Array, ...]:
        leaves = {
            name: x
            for name, x in inputs.items()
            if hasattr(x, "dtype") and "float" in dtype_name(x)
        }
        _, pull = jax.vjp(lambda given: function(**inputs | given), leaves)
        (grads,) = pull(d_output)
        return tuple(grads[name] for name in leaves)

    return gradient
