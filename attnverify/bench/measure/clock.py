"""
The clock: seconds of a call on its device, and on the host that asked for it.

On a GPU two events stand around the call in its own stream, behind a delay that lasts until the
host has asked for all of it: else the first event waits in an idle device for the host, whose time
would be measured. What the clock calls is kept before any contestant is loaded, so that none can
exchange it.
"""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from time import perf_counter
from typing import Any

from attnverify.backends.array_libraries import Library
from attnverify.catalogue.pytrees import map_leaves

__all__ = ["Clock", "Timed", "event_clock", "reset_persisting_cache", "timed"]

Call = Callable[[], Any]

DELAY = 2_000_000
"""Clock cycles before the first event, about a millisecond: more than the host needs to ask."""


@dataclass(frozen=True)
class Timed:
    """
    Seconds on the device, and until the host had asked for the call; the outputs, and a copy that
    the timed stream made at once.
    """

    seconds: float
    host: float
    outputs: Any
    copy: Any


@dataclass(frozen=True)
class Clock:
    """The functions of an array library that a time is taken by."""

    event: Callable[[], Any]
    record: Callable[[Any], Any]
    milliseconds: Callable[[Any, Any], float]
    delay: Callable[[], Any]
    synchronize: Callable[[], Any]

    def time(self, call: Call) -> Timed:
        """Time a call by events, behind the delay."""
        start, stop = self.event(), self.event()
        self.synchronize()
        self.delay()
        self.record(start)
        asked = perf_counter()
        outputs = call()
        host = perf_counter() - asked
        self.record(stop)
        copy = copy_outputs(outputs)
        self.synchronize()
        return Timed(self.milliseconds(start, stop) / 1e3, host, outputs, copy)


@cache
def event_clock(library: str) -> Clock:
    """The clock of PyTorch or CuPy: what it calls is looked up once, the first time."""
    torch = import_module("torch")
    sleep = torch.cuda._sleep

    def delay() -> None:
        sleep(DELAY)

    if library == "torch":
        event = torch.cuda.Event
        return Clock(
            lambda: event(enable_timing=True),
            event.record,
            event.elapsed_time,
            delay,
            torch.cuda.synchronize,
        )
    cupy = import_module("cupy")
    event = cupy.cuda.Event
    return Clock(
        event,
        event.record,
        cupy.cuda.get_elapsed_time,
        delay,  # both work in the device's default stream
        lambda: cupy.cuda.Device().synchronize(),
    )


def timed(library: Library, device: str, call: Call) -> Timed:
    """Time a call, by events where the library has a device."""
    if device == "cuda" and library.name in ("torch", "cupy"):
        return event_clock(library.name).time(call)
    library.synchronize()
    start = perf_counter()
    outputs = call()
    asked = perf_counter()
    library.synchronize()
    stop = perf_counter()
    return Timed(stop - start, asked - start, outputs, copy_outputs(outputs))


def copy_outputs(outputs: Any) -> Any:
    """Copy every array by means of the array's own library."""
    return map_leaves(
        lambda x: x.clone() if hasattr(x, "clone") else x.copy() if hasattr(x, "copy") else x,
        outputs,
    )


@cache
def driver() -> Any:
    """The driver of NVIDIA's devices, or None."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def reset_persisting_cache() -> None:
    """
    Give back what a call has set aside of the second-level cache: it survives the flush, and would
    serve its next call alone.
    """
    found = driver()
    if found is not None:
        found.cuCtxResetPersistingL2Cache()
