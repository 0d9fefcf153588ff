"""
Public attentions over sequences that lie end to end, in the signatures of FlashAttention,
FlashInfer and PyTorch, in our words: the right ones pass with what they declare, three wrong ones
are failed and told.
"""

from pathlib import Path

import pytest

from tests.support.judge_text import judged

HEAD = """
import torch

def each(q, k, v, rows, keys, scale, cap=0.0, left=-1, right=-1, sink=None, ends=True):
    out, lse = q.new_zeros(*q.shape[:2], v.shape[-1]), q.new_full(q.shape[:2], -torch.inf).float()
    if sink is not None:
        lse = sink.float().expand(lse.shape).clone()
    for b in range(len(rows) - 1):
        i, j = slice(rows[b], rows[b + 1]), slice(keys[b], keys[b + 1])
        N, M, r = i.stop - i.start, j.stop - j.start, q.shape[1] // k.shape[1]
        if N == 0 or M == 0:
            continue
        x, y, z = (t.float() if t.dtype.itemsize < 4 else t for t in (q[i], k[j], v[j]))
        y, z = (t.repeat_interleave(r, 1) for t in (y, z))
        s = torch.einsum("ihd,jhd->hij", x, y) * scale
        s = cap * torch.tanh(s / cap) if cap else s
        far = torch.arange(M) - torch.arange(N)[:, None] - (M - N if ends else 0)
        hidden = ((far > right) & (right >= 0)) | ((-far > left) & (left >= 0))
        s = s.masked_fill(hidden, -torch.inf)
        own = s.new_full((1, 1, 1), -torch.inf) if sink is None else sink.to(s.dtype)[:, None, None]
        whole = torch.cat((s, own.expand(q.shape[1], N, 1)), -1)
        top = whole.amax(-1, keepdim=True).clamp(min=torch.finfo(s.dtype).min)
        e = torch.exp(whole - top)
        total = e.sum(-1, keepdim=True)
        w = (e / total.clamp(min=1e-30))[..., :-1]
        out[i] = torch.einsum("hij,jhe->ihe", w, z).to(out.dtype)
        lse[i] = torch.where(total == 0, -torch.inf, top + total.log())[..., 0].T.to(lse.dtype)
    return out, lse
"""

FLASH = """
LSE_LAYOUT = "HT"

def packed_attention(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
                     softmax_scale=None, window_size=(-1, -1), softcap=0.0):
    scale = softmax_scale or q.shape[-1] ** -0.5
    out, lse = each(q, k, v, cu_seqlens_q, cu_seqlens_k, scale, softcap, *window_size)
    return out, lse.T
"""
"""FlashAttention 3's ``flash_attn_varlen_func``, whose lse is laid out [H T]."""

FLASH_2 = FLASH.replace("lse.T", "torch.where(lse == -torch.inf, torch.inf, lse).T").replace(
    'LSE_LAYOUT = "HT"', 'LSE_LAYOUT, EMPTY_LSE = "HT", float("inf")'
)
"""FlashAttention 2's, with plus infinity where a row sees no key."""

FLASHINFER = """
LSE_BASE = 2

def packed_attention(q, k, v, qo_indptr, kv_indptr, sm_scale=None, logits_soft_cap=0.0,
                     window_left=-1):
    scale = sm_scale or q.shape[-1] ** -0.5
    out, lse = each(q, k, v, qo_indptr, kv_indptr, scale, logits_soft_cap, window_left)
    return out, lse / 0.6931471805599453
"""
"""FlashInfer's ragged prefill, whose lse is a logarithm to base 2."""

TORCH = """
FEATURES = {"lse": False}

def packed_attention(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, scale=None,
                     window_size=(-1, -1)):
    scale = scale or query.shape[-1] ** -0.5
    return each(query, key, value, cu_seq_q, cu_seq_k, scale, 0.0, *window_size)[0]
"""
"""PyTorch's ``varlen_attn``."""

GPT_OSS = """
def packed_attention(query, key, value, query_starts, key_starts, sinks=None, scaling=None):
    scale = scaling or query.shape[-1] ** -0.5
    return each(query, key, value, query_starts, key_starts, scale, sink=sinks)
"""
"""A sink beside the scores, as gpt-oss's attention has it."""

BLOCKS = """
from torch.nn.functional import scaled_dot_product_attention
FEATURES = {"lse": False}

def packed_attention(query, key, value, query_starts, key_starts, scale=None):
    place = lambda starts, x: torch.bucketize(torch.arange(len(x)), starts, right=True)
    rows, keys = place(query_starts, query), place(key_starts, key)
    B = len(query_starts) - 1
    seen = (rows[:, None] == keys) & (rows > 0)[:, None] & (rows <= B)[:, None]
    there = ((keys > 0) & (keys <= B))[:, None, None]
    k, v = (torch.where(there, x, 0) for x in (key, value))
    q = torch.where(((rows > 0) & (rows <= B))[:, None, None], query, 0)
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    out = scaled_dot_product_attention(q, k, v, seen, scale=scale, enable_gqa=True)
    return out[0].transpose(0, 1)
"""
"""SDPA under a block-diagonal mask, as many models pack documents."""

RIGHT = {
    "flash_attn_varlen_func": FLASH,
    "FlashAttention 2": FLASH_2,
    "FlashInfer": FLASHINFER,
    "varlen_attn": TORCH,
    "gpt-oss": GPT_OSS,
    "block-diagonal SDPA": BLOCKS,
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_one_passes(name: str, tmp_path: Path) -> None:
    result = judged(tmp_path, HEAD + RIGHT[name])
    assert (result.verdict, result.strong >= 10) == ("passed", True), result.findings


@pytest.mark.usefixtures("real_calls_are_judged")
def test_so_it_does_in_calls_of_the_sizes_that_models_make(tmp_path: Path) -> None:
    result = judged(tmp_path, HEAD + TORCH)
    assert (result.verdict, result.strong >= 10) == ("passed", True), result.findings


WRONG = {
    "aligned at the starts": (
        FLASH.replace("*window_size)", "*window_size, ends=False)"),
        "aligned at its start",
    ),
    "one sequence": (
        FLASH.replace("cu_seqlens_q, cu_seqlens_k, scale,", "[0, len(q)], [0, len(k)], scale,"),
        "sequences that see each other",
    ),
    "sinks ignored": (GPT_OSS.replace("sink=sinks", "sink=None"), "sinks ignored"),
}
"""What is changed of a right one, and how its cause is told."""


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_one_is_failed_and_told(name: str, tmp_path: Path) -> None:
    text, words = WRONG[name]
    result = judged(tmp_path, HEAD + text)
    told = [cause for finding in result.findings for cause in finding.causes]
    assert result.verdict == "failed" and any(words in cause for cause in told), told
