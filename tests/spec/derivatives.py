"""Derivatives of the specification by a step in an imaginary direction, one number at a time."""

import pickle
from functools import cache
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify import spec
from attnverify.catalogue.pytrees import leaves

STEP = 2.0**-70


def derivative(
    operation: str, inputs: dict[str, Any], name: str, *arriving: ndarray, of: str | None = None
) -> ndarray:
    """
    Differentiate the sum of the outputs times what arrives at them, by the input of this name, or
    by one array of the mapping ``of``; outputs beyond these (a memory) do not count.
    """
    return differentiate(pickle.dumps((operation, inputs, name, arriving, of)))


@cache
def differentiate(asked: bytes) -> ndarray:
    """Compute a derivative once for the columns and all twins that are held to it."""
    operation, inputs, name, arriving, of = pickle.loads(asked)
    mapping = inputs if of is None else inputs[of]
    found = np.zeros(mapping[name].shape)
    for at in np.ndindex(found.shape):
        moved = mapping[name].astype(complex)
        moved[at] += STEP * 1j
        changed = {name: moved} if of is None else {of: mapping | {name: moved}}
        outputs = leaves(getattr(spec, operation)(**inputs | changed))
        found[at] = sum(np.sum(d * y.imag) for d, y in zip(arriving, outputs, strict=False)) / STEP
    return found
