"""
The surroundings of a call: the state of the whole process that an implementation has to leave as it was.

:func:`look` reads it, :func:`restore` says what has changed since and puts it back. What is read is what an author's caller would
trip over: NumPy's and PyTorch's switches, random numbers, environment, directory, signal handlers, threads, children left behind.
"""

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
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

Values = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """
    One part of the surroundings.

    write   puts an earlier value back; None where nothing can
    once    an import inside a first call may change it as well: it counts where every call does it
    stir    moves random numbers on: who draws some changes the state too, who sets it leaves the same state wherever it was
    shown   what of a value may be shown: "" nothing, "keys" of a mapping, "all"
    """

    words: str
    read: Callable[[], Any]
    write: Callable[[Any], object] | None = None
    once: bool = False
    stir: Callable[[], object] | None = None
    shown: str = "all"


@dataclass(frozen=True)
class Change:
    """What was changed, in words; ``once`` as in Part; the state that random numbers were left in."""

    words: str
    once: bool
    state: Any = None

    def __str__(self) -> str:
        return f"{'changes' if self.state is None else 'seeds'} {self.words}"


def look() -> Values:
    """The surroundings as they are."""
    return {part.words: part.read() for part in parts()}


def restore(before: Values, only: Callable[[Part], bool] = lambda part: True) -> list[Change]:
    """What has changed since the look; it is put back where that can be done (for the parts that are asked for)."""
    found = []
    for part in parts():
        now, then = part.read(), before.get(part.words, MISSING)
        if then is MISSING or same(then, now):
            continue
        found.append(Change(told(part, then, now), part.once or part.stir is not None, now if part.stir else None))
        if part.write is not None and only(part):
            with suppress(Exception):  # what cannot be put back has been told
                part.write(then)
    return found


def stir() -> None:
    """Move all random numbers on."""
    for part in parts():
        if part.stir is not None:
            part.stir()


def lasting(first: list[Change], second: list[Change]) -> list[str]:
    """What two calls changed, in words: what either did, or both where once may be chance; random numbers were stirred between them."""
    both = [change for change in second if change.state is None or change in first]
    return list(dict.fromkeys(str(change) for change in (*first, *second) if not change.once or change in both))


MISSING = object()


def same(then: Any, now: Any) -> bool:
    """Whether nothing was taken away or replaced; ``Objects`` may grow."""
    return not then.differs(now) if isinstance(then, Objects) else bool(then == now)


class Objects(dict[str, Values]):
    """Things by place and name, compared by identity: they may do anything when asked for equality. What is new is nobody's business."""

    def differs(self, now: "Objects") -> list[str]:
        return [name for place, then in self.items() for name in replaced(place, then, now.get(place, {}))]


def replaced(place: str, then: Values, now: Values) -> Iterator[str]:
    """The public names that no longer mean the same; thousands of names are compared at once where nothing has changed."""
    if [*map(id, then.values())] != [*map(id, now.values())]:
        yield from (f"{place}.{name}".lstrip(".") for name, thing in then.items() if name[0] != "_" and now.get(name, MISSING) is not thing)


def told(part: Part, then: Any, now: Any) -> str:
    """``NumPy's error state (divide: warn -> ignore)``"""
    if isinstance(then, Objects):
        return f"{part.words} ({', '.join(then.differs(now)[:3])})"
    if isinstance(then, frozenset):
        return f"{part.words} ({', '.join(sorted(map(str, then ^ now))[:3])})"
    if isinstance(then, dict):
        names = [name for name in {**then, **now} if then.get(name, MISSING) != now.get(name, MISSING)][:3]
        shown = names if part.shown == "keys" else [f"{name}: {brief(then.get(name))} -> {brief(now.get(name))}" for name in names]
        return f"{part.words} ({', '.join(shown)})"
    return f"{part.words} ({brief(then)} -> {brief(now)})" if part.shown == "all" else part.words


def brief(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def parts() -> list[Part]:
    """What can be read here: PyTorch's switches once it is imported."""
    torch = sys.modules.get("torch")
    return [*PARTS, *(torch_parts(torch) if torch is not None and hasattr(torch, "autograd") and hasattr(torch, "cuda") else ())]


def directory() -> str:
    try:
        return os.getcwd()
    except OSError:
        return "one that is gone"


def random_numbers() -> tuple[Any, ...]:
    name, keys, *rest = np.random.get_state(legacy=True)
    return name, np.asarray(keys).tobytes(), *rest


def set_random_numbers(state: tuple[Any, ...]) -> None:
    name, keys, *rest = state
    np.random.set_state((name, np.frombuffer(keys, np.uint32), *rest))


def set_environment(then: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(then)


SIGNALS = [
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGALRM", "SIGCHLD", "SIGSEGV", "SIGFPE", "SIGUSR1", "SIGPIPE")
    if hasattr(signal, name)
]


def handlers() -> Objects:
    return Objects({"": {handled.name: signal.getsignal(handled) for handled in SIGNALS}})


def set_handlers(then: Objects) -> None:
    for name, handler in then[""].items():
        if handler is not None and signal.getsignal(getattr(signal, name)) is not handler:
            signal.signal(getattr(signal, name), handler)


def set_warnings(then: list[Any]) -> None:
    warnings.filters[:] = then  # type: ignore[index]
    warnings._filters_mutated()  # type: ignore[attr-defined]


WELL_KNOWN = ("builtins", "sys", "os", "math", "random", "warnings", "numpy", "numpy.random", "torch", "torch.nn.functional", "cupy", "jax")


def well_known() -> Objects:
    return Objects({"": {name: sys.modules[name] for name in WELL_KNOWN if name in sys.modules}})


PATCHABLE = ("builtins", "math", "random", "time", "numpy", "numpy.linalg", "torch", "torch.nn.functional")


def functions() -> Objects:
    """The contents of the modules that everybody uses, the judge too."""
    loaded = ((place, sys.modules.get(place)) for place in PATCHABLE)
    return Objects({place: dict(vars(module)) for place, module in loaded if isinstance(module, ModuleType)})


def set_functions(then: Objects) -> None:
    for path in then.differs(functions()):
        place, _, name = path.rpartition(".")
        setattr(sys.modules[place], name, then[place][name])


def outlets() -> Objects:
    return Objects({"": {name: getattr(sys, name) for name in ("stdin", "stdout", "stderr", "excepthook", "displayhook")}})


def set_outlets(then: Objects) -> None:
    for name, thing in then[""].items():
        setattr(sys, name, thing)


def streams() -> dict[str, Any]:
    """What the three standard descriptors lead to; None where one is closed."""
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
    """A descriptor that was closed or led elsewhere leads nowhere, so that no other file is opened under its number."""
    now = streams()
    for number, name in enumerate(then):
        if now[name] != then[name] and then[name] != "closed":
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)


def children() -> frozenset[int]:
    found: set[int] = set()
    for task in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):
            found.update(map(int, task.read_text().split()))
    return frozenset(found)


