"""
The stages are the specification, in pieces: put together unchanged they give the reference's
answer.
"""

import numpy as np
import pytest

from attnverify.catalogue.operation import CATALOGUE
from attnverify.catalogue.pytrees import leaves
from attnverify.inputs.sampling import draw_recipes
from attnverify.judge.case import case_of
from attnverify.judge.comparison import compare
from attnverify.precision import REFERENCE
from attnverify.reference.staged_attention import evaluate, spec_stages


@pytest.mark.parametrize("operation", [name for name, op in CATALOGUE.items() if op.is_staged])
def test_unchanged_stages_are_the_specification(operation: str) -> None:
    for kind in (
        ("any", "nan")
        if "key" in CATALOGUE[operation].arguments and "score" not in operation
        else ("any",)
    ):
        for recipe in draw_recipes(operation, kind, 60, 5):
            case = case_of(recipe, "float64")
            found = evaluate(spec_stages(CATALOGUE[operation], case.inputs))
            limits = leaves(case.bounds(REFERENCE))
            for actual, expected, bound in zip(
                leaves(found), leaves(case.expected), limits, strict=True
            ):
                assert compare(np.asarray(actual), expected, bound).passed, (
                    f"{recipe}: {compare(np.asarray(actual), expected, bound)}"
                )


def test_other_operations_have_no_stages() -> None:
    with pytest.raises(ValueError, match="operation: wanted one of additive_score, scaled"):
        spec_stages(CATALOGUE["rel_shift"], {})
