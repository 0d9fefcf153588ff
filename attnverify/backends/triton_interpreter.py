"""
Triton's interpreter, where a user's file asks for it: what it cannot do beside NumPy 2.4 is mended,
and what it computes wrongly, bfloat16, is refused. Seen with Triton 3.6.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

import numpy as np

NO_BFLOAT16 = "Triton's interpreter takes bfloat16 for whole numbers"


INTERPRETED = (
    "Triton's interpreter executes its kernels: of the sizes that models make it is shown the "
    "smallest of several tiles"
)


def mend_interpreter() -> bool:
    """Mend the interpreter that the files of this process have loaded; whether they have."""
    interpreter: Any = sys.modules.get("triton.runtime.interpreter")
    if interpreter is None or hasattr(interpreter, "mended"):
        return interpreter is not None
    builder = interpreter.InterpreterBuilder
    builder.create_dot = without_bfloat16(builder.create_dot)
    builder.binary_op = without_bfloat16(builder.binary_op)
    interpreter._patch_lang_tensor = with_lengths(interpreter._patch_lang_tensor)
    interpreter.mended = True
    return True


def has_interpreted(modules: Iterable[ModuleType]) -> bool:
    """Whether a kernel of these modules, or of those that they take names from, is interpreted."""
    named = [value for module in modules for value in vars(module).values()]
    beside = {sys.modules.get(str(getattr(value, "__module__", ""))) for value in named}
    further = [value for module in beside - {None} for value in vars(module).values()]
    return any(type(value).__name__ == "InterpretedFunction" for value in inner(named + further))


def has_kernels(modules: Iterable[ModuleType]) -> bool:
    """Whether one of these modules has a kernel of Triton, compiled or interpreted."""
    named = inner(value for module in modules for value in vars(module).values())
    return any(type(value).__module__.startswith("triton.runtime.") for value in named)


def inner(values: Iterable[Any]) -> Iterator[Any]:
    """The values, and what autotuning and heuristics wrap."""
    for value in values:
        yield value
        if type(value).__module__.startswith("triton.") and hasattr(value, "fn"):
            yield value.fn


def with_lengths(patch: Callable[..., None]) -> Callable[..., None]:
    """Let an array of one number end a loop, which is no scalar to NumPy 2.4."""

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    return patched


def without_bfloat16(operation: Callable[..., Any]) -> Callable[..., Any]:
    """Refuse to add, to multiply and to compare the bits of numbers."""

    def computed(self: Any, one: Any, other: Any, *options: Any) -> Any:
        if is_bfloat16(one) or is_bfloat16(other):
            raise NotImplementedError(NO_BFLOAT16)
        return operation(self, one, other, *options)

    return computed


def is_bfloat16(x: Any) -> bool:
    """Whether a handle holds the bits of bfloat16 as whole numbers."""
    return str(x.dtype.scalar) == "bf16" and x.data.dtype == np.uint16
