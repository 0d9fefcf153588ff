"""
Refusals and side effects are offered lines too, and what is known to fail in a region fails in no
relation there.
"""

from typing import Any

import numpy as np
import pytest

from attnverify import numpy_ref as right
from attnverify.backends.implementation import Implementation
from attnverify.catalogue.operation import CATALOGUE
from attnverify.failures.known_failures import KnownFailure, parse_line
from attnverify.verdicts import columns
from attnverify.verdicts.cell import Cell
from attnverify.verdicts.columns import judge_cell
from attnverify.verdicts.tally import CellResult, Options
from tests.support.sample_backends import implementation, load_sample

SDPA = "scaled_dot_product_attention"


def cell_of(faulty: Implementation, aspect: str) -> Cell:
    return Cell(faulty, None, "float32", aspect)


def judged(cell: Cell, folder: str, *known: KnownFailure) -> CellResult:
    return judge_cell(cell, Options("quick", failures=folder), known)


SHOWN = {"refusals": "softmax_refuses_with_type_error", "side effects": "softmax_in_place"}


@pytest.mark.parametrize("aspect", SHOWN)
def test_the_line_that_is_offered_makes_the_cell_known(aspect: str, tmp_path: Any) -> None:
    cell = cell_of(implementation(SHOWN[aspect]), aspect)
    result = judged(cell, str(tmp_path))
    (finding, *_) = result.findings
    assert result.verdict == "failed" and finding.offer is not None
    known = parse_line(finding.offer.line.replace("<reason>", "as its author wants it"), "here")
    assert judged(cell, str(tmp_path), known).verdict == "known failure"


def last_key_lost(query: Any, key: Any, value: Any, mask: Any = None, **others: Any) -> Any:
    """Wrong where there are more than 16 keys, by a key that a relation moves."""
    if key.shape[-2] > 16:
        visible = np.arange(key.shape[-2]) < key.shape[-2] - 1
        lost = np.where(visible, 0.0, -np.inf).astype(query.dtype)
        mask = lost if mask is None else mask & visible if mask.dtype == bool else mask + lost
    return right.scaled_dot_product_attention(query, key, value, mask, **others)


@pytest.mark.parametrize("when, wanted", [("M > 16", "known failure"), ("M > 99", "failed")])
def test_a_relation_obeys_regions(when: str, wanted: str, tmp_path: Any) -> None:
    result = judged_with_region(when, tmp_path)
    assert result.verdict == wanted, result.reason


def judged_with_region(when: str, folder: Any) -> CellResult:
    faulty = Implementation(load_sample("one_fault_each"), CATALOGUE[SDPA], "", last_key_lost)
    line = parse_line(f"{SDPA} * values when {when} : a tail of keys", "here")
    return judged(cell_of(faulty, "values"), str(folder), line)


def test_without_regions_a_relation_would_fail(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns, "known_by_regions", lambda *arguments: None)
    result = judged_with_region("M > 16", tmp_path)
    assert "relation: permute the keys" in {finding.kind for finding in result.findings}
