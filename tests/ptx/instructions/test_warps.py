"""What threads do together, and where they go: shuffles, votes, branches, barriers."""

from collections.abc import Callable

import numpy as np
import pytest

from attnverify import ptx
from attnverify.ptx.launchers.nvrtc import compile_source
from tests.ptx.small import apply, kernel, numbers_of

LANES = list(range(32))
FULL = "0xFFFFFFFF"


def shuffled(mode: str, lane: int, by: int, bound: int) -> tuple[int, bool]:
    """The lane that is read, as the ISA writes it."""
    by, clamp, mask = by & 31, bound & 31, bound >> 8 & 31
    most, least = (lane & mask) | (clamp & ~mask), lane & mask
    source = {"up": lane - by, "down": lane + by, "bfly": lane ^ by, "idx": least | (by & ~mask)}[
        mode
    ]
    inside = source >= most if mode == "up" else source <= most
    return (source if inside else lane), inside


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
@pytest.mark.parametrize("bound", [0x1F, 0x00, 0x181F, 0x1C1F, 0x1C00, 0x1807])
def test_shuffles_read_the_lane_that_the_isa_says(mode: str, bound: int) -> None:
    values = numbers_of("b32", 64)
    by = [lane * 7 % 32 if mode == "idx" else 5 for lane in range(64)]
    found, inside = apply(
        f"shfl.sync.{mode}.b32 %d0|%d1, %a, %b, %c, {FULL};",
        ["b32", "pred"],
        ("b32", values),
        ("b32", by),
        ("b32", [bound] * 64),
    )
    for thread in range(64):
        source, within = shuffled(mode, thread % 32, by[thread], bound)
        assert (int(found[thread]), bool(inside[thread])) == (
            values[thread // 32 * 32 + source],
            within,
        )


def test_votes_ask_every_lane() -> None:
    asked = [1] * 32 + [0] * 32 + [int(lane % 3 == 0) for lane in LANES]
    told = {
        mode: apply(f"vote.sync.{mode}.pred %d, %a, {FULL};", "pred", ("pred", asked))
        for mode in ("all", "any", "uni")
    }
    assert {mode: [int(found[at]) for at in (0, 32, 64)] for mode, found in told.items()} == {
        "all": [1, 0, 0],
        "any": [1, 0, 1],
        "uni": [1, 1, 0],
    }
    ballot = apply(f"vote.sync.ballot.b32 %d, %a, {FULL};", "b32", ("pred", asked))
    assert [int(ballot[at]) for at in (0, 32, 64)] == [
        2**32 - 1,
        0,
        sum(1 << lane for lane in LANES if lane % 3 == 0),
    ]


@pytest.mark.parametrize(
    ("name", "kind", "model"),
    [
        ("add", "u32", lambda x: sum(x) % 2**32),
        ("min", "u32", min),
        ("max", "u32", max),
        ("and", "b32", lambda x: np.bitwise_and.reduce(x)),
        ("or", "b32", lambda x: np.bitwise_or.reduce(x)),
        ("xor", "b32", lambda x: np.bitwise_xor.reduce(x)),
    ],
)
def test_reductions_over_a_warp(name: str, kind: str, model: Callable[[list[int]], int]) -> None:
    values = numbers_of("b32", 64)
    found = apply(f"redux.sync.{name}.{kind} %d, %a, {FULL};", kind, (kind, values))
    assert [int(d) for d in found] == [
        int(model(values[at : at + 32])) for at in (0, 32) for _ in LANES
    ]


def test_signed_reductions_know_negative_numbers() -> None:
    values = [2**32 - lane for lane in LANES[1:]] + [5]
    assert (
        int(apply(f"redux.sync.min.s32 %d, %a, {FULL};", "s32", ("s32", values))[0]) == 2**32 - 31
    )
    assert int(apply(f"redux.sync.max.s32 %d, %a, {FULL};", "s32", ("s32", values))[0]) == 5


def test_equal_values_are_matched() -> None:
    values = [lane % 4 for lane in LANES] + [9] * 32
    found = apply(f"match.any.sync.b32 %d, %a, {FULL};", "b32", ("b32", values))
    assert [int(d) for d in found[:32]] == [
        sum(1 << other for other in LANES if other % 4 == lane % 4) for lane in LANES
    ]
    together, all_ = apply(
        f"match.all.sync.b32 %d0|%d1, %a, {FULL};", ["b32", "pred"], ("b32", values)
    )
    assert (int(together[0]), int(all_[0]), int(together[32]), int(all_[32])) == (
        0,
        0,
        2**32 - 1,
        1,
    )


def test_one_lane_is_elected_and_all_are_active() -> None:
    lane, elected = apply(f"elect.sync %d0|%d1, {FULL};", ["b32", "pred"], ("b32", LANES))
    assert set(lane) == {0} and [int(p) for p in elected] == [1] + [0] * 31
    assert set(apply("activemask.b32 %d;", "b32", ("b32", LANES))) == {2**32 - 1}


BRANCHED = """
.reg .pred %p; .reg .b32 %t, %v, %w; .reg .b64 %o, %at;
mov.u32 %t, %tid.x; ld.param.u64 %o, [out]; mad.wide.u32 %at, %t, 4, %o;
setp.lt.u32 %p, %t, 16;
"""


def run(body: str, threads: int = 32, **settings: object) -> np.ndarray:
    out = np.zeros(threads, np.uint32)
    kernel(BRANCHED + body, [".u64 out"]).launch(1, threads, [out], **settings)  # type: ignore[arg-type]
    return out


def test_half_a_warp_shuffles_among_itself() -> None:
    out = run(
        "mov.u32 %v, 0; @!%p bra END; shfl.sync.bfly.b32 %v, %t, 1, 0x1F, 0xFFFF; "
        "activemask.b32 %w; add.u32 %v, %v, %w; END: st.global.u32 [%at], %v;"
    )
    assert list(out[:16]) == [(lane ^ 1) + 0xFFFF for lane in range(16)] and not out[16:].any()


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (
            "@%p shfl.sync.bfly.b32 %v, %t, 1, 0x1F, 0xFFFFFFFF; st.global.u32 [%at], %v;",
            "names other threads",
        ),
        (
            "@%p shfl.sync.idx.b32 %v, %t, 20, 0x1F, 0xFFFF; st.global.u32 [%at], %v;",
            "a lane that is not here",
        ),
        ("@%p bar.warp.sync 0xFFFFFFFF;", "names other threads"),
        ("@%p bar.sync 0;", "a barrier is for all threads of a warp"),
    ],
)
def test_a_partial_warp_is_told(body: str, told: str) -> None:
    with pytest.raises(ptx.Finding, match=told) as raised:
        run(body)
    assert raised.value.kind == "partial warp" and raised.value.place.thread == (0, 0, 0)


