"""
Products of a warp group (four warps): the right factor, and perhaps the left one, through
descriptors of shared memory.

A descriptor says where a matrix begins, how far its parts lie from each other, and how its 16-byte
pieces are swizzled (PTX ISA, "Matrix descriptor format" and "Strides"; CUTLASS names the same
layouts in its ``GmmaDescriptor``).
"""

import re
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from attnverify.ptx.decode import Form, Read, Step, instruction
from attnverify.ptx.instructions.matrix.mma import (
    WHOLE,
    accumulator,
    added_whole,
    in_registers,
    left_factor,
    stacked,
    truncated,
)
from attnverify.ptx.kinds import Array, in_units
from attnverify.ptx.numbers.formats import widen
from attnverify.ptx.numbers.tensor_core import multiply, sum_format, unit_of
from attnverify.ptx.storage.asynchronous import finish_products, read_matrix
from attnverify.ptx.storage.groups import Product
from attnverify.ptx.text.operands import Address, Negated, Operand, Pair, Register, Vector
from attnverify.ptx.text.syntax import Instruction

if TYPE_CHECKING:
    from attnverify.ptx.execution.machine import Machine

__all__ = ["used_registers", "watched"]

GROUP, WARP = 128, 32
SWIZZLES = {0: (16, 0), 1: (128, 3), 2: (64, 2), 3: (32, 1)}
"""
By the last two bits of a descriptor: bytes of a row, and how many bits of its number are added to
those of a 16-byte piece.
"""


@instruction("wgmma")
def warp_group(form: Form) -> Step:
    what = form.choice("fence", "commit_group", "wait_group", "mma_async")
    form.choice("sync")
    form.choice("aligned")
    if what == "mma_async":
        return product(form)
    form.expect(1 if what == "wait_group" else 0)
    if what == "fence":
        return fence
    if what == "commit_group":
        return commit
    pending = form.whole(0)
    return lambda m: finish_products(m, m.whole_warps("wgmma.wait_group"), pending)


def fence(m: "Machine") -> None:
    m.note_use(m.groups.fence(m.whole_warps("wgmma.fence")))


def commit(m: "Machine") -> None:
    m.groups.committed[m.whole_warps("wgmma.commit_group")] += 1


SIZES = {"f16": 2, "bf16": 2, "tf32": 4} | dict.fromkeys(("e4m3", "e5m2", "s8", "u8"), 1)
HALF_SUMS = ("f16", "e4m3", "e5m2")


class Shape:
    """What a product is of."""

    def __init__(self, form: Form) -> None:
        shape = next((name for name in form.modifiers if re.fullmatch(r"m64n\d+k\d+", name)), "")
        if not shape:
            raise form.refuse("wanted a shape m64nNkK")
        form.modifiers.remove(shape)
        self.columns, self.inner = (int(size) for size in shape[4:].split("k"))
        self.saturates = form.flag("satfinite")
        kinds, form.modifiers = form.modifiers, []
        if len(kinds) != 3 or kinds[1] not in SIZES:
            raise form.refuse("this product")
        self.to, self.kind, self.right = kinds
        self.size, self.whole = SIZES[self.kind], self.kind in WHOLE
        mixed = SIZES.get(self.right) == self.size == 1 and (self.right in WHOLE) == self.whole
        sums = ("s32",) if self.whole else ("f32", "f16") if self.kind in HALF_SUMS else ("f32",)
        if not (
            (self.right == self.kind or mixed)
            and self.to in sums
            and self.inner == 32 // self.size
            and self.columns % 8 == 0
            and 8 <= self.columns <= 256
            and (self.whole or not self.saturates)
        ):
            raise form.refuse("this product")
        self.name = f"{shape}.{self.to}.{self.kind}"
        self.registers = self.columns // 2 // (2 if self.to == "f16" else 1)
        self.unit = unit_of(form.kernel.module.target, self.kind, of_group=True)
        self.sum_format = sum_format(self.to, self.kind, self.unit)


def product(form: Form) -> Step:
    shape = Shape(form)
    in_place = isinstance(form.operand(1), Vector)
    given = [form.whole(place) for place in range(4, len(form.operands))]
    signs = [1, 1] if shape.whole else given[:2]
    turned = [each != 0 for each in (given if shape.whole else given[2:])]
    if not set(signs) <= {1, -1} or len(turned) != (0 if shape.size != 2 else 1 if in_place else 2):
        raise form.refuse("the numbers behind the predicate")
    turns = ([False] if in_place else turned[:1] or [False]) + (turned[-1:] or [False])
    form.kernel.touches("shared", 16)
    if len(form.items(0)) != shape.registers or (in_place and len(form.items(1)) != 4):
        raise form.refuse("the numbers of registers")
    return product_step(form, shape, in_place, signs, turns)


