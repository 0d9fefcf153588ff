"""Where a race runs, and on how many cores."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec

__all__ = ["device", "two_threads"]


def device() -> str:
    """Tell where this run measures: cuda where PyTorch finds a GPU, else cpu."""
    return "cuda" if find_spec("torch") and import_module("torch").cuda.is_available() else "cpu"


@contextmanager
def two_threads(measured: bool) -> Iterator[None]:
    """
    PyTorch on at most two cores whatever the environment says; nothing is compiled where nothing is
    measured.
    """
    if not find_spec("torch"):
        yield
        return
    torch = import_module("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(min(2, os.cpu_count() or 1))
    try:
        with torch.compiler.set_stance("default" if measured else "force_eager"):
            yield
    finally:
        torch.set_num_threads(before)
