"""
Sums that are rounded to half precision between blocks of rows, as PyTorch's attention keeps those
of its gradients on a CPU, are told with the declaration under which they pass.
"""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from attnverify.backends.loader import Implementation, load
from attnverify.catalogue.operation import CATALOGUE
from attnverify.checks.large_sizes import describe_sizes, judge_whole, large_recipes
from attnverify.diagnosis.narrow_partials import find_narrow_partials
from attnverify.failures.record import FailureRecord
from attnverify.failures.replay import replay
from attnverify.judge.errors import Disagreement

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
LARGE = large_recipes(CATALOGUE["scaled_dot_product_attention_grad"], "default")
CHECK = partial(judge_whole, LARGE[-1])
LINE = '{"float16": {"grad_partial": "float16"}}'


def gradient(folder: Path, declared: str = "", factor: float = 1) -> Implementation:
    file = folder / "mine.py"
    file.write_text(KERNEL.format(declared=declared, factor=f"value.dtype.type({factor})"))
    backend = load(str(file))
    assert not backend.broken
    return next(found for found in backend.implementations if found.operation.is_gradient)


def test_the_declaration_is_told_and_passes(tmp_path: Path) -> None:
    made = gradient(tmp_path)
    with pytest.raises(Disagreement):
        CHECK(made, "float16")
    cause = find_narrow_partials(made, "float16", CHECK)
    assert cause is not None and LINE in str(cause)
    CHECK(gradient(tmp_path, f"PRECISION = {LINE}"), "float16")


def test_a_replay_tells_the_same(tmp_path: Path) -> None:
    made = gradient(tmp_path)
    named = {"name": f"large: {describe_sizes(LARGE[-1])}", "profile": "default", "seed": 0}
    record = FailureRecord.of_check(made, "float16", "gradients", named)
    with pytest.raises(Disagreement, match="cause: as near as sums that are kept in float16"):
        replay(record, made)


@pytest.mark.parametrize("given", [{"factor": 1.5}, {"declared": f"PRECISION = {LINE}"}])
def test_nothing_is_told_of_another_error(given: dict[str, Any], tmp_path: Path) -> None:
    """Of sums that are wrong beyond it, and where it is declared already."""
    made = gradient(tmp_path, **given)
    assert find_narrow_partials(made, "float16", CHECK) is None


def test_a_line_holds_what_is_declared_already(tmp_path: Path) -> None:
    made = gradient(tmp_path, 'PRECISION = {"float16": {"preset": "eager", "exp_ulps": 8}}')
    cause = find_narrow_partials(made, "float16", CHECK)
    assert '"preset": "eager", "exp_ulps": 8, "grad_partial": "float16"' in str(cause)
