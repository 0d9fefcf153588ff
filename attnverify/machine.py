"""
The machine as far as it decides how sums are rounded: the processor, the BLAS and the code path
that it chose, the threads; how the processors are shared out among the processes of a run; and on
which platforms attnverify is tested.
"""

import os
import platform
import sys
from pathlib import Path
from typing import Any

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""What a user says the number of threads by; the libraries read them as they are loaded."""

PATHS = (
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "OPENBLAS_CORETYPE",
    "ATEN_CPU_CAPABILITY",
    "ONEDNN_MAX_CPU_ISA",
    "NPY_DISABLE_CPU_FEATURES",
)
"""What chooses another processor's code path."""


def share_out_processors(processes: int) -> None:
    """
    Give this process, and those that it starts, its part of the processors, unless the user has set
    a number. It counts for libraries that are not loaded yet.
    """
    if not any(os.environ.get(name) for name in THREADS):
        os.environ["OMP_NUM_THREADS"] = str(max(1, count_processors() // processes))


def count_processors() -> int:
    """Those that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def available_memory() -> int | None:
    """Bytes that a process may still take, where the system says so."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    told = (line.split()[1] for line in lines if line.startswith("MemAvailable"))
    return next((1024 * int(kilobytes) for kilobytes in told), None)


def processor_name() -> str:
    """Read the processor's own name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def describe_machine() -> dict[str, str]:
    """Processor, and of each library that is loaded what it is, its code path and its threads."""
    found = {
        "processor": f"{processor_name()}, {count_processors()} cores",
        "arithmetic": "; ".join((*describe_blas(), *describe_torch())),
    }
    chosen = [f"{name}={os.environ[name]}" for name in PATHS if os.environ.get(name)]
    return found | ({"code path": " ".join(chosen)} if chosen else {})


def _blas_of_build() -> str:
    import numpy as np

    built = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    return f"{built['name']} {built['version']}"


def describe_blas() -> list[str]:
    """
    Describe the BLAS: ``openblas 0.3.31 SkylakeX, 1 thread``; by NumPy's build alone where
    threadpoolctl is not.
    """
    try:  # here, for doctor imports nothing but the standard library
        from threadpoolctl import threadpool_info
    except ImportError:
        return [_blas_of_build()]
    pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    told = {
        " ".join(filter(None, (pool["internal_api"], pool["version"], pool.get("architecture"))))
        + f", {count_threads(pool['num_threads'])}"
        for pool in pools
    }
    return sorted(told)


def describe_torch() -> list[str]:
    """Describe the same of PyTorch, whose BLAS is part of it; nothing where it is not loaded."""
    torch: Any = sys.modules.get("torch")
    if not hasattr(torch, "backends"):
        return []
    blas = "MKL" if torch.backends.mkl.is_available() else "no MKL"
    path = torch.backends.cpu.get_cpu_capability()
    threads = count_threads(torch.get_num_threads())
    return [f"torch {torch.__version__} {path}, {blas}, {threads}"]


def count_threads(number: int) -> str:
    return f"{number} thread{'s' * (number != 1)}"


PLATFORMS = {
    "Linux, x86-64": "tested at each commit with Python 3.11, without a GPU; 3.12 and 3.13 by its "
    "workflow",
    "NVIDIA GPUs": "no kernel was run on one yet: python -m benchmarks.gpu_report comes first",
    "ROCm": "PyTorch's own functions and Triton kernels expected to work, untested; no CUDA C++",
    "macOS": "expected to work, untested; --memory limits nothing, no Triton, no CuPy",
    "Windows": "expected to work under WSL 2, untested; natively with --isolate none",
}
"""What doctor prints and the README says."""
