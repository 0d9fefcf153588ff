"""Block-sparse attention that gathers each row's blocks, row by row (flex-block-attn #2)."""

import torch


def in_blocks(x, block):
    """Keys or values [M D] as [blocks block D], filled up with zeros."""
    short = -len(x) % block
    return torch.cat([x, x.new_zeros(short, x.shape[1])]).unflatten(0, (-1, block))


def one_row(q, keys, values, chosen, m, scale):
    """Query heads [R D] over the blocks that this row has chosen."""
    chosen = chosen[chosen >= 0].long()
    if len(chosen) == 0:
        return q.new_zeros(len(q), values.shape[-1]), q.new_full((len(q),), -torch.inf)
    block = keys.shape[1]
    at = (chosen[:, None] * block + torch.arange(block)).flatten()
    there = at < m
    k, v = keys[chosen].flatten(0, 1)[there], values[chosen].flatten(0, 1)[there]
    s = q @ k.T * scale
    lse = torch.logsumexp(s, -1)
    return torch.exp(s - lse[:, None]) @ v, lse


def selected_attention(query, key, value, selection, block, scale=None):
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    b, g, m, _ = key.shape
    q = query.unflatten(1, (g, -1))
    outputs, lses = [], []
    for one in range(b):
        for group in range(g):
            keys = in_blocks(key[one, group], block)
            values = in_blocks(value[one, group], block)
            for i in range(query.shape[2]):
                chosen = selection[one, group, i]
                out, lse = one_row(q[one, group, :, i], keys, values, chosen, m, scale)
                outputs.append(out)
                lses.append(lse)
    shape = (b, g, query.shape[2], q.shape[2])
    out = torch.stack(outputs).view(*shape, -1).transpose(2, 3)
    return out.flatten(1, 2), torch.stack(lses).view(shape).transpose(2, 3).flatten(1, 2)
