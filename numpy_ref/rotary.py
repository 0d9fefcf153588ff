"""Rotary positions as products of complex numbers."""

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from attnverify.contract.rotary import D_ROTATED, check_rotary
from attnverify.contract.shapes import check

from .arrays import ARRAYS

__all__ = ["rotary_embedding", "rotary_embedding_grad"]


def rotary_embedding(
    x: Float[ndarray, "B H N D"],
    positions: Int[ndarray, "B N"],
    pairing: str,
    base: float = 10000.0,
    rotary_dim: int | None = None,
    frequencies: Float[ndarray, "R"] | None = None,
) -> Float[ndarray, "B H N D"]:
    """
    See :func:`spec.rotary.rotary_embedding`. Computed in float64 and rounded once.
    """
    R = check_rotary(ARRAYS, x, positions, pairing, base, rotary_dim, frequencies)["R"]
    with np.errstate(all="ignore"):
        turned = as_complex(x, R, pairing) * phases(positions, R, base, frequencies)
        return as_channels(turned, x, pairing)


def rotary_embedding_grad(
    d_output: Float[ndarray, "B H N D"],
    x: Float[ndarray, "B H N D"],
    positions: Int[ndarray, "B N"],
    pairing: str,
    base: float = 10000.0,
    rotary_dim: int | None = None,
    frequencies: Float[ndarray, "R"] | None = None,
) -> tuple[ndarray, ...]:
    """
    See :func:`spec.rotary.rotary_embedding_grad`. The derivative by an angle is the imaginary part
    of what arrives, times the conjugate of the output.
    """
    at = check_rotary(ARRAYS, x, positions, pairing, base, rotary_dim, frequencies)
    check(ARRAYS, D_ROTATED, d_output, **at)
    with np.errstate(all="ignore"):
        turn = phases(positions, at["R"], base, frequencies)
        arriving = as_complex(d_output, at["R"], pairing)
        d_x = as_channels(arriving * turn.conj(), d_output, pairing)
        if frequencies is None:
            return (d_x,)
        output = as_complex(x, at["R"], pairing) * turn
        d_angle = (arriving * output.conj()).imag
        d_frequencies = np.einsum("bhnr,bn->r", d_angle, positions.astype(np.float64))
        kept = np.result_type(frequencies.dtype, np.float32)
        return d_x, d_frequencies.astype(kept, copy=False)


def phases(positions: ndarray, R: int, base: float, frequencies: ndarray | None) -> ndarray:
    """e^(i angle) for all rows and pairs [B 1 N R]."""
    if frequencies is None:
        frequencies = np.exp(np.arange(R) * (-np.log(base) / R))
    angle = positions[:, None, :, None] * frequencies.astype(np.float64)
    return np.cos(angle) + 1j * np.sin(angle)


def as_complex(x: ndarray, R: int, pairing: str) -> ndarray:
    """The pairs of the channels that turn, as complex numbers [B H N R]."""
    turning = x[..., : 2 * R].astype(np.float64)
    if pairing == "halves":
        return turning[..., :R] + 1j * turning[..., R:]
    return turning[..., ::2] + 1j * turning[..., 1::2]


def as_channels(pairs: ndarray, x: ndarray, pairing: str) -> ndarray:
    """Pairs as channels again, in the dtype of x, and the channels of x that do not turn."""
    axis = -2 if pairing == "halves" else -1
    turned = np.stack([pairs.real, pairs.imag], axis=axis)
    turned = turned.reshape(*pairs.shape[:-1], -1).astype(x.dtype, copy=False)
    return np.concatenate([turned, x[..., turned.shape[-1] :]], axis=-1)