def test_threads_part_and_join_again() -> None:
    body = """
    @%p bra LOW; mov.u32 %v, 2; bra.uni JOIN;
    LOW: mov.u32 %v, 1;
    JOIN: activemask.b32 %w; and.b32 %w, %w, 1; mad.lo.u32 %v, %v, 10, %w;
    st.global.u32 [%at], %v;"""
    assert list(run(body)) == [11] * 16 + [21] * 16


def test_loops_run_as_often_as_each_thread_wants() -> None:
    body = (
        "mov.u32 %v, 0; AGAIN: add.u32 %v, %v, 3; sub.u32 %t, %t, 1; setp.ge.s32 %p, %t, 0; "
        "@%p bra AGAIN; st.global.u32 [%at], %v;"
    )
    assert list(run(body)) == [3 * (lane + 1) for lane in LANES]


LAID_OUT = {
    "a side": (
        "bra.uni START; LOW: mov.u32 %v, 1; JOIN: bar.sync 0; bra.uni END; "
        "START: @%p bra LOW; mov.u32 %v, 2; bra.uni JOIN;",
        [1] * 16 + [2] * 16,
    ),
    "a side in a loop": (
        "bra.uni HEAD; LOW: add.u32 %v, %v, 1; NEXT: bar.sync 0; add.u32 %w, %w, 1; "
        "setp.lt.u32 %q, %w, 3; @%q bra HEAD; bra.uni END; "
        "HEAD: @%p bra LOW; add.u32 %v, %v, 2; bra.uni NEXT;",
        [3] * 16 + [6] * 16,
    ),
    "what follows a loop": (
        "bra.uni HEAD; OUT: bar.sync 0; bra.uni END; HEAD: add.u32 %v, %v, 3; sub.u32 %t, %t, 1; "
        "setp.ge.s32 %q, %t, 0; @%q bra HEAD; bra.uni OUT;",
        [3 * (lane + 1) for lane in LANES],
    ),
}
"""Texts with a branch back to what is no loop, as LLVM lays them out; a barrier where ways meet."""


