"""
flex_attention under torch.compile: ALiBi as a score function, relative positions with the captured
product of queries and table.

The compiler makes a kernel for each kind of shape (half a minute on a CPU), before anything is
timed. ``_flash`` has it made from FlashAttention 4's own (flash_attn.cute), forwards, and is there
where that is installed.
"""

from functools import cache, wraps
from importlib.util import find_spec
from math import sqrt

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

# The bias read at a pair is a product in the dtype of the inputs; bfloat16 on a CPU flushes
# subnormals.
PRECISION = {
    "bfloat16": {
        "preset": "fused",
        "storage": "bfloat16_ftz",
        "acc": "float32_ftz",
        "score": "bfloat16",
    }
} | {
    dtype: {"preset": "fused", "score": dtype, "exp_ulps": 20}
    for dtype in ("float64", "float32", "float16")
}


@cache
def compiled():
    return torch.compile(flex_attention, dynamic=False)


FROM = ["AUTO"]
"""Of which kernels the compiler takes one: the last."""


def flex(*given, **more):
    return compiled()(*given, kernel_options={"BACKEND": FROM[-1]}, **more)


@cache
def causal_blocks(N, M, device):
    return create_block_mask(lambda b, h, i, j: j - i <= M - N, None, None, N, M, device=device)


@cache
def slopes(H, device):
    return 2.0 ** (-8.0 / H * torch.arange(1, H + 1, dtype=torch.float32, device=device))


def check(query, key, value, visible):
    if visible is not None:
        raise NotImplementedError("the causal mask alone")
    if (
        not query.is_cuda
        and torch.is_grad_enabled()
        and any(x.requires_grad for x in (query, key, value))
    ):
        raise NotImplementedError("flex_attention has no gradient on a CPU")


def alibi_attention(query, key, value, visible=None):
    H, N, M = *query.shape[1:3], key.shape[2]
    check(query, key, value, visible)
    if H & (H - 1):
        raise NotImplementedError("head counts that are a power of two")
    steep, behind = slopes(H, query.device), M - N

    def add_bias(score, b, h, i, j):
        return score + steep[h] * (j - i - behind)

    return flex(query, key, value, score_mod=add_bias, block_mask=causal_blocks(N, M, query.device))


def transformer_xl_attention(query, key, value, position, u, v, visible=None):
    check(query, key, value, visible)
    N, M = query.shape[2], key.shape[2]
    score = (query + v.unsqueeze(-2)) @ position.mT / sqrt(query.shape[-1])

    def add_score(own, b, h, i, j):
        return own + score[b, h, i, (N - 1 - i + j).clamp(0, M - 1)]

    return flex(
        query + u.unsqueeze(-2),
        key,
        value,
        score_mod=add_score,
        block_mask=causal_blocks(N, M, query.device),
    )


def learned_relative_attention(
    query, key, value, key_pos_embeddings, key_pos_bias, query_pos_bias, align, visible=None
):
    check(query, key, value, visible)
    if align != "end":
        raise NotImplementedError("end-aligned tables")
    N, M, P = query.shape[2], key.shape[2], len(key_pos_bias) // 2
    table, bias = key_pos_embeddings[P - M + 1 : P + N], key_pos_bias[P - M + 1 : P + N]
    score = (torch.einsum("bhnd,whd->bhnw", query, table) + bias.T[:, None]) / sqrt(query.shape[-1])

    def add_score(own, b, h, i, j):
        return own + score[b, h, i, N - 1 - i + j]

    return flex(query + query_pos_bias.unsqueeze(-2), key, value, score_mod=add_score)


def by_flash(function):
    """The same call of FlashAttention 4, which has no gradient of what a score function reads."""

    @wraps(function)
    def called(query, *rest, **more):
        given = (query, *rest, *more.values())
        if any(torch.is_tensor(x) and x.requires_grad for x in given) and torch.is_grad_enabled():
            raise NotImplementedError("forwards alone")
        FROM.append("FLASH")
        try:
            return function(query, *rest, **more)
        finally:
            FROM.pop()

    return called


if find_spec("flash_attn") and find_spec("flash_attn.cute"):
    alibi_attention_flash = by_flash(alibi_attention)
    transformer_xl_attention_flash = by_flash(transformer_xl_attention)
    learned_relative_attention_flash = by_flash(learned_relative_attention)
