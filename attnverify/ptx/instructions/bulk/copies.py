"""``cp``: copies that go on while a thread does other things, of its own few bytes or in bulk."""

from typing import TYPE_CHECKING

import numpy as np

from attnverify.ptx.decode import Form, Read, Step, instruction
from attnverify.ptx.instructions.bulk.barriers import arrive_behind_copies
from attnverify.ptx.instructions.bulk.tensors import copy_in_bulk, reduce_in_bulk
from attnverify.ptx.instructions.loads import skip_hints
from attnverify.ptx.storage.asynchronous import arrive, copy
from attnverify.ptx.text.operands import Register

if TYPE_CHECKING:
    from attnverify.ptx.execution.machine import Machine

__all__: list[str] = []


@instruction("cp")
def copy_asynchronously(form: Form) -> Step:
    if form.flag("reduce"):
        return reduce_in_bulk(form)
    form.choice("async")
    if form.flag("bulk"):
        return copy_in_bulk(form)
    if form.flag("mbarrier"):
        return arrive_behind_copies(form)
    if form.flag("commit_group"):
        form.expect(0)
        return commit
    if form.flag("wait_group"):
        form.expect(1)
        pending = form.whole(0)
        return lambda m: arrive(m, pending)
    if form.flag("wait_all"):
        form.expect(0)
        return lambda m: arrive(m, None)
    return start_copy(form)


def commit(m: "Machine") -> None:
    m.copies.committed[m.active()] += 1


def start_copy(form: Form) -> Step:
    """
    4, 8 or 16 bytes, of which those beyond a third number are zeros; they arrive when they are
    waited for.
    """
    cache = form.choice("ca", "cg")
    form.choice("shared", "shared::cta")
    form.choice("global")
    hinted = skip_hints(form)
    size = form.whole(2)
    if size not in ((4, 8, 16) if cache == "ca" else (16,)):
        raise form.refuse("copies have 4, 8 or 16 bytes, those of .cg 16")
    operands = len(form.operands) - hinted
    if operands not in (3, 4):
        raise form.refuse("wanted 3 or 4 operands")
    form.kernel.touches("shared", size)
    form.kernel.touches("global", size)
    to, of, real = (
        form.address(0),
        form.address(1),
        bytes_copied(form, size) if operands == 4 else None,
    )

    def run(m: "Machine") -> None:
        lanes = m.active()
        counts = None if real is None else m.full(real(m))[lanes]
        copy(m, m.full(to(m))[lanes], m.full(of(m))[lanes], lanes, size, counts)

    return run


def bytes_copied(form: Form, size: int) -> Read:
    """The fourth operand: so many bytes, or a predicate that says that none are."""
    operand = form.operand(3)
    if isinstance(operand, Register) and operand.size == 0:
        ignored = form.read(3, "pred")
        return lambda m: np.where(ignored(m), 0, size)
    return form.read(3, "u32")
