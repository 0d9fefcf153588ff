"""
Operations that the catalogue has not, as a user would write them: NumPy, annotated axes, nothing
else.
"""

from typing import Annotated

import numpy as np
from jaxtyping import Bool, Float, Int, Int8
from numpy import ndarray


def rms_norm(
    x: Float[ndarray, "B N F"], gain: Float[ndarray, "F"], eps: float = 1e-6
) -> Float[ndarray, "B N F"]:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * gain


def layer_norm(
    x: Float[ndarray, "N F"],
    gain: Float[ndarray, "F"],
    bias: Float[ndarray, "F"],
    eps: float = 1e-5,
) -> Float[ndarray, "N F"]:
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + eps) * gain + bias


def layer_norm_backward(
    d_y: Float[ndarray, "N F"],
    x: Float[ndarray, "N F"],
    gain: Float[ndarray, "F"],
    eps: float = 1e-5,
) -> tuple[Float[ndarray, "N F"], Float[ndarray, "F"], Float[ndarray, "F"]]:
    centred = x - x.mean(axis=-1, keepdims=True)
    root = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + eps)
    y = centred / root
    d = d_y * gain
    d_x = (d - d.mean(axis=-1, keepdims=True) - y * (d * y).mean(axis=-1, keepdims=True)) / root
    return d_x, (d_y * y).sum(axis=0), d_y.sum(axis=0)


def group_norm(
    x: Float[ndarray, "B 2G N"],
    gain: Float[ndarray, "2G"],
    bias: Float[ndarray, "2G"],
    eps: float = 1e-5,
) -> Float[ndarray, "B 2G N"]:
    B, C, N = x.shape
    group = x.reshape(B, C // 2, 2 * N)
    centred = group - group.mean(axis=-1, keepdims=True)
    normal = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + eps)
    return normal.reshape(B, C, N) * gain[:, None] + bias[:, None]


