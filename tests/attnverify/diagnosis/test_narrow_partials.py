"""
Sums that are rounded to half precision between blocks of rows, as PyTorch's attention keeps those
of its gradients on a CPU, are told with the declaration under which they pass.
"""

from pathlib import Path
from typing import Any

import pytest

from attnverify.backends.implementation import Implementation
from attnverify.backends.loader import load
from attnverify.catalogue.operation import CATALOGUE
from attnverify.diagnosis.narrow_partials import HALVES, find_narrow_partials
from attnverify.failures.record import FailureRecord
from attnverify.failures.replay import replay
from attnverify.inputs.real.calls import far_calls
from attnverify.judge.case import case_of
from attnverify.judge.errors import Disagreement
from attnverify.judge.judging import judge

KERNEL = """
import numpy as np
from attnverify.numpy_ref.attention import scaled_dot_product_attention_grad as exact
{declared}

def scaled_dot_product_attention_grad(d_output, query, key, value):
    others = (d_output, query, key, value)
    d_query, d_key, _ = exact(*others)
    scores = query.astype("f4") @ key.astype("f4").mT / np.float32(query.shape[-1] ** 0.5)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    total = np.zeros_like(value)
    for i in range(0, query.shape[2], 64):
        rows = slice(i, i + 64)
        total += (weights[:, :, rows].mT @ d_output[:, :, rows].astype("f4")).astype(value.dtype)
    return d_query, d_key, {factor} * total
"""
LARGE = far_calls(CATALOGUE["scaled_dot_product_attention_grad"], "default")[-1]
CASE = case_of(LARGE, "float16")
LINE = '{"float16": {"grad_partial": "float16"}, "bfloat16": {"grad_partial": "bfloat16"}}'
ALONE = '{"float16": {"grad_partial": "float16"}}'


def gradient(folder: Path, declared: str = "", factor: float = 1) -> Implementation:
    file = folder / "mine.py"
    file.write_text(KERNEL.format(declared=declared, factor=f"value.dtype.type({factor})"))
    backend = load(str(file))
    assert not backend.broken
    return next(found for found in backend.implementations if found.operation.is_gradient)


def test_the_declaration_is_told_and_passes(tmp_path: Path) -> None:
    made = gradient(tmp_path)
    with pytest.raises(Disagreement):
        judge(made, CASE)
    cause = find_narrow_partials(made, CASE)
    assert cause is not None and LINE in str(cause)
    judge(gradient(tmp_path, f"PRECISION = {LINE}"), CASE)


def test_the_line_of_both_dtypes_is_one(tmp_path: Path) -> None:
    """A second line of PRECISION would take the place of the first."""
    made = gradient(tmp_path)
    one, other = (find_narrow_partials(made, case_of(LARGE, dtype)) for dtype in HALVES)
    assert one is not None and one == other
    alone = find_narrow_partials(gradient(tmp_path, 'DTYPES = ("float16",)'), CASE)
    assert alone is not None and f"declare PRECISION = {ALONE}, " in str(alone)


def test_a_replay_tells_the_same(tmp_path: Path) -> None:
    made = gradient(tmp_path)
    record = FailureRecord.of(made, CASE, "gradients")
    with pytest.raises(Disagreement, match="cause: as near as sums that are kept in float16"):
        replay(record, made)


@pytest.mark.parametrize("given", [{"factor": 1.5}, {"declared": f"PRECISION = {LINE}"}])
def test_nothing_is_told_of_another_error(given: dict[str, Any], tmp_path: Path) -> None:
    """Of sums that are wrong beyond it, and where it is declared already."""
    made = gradient(tmp_path, **given)
    assert find_narrow_partials(made, CASE) is None


def test_a_line_holds_what_is_declared_already(tmp_path: Path) -> None:
    made = gradient(tmp_path, 'PRECISION = {"float16": {"preset": "eager", "exp_ulps": 8}}')
    cause = find_narrow_partials(made, CASE)
    assert '"preset": "eager", "exp_ulps": 8, "grad_partial": "float16"' in str(cause)
