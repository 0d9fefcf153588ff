"""Barriers of a block: who waits, who has arrived, when they open, and what never opens."""

from typing import TYPE_CHECKING, NoReturn

import numpy as np

from attnverify.ptx.kinds import Array

if TYPE_CHECKING:
    from attnverify.ptx.execution.machine import Machine

__all__ = ["arrive", "release", "tell_deadlock", "wait"]

WARP = 32


def wait(m: "Machine", barrier: int, threads: Array | None) -> int | None:
    """
    The threads of the mask wait at a barrier of their blocks; None if all of their blocks are here,
    and go on at once.
    """
    m.note_use(m.shared.touched)
    if threads is None and passes_at_once(m):
        m.new_epoch()
        return None
    lanes = expect(m, barrier, threads)
    m.waiting[lanes] = barrier + 1
    m.stand(m.index + 1)
    return -1


def arrive(m: "Machine", barrier: int, threads: Array) -> None:
    """The threads of the mask are counted at a barrier, and go on."""
    m.note_use(m.shared.touched)
    lanes = expect(m, barrier, threads)
    np.add.at(m.arrived[:, barrier], m.block[lanes], 1)
    if m.phases is not None:
        for block, warp in np.unique(np.stack([m.block[lanes], m.warp[lanes]], 1), axis=0).tolist():
            m.phases.arrived.setdefault((block, barrier), set()).add(warp)


def expect(m: "Machine", barrier: int, threads: Array | None) -> Array:
    """Note how many threads must reach a barrier; those that are here."""
    whole_warps_alive(m)
    lanes = m.active()
    m.expected[m.block[lanes], barrier] = m.count if threads is None else m.full(threads)[lanes]
    return lanes


def passes_at_once(m: "Machine") -> bool:
    """Tell whether whole blocks are here, which then have passed a barrier."""
    if m.mask is None:
        m.pass_barrier()
        return True
    here = m.mask.reshape(len(m.blocks), -1)
    some = here.any(1)
    if (here[some] != m.launched).any():
        return False
    m.pass_barrier(np.flatnonzero(some))
    return True


def whole_warps_alive(m: "Machine") -> None:
    """Barriers are for whole warps: all threads that a warp was launched with."""
    if m.mask is None:
        return
    each = m.mask.reshape(len(m.blocks), -1, WARP)
    part = (each.any(2) & (each != m.launched.reshape(-1, WARP)).any(2)).reshape(-1)
    if part.any():
        lane = int(np.flatnonzero(m.mask & np.repeat(part, WARP))[0])
        told = "a barrier is for all threads of a warp at once, and some are not here"
        m.fail("partial warp", told, lane)


def release(m: "Machine") -> bool:
    """Open the barriers that are complete; whether there were any."""
    opened = False
    waiting, alive = (x.reshape(len(m.blocks), -1) for x in (m.waiting, m.alive))
    for block in np.flatnonzero(alive.any(1)):
        for barrier in np.unique(waiting[block][alive[block]]) - 1:
            here = alive[block] & (waiting[block] == barrier + 1)
            count = here.sum() + m.arrived[block, barrier]
            if barrier >= 0 and count == m.expected[block, barrier]:
                waiting[block][here], m.arrived[block, barrier] = 0, 0
                pass_together(m, int(block), int(barrier), np.flatnonzero(here) // WARP)
                opened = True
    m.new_epoch()
    return opened


def pass_together(m: "Machine", block: int, barrier: int, warps: Array) -> None:
    """
    Warps of a block have passed a barrier; where other things order warps, too, those who were not
    there are not ordered.
    """
    if m.phases is None:
        m.pass_barrier(np.array([block]))
        return
    waiting = set(warps.tolist())
    together = waiting | m.phases.arrived.pop((block, barrier), set())
    if len(together) * WARP >= m.count:
        m.pass_barrier(np.array([block]))
    else:
        m.order.meet(int(m.blocks[block]), together, waiting)
        m.forget_actors()


def tell_deadlock(m: "Machine") -> NoReturn:
    lane = int(np.flatnonzero(m.alive & (m.waiting > 0))[0])
    m.index = int(m.at[lane]) - 1
    mine = m.block == m.block[lane]
    barrier = int(m.waiting[lane]) - 1
    here = int((mine & m.alive & (m.waiting == barrier + 1)).sum())
    ended = int((mine & ~m.alive & (m.thread < m.count)).sum())
    wanted = int(m.expected[m.block[lane], barrier])
    told = (
        f"{here} threads of a block wait at barrier {barrier}, which {wanted} must reach; "
        f"{ended} of the block have ended"
    )
    m.fail("deadlock", told, lane)
