"""
One kernel source, two ways to run it: compiled on a GPU, interpreted on a CPU.

CUDA tensors are given to Triton's compiler, CPU tensors to its interpreter, call by call. No
environment variable is read or set (TRITON_INTERPRET would have to be known before triton is
imported, and would hold for everybody's kernels), so other Triton code in the process is not
touched. What the interpreter of Triton 3.6 cannot do is said here once, function by function:

- a number that is known at run time is no bound of a loop since NumPy 2.4: :func:`whole`;
- bfloat16 is a bit pattern, and products multiply the patterns: :func:`read` and :func:`rounded`
  give the numbers in float32;
- no assembler: :func:`quotient`; no branch by what each program has found: :func:`any_of`;
- ``tl.max`` and ``tl.sum`` are compiled functions unless TRITON_INTERPRET is set: :func:`largest`,
  :func:`total`.
"""

import operator
from collections.abc import Callable
from inspect import signature
from typing import Any

import torch
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.jit import JITFunction

from ..emulation.interpreter import interpreting
from ..emulation.recording import builder, recorded, tied_to_data

__all__ = [
    "Kernel",
    "add_to",
    "again",
    "any_of",
    "head_and_block",
    "head_and_last_block",
    "largest",
    "launch",
    "made_anew",
    "quotient",
    "read",
    "rounded",
    "strides_of",
    "total",
    "totals",
    "whole",
]


VARYING = ("before", "before_b", "before_n", "B", "H", "N", "M", "rows", "first")
"""
Arguments that change from call to call: the compiler is not told that one is 1 or a multiple of 16,
or it would be run again.
"""


class Kernel(JITFunction):
    """
    A function for Triton's compiler that other interpreted functions may call: there it runs
    ``interpreted`` instead. Launched as ``general``, it is compiled without a word on addresses,
    strides and widths; else it is told which are multiples of 16, for loads of 16 bytes.
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        given = signature(fn).parameters.items()
        names = [name for name, one in given if one.annotation is not tl.constexpr]
        super().__init__(fn, do_not_specialize=[name for name in names if name in VARYING])
        self.general = JITFunction(fn, do_not_specialize=names)
        self.interpreted = interpreter.InterpretedFunction(fn)
        self.recorded = recorded(
            lambda *args, **kwargs: self.interpreted.rewrite()(*args, **kwargs)
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # not InterpretedFunction.__call__, which replaces the whole language again for every call
        # and never puts it back
        return self.recorded(*args, **kwargs)

    def instead(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Make ``fn``, in plain Python, what the interpreter runs in place of the source."""
        self.interpreted.rewritten_fn[self.fn] = fn
        return fn


OPTIONS = ("num_warps", "num_stages", "maxnreg")
"""Of the compiler."""


WIDTHS = ("BLOCK_D", "BLOCK_E")
"""Constants that hold a width: the general variant has one for both, 64, 128 or 256."""


def launch(
    kernel: Kernel, grid: tuple[int, ...], *args: Any, aligned: bool = True, **constants: Any
) -> None:
    """
    Run a kernel on the device of its first tensor. ``aligned``: all that the compiler is told of is
    a multiple of 16, but for last strides, which are 1.
    """
    device = args[0].device
    if device.type == "cuda":
        chosen, args, constants = choose_variant(kernel, args, aligned, constants)
        with torch.cuda.device(device):
            chosen[grid](*args, **constants)
    else:
        constants = {name: value for name, value in constants.items() if name not in OPTIONS}
        with interpreting(range(grid[0])):
            kernel.interpreted[(1, *grid[1:])](*args, **constants)


def choose_variant(
    kernel: Kernel, args: tuple[Any, ...], aligned: bool, constants: dict[str, Any]
) -> tuple[JITFunction, tuple[Any, ...], dict[str, Any]]:
    """Return what is compiled for a call, and with which arguments it is launched."""
    if aligned:
        return kernel, args, constants
    args = tuple(without_hints(x) if isinstance(x, tuple) else x for x in args)
    widths = [constants[name] for name in WIDTHS if name in constants]
    widest = {name: max(64, *widths) for name in WIDTHS if name in constants}
    return kernel.general, args, constants | widest


def without_hints(strides: tuple[int, ...]) -> tuple[int, ...]:
    """
    Write strides so that none is 1 or a multiple of 16: Triton looks at every number of a tuple,
    whatever it is told not to specialise. :func:`strides_of` reads them.
    """
    return *(2 * stride + 3 for stride in strides), 0


@Kernel
def strides_of(given):
    """The strides that a kernel is given: four numbers as they are, five without hints."""
    if len(given) == 5:
        return (given[0] - 3) >> 1, (given[1] - 3) >> 1, (given[2] - 3) >> 1, (given[3] - 3) >> 1
    else:
        return given


