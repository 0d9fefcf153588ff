"""
Samples: every contestant in turn, round after round, in one process, so that clocks and neighbours
hit all alike.

Each round has numbers that no call has seen before, and all contestants get the same ones. Before a
call the caches are flushed and the free memory is poisoned; right after it the outputs are copied
in the stream that was timed, and later they must still be what they were: work that goes on
elsewhere shows.
"""

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from attnverify.bench.measure.clock import reset_persisting_cache
from attnverify.catalogue.pytrees import leaves

Call = Callable[[], Any]

FLUSH = {"cpu": 2**26, "cuda": 2**28}
"""
Bytes that are overwritten before each call: more than the caches that are a core's or a GPU's own.
"""

STABLE, WARM_UPS, LEAST, MOST = 0.05, 12, 5, 60


@dataclass
class Sampled:
    """
    What the rounds left of a contestant: seconds of each round, on the device and of the host that
    asks, and the outputs of some rounds as they were right after the call.
    """

    seconds: list[float] = field(default_factory=list)
    host: list[float] = field(default_factory=list)
    kept: dict[int, Any] = field(default_factory=dict)
    warm_ups: int = 0


def flush(device: str) -> None:
    """Overwrite more than the caches hold; of a GPU's, what was set aside too."""
    flushed(device)[...] = 0
    if device == "cuda":
        reset_persisting_cache()


@cache
def flushed(device: str) -> Any:
    if device == "cpu":
        return np.zeros(FLUSH[device] // 8)
    return import_module("torch").zeros(FLUSH[device] // 4, device="cuda")


def poison(outputs: Any) -> None:
    """
    Leave NaN in the memory that the outputs will probably be given: what is not written yet is not
    a number.
    """
    freed = [unwritten(x) for x in leaves(outputs) if hasattr(x, "shape")]
    del freed


def unwritten(x: Any) -> Any:
    """An array like this one that holds no number; of whole numbers, what there was."""
    if hasattr(x, "new_full"):
        return x.new_full(x.shape, float("nan")) if x.is_floating_point() else x.clone()
    return x.copy() if x.dtype.kind in "biu" else np.full_like(x, np.nan)


def warm_up(sample: Callable[[], float], most: int) -> int:
    """
    Call until three calls in a row differ by less than five per cent, or often enough; how many
    calls that took.
    """
    last, start = list[float](), time.perf_counter()
    for number in range(1, most + 1):
        last = [*last[-2:], sample()]
        if len(last) == 3 and max(last) - min(last) <= STABLE * median(last):
            return number
        if number >= 2 and time.perf_counter() - start > PATIENCE:
            return number
    return most


PATIENCE = 1.0
"""Seconds after which a slow call is warm enough, from its second on."""


def rounds_for(seconds: float, each: float) -> int:
    """Count how many rounds fit into the time, within reason."""
    return int(min(max(seconds / max(each, 1e-6), LEAST), MOST)) if seconds else 2


def balanced_orders(labels: list[str], rounds: int) -> Iterator[list[str]]:
    """
    A-B-C, then C-B-A, each time from another place: nobody is always behind the same neighbour.
    """
    for number in range(rounds):
        turn = number % len(labels) if labels else 0
        order = labels[turn:] + labels[:turn]
        yield order if number % 2 == 0 else order[::-1]


def changed_after_timing(outputs: Any, copy: Any) -> str:
    """
    Tell how outputs differ from the copy that was made when the clock stopped, bit for bit; nothing
    where they do not.
    """
    pairs = enumerate(zip(leaves(outputs), leaves(copy), strict=True))
    different = [i for i, (x, y) in pairs if hasattr(x, "shape") and not same_bits(x, y)]
    return (
        f"outputs {different} were still being written after the clock had stopped"
        if different
        else ""
    )


def same_bits(x: Any, y: Any) -> bool:
    """Compare where the arrays lie; NaN is what it is, and equal to itself."""
    if hasattr(x, "untyped_storage"):
        torch = import_module("torch")
        return bool(torch.equal(*(a.detach().contiguous().view(torch.uint8) for a in (x, y))))
    x, y = (a.reshape(-1).view("uint8") for a in (x, y))
    return bool((x == y).all())


def clocks(device: str) -> dict[str, Any]:
    """Read what the machine says of its clocks and its load, where it can be asked."""
    found: dict[str, Any] = {
        "load": os.getloadavg()[0],
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
    }
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        found["cpu_mhz"] = max(
            float(line.partition(":")[2]) for line in lines if line.startswith("cpu MHz")
        )
    except (OSError, ValueError):
        pass
    return found | (gpu_clocks() if device == "cuda" else {})


def gpu_clocks() -> dict[str, Any]:
    import subprocess

    asked = "clocks.sm,clocks.mem,temperature.gpu,power.draw"
    try:
        line = subprocess.run(
            ["nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(
        zip(
            asked.split(","),
            (part.strip() for part in line.stdout.splitlines()[0].split(",")),
            strict=False,
        )
    )
