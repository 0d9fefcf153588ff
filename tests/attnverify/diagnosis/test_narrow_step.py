"""What is computed in float32 on the way to an answer in float64 is told, whatever it is."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy import ndarray

from attnverify import numpy_ref, spec
from attnverify.backends.loader import load
from attnverify.diagnosis.diagnose import diagnose
from attnverify.diagnosis.sentences import NARROW_STEP
from attnverify.inputs.fixed_cases import fixed_cases
from attnverify.judge.case import case_of
from attnverify.judge.errors import Disagreement, Unsupported
from attnverify.judge.judging import judge


def float32(x: ndarray) -> ndarray:
    return x.astype(np.float32).astype(x.dtype)


def alibi_attention(query: Any, key: Any, value: Any, visible: Any = None) -> Any:
    """ALiBi whose slopes are made in float32."""
    H, N, M = query.shape[1], query.shape[2], key.shape[2]
    distance = np.arange(M) - (np.arange(N)[:, None] + M - N)
    slopes = float32(np.asarray(spec.get_slopes(H)))
    biases = np.where(distance <= 0, slopes[:, None, None] * distance, -np.inf)
    score = numpy_ref.scaled_dot_product_score(query, key) + biases
    return (
        numpy_ref.softmax(score if visible is None else np.where(visible, score, -np.inf)) @ value
    )


def softmax(score: Any, mask: Any = None) -> Any:
    """A softmax by powers of two, whose log2(e) is a number of float32."""
    log2_of_e = float(np.float32(np.log2(np.e)))
    return numpy_ref.softmax(score * log2_of_e * np.log(2), mask)


@pytest.mark.parametrize("function", [alibi_attention, softmax])
def test_what_is_computed_in_float32_is_told(function: Callable[..., Any]) -> None:
    """Of slopes it was "the weights are wrong even where the scores are their biases alone"."""
    name = function.__name__
    (own,) = (x for x in load("numpy_ref").implementations if x.operation.name == name)
    own = replace(own, function=function)
    failing = []
    for recipe in fixed_cases(name):
        case = case_of(recipe, "float64")
        if not recipe.is_large and not recipe.dropout:
            try:
                judge(own, case)
            except Unsupported:
                continue
            except Disagreement:
                failing.append(case)
    assert failing and str(diagnose(own, failing)).startswith(NARROW_STEP)
