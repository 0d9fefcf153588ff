"""
Which device a worker process has for itself: said before any array library is imported, by the
environment alone.
"""

import os
import shutil
import subprocess
from functools import lru_cache


def assign_device(worker: int) -> str | None:
    """
    Show this process one device, in turn: worker 0 the first, worker 1 the second, and from the
    start again.

    Gives its name, or None where there are fewer than two devices to share out.
    """
    if os.environ.get(PINNED):
        return os.environ["CUDA_VISIBLE_DEVICES"]
    found = devices()
    if len(found) < 2:
        return None
    os.environ[PINNED], os.environ["CUDA_VISIBLE_DEVICES"] = str(worker), found[worker % len(found)]
    return os.environ["CUDA_VISIBLE_DEVICES"]


def show_device(name: str) -> None:
    """
    Show this process, and those that it starts, one device alone: ``cpu``, ``cuda`` or ``cuda:1``,
    counted among those that it may see, or none and the PTX machine in its place: ``sm_80``. Raises
    ValueError where there is no such device.
    """
    found = check_device(name)
    kind, _, number = name.partition(":")
    if name in TARGETS:
        os.environ[MACHINE], os.environ["CUDA_VISIBLE_DEVICES"] = str(TARGETS[name]), ""
    elif kind == "cpu" or number:
        os.environ["CUDA_VISIBLE_DEVICES"] = found[int(number)] if found else ""


def check_device(name: str) -> list[str]:
    """
    List the devices that a name is counted among. Raises ValueError where there is no such device.
    """
    kind, _, number = name.partition(":")
    found = [] if kind == "cpu" or name in TARGETS else devices()
    if kind == "cuda" and int(number or 0) >= len(found):
        raise ValueError(
            f"--device: wanted one of {len(found)} CUDA devices, got {name}"
            if found
            else f"--device: there is no CUDA device here, got {name}; {IN_ITS_PLACE}"
        )
    return found


IN_ITS_PLACE = "sm_90a stands for one, executed by the PTX machine"

TARGETS = {"sm_80": 80, "sm_86": 86, "sm_89": 89, "sm_90": 90, "sm_90a": 90}
"""The GPUs that the PTX machine stands for, and their compute capabilities."""

MACHINE = "ATTNVERIFY_MACHINE"
"""The compute capability of the PTX machine, in a process that was asked to run files on it."""


def chosen_machine() -> int | None:
    """
    Read the compute capability that ``--device sm_80`` and its kin ask for; None without them.
    """
    asked = os.environ.get(MACHINE)
    return int(asked) if asked else None


PINNED = "ATTNVERIFY_PINNED"
"""Set in a process that has its device, and so in the processes that it starts."""


def devices() -> list[str]:
    """List the devices that this process may see, as CUDA_VISIBLE_DEVICES names them."""
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if allowed is not None:
        return [name.strip() for name in allowed.split(",") if name.strip()]
    return [
        str(number)
        for number in range(sum(line.startswith("GPU ") for line in query_nvidia_smi("-L")))
    ]


@lru_cache
def gpu_descriptions() -> tuple[str, ...]:
    """List the GPUs of this machine as their driver tells of them: name, driver, memory."""
    return tuple(
        query_nvidia_smi("--query-gpu=name,driver_version,memory.total", "--format=csv,noheader")
    )


def query_nvidia_smi(*options: str) -> list[str]:
    """
    List the lines that nvidia-smi answers; none where there is no such program, or it does not
    answer.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    try:
        told = subprocess.run(
            [program, *options], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return told.stdout.splitlines() if told.returncode == 0 else []
