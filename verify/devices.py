"""Which device a worker process has for itself: said before any array library is imported, by the environment alone."""

import os
import shutil
import subprocess


def pin(worker: int) -> str | None:
    """
    Show this process one device, in turn: worker 0 the first, worker 1 the second, and from the start again.

    Gives its name, or None where there are fewer than two devices to share out.
    """
    if os.environ.get(PINNED):
        return os.environ["CUDA_VISIBLE_DEVICES"]
    found = devices()
    if len(found) < 2:
        return None
    os.environ[PINNED], os.environ["CUDA_VISIBLE_DEVICES"] = str(worker), found[worker % len(found)]
    return os.environ["CUDA_VISIBLE_DEVICES"]


PINNED = "VERIFY_PINNED"
"""Set in a process that has its device, and so in the processes that it starts."""


def devices() -> list[str]:
    """The devices that this process may see, as CUDA_VISIBLE_DEVICES names them."""
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if allowed is not None:
        return [name.strip() for name in allowed.split(",") if name.strip()]
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    try:
        told = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=30, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [str(number) for number in range(sum(line.startswith("GPU ") for line in told.splitlines()))]
