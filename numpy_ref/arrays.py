"""What this column takes for an array of floats."""

from typing import Any

from numpy import ndarray

from attnverify.contract.arrays import BY_KIND, FLOAT, Arrays

__all__ = ["ARRAYS", "is_float"]


class NumPyArrays(Arrays):
    """NumPy's arrays, ml_dtypes' formats among their floats."""

    def kind(self, thing: Any) -> str:
        """
        Tell floats, booleans and integers by NumPy's letter for a kind of dtype. ml_dtypes' formats
        are known by their name, so that nothing has to be imported.
        """
        if not isinstance(thing, ndarray):
            return ""
        letter = thing.dtype.kind
        if letter == "V":
            return FLOAT if "float" in thing.dtype.name else ""
        return BY_KIND.get(letter, "")


ARRAYS = NumPyArrays()


def is_float(thing: Any) -> bool:
    """Whether something is a real floating array."""
    return ARRAYS.kind(thing) == FLOAT
