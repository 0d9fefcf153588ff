"""
Multi-head attention that takes padding out before it attends, and puts it back behind
(as vllm-project/vllm-omni #5865 had _upad_input in its flash attention backend).
"""

import torch
from torch.nn.functional import linear

FEATURES = {"dropout": False}


def unpad(attention_mask):
    """Places of the tokens in the flattened array, and how many each sequence has."""
    return attention_mask.flatten().nonzero().flatten(), attention_mask.sum(-1).tolist()


def upad_input(query, key, value, attention_mask):
    """attention_mask: [B M], True where there is a token."""
    indices_k, lengths_k = unpad(attention_mask)
    query_length = query.shape[1]
    query_mask = attention_mask.new_ones(query.shape[0], query_length)
    indices_q, lengths_q = unpad(query_mask)
    query = query.flatten(0, 1)[indices_q]
    key, value = key.flatten(0, 1)[indices_k], value.flatten(0, 1)[indices_k]
    return query, key, value, (indices_q, lengths_q), (indices_k, lengths_k)


def varlen_attention(q, k, v, lengths_q, lengths_k):
    """Attention of sequences laid end to end: the outputs, and the weights of each sequence."""
    outputs, weights = [], []
    for qi, ki, vi in zip(q.split(lengths_q), k.split(lengths_k), v.split(lengths_k), strict=False):
        qi, ki, vi = (x.transpose(0, 1) for x in (qi, ki, vi))
        w = torch.softmax(qi @ ki.mT * qi.shape[-1] ** -0.5, -1)
        outputs.append((w @ vi).transpose(0, 1))
        weights.append(w)
    return torch.cat(outputs), weights


def multi_head_attention(query, key, value, parameters, num_heads, key_padding_mask=None):
    (b, n, f), m = query.shape, key.shape[1]
    tokens = torch.ones(b, m, dtype=torch.bool) if key_padding_mask is None else ~key_padding_mask
    if key_padding_mask is None:
        rows, columns = (torch.arange(b * n), [n] * b), (torch.arange(b * m), [m] * b)
        q, k, v = (x.flatten(0, 1) for x in (query, key, value))
    else:
        q, k, v, rows, columns = upad_input(query, key, value, tokens)
    q, k, v = (
        linear(x, parameters[f"{name}.weight"], parameters.get(f"{name}.bias")).unflatten(
            -1, (num_heads, f // num_heads)
        )
        for x, name in ((q, "q_proj"), (k, "k_proj"), (v, "v_proj"))
    )
    attended, each = varlen_attention(q, k, v, rows[1], columns[1])
    padded = query.new_zeros(b * n, f).index_copy(0, rows[0], attended.flatten(1))
    at_row, at_column = rows[0].split(rows[1]), columns[0].split(columns[1])
    weights = query.new_zeros(num_heads, b * n, m)
    for w, i, j in zip(each, at_row, at_column, strict=False):
        weights = weights.index_put((torch.arange(num_heads)[:, None, None], i[:, None], j % m), w)
    output = linear(
        padded.view(b, n, f), parameters["out_proj.weight"], parameters.get("out_proj.bias")
    )
    return output, weights.view(num_heads, b, n, m).transpose(0, 1)
