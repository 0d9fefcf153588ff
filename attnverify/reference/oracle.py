"""
What the specification answers to inputs: by its own loops where they are few, by ``numpy_ref``
beyond, which is held to the specification at small sizes.
"""

from typing import Any

import numpy as np

from attnverify.catalogue.operation import Operation
from attnverify.inputs.masks import scores_shape
from attnverify.inputs.recipe import Inputs
from attnverify.timing import account_for

MAX_PAIRS_FOR_SPEC = 400
"""Most pairs that the specification's loops are asked for."""


def evaluate_spec(operation: Operation, inputs: Inputs) -> Any:
    """Compute the specification's answer; ValueError where it refuses the call."""
    shape = scores_shape(operation, inputs)
    if operation.name == "visible_keys":
        shape = tuple(inputs[letter] for letter in "BNM")
    small = shape is None or np.prod(shape) <= MAX_PAIRS_FOR_SPEC
    with np.errstate(all="ignore"), account_for("oracle"):
        return operation.specification(**inputs) if small else operation.reference(**inputs)
