"""
What an option may be, beside its type: ``Annotated[int | None, Choices(None, 3), Refused(0)]``.

Nothing here computes. The judge draws an option from its domain, deals every pair of two options
out, leaves the option out to make a failure smaller, and asks everyone to refuse what the
specification refuses. An option that is left out is the first of its choices.
"""

from typing import Annotated, Any

__all__ = ["GIVEN", "Align", "Choices", "Eps", "Integers", "MemoryLength", "Refused"]


class Choices:
    """The values that a number, a word or a flag is drawn from; the simplest first."""

    def __init__(self, *values: Any) -> None:
        self.values = values


GIVEN = "given"
"""The choice of an array of floats that may be left out: it is there."""


class Refused:
    """Values that are no such number, word or flag: ValueError."""

    def __init__(self, *values: Any) -> None:
        self.values = values


class Integers:
    """
    An array of integers from ``least`` to ``most``, which are numbers or sizes ("M", "-N"), drawn
    with both ends more often than the rest; beyond them ``refuses`` "below", "above", or neither.
    Where it is ``rising``, no number is smaller than the one before it; they have this ``dtype``.
    """

    def __init__(
        self,
        least: int | str,
        most: int | str,
        refuses: tuple[str, ...] = (),
        rising: bool = False,
        dtype: str = "int64",
    ) -> None:
        self.least, self.most, self.refuses, self.rising = least, most, refuses, rising
        self.dtype = dtype


Align = Annotated[str, Choices("end", "start"), Refused("middle", None)]
"""Which end of the keys a learned table is aligned to."""

MemoryLength = Annotated[int, Choices(1, 2, 3, 5, 0, 8, 20), Refused(-1, 1.5)]
"""How many positions a memory keeps."""

Eps = Annotated[float, Choices(1e-5, 1e-3), Refused(-1)]
"""What a layer norm adds to the variance."""
