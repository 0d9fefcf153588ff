"""What the specification takes for an array, where its calls are checked."""

from typing import Any

from numpy import ndarray

from attnverify.contract.arrays import BY_KIND, FLOAT, Arrays


class Exact(Arrays):
    """NumPy's arrays; a complex number is one where a test takes a derivative."""

    def kind(self, thing: Any) -> str:
        """Tell floats, booleans and integers by NumPy's letter for a kind of dtype."""
        if not isinstance(thing, ndarray):
            return ""
        letter = thing.dtype.kind
        return FLOAT if letter == "c" else BY_KIND.get(letter, "")


ARRAYS = Exact()