def product_step(
    form: Form, shape: Shape, in_place: bool, signs: list[int], turns: list[bool]
) -> Step:
    left = stacked([form.reading(item, "b32") for item in form.items(1)]) if in_place else None
    left_at = None if in_place else form.read(1, "b64")
    right_at, keep = form.read(2, "b64"), form.read(3, "pred")
    c = stacked([form.reading(item, "b32") for item in form.items(0)])
    puts = [form.writing(item, "b32") for item in form.items(0)]
    used = registers_of(form.operand(0)), registers_of(form.operand(1)) if in_place else ()
    sums = "f16" if shape.to == "f16" else "f32"

    def run(m: "Machine") -> None:
        groups = whole_groups(m)
        b, places = matrix(m, right_at, shape.columns, shape, shape.right, turns[1], groups)
        if left is not None:
            a = left_factor(left(m), shape.kind).reshape(-1, 64, shape.inner)[groups]
        else:
            assert left_at is not None
            a, more = matrix(m, left_at, 64, shape, shape.kind, turns[0], groups)
            places = np.concatenate([more, places], 1)
        start(m, used, shape.name, groups, places)
        kept = np.where(m.full(keep(m)), c(m), np.uint32(0))
        before = accumulator(kept, sums).reshape(-1, 64, shape.columns)
        found = np.zeros_like(before)
        found[groups] = multiplied(m, a * signs[0], b * signs[1], before[groups], shape)
        for put, bits in zip(
            puts, in_registers(found.reshape(-1, 16, shape.columns), sums), strict=True
        ):
            put(m, bits)

    return run


def multiplied(m: "Machine", a: Array, b: Array, c: Array, shape: Shape) -> Array:
    """Sums of whole numbers travel as the float32 of the same bits."""
    if shape.whole:
        before = np.ascontiguousarray(c).view(np.int32)
        return added_whole(a, b, before, shape.saturates).view(np.float32)
    order = m.draw.order(shape.inner)
    return multiply(a, b, c, shape.kind, shape.unit, order, shape.sum_format, shape.right)


def registers_of(operand: Operand) -> tuple[int, ...]:
    if isinstance(operand, Vector | Pair):
        parts = operand.items if isinstance(operand, Vector) else (operand.first, operand.second)
        return tuple(index for part in parts for index in registers_of(part))
    if isinstance(operand, Address):
        return registers_of(operand.base)
    if isinstance(operand, Negated):
        operand = operand.of
    return (operand.index,) if isinstance(operand, Register) else ()


