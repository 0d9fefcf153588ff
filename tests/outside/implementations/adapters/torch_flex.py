import torch
from torch.nn.attention import flex_attention as flex

flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True
PRECISION = "fused"


def grouped_attention(query, key, value, soft_cap=None, scale=None):
    def capped(score, b, h, i, j):
        return soft_cap * torch.tanh(score / soft_cap)

    change = None if soft_cap is None else capped
    return flex.flex_attention(
        query, key, value, change, scale=scale, enable_gqa=True, return_lse=True
    )
