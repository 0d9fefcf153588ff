"""
Twelve wrong kernels more, one slip each, of four operations that are neither in the catalogue nor
among the sixty of :mod:`tests.outside.mutants`, and four right ones.

``SLIPS`` has what must be told of each. It was written, and committed, before any was run and
before the causes that they asked for were looked for: what it finds is what a stranger would.

    python -m tests.outside.further --record docs/data/outside_further.json
"""

import sys

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from tests.outside.mutants import SINGLE, TAIL, Slips, main, whole


class Specifications:
    """Each operation as a user would write it."""

    @staticmethod
    def cosine_similarity(
        a: Float[ndarray, "N F"], b: Float[ndarray, "N F"], eps: float = 1e-6
    ) -> Float[ndarray, "N"]:
        size_a, size_b = (a * a).sum(axis=-1) + eps, (b * b).sum(axis=-1) + eps
        return (a * b).sum(axis=-1) / np.sqrt(size_a * size_b)

    @staticmethod
    def moving_average(
        x: Float[ndarray, "B N F"], decay: Float[ndarray, "F"]
    ) -> Float[ndarray, "B N F"]:
        rate = 1 / (1 + np.exp(-decay))
        state, out = np.zeros((x.shape[0], x.shape[2])), np.zeros(x.shape)
        for n in range(x.shape[1]):
            state = rate * state + (1 - rate) * x[:, n]
            out[:, n] = state
        return out

    @staticmethod
    def causal_convolution(
        x: Float[ndarray, "B C N"], w: Float[ndarray, "C K"], bias: Float[ndarray, "C"]
    ) -> Float[ndarray, "B C N"]:
        (B, C, N), K = x.shape, w.shape[1]
        padded = np.concatenate([np.zeros((B, C, K - 1)), x], axis=-1)
        out = np.zeros((B, C, N))
        for t in range(K):
            out = out + w[:, t, None] * padded[..., t : t + N]
        return out + bias[:, None]

    @staticmethod
    def distillation_loss(
        teacher: Float[ndarray, "N V"], student: Float[ndarray, "N V"], temperature: float = 2.0
    ) -> Float[ndarray, "N"]:
        a, b = teacher / temperature, student / temperature
        a, b = a - a.max(axis=-1, keepdims=True), b - b.max(axis=-1, keepdims=True)
        log_p = a - np.log(np.exp(a).sum(axis=-1, keepdims=True))
        log_q = b - np.log(np.exp(b).sum(axis=-1, keepdims=True))
        return (np.exp(log_p) * (log_p - log_q)).sum(axis=-1) * temperature**2


def cosine_similarity(a: ndarray, b: ndarray, eps: float = 1e-6, slip: str = "") -> ndarray:
    last, out = whole(a.shape[1], slip == "tail lost"), np.empty(len(a), SINGLE)
    for n, (x, y) in enumerate(zip(a, b, strict=True)):
        sizes = (x @ x + SINGLE(eps), (x @ x if slip == "one size twice" else y @ y) + SINGLE(eps))
        dot = x[:last] @ y[:last]
        if slip == "no root":
            out[n] = dot / (sizes[0] * sizes[1])
        else:
            out[n] = dot / np.sqrt(sizes[0]) / np.sqrt(sizes[1])
    return out


def moving_average(x: ndarray, decay: ndarray, slip: str = "") -> ndarray:
    rate, out = SINGLE(1) / (SINGLE(1) + np.exp(-decay)), np.empty_like(x)
    state = np.zeros_like(decay)
    for b in range(len(x)):
        if slip == "begins with the first":
            state = x[b, 0]
        elif slip != "carried over":
            state = np.zeros_like(decay)
        for n, row in enumerate(x[b]):
            if slip == "row as it is":
                state = rate * state + row
            else:
                state = rate * state + row * (SINGLE(1) - rate)
            out[b, n] = state
    return out


def causal_convolution(x: ndarray, w: ndarray, bias: ndarray, slip: str = "") -> ndarray:
    N, K = x.shape[2], w.shape[1]
    out = np.zeros_like(x) if slip == "bias of each tap" else np.repeat(0 * x[..., :1], N, -1)
    for t in range(K):
        tap = w[:, K - 1 - t if slip == "taps reversed" else t]
        shift = (K - 1) // 2 - t if slip == "in the middle" else K - 1 - t
        for n in range(max(shift, 0), min(N, N + shift)):
            out[:, :, n] += tap * x[:, :, n - shift]
        if slip == "bias of each tap":
            out += bias[:, None]
    return out if slip == "bias of each tap" else out + bias[:, None]


def distillation_loss(
    teacher: ndarray, student: ndarray, temperature: float = 2.0, slip: str = ""
) -> ndarray:
    T, out = SINGLE(temperature), np.empty(len(teacher), SINGLE)
    for n in range(len(out)):
        x, y = teacher[n] / T, student[n] / T
        x, y = (y, x) if slip == "the other way" else (x, y)
        lse_x = x.max() + np.log(np.exp(x - x.max()).sum())
        lse_y = y.max() + np.log(np.exp(y - y.max()).sum())
        lse_y = y.max() if slip == "not normalised" else lse_y
        p = np.exp(x - lse_x)
        total = p @ ((x - lse_x) - (y - lse_y))
        out[n] = total * T if slip == "temperature once" else total * T * T
    return out


SLIPS: Slips = {
    cosine_similarity: {
        "no root": r"`np\.sqrt\(size_a \* size_b\)` as `size_a \* size_b`",
        "one size twice": r"`size_b` as `size_a`",
        "tail lost": TAIL,
    },
    moving_average: {
        "carried over": r"\bB\b|batch",
        "begins with the first": r"x\[:, 0\]|first",
        "row as it is": r"`\(1 - rate\) \* x\[:, n\]` as `x\[:, n\]`|`1 - rate`.* as `1`|1 - rate",
    },
    causal_convolution: {
        "taps reversed": r"revers|flip|backward|turned|::-1",
        "in the middle": r"padd|concatenate|moved|next|centre|K",
        "bias of each tap": r"`?bias.*(\bK\b|each|tile)|K \* bias",
    },
    distillation_loss: {
        "the other way": r"exchanged|`student` .*`teacher`",
        "not normalised": r"`b - np\.log\(.*` as `b`",
        "temperature once": r"`temperature \*\* 2` as `temperature|temperature",
    },
}
"""By kernel: its slips, and what the cause of each must say."""

if __name__ == "__main__":
    sys.exit(main(SLIPS, Specifications))
