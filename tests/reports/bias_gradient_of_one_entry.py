"""Multi-head attention on a linear layer with a backward by hand (kind of mlpack/mlpack #3679)."""

import torch


def hide(scores, attn_mask, key_padding_mask):
    """Scores with the float mask added, and which of them are hidden."""
    hidden = torch.zeros_like(scores, dtype=torch.bool)
    if attn_mask is not None:
        attn_mask = attn_mask.reshape(-1, *scores.shape[1:]) if attn_mask.ndim == 3 else attn_mask
        if attn_mask.dtype == torch.bool:
            hidden = hidden | attn_mask
        else:
            hidden = hidden | (attn_mask == -torch.inf)
            scores = scores + attn_mask.masked_fill(attn_mask == -torch.inf, 0)
    if key_padding_mask is not None:
        hidden = hidden | key_padding_mask[:, None, None, :]
    return scores, hidden


def weigh(scores, hidden):
    low = torch.finfo(scores.dtype).min
    return scores.masked_fill(hidden, low).softmax(-1).masked_fill(hidden, 0)


class Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        y = x @ weight.mT
        return y if bias is None else y + bias

    @staticmethod
    def backward(ctx, d_y):
        x, weight = ctx.saved_tensors
        d_weight = d_y.flatten(0, 1).mT @ x.flatten(0, 1)
        d_bias = d_y.sum((0, 1))
        return d_y @ weight, d_weight, d_bias if ctx.needs_input_grad[2] else None


def multi_head_attention(
    query, key, value, parameters, num_heads, attn_mask=None, key_padding_mask=None
):
    def linear(name, y):
        weight, bias = parameters[f"{name}.weight"], parameters.get(f"{name}.bias")
        return Linear.apply(y, weight, bias)

    def heads(name, y):
        return linear(name, y).unflatten(-1, (num_heads, -1)).transpose(1, 2)

    q, k, v = heads("q_proj", query), heads("k_proj", key), heads("v_proj", value)
    scores, hidden = hide(q @ k.mT / q.shape[-1] ** 0.5, attn_mask, key_padding_mask)
    weights = weigh(scores, hidden)
    return linear("out_proj", (weights @ v).transpose(1, 2).flatten(2)), weights
