"""
The calls that a check makes, as cases of which a condition of a known failure can be asked.
"""

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.backends.implementation import Implementation
from attnverify.catalogue.operation import Operation
from attnverify.catalogue.pytrees import map_leaves
from attnverify.checks.registry import Check
from attnverify.inputs.given import GIVEN, sizes_of
from attnverify.inputs.recipe import Inputs, Recipe
from attnverify.judge.errors import Disagreement, Unsupported


@dataclass(frozen=True)
class MadeCall:
    """A call that was made, with a recipe that says its sizes, its mask and its options."""

    recipe: Recipe
    dtype: str
    inputs: Inputs


def calls_of_check(check: Check, implementation: Implementation, dtype: str) -> list[MadeCall]:
    """Run a check once more and watch its calls."""
    library, made = implementation.library, list[MadeCall]()

    def watched(**arguments: Any) -> Any:
        inputs = map_leaves(
            lambda x: np.array(library.to_numpy(x)) if hasattr(x, "shape") else x,
            {name: x for name, x in arguments.items() if name != "dtype"},
        )
        made.append(MadeCall(recipe_of_call(implementation.operation, inputs), dtype, inputs))
        return implementation.function(**arguments)

    with suppress(Disagreement, Unsupported):
        check(replace(implementation, function=watched), dtype)
    return made


def recipe_of_call(operation: Operation, inputs: Inputs) -> Recipe:
    """Describe a call as a recipe, as far as arrays tell."""
    own = inputs.get(operation.mask or "")
    mask = None
    if isinstance(own, ndarray):
        mask = {"pattern": GIVEN, "form": "bool" if own.dtype == bool else "noisy"}
    options: dict[str, Any] = {
        name: inputs[name] if domain.integers is None else GIVEN
        for name, domain in operation.domains.items()
        if inputs.get(name) is not None
    }
    values = {"family": GIVEN, "seed": 0}
    return Recipe(operation.name, sizes_of(operation, inputs), values, mask=mask, options=options)
