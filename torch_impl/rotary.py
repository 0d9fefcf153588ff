"""
Rotary positions: the specification is :mod:`spec.rotary`.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnverify.contract.rotary import check_rotary

from .arrays import TENSORS
from .scores import wide

__all__ = ["rotary_embedding", "rotary_embedding_complex"]


def rotary_embedding(
    x: Float[Tensor, "B H N D"],
    positions: Int[Tensor, "B N"],
    pairing: str,
    base: float = 10000.0,
    rotary_dim: int | None = None,
    frequencies: Float[Tensor, "R"] | None = None,
) -> Float[Tensor, "B H N D"]:
    """
    As :func:`spec.rotary.rotary_embedding`: tables of cosines and sines, angles in float64. Half
    types are turned in float32 and rounded once.
    """
    R = check_rotary(TENSORS, x, positions, pairing, base, rotary_dim, frequencies)["R"]
    a, c = wide(*first_and_second(x[..., : 2 * R], pairing))
    cos, sin = tables(positions, R, base, frequencies, a.dtype)
    return joined(a * cos - c * sin, a * sin + c * cos, x, pairing)


def rotary_embedding_complex(
    x: Float[Tensor, "B H N D"],
    positions: Int[Tensor, "B N"],
    pairing: str,
    base: float = 10000.0,
    rotary_dim: int | None = None,
    frequencies: Float[Tensor, "R"] | None = None,
) -> Float[Tensor, "B H N D"]:
    """
    The same as a product of complex numbers, as Meta's Llama has it; the product is made in float32
    or float64.
    """
    R = check_rotary(TENSORS, x, positions, pairing, base, rotary_dim, frequencies)["R"]
    pairs = torch.complex(*wide(*first_and_second(x[..., : 2 * R], pairing)))
    turned = pairs * torch.complex(*tables(positions, R, base, frequencies, pairs.real.dtype))
    return joined(turned.real, turned.imag, x, pairing)


def tables(
    positions: Tensor, R: int, base: float, frequencies: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Cosines and sines [B 1 N R] of positions times frequencies, an angle in float64."""
    if frequencies is None:
        exponents = torch.arange(R, dtype=torch.float64, device=positions.device) / -R
        frequencies = base**exponents
    angle = positions[:, None, :, None].double() * frequencies.double()
    return angle.cos().to(dtype), angle.sin().to(dtype)


def first_and_second(x: Tensor, pairing: str) -> tuple[Tensor, ...]:
    """The first and the second channels of all pairs."""
    if pairing == "halves":
        return x.chunk(2, dim=-1)
    return x[..., ::2], x[..., 1::2]


def joined(first: Tensor, second: Tensor, x: Tensor, pairing: str) -> Tensor:
    """Channels again, in the dtype of x, and behind them those of x that do not turn."""
    turned = torch.stack([first, second], dim=-2 if pairing == "halves" else -1).flatten(-2)
    return torch.cat([turned.to(x.dtype), x[..., turned.shape[-1] :]], dim=-1)
