"""
Matrices of a warp: ``ldmatrix`` and ``stmatrix`` between shared memory and registers, ``mma.sync`` between registers.

Lane l of a warp is in row g = l / 4 and column t = l % 4 of every pattern below.
"""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from attnverify.ptx.decode import Form, Read, Step, Write, instruction
from attnverify.ptx.kinds import Array
from attnverify.ptx.numbers.formats import narrow, widen
from attnverify.ptx.numbers.tensor_core import multiply
from attnverify.ptx.storage.asynchronous import load_rows, store_rows

if TYPE_CHECKING:
    from attnverify.ptx.machine import Machine

__all__ = ["G", "T", "accumulators", "fragments", "left_places", "results", "truncated"]

WARP = 32
G, T = np.arange(WARP) // 4, np.arange(WARP) % 4


def matrices(form: Form) -> tuple[int, bool]:
    """How many 8 x 8 matrices of 16 bits, and whether they are transposed."""
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
    count, trans = matrices(form)
    puts, address = [form.writing(item, "b32") for item in form.items(0)], form.address(1)
    if len(puts) != count:
        raise form.refuse(f"wanted {count} registers")

    def run(m: "Machine") -> None:
        some = m.whole_warps("ldmatrix")
        found = load_rows(m, m.full(address(m)), some, 8 * count).reshape(-1, count, 8, 8)
        for place, put in enumerate(puts):
            pairs = np.ascontiguousarray(of_rows(found[:, place], trans)).view(np.uint32).reshape(-1, WARP)
            put(m, spread(pairs, some))

    return run


def spread(x: Array, some: Array) -> Array:
    """[warps 32] of some warps as the lanes of all."""
    if some.all():
        return x.reshape(-1)
    found = np.zeros((len(some), WARP), x.dtype)
    found[some] = x
    return found.reshape(-1)


@instruction("stmatrix")
def store_matrices(form: Form) -> Step:
    count, trans = matrices(form)
    address, reads = form.address(0), [form.reading(item, "b32") for item in form.items(1)]
    if len(reads) != count:
        raise form.refuse(f"wanted {count} registers")

    def run(m: "Machine") -> None:
        some = m.whole_warps("stmatrix")
        rows = np.empty((int(some.sum()), count, 8, 8), np.uint16)
        for place, read in enumerate(reads):
            pairs = np.ascontiguousarray(m.full(read(m)).reshape(-1, WARP)[some]).view(np.uint16).reshape(-1, WARP, 2)
            for e in (0, 1):
                rows[(slice(None), place, *((2 * T + e, G) if trans else (G, 2 * T + e)))] = pairs[:, :, e]
        store_rows(m, m.full(address(m)), some, 8 * count, rows.reshape(-1, 8))

    return run


# products


def fragments(reads: list[Read], kind: str) -> Callable[["Machine"], Array]:
    """[warps 32 registers numbers] float32 numbers of registers that hold two halves or one TF32 each."""

    def run(m: "Machine") -> Array:
        bits = np.stack([m.full(read(m)) for read in reads], -1).reshape(-1, WARP, len(reads))
        if kind == "tf32":
            return truncated(bits)[..., None]
        return widen(bits.view(np.uint16).reshape(*bits.shape, 2), kind)

    return run


def truncated(bits: Array) -> Array:
    """What a tensor core takes of float32 patterns: TF32, without the last 13 bits."""
    return (bits & np.uint32(0xFFFFE000)).view(np.float32)


