"""
What PyTorch shows of the arithmetic of a function that it is called step by step in: which results
were stored between the steps of a softmax, and in what.
"""

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from attnverify.backends.array_libraries import dtype_name
from attnverify.catalogue.pytrees import leaves

EXPONENTIALS = "exp", "exp_", "exp2", "exp2_"
LOGARITHMS = "logsumexp", "_log_softmax", "log", "log_", "log2", "log2_"
Steps = frozenset[tuple[str, str]]


def steps_of(call: Callable[[], Any]) -> Steps:
    """Call, and list PyTorch's operations with the dtypes of the floating results they stored."""
    python_dispatch = import_module("torch.utils._python_dispatch")
    found = set[tuple[str, str]]()

    class Seen(python_dispatch.TorchDispatchMode):  # type: ignore[misc, name-defined]
        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return "torch._dynamo" in sys.modules  # which to skip would import it, in a second

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            made = func(*args, **(kwargs or {}))
            name = func.overloadpacket.__name__
            found.update((name, dtype_name(x)) for x in leaves(made) if hasattr(x, "dtype"))
            return made

    with Seen():
        call()
    return frozenset(found)


def stores_exponentials(steps: Steps, dtype: str) -> bool:
    """
    Tell whether a softmax is written out, and its exponentials are stored in a dtype. Where PyTorch
    has done a softmax itself, an exponential beside it is none of a softmax.
    """
    own = any("softmax" in name or "dot_product" in name for name, _ in steps)
    return not own and any((name, dtype) in steps for name in EXPONENTIALS)


def logarithms(steps: Steps) -> set[str]:
    """The dtypes in which logarithms are stored, of sums of exponentials as well."""
    return {stored for name, stored in steps if name in LOGARITHMS}
