"""
Public attentions over pages in the forms of FlashInfer, SGLang and vLLM, in our words: the right
ones pass with what they declare, wrong ones are failed and told.
"""

from pathlib import Path

import pytest

from tests.attnverify.verdicts.public.test_public_packed import HEAD
from tests.support.judge_text import judged

FLASHINFER = """
LSE_BASE = 2

def paged_attention(q, paged_k_cache, paged_v_cache, qo_indptr, paged_kv_indptr, paged_kv_indices,
                    paged_kv_last_page_len, causal=False, sm_scale=None, logits_soft_cap=0.0,
                    window_left=-1):
    W, counts = paged_k_cache.shape[1], paged_kv_indptr.diff()
    lengths = torch.where(counts > 0, (counts - 1) * W + paged_kv_last_page_len, 0)
    starts = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    pages = paged_kv_indices.clamp(0, len(paged_k_cache) - 1)
    a, b = paged_kv_indptr.tolist(), lengths.tolist()
    kept = [torch.arange(a[i] * W, a[i] * W + b[i]) for i in range(len(b))]
    k, v = (x[pages].flatten(0, 1)[torch.cat(kept)] for x in (paged_k_cache, paged_v_cache))
    scale = sm_scale or q.shape[-1] ** -0.5
    right = 0 if causal else -1
    out, lse = each(q, k, v, qo_indptr, starts, scale, logits_soft_cap, window_left, right)
    return out, lse / 0.6931471805599453
"""
"""FlashInfer's prefill over pages, whose lse is a logarithm to base 2."""

SGLANG = """
FEATURES = {"lse": False}

def paged_attention(q, k_buffer, v_buffer, qo_indptr, kv_indptr, kv_indices, causal=False,
                    sm_scale=None, logit_cap=0.0, sliding_window=-1, sinks=None):
    slots = kv_indices.clamp(0, len(k_buffer) - 1)
    k, v, right = k_buffer[slots], v_buffer[slots], 0 if causal else -1
    scale = sm_scale or q.shape[-1] ** -0.5
    return each(q, k, v, qo_indptr, kv_indptr, scale, logit_cap, sliding_window, right, sinks)[0]
"""
"""SGLang's, whose pages hold one key each."""

VLLM = """
FEATURES = {"lse": False}

def paged_attention(q, k_cache, v_cache, block_table, seqused_k, cu_seqlens_q, num_kv_heads,
                    causal=False, window_size=(-1, -1), softcap=0.0, sinks=None,
                    softmax_scale=None):
    (Z, W, G), B = k_cache.shape[:3], len(seqused_k)
    assert G == num_kv_heads
    pages = block_table.clamp(0, Z - 1)
    k, v = (x[pages].flatten(1, 2) for x in (k_cache, v_cache))
    starts = torch.nn.functional.pad(seqused_k.cumsum(0), (1, 0))
    k, v = (torch.cat([x[b, : seqused_k[b]] for b in range(B)]) for x in (k, v))
    scale, (left, right) = softmax_scale or q.shape[-1] ** -0.5, window_size
    right = 0 if causal else right
    return each(q, k, v, cu_seqlens_q, starts, scale, softcap, left, right, sinks)[0]
"""
"""vLLM's, with a table."""

RIGHT = {"FlashInfer": FLASHINFER, "SGLang": SGLANG, "vLLM": VLLM}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_one_passes(name: str, tmp_path: Path) -> None:
    result = judged(tmp_path, HEAD + RIGHT[name])
    assert (result.verdict, result.strong >= 10) == ("passed", True), result.findings


WRONG = {
    "pages taken whole": (
        FLASHINFER.replace("(counts - 1) * W + paged_kv_last_page_len", "counts * W"),
        "lengths rounded up to whole pages",
    ),
    "sinks ignored": (SGLANG.replace("right, sinks)", "right)"), "sinks ignored"),
}
"""What is changed of a right one, and how its cause is told."""


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_one_is_failed_and_told(name: str, tmp_path: Path) -> None:
    text, words = WRONG[name]
    result = judged(tmp_path, HEAD + text)
    told = [cause for finding in result.findings for cause in finding.causes]
    assert result.verdict == "failed" and any(words in cause for cause in told), told
