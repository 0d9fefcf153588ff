"""
Loads, stores, copies and atomic operations: what they do, and every way in which the machine tells
that they are wrong.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from attnverify import ptx
from attnverify.ptx.storage import shadows
from attnverify.ptx.storage.device import Memory, edge_of
from tests.ptx.small import kernel

START = """
.reg .pred %p, %q; .reg .b16 %h<4>; .reg .b32 %t, %v, %w, %x<8>;
    .reg .b64 %in, %out, %at, %to, %y<4>;
mov.u32 %t, %tid.x; ld.param.u64 %in, [in]; ld.param.u64 %out, [out];
mad.wide.u32 %at, %t, 4, %in; mad.wide.u32 %to, %t, 4, %out;
"""
POINTERS = [".u64 in", ".u64 out"]


def run(
    body: str, given: Any = None, threads: int = 32, grid: int = 1, size: int = 0, **settings: Any
) -> np.ndarray:
    given = np.arange(100, 164, dtype=np.uint32) if given is None else given
    out = np.zeros(size or threads * grid, np.uint32)
    kernel(START + body, POINTERS).launch(grid, threads, [given, out], **settings)
    return out


def finding_of(body: str, given: Any = None, **settings: Any) -> ptx.Finding:
    with pytest.raises(ptx.Finding) as raised:
        run(body, given, **settings)
    return raised.value


def test_an_array_begins_where_a_gpu_would_have_it() -> None:
    """Where NumPy happens to find room says nothing; where a view begins in its array does."""
    made = [np.zeros(64, np.float16) for _ in range(200)]
    assert len({x.__array_interface__["data"][0] % 256 for x in made}) > 1
    assert {edge_of(x) for x in made} == {0}
    assert edge_of(made[0][3:]) == 6 and edge_of(made[0].reshape(8, 8)[2:, 1:]) == 34
    held = bytearray(600)
    outside = np.frombuffer(held, np.uint8)
    assert edge_of(outside[5:]) == (outside.__array_interface__["data"][0] + 5) % 256


# what they do


def test_vectors_are_loaded_and_stored_in_order() -> None:
    body = (
        "mad.wide.u32 %at, %t, 16, %in; mad.wide.u32 %to, %t, 16, %out; "
        "ld.global.v4.u32 {%x0,%x1,%x2,%x3}, [%at]; st.global.v4.b32 [%to], {%x3,%x2,%x1,%x0};"
    )
    out = run(body, threads=8, size=32)
    assert list(out) == [100 + 4 * (i // 4) + 3 - i % 4 for i in range(32)]


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [("u8", 0x85), ("s8", 0xFFFFFF85), ("u16", 0x9385), ("s16", 0xFFFF9385), ("b8", 0x85)],
)
def test_narrow_loads_fill_wide_registers(kind: str, wanted: int) -> None:
    assert (
        run(
            f"ld.global.{kind} %v, [%in]; st.global.u32 [%to], %v;",
            np.array([0x93859385], np.uint32),
        )[0]
        == wanted
    )


def test_narrow_stores_take_the_low_bits() -> None:
    out = run(
        "mov.u32 %v, 0x12345678; cvt.u64.u32 %y0, %t; add.u64 %y0, %y0, %out; "
        "st.global.b8 [%y0], %v;",
        threads=4,
        size=1,
    )
    assert out[0] == 0x78787878


def test_masked_loads_leave_other_lanes_alone() -> None:
    out = run(
        "mov.u32 %v, 7; setp.lt.u32 %p, %t, 5; @%p ld.global.u32 %v, [%at]; "
        "st.global.u32 [%to], %v;"
    )
    assert list(out) == [100, 101, 102, 103, 104] + [7] * 27


def test_local_memory_belongs_to_one_thread() -> None:
    body = (
        ".local .align 4 .b8 own[16]; mov.u64 %y0, own; cvta.local.u64 %y1, %y0; "
        "st.local.u32 [%y0+8], %t; ld.u32 %v, [%y1+8]; st.global.u32 [%to], %v;"
    )
    assert list(run(body)) == list(range(32))


def test_parameters_are_read_by_constant_and_by_computed_offsets() -> None:
    body = """.reg .b32 %v<3>; .reg .b64 %o, %a; ld.param.u64 %o, [out];
    ld.param.v2.u32 {%v0, %v1}, [s+8];
    mov.u64 %a, s; ld.param.u32 %v2, [%a+4]; st.global.u32 [%o], %v0; st.global.u32 [%o+4], %v1;
    st.global.u32 [%o+8], %v2;"""
    out = np.zeros(3, np.uint32)
    kernel(body, [".u64 out", ".align 8 .b8 s[16]"]).launch(
        1, 1, [out, np.arange(1, 5, dtype=np.uint32).tobytes()]
    )
    assert list(out) == [3, 4, 2]


def test_a_parameter_is_read_where_the_lanes_at_work_say() -> None:
    """What lies in the register of a lane that does not take part is no address."""
    body = """.reg .b32 %t, %v; .reg .b64 %o, %a; .reg .pred %p;
    ld.param.u64 %o, [out]; mov.u32 %t, %tid.x; setp.eq.u32 %p, %t, 0; mov.u64 %a, 4096;
    @%p mov.u64 %a, s; WHO ld.param.u32 %v, [%a+4]; @%p st.global.u32 [%o], %v;"""
    parameters, given = [".u64 out", ".align 8 .b8 s[8]"], np.arange(1, 3, dtype=np.uint32)
    out = np.zeros(1, np.uint32)
    kernel(body.replace("WHO", "@%p"), parameters).launch(1, 32, [out, given.tobytes()])
    assert out[0] == 2
    with pytest.raises(ptx.Finding, match="a parameter beyond the last"):
        kernel(body.replace("WHO", ""), parameters).launch(1, 32, [out, given.tobytes()])


def test_variables_of_a_module_begin_as_they_are_written_and_stay() -> None:
    outside = ".const .align 4 .b32 table[3] = {5, 0x10, -1};\n.global .align 4 .u32 count = 7;"
    body = (
        ".reg .b32 %v; .reg .b64 %o; ld.param.u64 %o, [out]; ld.const.u32 %v, [table+4]; "
        "st.global.u32 [%o], %v; ld.global.u32 %v, [count]; st.global.u32 [%o+4], %v; "
        "add.u32 %v, %v, 1; st.global.u32 [count], %v;"
    )
    of, memory, out = kernel(body, [".u64 out"], outside=outside), Memory(), np.zeros(2, np.uint32)
    for wanted in (7, 8):
        of.launch(1, 1, [out], memory=memory)
        assert list(out) == [16, wanted]


def test_arrays_are_brought_back_only_where_they_were_written() -> None:
    given = np.arange(32, dtype=np.uint32)
    given.flags.writeable = False
    run("ld.global.u32 %v, [%at]; st.global.u32 [%to], %v;", given)


# out of bounds, alignment, unwritten


def test_one_element_too_far_is_out_of_bounds() -> None:
    found = finding_of(
        "ld.global.u32 %v, [%at]; st.global.u32 [%to], %v;", given=np.arange(31, dtype=np.uint32)
    )
    assert (
        found.kind == "out of bounds"
        and "4 bytes at 124 of in, which has 124 bytes" in found.message
    )
    assert found.place.thread == (31, 0, 0) and found.place.instruction == "ld.global.u32 %v, [%at]"


@pytest.mark.parametrize("away", [-4, 1 << 20, 1 << 31, 1 << 34, -(1 << 33)])
def test_whatever_the_distance_no_other_array_is_hit(away: int) -> None:
    assert (
        finding_of(f"mov.u64 %y0, {away}; add.s64 %at, %at, %y0; ld.global.u32 %v, [%at];").kind
        == "out of bounds"
    )


def test_an_offset_that_overflows_32_bits_is_out_of_bounds() -> None:
    body = (
        "mov.u32 %v, 0x40000001; mul.lo.s32 %v, %v, 8; cvt.s64.s32 %y0, %v; "
        "mul.wide.s32 %y1, %v, 0x10000000; add.s64 %y0, %in, %y1; ld.global.u32 %v, [%y0];"
    )
    assert finding_of(body).kind == "out of bounds"


def test_a_null_pointer_is_no_array() -> None:
    found = finding_of("mov.u64 %at, 0; st.global.u32 [%at], %t;")
    assert (found.kind, "that of no array" in found.message) == ("out of bounds", True)


@pytest.mark.parametrize("address", [1 << 60, (1 << 63) + 5])
def test_generic_addresses_of_no_space_are_told(address: int) -> None:
    assert "in no space" in finding_of(f"mov.u64 %at, {address}; ld.u32 %v, [%at];").message


def test_shared_memory_has_an_end() -> None:
    found = finding_of(".shared .align 4 .b8 room[64]; shl.b32 %v, %t, 2; st.shared.u32 [%v], %t;")
    assert found.kind == "out of bounds" and found.place.thread == (16, 0, 0)


def test_local_memory_has_an_end() -> None:
    assert (
        finding_of(".local .align 4 .b8 own[16]; mov.u64 %y0, own; st.local.u32 [%y0+16], %t;").kind
        == "out of bounds"
    )


@pytest.mark.parametrize(
    "body",
    [
        "ld.global.u64 %y0, [%at];",
        "add.u64 %at, %at, 1; ld.global.u16 %h0, [%at];",
        "ld.global.v2.u32 {%x0,%x1}, [%at];",
        ".shared .align 16 .b8 room[256]; st.shared.u64 [4], %in;",
    ],
)
def test_an_address_must_be_a_multiple_of_what_is_accessed(body: str) -> None:
    assert finding_of(body).kind == "misaligned"


def test_alignment_is_that_of_the_host() -> None:
    given = np.arange(65, dtype=np.uint32)
    whole = given[1:] if given.__array_interface__["data"][0] % 16 == 0 else given[:-1]
    assert (
        finding_of("ld.global.v4.u32 {%x0,%x1,%x2,%x3}, [%in];", given=whole).kind == "misaligned"
    )


def test_memory_that_nobody_wrote_may_be_watched() -> None:
    memory, out = Memory(), np.zeros(32, np.uint32)
    room = memory.reserve(128, "scratch")
    of = kernel(
        START + "setp.lt.u32 %p, %t, 31; @%p st.global.u32 [%at], %t; ld.global.u32 %v, [%at]; "
        "st.global.u32 [%to], %v;",
        POINTERS,
    )
    with pytest.raises(ptx.Finding, match="scratch where nobody has written") as raised:
        of.launch(1, 32, [room, out], memory=memory)
    assert (raised.value.kind, raised.value.place.thread) == ("unwritten", (31, 0, 0))


def test_shared_memory_is_nan_at_the_start() -> None:
    body = ".shared .align 4 .b8 room[128]; ld.shared.f32 %v, [16]; st.global.u32 [%to], %v;"
    assert np.isnan(run(body, races=False).view(np.float32)).all()
    found = finding_of(body)
    assert (found.kind, "nobody of the block" in found.message) == ("unwritten", True)


def test_an_atomic_addition_reads_what_must_have_been_written() -> None:
    body = ".shared .align 4 .b8 room[128]; {first} atom.shared.add.u32 %v, [8], 1;"
    assert finding_of(body.replace("{first}", "")).kind == "unwritten"
    run(body.replace("{first}", "st.volatile.shared.u32 [8], 0;"))


# races


def test_warps_race_where_no_barrier_is() -> None:
    body = (
        ".shared .align 4 .b8 room[256]; shl.b32 %v, %t, 2; st.shared.u32 [%v], %t; "
        "{barrier} xor.b32 %v, %v, 128; ld.shared.u32 %w, [%v]; st.global.u32 [%to], %w;"
    )
    assert list(run(body.replace("{barrier}", "bar.sync 0;"), threads=64)) == [
        thread ^ 32 for thread in range(64)
    ]
    found = finding_of(body.replace("{barrier}", ""), threads=64)
    assert found.kind == "race" and "reads what another warp wrote" in found.message
    assert found.other is not None and found.other.instruction == "st.shared.u32 [%v], %t"


def test_a_write_races_with_a_read_before_it() -> None:
    body = (
        ".shared .align 4 .b8 room[256]; shl.b32 %v, %t, 2; xor.b32 %x0, %v, 128; "
        "st.shared.u32 [%v], 7; bar.sync 0; ld.shared.u32 %w, [%x0]; {barrier} "
        "st.shared.u32 [%v], %t;"
    )
    run(body.replace("{barrier}", "bar.sync 0;"), threads=64)
    assert (
        "writes what another warp read"
        in finding_of(body.replace("{barrier}", ""), threads=64).message
    )


def test_a_write_races_with_reads_of_several_warps_even_its_own() -> None:
    body = (
        ".shared .align 4 .b8 room[256]; st.shared.u32 [0], 7; bar.sync 0; "
        "ld.shared.u32 %w, [0]; setp.ge.u32 %p, %t, 96; "
        "@%p st.shared.u32 [0], %in_; "
    )
    body = body.replace("%in_", "%w")
    assert finding_of(body, threads=128, size=128).kind == "race"


def test_a_race_within_the_last_warp_alone_is_none() -> None:
    body = (
        ".shared .align 4 .b8 room[256]; setp.ge.u32 %p, %t, 96; @!%p exit; mov.u32 %w, 5; "
        "st.shared.u32 [0], 7; ld.shared.u32 %v, [0]; st.shared.u32 [0], %w;"
    )
    run(body, threads=128, size=128)


def test_warps_that_write_different_values_to_one_place_race() -> None:
    body = ".shared .align 4 .b8 room[256]; {value} st.shared.u32 [8], %v;"
    run(body.replace("{value}", "mov.u32 %v, 3;"), threads=64)
    told = finding_of(body.replace("{value}", "mov.u32 %v, %t;"), threads=64).message
    assert "different values to one place" in told


def test_warps_that_hold_copies_may_write_them_to_one_place() -> None:
    """As Triton has it, of sums that differ by the lane: eight warps and the same rows twice."""
    body = (
        ".shared .align 4 .b8 room[256]; and.b32 %v, %t, {lanes}; st.shared.u32 [8], %v; "
        "bar.sync 0; ld.shared.u32 %v, [8]; mad.wide.u32 %to, %t, 4, %out; st.global.u32 [%to], %v;"
    )
    found = run(body.replace("{lanes}", "31"), threads=64, replicated=True)
    assert len(set(found)) == 1 and found[0] < 32
    for lanes, replicated in (("31", False), ("63", True), ("32", True)):
        told = finding_of(body.replace("{lanes}", lanes), threads=64, replicated=replicated)
        assert "different values to one place" in told.message


def test_of_threads_of_one_warp_that_write_one_place_any_wins() -> None:
    """As in a sum over a warp whose first addition is fused: each thread's rounding is its own."""
    body = (
        ".shared .align 4 .b8 room[256]; st.shared.u32 [8], %t; ld.shared.u32 %v, [8]; "
        "mad.wide.u32 %to, %t, 4, %out; st.global.u32 [%to], %v;"
    )
    found = [run(body, seed=seed) for seed in range(20)]
    assert all(len(set(out)) == 1 and out[0] < 32 for out in found)
    assert len({int(out[0]) for out in found}) > 5


