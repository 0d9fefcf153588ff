"""
Attentions as people write them with PyTorch, each with conventions of its own, for
``attnverify identify``.
"""

import math

import torch
import torch.nn.functional as F

ARRAYS = "torch"


def scaled_dot_product_attention(query, key, value, mask=None, keep=None, p=0.0):
    """PyTorch's own."""
    if keep is not None:
        raise NotImplementedError("draws its own dropout mask")
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)


def scaled_dot_product_attention_is_causal(query, key, value, mask=None, keep=None, p=0.0):
    """PyTorch's own with its flag, which begins at the top-left."""
    if mask is not None or keep is not None:
        raise NotImplementedError("is_causal takes no mask")
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)


def scaled_dot_product_attention_hand_made(query, key, value, mask=None, keep=None, p=0.0):
    """True = hidden, -1e9 for minus infinity, kept weights that are not scaled."""
    score = query @ key.mT / math.sqrt(query.shape[-1])
    if mask is not None:
        score = score.masked_fill(mask, -1e9) if mask.dtype == torch.bool else score + mask
    weights = score.softmax(-1)
    return (weights if keep is None else weights * keep) @ value


def alibi_attention_like_labml(query, key, value, visible=None):
    """
    Biases that count visible keys, softmax over what is left: NaN where nothing is (labml-nn,
    transformers/alibi).
    """
    N, M = query.shape[2], key.shape[2]
    seen = torch.ones(N, M, dtype=torch.bool).tril(M - N)
    seen = seen if visible is None else seen & visible
    count = seen.to(query.dtype).cumsum(-1)
    score = (
        query @ key.mT / math.sqrt(query.shape[-1])
        + slopes(query.shape[1])[:, None, None].to(query.dtype) * count
    )
    return score.masked_fill(~seen, float("-inf")).softmax(-1) @ value


def alibi_attention_plain(query, key, value, visible=None):
    """A plain geometric series, a top-left triangle, slope times distance in the dtype itself."""
    N, M = query.shape[2], key.shape[2]
    H = query.shape[1]
    series = torch.tensor([2 ** (-8 * (h + 1) / H) for h in range(H)], dtype=query.dtype)
    distance = (torch.arange(M) - torch.arange(N)[:, None] - (M - N)).to(query.dtype)
    score = query @ key.mT / math.sqrt(query.shape[-1]) + series[:, None, None] * distance
    seen = torch.ones(N, M, dtype=torch.bool).tril()
    seen = seen if visible is None else seen & visible
    return score.masked_fill(~seen, float("-inf")).softmax(-1).nan_to_num() @ value


def slopes(H):
    n = 2 ** int(math.log2(H))
    first = [2 ** (-8 * (h + 1) / n) for h in range(n)]
    return torch.tensor(first + [2 ** (-4 * (2 * h + 1) / n) for h in range(H - n)])


def learned_relative_attention_like_labml(
    query, key, value, key_pos_embeddings, key_pos_bias, query_pos_bias, align, visible=None
):
    """
    Tables read end-aligned whatever is asked, through shift_right (labml-nn,
    transformers/xl/relative_mha).
    """
    (N, M), P = (query.shape[2], key.shape[2]), len(key_pos_bias) // 2
    rows = slice(P - M, P + N)
    content = (query + query_pos_bias[:, None]) @ key.mT
    place = query @ key_pos_embeddings[rows].permute(1, 2, 0) + key_pos_bias[rows].T[:, None]
    padded = F.pad(place, (0, 1)).flatten(-2)[..., : N * (N + M)].unflatten(-1, (N, N + M))
    score = (content + padded[..., -M:]) / math.sqrt(query.shape[-1])
    score = score if visible is None else score.masked_fill(~visible, float("-inf"))
    return score.softmax(-1) @ value


def update_mems_everything(hids, mems, mem_len):
    """The tail that x[-0:] gives: everything at mem_len 0."""
    return (
        None
        if mems is None
        else [
            torch.cat([mem, hid], 1)[:, -mem_len:].clone()
            for mem, hid in zip(mems, hids, strict=True)
        ]
    )


def rel_shift_backwards(x):
    """Nothing of the table: rows of noise of another kind."""
    return x.flip(-1)


def causal_mask_top_left(N, M):
    return torch.ones(N, M, dtype=torch.bool).tril()
