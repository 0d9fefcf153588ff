"""
ALiBi's slopes as public code has them.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy import ndarray

from attnverify.conventions.references import get_slopes


def plain_series(H: int) -> ndarray:
    return np.exp2(-8 * np.arange(1.0, H + 1) / H)


def power_above(H: int) -> ndarray:
    """
    Every other slope of the power of two above, from the smallest distance on: the others of the
    law moved by one.
    """
    n = 1 << (H.bit_length() - 1)
    others = np.exp2(-4 * (2 * np.arange(1.0, H - n + 1)) / n)
    return np.concatenate([get_slopes(n), others])


def below(H: int) -> int:
    """Return the power of two that is not above H."""
    return 1 << (H.bit_length() - 1)


def counted_from_zero(H: int) -> ndarray:
    """Return the slopes of a power of two with h in place of h + 1, the others as they are."""
    n = below(H)
    return np.where(np.arange(H) < n, get_slopes(H) * np.exp2(8 / n), get_slopes(H))


def nearest_power(H: int) -> ndarray:
    """The slopes of the power of two that is nearest, which may be the one above."""
    n = 1 << round(np.log2(H))
    return get_slopes(n)[:H] if n >= H else get_slopes(H)


def of_ranks(ranks: int, H: int) -> ndarray:
    """Heads that are split over ranks, each of which takes the slopes of the first heads."""
    return get_slopes(H)[np.arange(H) % -(-H // ranks)]


def of_ranks_alone(ranks: int, H: int) -> ndarray:
    """The same where each rank takes the slopes of as many heads as it has."""
    own = -(-H // ranks)
    return get_slopes(own)[np.arange(H) % own]


SLOPES: dict[str, tuple[str, Callable[[int], ndarray]]] = {
    "2^(-8(h+1)/H) for every H": ("slopes in a plain geometric series", plain_series),
    "the first H of the next power of two": (
        "the first slopes of the next power of two",
        lambda H: get_slopes(1 << (H - 1).bit_length())[:H],
    ),
    "the others from the second on": ("every other slope taken from the second on", power_above),
    "falling with the head": ("slopes sorted from the largest", lambda H: -np.sort(-get_slopes(H))),
    "rising with the head": ("slopes in reverse order", lambda H: get_slopes(H)[::-1]),
    "from 1 on: 2^(-8h/H)": ("slopes that begin at 1", lambda H: plain_series(H) * np.exp2(8 / H)),
    "2^(-8h/n) for the first n": ("slopes of which the first n begin at 1", counted_from_zero),
    "2^(-8h/n) for all": (
        "slopes that all begin at 1, one step too large",
        lambda H: get_slopes(H) * np.exp2(8 / below(H)),
    ),
    "of the nearest power of two": ("slopes of the nearest power of two", nearest_power),
    "2^-(h+1)": ("slopes of base 1/2", lambda H: np.exp2(-np.arange(1.0, H + 1))),
    "2^(-4(h+1)/n)": ("slopes of base 2^(-4/n)", lambda H: np.sqrt(get_slopes(H))),
    "all 1": ("slopes of 1", np.ones),
    **{
        f"that of h mod (H/{ranks})": (
            f"slopes of the first heads again in each of {ranks} shards of the heads",
            partial(of_ranks, ranks),
        )
        for ranks in (2, 4)
    },
}
