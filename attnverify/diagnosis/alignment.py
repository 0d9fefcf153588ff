"""
The alignment of a causal mask where N != M: at the start, as in many libraries, in place of the
end. A function's own answers show it, so that no other mistake hides it.
"""

import numpy as np

from attnverify import bounds
from attnverify.backends.implementation import Implementation
from attnverify.catalogue.operation import Operation
from attnverify.diagnosis.candidates import TWO_ERRORS
from attnverify.inputs.recipe import Inputs
from attnverify.judge.case import Case
from attnverify.judge.comparison import compare
from attnverify.judge.errors import Disagreement, Unsupported
from attnverify.judge.observation import arrays, observe_answer, observe_one

TOP_LEFT = "a top-left causal mask"
ALIGNED_AT_START = "row i sees the keys up to i, by the specification those up to M - N + i"


def is_aligned_at_start(implementation: Implementation, case: Case) -> bool:
    """
    Tell whether a causal call of more keys than queries is wrong, and answered as the call without
    the further keys is: whose first row sees one key.
    """
    try:
        seen = observe_one(implementation, case)
        fewer = without_further_keys(implementation.operation, seen.inputs)
        if not (seen.wrong and fewer):
            return False
        own = observe_answer(implementation, seen, fewer)
    except (Disagreement, Unsupported):
        return False
    precision = implementation.precision(seen.dtype)
    with np.errstate(all="ignore"):
        limits = arrays(bounds.bound(case.operation.name, fewer, precision))
        pairs = zip(seen.actual, own, limits, strict=False)
        return all(
            np.isfinite(y).all() and compare(x, y, TWO_ERRORS * b).passed for x, y, b in pairs
        )


def without_further_keys(operation: Operation, inputs: Inputs) -> Inputs:
    """
    Return a causal call of as many keys as queries: the first. {} where rows and keys have no axis
    of their own, or integers name keys.
    """
    axes = {name: own.split() for name, own in operation.axes.items()}
    named = any(inputs.get(name) is not None for name in operation.integer_axes)
    if named or "N" not in axes.get("query", ()):
        return {}
    N = inputs["query"].shape[axes["query"].index("N")]
    fewer = {
        name: inputs[name].take(np.arange(N), axis=own.index("M"))
        for name, own in axes.items()
        if "M" in own and inputs.get(name) is not None
    }
    name = operation.mask or ""
    mask = {} if inputs.get(name) is None else {name: inputs[name][..., -N:]}
    return inputs | fewer | mask