def rotary(
    x: Float[ndarray, "B N 2H"], cos: Float[ndarray, "N H"], sin: Float[ndarray, "N H"]
) -> Float[ndarray, "B N 2H"]:
    a, b = np.split(x, 2, axis=-1)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def rotary_by_position(x: Float[ndarray, "B N 2H"]) -> Float[ndarray, "B N 2H"]:
    N, H = x.shape[1], x.shape[2] // 2
    angle = np.arange(N)[:, None] * 10000.0 ** (-np.arange(H) / H)
    cos, sin = np.cos(angle), np.sin(angle)
    a, b = x[..., :H], x[..., H:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def decayed_attention(
    q: Float[ndarray, "H N D"], k: Float[ndarray, "H N D"], v: Float[ndarray, "H N E"]
) -> Float[ndarray, "H N E"]:
    H, N, D = q.shape
    rate = np.linspace(0.1, 1.0, H)[:, None, None]
    distance = np.abs(np.arange(N)[:, None] - np.arange(N))
    s = q @ k.mT / np.sqrt(D) - 2.0 ** (-8.0 * rate) * distance
    e = np.exp(s - s.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True) * np.exp(-rate * distance) @ v


def swiglu(
    x: Float[ndarray, "B N F"],
    w_gate: Float[ndarray, "I F"],
    w_up: Float[ndarray, "I F"],
    w_down: Float[ndarray, "F I"],
) -> Float[ndarray, "B N F"]:
    gate = x @ w_gate.T
    return (gate / (1 + np.exp(-gate)) * (x @ w_up.T)) @ w_down.T


def cross_entropy(
    logits: Float[ndarray, "N V"],
    target: Annotated[Int[ndarray, "N"], "V", -100],
    smoothing: float = 0.1,
) -> Float[ndarray, "N"]:
    top = logits.max(axis=-1, keepdims=True)
    lse = top + np.log(np.exp(logits - top).sum(axis=-1, keepdims=True))
    kept = target != -100
    right = np.take_along_axis(logits, np.where(kept, target, 0)[:, None], axis=-1)
    loss = lse - (1 - smoothing) * right - smoothing * logits.mean(axis=-1, keepdims=True)
    return np.where(kept, loss[:, 0], 0.0)


def shared_heads_attention(
    q: Float[ndarray, "B 2G N D"],
    k: Float[ndarray, "B G M D"],
    v: Float[ndarray, "B G M E"],
    sink: Float[ndarray, "2G"],
    window: int = 4,
    cap: float = 5.0,
) -> Float[ndarray, "B 2G N E"]:
    B, H, N, D = q.shape
    G, M = k.shape[1:3]
    k, v = np.repeat(k, H // G, axis=1), np.repeat(v, H // G, axis=1)
    s = cap * np.tanh(np.einsum("bhnd,bhmd->bhnm", q, k) / np.sqrt(D) / cap)
    i, j = np.arange(N)[:, None] + M - N, np.arange(M)
    s = np.where((j <= i) & (j > i - window), s, -np.inf)
    last = sink[:, None, None]
    top = np.maximum(s.max(axis=-1, keepdims=True), last)
    e = np.exp(s - top)
    return e / (e.sum(axis=-1, keepdims=True) + np.exp(last - top)) @ v


def linear_attention(
    q: Float[ndarray, "B N D"], k: Float[ndarray, "B N D"], v: Float[ndarray, "B N E"]
) -> Float[ndarray, "B N E"]:
    q, k = np.maximum(q, 0.0) + 0.125, np.maximum(k, 0.0) + 0.125
    state = np.cumsum(k[..., :, None] * v[..., None, :], axis=1)
    total = np.cumsum(k, axis=1)
    summed = np.einsum("bnd,bnde->bne", q, state)
    return summed / np.einsum("bnd,bnd->bn", q, total)[..., None]


def gated_delta_rule(
    q: Float[ndarray, "N D"],
    k: Float[ndarray, "N D"],
    v: Float[ndarray, "N E"],
    gate: Float[ndarray, "N"],
    beta: Float[ndarray, "N"],
) -> Float[ndarray, "N E"]:
    N, D, E = len(q), q.shape[1], v.shape[1]
    keys = k / np.sqrt((k * k).sum(axis=-1, keepdims=True) + 1e-6)
    decay, rate = np.exp(-np.abs(gate)), 1 / (1 + np.exp(-beta))
    state, out = np.zeros((D, E)), np.zeros((N, E))
    for n in range(N):
        state = state * decay[n]
        state = state + np.outer(keys[n], rate[n] * (v[n] - keys[n] @ state))
        out[n] = q[n] @ state
    return out


def top_k_gating(logits: Float[ndarray, "N 4E"], k: int = 2) -> Float[ndarray, "N 4E"]:
    chosen = np.argsort(-logits, axis=-1)[:, :k]
    shown = np.full(logits.shape, -np.inf)
    np.put_along_axis(shown, chosen, 0.0, axis=-1)
    s = logits + shown
    e = np.exp(s - s.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def int8_product(
    x: Float[ndarray, "B F"], w: Int8[ndarray, "I F"], scale: Float[ndarray, "I"]
) -> Float[ndarray, "B I"]:
    return x @ (w * scale[:, None]).T


def gelu_layer(
    x: Float[ndarray, "B F"], w: Float[ndarray, "I F"], b: Float[ndarray, "I"]
) -> Float[ndarray, "B I"]:
    z = x @ w.T + b
    return 0.5 * z * (1 + np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z**3)))


def masked_mean(x: Float[ndarray, "B N F"], seen: Bool[ndarray, "B N"]) -> Float[ndarray, "B F"]:
    kept = np.where(seen[..., None], x, 0.0)
    return kept.sum(axis=1) / np.maximum(seen.sum(axis=1), 1)[:, None]


def exponentials_of_row(s: Float[ndarray, "N M"]) -> Float[ndarray, "N M"]:
    return np.exp(s - s.max(axis=-1, keepdims=True))


def unnormalised_attention(
    q: Float[ndarray, "H N D"],
    k: Float[ndarray, "H M D"],
    v: Float[ndarray, "H M E"],
    distance: Float[ndarray, "H N M"],
    decay: Float[ndarray, "H N M"],
) -> Float[ndarray, "H N E"]:
    s = q @ k.mT / np.sqrt(q.shape[-1]) - np.abs(distance)
    e = np.exp(s - s.max(axis=-1, keepdims=True))
    return (e * np.exp(-np.abs(decay))) @ v


def norm_of_product(
    x: Float[ndarray, "B F"], w: Float[ndarray, "F I"], eps: float = 1e-6
) -> Float[ndarray, "B I"]:
    z = x @ w
    centred = z - z.mean(axis=-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + eps)


def log_softmax_of_product(
    x: Float[ndarray, "B F"], w: Float[ndarray, "F I"]
) -> Float[ndarray, "B I"]:
    z = x @ w
    top = z.max(axis=-1, keepdims=True)
    return z - top - np.log(np.exp(z - top).sum(axis=-1, keepdims=True))


OUTSIDE = (
    *(rms_norm, layer_norm, layer_norm_backward, group_norm, rotary, swiglu, cross_entropy),
    *(shared_heads_attention, linear_attention, gated_delta_rule, top_k_gating, int8_product),
    *(gelu_layer, masked_mean, rotary_by_position, decayed_attention),
)

SEARCHED = (
    *(*OUTSIDE, exponentials_of_row, unnormalised_attention, norm_of_product),
    log_softmax_of_product,
)
"""And those of which only the bound is searched: a number is subtracted from what made it."""
