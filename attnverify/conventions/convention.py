"""
Conventions: what an implementation may take otherwise than the specification without having
slipped.

Where does the causal mask begin, what does True mean, what is a row that sees no key, which slopes
have six heads? Each is a question with the specification's own answer and the others that are met
in public code. An alternative is the specification with one stage replaced, or a few lines of NumPy
of its own.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from attnverify.catalogue.operation import CATALOGUE, Operation
from attnverify.conventions.operation_rows import CONVENTIONS_OF_OPERATION
from attnverify.conventions.stage_rows import STAGE_ROWS
from attnverify.inputs.recipe import Inputs
from attnverify.reference.staged_attention import Change, evaluate, spec_stages


@dataclass(frozen=True)
class Convention:
    """
    One alternative: its answer to a question, what the specification becomes by it ("the
    specification with ..."), and how it is computed.

    change  a stage replaced, for the operations that consist of stages; function: the operation
            itself, for the others
    """

    question: str
    answer: str
    words: str
    change: Change | None = None
    function: Callable[..., Any] | None = None

    def __call__(self, operation: Operation, inputs: Inputs, dtype: str) -> Any:
        """What the operation returns by this convention, in float64."""
        if self.change is not None:
            return evaluate(self.change(spec_stages(operation, inputs, dtype)))
        assert self.function is not None
        with np.errstate(all="ignore"):
            return self.function(**inputs)


@lru_cache
def conventions(operation: str) -> tuple[Convention, ...]:
    """
    Return the alternatives to an operation of the catalogue, or to the operation that it is the
    gradient of.
    """
    return tuple(conventions_of(CATALOGUE[operation]))


def conventions_of(operation: Operation) -> Iterator[Convention]:
    if operation.is_staged:
        for applies, question, said, words, change in STAGE_ROWS:
            if applies(operation.forward):
                yield Convention(question, said, words, change)
    elif not operation.is_gradient:
        for question, said, words, function in CONVENTIONS_OF_OPERATION.get(operation.name, ()):
            yield Convention(question, said, words, function=function)
