"""Loads, stores, and asynchronous copies to shared memory."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from attnverify.ptx.decode import Form, Read, Step, Write, instruction
from attnverify.ptx.kinds import BITS, KINDS, Array, Kind
from attnverify.ptx.storage.access import WIDE, load, store
from attnverify.ptx.storage.order import Strength
from attnverify.ptx.text.operands import Address, Register, Symbol

if TYPE_CHECKING:
    from attnverify.ptx.execution.machine import Machine

__all__ = ["memory_space", "skip_hints", "strength"]

SPACES = ("global", "shared", "shared::cta", "local", "param", "const")
ORDERS = {
    "volatile": ("now", "fence"),
    "relaxed": ("fence", "fence"),
    "mmio": ("fence", "fence"),
    "acquire": ("now", "fence"),
    "release": ("fence", "now"),
    "acq_rel": ("now", "now"),
    "weak": ("", ""),
}
"""Whether an access acquires, and releases, by itself or with a fence."""

SCOPES = ("cta", "cluster", "gpu", "sys")
CACHES = ("ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc")
KINDS_OF_DATA = [f"{letter}{bits}" for letter in "bus" for bits in (8, 16, 32, 64)] + [
    "f16",
    "bf16",
    "f32",
    "f64",
    "f16x2",
    "bf16x2",
]


def memory_space(form: Form) -> str:
    space = form.choice(*SPACES, default="generic")
    return {"shared::cta": "shared", "const": "global"}.get(space, space)


def skip_hints(form: Form) -> bool:
    """Takes what is about caches alone; whether a policy for a cache is the last operand."""
    form.modifiers = [
        name
        for name in form.modifiers
        if not name.startswith(("L1::", "L2::")) or name == "L2::cache_hint"
    ]
    return form.flag("L2::cache_hint")


def strength(form: Form, default: str) -> Strength:
    """How an access orders others."""
    acquires, releases = ORDERS[form.choice(*ORDERS, default=default)]
    scope = form.choice(*SCOPES, default="gpu")
    return Strength(acquires, releases, scope in ("cta", "cluster"))


class Access:
    """
    What a load and a store have in common: the space, the type, how many numbers, and whether races
    are watched.
    """

    def __init__(self, form: Form) -> None:
        self.hinted = skip_hints(form)
        while form.flag(*CACHES):
            pass
        how = strength(form, "weak")
        self.how = how if how.acquires else None
        self.space = memory_space(form)
        self.count = int(form.choice("v2", "v4", "v8", default="v1")[1:])
        self.kind = form.kind(*KINDS_OF_DATA)
        self.size = self.kind.size * self.count
        if self.size > 16:
            raise form.refuse("an access of more than 16 bytes")
        form.kernel.touches(self.space, self.size)
        form.expect(3 if self.hinted else 2)


@instruction("ld", "ldu")
def load_registers(form: Form) -> Step:
    access = Access(form)
    puts = [scatter(form, place, access.kind) for place in range(access.count)]
    if len(form.items(0)) != access.count:
        raise form.refuse(f"wanted {access.count} registers")
    if access.space == "param":
        return load_parameter(form, access)
    address, space, size, part = form.address(1), access.space, access.size, BITS[access.kind.size]
    polls = form.polls(access.how is not None)

    def run(m: "Machine") -> None:
        m.polls += polls
        lanes = m.active()
        found = (
            load(m, space, m.full(address(m))[lanes], lanes, size, access.how)
            .view(part)
            .reshape(len(lanes), -1)
        )
        for place, put in enumerate(puts):
            put(m, lanes, np.ascontiguousarray(found[:, place]))

    return run


def scatter(form: Form, place: int, kind: Kind) -> Callable[["Machine", Array, Array], None]:
    """Build a writer of what some lanes were given: the bits of a type, widened to the register."""
    items = form.items(0)
    if place >= len(items):
        raise form.refuse("wanted more registers")
    put = form.writing(items[place], kind, wider=True)

    def run(m: "Machine", lanes: Array, bits: Array) -> None:
        if m.mask is not None:
            spread = np.zeros(m.lanes, bits.dtype)
            spread[lanes] = bits
            bits = spread
        put(m, bits.view(kind.dtype))

    return run


def load_parameter(form: Form, access: Access) -> Step:
    """The same for all threads, unless a register says where."""
    address, kind = form.operand(1), access.kind
    assert isinstance(address, Address)
    puts = [form.writing(item, kind, wider=True) for item in form.items(0)]
    if isinstance(address.base, Symbol):
        start = form.kernel.places.get(address.base.name)
        if start is None:
            raise form.refuse(f"the parameter {address.base.name}")
        return partial(fixed_parameter, puts, kind, start + address.base.offset + address.offset)
    where = form.address(1)

    def run(m: "Machine") -> None:
        at = where(m) if m.mask is None else np.where(m.mask, where(m), 0)
        if ((at < 0) | (at + access.size > m.setup.parameters.size)).any():
            m.fail("out of bounds", "a parameter beyond the last", int(m.active()[0]))
        for place, put in enumerate(puts):
            each = (at + place * kind.size)[:, None] + np.arange(kind.size)
            put(m, np.ascontiguousarray(m.setup.parameters[each]).view(kind.dtype).reshape(-1))

    return run


def fixed_parameter(puts: list[Write], kind: Kind, start: int, m: "Machine") -> None:
    for place, put in enumerate(puts):
        at = start + place * kind.size
        put(m, m.setup.parameters[at : at + kind.size].view(kind.dtype))


@instruction("st")
def store_registers(form: Form) -> Step:
    access = Access(form)
    items, kind, space, size = form.items(1), access.kind, access.space, access.size
    if len(items) != access.count or space == "param":
        raise form.refuse(f"wanted {access.count} values, and no parameter")
    bits = KINDS[f"b{8 * kind.size}"]
    reads, address, how = (
        [stored(form, item, kind, bits) for item in items],
        form.address(0),
        access.how,
    )

    def run(m: "Machine") -> None:
        lanes = m.active()
        values = np.empty((len(lanes), len(reads)), bits.dtype)
        for place, read in enumerate(reads):
            x = read(m)
            values[:, place] = x if x.size == 1 or m.mask is None else x[lanes]
        store(
            m,
            space,
            m.full(address(m))[lanes],
            lanes,
            size,
            values.view(WIDE[size]).reshape(-1),
            how,
        )

    return run


def stored(form: Form, item: object, kind: Kind, bits: Kind) -> Read:
    """Read the bits of what is stored: a register, or a number as its type has it."""
    if isinstance(item, Register):
        return form.reading(item, bits, wider=True)
    read = form.reading(item, kind)  # type: ignore[arg-type]
    return lambda m: read(m).view(bits.dtype)
