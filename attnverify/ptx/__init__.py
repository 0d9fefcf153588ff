"""A GPU made of NumPy: executes PTX, and tells what a kernel does wrong."""

from attnverify.ptx.findings import Finding, NotUnderstood, Place, Source
from attnverify.ptx.kernel import Kernel, Launched, Module, load
from attnverify.ptx.storage.device import Allocation, Memory

__all__ = [
    "Allocation",
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