TINY = [5e-324]


def flushed() -> str:
    """Whether this thread's arithmetic flushes subnormal numbers to 0, as a library built with -ffast-math makes it do."""
    return "flushed to 0" if TINY[0] * 1.0 == 0.0 or math.fsum(TINY) == 0.0 else "kept"


def set_flushed(_: str) -> None:
    """The floating-point environment as a process starts with it (FE_DFL_ENV of the C library)."""
    ctypes.CDLL(None).fesetenv(ctypes.c_void_p(-1))


PARTS = (
    Part("NumPy's error state", np.geterr, lambda then: np.seterr(**then)),
    Part("NumPy's print options", np.get_printoptions, lambda then: np.set_printoptions(**then)),
    Part("NumPy's random numbers", random_numbers, set_random_numbers, stir=np.random.random, shown=""),
    Part("Python's random numbers", random.getstate, random.setstate, stir=random.random, shown=""),
    Part("the environment", os.environ.copy, set_environment, once=True, shown="keys"),
    Part("the working directory", directory, os.chdir),
    Part("the warnings filters", lambda: list(warnings.filters), set_warnings, once=True, shown=""),
    Part("the signal handlers", handlers, set_handlers),
    Part("the locale", lambda: locale.setlocale(locale.LC_ALL), lambda then: locale.setlocale(locale.LC_ALL, then)),
    Part("sys.path", lambda: list(sys.path), lambda then: sys.path.__setitem__(slice(None), then), once=True, shown=""),
    Part("sys.modules", well_known, lambda then: sys.modules.update(then[""])),
    Part("functions of others", functions, set_functions, once=True),
    Part("the recursion limit", sys.getrecursionlimit, sys.setrecursionlimit),
    Part("the garbage collector", lambda: "on" if gc.isenabled() else "off", lambda then: gc.enable() if then == "on" else gc.disable()),
    Part("Python's standard streams", outlets, set_outlets),
    Part("the standard streams", streams, set_streams),
    Part("subnormal numbers", flushed, set_flushed),
    Part("the running threads", lambda: frozenset(thread.name for thread in threading.enumerate()), once=True),
    Part("the child processes", children, once=True),
)


def torch_parts(torch: Any) -> Iterator[Part]:
    """PyTorch's switches; its devices are asked only once they are in use."""
    yield Part("torch's default dtype", torch.get_default_dtype, torch.set_default_dtype)
    yield Part("torch's default device", torch.get_default_device, torch.set_default_device)
    yield Part("torch's grad mode", torch.is_grad_enabled, torch.set_grad_enabled)
    yield generator("torch's random numbers", torch, torch, "cpu")
    yield Part("torch's deterministic algorithms", torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms)
    yield Part("torch's threads", torch.get_num_threads, torch.set_num_threads)
    yield Part("torch's float32 products", torch.get_float32_matmul_precision, torch.set_float32_matmul_precision)
    yield Part("torch's anomaly mode", torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly)
    for name in ("deterministic", "benchmark", "allow_tf32"):
        yield flag(torch.backends.cudnn, name, f"cudnn.{name}")
    if torch.cuda.is_initialized():
        yield Part("the current device", torch.cuda.current_device, torch.cuda.set_device)
        yield generator("the device's random numbers", torch, torch.cuda, "cuda")


def flag(place: Any, name: str, words: str) -> Part:
    return Part(words, lambda: getattr(place, name), lambda then: setattr(place, name, then))


def generator(words: str, torch: Any, place: Any, device: str) -> Part:
    """The random numbers of PyTorch on a device; ``place`` has the two functions."""

    def read() -> bytes:
        state: bytes = place.get_rng_state().numpy().tobytes()
        return state

    def write(then: bytes) -> None:
        place.set_rng_state(torch.frombuffer(bytearray(then), dtype=torch.uint8))

    return Part(words, read, write, stir=lambda: torch.rand(1, device=device), shown="")
