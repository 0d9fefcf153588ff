"""
For each specification a right implementation in torch, in another order than it, and wrong ones:
``wrong`` names what is wrong.
"""

from collections.abc import Callable
from typing import Any

import torch

T = torch
Tensor = torch.Tensor


def rms_norm(x: Tensor, gain: Tensor, eps: float = 1e-6, wrong: str = "") -> Tensor:
    y, g = x.float(), gain.float()
    y = y - y.mean(-1, keepdim=True) if wrong == "centred" else y
    square = y.pow(2).sum(-1, keepdim=True) if wrong == "sum" else y.pow(2).mean(-1, keepdim=True)
    eps = 0.01 if wrong == "eps" else eps
    g = 1 + g if wrong == "gain plus one" else g
    g = T.ones_like(g) if wrong == "no gain" else g
    return (y * T.rsqrt(square + eps) * g).to(x.dtype)


def layer_norm(x: Tensor, gain: Tensor, bias: Tensor, eps: float = 1e-5, wrong: str = "") -> Tensor:
    y = x.float()
    c = y if wrong == "not centred" else y - y.mean(-1, keepdim=True)
    v = c.pow(2).mean(-1, keepdim=True)
    if wrong == "bessel" and x.shape[-1] > 1:
        v = c.pow(2).sum(-1, keepdim=True) / (x.shape[-1] - 1)
    root = v + eps if wrong == "no root" else (v + eps).sqrt()
    b = 0 if wrong == "no bias" else -bias.float() if wrong == "bias negated" else bias.float()
    return (c / root * gain.float() + b).to(x.dtype)


def layer_norm_backward(
    d_y: Tensor, x: Tensor, gain: Tensor, eps: float = 1e-5, wrong: str = ""
) -> tuple[Tensor, Tensor, Tensor]:
    y, d = x.float(), d_y.float()
    c = y - y.mean(-1, keepdim=True)
    rstd = T.rsqrt(c.pow(2).mean(-1, keepdim=True) + eps)
    normal, back = c * rstd, d if wrong == "no gain" else d * gain.float()
    first = 0 if wrong == "first term" else back.mean(-1, keepdim=True)
    second = 0 if wrong == "second term" else normal * (back * normal).mean(-1, keepdim=True)
    d_x = (back - first - second) * (1 if wrong == "no rstd" else rstd)
    d_gain = (d * (c if wrong == "gain of centred" else normal)).sum(0)
    return d_x.to(x.dtype), d_gain.to(x.dtype), d.sum(0).to(x.dtype)


def group_norm(x: Tensor, gain: Tensor, bias: Tensor, eps: float = 1e-5, wrong: str = "") -> Tensor:
    B, C, N = x.shape
    groups = 1 if wrong == "one group" else C if wrong == "each channel" else C // 2
    y = x.float().reshape(B, groups, -1)
    c = y - y.mean(-1, keepdim=True)
    v = c.pow(2).mean(-1, keepdim=True)
    y = (c * T.rsqrt(v + (1e-3 if wrong == "eps" else eps))).reshape(B, C, N)
    b = T.zeros_like(bias) if wrong == "no bias" else bias
    return (y * gain.float()[:, None] + b.float()[:, None]).to(x.dtype)


def rotary(x: Tensor, cos: Tensor, sin: Tensor, wrong: str = "") -> Tensor:
    c, s = (sin, cos) if wrong == "exchanged" else (cos, sin)
    c, s = c.float(), s.float()
    if wrong == "interleaved":
        a, b = x.float()[..., ::2], x.float()[..., 1::2]
        return T.stack([a * c - b * s, b * c + a * s], -1).flatten(-2).to(x.dtype)
    a, b = x.float().chunk(2, -1)
    sign = 1 if wrong == "sign" else -1
    first, second = T.addcmul(a * c, b, s, value=sign), T.addcmul(b * c, a, s)
    second = b * c - a * s if wrong == "second sign" else second
    parts = [second, first] if wrong == "halves" else [first, second]
    return T.cat(parts, -1).to(x.dtype)


def rotary_by_position(x: Tensor, wrong: str = "") -> Tensor:
    N, H = x.shape[1], x.shape[2] // 2
    base = 1000.0 if wrong == "base" else 10000.0
    frequency = 1.0 / base ** (T.arange(H, dtype=T.float32) / H / (1 + (wrong == "half")))
    angle = T.outer(T.arange(N, dtype=T.float32) + (wrong == "from one"), frequency)
    cos, sin = angle.cos(), angle.sin() * (-1 if wrong == "backwards" else 1)
    return rotary(x, cos, sin, wrong)


