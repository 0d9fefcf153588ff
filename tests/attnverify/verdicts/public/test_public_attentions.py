"""
Public attentions of today in adapters of about ten lines: the right ones pass, and the wrong ones
are shown where they are wrong. PyTorch's and ONNX's are theirs; the others are in our words.
"""

from pathlib import Path

import pytest

from tests.support.judge_text import judged

SDPA = """
from torch.nn.functional import scaled_dot_product_attention
FEATURES = {"lse": False}

def grouped_attention(query, key, value, attn_mask=None, scale=None):
    return scaled_dot_product_attention(query, key, value, attn_mask, scale=scale, enable_gqa=True)
"""

FLEX = """
import torch
from torch.nn.attention.flex_attention import flex_attention
FEATURES = {"gradient": False}

def grouped_attention(query, key, value, softcap=None, scale=None):
    cap = lambda score, b, h, i, j: softcap * torch.tanh(score / softcap)
    how = {"score_mod": cap if softcap else None, "scale": scale, "enable_gqa": True}
    return flex_attention(query, key, value, return_lse=True, **how)
"""

GPT_OSS = """
import torch
FEATURES = {"lse": False}

def grouped_attention(query, key, value, sinks=None, scaling=None):
    k, v = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    scores = query @ k.mT * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    none = query.new_full(query.shape[1:2], -torch.inf)
    rest = (none if sinks is None else sinks)[:, None, None].expand(*scores.shape[:3], 1)
    return torch.cat([scores, rest], -1).softmax(-1)[..., :-1] @ v
"""
"""The eager attention of transformers' gpt-oss, in our words."""

ONNX = """
from onnx.reference.ops.op_attention import _compute_attention
FEATURES = {"lse": False}

def grouped_attention(Q, K, V, attn_mask=None, scale=None, softcap=0.0):
    if attn_mask is not None and attn_mask.shape[-1] < K.shape[2]:
        raise NotImplementedError("a shorter mask hides the keys behind it")
    how = {"scale": scale, "softcap": softcap, "qk_matmul_output_mode": 0}
    return _compute_attention(Q, K, V, attn_mask, **how)[0]
"""

FLASH = """
import torch
LAYOUT, FEATURES = "BNHD", {"lse": False}

def grouped_attention(q, k, v, window_size=(-1, -1), softcap=0.0):
    k, v = (x.repeat_interleave(q.shape[2] // x.shape[2], 2) for x in (k, v))
    scores = torch.einsum("bthd,bshd->bhts", q * q.shape[-1] ** -0.5, k)
    scores = softcap * torch.tanh(scores / softcap) if softcap else scores
    N, M = scores.shape[-2:]
    far = torch.arange(M) - torch.arange(N)[:, None] - (M - N)
    left, right = (torch.inf if x < 0 else x for x in window_size)
    hidden = (far > right) | (-far > left)
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    return torch.einsum("bhts,bshd->bthd", weights.masked_fill(hidden.all(-1)[:, None], 0), v)
"""
"""Flash-attention's ``attention_ref``, in our words."""

MERGE_STATE = """
import torch
LSE_BASE = 2

def merge_attention(outputs, lses):
    top = lses.amax(0){guard}
    e = torch.exp2(lses - top)
    parts = torch.where(lses[..., None] == -torch.inf, 0, outputs.float())
    output = (e[..., None] * parts).sum(0) / e.sum(0){least}[..., None]
    return output.to(outputs.dtype), top + torch.log2(e.sum(0))
"""
"""FlashInfer's ``merge_state``: as it is, and with rows looked at of which no part saw a key."""

MERGE_STATES = """
import torch
LSE_BASE = 2

def merge_attention(outputs, lses):
    top = lses.amax(0).clamp(min=-5e4)
    e = torch.exp2(lses - top)
    parts = torch.where(lses[..., None] == -torch.inf, 0, outputs.float())
    total = e.sum(0) + torch.exp2(-5e4 - top)
    output = (e[..., None] * parts).sum(0) / total[..., None]
    return output.to(outputs.dtype), top + torch.log2(total)
"""
"""FlashInfer's ``merge_states``, which begins with a part of lse -5e4 and output 0."""

GYM = """
import torch

def merge_attention(outputs, lses):
    lse = torch.logsumexp(lses, 0)
    parts = torch.where(lses[..., None] == -torch.inf, 0, outputs.float())
    output = (torch.exp(lses - lse)[..., None] * parts).sum(0)
    return output.to(outputs.dtype), lse
"""
"""The merge of attention-gym, which takes minus infinity from itself."""


RIGHT = {
    "SDPA": SDPA,
    "flex_attention": FLEX,
    "gpt-oss": GPT_OSS,
    "ONNX": ONNX,
    "attention_ref": FLASH,
    "merge_state, guarded": MERGE_STATE.format(
        guard=".clamp(min=-1e30)", least=".clamp(min=1e-30)"
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_one_passes(name: str, tmp_path: Path) -> None:
    result = judged(tmp_path, RIGHT[name])
    assert (result.verdict, result.strong >= 10) == ("passed", True), result.findings


@pytest.mark.thorough  # a minute: the bounds of the gradients
@pytest.mark.parametrize("name", ["gpt-oss"])
def test_so_do_its_gradients(name: str, tmp_path: Path) -> None:
    assert judged(tmp_path, RIGHT[name], aspect="gradients").verdict == "passed"


WRONG = {
    "merge_state": (MERGE_STATE.format(guard="", least=""), "got nan, expected 0"),
    "merge_states": (MERGE_STATES, "got -34657.3594, expected -inf"),
    "attention-gym": (GYM, "got nan, expected 0"),
}
"""With what each makes of a row of which no part saw a key."""


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_one_is_shown_by_a_row_that_no_part_saw(name: str, tmp_path: Path) -> None:
    text, words = WRONG[name]
    result = judged(tmp_path, text)
    assert result.verdict == "failed"
    assert any(words in finding.message for finding in result.findings)


def test_two_absent_parts_that_give_nan_are_told_as_that(tmp_path: Path) -> None:
    causes = [finding.causes for finding in judged(tmp_path, WRONG["merge_state"][0]).findings]
    assert any("NaN where no part saw a key" in cause for each in causes for cause in each)


CASCADE = """
import torch
FEATURES = {"gradient": False}

def merge_attention(outputs, lses):
    top = lses.amax(0)
    e = torch.exp(torch.nan_to_num(lses - top, nan=-torch.inf))
    total = e.sum(0)
    weights = torch.where(total > 0, e / total, 0.0)[..., None]
    return (weights * outputs.float()).sum(0).to(outputs.dtype), torch.log(total) + top
"""
"""As FlashInfer's cascade.cuh, which gives 0 to rows that no part saw, but for NaN in the parts."""


def test_absent_parts_that_are_multiplied_by_0_in_every_row_are_told_as_that(
    tmp_path: Path,
) -> None:
    causes = [finding.causes for finding in judged(tmp_path, CASCADE).findings]
    wanted = "absent parts multiplied by 0, in rows that no part saw too"
    assert any(wanted in cause for each in causes for cause in each), causes