@pytest.mark.parametrize("what", LAID_OUT)
def test_ways_meet_wherever_the_text_has_them(what: str) -> None:
    body, wanted = LAID_OUT[what]
    begin = ".reg .pred %q; mov.u32 %v, 0; mov.u32 %w, 0; "
    assert list(run(f"{begin}{body} END: st.global.u32 [%at], %v;")) == wanted


def test_instructions_go_in_the_order_of_the_text_where_ways_meet_in_it() -> None:
    body = "AGAIN: sub.u32 %t, %t, 1; @%p bra ON; mov.u32 %v, 1; ON: @!%p bra AGAIN;"
    found = kernel(BRANCHED + body, [".u64 out"])
    assert found.ranks == [*range(found.last + 2)]


def test_threads_that_have_ended_write_nothing() -> None:
    assert list(run("@%p exit; mov.u32 %v, 7; st.global.u32 [%at], %v;")) == [0] * 16 + [7] * 16


def test_labels_and_registers_live_in_their_scopes() -> None:
    part = "{ .reg .b32 %x; mov.u32 %x, 5; @%p bra SKIP; mov.u32 %x, 6; SKIP: add.u32 %v, %v, %x; }"
    assert (
        list(run(f"mov.u32 %v, 0; {part} {part} st.global.u32 [%at], %v;")) == [10] * 16 + [12] * 16
    )


def test_a_kernel_without_an_end_is_stopped() -> None:
    with pytest.raises(ptx.Finding, match="still running") as raised:
        run("AGAIN: add.u32 %v, %t, 1; bra AGAIN;", longest=1000)
    assert raised.value.kind == "endless"


def test_a_trap_is_told() -> None:
    with pytest.raises(ptx.Finding, match="stops itself"):
        run("@%p trap;")


EXCHANGE = """
.shared .align 4 .b8 room[512];
.reg .b32 %s, %n; mov.u32 %s, room; mad.lo.u32 %n, %t, 4, %s; st.shared.u32 [%n], %t;
{barrier}
xor.b32 %n, %t, 64; mad.lo.u32 %n, %n, 4, %s; ld.shared.u32 %v, [%n]; st.global.u32 [%at], %v;
"""


@pytest.mark.parametrize(
    "barrier",
    [
        "bar.sync 0;",
        "barrier.sync.aligned 3;",
        "bar.sync 1, 128;",
        "barrier.cta.sync 0, 128;",
        "bar.cta.sync 2;",
    ],
)
def test_a_barrier_lets_warps_see_each_other(barrier: str) -> None:
    assert list(run(EXCHANGE.replace("{barrier}", barrier), 128)) == [
        thread ^ 64 for thread in range(128)
    ]


def test_barriers_of_warps_that_took_different_ways_meet() -> None:
    split = "setp.lt.u32 %p, %t, 64; @%p bra LOW; bar.sync 0; bra DONE; LOW: bar.sync 0; DONE:"
    assert list(run(EXCHANGE.replace("{barrier}", split), 128)) == [
        thread ^ 64 for thread in range(128)
    ]


def test_a_barrier_that_some_warps_never_reach_is_a_deadlock() -> None:
    with pytest.raises(
        ptx.Finding,
        match="64 threads of a block wait at barrier 0, which 128 must reach; "
        "64 of the block have ended",
    ) as raised:
        run("setp.lt.u32 %p, %t, 64; @%p exit; bar.sync 0;", 128)
    assert raised.value.kind == "deadlock" and raised.value.place.instruction == "bar.sync 0"


