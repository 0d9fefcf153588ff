"""Learned relative attention whose tables are looked up with a backward by hand."""

import torch


class Look(torch.autograd.Function):
    @staticmethod
    def forward(ctx, table, rows):
        ctx.save_for_backward(rows)
        ctx.shape = table.shape
        return table[rows]

    @staticmethod
    def backward(ctx, d):
        (rows,) = ctx.saved_tensors
        d_table = d.new_zeros(ctx.shape)
        d_table.index_put_((rows,), d, accumulate=True)
        return d_table, None


def learned_relative_attention(
    query, key, value, key_pos_embeddings, key_pos_bias, query_pos_bias, align, visible=None
):
    n, m, half = query.shape[2], key.shape[2], key_pos_bias.shape[0] // 2
    if max(n, m) > half:
        raise ValueError(f"key_pos_embeddings: wanted P >= {max(n, m)}, got {half}")
    offset = m - n if align == "end" else 0
    rows = half + torch.arange(m) - torch.arange(n)[:, None] - offset
    table, bias = Look.apply(key_pos_embeddings, rows), Look.apply(key_pos_bias, rows)
    place = torch.einsum("bhnd,nmhd->bhnm", query, table) + bias.permute(2, 0, 1)
    scores = ((query + query_pos_bias[:, None]) @ key.mT + place) / query.shape[-1] ** 0.5
    if visible is None:
        return scores.softmax(-1) @ value
    low = torch.finfo(scores.dtype).min
    return scores.masked_fill(~visible, low).softmax(-1).masked_fill(~visible, 0) @ value
