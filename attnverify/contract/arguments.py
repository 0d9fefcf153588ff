"""What is no float array of a fixed shape: integers, numbers, flags, lists, masks and draws."""

from math import isfinite
from numbers import Real
from typing import Any

from attnverify.contract.arrays import BOOL, FLOAT, INTEGER, Arrays


def check_integer(arrays: Arrays, name: str, number: Any, least: int = 1) -> None:
    """Hold a size or a count to the integers from ``least`` upwards."""
    if not arrays.is_integer(number) or number < least:
        raise ValueError(f"{name}: wanted an integer of at least {least}, got {number!r}")


def check_sizes(arrays: Arrays, **numbers: Any) -> None:
    """Hold sizes to the integers from 1 upwards, by their names."""
    for name, number in numbers.items():
        check_integer(arrays, name, number)


def check_heads(arrays: Arrays, F: int, num_heads: Any, name: str = "num_heads") -> None:
    """Hold the head count to the divisors of the model width."""
    check_integer(arrays, name, num_heads)
    if F % num_heads:
        raise ValueError(f"{name}: wanted a divisor of the model width F={F}, got {num_heads}")


def check_even(F: int) -> None:
    """Hold the width of sinusoids to the even ones."""
    if F % 2:
        raise ValueError(f"F: wanted an even width, got {F}")


def check_flag(name: str, flag: Any) -> None:
    """Hold a switch to the two that there are."""
    if not isinstance(flag, bool):
        raise ValueError(f"{name}: wanted True or False, got {flag!r}")


def check_align(align: Any) -> None:
    """Hold an alignment to the two that there are."""
    if align not in ("end", "start"):
        raise ValueError(f"align: wanted 'end' or 'start', got {align!r}")


def check_finite(name: str, number: Any) -> None:
    """Hold an option to the finite numbers, or None."""
    if number is None:
        return
    if not isinstance(number, Real) or isinstance(number, bool) or not isfinite(number):
        raise ValueError(f"{name}: wanted a finite number or None, got {number!r}")


def check_eps(eps: Any) -> None:
    """Hold what is added to a variance to the numbers from 0 upwards."""
    if not (isinstance(eps, Real) and float(eps) >= 0):
        raise ValueError(f"eps: wanted a number of at least 0, got {eps!r}")


def check_list(arrays: Arrays, name: str, things: Any, length: int | None = None) -> None:
    """Hold a list to one entry for each layer."""
    is_list = isinstance(things, (list, tuple))
    if not is_list or len(things) == 0 or length not in (None, len(things)):
        wanted = f"a list with one entry for each of the {length or 'L'} layers"
        came = len(things) if is_list else arrays.describe(things)
        raise ValueError(f"{name}: wanted {wanted}, got {came}")


def check_mask(
    arrays: Arrays, name: str, mask: Any, shape: tuple[int, ...], float_too: bool = False
) -> None:
    """Hold a mask to booleans (or floats) that broadcast to a shape without enlarging it."""
    if mask is None:
        return
    kind = arrays.kind(mask)
    if kind != BOOL and not (float_too and kind == FLOAT):
        raise ValueError(
            f"{name}: wanted a boolean {'or float ' * float_too}{arrays.noun}, got "
            f"{arrays.describe(mask)}"
        )
    tail = shape[len(shape) - len(mask.shape) :]
    if len(mask.shape) > len(shape) or any(
        size not in (1, whole) for size, whole in zip(mask.shape, tail, strict=True)
    ):
        raise ValueError(
            f"{name}: wanted a shape that broadcasts to {tuple(shape)}, got {tuple(mask.shape)}"
        )


def check_probability(name: str, p: Any) -> None:
    """Hold the share that is dropped to [0, 1)."""
    if not (isinstance(p, Real) and 0 <= float(p) < 1):
        raise ValueError(f"{name}: wanted a number with 0 <= {name} < 1, got {p!r}")


def check_share(arrays: Arrays, keep: Any, p: Any) -> None:
    """Hold the share that is dropped to [0, 1), and ask for a draw where some is."""
    check_probability("p", p)
    if keep is None and p > 0:
        raise ValueError(f"keep: wanted a boolean {arrays.noun} because p is {p}, got None")


def check_draw(arrays: Arrays, keep: Any, p: Any, shape: tuple[int, ...]) -> None:
    """Hold a draw to what broadcasts to the weights, and the share that is dropped."""
    check_mask(arrays, "keep", keep, shape)
    check_share(arrays, keep, p)


def check_options(arrays: Arrays, mask: Any, keep: Any, p: Any, shape: tuple[int, ...]) -> None:
    """Hold what may be asked of an attention to the shape of its scores: a mask and a dropout."""
    check_mask(arrays, "mask", mask, shape, float_too=True)
    check_draw(arrays, keep, p, shape)


def check_integers(
    arrays: Arrays,
    name: str,
    numbers: Any,
    shape: tuple[int, ...],
    least: int | None = None,
    most: int | None = None,
) -> None:
    """
    Hold an array of integers, if it is given, to its shape and to the numbers from ``least`` to
    ``most``; these limits wait for a device.
    """
    if numbers is None:
        return
    if arrays.kind(numbers) != INTEGER or tuple(numbers.shape) != shape:
        raise ValueError(
            f"{name}: wanted integers of shape {shape}, got {arrays.describe(numbers)}"
        )
    if least is None:
        return
    low, high = int(numbers.min()), int(numbers.max())
    if low < least or (most is not None and high > most):
        raise ValueError(
            f"{name}: wanted {least} to {'any' if most is None else most}, got {low} to {high}"
        )