def swiglu(x: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor, wrong: str = "") -> Tensor:
    gate, up = x @ w_gate.T, x @ w_up.T
    if wrong == "swapped":
        gate, up = up, gate
    act = T.sigmoid(gate) if wrong == "sigmoid" else gate * T.sigmoid(gate)
    act = gate if wrong == "linear" else act
    joined = act if wrong == "no up" else act + up if wrong == "added" else act * up
    return joined @ w_down.T


def cross_entropy(
    logits: Tensor, target: Tensor, smoothing: float = 0.1, wrong: str = ""
) -> Tensor:
    x = logits.float()
    smoothing = 0.0 if wrong == "not smoothed" else smoothing
    kept = target != -100
    at = T.where(kept, target, 0)[:, None]
    rows = x[:, :-1] if wrong == "last class" and x.shape[1] > 1 else x
    lse = T.logsumexp(rows, -1)
    lse = -lse if wrong == "sign" else lse
    mean = x.sum(-1) if wrong == "sum" else x.mean(-1)
    loss = lse - (1 - smoothing) * x.gather(1, at)[:, 0] - smoothing * mean
    return (loss if wrong == "not ignored" else T.where(kept, loss, 0.0)).to(logits.dtype)


def shared_heads_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sink: Tensor,
    window: int = 4,
    cap: float = 5.0,
    wrong: str = "",
) -> Tensor:
    (B, H, N, D), (G, M) = q.shape, k.shape[1:3]
    many = (1, H // G, 1, 1)
    if wrong == "heads":
        k, v = k.repeat(many), v.repeat(many)
    else:
        k, v = k.repeat_interleave(H // G, 1), v.repeat_interleave(H // G, 1)
    s = (q @ k.mT) * (1.0 if wrong == "scale" else D**-0.5)
    s = s if wrong == "cap" else cap * T.tanh(s / cap)
    i, j = T.arange(N)[:, None] + (0 if wrong == "alignment" else M - N), T.arange(M)
    low = i - window - int(wrong == "window")
    s = s.masked_fill(~((j <= i) & (j > low)), float("-inf"))
    both = T.cat([s, sink.to(s.dtype)[None, :, None, None].expand(B, H, N, 1)], -1).float()
    if wrong == "sink":
        return T.softmax(both[..., :M], -1).nan_to_num().to(v.dtype) @ v
    return T.softmax(both, -1)[..., :M].to(v.dtype) @ v


def linear_attention(q: Tensor, k: Tensor, v: Tensor, wrong: str = "") -> Tensor:
    kind = q.dtype
    q, k, v = q.float(), k.float(), v.float()
    q, k = (q if wrong == "query" else q.relu() + 0.125), k.relu() + 0.125
    k = k - 0.125 if wrong == "no offset" else k
    B, N, D = q.shape
    state, total, out = T.zeros(B, D, v.shape[2]), T.zeros(B, D), []
    if wrong == "not causal":
        state, total = T.einsum("bnd,bne->bde", k, v), k.sum(1)
    for n in range(N):
        if wrong != "not causal":
            state = state * (0.9 if wrong == "decay" else 1) + k[:, n, :, None] * v[:, n, None, :]
            total = total + k[:, n]
        summed = (q[:, n, None] @ state)[:, 0]
        divided = summed / (q[:, n] * total).sum(-1, keepdim=True)
        out.append(summed if wrong == "not normalised" else divided)
    return T.stack(out, 1).to(kind)


def gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, gate: Tensor, beta: Tensor, wrong: str = ""
) -> Tensor:
    kind = q.dtype
    q, k, v, gate, beta = (x.float() for x in (q, k, v, gate, beta))
    k = k if wrong == "keys" else k * T.rsqrt(k.pow(2).sum(-1, keepdim=True) + 1e-6)
    decay = T.exp(gate.abs() if wrong == "growth" else -gate.abs())
    decay = T.ones_like(decay) if wrong == "no decay" else decay
    rate = T.ones_like(beta) if wrong == "no rate" else T.sigmoid(beta)
    state, out = T.zeros(q.shape[1], v.shape[1]), []
    for n in range(len(q)):
        state = state * decay[n]
        seen = 0 if wrong == "no delta" else k[n] @ state
        state = state + T.outer(k[n], rate[n] * (v[n] - seen))
        out.append(q[n] @ state)
    return T.stack(out).to(kind)


def top_k_gating(logits: Tensor, k: int = 2, wrong: str = "") -> Tensor:
    x = logits.float()
    k = k + 1 if wrong == "one more" else 1 if wrong == "one" else k
    chosen = x.topk(k, -1, largest=wrong != "smallest").indices
    shown = T.zeros_like(x).scatter(-1, chosen, 1.0) > 0
    if wrong == "before":
        return (T.softmax(x, -1) * shown).to(logits.dtype)
    if wrong == "sigmoid":
        return (T.sigmoid(x) * shown).to(logits.dtype)
    return T.softmax(x.masked_fill(~shown, float("-inf")), -1).to(logits.dtype)


def int8_product(x: Tensor, w: Tensor, scale: Tensor, wrong: str = "") -> Tensor:
    whole = w.float() + (128 if wrong == "zero point" else 0)
    whole = whole.abs() if wrong == "sign" else whole
    found = x.float() @ whole.T
    if wrong == "no scale":
        return found.to(x.dtype)
    if wrong == "first scale":
        return (found * scale.float()[0]).to(x.dtype)
    return (found * scale.float()).to(x.dtype)


def gelu_layer(x: Tensor, w: Tensor, b: Tensor, wrong: str = "") -> Tensor:
    z = x.float() @ w.float().T + (0 if wrong == "no bias" else b.float())
    if wrong == "relu":
        return z.relu().to(x.dtype)
    if wrong == "sigmoid form":
        return (z * T.sigmoid(1.702 * z)).to(x.dtype)
    if wrong == "no cube":
        return (0.5 * z * (1 + T.tanh((2 / T.pi) ** 0.5 * z))).to(x.dtype)
    return T.nn.functional.gelu(z, approximate="tanh").to(x.dtype)


def masked_mean(x: Tensor, seen: Tensor, wrong: str = "") -> Tensor:
    weight = T.ones_like(seen) if wrong == "all" else ~seen if wrong == "inverted" else seen
    total = (x.float() * weight[..., None]).sum(1)
    count = weight.sum(1).clamp(min=1)[:, None]
    if wrong == "over all":
        count = T.full_like(count, x.shape[1])
    return (total if wrong == "sum" else total / count).to(x.dtype)


KERNELS: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "rms_norm": (rms_norm, ("centred", "sum", "eps", "gain plus one", "no gain")),
    "layer_norm": (layer_norm, ("not centred", "bessel", "no root", "no bias", "bias negated")),
    "layer_norm_backward": (
        layer_norm_backward,
        ("no gain", "first term", "second term", "no rstd", "gain of centred"),
    ),
    "group_norm": (group_norm, ("one group", "each channel", "eps", "no bias")),
    "rotary": (rotary, ("exchanged", "interleaved", "sign", "second sign", "halves")),
    "rotary_by_position": (
        rotary_by_position,
        ("base", "half", "from one", "backwards", "interleaved", "halves"),
    ),
    "swiglu": (swiglu, ("swapped", "sigmoid", "linear", "no up", "added")),
    "cross_entropy": (
        cross_entropy,
        ("not smoothed", "last class", "sign", "sum", "not ignored"),
    ),
    "shared_heads_attention": (
        shared_heads_attention,
        ("heads", "scale", "cap", "alignment", "window", "sink"),
    ),
    "linear_attention": (
        linear_attention,
        ("query", "no offset", "not causal", "decay", "not normalised"),
    ),
    "gated_delta_rule": (
        gated_delta_rule,
        ("keys", "growth", "no decay", "no rate", "no delta"),
    ),
    "top_k_gating": (top_k_gating, ("one more", "one", "smallest", "before", "sigmoid")),
    "int8_product": (int8_product, ("zero point", "sign", "no scale", "first scale")),
    "gelu_layer": (gelu_layer, ("no bias", "relu", "sigmoid form", "no cube")),
    "masked_mean": (masked_mean, ("all", "inverted", "over all", "sum")),
}
"""By operation: the kernel, and the names of what may be wrong with it."""
