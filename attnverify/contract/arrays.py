"""How a column recognises its arrays: all that differs between the columns' checks."""

from numbers import Integral
from typing import Any

FLOAT, BOOL, INTEGER = "float", "bool", "integer"
BY_KIND = {"f": FLOAT, "b": BOOL, "i": INTEGER, "u": INTEGER}
"""The kinds of NumPy's dtypes."""


class Arrays:
    """The arrays of one library; a column overrides what its own is different in."""

    noun = "array"

    def kind(self, thing: Any) -> str:
        """FLOAT, BOOL, INTEGER, or "" for other numbers and for what is no array of the library."""
        raise NotImplementedError

    def is_integer(self, number: Any) -> bool:
        """Whether a number is a whole one, as a size or a count is."""
        if type(number) is int:  # most are, and asking an abstract class takes ten times as long
            return True
        return isinstance(number, Integral) and not isinstance(number, bool)

    def describe(self, thing: Any) -> str:
        """What came, in a few words: dtype and shape of an array, otherwise the type."""
        is_array = hasattr(thing, "dtype") and hasattr(thing, "shape")
        return f"{thing.dtype} {tuple(thing.shape)}" if is_array else type(thing).__name__
