"""Rotary positions, as whole arrays."""

import math

import cupy
from jaxtyping import Float, Int

from attnverify.contract.rotary import D_ROTATED, check_rotary
from attnverify.contract.shapes import check

from .arrays import ARRAYS, Array, ieee, narrow, wide

__all__ = ["rotary_embedding", "rotary_embedding_grad"]


@ieee
def rotary_embedding(
    x: Float[Array, "B H N D"],
    positions: Int[Array, "B N"],
    pairing: str,
    base: float = 10000.0,
    rotary_dim: int | None = None,
    frequencies: Float[Array, "R"] | None = None,
) -> Float[Array, "B H N D"]:
    """
    See :func:`spec.rotary.rotary_embedding`.

    The other channel of each pair with its sign, times the sine, beside the channel times the
    cosine; angles in float64.
    """
    R = check_rotary(ARRAYS, x, positions, pairing, base, rotary_dim, frequencies)["R"]
    return turned(x, tables(positions, R, base, frequencies), pairing)


@ieee
def rotary_embedding_grad(
    d_output: Float[Array, "B H N D"],
    x: Float[Array, "B H N D"],
    positions: Int[Array, "B N"],
    pairing: str,
    base: float = 10000.0,
    rotary_dim: int | None = None,
    frequencies: Float[Array, "R"] | None = None,
) -> tuple[Array, ...]:
    """
    See :func:`spec.rotary.rotary_embedding_grad`.

    The gradient turned back; by a frequency, what arrives times the output of a quarter turn more.
    """
    at = check_rotary(ARRAYS, x, positions, pairing, base, rotary_dim, frequencies)
    check(ARRAYS, D_ROTATED, d_output, **at)
    R = at["R"]
    cos, sin = tables(positions, R, base, frequencies)
    d_x = turned(d_output, (cos, -sin), pairing)
    if frequencies is None:
        return (d_x,)
    arriving, given = wide(d_output, x)
    further = turned(given, (-sin, cos), pairing)[..., : 2 * R]
    by_channel = (arriving[..., : 2 * R] * further).astype("float64").sum(axis=1)
    first, second = channels(R, pairing)
    by_angle = by_channel[..., first] + by_channel[..., second]
    d_frequencies = (positions[..., None] * by_angle).sum(axis=(0, 1))
    return d_x, narrow(d_frequencies, wide(frequencies)[0].dtype)


def tables(positions: Array, R: int, base: float, frequencies: Array | None) -> tuple[Array, Array]:
    """Cosines and sines [B 1 N R] in float64."""
    xp = cupy.get_array_module(positions)
    if frequencies is None:
        frequencies = xp.exp(xp.arange(R, dtype="float64") * (-math.log(base) / R))
    angle = positions[:, None, :, None] * frequencies.astype("float64")
    return xp.cos(angle), xp.sin(angle)


def turned(x: Array, turn: tuple[Array, Array], pairing: str) -> Array:
    """The pairs turned by cosines and sines; the channels behind them as they are."""
    R = turn[0].shape[-1]
    first, second = channels(R, pairing)
    (values,) = wide(x)
    cos, sin = (narrow(table, values.dtype) for table in turn)
    y = x.copy()
    a, c = values[..., first], values[..., second]
    y[..., first] = narrow(a * cos - c * sin, x.dtype)
    y[..., second] = narrow(a * sin + c * cos, x.dtype)
    return y


def channels(R: int, pairing: str) -> tuple[slice, slice]:
    """Where the first channels of all pairs stand, and where the second ones do."""
    if pairing == "halves":
        return slice(0, R), slice(R, 2 * R)
    return slice(0, 2 * R, 2), slice(1, 2 * R, 2)
