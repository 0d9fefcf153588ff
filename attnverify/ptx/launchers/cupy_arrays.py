"""CuPy's arrays, devices and streams, as NumPy arrays of the host."""

import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

__all__ = ["LIVING", "Device", "DeviceArray", "Stream", "wrapped"]

LIVING: "weakref.WeakValueDictionary[int, DeviceArray]" = weakref.WeakValueDictionary()
"""
The arrays that own memory, by where it begins: what pointers in the arguments of a kernel may point
into.
"""


class DeviceArray(np.ndarray[Any, np.dtype[Any]]):
    """A NumPy array that also answers as one of CuPy does."""

    def __array_finalize__(self, of: object) -> None:
        owner = self
        while isinstance(owner.base, DeviceArray):
            owner = owner.base
        LIVING[owner.__array_interface__["data"][0]] = owner

    def get(self, *args: Any, **kwargs: Any) -> np.ndarray[Any, Any]:
        return np.array(self)

    def set(self, x: np.ndarray[Any, Any]) -> None:
        self[...] = x

    @property
    def data(self) -> Any:
        return SimpleNamespace(
            ptr=self.__array_interface__["data"][0], device=SimpleNamespace(id=0)
        )

    @property
    def device(self) -> Any:
        return Device()


def on_device(x: Any) -> Any:
    """The result of a NumPy function as CuPy would give it: an array, of no axes too."""
    if isinstance(x, np.ndarray) and not isinstance(x, DeviceArray):
        return x.view(DeviceArray)
    if isinstance(x, tuple | list) and any(isinstance(each, np.ndarray) for each in x):
        return type(x)(on_device(each) for each in x)
    return x


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: on_device(function(*args, **kwargs))


class Device:
    """The one device; also a context manager, as CuPy's."""

    def __init__(self, number: int = 0) -> None:
        self.id = number

    def __enter__(self) -> "Device":
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing to leave."""

    def __repr__(self) -> str:
        return f"<CUDA Device {self.id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and self.id == other.id

    def __hash__(self) -> int:
        return self.id

    def use(self) -> None:
        """It is in use."""

    def synchronize(self) -> None:
        """Launches have ended when they return."""


class Stream:
    """A stream; everything runs at once."""

    null: "Stream"
    ptr = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.done = True

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing to leave."""

    def synchronize(self) -> None:
        """Launches have ended when they return."""

    def use(self) -> "Stream":
        return self


Stream.null = Stream()
