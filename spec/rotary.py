"""Rotary positions: pairs of channels that are turned by an angle which grows with the position."""

from typing import Annotated

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from attnverify.contract.rotary import D_ROTATED, check_rotary
from attnverify.contract.shapes import check

from .arrays import ARRAYS
from .domains import GIVEN, Choices, Integers, Refused

__all__ = ["rotary_embedding", "rotary_embedding_grad"]

Positions = Annotated[Int[ndarray, "B N"], Integers(-(2**20), 2**20)]
Pairing = Annotated[str, Choices("halves", "interleaved"), Refused("half", None)]
Base = Annotated[float, Choices(10000.0, 500000.0, 8.0), Refused(0.0, -2.0, "10000")]
Frequencies = Annotated[Float[ndarray, "R"] | None, Choices(None, GIVEN)]


def rotary_embedding(
    x: Float[ndarray, "B H N D"],
    positions: Positions,
    pairing: Pairing,
    base: Base = 10000.0,
    rotary_dim: int | None = None,
    frequencies: Frequencies = None,
) -> Float[ndarray, "B H N D"]:
    r"""
    Queries or keys, R pairs of whose channels are turned by an angle: the position times the
    frequency of the pair.

    .. math:: \begin{pmatrix} y_a \\ y_c \end{pmatrix} = \begin{pmatrix} \cos\theta_{ir} &
              -\sin\theta_{ir} \\ \sin\theta_{ir} & \cos\theta_{ir} \end{pmatrix}
              \begin{pmatrix} x_a \\ x_c \end{pmatrix}

    .. math:: \theta_{ir} = p_i\, f_r, \qquad f_r = \text{base}^{-r / R}

    1. Pair r consists of the channels r and r + R with "halves" (GPT-NeoX, Llama in transformers),
       2r and 2r + 1 with "interleaved" (the paper, GPT-J, Meta's Llama). There is no default: the
       two are different operations.
    2. Only the first ``rotary_dim`` = 2R channels turn, all D without it. Pairs and frequencies are
       counted in them, not in D. The other channels pass through, bit for bit.
    3. The angle is that of the exact integer, at a position of 2^20 too. Negative positions turn
       backwards.
    4. An angle of 0, at position 0 or of a frequency of 0, leaves finite numbers as they are.
    5. ``frequencies`` stand in place of the base's where a model has others (NTK, YaRN, Llama 3).
    6. A row has one position in all heads. Positions may repeat, jump and fall.
    7. A turn by p and one by -p cancel, and the product of two turned rows hangs on the difference
       of their positions alone.
    8. Narrow formats keep x alone: a frequency, and its gradient, has at least float32.

    >>> x, at = np.array([1.0, 2.0, 3.0, 4.0, 9.0]).reshape(1, 1, 1, 5), np.array([[1]])
    >>> quarter = {"rotary_dim": 4, "frequencies": np.array([np.pi / 2, 0.0])}
    >>> rotary_embedding(x, at, "halves", **quarter).round(9).ravel().tolist()
    [-3.0, 2.0, 1.0, 4.0, 9.0]
    >>> rotary_embedding(x, at, "interleaved", **quarter).round(9).ravel().tolist()
    [-2.0, 1.0, 3.0, 4.0, 9.0]
    >>> rotary_embedding(x, at, "halves", rotary_dim=4)[0, 0, 0].round(3).tolist()
    [-1.984, 1.96, 2.462, 4.02, 9.0]

    Source: Su et al., RoFormer, 2021, equation 34; GPT-NeoX and transformers' ``rotate_half`` for
    the halves.

    Errata: libraries disagree about the pairing without saying so, and weights trained with one are
    wrong under the other. Angles that are formed in bfloat16 are wrong from position 257 on, the
    first integer that it does not hold.
    """
    R = check_rotary(ARRAYS, x, positions, pairing, base, rotary_dim, frequencies)["R"]
    f = base ** (-np.arange(R) / R) if frequencies is None else frequencies
    y = x.astype(np.result_type(x, f))
    for b, i, r in np.ndindex(*positions.shape, R):
        a, c = pair(r, R, pairing)
        angle = float(positions[b, i]) * f[r]
        cos, sin = np.cos(angle), np.sin(angle)
        y[b, :, i, a] = x[b, :, i, a] * cos - x[b, :, i, c] * sin
        y[b, :, i, c] = x[b, :, i, a] * sin + x[b, :, i, c] * cos
    return y


def pair(r: int, R: int, pairing: str) -> tuple[int, int]:
    """The two channels of pair r (:func:`rotary_embedding`, clause 1)."""
    return (r, r + R) if pairing == "halves" else (2 * r, 2 * r + 1)


def rotary_embedding_grad(
    d_output: Float[ndarray, "B H N D"],
    x: Float[ndarray, "B H N D"],
    positions: Positions,
    pairing: Pairing,
    base: Base = 10000.0,
    rotary_dim: int | None = None,
    frequencies: Frequencies = None,
) -> tuple[ndarray, ...]:
    r"""
    The gradients of :func:`rotary_embedding` by x, and by the frequencies where they are given.

    .. math:: \begin{pmatrix} \bar x_a \\ \bar x_c \end{pmatrix} = \begin{pmatrix} \cos\theta_{ir} &
              \sin\theta_{ir} \\ -\sin\theta_{ir} & \cos\theta_{ir} \end{pmatrix}
              \begin{pmatrix} \bar y_a \\ \bar y_c \end{pmatrix}, \qquad
              \bar f_r = \sum_{bhi} p_i \big( \bar y_c\, y_a - \bar y_a\, y_c \big)

    1. What arrives is turned back by the same angle. Channels that do not turn receive what arrives
       at them, bit for bit.
    2. The gradient by a frequency is summed over the batch, the heads and all rows, each by its
       position: a row at position 0 gives nothing. A frequency of 0 receives as any other does.

    >>> x, at = np.array([1.0, 2.0, 3.0, 4.0, 9.0]).reshape(1, 1, 1, 5), np.array([[5]])
    >>> still = {"rotary_dim": 4, "frequencies": np.zeros(2)}
    >>> arriving = np.array([0.0, 0.0, 1.0, 0.0, 7.0]).reshape(1, 1, 1, 5)
    >>> found = rotary_embedding_grad(arriving, x, at, "halves", **still)
    >>> [each.ravel().tolist() for each in found]
    [[0.0, 0.0, 1.0, 0.0, 7.0], [5.0, 0.0]]

    Source: the formula, differentiated.
    """
    at = check_rotary(ARRAYS, x, positions, pairing, base, rotary_dim, frequencies)
    check(ARRAYS, D_ROTATED, d_output, **at)
    y = rotary_embedding(x, positions, pairing, base, rotary_dim, frequencies)
    d_x = rotary_embedding(d_output, -positions, pairing, base, rotary_dim, frequencies)
    if frequencies is None:
        return (d_x,)
    d_frequencies = np.zeros(at["R"])
    for r in range(at["R"]):
        a, c = pair(r, at["R"], pairing)
        by_angle = d_output[..., c] * y[..., a] - d_output[..., a] * y[..., c]
        d_frequencies[r] = (positions[:, None] * by_angle).sum()
    return d_x, d_frequencies