def left_places(registers: int, each: int) -> list[tuple[Array, Array]]:
    """Row and column of each number of a left factor: rows g and g + 8 in turns, then the next 4 lanes' worth of columns."""
    return [(G + 8 * (r % 2), each * T + e + 4 * each * (r // 2)) for r in range(registers) for e in range(each)]


def right_places(registers: int, each: int) -> list[tuple[Array, Array]]:
    """Column and row of each number of a right factor."""
    return [(G, each * T + e + 4 * each * r) for r in range(registers) for e in range(each)]


def result_places(registers: int, each: int) -> list[tuple[Array, Array]]:
    """Row and column of each number of a sum: pairs of columns, rows g and g + 8 in turns, then the next 8 columns."""
    pairs = registers * each // 2
    return [(G + 8 * (pair % 2), 8 * (pair // 2) + 2 * T + e) for pair in range(pairs) for e in (0, 1)]


def assembled(numbers: Array, places: list[tuple[Array, Array]], rows: int, columns: int) -> Array:
    """[warps rows columns] of fragments [warps 32 registers numbers]."""
    found = np.zeros((len(numbers), rows, columns), np.float32)
    for (row, column), x in zip(places, np.moveaxis(numbers.reshape(len(numbers), WARP, -1), -1, 0), strict=True):
        found[:, row, column] = x
    return found


def accumulators(reads: list[Read], kind: str) -> Callable[["Machine"], Array]:
    """[warps 32 numbers] float32 numbers of the registers of a sum: one float32 or two halves each."""

    def run(m: "Machine") -> Array:
        bits = np.stack([m.full(read(m)) for read in reads], -1).reshape(-1, WARP, len(reads))
        return bits.view(np.float32) if kind == "f32" else widen(bits.view(np.uint16), "f16")

    return run


def results(puts: list[Write], kind: str) -> Callable[["Machine", Array], None]:
    """Writes numbers [warps 32 numbers] into the registers of a sum."""

    def run(m: "Machine", x: Array) -> None:
        bits = np.ascontiguousarray(x).view(np.uint32) if kind == "f32" else narrow(x, "f16").view(np.uint32)
        for place, put in enumerate(puts):
            put(m, np.ascontiguousarray(bits[:, :, place]).reshape(-1))

    return run


SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)")
SHAPES = {"f16": ("m16n8k16", "m16n8k8"), "bf16": ("m16n8k16", "m16n8k8"), "tf32": ("m16n8k8", "m16n8k4")}


@instruction("mma")
def product(form: Form) -> Step:
    form.choice("sync")
    form.choice("aligned")
    shape = form.choice("m16n8k16", "m16n8k8", "m16n8k4")
    form.choice("row")
    form.choice("col")
    to, kind, right, of = (form.kind("f32", "f16", "bf16", "tf32").name for _ in range(4))
    if right != kind or to != of or shape not in SHAPES.get(kind, ()) or to not in ("f32", "f16") or (to == "f16" and kind != "f16"):
        raise form.refuse("this product")
    form.expect(4)
    return product_step(form, to, kind, int(shape.split("k")[1]))


def product_step(form: Form, to: str, kind: str, inner: int) -> Step:
    each = 1 if kind == "tf32" else 2
    of_left, of_right, of_sum = left_places(inner // (4 * each) * 2, each), right_places(inner // (4 * each), each), result_places(4, 1)
    left, right = (fragments([form.reading(item, "b32") for item in form.items(place)], kind) for place in (1, 2))
    c = accumulators([form.reading(item, "b32") for item in form.items(3)], to)
    put = results([form.writing(item, "b32") for item in form.items(0)], to)
    if [len(form.items(place)) for place in range(4)] != [4 if to == "f32" else 2, len(of_left) // each, len(of_right) // each, 4 if to == "f32" else 2]:
        raise form.refuse("the numbers of registers")
    rows, columns = (np.stack(axis) for axis in zip(*of_sum, strict=True))

    def run(m: "Machine") -> None:
        m.whole_warps("mma.sync")
        a = assembled(left(m), of_left, 16, inner)
        b = assembled(right(m), of_right, 8, inner)
        before = assembled(c(m)[..., None], of_sum, 16, 8)
        found = multiply(a, b, before, kind, m.kernel.tensor_core, m.draw.order(inner), to)
        put(m, np.moveaxis(found[:, rows, columns], 1, -1))

    return run
