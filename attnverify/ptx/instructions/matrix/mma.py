"""
Matrices of a warp: ``ldmatrix`` and ``stmatrix`` between shared memory and registers, ``mma.sync``
between registers.

Lane l of a warp is in row g = l / 4 and column t = l % 4 of every pattern below.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from attnverify.ptx.decode import Form, Read, Step, instruction
from attnverify.ptx.kinds import Array
from attnverify.ptx.numbers.formats import narrow, widen
from attnverify.ptx.numbers.tensor_core import multiply
from attnverify.ptx.storage.asynchronous import load_rows, store_rows

if TYPE_CHECKING:
    from attnverify.ptx.machine import Machine

__all__ = ["accumulator", "in_registers", "left_factor", "stacked", "truncated"]

WARP = 32
G, T = np.arange(WARP) // 4, np.arange(WARP) % 4


def count_matrices(form: Form) -> tuple[int, bool]:
    """Tell how many 8 x 8 matrices of 16 bits, and whether they are transposed."""
    form.choice("sync")
    form.choice("aligned")
    form.choice("m8n8")
    count = int(form.choice("x1", "x2", "x4")[1:])
    trans = form.flag("trans")
    form.choice("shared", "shared::cta")
    form.kind("b16")
    form.expect(2)
    form.kernel.touches("shared", 16)
    return count, trans


def of_rows(rows: Array, trans: bool) -> Array:
    """[warps lanes 2] the two numbers of each lane, of a matrix [warps 8 8]."""
    return np.stack([rows[:, 2 * T + e, G] if trans else rows[:, G, 2 * T + e] for e in (0, 1)], -1)


@instruction("ldmatrix")
def load_matrices(form: Form) -> Step:
    """Lanes 8 i to 8 i + 7 say where the rows of matrix i lie."""
    count, trans = count_matrices(form)
    puts, address = [form.writing(item, "b32") for item in form.items(0)], form.address(1)
    if len(puts) != count:
        raise form.refuse(f"wanted {count} registers")

    def run(m: "Machine") -> None:
        some = m.whole_warps("ldmatrix")
        found = load_rows(m, m.full(address(m)), some, 8 * count).reshape(-1, count, 8, 8)
        for place, put in enumerate(puts):
            pairs = (
                np.ascontiguousarray(of_rows(found[:, place], trans))
                .view(np.uint32)
                .reshape(-1, WARP)
            )
            put(m, spread_over_lanes(pairs, some))

    return run


def spread_over_lanes(x: Array, some: Array) -> Array:
    """[warps 32] of some warps as the lanes of all."""
    if some.all():
        return x.reshape(-1)
    found = np.zeros((len(some), WARP), x.dtype)
    found[some] = x
    return found.reshape(-1)


@instruction("stmatrix")
def store_matrices(form: Form) -> Step:
    count, trans = count_matrices(form)
    address, reads = form.address(0), [form.reading(item, "b32") for item in form.items(1)]
    if len(reads) != count:
        raise form.refuse(f"wanted {count} registers")

    def run(m: "Machine") -> None:
        some = m.whole_warps("stmatrix")
        rows = np.empty((int(some.sum()), count, 8, 8), np.uint16)
        for place, read in enumerate(reads):
            pairs = (
                np.ascontiguousarray(m.full(read(m)).reshape(-1, WARP)[some])
                .view(np.uint16)
                .reshape(-1, WARP, 2)
            )
            for e in (0, 1):
                rows[(slice(None), place, *((2 * T + e, G) if trans else (G, 2 * T + e)))] = pairs[
                    :, :, e
                ]
        store_rows(m, m.full(address(m)), some, 8 * count, rows.reshape(-1, 8))

    return run


# products: how the numbers of a matrix lie in the registers of a warp is in every pattern a matter
# of reordered axes


def stacked(reads: list[Read]) -> Callable[["Machine"], Array]:
    """[registers lanes] the bits of some registers."""
    return lambda m: np.stack([m.full(read(m)) for read in reads])


def numbers(bits: Array, kind: str) -> Array:
    """[registers warps 8 4 numbers] float32: two halves or one TF32 in each register."""
    if kind == "tf32":
        return truncated(bits).reshape(len(bits), -1, 8, 4, 1)
    if kind == "f32":
        return bits.view(np.float32).reshape(len(bits), -1, 8, 4, 1)
    return widen(bits.view(np.uint16), kind).reshape(len(bits), -1, 8, 4, 2)


def truncated(bits: Array) -> Array:
    """What a tensor core takes of float32 patterns: TF32, without the last 13 bits."""
    return (bits & np.uint32(0xFFFFE000)).view(np.float32)


def left_factor(bits: Array, kind: str) -> Array:
    """
    [warps 16 K]: rows g and g + 8 in turns, then the next columns; a lane has neighbouring ones at
    t.
    """
    x = numbers(bits, kind)
    _, warps, _, _, each = x.shape
    x = x.reshape(-1, 2, warps, 8, 4, each).transpose(2, 1, 3, 0, 4, 5)
    return x.reshape(warps, 16, -1)


def right_factor(bits: Array, kind: str) -> Array:
    """[warps 8 K], transposed: column g, and the rows as the columns of a left factor."""
    x = numbers(bits, kind).transpose(1, 2, 0, 3, 4)
    return x.reshape(len(x), 8, -1)


def accumulator(bits: Array, kind: str) -> Array:
    """
    [warps 16 N] float32: pairs of neighbouring columns, rows g and g + 8 in turns, then the next 8
    columns.
    """
    x = numbers(bits, kind)
    warps = x.shape[1]
    if kind == "f32":
        x = x.reshape(-1, 2, 2, warps, 8, 4).transpose(3, 1, 4, 0, 5, 2)
    else:
        x = x.reshape(-1, 2, warps, 8, 4, 2).transpose(2, 1, 3, 0, 4, 5)
    return x.reshape(warps, 16, -1)


def in_registers(x: Array, kind: str) -> Array:
    """[registers lanes] the bits of an accumulator [warps 16 N]: back from :func:`accumulator`."""
    x = x.reshape(len(x), 2, 8, -1, 4, 2)
    if kind == "f32":
        x = np.ascontiguousarray(x.transpose(3, 1, 5, 0, 2, 4)).view(np.uint32)
        return x.reshape(4 * len(x), -1)
    x = narrow(np.ascontiguousarray(x.transpose(3, 1, 0, 2, 4, 5)), "f16").view(np.uint32)
    return x.reshape(2 * len(x), -1)


SHAPES = {
    "f16": ("m16n8k16", "m16n8k8"),
    "bf16": ("m16n8k16", "m16n8k8"),
    "tf32": ("m16n8k8", "m16n8k4"),
}


@instruction("mma")
def product(form: Form) -> Step:
    form.choice("sync")
    form.choice("aligned")
    shape = form.choice("m16n8k16", "m16n8k8", "m16n8k4")
    if form.modifiers[:2] != ["row", "col"]:
        raise form.refuse("factors in another order than .row.col")
    form.modifiers = form.modifiers[2:]
    to, kind, right, of = (form.kind("f32", "f16", "bf16", "tf32").name for _ in range(4))
    if (
        right != kind
        or to != of
        or shape not in SHAPES.get(kind, ())
        or to not in ("f32", "f16")
        or (to == "f16" and kind != "f16")
    ):
        raise form.refuse("this product")
    form.expect(4)
    return product_step(form, to, kind, int(shape.split("k")[1]))


def product_step(form: Form, to: str, kind: str, inner: int) -> Step:
    places = inner // (4 if kind == "tf32" else 8)
    sums = 4 if to == "f32" else 2
    if [len(form.items(place)) for place in range(4)] != [sums, 2 * places, places, sums]:
        raise form.refuse("the numbers of registers")
    left, right, c = (
        stacked([form.reading(item, "b32") for item in form.items(place)]) for place in (1, 2, 3)
    )
    puts = [form.writing(item, "b32") for item in form.items(0)]

    def run(m: "Machine") -> None:
        m.whole_warps("mma.sync")
        a, b, before = (
            left_factor(left(m), kind),
            right_factor(right(m), kind),
            accumulator(c(m), to),
        )
        found = multiply(a, b, before, kind, m.kernel.tensor_core, m.draw.order(inner), to)
        for put, bits in zip(puts, in_registers(found, to), strict=True):
            put(m, bits)

    return run