@Kernel
def whole(number):
    """A number known at run time, as the bound of a loop."""
    return number


@whole.instead
def _(number: Any) -> Any:
    return operator.index(number)


@Kernel
def head_and_block():
    """
    Of a grid of heads and blocks of rows, those of a program. Programs that run side by side take
    the blocks of few heads, whose keys and values stay in the cache; of heads first, each wave
    would read all of them again.
    """
    at = (tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)).to(tl.uint32)
    blocks = tl.num_programs(1).to(tl.uint32)
    return (at // blocks).to(tl.int32), (at % blocks).to(tl.int32)


@head_and_block.instead
def _() -> tuple[Any, Any]:  # all heads at a time
    return tl.program_id(0), tl.program_id(1)


@Kernel
def head_and_last_block():
    """As :func:`head_and_block`, the last first: under a causal mask they take longest."""
    head, block = head_and_block()
    return head, tl.num_programs(1) - 1 - block


@Kernel
def read(at, inside):
    """What lies at these addresses; 0 outside."""
    return tl.load(at, mask=inside, other=0.0)


@read.instead
def _(at: Any, inside: Any) -> Any:
    x = tl.load(at, mask=inside, other=0.0)
    return x.to(tl.float32) if x.dtype == tl.bfloat16 else x


@Kernel
def add_to(at, x, inside):
    """
    Add to what other programs add to: no order among them is asked for, which costs the flush of a
    cache each time.
    """
    tl.atomic_add(at, x, mask=inside, sem="relaxed")


@Kernel
def rounded(x, LIKE):
    """x in the element type of the pointer LIKE."""
    return x.to(LIKE.dtype.element_ty)


@rounded.instead
def _(x: Any, LIKE: Any) -> Any:
    x = x.to(LIKE.dtype.element_ty)
    return x.to(tl.float32) if x.dtype == tl.bfloat16 else x


@Kernel
def quotient(a, b):
    """a / b by the GPU's own reciprocal, of a normal number whose reciprocal is one."""
    of_b = tl.inline_asm_elementwise(
        "rcp.approx.ftz.f32 $0, $1;", "=r,r", [b], dtype=tl.float32, is_pure=True, pack=1
    )
    return a * of_b


@quotient.instead
def _(a: Any, b: Any) -> Any:
    return a / b


@Kernel
def made_anew(number):
    """A whole number that the compiler does not know: what hangs on it is not kept in registers."""
    return tl.inline_asm_elementwise(
        "mov.b32 $0, $1;", "=r,r", [number], dtype=tl.int32, is_pure=False, pack=1
    )


@made_anew.instead
def _(number: Any) -> Any:
    return number


@Kernel
def again(x):
    """Whole numbers that the compiler does not know to be those that it has."""
    return x + made_anew(0)


@again.instead
def _(x: Any) -> Any:
    return x


@Kernel
def any_of(x):
    """Whether a block of truths has a true one."""
    return largest(largest(x.to(tl.int32), 1), 0) != 0


@any_of.instead
def _(x: Any) -> bool:
    tied_to_data(x.handle)
    return bool(x.handle.data.any())


@Kernel
def total(x, axis: tl.constexpr):
    """The sum over an axis."""
    return tl.reduce(x, axis, tl.standard._sum_combine)


@Kernel
def largest(x, axis: tl.constexpr):
    """The maximum over an axis."""
    return tl.reduce(x, axis, tl.standard._elementwise_max)


@Kernel
def sum_of_pairs(a, b, c, d):
    """Two sums at once: what a reduction of two blocks puts together."""
    return a + c, b + d


@Kernel
def totals(x, y, axis: tl.constexpr):
    """The sums of two blocks over an axis, which wait for each other's warps once."""
    return tl.reduce((x, y), axis, sum_of_pairs)


@totals.instead
def _(x: Any, y: Any, axis: int) -> Any:
    return reduced(x, builder().create_sum, axis), reduced(y, builder().create_sum, axis)


@total.instead
def _(x: Any, axis: int) -> Any:
    return reduced(x, builder().create_sum, axis)


@largest.instead
def _(x: Any, axis: int) -> Any:
    return reduced(x, builder().create_largest, axis)


def reduced(x: Any, reduce: Callable[..., Any], axis: int) -> Any:
    """A block reduced over an axis, in the interpreter."""
    shape = [size for place, size in enumerate(x.type.shape) if place != axis]
    return tl.core.tensor(
        reduce(x.handle, axis), tl.block_type(x.dtype, shape) if shape else x.dtype
    )
