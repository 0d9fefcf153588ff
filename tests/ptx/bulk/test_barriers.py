"""``mbarrier``: phases as the PTX ISA states them, and what is wrong with a use of them."""

import re

import numpy as np
import pytest

from attnverify import ptx
from tests.ptx.small import kernel, launch

HEAD = """.shared .align 8 .b8 room[64]; .reg .pred %p<9>; .reg .b32 %r<9>, %t; .reg .b64 %d<9>, %o;
mov.u32 %t, %tid.x; mov.u32 %r0, room; ld.param.u64 %o, [out]; mad.wide.u32 %o, %t, 4, %o;
"""
FIRST = "setp.eq.u32 %p0, %t, 0;"
LOOP = "{0}: mbarrier.try_wait.parity.shared.b64 %p1, [%r0], {1}; @!%p1 bra {0};"


def run(body: str, threads: int = 1, **settings: object) -> np.ndarray:
    out = np.zeros(max(threads, 64), np.uint32)
    of = kernel(HEAD + body, [".u64 out"])
    launch(of, threads, [out], **settings)
    return out


def fails(body: str, threads: int = 64, **settings: object) -> str:
    with pytest.raises(ptx.Finding) as raised:
        run(body, threads, **settings)
    return f"{raised.value.kind}: {raised.value.message}"


class Stated:
    """
    PTX ISA, "Phase of the mbarrier object": the pending count and the tx-count both at zero
    complete the phase; the pending count is then what it was initialised to, less who dropped out.
    """

    def __init__(self, count: int) -> None:
        self.history = [(count, 0)]
        self.initial, self.completed = count, 0

    def step(self, arrivals: int, expected: int, dropped: bool = False) -> tuple[int, int]:
        """The phases completed so far and the pending count, before the operation."""
        pending, bytes_ = self.history[-1]
        before = self.completed, pending
        self.initial -= arrivals if dropped else 0
        pending, bytes_ = pending - arrivals, bytes_ + expected
        if (pending, bytes_) == (0, 0):
            self.completed += 1
            pending = self.initial
        self.history.append((pending, bytes_))
        return before


@pytest.mark.parametrize("seed", range(6))
def test_phases_go_on_as_stated(seed: int) -> None:
    random, stated = np.random.default_rng(seed), Stated(count := seed + 2)
    lines, wanted = [f"mbarrier.init.shared.b64 [%r0], {count};"], []
    for _ in range(60):
        pending, bytes_ = stated.history[-1]
        choice = int(random.integers(5)) if pending else 2
        some = int(random.integers(1, max(pending, 1) + 1))
        if choice == 0:
            before = stated.step(some, 0)
            lines.append(f"mbarrier.arrive.shared::cta.b64 %d1, [%r0], {some};")
        elif choice == 1:
            before = stated.step(1, 16 * some)
            lines.append(
                f"mbarrier.arrive.expect_tx.release.cta.shared.b64 %d1, [%r0], {16 * some};"
            )
        elif choice == 2 and bytes_ > 0:
            before = stated.step(0, -16)
            lines.append("mbarrier.complete_tx.shared.b64 [%r0], 16; ")
        elif choice == 3 and stated.initial > 2 and some < stated.initial - 1:
            before = stated.step(some, 0, dropped=True)
            lines.append(f"mbarrier.arrive_drop.shared.b64 %d1, [%r0], {some};")
        else:
            before = stated.step(0, 32)
            lines.append("mbarrier.expect_tx.relaxed.cta.shared.b64 [%r0], 32;")
        if "arrive" in lines[-1]:
            lines.append("mbarrier.pending_count.b64 %r1, %d1; st.global.u32 [%o], %r1;")
            wanted.append(before[1])
            lines.append(
                "add.u64 %o, %o, 4; mbarrier.test_wait.shared.b64 %p1, [%r0], %d1; "
                "selp.u32 %r1, 1, 0, %p1; st.global.u32 [%o], %r1; add.u64 %o, %o, 4;"
            )
            wanted.append(int(stated.completed > before[0]))
        for parity in (0, 1):
            lines.append(
                f"mbarrier.test_wait.parity.acquire.cta.shared.b64 %p1, [%r0], {parity}; "
                "selp.u32 %r1, 1, 0, %p1; st.global.u32 [%o], %r1; add.u64 %o, %o, 4;"
            )
            wanted.append(int(stated.completed % 2 != parity))
    assert stated.completed > 1
    out = np.zeros(len(wanted), np.uint32)
    launch(kernel(HEAD + "\n".join(lines), [".u64 out"]), 1, [out])
    assert out.tolist() == wanted


HAND_ON = f"""{FIRST} @%p0 mbarrier.init.shared.b64 [%r0], 32; bar.sync 0;
setp.lt.u32 %p2, %t, 32; @%p2 bra giver;
{LOOP.format("taker", 0)}
ld.shared.u32 %r1, [room+16]; st.global.u32 [%o], %r1; bra out_;
giver: @%p0 st.shared.u32 [room+16], 7; mbarrier.arrive.shared.b64 _, [%r0]; out_:"""


@pytest.mark.parametrize("races", [True, False])
def test_who_waited_for_a_phase_comes_behind_who_arrived(races: bool) -> None:
    assert run(HAND_ON, 64, races=races).tolist() == [0] * 32 + [7] * 32


