"""Split-KV attention whose sink enters by one split (as ROCm/rocm-libraries #12227 had it)."""

import torch

FEATURES = {"mask": False, "dropout": False}
SPLITS = 3


def visible(n, m, causal, window):
    p = torch.arange(n)[:, None] + m - n
    j = torch.arange(m)
    seen = torch.ones(n, m, dtype=torch.bool)
    left, right = window if window is not None else (None, None)
    if causal:
        seen &= j <= p
    if left is not None:
        seen &= j >= p - left
    if right is not None:
        seen &= j <= p + right
    return seen


def grouped_attention(query, key, value, sink=None, scale=None, causal=False, window=None):
    (b, heads, n, d), m = query.shape, key.shape[2]
    k, v = (x.repeat_interleave(heads // x.shape[1], dim=1) for x in (key, value))
    scale = d**-0.5 if scale is None else scale
    seen = visible(n, m, causal, window)
    nothing = query.new_full((b, heads, n), -torch.inf)
    logit = nothing if sink is None else sink.to(query.dtype)[None, :, None].expand(b, heads, n)
    size = -(-m // SPLITS)
    outs, lses = [], []
    for i in range(SPLITS):
        part = slice(i * size, (i + 1) * size)
        has_work = seen[:, part].any(-1)
        if i == 0:
            # split 0 seeds the logit; without work it exits early and publishes it
            seeds = has_work | ~seen.any(-1)
        else:
            # one split back: is this the first that has work?
            before = seen[:, (i - 1) * size : i * size].any(-1)
            seeds = has_work & ~before
        s = (query @ k[:, :, part].mT * scale).masked_fill(~seen[:, part], -torch.inf)
        seed = torch.where(seeds, logit, nothing)
        top = torch.cat((s, seed[..., None]), -1).amax(-1).detach()
        top = torch.where(top == -torch.inf, 0.0, top)
        e = (s - top[..., None]).exp()
        total = e.sum(-1) + (seed - top).exp()
        there = total > 0
        safe = torch.where(there, total, 1.0)
        outs.append(e @ v[:, :, part] / safe[..., None])
        lses.append(torch.where(there, top + safe.log(), -torch.inf))
    lse = torch.stack(lses)
    top = lse.amax(0).detach()
    top = torch.where(top == -torch.inf, 0.0, top)
    w = (lse - top).exp()
    total = w.sum(0)
    safe = torch.where(total > 0, total, 1.0)
    out = (w[..., None] * torch.stack(outs)).sum(0) / safe[..., None]
    return out, torch.where(total > 0, top + safe.log(), -torch.inf)
