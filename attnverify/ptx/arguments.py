"""What a kernel is given: grids, numbers, arrays and structs, as the bytes of its parameters."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from attnverify.ptx.kinds import Array
from attnverify.ptx.storage.device import Allocation, Memory
from attnverify.ptx.text.syntax import Parameter

__all__ = ["Argument", "packed", "paired", "placed_argument", "three"]

Argument = Any
"""For a parameter: an array, an allocation, a number, or the bytes of a struct."""


def three(given: int | Sequence[int], name: str) -> tuple[int, int, int]:
    """Extend one to three sizes to three."""
    sizes = (given,) if isinstance(given, int | np.integer) else tuple(given)
    if not 1 <= len(sizes) <= 3 or not all(
        isinstance(size, int | np.integer) and size > 0 for size in sizes
    ):
        raise ValueError(f"{name}: wanted one to three positive whole numbers, got {given!r}")
    x, y, z = (*(int(size) for size in sizes), 1, 1)[:3]
    return x, y, z


def paired(
    arguments: Sequence[Argument], name: str, parameters: Sequence[Parameter]
) -> list[tuple[Argument, Parameter]]:
    if len(arguments) != len(parameters):
        told = f"wanted {len(parameters)} for {name}, got {len(arguments)}"
        raise ValueError(f"arguments: {told}")
    return list(zip(arguments, parameters, strict=True))


def placed_argument(x: Argument, memory: Memory, parameter: Parameter) -> Argument:
    if not isinstance(x, np.ndarray):
        return x
    if parameter.size != 8:
        raise ValueError(
            f"arguments: wanted a number of {parameter.size} bytes for {parameter.told}, "
            f"got an array"
        )
    return memory.place(x, label=parameter.told)


def packed(arguments: Sequence[Argument], parameters: Sequence[Parameter]) -> Array:
    """Pack the parameters into bytes."""
    end = max((p.offset + p.size for p in parameters), default=0)
    block = bytearray(end + 16)
    for x, parameter in zip(arguments, parameters, strict=True):
        block[parameter.offset : parameter.offset + parameter.size] = in_bytes(x, parameter)
    return np.frombuffer(bytes(block), np.uint8)


def in_bytes(x: Argument, parameter: Parameter) -> bytes:
    """Convert an argument as its parameter takes it."""
    if isinstance(x, bytes | bytearray | memoryview):
        given = bytes(x)
    elif isinstance(x, Allocation):
        given = x.address.to_bytes(8, "little")
    elif isinstance(x, np.generic):
        given = x.tobytes()
    elif isinstance(x, float):
        given = np.array(x, f"f{parameter.size}").tobytes()
    elif isinstance(x, int):
        given = (int(x) % (1 << 8 * parameter.size)).to_bytes(parameter.size, "little")
    else:
        raise ValueError(
            f"arguments: wanted an array, a number or bytes for {parameter.told}, "
            f"got {type(x).__name__}"
        )
    if len(given) != parameter.size:
        raise ValueError(
            f"arguments: wanted {parameter.size} bytes for {parameter.told}, got {len(given)}"
        )
    return given
