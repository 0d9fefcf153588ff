"""
Launches as a CUDA driver takes them: pointers into host memory, also inside of structs, in place of
the device's.

    launch(module["kernel"], grid, threads, (params,), arrays=[q, k, v], shared=49152)
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from attnverify.ptx.kernel import Kernel, Launched
from attnverify.ptx.kinds import Array
from attnverify.ptx.launchers.arrays import HostArrays
from attnverify.ptx.storage.device import edge_of

__all__ = ["extent", "launch"]


def launch(
    kernel: Kernel,
    grid: int | Sequence[int],
    threads: int | Sequence[int],
    arguments: Sequence[Any],
    *,
    arrays: Sequence[Array],
    **settings: Any,
) -> Launched:
    """
    Execute a kernel whose arguments hold addresses of these arrays.

    An argument is an array, a number, an address, or a struct as bytes, in which every aligned word
    that lies in one of the arrays (or right behind it) is taken for an address.
    """
    host = HostArrays()
    given = [*arrays, *(x for x in arguments if isinstance(x, np.ndarray) and x.ndim)]
    edges = {extent(x)[0]: edge_of(x) for x in given if x.size}
    for number, (start, end) in enumerate(
        merge_stretches(sorted(extent(x) for x in given if x.size))
    ):
        host.place(start, end - start, f"array {number}", edges[start])
    placed = [argument(x, host) for x in arguments]
    done = kernel.launch(grid, threads, placed, memory=host.memory, **settings)
    host.bring_back()
    return done


def extent(x: Array) -> tuple[int, int]:
    """Find where the bytes of an array begin and end on the host."""
    return tuple(int(at) for at in np.lib.array_utils.byte_bounds(x))  # type: ignore[return-value]


def merge_stretches(stretches: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merge stretches that share bytes."""
    found: list[tuple[int, int]] = []
    for start, end in stretches:
        if found and start < found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


def argument(x: Any, host: HostArrays) -> Any:
    """With the addresses of the device."""
    if isinstance(x, np.ndarray) and x.ndim:
        return np.uint64(host.address(x.__array_interface__["data"][0]))
    if isinstance(x, np.ndarray | np.void):
        x = x.tobytes()
    if isinstance(x, bytes | bytearray | memoryview):
        return translate_struct(bytes(x), host)
    if isinstance(x, int | np.int64 | np.uint64) and not isinstance(x, bool):
        return type(x)(host.address(int(x)))
    return x


def translate_struct(struct: bytes, host: HostArrays) -> bytes:
    whole = len(struct) // 8 * 8
    words = np.frombuffer(struct[:whole], np.uint64)
    return (
        np.array([host.address(int(word)) for word in words], np.uint64).tobytes() + struct[whole:]
    )
