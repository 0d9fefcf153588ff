"""
Array libraries: numbers to an array on its device and back, and its own gradients.

The adapters serve files that leave the four functions of a backend out. A library is imported only
when it is asked for.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.backends.declarations import NO_GRADIENT
from attnverify.catalogue.dtypes import numpy_dtype
from attnverify.catalogue.pytrees import leaves, map_leaves
from attnverify.precision import DTYPES

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
    unsupported: Callable[[str], str] = lambda dtype: ""
    """Why the library has no numbers of a dtype; "" where it has."""
    flushes_subnormals: Callable[[], tuple[str, ...]] = tuple
    """In which dtypes numbers below the smallest normal one count as 0, as seen on its device."""
    forget: Callable[[], None] = lambda: None
    """Lets go of what it has compiled for the shapes that it has met."""
    compiles_shapes: bool = False
    """Whether a call of other shapes is compiled anew, which takes longer than the call."""
    has_layouts: bool = True
    """Whether its arrays lie in memory as their maker chooses; else each layout is a copy."""
    without_graph: Callable[[], AbstractContextManager[Any]] | None = None
    """Calls while no graph is recorded, and as inference does; None where there is nothing such."""
    in_inference: Callable[[], AbstractContextManager[Any]] | None = None
    is_writable: bool = True
    """Whether an array can be written to, as a cache is from step to step."""


def array_library(name: str) -> Library:
    """Return the adapter of numpy, torch, cupy or jax."""
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

    def flushes_subnormals() -> tuple[str, ...]:
        """Try a product that is large enough for the instructions VDPBF16PS and AMX, which do."""
        tiny = torch.full((64, 64), SUBNORMAL, dtype=torch.bfloat16, device=device)
        ones = torch.ones_like(tiny)
        return () if (tiny @ ones).any() else ("bfloat16",)

    return Library(
        "torch",
        from_numpy,
        to_numpy,
        torch.cuda.synchronize if device == "cuda" else lambda: None,
        lambda: None,
        flushes_subnormals=flushes_subnormals,
        without_graph=torch.no_grad,
        in_inference=torch.inference_mode,
    )


def flushed_by_cupy() -> tuple[str, ...]:
    """CuPy compiles whatever it compiles with -ftz=true."""
    return ("float32", "bfloat16")


def cupy_library() -> Library:
    cupy = import_module("cupy")

    return Library(
        "cupy",
        lambda x, dtype: cupy.asarray(to_dtype(x, dtype)),
        lambda x: to_float64(cupy.asnumpy(x)),
        lambda: cupy.cuda.Device().synchronize(),
        lambda: None if cupy.cuda.is_available() else "no CUDA device",
        flushes_subnormals=flushed_by_cupy,
    )


def jax_library() -> Library:
    jax = import_module("jax")

    return Library(
        "jax",
        lambda x, dtype: jax.device_put(to_dtype(x, dtype)),  # numpy.asarray would compile a copy
        to_float64,
        lambda: None,
        lambda: None,
        lambda dtype: X64_IS_OFF if dtype == "float64" and not jax.config.jax_enable_x64 else "",
        lambda: () if (jax.numpy.asarray(np.float32(SUBNORMAL)) * 1).any() else DTYPES,
        jax.clear_caches,
        compiles_shapes=True,
        has_layouts=False,
        is_writable=False,
    )


SUBNORMAL = 1e-39
"""Below the smallest normal number of float32 and of bfloat16."""

X64_IS_OFF = "x64 is off: JAX_ENABLE_X64=1 turns it on"


def dtype_name(x: Array) -> str:
    """ "float32" for torch.float32, numpy's and everyone's."""
    return str(getattr(x, "dtype", type(x).__name__)).rpartition(".")[2]


@dataclass(frozen=True)
class Recorded:
    """
    Outputs of which PyTorch takes the gradients, the last steps of their graph, and the arguments
    for whose gradients it has None.
    """

    outputs: Any
    steps: tuple[Any, ...]
    without: list[str] = field(default_factory=list)

    @property
    def differentiates_a_maximum(self) -> bool:
        """Whether the graph has a maximum in it, through which the gradient goes too."""
        found, left = set(self.steps), list(self.steps)
        while left:
            if type(step := left.pop()).__name__ in MAXIMA:
                return True
            new = {step for step, _ in step.next_functions if step is not None} - found
            found |= new
            left += new
        return False


MAXIMA = ("MaxBackward0", "MaxBackward1", "AmaxBackward0", "MaximumBackward0", "CummaxBackward0")
"""How PyTorch names what differentiates a maximum."""

RECORDED: ContextVar[list[Recorded] | None] = ContextVar("recorded", default=None)
"""Where these are kept for who asks for them."""


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

    def is_leaf(x: Any) -> bool:
        return torch.is_tensor(x) and bool(x.is_floating_point())

    def gradient(**inputs: Any) -> tuple[Any, ...]:
        only_memory = MEMORY_GRADIENT in inputs and "d_output" not in inputs
        arriving, inputs = split_gradients(inputs)
        mine = map_leaves(lambda x: x.detach().requires_grad_() if is_leaf(x) else x, inputs)
        made = function(**mine)
        if (kept := RECORDED.get()) is not None:
            plain = map_leaves(lambda x: x.detach() if torch.is_tensor(x) else x, made)
            steps = (getattr(x, "grad_fn", None) for x in leaves(made))
            kept.append(Recorded(plain, tuple(step for step in steps if step is not None)))
        outputs = [x for x in leaves(made) if torch.is_tensor(x)]
        wanted = [x for x in leaves(mine) if is_leaf(x)]
        pairs = [(y, d) for y, d in zip(outputs, arriving, strict=False) if y.requires_grad]
        if not pairs and not only_memory:
            raise NotImplementedError(NO_GRADIENT)
        heads = [list(part) for part in zip(*pairs, strict=True)]
        found = (
            torch.autograd.grad(heads[0], wanted, heads[1], allow_unused=True)
            if heads
            else [None for _ in wanted]
        )
        given = {d.untyped_storage().data_ptr() for d in arriving}
        if kept:
            none = {id(x) for x, grad in zip(wanted, found, strict=True) if grad is None}
            kept[-1].without.extend(name for name, x in mine.items() if id(x) in none)
        grads = {
            id(x): torch.zeros_like(x)
            if grad is None
            else grad.clone()  # what only passes through is handed on by autograd as it came
            if grad.untyped_storage().data_ptr() in given
            else grad
            for x, grad in zip(wanted, found, strict=True)
        }
        return gradients_of(mine, lambda x: grads.get(id(x)))

    return gradient


def jax_gradient(function: Callable[..., Array]) -> Callable[..., tuple[Array, ...]]:
    """
    The gradient by ``jax.vjp``. Of a function that its author compiles whole, the gradient is
    compiled whole too, as in a training step: one program for a shape where there were two.
    """
    jax = import_module("jax")
    is_compiled = isinstance(getattr(function, "own", function), jax.stages.Wrapped)
    compiled: dict[str, Callable[..., list[Any]]] = {}

    def is_leaf(x: Any) -> bool:
        return hasattr(x, "dtype") and "float" in dtype_name(x)

    def pull_back(frame: Any, arrays: list[Any], arriving: list[Any]) -> list[Any]:
        """Return the gradient by each array of floats, in the place of each in the frame."""

        def from_leaves(given: list[Any]) -> Any:
            floats = iter(given)
            rest = iter([next(floats) if is_leaf(x) else x for x in arrays])
            return function(**map_leaves(lambda x: next(rest) if x is ARRAY else x, frame))

        outputs, pull = jax.vjp(from_leaves, [x for x in arrays if is_leaf(x)])
        flat, form = jax.tree.flatten(outputs)
        heads = arriving + [jax.numpy.zeros_like(y) for y in flat[len(arriving) :]]
        (grads,) = pull(jax.tree.unflatten(form, heads[: len(flat)]))
        return list(grads)

    def gradient(**inputs: Any) -> tuple[Any, ...]:
        arriving, inputs = split_gradients(inputs)
        frame = map_leaves(lambda x: ARRAY if hasattr(x, "dtype") else x, inputs)
        find: Callable[..., list[Any]] = partial(pull_back, frame)
        if is_compiled:  # what is no array is a part of the program
            find = compiled.setdefault(repr(frame), jax.jit(find))
        grads = find([x for x in leaves(inputs) if hasattr(x, "dtype")], arriving)
        found = iter(grads)  # by place: one array may be key and value, each with its gradient
        return gradients_of(inputs, lambda x: next(found) if is_leaf(x) else None)

    return gradient


ARRAY = "an array"
"""What stands in an array's place in the frame of a call."""


MEMORY_GRADIENT = "d_new_mems"
"""What arrives at a new memory, which is cut off: an output that needs no gradient is right."""


def split_gradients(inputs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """What arrives at the outputs, one array each, and the inputs of the forward function."""
    arriving = [x for name, x in inputs.items() if name.startswith("d_")]
    rest = {name: x for name, x in inputs.items() if not name.startswith("d_")}
    return [x for x in leaves(arriving) if x is not None], rest


def gradients_of(inputs: dict[str, Any], find: Callable[[Any], Any]) -> tuple[Any, ...]:
    """
    One gradient for each argument that has some, a list or a mapping for a list or a mapping:
    without what has none, as a mask or an absent bias.
    """

    def of(tree: Any) -> Any:
        if isinstance(tree, dict):
            found = {name: of(branch) for name, branch in tree.items()}
            return {name: branch for name, branch in found.items() if branch is not None}
        if isinstance(tree, (list, tuple)):
            return [branch for branch in map(of, tree) if branch is not None] or None
        return find(tree)

    return tuple(grad for grad in map(of, inputs.values()) if grad is not None)
