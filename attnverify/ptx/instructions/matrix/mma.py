"""
Matrices of a warp: ``ldmatrix`` and ``stmatrix`` between shared memory and registers, ``mma.sync``
between registers.

Lane l of a warp is in row g = l / 4 and column t = l % 4 of every pattern below.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from attnverify.ptx.decode import Form, Read, Step, Write, instruction
from attnverify.ptx.kinds import Array
from attnverify.ptx.numbers.formats import EIGHTHS, narrow, widen
from attnverify.ptx.numbers.tensor_core import multiply, sum_format, unit_of
from attnverify.ptx.storage.asynchronous import load_rows, store_rows

if TYPE_CHECKING:
    from attnverify.ptx.execution.machine import Machine

__all__ = [
    "WHOLE",
    "accumulator",
    "added_whole",
    "in_registers",
    "left_factor",
    "stacked",
    "truncated",
]

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
    """
    [registers warps 8 4 numbers] two halves, one TF32, four or eight smaller numbers in each
    register.
    """
    if kind == "tf32":
        return truncated(bits).reshape(len(bits), -1, 8, 4, 1)
    if kind == "f32":
        return bits.view(np.float32).reshape(len(bits), -1, 8, 4, 1)
    if kind in WHOLE:
        return whole_numbers(bits, kind).reshape(len(bits), -1, 8, 4, 32 // WHOLE[kind])
    if kind in EIGHTHS:
        return widen(bits.view(np.uint8), kind).reshape(len(bits), -1, 8, 4, 4)
    return widen(bits.view(np.uint16), kind).reshape(len(bits), -1, 8, 4, 2)


WHOLE = {"s8": 8, "u8": 8, "s4": 4, "u4": 4}
"""Whole numbers of tensor cores, and their bits; 8 or 4 of them in each register."""


def whole_numbers(bits: Array, kind: str) -> Array:
    """[registers, all numbers of all lanes] int8 or uint8; of two in a byte the lower one first."""
    dtype = np.dtype(f"{'i' if kind[0] == 's' else 'u'}1")
    if WHOLE[kind] == 8:
        return bits.view(dtype)
    each = bits.view(np.uint8)
    pairs = np.stack([each << np.uint8(4), each & np.uint8(0xF0)], -1).view(dtype)
    return pairs >> dtype.type(4)


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


INNER = (4, 8, 16, 32, 64)
SHAPES: dict[tuple[str, ...], tuple[str, ...]] = {
    ("f16", "f16"): ("m16n8k16", "m16n8k8"),
    ("bf16", "bf16"): ("m16n8k16", "m16n8k8"),
    ("tf32", "tf32"): ("m16n8k8", "m16n8k4"),
} | {(left, right): ("m16n8k32",) for left in EIGHTHS for right in EIGHTHS}
SUMS = {"f16": ("f32", "f16")} | {kind: ("f32", "f16") for kind in EIGHTHS}
WHOLE_SHAPES = {(8, 128), (16, 128), (16, 256)}
"""Rows, and the bits of a row of the left factor."""


@instruction("mma")
def product(form: Form) -> Step:
    form.choice("sync")
    form.choice("aligned")
    shape = form.choice(*(f"{rows}n8k{inner}" for rows in ("m8", "m16") for inner in INNER))
    if form.modifiers[:2] != ["row", "col"]:
        raise form.refuse("factors in another order than .row.col")
    form.modifiers = form.modifiers[2:]
    saturates = form.flag("satfinite")
    form.expect(4)
    kinds, form.modifiers = tuple(form.modifiers), []
    if len(kinds) != 4 or kinds[0] != kinds[3]:
        raise form.refuse("this product")
    if kinds[0] == "s32":
        return product_of_whole(form, shape, kinds[1], kinds[2], saturates)
    if shape not in SHAPES.get(kinds[1:3], ()) or kinds[0] not in SUMS.get(kinds[1], ("f32",)):
        raise form.refuse("this product")
    if saturates:
        raise form.refuse("what .satfinite means here is not known")
    return product_step(form, kinds[0], kinds[1], kinds[2], int(shape.split("k")[1]))


def operands_of(form: Form, counts: list[int]) -> tuple[list[Callable[["Machine"], Array]], Write]:
    """Readers of both factors and of what they are added to, and the writer of a sum."""
    if [len(form.items(place)) for place in range(4)] != counts:
        raise form.refuse("the numbers of registers")
    reads = [
        stacked([form.reading(item, "b32") for item in form.items(place)]) for place in (1, 2, 3)
    ]
    puts = [form.writing(item, "b32") for item in form.items(0)]

    def write(m: "Machine", registers: Array) -> None:
        for put, bits in zip(puts, registers, strict=True):
            put(m, bits)

    return reads, write


def product_step(form: Form, to: str, kind: str, right_kind: str, inner: int) -> Step:
    places = inner // (4 if kind == "tf32" else 16 if kind in EIGHTHS else 8)
    sums = 4 if to == "f32" else 2
    (left, right, c), write = operands_of(form, [sums, 2 * places, places, sums])
    unit = unit_of(form.kernel.module.target, kind)
    to_format = sum_format(to, kind, unit)

    def run(m: "Machine") -> None:
        m.whole_warps("mma.sync")
        a, b, before = (
            left_factor(left(m), kind),
            right_factor(right(m), right_kind),
            accumulator(c(m), to),
        )
        order = m.draw.order(inner)
        found = multiply(a, b, before, kind, unit, order, to_format, right_kind)
        write(m, in_registers(found, to))

    return run


def product_of_whole(form: Form, shape: str, kind: str, right: str, saturates: bool) -> Step:
    """Whole numbers, each factor with or without a sign: sums wrap around, or stay in 32 bits."""
    rows, inner = (int(size) for size in shape[1:].split("n8k"))
    bits = WHOLE.get(kind, 0)
    if bits == 0 or WHOLE.get(right) != bits or (rows, inner * bits) not in WHOLE_SHAPES:
        raise form.refuse("this product")
    count = inner * bits // 128
    halves = rows // 8
    sums = 2 * halves
    (left, of_right, c), write = operands_of(form, [sums, halves * count, count, sums])

    def run(m: "Machine") -> None:
        m.whole_warps("mma.sync")
        factor = left_factor if rows == 16 else right_factor
        a, b = factor(left(m), kind), right_factor(of_right(m), right)
        before = c(m).view(np.int32).reshape(halves, 2, -1, 8, 4).transpose(2, 0, 3, 4, 1)
        total = added_whole(a, b, before.reshape(-1, rows, 8), saturates)
        found = total.reshape(-1, halves, 8, 4, 2).transpose(1, 4, 0, 2, 3)
        write(m, np.ascontiguousarray(found).view(np.uint32).reshape(sums, -1))

    return run


def added_whole(a: Array, b: Array, c: Array, saturates: bool) -> Array:
    """int32: a [... M K] b [... N K] transposed + c [... M N]; wrapped around, or held in range."""
    # exact: products have at most 16 bits, and at most 2^8 of them are added
    total = (a.astype(np.float64) @ b.astype(np.float64).swapaxes(-1, -2)).astype(np.int64) + c
    limits = np.iinfo(np.int32)
    return (total.clip(limits.min, limits.max) if saturates else total).astype(np.int32)


@instruction("movmatrix")
def transpose_matrix(form: Form) -> Step:
    """An 8 x 8 matrix of 16 bits, a row in four lanes: columns become rows."""
    form.choice("sync")
    form.choice("aligned")
    form.choice("m8n8")
    form.choice("trans")
    form.kind("b16")
    form.expect(2)
    put, read = form.write(0, "b32"), form.read(1, "b32")

    def run(m: "Machine") -> None:
        m.whole_warps("movmatrix")
        rows = np.ascontiguousarray(m.full(read(m))).view(np.uint16).reshape(-1, 8, 8)
        put(m, np.ascontiguousarray(rows.swapaxes(1, 2)).view(np.uint32).reshape(-1))

    return run