def test_bytes_of_one_word_do_not_race() -> None:
    body = (
        ".shared .align 4 .b8 room[256]; st.shared.u8 [%t], %t; ld.shared.u8 %v, [%t]; "
        "st.global.u32 [%to], %v;"
    )
    assert list(run(body, threads=64)) == list(range(64))


@pytest.mark.parametrize("first", ["st.global.u32 [%out], %v;", "ld.global.u32 %v, [%out];"])
def test_blocks_race_on_global_memory(first: str) -> None:
    body = (
        f"mov.u32 %v, 1; mov.u32 %w, %ctaid.x; setp.eq.u32 %p, %w, 0; @%p bra FIRST; "
        f"{first} exit; FIRST: st.global.u32 [%out+4], %v; st.global.u32 [%out], %w;"
    )
    found = finding_of(body, grid=2, threads=1, size=2)
    assert (found.kind, "nothing orders blocks" in found.message) == ("race", True)


SAME = "mov.u32 %v, 7; mov.u32 %w, %ctaid.x; "


@pytest.mark.parametrize("lanes", [32, 4096])
def test_blocks_that_write_the_same_number_to_one_place_do_not_race(lanes: int) -> None:
    found = run(SAME + "st.global.u32 [%out], %v; st.global.u32 [%out], %v;", grid=3, lanes=lanes)
    assert found[0] == 7
    for also in ("ld.global.u32 %v, [%out];", "st.global.u32 [%out], %w;"):
        body = f"{SAME} st.global.u32 [%out], %v; {also}"
        assert finding_of(body, grid=3, lanes=lanes).kind == "race"


