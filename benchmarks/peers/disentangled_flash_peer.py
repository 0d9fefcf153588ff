"""
disentangled-flash's Triton attention of DeBERTa, forwards and backwards, as learned relative
attention: for a GPU, on sequences that attend to themselves.

Its score is (q k + q r + k p) / sqrt(D), with tables r and p by the distance of a pair. Our table
is r, our query's bias is a p that is the same at every distance; our table's own bias is a column
more of r, beside a column of ones of q. So a width of 64 is computed at 128, as a user of it would
have to. Version 1.1.1.
"""

from functools import cache
from math import sqrt

import torch
import torch.nn.functional as F
from disentangled_flash.position import gradient_band, pad_position_table
from disentangled_flash.training._kernels import training_attention

# Position scores are a matrix product of their own, kept in the dtype. Not judged on a GPU yet.
PRECISION = {
    dtype: {"preset": "fused", "score": dtype, "grad_partial": dtype}
    for dtype in ("float32", "float16", "bfloat16")
}
WIDTHS = (32, 64, 128)


def learned_relative_attention(
    query, key, value, key_pos_embeddings, key_pos_bias, query_pos_bias, align, visible=None
):
    if visible is not None or align != "end" or not key.shape == query.shape == value.shape:
        raise NotImplementedError("end-aligned tables, no mask, a sequence attends to itself")
    D, wide = query.shape[-1], next((w for w in WIDTHS if w > query.shape[-1]), None)
    if wide is None or query.dtype == torch.float64:
        raise NotImplementedError("widths below 128, float32 or half types")
    ones = torch.ones_like(query[..., :1])
    given = [padded(torch.cat([query, ones], dim=-1), wide), padded(key, wide), padded(value, wide)]
    tables = by_distance(query.shape[2], key_pos_embeddings, key_pos_bias, query_pos_bias)
    found = attend(given, [pad_position_table(padded(table, wide)) for table in tables], D)
    return found[..., :D]


def padded(x, wide):
    """Columns of zeros behind, to a width that the kernels have."""
    return F.pad(x, (0, wide - x.shape[-1]))


def by_distance(N, embeddings, bias, query_bias):
    """The two tables [H, 2 N - 1, D]: row N - 1 + i - j is what query i reads of key j."""
    P = len(bias) // 2
    rows = torch.cat([embeddings, bias[..., None]], dim=-1)[P - N + 1 : P + N].flip(0)
    same = query_bias[:, None].expand(-1, 2 * N - 1, -1)
    return rows.transpose(0, 1), same


def attend(given, tables, D):
    """Call the kernels: every distance has a slot of its own."""
    B, N, device = len(given[0]), given[0].shape[2], given[0].device
    slots = torch.arange(2 * N - 1, dtype=torch.int32, device=device)
    return training_attention(
        *(x.contiguous() for x in given),
        *(table.contiguous() for table in tables),
        slots,
        torch.ones(B, N, dtype=torch.bool, device=device),
        score_scale=1 / sqrt(D),
        has_padding=False,
        strict_fp32=True,
        gradient_band=band_of(N, device),
    )


@cache
def band_of(N, device):
    """What the kernels want for gradients of tables without atomic additions, once a length."""
    return gradient_band(torch.arange(2 * N - 1, dtype=torch.int32), device)