@pytest.mark.parametrize(("right", "wrong", "told"), [
    ("mbarrier.try_wait.parity", "mbarrier.try_wait.parity.relaxed.cta", "race: a thread reads"),
    ("mbarrier.arrive.shared", "mbarrier.arrive.relaxed.cta.shared", "race: a thread reads"),
    ("[%r0], 0;", "[%r0], 1;", "race: a thread reads|unwritten"),
    ("bar.sync 0;", "", "race: a thread uses an mbarrier that another|unwritten: there is no mb"),
    ("[%r0], 32;", "[%r0], 33;", "deadlock: 32 threads wait .* phase 0: missing are 1 arrivals"),
    ("[%r0], 32;", "[%r0], 0;", "mbarrier: an mbarrier waits for 1 to"),
    ("[%r0], 32;", "[%r0], 31;", "race|mbarrier"),
    ("_, [%r0];", "_, [%r0], 40;", "mbarrier: more arrive at the mbarrier at byte 0"),
    ("_, [%r0];", "_, [room+32];", "unwritten: there is no mbarrier"),
    ("[room+16], 7", "[room+4], 7", "mbarrier: an mbarrier that was not invalidated lies here"),
    ("giver: ", "giver: @%p0 mbarrier.inval.shared.b64 [%r0];", "race|unwritten: there is no"),
    ("[%r0], 32;", "[room+4], 32;", "misaligned"),
])  # fmt: skip
def test_what_is_wrong_with_a_barrier_is_told(right: str, wrong: str, told: str) -> None:
    if "31" in wrong:  # the last arrival begins the next phase: nobody is harmed
        assert run(HAND_ON.replace(right, wrong), 64)[32] == 7
        return
    assert right in HAND_ON
    assert re.match(told, fails(HAND_ON.replace(right, wrong), timeout=30))


def test_a_barrier_that_has_ended_leaves_its_bytes() -> None:
    body = (
        f"{FIRST} @%p0 mbarrier.init.shared.b64 [%r0], 1; bar.sync 0; "
        "mbarrier.test_wait.parity.shared.b64 %p1, [%r0], 1; bar.sync 0; "
        "@%p0 mbarrier.inval.shared.b64 [%r0]; bar.sync 0; @%p0 st.shared.u32 [%r0], 5; bar.sync 0;"
        "ld.shared.u32 %r1, [%r0]; st.global.u32 [%o], %r1;"
    )
    assert (run(body, 64)[:64] == 5).all()
    without = body.replace("%p1, [%r0], 1; bar.sync 0; ", "%p1, [%r0], 1; ")
    assert "race: a thread ends an mbarrier that another warp uses" in fails(without)


COPIES = f"""{FIRST} @%p0 mbarrier.init.shared.b64 [%r0], WANTED; bar.sync 0;
setp.lt.u32 %p2, %t, 32; @!%p2 bra taker; cvta.to.global.u64 %d1, %o; shl.b32 %r2, %t, 2;
ld.param.u64 %d2, [in]; mad.wide.u32 %d2, %t, 4, %d2; mov.u32 %r3, more; add.u32 %r3, %r3, %r2;
cp.async.ca.shared.global [%r3], [%d2], 4; cp.async.mbarrier.arriveHOW.shared.b64 [%r0]; AND
taker: {LOOP.format("again", 0)} shl.b32 %r2, %t, 2; and.b32 %r2, %r2, 127; mov.u32 %r3, more;
add.u32 %r3, %r3, %r2; ld.shared.u32 %r1, [%r3]; st.global.u32 [%o], %r1;"""


@pytest.mark.parametrize(("how", "wanted", "more"), [
    (".noinc", 32, ""), ("", 1, "@%p0 mbarrier.arrive.shared.b64 _, [%r0];"),
])  # fmt: skip
def test_copies_of_threads_arrive(how: str, wanted: int, more: str) -> None:
    body = COPIES.replace("HOW", how).replace("WANTED", str(wanted)).replace("AND", more)
    of = kernel(".shared .align 4 .b8 more[128];" + HEAD + body, [".u64 out", ".u64 in"])
    x, out = np.arange(32, dtype=np.uint32), np.zeros(64, np.uint32)
    of.launch(1, 64, [out, x])
    assert out.tolist() == [*range(32)] * 2


@pytest.mark.parametrize("text", [
    "mbarrier.init.global.b64 [%d1], 1;", "mbarrier.begin.shared.b64 [%r0], 1;",
    "mbarrier.arrive.expect_tx.shared.b64 _, [%r0];", "mbarrier.init.shared.b32 [%r0], 1;",
    "mbarrier.test_wait.shared.b64 %p1, [%r0];", "setmaxnreg.inc.sync.aligned.u32 20;",
    "setmaxnreg.inc.sync.aligned.u32 33;", "setmaxnreg.sync.aligned.u32 32;",
    "mbarrier.arrive.shared::cluster.b64 _, [%r0];",
])  # fmt: skip
def test_what_no_barrier_is_is_refused(text: str) -> None:
    with pytest.raises(ptx.NotUnderstood):
        run(text)


def test_registers_are_given_by_whole_warps() -> None:
    run("setmaxnreg.dec.sync.aligned.u32 24;", 128)
    told = fails(f"{FIRST} @%p0 setmaxnreg.dec.sync.aligned.u32 24;", 128)
    assert told.startswith("partial warp: setmaxnreg")
