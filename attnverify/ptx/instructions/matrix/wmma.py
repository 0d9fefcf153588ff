"""
``wmma``: a matrix of a warp in fragments, whose elements lie in threads as nobody is told.

PTX ISA, "Warp-level matrix instructions using wmma": a fragment holds a matrix; which element lies
in which register of which thread is not specified, and may differ from one GPU to the next. Here
element i of lane l is element l + 32 i of the matrix, row by row, and where a fragment has more
room than the matrix it holds it again. A kernel that counts on another order is wrong here.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from attnverify.ptx.decode import Form, Read, Step, Write, instruction
from attnverify.ptx.instructions.matrix.mma import stacked, truncated
from attnverify.ptx.kinds import BITS, KINDS, Array, Kind
from attnverify.ptx.numbers.formats import narrow, widen
from attnverify.ptx.numbers.tensor_core import multiply
from attnverify.ptx.storage.access import load, store

if TYPE_CHECKING:
    from attnverify.ptx.execution.machine import Machine

__all__: list[str] = []

WARP = 32
SHAPES = {
    "m16n16k16": (16, 16, 16),
    "m32n8k16": (32, 8, 16),
    "m8n32k16": (8, 32, 16),
    "m16n16k8": (16, 16, 8),
    "m8n8k4": (8, 8, 4),
}
TYPES = {
    "m16n16k8": ("tf32", "f32"),
    "m8n8k4": ("f64",),
}
USUAL = ("f16", "bf16", "u8", "s8", "f32", "s32")
SPACES = ("global", "shared", "shared::cta")
TWICE = {"a": {"m16n16k16": 2, "m8n32k16": 4}, "b": {"m16n16k16": 2, "m32n8k16": 4}}
"""How often a fragment of float16 factors holds the matrix."""


@instruction("wmma")
def matrices(form: Form) -> Step:
    what = form.choice("load", "store", "mma")
    if what == "mma":
        return product(form)
    of = form.choice("a", "b", "c", "d")
    form.choice("sync")
    form.choice("aligned")
    layout, shape = form.choice("row", "col"), form.choice(*SHAPES)
    space = form.choice(*SPACES, default="generic").replace("shared::cta", "shared")
    kind = form.kind(*TYPES.get(shape, USUAL))
    sizes = rows_and_columns(of, shape)
    size = 4 if kind.name == "tf32" else kind.size
    form.kernel.touches(space, size)
    registers = form.items(0 if what == "load" else 1)
    if len(registers) * per_register(kind) * WARP != copies(of, shape, kind) * np.prod(sizes):
        raise form.refuse("the number of registers")
    address = form.address(1 if what == "load" else 0)
    steps = form.read(2, "b32") if len(form.operands) == 3 else None
    fragment = len(registers) * max(4, kind.size)
    places = Places(layout, sizes, size, space, address, steps, fragment)
    return loading(form, places, kind) if what == "load" else storing(form, places, kind)


def rows_and_columns(of: str, shape: str) -> tuple[int, int]:
    m, n, k = SHAPES[shape]
    return {"a": (m, k), "b": (k, n)}.get(of, (m, n))


def copies(of: str, shape: str, kind: Kind) -> int:
    return TWICE.get(of, {}).get(shape, 1) if kind.name == "f16" else 1


def per_register(kind: Kind) -> int:
    return {"f16": 2, "bf16": 2, "u8": 4, "s8": 4}.get(kind.name, 1)


class Places:
    """Where the elements of a matrix lie in memory."""

    def __init__(
        self,
        layout: str,
        sizes: tuple[int, int],
        size: int,
        space: str,
        address: Read,
        steps: Read | None,
        fragment: int,
    ) -> None:
        self.count, self.size, self.space = int(np.prod(sizes)), size, space
        self.fragment = fragment  # bytes in the registers of a thread
        self.address, self.steps = address, steps
        row, column = np.divmod(np.arange(self.count), sizes[1])
        self.outer, self.inner = (row, column) if layout == "row" else (column, row)
        self.usual = sizes[1] if layout == "row" else sizes[0]

    def of(self, m: "Machine", some: Array) -> tuple[Array, Array]:
        """[rounds lanes] the addresses of the elements, and the lanes, of some warps."""
        first = np.flatnonzero(some) * WARP
        start = m.full(self.address(m))[first]
        step = np.full(1, self.usual) if self.steps is None else m.full(self.steps(m))[first]
        self.check(m, start, step, first)
        at = start[:, None] + (self.outer * step.astype(np.int64)[:, None] + self.inner) * self.size
        lanes = (first[:, None] + np.arange(WARP)).reshape(-1)
        return at.reshape(len(first), -1, WARP).transpose(1, 0, 2).reshape(-1, len(lanes)), lanes

    def check(self, m: "Machine", start: Array, step: Array, lanes: Array) -> None:
        """
        A matrix begins where a fragment of a thread may (PTX ISA, "Matrix storage for WMMA"), its
        rows or columns too, for which the guide to CUDA C++ asks for 16 bytes at most.
        """
        begin, apart = self.fragment, min(16, self.fragment)
        wrong = (start % begin != 0) | (step.astype(np.int64) * self.size % apart != 0)
        if wrong.any():
            told = (
                f"a matrix begins at a multiple of {begin} bytes, and its rows lie multiples of "
                f"{apart} apart"
            )
            m.fail("misaligned", told, int(lanes[np.flatnonzero(wrong)[0]]))


def loading(form: Form, places: Places, kind: Kind) -> Step:
    puts = [form.writing(item, f"b{8 * max(4, kind.size)}") for item in form.items(0)]
    word = BITS[max(4, kind.size)]

    def run(m: "Machine") -> None:
        some = m.whole_warps("wmma.load")
        addresses, lanes = places.of(m, some)
        found = [load(m, places.space, at, lanes, places.size) for at in addresses]
        matrix = np.stack(found).reshape(-1, int(some.sum()), WARP).transpose(1, 0, 2)
        spread(m, puts, matrix.reshape(len(matrix), -1), some, word)

    return run


def spread(
    m: "Machine", puts: list[Write], matrix: Array, some: Array, word: np.dtype[Any]
) -> None:
    """Elements [warps each] into registers, again from the first where there is more room."""
    room = len(puts) * WARP * word.itemsize // matrix.itemsize
    each = np.tile(matrix, (1, max(1, room // matrix.shape[1]))).reshape(len(matrix), -1, WARP)
    packed = np.ascontiguousarray(each.transpose(0, 2, 1)).view(word)  # [warps lanes registers]
    for register, put in enumerate(puts):
        full = np.zeros((len(some), WARP), word)
        full[some] = packed[:, :, register]
        put(m, full.reshape(-1))


def elements(bits: Array, dtype: np.dtype[Any], count: int) -> Array:
    """[warps count] the first elements of fragments, whose registers are bits [registers lanes]."""
    registers, lanes = bits.shape
    each = np.ascontiguousarray(bits.reshape(registers, lanes // WARP, WARP).transpose(1, 2, 0))
    split = each.view(dtype).reshape(lanes // WARP, WARP, -1)
    return split.transpose(0, 2, 1).reshape(lanes // WARP, -1)[:, :count]


def storing(form: Form, places: Places, kind: Kind) -> Step:
    word = f"b{8 * max(4, kind.size)}"
    registers = stacked([form.reading(item, word) for item in form.items(1)])

    def run(m: "Machine") -> None:
        some = m.whole_warps("wmma.store")
        addresses, lanes = places.of(m, some)
        matrix = elements(registers(m), BITS[kind.size], places.count)[some]
        rounds = matrix.reshape(len(matrix), -1, WARP).transpose(1, 0, 2).reshape(-1, len(lanes))
        for at, values in zip(addresses, rounds, strict=True):
            store(m, places.space, at, lanes, places.size, np.ascontiguousarray(values))

    return run


# products


def product(form: Form) -> Step:
    form.choice("sync")
    form.choice("aligned")
    form.modifiers = [name for name in form.modifiers if name not in ("row", "col", "rn")]
    shape, saturates = form.choice(*SHAPES), form.flag("satfinite")
    kinds = [form.kind(*TYPES.get(shape, USUAL)) for _ in range(2)]
    if len(form.modifiers) == 2:
        factor = [form.kind(*TYPES.get(shape, USUAL)) for _ in range(2)]
        to, left, right, of = kinds[0], kinds[1], *factor
    else:
        to, left, right, of = kinds[0], KINDS["f16"], KINDS["f16"], kinds[1]
    if (left.name, to.name) not in SUMS or {left.name, right.name} > {left.name}:
        raise form.refuse("this product")
    form.expect(4)
    return product_step(form, shape, (to, left, right, of), saturates)


SUMS = {
    *(("f16", "f32"), ("f16", "f16"), ("bf16", "f32"), ("tf32", "f32"), ("f64", "f64")),
    *(("u8", "s32"), ("s8", "s32")),
}


def product_step(
    form: Form, shape: str, kinds: tuple[Kind, Kind, Kind, Kind], saturates: bool
) -> Step:
    to, left, right, of = kinds
    sources = [
        fragment(form, place, letter, shape, kind)
        for place, letter, kind in ((1, "a", left), (2, "b", right), (3, "c", of))
    ]
    word = BITS[max(4, to.size)]
    puts = [form.writing(item, f"b{8 * word.itemsize}") for item in form.items(0)]
    inner = SHAPES[shape][2]

    def run(m: "Machine") -> None:
        some = m.whole_warps("wmma.mma")
        a, b, c = (np.ascontiguousarray(read(m)[some]) for read in sources)
        found = multiplied(m, a, b, c, (left, to), inner, saturates)
        spread(m, puts, found.reshape(len(found), -1), some, word)

    return run


def fragment(form: Form, place: int, letter: str, shape: str, kind: Kind) -> Read:
    """[warps rows columns] the matrix of a fragment."""
    sizes = rows_and_columns(letter, shape)
    items = form.items(place)
    if len(items) * per_register(kind) * WARP != copies(letter, shape, kind) * np.prod(sizes):
        raise form.refuse("the number of registers")
    bits = stacked([form.reading(item, f"b{8 * max(4, kind.size)}") for item in items])
    dtype = KINDS["b32" if kind.name == "tf32" else f"b{8 * kind.size}"].dtype
    dtype = kind.dtype if kind.name in ("u8", "s8", "s32", "f64") else dtype
    return lambda m: elements(bits(m), dtype, int(np.prod(sizes))).reshape(-1, *sizes)


def multiplied(
    m: "Machine",
    a: Array,
    b: Array,
    c: Array,
    kinds: tuple[Kind, Kind],
    inner: int,
    saturates: bool,
) -> Array:
    """The bits of a b + c, as tensor cores add it; whole numbers wrap or saturate."""
    left, to = kinds
    if to.name == "s32":
        total = a.astype(np.int64) @ b.astype(np.int64) + c
        limits = np.iinfo(np.int32)
        return (total.clip(limits.min, limits.max) if saturates else total).astype(np.int32)
    if to.name == "f64":
        for k in range(inner):
            c = c + a[:, :, k, None] * b[:, None, k, :]
        return c
    x, y = (as_numbers(factor, left.name) for factor in (a, b.transpose(0, 2, 1)))
    before = as_numbers(c, to.name)
    unit, order = m.kernel.tensor_core, m.draw.order(inner)
    found = multiply(x, y, before, left.name, unit, order, to.name)
    return narrow(found, "f16") if to.name == "f16" else found.view(np.uint32)


def as_numbers(bits: Array, kind: str) -> Array:
    bits = np.ascontiguousarray(bits)
    return truncated(bits) if kind == "tf32" else np.ascontiguousarray(widen(bits, kind))
