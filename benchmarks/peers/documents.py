"""
Eager PyTorch as the source documents write it: einsum over [N M B H], cat and view, masked_fill,
softmax, einsum.

Transformer-XL's attention with its rel_shift, ALiBi's with biases from the visible keys, the
additive attention of the Bahdanau page, and plain attention. labml-nn's own layers are a peer of
their own (examples/labml_backend.py).
"""

from math import sqrt

import torch

# The softmax over the second of four axes keeps its exp in the dtype (seen in PyTorch's CPU kernel
# for half types).
PRECISION = {"*": "eager", "alibi_attention": {"preset": "eager", "bias_form": "absolute"}}

MEMORY = "NBHD"


def shift_right(x):
    zeros = x.new_zeros(*x.shape[:-1], 1)
    N, M = x.shape[-2:]
    return (
        torch.cat([x, zeros], dim=-1).view(*x.shape[:-2], N * (M + 1))[..., : N * M].view(x.shape)
    )


def rel_shift(x):
    N, M = x.shape[-2:]
    padded = torch.cat([x.new_zeros(*x.shape[:-1], 1), x], dim=-1)
    return padded.view(*x.shape[:-2], M + 1, N)[..., 1:, :].reshape(x.shape)


def additive_attention(query, key, value, w_query, w_key, w_score, mask=None, keep=None, p=0.0):
    if mask is not None or keep is not None:
        raise NotImplementedError("the page's class takes no mask and no dropout")
    q, k = (query @ w_query.T).unsqueeze(2), (key @ w_key.T).unsqueeze(1)
    return torch.softmax((torch.tanh(q + k) @ w_score[:, None]).squeeze(-1), dim=-1) @ value


def scaled_dot_product_attention(query, key, value, mask=None, keep=None, p=0.0):
    if keep is not None or (mask is not None and mask.is_floating_point()):
        raise NotImplementedError("masks that hide, no dropout")
    score = query @ key.mT / sqrt(query.shape[-1])
    score = score if mask is None else score.masked_fill(~mask, -torch.inf)
    return torch.softmax(score, dim=-1) @ value


def alibi_attention(query, key, value, visible=None):
    """The slope times the running count of visible keys, added to every pair of every batch."""
    if visible is not None or query.shape[2] > key.shape[2]:
        raise NotImplementedError("the causal mask alone, a key for every query")
    (H, N), M = query.shape[1:3], key.shape[2]
    seen = causal(N, M, query.device)
    steep = 2.0 ** (-8.0 / H * torch.arange(1, H + 1, dtype=query.dtype, device=query.device))
    if H & (H - 1):
        raise NotImplementedError("head counts that are a power of two")
    score = torch.einsum("bihd,bjhd->ijbh", *(x.transpose(1, 2) for x in (query, key))) / sqrt(
        query.shape[-1]
    )
    score = score + (seen.cumsum(dim=-1)[:, :, None] * steep)[:, :, None, :]
    return mixed(score.masked_fill(~seen[:, :, None, None], -torch.inf), value)


def transformer_xl_attention(query, key, value, position, u, v, visible=None):
    if visible is not None or query.shape[2] > key.shape[2]:
        raise NotImplementedError("the causal mask alone, a key for every query")
    q, k = (x.permute(2, 0, 1, 3) for x in (query, key))
    content = torch.einsum("ibhd,jbhd->ijbh", q + u, k)
    distance = rel_shift_first(torch.einsum("ibhd,hjd->ijbh", q + v, position))
    score = (content + distance) / sqrt(query.shape[-1])
    seen = causal(query.shape[2], key.shape[2], query.device)
    return mixed(score.masked_fill(~seen[:, :, None, None], -torch.inf), value)


def rel_shift_first(x):
    """
    The page's _rel_shift of [N M B H]: a zero in front of every row, read as M + 1 rows of N, the
    first dropped.
    """
    N, M = x.shape[:2]
    padded = torch.cat([x.new_zeros(N, 1, *x.shape[2:]), x], dim=1)
    return padded.view(M + 1, N, *x.shape[2:])[1:].view_as(x)


def causal(N, M, device):
    return torch.ones(N, M, dtype=torch.bool, device=device).tril(M - N)


def mixed(score, value):
    """Softmax over the keys and the product with the values, [N M B H] to [B H N E]."""
    weights = torch.softmax(score, dim=1)
    return torch.einsum("ijbh,bhje->bhie", weights, value)
