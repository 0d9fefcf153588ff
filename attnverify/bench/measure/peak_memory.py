"""
Peak extra memory of a call: the most that was allocated at once beyond what was there before, less
the outputs.

PyTorch's allocators are asked on a CPU by its profiler and on a GPU by its counters; NumPy (and
CuPy on NumPy arrays) by tracemalloc.
"""

import os
import tracemalloc
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from itertools import accumulate
from typing import Any

from attnverify.backends.implementation import Implementation
from attnverify.bench.measure.clock import Call
from attnverify.catalogue.pytrees import leaves


def peak(implementation: Implementation, device: str, call: Call) -> int | None:
    """Bytes; None where nobody can be asked."""
    library = implementation.library.name
    if library == "torch":
        return of_torch_gpu(call) if device == "cuda" else of_torch_cpu(call)
    return of_numpy(call) if device == "cpu" and library in ("numpy", "cupy") else None


@contextmanager
def quiet_profiler() -> Iterator[None]:
    """PyTorch's profiler writes of itself on standard error, unless told not to the first time."""
    name, before = "KINETO_LOG_LEVEL", os.environ.get("KINETO_LOG_LEVEL")
    os.environ[name] = before or "99"
    try:
        yield
    finally:
        os.environ.pop(name)
        os.environ |= {name: before} if before else {}


def of_torch_cpu(call: Call) -> int:
    profiler = import_module("torch.profiler")
    with warnings.catch_warnings(), quiet_profiler():
        warnings.simplefilter(
            "ignore"
        )  # the first use warns of a default that does not matter for one cycle
        with profiler.profile(
            activities=[profiler.ProfilerActivity.CPU], profile_memory=True
        ) as profile:
            outputs = call()
    events = [
        event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"
    ]
    steps = (event.nbytes() for event in sorted(events, key=lambda event: event.start_ns()))
    return max(max(accumulate(steps), default=0) - count_output_bytes(outputs), 0)


def of_torch_gpu(call: Call) -> int:
    cuda = import_module("torch").cuda
    cuda.synchronize()
    cuda.reset_peak_memory_stats()
    before = cuda.memory_allocated()
    outputs = call()
    cuda.synchronize()
    return max(cuda.max_memory_allocated() - before - count_output_bytes(outputs), 0)


def of_numpy(call: Call) -> int:
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        outputs = call()
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return max(most - before - count_output_bytes(outputs), 0)


def count_output_bytes(outputs: Any) -> int:
    """Count the bytes of the outputs themselves."""
    return sum(int(x.nbytes) for x in leaves(outputs) if hasattr(x, "nbytes"))