def whole_groups(m: "Machine") -> Array:
    """Tell which warp groups are here, with all their warps."""
    warps = m.whole_warps("wgmma.mma_async")
    if m.width % GROUP:
        m.fail(
            "partial warp",
            f"wgmma is for groups of 4 warps, and a block has {m.width // WARP}",
            int(m.active()[0]),
        )
    each = warps.reshape(-1, GROUP // WARP)
    part = each.any(1) & ~each.all(1)
    if part.any():
        m.fail(
            "partial warp",
            "wgmma is for all 4 warps of a group at once, and some are not here",
            int(m.active()[0]),
        )
    return np.asarray(each.all(1))


def start(
    m: "Machine",
    used: tuple[tuple[int, ...], tuple[int, ...]],
    name: str,
    groups: Array,
    places: Array,
) -> None:
    """A product is under way from here on, until it is waited for."""
    if not m.setup.races:
        return
    warps = np.repeat(groups, GROUP // WARP)
    spread = np.zeros((len(warps), places.shape[1]), np.int64)
    spread[warps] = np.repeat(places, GROUP // WARP, 0)
    committed = m.groups.committed.copy()
    product = Product(warps, used[0], used[1], name, spread, committed, m.index)
    wrong = m.groups.start(product, m.setup.register_fences)
    if wrong is not None:
        m.fail(*wrong, int(m.active()[0]))
    m.shared.being_read[places] = True
    m.shared.readers += 1


def matrix(
    m: "Machine", at: Read, rows: int, shape: Shape, kind: str, turned: bool, groups: Array
) -> tuple[Array, Array]:
    """[groups rows K] of a factor in shared memory, and the places that were read."""
    descriptors = m.full(at(m)).reshape(-1, GROUP)[groups]
    if (descriptors != descriptors[:, :1]).any():
        m.fail(
            "partial warp",
            "the threads of a warp group give different descriptors",
            int(m.active()[0]),
        )
    first = descriptors[:, 0]
    if (first >> np.uint64(49) & np.uint64(7)).any():
        m.fail("not modelled", "a descriptor with a base offset", int(m.active()[0]))
    of = [layout(int(d), rows, shape.inner, shape.size, turned, m.shared.unit) for d in first]
    offsets, places = (np.stack(part) for part in zip(*of, strict=True))
    bits, places = read_matrix(m, offsets, places, groups, shape.size)
    if shape.whole:
        return bits.view(np.int8 if kind == "s8" else np.uint8), places
    return (truncated(bits) if kind == "tf32" else widen(bits, kind)), places


@lru_cache(maxsize=4096)
def layout(
    descriptor: int, rows: int, inner: int, size: int, turned: bool, unit: int
) -> tuple[Array, Array]:
    """[rows K] the offsets of the elements of a matrix; ``turned``: rows are contiguous, not K."""
    start, leading, stride = ((descriptor >> bit & 0x3FFF) << 4 for bit in (0, 16, 32))
    width, bits = SWIZZLES[descriptor >> 62]
    per, piece = width // size, 16 // size
    n, k = np.arange(rows)[:, None], np.arange(inner)[None, :]
    if turned and bits == 0:
        byte = n // piece * stride + k // 8 * leading + k % 8 * 16 + n % piece * size
    elif turned:
        byte = n // per * leading + k // 8 * stride + k % 8 * width + n % per * size
    else:
        byte = n // 8 * stride + n % 8 * width + k // per * leading + k % per * size
    at = start + byte
    at = at ^ (at >> 7 & (1 << bits) - 1) << 4
    return at, np.sort(in_units(at.reshape(-1), unit))[:: max(1, unit // size)]


STORING = ("st", "stmatrix", "red", "cp", "bra", "bar", "barrier", "fence", "membar", "prefetch")


def used_registers(instructions: list[Instruction]) -> frozenset[int]:
    """Collect the registers of all products, those moved into them, and those they are moved to."""
    products = [i for i in instructions if i.name == "wgmma" and "mma_async" in i.modifiers]
    found = {r for i in products for operand in i.operands[:2] for r in registers_of(operand)}
    moves = [tuple(map(registers_of, i.operands)) for i in instructions if is_move(i)]
    found |= {r for targets, sources in moves if found.issuperset(sources) for r in targets}
    while True:
        more = {sources[0] for targets, sources in moves if found.issuperset(targets)} - found
        if not more:
            return frozenset(found)
        found |= more


def is_move(of: Instruction) -> bool:
    """Tell whether it moves one register, whole or taken apart."""
    return (
        of.name == "mov"
        and len(of.operands) == 2
        and isinstance(of.operands[1], Register)
        and isinstance(of.operands[0], Register | Vector)
    )


@lru_cache(maxsize=8)
def places_of(registers: frozenset[int]) -> dict[int, int]:
    """Number the registers in their order."""
    return {index: row for row, index in enumerate(sorted(registers))}


def watched(form: Form, step: Step, registers: frozenset[int]) -> Step:
    """
    A step, before which the registers of products under way are looked at if it touches one.
    """
    reads, writes = touched_by(form)
    place = places_of(registers)
    wrote, read = (
        np.array([place[index] for index in sorted(part & registers)], np.int64)
        for part in (writes, reads)
    )
    if not wrote.size and not read.size:
        return step
    moves = is_move(form.of) and wrote.size and read.size == 1
    whole = moves and isinstance(form.of.operands[0], Register)

    def run(m: "Machine") -> object:
        if m.setup.races:
            some = m.mask is not None and m.mask.reshape(-1, WARP).any(1)
            warps = slice(None) if m.mask is None else np.flatnonzero(some)
            strict = m.setup.register_fences
            wrong = (
                m.groups.copied(read, wrote, warps, strict)
                if whole or (moves and not strict)
                else m.groups.touched(read, wrote, warps)
            )
            if wrong is not None:
                m.fail("not waited for", f"this instruction {wrong}", int(m.active()[0]))
        return step(m)

    return run


def touched_by(form: Form) -> tuple[set[int], set[int]]:
    """List the registers that an instruction reads and those that it writes."""
    operands = form.operands
    stores = form.name in STORING or not operands
    sources = operands if stores else operands[1:]
    writes = set() if stores else set(registers_of(operands[0]))
    return {index for operand in sources for index in registers_of(operand)}, writes
