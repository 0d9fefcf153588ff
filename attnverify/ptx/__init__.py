"""A GPU made of NumPy: executes PTX, and tells what a kernel does wrong."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from attnverify.ptx.findings import Finding, NotUnderstood, Place, Source

if TYPE_CHECKING:
    from attnverify.ptx.kernel import Kernel, Launched, Module, load
    from attnverify.ptx.storage.counts import Counts
    from attnverify.ptx.storage.device import Allocation, Memory

__all__ = [
    "Allocation",
    "Counts",
    "Finding",
    "Kernel",
    "Launched",
    "Memory",
    "Module",
    "NotUnderstood",
    "Place",
    "Source",
    "load",
]

PLACES = {
    "attnverify.ptx.kernel": ("Kernel", "Launched", "Module", "load"),
    "attnverify.ptx.storage.counts": ("Counts",),
    "attnverify.ptx.storage.device": ("Allocation", "Memory"),
}


def __getattr__(name: str) -> Any:
    """What executes is loaded when it is first asked for: most runs have no kernel for a GPU."""
    for module, names in PLACES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
