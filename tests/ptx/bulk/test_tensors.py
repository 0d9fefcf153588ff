"""Boxes of tensor maps as the PTX ISA states them, element by element; and bytes in a row."""

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from attnverify import ptx
from attnverify.ptx.storage.bulk.maps import encoded
from tests.ptx.small import kernel

ROOM = 8192
HEAD = """.shared .align 1024 .b8 room[8192]; .shared .align 8 .b8 bars[8];
.reg .pred %p<9>; .reg .b32 %r<9>, %t, %c<5>; .reg .b64 %d<9>, %m, %o;
mov.u32 %t, %tid.x; ld.param.u64 %o, [out]; cvta.to.global.u64 %o, %o; setp.eq.u32 %p0, %t, 0;
mov.b64 %m, map; cvta.param.u64 %m, %m; mov.u32 %r0, bars; mov.u32 %r1, room;
"""
CORNER = "".join(f"ld.param.u32 %c{place}, [c{place}];" for place in range(5))
WAIT = "again: mbarrier.try_wait.parity.shared.b64 %p1, [%r0], 0; @!%p1 bra again;"
BEGIN = "@%p0 mbarrier.init.shared.b64 [%r0], 1; bar.sync 0;"
EXPECT = "@%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r0], BYTES;"
LOAD = (
    "@%p0 cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes "
    "[%r1], [%m, {{{corner}}}], [%r0];"
)
OUT = """mov.u32 %r2, %t; loop: mul.lo.u32 %r3, %r2, 16; setp.ge.u32 %p2, %r3, BYTES; @%p2 bra done;
add.u32 %r4, %r1, %r3; ld.shared.v4.b32 {%r5,%r6,%r7,%r8}, [%r4]; cvt.u64.u32 %d1, %r3;
add.u64 %d1, %o, %d1; st.global.v4.b32 [%d1], {%r5,%r6,%r7,%r8}; add.u32 %r2, %r2, 64; bra loop;
done:"""
PARAMETERS = [".align 64 .b8 map[128]", ".u64 out", *(f".u32 c{place}" for place in range(5))]
STORE = """fence.proxy.async.shared::cta; bar.sync 0;
@%p0 cp.async.bulk.tensor.{rank}d.global.shared::cta.bulk_group [%m, {{{corner}}}], [%r1];
cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0;"""

KINDS = {0: np.uint8, 1: np.uint16, 2: np.uint32, 3: np.int32, 4: np.uint64, 5: np.int64,
         6: np.float16, 7: np.float32, 9: np.float64, 10: ml_dtypes.bfloat16}  # fmt: skip

CASES: list[tuple[int, list[int], list[int], list[int], int, int]] = [
    (6, [40], [16], [32], 0, 0),
    (6, [40, 24], [64, 16], [-3, 10], 3, 0),
    (6, [40, 24], [32, 16], [16, -7], 2, 1),
    (7, [37, 9], [8, 8], [30, 4], 1, 0),
    (0, [50, 5, 4], [32, 4, 3], [-20, 3, 2], 0, 0),
    (10, [24, 6, 5, 3], [16, 4, 2, 2], [10, 4, -1, 2], 1, 1),
    (9, [10, 4, 3, 2, 3], [4, 2, 2, 2, 2], [8, -1, 2, 1, -1], 0, 1),
    (4, [10, 6], [16, 4], [0, 0], 3, 0),
    (3, [10, 6], [4, 4], [100, 100], 0, 0),
    (1, [64, 64], [64, 64], [0, 0], 3, 0),
    (2, [8, 8], [8, 8], [-8, 0], 1, 0),
    (5, [8, 8], [8, 8], [0, 7], 2, 0),
]
"""Element type, lengths, box, corner (innermost first), swizzling, what lies outside."""


