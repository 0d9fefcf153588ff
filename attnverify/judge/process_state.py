"""
The parts of a process that a call has to leave as they were, each with how it is read and put back.

What is listed is what a caller would trip over: NumPy's and PyTorch's switches, random numbers, the
environment, signal handlers, functions of other modules, threads and children left behind.
"""

import atexit
import ctypes
import gc
import locale
import math
import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.random import mtrand

from attnverify.judge.module_contents import (
    OF_TORCH,
    ModuleContents,
    functions,
    functions_of_judge,
    set_functions,
    set_functions_of_judge,
    set_methods,
    well_known_modules,
)


@dataclass(frozen=True)
class StateItem:
    """
    One part of the surroundings.

    write   puts an earlier value back; None where nothing can
    once    an import inside a first call may change it as well: it counts where every call does it
    stir    moves random numbers on: who draws some changes the state too, who sets it leaves the
            same state wherever it was
    shown   what of a value may be shown: "" nothing, "keys" of a mapping, "all"
    vital   the judge itself depends on it
    ending  what is new may be about to end: it is looked at again before it counts
    """

    words: str
    read: Callable[[], Any]
    write: Callable[[Any], object] | None = None
    once: bool = False
    stir: Callable[[], object] | None = None
    shown: str = "all"
    vital: bool = False
    ending: bool = False


def state_items() -> list[StateItem]:
    """List what can be read here: PyTorch's switches once it is imported."""
    torch = sys.modules.get("torch")
    imported = torch is not None and hasattr(torch, "autograd") and hasattr(torch, "cuda")
    return [
        *PARTS,
        *(
            torch_state_items(torch, torch.cuda.is_initialized())
            if torch is not None and imported
            else ()
        ),
    ]


def directory() -> str:
    try:
        return os.getcwd()
    except OSError:
        return "one that is gone"


MERSENNE = 624 * 4


def random_numbers() -> tuple[str, bytes, int]:
    """
    Name, key and position of NumPy's generator, from where the Mersenne twister keeps them:
    get_state takes thirty times as long.
    """
    generator = mtrand.get_bit_generator()
    state = (
        ctypes.string_at(generator.ctypes.state_address, MERSENNE + 4)
        if isinstance(generator, np.random.MT19937)
        else b""
    )
    return (
        type(generator).__name__,
        state[:MERSENNE],
        int.from_bytes(state[MERSENNE:], sys.byteorder),
    )


def set_random_numbers(state: tuple[str, bytes, int]) -> None:
    """A generator that was replaced is put back as another of its kind."""
    name, key, position = state
    if name != type(mtrand.get_bit_generator()).__name__:
        mtrand.set_bit_generator(getattr(np.random, name)())
    if key:
        np.random.set_state((name, np.frombuffer(key, np.uint32), position, 0, 0.0))


def environment() -> dict[Any, Any]:
    """Read what lies beneath os.environ, which decodes every name and value at every look."""
    return dict(getattr(os.environ, "_data", os.environ))


def set_environment(then: dict[Any, Any]) -> None:
    os.environ.clear()
    os.environ.update({os.fsdecode(name): os.fsdecode(value) for name, value in then.items()})


SIGNALS = {
    name: int(getattr(signal, name))
    for name in (
        "SIGINT",
        "SIGTERM",
        "SIGALRM",
        "SIGCHLD",
        "SIGSEGV",
        "SIGFPE",
        "SIGUSR1",
        "SIGPIPE",
    )
    if hasattr(signal, name)
}


def set_handlers(then: ModuleContents) -> None:
    for name, handler in then[""].items():
        if handler is not None and signal.getsignal(getattr(signal, name)) is not handler:
            signal.signal(getattr(signal, name), handler)


def set_warnings(then: list[Any]) -> None:
    warnings.filters[:] = then  # type: ignore[index]
    warnings._filters_mutated()  # type: ignore[attr-defined]


def python_streams() -> ModuleContents:
    found = {
        name: getattr(sys, name, None)
        for name in ("stdin", "stdout", "stderr", "excepthook", "displayhook")
    }
    return ModuleContents(
        {
            "": {
                name: CLOSED if getattr(thing, "closed", False) else thing
                for name, thing in found.items()
            }
        }
    )


CLOSED = "closed"


def set_outlets(then: ModuleContents) -> None:
    """Put another stream in the place of one that was closed, which cannot be opened again."""
    for number, (name, thing) in enumerate(then[""].items()):
        if getattr(thing, "closed", False):
            thing = open(number, "r" if name == "stdin" else "w", closefd=False)  # noqa: SIM115
        if thing is not CLOSED:
            setattr(sys, name, thing)


def file_descriptors() -> dict[str, Any]:
    """Tell what the three standard descriptors lead to; None where one is closed."""
    found = {}
    for name, number in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
        try:
            state = os.fstat(number)
        except OSError:
            found[name] = "closed"
        else:
            found[name] = f"file {state.st_dev}:{state.st_ino}"
    return found


def set_streams(then: dict[str, Any]) -> None:
    """
    A descriptor that was closed or led elsewhere leads nowhere, so that no other file is opened
    under its number.
    """
    now = file_descriptors()
    for number, name in enumerate(then):
        if now[name] != then[name] and then[name] != "closed":
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)


def find_child_processes() -> frozenset[int]:
    with suppress(
        ChildProcessError, AttributeError
    ):  # not every system can be asked whether there are any
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return children_of_tasks()
    return frozenset()


