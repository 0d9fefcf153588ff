"""Outputs without a gradient: right where there is nothing to hand on, wrong elsewhere."""

from dataclasses import replace
from pathlib import Path

import pytest

from attnverify.inputs.fixed_cases import fixed_recipe
from attnverify.verdicts.search import Search
from attnverify.verdicts.tally import Options
from tests.support.quick_search import cell_of

FILE = """
import torch
from torch.nn.functional import scaled_dot_product_attention as own

def scaled_dot_product_attention(query, key, value, mask=None):
    if mask is not None and mask.dtype == torch.bool and {condition}:
        return query.new_zeros(*query.shape[:-1], value.shape[-1])
    return own(query, key, value, mask)
"""


@pytest.mark.parametrize(
    ("condition", "pattern", "is_told"),
    [
        ("not mask.any()", "nothing", False),
        ("not mask.all()", "causal", True),
    ],
)
def test_nothing_is_handed_on_where_no_row_sees_a_key(
    tmp_path: Path, condition: str, pattern: str, is_told: bool
) -> None:
    cell = cell_of(tmp_path, FILE.format(condition=condition), "float32", "gradients")
    assert cell.gradient is not None
    recipe = fixed_recipe(cell.gradient.operation, {"B": 1, "H": 2, "N": 4, "M": 4})
    mask = {"pattern": pattern, "axes": "N M", "form": "bool", "seed": 0}
    search = Search(cell.gradient, "float32", Options("quick"))
    search.judge(replace(recipe, mask=mask))
    assert bool(search.detached) == is_told