def array_of(kind: int, lengths: list[int], random: np.random.Generator) -> tuple[Any, list[int]]:
    """An array whose strides are multiples of 16 bytes, the innermost last, with bytes between."""
    dtype = np.dtype(KINDS[kind])
    row = -(-lengths[0] * dtype.itemsize // 16) * 16 + 16
    shape = [*lengths[:0:-1], row // dtype.itemsize]
    x = np.zeros(int(np.prod(shape)) * dtype.itemsize, np.uint8)
    x[:] = random.integers(0, 60, x.size)
    x = x.view(dtype).reshape(shape)
    return x, list(x.strides[::-1][1:])


def swizzled(at: int, mode: int) -> int:
    """Swizzling modes of the PTX ISA: of 8, 4 or 2 rows of 128 bytes, the n-th joins its pieces."""
    row, piece, byte = at // 128, at % 128 // 16, at % 16
    joined = piece ^ (row % {0: 1, 1: 2, 2: 4, 3: 8}[mode])
    return row * 128 + joined * 16 + byte


def map_of(x: Any, kind: int, lengths: list[int], box: list[int], swizzle: int, fill: int) -> bytes:
    address = x.__array_interface__["data"][0]
    return encoded(
        global_address=address, rank=len(box) - 1, global_dim=lengths,
        global_stride=list(x.strides[::-1][1:]), box_dim=box, element_stride=[1] * len(box),
        elemtype=kind, swizzle_mode=swizzle, fill_mode=fill,
    )  # fmt: skip


def launched(body: str, x: Any, out: Any, given: bytes, corner: list[int], **settings: Any) -> None:
    """The map's address is that of the host: it is moved to where the array is placed."""
    memory = ptx.Memory()
    place = memory.place(x, "x")
    given = int(place.address).to_bytes(8, "little") + given[8:]
    target = memory.place(out, "out")
    numbers = [np.int32(n) for n in [*corner, 0, 0, 0, 0, 0][:5]]
    kernel(HEAD + CORNER + body, PARAMETERS).launch(
        1, 64, [given, target, *numbers], memory=memory, timeout=30, **settings
    )
    x.reshape(-1).view(np.uint8)[:] = place.contents
    out.reshape(-1).view(np.uint8)[:] = target.contents


def text(form: str, rank: int, size: int) -> str:
    corner = ",".join(f"%c{place}" for place in range(rank))
    return form.format(rank=rank, corner=corner).replace("BYTES", str(size))


def loading(rank: int, size: int) -> str:
    parts = (BEGIN, EXPECT.replace("BYTES", str(size)), text(LOAD, rank, size), WAIT)
    return "\n".join(parts) + OUT.replace("BYTES", str(size))


@pytest.mark.parametrize(("kind", "lengths", "box", "corner", "swizzle", "fill"), CASES)
def test_a_box_is_brought_element_by_element(
    kind: int, lengths: list[int], box: list[int], corner: list[int], swizzle: int, fill: int
) -> None:
    x, _ = array_of(kind, lengths, np.random.default_rng(kind))
    size = int(np.prod(box)) * x.itemsize
    out, wanted = np.zeros(ROOM, np.uint8), np.zeros(size, np.uint8)
    for place, back in enumerate(itertools.product(*(range(side) for side in box[::-1]))):
        index = [c + each for c, each in zip(corner, back[::-1], strict=True)]
        inside = all(0 <= at < length for at, length in zip(index, lengths, strict=True))
        value = x[tuple(index[::-1])].tobytes() if inside else bytes([255 * fill] * x.itemsize)
        for byte in range(x.itemsize):
            wanted[swizzled(place * x.itemsize + byte, swizzle)] = value[byte]
    given = map_of(x, kind, lengths, box, swizzle, fill)
    launched(loading(len(box), size), x, out, given, corner)
    assert out[:size].tolist() == wanted.tolist()


@pytest.mark.parametrize(("kind", "lengths", "box", "corner", "swizzle", "fill"), CASES)
@pytest.mark.parametrize("adds", [False, True])
def test_a_box_is_taken_back_element_by_element(
    kind: int, lengths: list[int], box: list[int], corner: list[int], swizzle: int, fill: int,
    adds: bool,
) -> None:  # fmt: skip
    """What came from one corner is written, or added, at another: what is outside is dropped."""
    x, _ = array_of(kind, lengths, np.random.default_rng(kind))
    if np.dtype(KINDS[kind]).kind not in "ui":
        x[...] = np.random.default_rng(9).integers(-20, 20, x.shape)  # sums are exact
    size, wanted, before = int(np.prod(box)) * x.itemsize, x.copy(), x.copy()
    target = [c + 1 for c in corner]
    adds = adds and kind not in (0, 1, 5)
    for back in itertools.product(*(range(side) for side in box[::-1])):
        source, index = ([c + each for c, each in zip(of, back[::-1], strict=True)]
                         for of in (corner, target))  # fmt: skip
        if all(0 <= at < n for at, n in zip(index, lengths, strict=True)):
            inside = all(0 <= at < n for at, n in zip(source, lengths, strict=True))
            value = before[tuple(source[::-1])] if inside else x.dtype.type(0)
            wanted[tuple(index[::-1])] = value + (before[tuple(index[::-1])] if adds else 0)
    body = loading(len(box), size).replace(OUT.replace("BYTES", str(size)), "")
    body += "".join(f"add.s32 %c{place}, %c{place}, 1;" for place in range(5))
    body += text(STORE, len(box), size)
    if adds:
        body = body.replace("cp.async.bulk.tensor", "cp.reduce.async.bulk.tensor")
        body = body.replace("cp.reduce", "cp", 1).replace(".bulk_group", ".add.bulk_group")
    launched(body, x, np.zeros(16, np.uint8), map_of(x, kind, lengths, box, swizzle, 0), corner)
    np.testing.assert_array_equal(x.view(np.uint8), wanted.view(np.uint8))


ROW = f"""{BEGIN} @%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r0], 64;
@%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%o], 64, [%r0];
{WAIT} fence.proxy.async.shared::cta; add.u64 %d2, %o, 64;
@%p0 cp.async.bulk.global.shared::cta.bulk_group [%d2], [%r1], 64; cp.async.bulk.commit_group;
cp.async.bulk.wait_group 0;"""


def test_bytes_in_a_row_are_brought_and_taken() -> None:
    out = np.zeros(128, np.uint8)
    out[:64] = np.arange(64)
    launched(ROW, np.zeros(16, np.uint8), out, bytes(128), [])
    assert out.tolist() == [*range(64)] * 2


def fails(body: str, given: dict[str, Any] | None = None, **settings: Any) -> str:
    """The first words of the finding, of a box of 32 x 16 halves of 40 x 24."""
    x, strides = array_of(6, [40, 24], np.random.default_rng(0))
    fields: dict[str, Any] = {
        "global_address": 0, "rank": 1, "global_dim": [40, 24], "global_stride": strides,
        "box_dim": [32, 16], "element_stride": [1, 1], "elemtype": 6, "swizzle_mode": 2,
    }  # fmt: skip
    with pytest.raises(ptx.Finding) as raised:
        launched(
            body, x, np.zeros(ROOM, np.uint8), encoded(**fields | (given or {})), [4, 4], **settings
        )
    return f"{raised.value.kind}: {raised.value.message}"


GOOD, SIZE = loading(2, 1024), 1024


@pytest.mark.parametrize(("given", "told"), [
    ({"rank": 2, "global_dim": [40, 24, 2], "box_dim": [32, 16, 1], "element_stride": [1] * 3},
     "tensor map: a copy in 2 dimensions by a map of 3"),
    ({"rank": 7}, "tensor map: it has 8 dimensions"),
    ({"box_dim": [64, 16]}, "tensor map: a row of its box has 128 bytes, of which 64 are swizzled"),
    ({"box_dim": [4, 16]}, "tensor map: a row of its box has 8 bytes, no multiple of 16"),
    ({"box_dim": [32, 0]}, "tensor map: its box (32, 0) has a side outside of 1 to 256"),
    ({"global_stride": [90]}, "tensor map: its strides (90,) are no multiples of 16"),
    ({"element_stride": [1, 0]}, "tensor map: an element stride is 0"),
    ({"global_dim": [0, 24]}, "tensor map: a length of (0, 24) is 0"),
    ({"elemtype": 3, "box_dim": [16, 16], "fill_mode": 1}, "tensor map: NaN fills"),
    ({"box_dim": [32, 256]}, "out of bounds: 16 bytes at 8192 of"),
    ({"global_dim": [40, 29], "box_dim": [32, 32]}, "out of bounds: 2 bytes at 2312 of x"),
])  # fmt: skip
def test_what_is_wrong_with_a_map_is_told(given: dict[str, Any], told: str) -> None:
    assert fails(GOOD, given).startswith(told)


@pytest.mark.parametrize(("right", "wrong", "told"), [
    (WAIT, "", "not waited for: a thread reads what a bulk copy brings whose mbarrier"),
    ("[%r0], 1024;", "[%r0], 512;", "deadlock: 64 threads wait for ever for the mbarrier at byte "
     "8192 of shared memory in its phase 0: missing are 0 arrivals, 512 bytes too many came"),
    ("[%r0], 1024;", "[%r0], 1040;", "deadlock: 64 threads wait for ever for the mbarrier at byte "
     "8192 of shared memory in its phase 0: missing are 0 arrivals, 16 bytes"),
    ("[%r1], [%m", "[%r1+64], [%m", "misaligned: a bulk copy at a shared address"),
    (BEGIN, BEGIN + "st.shared.u32 [%r1], %t;", "race"),
    (BEGIN, BEGIN + "@%p0 st.shared.u32 [%r1], %t;", "missing fence: no fence.proxy.async since a "
     "thread stored where this copy brings data"),
    (BEGIN, BEGIN + "add.u64 %m, %m, 16;", "misaligned: a tensor map at"),
    (BEGIN, BEGIN + "mov.u64 %m, %o;", "unwritten|tensor map"),
])  # fmt: skip
def test_what_is_wrong_with_a_copy_is_told(right: str, wrong: str, told: str) -> None:
    assert right in GOOD
    assert any(fails(GOOD.replace(right, wrong)).startswith(each) for each in told.split("|"))


FILL = "mad.lo.u32 %r3, %t, 16, %r1; st.shared.v4.b32 [%r3], {%t,%t,%t,%t};"
AWAY = FILL + text(STORE, 2, SIZE)


@pytest.mark.parametrize(("right", "wrong", "told"), [
    ("fence.proxy.async.shared::cta;", "", "missing fence: no fence.proxy.async since a thread"),
    ("bar.sync 0;", "", "race: a thread takes away what another warp wrote"),
    ("wait_group.read 0;", "wait_group.read 1;", "not waited for: a block has ended, and this"),
    ("cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0;",
     "cp.async.bulk.commit_group;" + FILL, "not waited for: a bulk copy that was not waited for"),
    ("cp.async.bulk.wait_group.read 0;", "cp.async.bulk.wait_group.read 0;" + FILL,
     "race: a thread writes what another warp read"),
    (FILL, FILL.replace("st.shared", "@%p0 st.shared"), "unwritten: a read of shared memory"),
])  # fmt: skip
def test_what_is_wrong_with_a_copy_to_an_array_is_told(right: str, wrong: str, told: str) -> None:
    assert right in AWAY
    assert fails(AWAY.replace(right, wrong)).startswith(told)


def test_a_copy_to_an_array_may_be_overwritten_when_it_was_waited_for() -> None:
    x, strides = array_of(6, [40, 24], np.random.default_rng(0))
    given = map_of(x, 6, [40, 24], [32, 16], 2, 0)
    launched(AWAY + "bar.sync 0;" + FILL, x, np.zeros(ROOM, np.uint8), given, [4, 4])


def test_maps_of_other_kinds_are_refused_by_name() -> None:
    for wrong in ({"elemtype": 11}, {"element_stride": [2, 1]}, {"interleave_layout": 1}):
        with pytest.raises(ptx.NotUnderstood, match="a tensor map"):
            fails(GOOD, wrong)
