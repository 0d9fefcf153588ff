"""The faults that are planted in the Triton kernels, ready to be planted in a loaded column."""

from typing import Any

from attnverify.torch_impl.triton import additive_operators, operators
from attnverify.torch_impl.triton.kernels import attention
from tests.support.triton_sabotage import planted, put
from tests.torch_impl.triton.test_kernels import FAULTS


def find_faults() -> dict[str, Any]:
    """By name: what plants it, the operation that shows it, and the dtype."""

    def plant(module: Any, old: str, new: str) -> Any:
        place = operators if module is attention else additive_operators
        return lambda folder, patch: put(planted(module, old, new, folder), place, patch)

    return {
        name: (plant(module, old, new), operation, "float32")
        for name, (module, operation, old, new) in FAULTS.items()
    }