def test_two_barriers_that_wait_for_each_other_are_a_deadlock() -> None:
    with pytest.raises(ptx.Finding) as raised:
        run(
            "setp.lt.u32 %p, %t, 64; @%p bra LOW; bar.sync 1; bra DONE; LOW: bar.sync 2; DONE:", 128
        )
    assert raised.value.kind == "deadlock"


def test_threads_and_blocks_are_numbered_along_three_axes() -> None:
    body = """
    .reg .b32 %x<13>; .reg .b64 %o, %at;
    mov.u32 %x0, %tid.x; mov.u32 %x1, %tid.y; mov.u32 %x2, %tid.z; mov.u32 %x3, %ctaid.x;
    mov.u32 %x4, %ctaid.y; mov.u32 %x5, %ctaid.z;
    mov.u32 %x6, %ntid.x; mov.u32 %x7, %ntid.y; mov.u32 %x8, %nctaid.x; mov.u32 %x9, %nctaid.y;
    mad.lo.u32 %x10, %x2, %x7, %x1; mad.lo.u32 %x10, %x10, %x6, %x0;
    mad.lo.u32 %x11, %x5, %x9, %x4; mad.lo.u32 %x11, %x11, %x8, %x3;
    mad.lo.u32 %x11, %x11, 60, %x10;
    ld.param.u64 %o, [out]; mad.wide.u32 %at, %x11, 4, %o; st.global.u32 [%at], %x11;"""
    out = np.full(60 * 12, 9999, np.uint32)
    kernel(body, [".u64 out"]).launch((2, 3, 2), (5, 4, 3), [out])
    assert np.array_equal(out, np.arange(60 * 12))


def test_masks_of_lanes() -> None:
    for name, model in (
        ("eq", lambda n: 1 << n),
        ("lt", lambda n: (1 << n) - 1),
        ("ge", lambda n: 2**32 - (1 << n)),
        ("gt", lambda n: 2**32 - (2 << n)),
    ):
        assert [int(x) for x in run(f"mov.u32 %v, %lanemask_{name}; st.global.u32 [%at], %v;")] == [
            model(lane) for lane in LANES
        ]


def test_what_the_machine_does_not_have_is_refused() -> None:
    for body in (
        "bar.arrive 0;",
        "mov.u32 %v, %smid;",
        "call foo;",
        "mapa.u64 %o, %o, 1;",
        "fence.proxy.alias;",
    ):
        with pytest.raises(
            ptx.NotUnderstood, match=body.split()[0].replace(".", r"\.").rstrip(";")
        ):
            run(body)


VOTES = """
bar.red.popc.u32 %r, 0, %p; st.global.b32 [%o], %r;
barrier.cta.red.and.aligned.pred %q, 1, !%p; selp.b32 %r, 1, 0, %q; st.global.b32 [%o+4], %r;
bar.red.or.pred %q, 2, 96, %p; selp.b32 %r, 1, 0, %q; st.global.b32 [%o+8], %r;
"""


@pytest.mark.parametrize("lanes", [96, 4096])
def test_barriers_tell_how_many_threads_said_yes(lanes: int) -> None:
    body = (
        ".reg .pred %p, %q; .reg .b32 %t, %b, %r; .reg .b64 %o, %w; ld.param.u64 %o, [out]; "
        "mov.u32 %t, %tid.x; mov.u32 %b, %ctaid.x; mad.lo.u32 %r, %b, 96, %t; "
        "mad.wide.u32 %o, %r, 12, %o; shl.b32 %b, %b, 5; setp.lt.u32 %p, %t, %b; "
    )
    out = np.zeros((4, 96, 3), np.uint32)
    kernel(body + VOTES, [".u64 out"]).launch(4, 96, [out], lanes=lanes)
    for block in range(4):  # 0, 32, 64, 96 threads say yes
        assert (out[block] == [32 * block, block == 0, block > 0]).all()


def test_a_vote_that_not_all_reach_is_a_deadlock() -> None:
    body = (
        ".reg .pred %p; .reg .b32 %t, %r; mov.u32 %t, %tid.x; setp.lt.u32 %p, %t, 32; "
        "@%p bar.red.popc.u32 %r, 0, %p;"
    )
    with pytest.raises(ptx.Finding, match="32 threads of a block wait at barrier 0, which 64"):
        kernel(body).launch(1, 64, [])


