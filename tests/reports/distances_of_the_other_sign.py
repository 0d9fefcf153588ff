"""Learned relative scores (kind of nntrainer/nntrainer #3982)."""

import torch


def learned_relative_score(query, key, key_pos_embeddings, key_pos_bias, query_pos_bias, align):
    n, m, half = query.shape[2], key.shape[2], key_pos_bias.shape[0] // 2
    if max(n, m) > half:
        raise ValueError(f"key_pos_embeddings: wanted P >= {max(n, m)}, got {half}")
    offset = m - n if align == "end" else 0
    distance = torch.arange(m) - torch.arange(n)[:, None] - offset
    rows = half + distance
    table, bias = key_pos_embeddings[rows], key_pos_bias[rows]  # [N M H D], [N M H]
    place = torch.einsum("bhnd,nmhd->bhnm", query, table) + bias.permute(2, 0, 1)
    content = (query + query_pos_bias[:, None]) @ key.mT
    return (content + place) / query.shape[-1] ** 0.5