@pytest.mark.parametrize("lanes", [32, 4096])
def test_blocks_race_whether_they_run_together_or_not(lanes: int) -> None:
    assert (
        finding_of("mov.u32 %v, %ctaid.x; st.global.u32 [%to], %v;", grid=3, lanes=lanes).kind
        == "race"
    )


AGAIN = (
    "mov.u32 %w, 0; AGAIN: ld.global.u32 %v, [%in]; add.u32 %w, %w, 1; setp.lt.u32 %p, %w, 50; "
    "@%p bra AGAIN; mov.u32 %w, %ctaid.x; setp.eq.u32 %p, %w, 7; "
)


@pytest.mark.parametrize("most", [1, 1 << 10, 1 << 20])
def test_a_write_races_with_reads_of_long_ago(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many are kept aside, and whether they are stamped or kept once."""
    monkeypatch.setattr(shadows, "MOST", most)
    assert finding_of(f"{AGAIN} @%p st.global.u32 [%in], %v;", grid=8).kind == "race"
    assert finding_of(f"{AGAIN} @!%p st.global.u32 [%in], %v;", grid=8).kind == "race"
    one_by_one = finding_of(f"{AGAIN} @%p st.global.u32 [%in], %v;", grid=8, lanes=32)
    assert one_by_one.kind == "race"  # what others read stays, however often the writer did
    walk = AGAIN.replace("[%in]; ", "[%at]; add.u64 %at, %at, 4; ")
    given = np.arange(100, dtype=np.uint32)
    assert finding_of(f"{walk} @%p st.global.u32 [%in+4], %v;", given, grid=8).kind == "race"


def test_reads_that_are_repeated_are_kept_once(monkeypatch: pytest.MonkeyPatch) -> None:
    marked = []
    monkeypatch.setattr(shadows, "MOST", 1 << 10)
    monkeypatch.setattr(shadows.Shadow, "mark", lambda *given: marked.append(given))
    run(AGAIN, grid=8)
    assert not marked
    run(AGAIN.replace("[%in]", "[%at]").replace(", 50", ", 3"), grid=40, threads=32)
    assert marked  # more than are kept, and all of them others


def test_atomic_operations_of_blocks_do_not_race_but_with_plain_ones() -> None:
    run("mov.u32 %v, 1; red.global.add.u32 [%out], %v;", grid=4)
    body = (
        "mov.u32 %v, %ctaid.x; setp.eq.u32 %p, %v, 0; @%p ld.global.u32 %w, [%out]; "
        "@!%p red.global.add.u32 [%out], %v;"
    )
    assert finding_of(body, grid=4).kind == "race"


def test_a_launch_comes_after_the_one_before() -> None:
    memory, of = (
        Memory(),
        kernel(START + "mov.u32 %v, %ctaid.x; st.global.u32 [%to], %v;", POINTERS),
    )
    given, out = memory.reserve(128, initialised=True), memory.reserve(128, initialised=True)
    for _ in range(2):
        of.launch(1, 32, [given, out], memory=memory)


def test_the_watch_can_be_switched_off() -> None:
    run("mov.u32 %v, %ctaid.x; st.global.u32 [%to], %v;", grid=3, races=False)


def test_volatile_accesses_are_made_to_race() -> None:
    run(
        "mov.u32 %v, 1; st.volatile.global.u32 [%out], %v; ld.relaxed.gpu.global.u32 %w, [%out];",
        grid=4,
    )


# asynchronous copies

COPY = (
    ".shared .align 16 .b8 room[512]; shl.b32 %v, %t, 2; "
    "cp.async.ca.shared.global [%v], [%at], 4{size}; {wait} ld.shared.u32 %w, [%v]; "
    "st.global.u32 [%to], %w;"
)


def copied(wait: str, size: str = "") -> str:
    return COPY.replace("{size}", size).replace("{wait}", wait)


@pytest.mark.parametrize(
    "wait", ["cp.async.wait_all;", "cp.async.commit_group; cp.async.wait_group 0;"]
)
def test_a_copy_arrives_when_it_is_waited_for(wait: str) -> None:
    assert list(run(copied(wait))) == list(range(100, 132))


@pytest.mark.parametrize(
    "wait",
    [
        "",
        "cp.async.commit_group;",
        "cp.async.commit_group; cp.async.wait_group 1;",
        "cp.async.wait_group 0;",
    ],
)
def test_a_copy_that_was_not_waited_for_is_told(wait: str) -> None:
    found = finding_of(copied(wait))
    assert (found.kind, "cp.async" in found.message) == ("not waited for", True)


def test_groups_of_copies_arrive_in_order() -> None:
    body = """.shared .align 16 .b8 room[512]; shl.b32 %v, %t, 2;
    cp.async.ca.shared.global [%v], [%at], 4; cp.async.commit_group;
    cp.async.ca.shared.global [%v+128], [%at+128], 4; cp.async.commit_group;
    cp.async.wait_group 1; ld.shared.u32 %w, [%v]; cp.async.wait_group 0;
    ld.shared.u32 %x0, [%v+128]; add.u32 %w, %w, %x0; st.global.u32 [%to], %w;"""
    assert list(run(body)) == [100 + i + 132 + i for i in range(32)]


def test_copies_fill_up_with_zeros() -> None:
    assert list(
        run(
            copied("cp.async.wait_all;", ", %x0").replace(
                "cp.async.ca", "and.b32 %x0, %t, 4; cp.async.ca"
            )
        )
    ) == [100 + i if i & 4 else 0 for i in range(32)]
    part = copied("cp.async.wait_all;", ", 2")
    assert list(run(part, np.full(32, 0x12345678, np.uint32))) == [0x5678] * 32


def test_a_copy_of_nothing_reads_nowhere() -> None:
    run(copied("cp.async.wait_all;", ", 0").replace("cp.async.ca", "mov.u64 %at, 0; cp.async.ca"))


def test_another_warp_sees_a_copy_only_behind_a_barrier() -> None:
    body = copied("cp.async.wait_all; {barrier} xor.b32 %v, %v, 128;")
    assert list(run(body.replace("{barrier}", "bar.sync 0;"), threads=64)) == [
        100 + (thread ^ 32) for thread in range(64)
    ]
    assert finding_of(body.replace("{barrier}", ""), threads=64).kind == "race"


# atomic operations


@pytest.mark.parametrize(
    ("name", "kind", "start", "model"),
    [
        ("add", "u32", 5, lambda old, x: old + x),
        ("min", "s32", 2**32 - 3, lambda old, x: old),
        ("max", "u32", 7, max),
        ("min", "u32", 7, min),
        ("and", "b32", 0xFF, lambda old, x: old & x),
        ("or", "b32", 0x100, lambda old, x: old | x),
        ("xor", "b32", 0x101, lambda old, x: old ^ x),
        ("inc", "u32", 3, lambda old, x: 0 if old >= x else old + 1),
        ("dec", "u32", 3, lambda old, x: x if old == 0 or old > x else old - 1),
        ("exch", "b32", 3, lambda old, x: x),
    ],
)
@pytest.mark.parametrize("space", ["global", "shared"])
def test_one_thread_after_the_other_updates_a_place(
    name: str, kind: str, start: int, model: Callable[[int, int], int], space: str
) -> None:
    place = "[%out]" if space == "global" else "[0]"
    body = (
        f".shared .align 4 .b8 room[16]; mov.u32 %v, {start}; st.{space}.u32 {place}, %v; "
        f"mov.u32 %v, 9; bar.warp.sync 0xFFFFFFFF; atom.{space}.{name}.{kind} %w, {place}, %v; "
        f"ld.{space}.u32 %v, {place}; st.global.u32 [%to+128], %v; st.global.u32 [%to+256], %w;"
    )
    out = run(body, size=96)
    wanted = [start]
    for _ in range(32):
        wanted.append(model(wanted[-1], 9) % 2**32)
    assert out[32] == wanted[-1] and sorted(out[64:]) == sorted(wanted[:-1])


def test_compare_and_swap_succeeds_once() -> None:
    out = run(
        "add.u32 %v, %t, 1; atom.global.cas.b32 %w, [%out], 0, %v; st.global.u32 [%to+128], %w;",
        size=64,
    )
    winner = out[0]
    assert sorted(out[32:]) == [0] + [winner] * 31 and 1 <= winner <= 32


def test_sums_of_floats_are_taken_in_a_drawn_order() -> None:
    given = (
        (np.random.default_rng(0).standard_normal(64) * 2.0 ** np.arange(64))
        .astype(np.float32)
        .view(np.uint32)
    )
    body = "ld.global.f32 %v, [%at]; red.global.add.f32 [%out], %v;"
    sums = {int(run(body, given, threads=64, seed=seed)[0]) for seed in range(6)}
    exact = given.view(np.float32).astype(np.float64).sum()
    assert len(sums) > 1 and all(
        abs(np.array(s, np.uint32).view(np.float32) / exact - 1) < 1e-5 for s in sums
    )


def test_global_sums_flush_subnormal_numbers_and_shared_ones_do_not() -> None:
    body = (
        ".shared .align 4 .b8 room[16]; mov.u32 %v, 0; st.shared.u32 [0], %v; mov.u32 %v, 1; "
        "red.{space}.add.f32 {place}, %v; ld.shared.u32 %w, [0]; st.global.u32 [%out+4], %w;"
    )
    assert (
        run(body.replace("{space}", "global").replace("{place}", "[%out]"), threads=1, size=2)[0]
        == 0
    )
    assert (
        run(body.replace("{space}", "shared").replace("{place}", "[0]"), threads=1, size=2)[1] == 1
    )


def test_vectors_and_halves_are_added() -> None:
    body = "mov.u32 %v, 0x3F800000; red.global.v2.f32.add [%out], {%v, %v};".replace(
        "v2.f32.add", "add.v2.f32"
    )
    assert list(run(body, threads=3, size=2)) == [0x40400000, 0x40400000]
    body = "mov.u32 %v, 0x3C003C00; red.global.add.noftz.f16x2 [%out], %v;"
    assert run(body, threads=4, size=1)[0] == 0x44004400
    body = "mov.b16 %h0, 0x3F80; atom.global.add.noftz.bf16 %h1, [%out], %h0;"
    assert run(body, threads=3, size=1)[0] == 0x4040


@pytest.mark.parametrize(
    "body",
    [
        "atom.global.min.f32 %v, [%out], %w;",
        "red.global.cas.f32 [%out], %v, %w;",
        "atom.shared::cluster.add.u32 %v, [%t], %w;",
        "ld.global.v8.u32 {%x0}, [%at];",
        "ld.shared::cluster.u32 %v, [%t];",
        "cp.async.bulk.shared.global [%t], [%at], 16;",
    ],
)
def test_accesses_that_are_not_modelled_are_refused(body: str) -> None:
    with pytest.raises(ptx.NotUnderstood):
        run(body)


@pytest.mark.parametrize("body", ["barrier.cluster.arrive;", "barrier.cluster.wait.aligned;"])
def test_clusters_are_refused_by_name(body: str) -> None:
    with pytest.raises(ptx.NotUnderstood, match="clusters of blocks are not executed"):
        run(body)


# arguments of a launch


@pytest.mark.parametrize(
    ("grid", "threads", "arguments", "named"),
    [
        (0, 32, 2, "grid"),
        ((1, 2, 3, 4), 32, 2, "grid"),
        (1, -1, 2, "threads"),
        (1, 2048, 2, "threads"),
        (1, 32, 1, "arguments"),
    ],
)
def test_bad_launches_name_the_argument(
    grid: Any, threads: Any, arguments: int, named: str
) -> None:
    of = kernel(START, POINTERS)
    with pytest.raises(ValueError, match=f"^{named}: wanted .*, got "):
        of.launch(grid, threads, [np.zeros(4, np.uint32)] * arguments)


def test_bad_arguments_name_the_parameter() -> None:
    of = kernel(START, POINTERS)
    with pytest.raises(ValueError, match="for in, got list"):
        of.launch(1, 1, [[1, 2], np.zeros(4)])
    with pytest.raises(ValueError, match="wanted 8 bytes for in, got 3"):
        of.launch(1, 1, [b"abc", np.zeros(4)])
    with pytest.raises(ValueError, match="in one piece"):
        of.launch(1, 1, [np.zeros((4, 4))[:, 1], np.zeros(4)])
    with pytest.raises(ValueError, match="wanted a number of 4 bytes"):
        kernel(".reg .b32 %v; ld.param.u32 %v, [n];", [".u32 n"]).launch(1, 1, [np.zeros(4)])


def test_a_kernel_that_is_not_there_is_named() -> None:
    with pytest.raises(KeyError, match="other: the module has k"):
        kernel("ret;").module["other"]


def test_threads_that_arrive_are_counted_and_go_on() -> None:
    """Of two warps one brings, the other waits: 32 that arrive and 32 that wait make 64."""
    body = (
        ".shared .align 4 .b8 room[128]; and.b32 %v, %t, 31; shl.b32 %v, %v, 2; "
        "setp.lt.u32 %p, %t, 32; @%p bra BRING; {wait} ld.shared.u32 %w, [%v]; "
        "st.global.u32 [%to], %w; bra END; BRING: st.shared.u32 [%v], %t; "
        "bar.arrive 3, {count}; END: "
    )
    right = body.replace("{wait}", "bar.sync 3, 64;")
    assert list(run(right.replace("{count}", "64"), threads=64))[32:] == list(range(32))
    assert finding_of(right.replace("{count}", "96"), threads=64).kind == "deadlock"
    assert finding_of(body.replace("{wait}", "").replace("{count}", "64"), threads=64).kind in (
        "race",
        "unwritten",
    )
