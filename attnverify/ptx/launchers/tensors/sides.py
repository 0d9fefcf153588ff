"""
Where tensors lie: on the host, or on the GPU that the machine is. All of them are in the memory of
the host, so that it is remembered of each storage what was said when it was made or moved.

What nobody said anything of, as of what a C++ function made, goes with either. What mixes the two
sides is refused in PyTorch's words, as Triton refuses a tensor of the host.
"""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

from attnverify.ptx.launchers.tensors.allocations import tensors_in

__all__ = ["CURRENT", "FACTORIES", "PINNED", "Sides", "is_on_host", "lies_on_gpu"]

CURRENT: ContextVar["Sides | None"] = ContextVar("CURRENT", default=None)
"""What knows where tensors lie now, if anything does."""
PINNED = WeakIdKeyDictionary()
"""Tensors that were asked for, or made to be, in memory that stays where it is."""

FACTORIES = {
    torch.tensor, torch.as_tensor, torch.asarray, torch.zeros, torch.ones,
    torch.empty, torch.full, torch.rand, torch.randn, torch.randint, torch.randperm, torch.arange,
    torch.linspace, torch.logspace, torch.eye, torch.empty_strided, torch.tril_indices,
    torch.triu_indices,
}  # fmt: skip
"""Functions whose results lie on the host unless a device is named."""

INDEXING = ("index", "_unsafe_index", "index_put", "index_put_", "_index_put_impl_")
MIXING = ("_to_copy", "copy", "copy_", "set_", "_pack_padded_sequence", "_ctc_loss", "is_same_size")
KINDS_OF_LISTS = ("_foreach_", "_fused_", "_amp_")
"""PyTorch takes these, or takes their lists element by element."""

TWO_DEVICES = (
    "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"
)
OF_INDICES = "indices should be either on cpu or on the same device as the indexed tensor (cpu)"
OFTEN = 1000
"""After so many storages those are forgotten that are no more."""


class Sides(TorchDispatchMode):
    """Sees every operator of PyTorch: what it makes lies where its arguments lie."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.known: dict[int, tuple[StorageWeakRef, bool]] = {}

    def __enter__(self) -> "Sides":
        self.token = CURRENT.set(self)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        CURRENT.reset(self.token)

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        given = list(tensors_in([*args, *(kwargs or {}).values()]))
        self.check(function.overloadpacket.__name__, args, given)
        made = function(*args, **(kwargs or {}))
        sides = {self.is_on_gpu(x) for x in given} - {None}
        if sides:
            for x in tensors_in(made):
                if self.is_on_gpu(x) is None:
                    self.put(x, True in sides)
        return made

    def is_on_gpu(self, x: torch.Tensor) -> bool | None:
        """Where a tensor lies; None where nobody said."""
        found = self.known.get(x.untyped_storage()._cdata)
        return None if found is None else found[1]

    def put(self, x: torch.Tensor, on_gpu: bool) -> None:
        storage = x.untyped_storage()
        self.known[storage._cdata] = StorageWeakRef(storage), on_gpu
        if len(self.known) % OFTEN == 0:
            self.known = {at: each for at, each in self.known.items() if not each[0].expired()}

    def check(self, name: str, args: Any, given: list[torch.Tensor]) -> None:
        """Refuse what mixes the sides; a single number of the host goes with either."""
        if name in INDEXING:
            self.check_indices(args)
        elif name not in MIXING and not name.startswith(KINDS_OF_LISTS):
            self.check_together(given)

    def check_together(self, given: list[torch.Tensor]) -> None:
        sides = {self.is_on_gpu(x) for x in given if x.ndim or self.is_on_gpu(x)}
        if {True, False} <= sides:
            raise RuntimeError(TWO_DEVICES)

    def check_indices(self, args: Any) -> None:
        """What is indexed on the GPU may be by indices of the host, not the other way round."""
        indices, values = list(tensors_in(list(args[1]))), list(tensors_in(list(args[2:3])))
        if self.is_on_gpu(args[0]) is False and any(self.is_on_gpu(x) for x in indices):
            raise RuntimeError(OF_INDICES)
        self.check_together([args[0], *values])

    def moved(self, made: Any, given: list[torch.Tensor], on_gpu: bool) -> Any:
        """What was asked for on a side, and lies there; what lay on the other is copied."""
        if isinstance(made, list | tuple):
            return type(made)(self.moved(each, given, on_gpu) for each in made)
        if not isinstance(made, torch.Tensor) or made.layout is not torch.strided:
            return made
        if self.is_on_gpu(made) is (not on_gpu) and any(shared(made, x) for x in given):
            made = made.clone()
        self.put(made, on_gpu)
        return made


def shared(x: torch.Tensor, y: torch.Tensor) -> bool:
    return bool(x.untyped_storage()._cdata == y.untyped_storage()._cdata)


def is_on_host(x: Any) -> bool:
    """Whether a kernel cannot reach a tensor, since it was said to lie on the host."""
    known = CURRENT.get()
    return (
        known is not None
        and isinstance(x, torch.Tensor)
        and known.is_on_gpu(x) is False
        and x not in PINNED
    )


def lies_on_gpu(storage: int) -> bool:
    """Whether a storage, by its address in C++, is not said to lie on the host."""
    known = CURRENT.get()
    return known is None or known.known.get(storage, (None, True))[1]


def asked_side(
    function: Callable[..., Any],
    args: Any,
    kwargs: dict[str, Any],
    is_device: Callable[[Any], bool],
) -> bool | None:
    """On which side a call asks for its result: True is the GPU; None where it does not say."""
    if function is torch.Tensor.cuda:
        return True
    if function in (torch.Tensor.cpu, torch.Tensor.pin_memory):
        return False
    named = [*([kwargs["device"]] if kwargs.get("device") is not None else ()), *args[1:]]
    if any(is_device(x) for x in named) or isinstance(kwargs.get("device"), int):
        return True
    if any(x == "cpu" or (isinstance(x, torch.device) and x.type == "cpu") for x in texts(named)):
        return False
    if function is torch.Tensor.to:
        other = kwargs.get("other", args[1] if len(args) > 1 else None)
        known = CURRENT.get()
        return known.is_on_gpu(other) if known and isinstance(other, torch.Tensor) else None
    if function in FACTORIES and next(tensors_in(list(args)), None) is None:
        return any(hasattr(x, "__cuda_array_interface__") for x in args)
    return None


def texts(named: list[Any]) -> list[Any]:
    return [x for x in named if isinstance(x, str | torch.device)]
