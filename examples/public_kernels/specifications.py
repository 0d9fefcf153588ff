"""
Operations that attnverify does not have, in a few lines each: what the kernels beside this file are
held to by ``--spec``.
"""

from typing import Annotated

import numpy as np
from jaxtyping import Float, Int, Int8
from numpy import ndarray


def rms_norm(
    x: Float[ndarray, "N F"], weight: Float[ndarray, "F"], eps: float = 1e-6
) -> Float[ndarray, "N F"]:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def gated_silu(a: Float[ndarray, "N F"], b: Float[ndarray, "N F"]) -> Float[ndarray, "N F"]:
    return a / (1 + np.exp(-a)) * b


def cross_entropy(
    logits: Float[ndarray, "N V"], labels: Annotated[Int[ndarray, "N"], "V", -100]
) -> Float[ndarray, "N"]:
    top = logits.max(axis=-1, keepdims=True)
    lse = top + np.log(np.exp(logits - top).sum(axis=-1, keepdims=True))
    kept = labels != -100
    own = np.take_along_axis(logits, np.where(kept, labels, 0)[:, None], axis=-1)
    return np.where(kept, (lse - own)[:, 0], 0.0)


def int8_attention(
    q: Int8[ndarray, "B 2 N 64"],
    k: Int8[ndarray, "B 1 192 64"],
    v: Float[ndarray, "B 1 192 64"],
    q_scale: Annotated[Float[ndarray, "B 2 1"], (0, 0.02)],
    k_scale: Annotated[Float[ndarray, "B 1 3"], (0, 0.02)],
) -> Float[ndarray, "B 2 N 64"]:
    score = np.einsum("bhnd,bkmd->bhnm", q, k) * q_scale[..., None]
    score = score * np.repeat(k_scale, 64, axis=2)[:, :, None]
    e = np.exp2(score - score.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True) @ v


def gated_recurrence(
    x: Float[ndarray, "B N F"], g: Annotated[Float[ndarray, "B N F"], (-3, 0)]
) -> Float[ndarray, "B N F"]:
    h, rows = 0.0, []
    for n in range(x.shape[1]):
        h = np.exp(g[:, n]) * h + x[:, n]
        rows.append(h)
    return np.stack(rows, axis=1)


def gated_delta_rule(
    q: Float[ndarray, "B N H D"],
    k: Annotated[Float[ndarray, "B N H D"], (-0.25, 0.25)],
    v: Float[ndarray, "B N H E"],
    g: Annotated[Float[ndarray, "B N H"], (-3, 0)],
    beta: Annotated[Float[ndarray, "B N H"], (0, 1)],
) -> Float[ndarray, "B N H E"]:
    state, rows = np.einsum("bhd,bhe->bhde", 0 * k[:, 0], 0 * v[:, 0]), []
    for n in range(q.shape[1]):
        state = np.exp(g[:, n])[..., None, None] * state
        new = v[:, n] - np.einsum("bhd,bhde->bhe", k[:, n], state)
        state = state + np.einsum("bhd,bhe->bhde", k[:, n], beta[:, n, :, None] * new)
        rows.append(np.einsum("bhd,bhde->bhe", q[:, n], state) / np.sqrt(q.shape[-1]))
    return np.stack(rows, axis=1)


def add_layer_norm(
    x: Float[ndarray, "B N F"],
    residual: Float[ndarray, "B N F"],
    weight: Float[ndarray, "F"],
    bias: Float[ndarray, "F"],
    eps: float = 1e-5,
) -> tuple[Float[ndarray, "B N F"], Float[ndarray, "B N F"]]:
    whole = x + residual
    centred = whole - whole.mean(axis=-1, keepdims=True)
    scale = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + eps)
    return centred / scale * weight + bias, whole