def children_of_tasks() -> frozenset[int]:
    found: set[int] = set()
    with suppress(OSError):  # a thread may end meanwhile, and not every system has such files
        for task in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{task}/children") as file:
                found.update(map(int, file.read().split()))
    return frozenset(found)


TINY = [5e-324]


def flushes_subnormals() -> str:
    """
    Tell whether this thread's arithmetic flushes subnormal numbers to 0, as a library built with
    -ffast-math makes it do.
    """
    return "flushed to 0" if TINY[0] * 1.0 == 0.0 or math.fsum(TINY) == 0.0 else "kept"


def set_flushed(_: str) -> None:
    """
    Set the floating-point environment as a process starts with it (FE_DFL_ENV of the C library).
    """
    ctypes.CDLL(None).fesetenv(ctypes.c_void_p(-1))


PARTS = (
    StateItem("NumPy's error state", np.geterr, lambda then: np.seterr(**then)),
    StateItem(
        "NumPy's print options", np.get_printoptions, lambda then: np.set_printoptions(**then)
    ),
    StateItem(
        "NumPy's random numbers",
        random_numbers,
        set_random_numbers,
        stir=np.random.random,
        shown="",
    ),
    StateItem(
        "Python's random numbers", random.getstate, random.setstate, stir=random.random, shown=""
    ),
    StateItem("the environment", environment, set_environment, once=True, shown="keys"),
    StateItem("the working directory", directory, os.chdir),
    StateItem(
        "the warnings filters", lambda: list(warnings.filters), set_warnings, once=True, shown=""
    ),
    StateItem(
        "the signal handlers",
        lambda: ModuleContents(
            {"": {name: signal.getsignal(number) for name, number in SIGNALS.items()}}
        ),
        set_handlers,
    ),
    StateItem(
        "the locale",
        lambda: locale.setlocale(locale.LC_ALL),
        lambda then: locale.setlocale(locale.LC_ALL, then),
    ),
    StateItem(
        "sys.path",
        lambda: list(sys.path),
        lambda then: sys.path.__setitem__(slice(None), then),
        once=True,
        shown="",
    ),
    StateItem(
        "sys.modules", well_known_modules, lambda then: sys.modules.update(then[""]), vital=True
    ),
    StateItem(
        "functions of others",
        partial(functions, "builtins", "math", "time", "numpy", "numpy.linalg"),
        set_functions,
        once=True,
        vital=True,
    ),
    StateItem("the judge's own functions", functions_of_judge, set_functions_of_judge, vital=True),
    StateItem("the recursion limit", sys.getrecursionlimit, sys.setrecursionlimit),
    StateItem(
        "the garbage collector",
        lambda: "on" if gc.isenabled() else "off",
        lambda then: gc.enable() if then == "on" else gc.disable(),
    ),
    StateItem("the standard streams", file_descriptors, set_streams),
    StateItem("Python's standard streams", python_streams, set_outlets),
    StateItem("subnormal numbers", flushes_subnormals, set_flushed, vital=True),
    StateItem("the functions that run at exit", getattr(atexit, "_ncallbacks", int), once=True),
    StateItem(
        "the running threads", lambda: frozenset(threading.enumerate()), once=True, ending=True
    ),
    StateItem("the child processes", find_child_processes, once=True),
)


@lru_cache(maxsize=2)
def torch_state_items(torch: Any, on_device: bool) -> tuple[StateItem, ...]:
    """PyTorch's switches; its devices are asked only once they are in use."""
    of_device = (
        StateItem("the current device", torch.cuda.current_device, torch.cuda.set_device),
        generator("the device's random numbers", torch, torch.cuda, "cuda"),
    )
    return (
        StateItem("torch's default dtype", torch.get_default_dtype, torch.set_default_dtype),
        StateItem("torch's functions", partial(functions, *OF_TORCH), set_functions, once=True),
        StateItem(
            "torch's tensors",
            lambda: dict(vars(torch.Tensor)),
            partial(set_methods, torch.Tensor),
            once=True,
            shown="keys",
        ),
        StateItem(
            "torch's default device",
            torch.get_default_device,
            lambda then: torch.set_default_device(then if then.type != "cpu" else None),
        ),
        StateItem("torch's grad mode", torch.is_grad_enabled, torch.set_grad_enabled),
        generator("torch's random numbers", torch, torch, "cpu"),
        StateItem(
            "torch's deterministic algorithms",
            torch.are_deterministic_algorithms_enabled,
            torch.use_deterministic_algorithms,
        ),
        StateItem("torch's threads", torch.get_num_threads, torch.set_num_threads),
        StateItem(
            "torch's float32 products",
            torch.get_float32_matmul_precision,
            torch.set_float32_matmul_precision,
        ),
        StateItem(
            "torch's anomaly mode", torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly
        ),
        *(
            flag(torch.backends.cudnn, name, f"cudnn.{name}")
            for name in ("deterministic", "benchmark", "allow_tf32")
        ),
        *(of_device if on_device else ()),
    )


def flag(place: Any, name: str, words: str) -> StateItem:
    return StateItem(words, lambda: getattr(place, name), lambda then: setattr(place, name, then))


def generator(words: str, torch: Any, place: Any, device: str) -> StateItem:
    """Describe the random numbers of PyTorch on a device; ``place`` has the two functions."""

    def read() -> bytes:
        state: bytes = place.get_rng_state().numpy().tobytes()
        return state

    def write(then: bytes) -> None:
        place.set_rng_state(torch.frombuffer(bytearray(then), dtype=torch.uint8))

    return StateItem(words, read, write, stir=lambda: torch.rand(1, device=device), shown="")
