"""
What was allocated on "cuda" and nobody has written yet: of each storage of ``torch.empty`` and its
kin, which bytes PyTorch or a kernel has written since.

PyTorch says of each of its operators which arguments it writes. Where a tensor leaves it
(``numpy``, DLPack), all of it counts as written from then on.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from attnverify.ptx.kinds import Array
from attnverify.ptx.launchers import arrays

__all__ = ["Allocations", "extent_of"]

EMPTY = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
LEAVING = (torch.Tensor.numpy, torch.Tensor.__array__, torch.Tensor.__dlpack__)


@dataclass
class Allocated:
    """A storage, and which of its bytes were written."""

    storage: StorageWeakRef
    written: Array


class Leaving(TorchFunctionMode):
    """What leaves PyTorch counts as written."""

    def __init__(self, allocations: "Allocations") -> None:
        super().__init__()
        self.allocations = allocations

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function in LEAVING:
            self.allocations.write(args[0])
        return function(*args, **(kwargs or {}))


class Allocations(TorchDispatchMode):
    """Sees every operator of PyTorch, and remembers what none has written."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.known: dict[int, Allocated] = {}
        self.leaving = Leaving(self)

    def __enter__(self) -> "Allocations":
        arrays.WRITTEN.append(self.written_in)
        self.leaving.__enter__()  # type: ignore[no-untyped-call]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self.leaving.__exit__(*error)  # type: ignore[no-untyped-call]
        arrays.WRITTEN.remove(self.written_in)

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = function(*args, **(kwargs or {}))
        if function.overloadpacket.__name__ in EMPTY:
            self.note(made)
            return made
        for argument, given in zip(function._schema.arguments, args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                self.write(given)
        for argument in function._schema.arguments:
            if argument.alias_info is not None and argument.alias_info.is_write:
                self.write((kwargs or {}).get(argument.name))
        if all(result.alias_info is None for result in function._schema.returns):
            self.write(made)
        return made

    def note(self, x: torch.Tensor) -> None:
        storage = x.untyped_storage()
        if x.is_cpu and storage.nbytes():
            blank = np.zeros(storage.nbytes(), bool)
            self.known[storage.data_ptr()] = Allocated(StorageWeakRef(storage), blank)

    def write(self, x: Any) -> None:
        """All between the first and the last byte of tensors is written."""
        for each in tensors_in(x):
            start = each.untyped_storage().data_ptr()
            if start in self.known:
                first, end = extent_of(each)
                self.known[start].written[first - start : end - start] = True

    def written_in(self, start: int, size: int) -> Array | None:
        """Which of so many bytes from an address on were written; None where all count as such."""
        for at, each in list(self.known.items()):
            if each.storage.expired():
                del self.known[at]
            elif at <= start and start + size <= at + len(each.written):
                return each.written[start - at : start - at + size]
        return None


def tensors_in(x: Any) -> Iterator[torch.Tensor]:
    if isinstance(x, torch.Tensor):
        if x.layout is torch.strided and type(x) in (torch.Tensor, torch.nn.Parameter):
            yield x
    elif isinstance(x, list | tuple):
        for each in x:
            yield from tensors_in(each)


def extent_of(x: torch.Tensor) -> tuple[int, int]:
    """The addresses of a tensor's first byte, and behind its last."""
    last = sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True))
    return x.data_ptr(), x.data_ptr() + ((last + 1) * x.element_size() if x.numel() else 0)
