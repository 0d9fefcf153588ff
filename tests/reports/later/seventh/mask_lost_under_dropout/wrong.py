"""Multi-head attention with a fast path for one mask alone (as keras #23038 had it)."""

import torch


def merged(attn_mask, key_padding_mask, num_heads, like):
    mask = torch.zeros(1, 1, 1, 1, dtype=like.dtype)
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            attn_mask = torch.zeros(attn_mask.shape, dtype=like.dtype).masked_fill(
                attn_mask, -torch.inf
            )
        mask = (
            attn_mask[None, None]
            if attn_mask.ndim == 2
            else attn_mask.unflatten(0, (-1, num_heads))
        )
    if key_padding_mask is not None:
        mask = mask.masked_fill(key_padding_mask[:, None, None, :], -torch.inf)
    return mask


def attention_weights(q, k, mask):
    s = q @ k.mT * q.shape[-1] ** -0.5
    if mask is None:
        return s.softmax(-1)
    hidden = (mask == -torch.inf).expand(s.shape)
    empty = hidden.all(-1, keepdim=True)
    s = s + mask.masked_fill(mask == -torch.inf, 0.0)
    return s.masked_fill(hidden & ~empty, -torch.inf).softmax(-1).masked_fill(hidden, 0.0)


def multi_head_attention(
    query,
    key,
    value,
    parameters,
    num_heads,
    attn_mask=None,
    key_padding_mask=None,
    keep=None,
    p=0.0,
):
    def projected(x, name):
        return torch.nn.functional.linear(
            x, parameters[f"{name}.weight"], parameters.get(f"{name}.bias")
        )

    q, k, v = (
        projected(x, name).unflatten(-1, (num_heads, -1)).transpose(1, 2)
        for x, name in ((query, "q_proj"), (key, "k_proj"), (value, "v_proj"))
    )
    # one mask alone goes to the fused kernel as it is: no merged mask is materialised
    alone = attn_mask is not None and key_padding_mask is None
    mask = None
    if not alone and key_padding_mask is not None:
        mask = merged(attn_mask, key_padding_mask, num_heads, q)
    if keep is None:  # fused
        weights = attention_weights(q, k, merged(attn_mask, None, num_heads, q) if alone else mask)
    else:  # dropout: by hand
        weights = attention_weights(q, k, mask)
        weights = torch.where(keep, weights / (1.0 - p), 0.0)
    out = (weights @ v).transpose(1, 2).flatten(-2)
    return projected(out, "out_proj"), weights