WAYS = """
WAYS: .branchtargets THIRD, FIRST, SECOND;
@%p brx.idx %a, WAYS;
mov.u32 %d, 7; bra END;
FIRST: mov.u32 %d, 10; bra END;
SECOND: mov.u32 %d, 20; bra END;
THIRD: mov.u32 %d, 30;
END:
"""


def test_a_number_chooses_where_a_thread_goes_on() -> None:
    ways = f"setp.ne.u32 %p, %a, 3; {WAYS}"
    assert list(apply(ways, "b32", ("b32", [0, 1, 2, 3, 0]))) == [30, 10, 20, 7, 30]
    assert list(apply(ways, "b32", ("b32", [2] * 40))) == [20] * 40


def test_a_way_that_is_not_there_is_told() -> None:
    with pytest.raises(ptx.Finding, match="a branch to a label of 3 that is not there"):
        apply(f"setp.ne.u32 %p, %a, 9; {WAYS}", "b32", ("b32", [1, 3]))


def test_clocks_go_forward() -> None:
    text = "mov.u64 %e, %clock64; mov.u32 %d, %a; mov.u64 %c, %clock64; sub.u64 %d1, %c, %e;"
    found = apply(
        f"mov.u32 %d0, %clock; {text.replace('%d,', '%d0,')}",
        ["b32", "b64"],
        *(("b32", [1]), ("b32", [1]), ("b64", [0]), ("b64", [0])),
    )
    assert int(found[1][0]) > 0


GROUPS = """
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;
extern "C" __global__ void k(const int *label, const int *x, int *most, int *sum, unsigned *who) {
  int i = threadIdx.x;
  unsigned same = __match_any_sync(0xffffffff, label[i]);
  who[i] = __ballot_sync(same, x[i] > 3);
  sum[i] = __reduce_add_sync(same, x[i]) + __shfl_sync(same, x[i], __ffs(same) - 1);
  auto group = cg::labeled_partition(cg::coalesced_threads(), label[i]);
  most[i] = cg::reduce(group, x[i], cg::greater<int>());
}"""


def test_groups_of_a_warp_come_to_one_instruction_with_masks_of_their_own() -> None:
    """cuda-samples' calculateMaxInEachBuckets: each thread names those of its own label."""
    random = np.random.default_rng(0)
    label, x = (random.integers(0, most, 64).astype(np.int32) for most in (5, 9))
    most, sums, who = np.zeros(64, np.int32), np.zeros(64, np.int32), np.zeros(64, np.uint32)
    compile_source(GROUPS, ("-std=c++17",))["k"].launch(1, 64, [label, x, most, sums, who])
    for lane in range(64):
        base = lane // 32 * 32
        group = base + np.flatnonzero(label[base : base + 32] == label[lane])
        assert most[lane] == x[group].max()
        assert sums[lane] == x[group].sum() + x[group[0]]
        assert who[lane] == sum(1 << int(each - base) for each in group if x[each] > 3)


def test_a_group_that_names_a_thread_of_another_is_told() -> None:
    text = """.reg .b32 %t, %m, %r; .reg .pred %p; mov.u32 %t, %tid.x; setp.lt.u32 %p, %t, 16;
    selp.b32 %m, 0x1FFFF, 0xFFFF0000, %p; redux.sync.add.s32 %r, %t, %m;"""
    with pytest.raises(ptx.Finding, match="names other threads of the warp than are here: 0x1ffff"):
        kernel(text).launch(1, 32, [])


def test_groups_elect_and_wait_each_for_themselves() -> None:
    text = """.reg .b32 %t, %m, %r, %e; .reg .b64 %o; .reg .pred %p, %q; mov.u32 %t, %tid.x;
    ld.param.u64 %o, [o]; setp.lt.u32 %p, %t, 16; selp.b32 %m, 0xFFFF, 0xFFFF0000, %p;
    bar.warp.sync %m; elect.sync %r|%q, %m; mad.wide.u32 %o, %t, 4, %o; st.global.u32 [%o], %r;"""
    out = np.zeros(32, np.uint32)
    kernel(text, [".u64 o"]).launch(1, 32, [out])
    assert out.tolist() == [0] * 16 + [16] * 16
