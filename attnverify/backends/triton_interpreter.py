"""
Triton's interpreter, where a user's file asks for it: what it cannot do beside NumPy 2.4 is mended,
and what it computes wrongly, bfloat16, is refused. Seen with Triton 3.6.
"""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

NO_BFLOAT16 = "Triton's interpreter takes bfloat16 for whole numbers"


def mend_interpreter() -> None:
    """Mend the interpreter that the files of this process have loaded, if they have."""
    interpreter: Any = sys.modules.get("triton.runtime.interpreter")
    if interpreter is None or hasattr(interpreter, "mended"):
        return
    builder = interpreter.InterpreterBuilder
    builder.create_dot = without_bfloat16(builder.create_dot)
    builder.binary_op = without_bfloat16(builder.binary_op)
    interpreter._patch_lang_tensor = with_lengths(interpreter._patch_lang_tensor)
    interpreter.mended = True


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
