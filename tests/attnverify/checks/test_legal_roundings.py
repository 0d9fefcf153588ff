"""
Roundings that are legal and do not err alike: no factor is told of them, and one beside them is.
"""

from pathlib import Path

import numpy as np
import pytest

from attnverify.backends.implementation import Implementation
from attnverify.backends.loader import load
from attnverify.checks import given_factors, systematic_error
from attnverify.checks.given_factors import judge_given
from attnverify.checks.systematic_error import judge_factors
from attnverify.judge.errors import Disagreement

TIES_AWAY = """
import torch

def rounded(x):
    bits = x.float().view(torch.int32)
    return ((bits + 0x8000) & -0x10000).view(torch.float32)

def transformer_xl_score(query, key, position, u, v):
    q, k, r, u, v = (x.float() for x in (query, key, position, u, v))
    N, M = q.shape[-2], k.shape[-2]
    content = rounded(rounded(q + u[:, None]) @ k.mT)
    far = rounded(rounded(q + v[:, None]) @ r.mT)
    far = torch.cat([far.new_zeros(*far.shape[:-1], 1), far], -1)
    far = far.reshape(*far.shape[:-2], M + 1, N)[..., 1:, :].reshape(content.shape)
    return rounded({factor} * rounded(content + far) * q.shape[-1] ** -0.5).to(query.dtype)
"""
"""What rounds ties away from zero, (x + 0x8000) >> 16; sums of two numbers are ties often."""

FLASH = """
import torch

FEATURES = {{"gradient": False}}

def scaled_dot_product_attention(query, key, value):
    s = query.float() @ key.float().mT * query.shape[-1] ** -0.5
    p = (s - s.amax(-1, keepdim=True)).exp()
    o = p.bfloat16().float() @ value.float()
    return ({factor} * o / p.sum(-1, keepdim=True)).to(query.dtype)
"""
"""P is rounded for its product and summed unrounded: a weight near 1 becomes 1."""


def made(folder: Path, text: str, factor: float) -> Implementation:
    file = folder / "mine.py"
    file.write_text(text.format(factor=factor))
    return next(i for i in load(str(file)).implementations if not i.operation.is_gradient)


def test_ties_away_from_zero_are_no_factor(tmp_path: Path) -> None:
    right, wrong = (made(tmp_path, TIES_AWAY, factor) for factor in (1.0, 1.004))
    judge_factors("transformer_xl_score", 0, False, right, "bfloat16")
    with pytest.raises(Disagreement, match="scale is"):
        judge_factors("transformer_xl_score", 0, False, wrong, "bfloat16")


@pytest.fixture
def peaked(tmp_path: Path) -> str:
    """Scores that stand apart: in most rows one weight is nearly 1."""
    rng = np.random.default_rng(4)
    shapes = {"query": (1, 2, 48, 16), "key": (1, 2, 48, 16), "value": (1, 2, 48, 16)}
    arrays = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    arrays["query"] = 4 * (arrays["key"] + 0.1 * arrays["query"])
    np.savez(path := tmp_path / "peaked.npz", **arrays)
    return str(path)


def test_weights_near_one_are_no_factor(tmp_path: Path, peaked: str) -> None:
    judge_given("scaled_dot_product_attention", peaked, made(tmp_path, FLASH, 1.0), "bfloat16")


def test_a_factor_beside_them_is_told(tmp_path: Path, peaked: str) -> None:
    with pytest.raises(Disagreement, match="output is"):
        judge_given(
            "scaled_dot_product_attention", peaked, made(tmp_path, FLASH, 1.003), "bfloat16"
        )


def test_without_the_legal_roundings_both_are_accused(
    tmp_path: Path, peaked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(given_factors, "legal_answers", lambda *_: [])
    monkeypatch.setattr(systematic_error, "legal_answers", lambda *_: [])
    systematic_error.legal_factors.cache_clear()
    ties, flash = made(tmp_path, TIES_AWAY, 1.0), made(tmp_path, FLASH, 1.0)
    with pytest.raises(Disagreement, match="high"):
        judge_factors("transformer_xl_score", 0, False, ties, "bfloat16")
    with pytest.raises(Disagreement, match="high"):
        judge_given("scaled_dot_product_attention", peaked, flash, "bfloat16")
    systematic_error.legal_factors.cache_clear()
