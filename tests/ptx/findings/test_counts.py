"""Conflicts of banks and sectors, counted one thread at a time."""

import numpy as np
import pytest

from attnverify import ptx
from tests.ptx.small import kernel

ROOM = np.zeros(60 << 10, np.uint8)
"""Bytes that begin at a multiple of 256, as an array of NumPy's own does on the machine."""


def turns(addresses: list[int], size: int) -> int:
    """
    The turns of one warp: a part of it (8 or 16 bytes a thread: a half or a quarter) takes as many
    as its busiest bank has different words.
    """
    parts = max(1, size // 4)
    total = 0
    for part in range(parts):
        lanes = range(part * 32 // parts, (part + 1) * 32 // parts)
        words = {
            (addresses[lane] + byte) // 4 for lane in lanes for byte in range(0, max(size, 4), 4)
        }
        total += max(sum(word % 32 == bank for word in words) for bank in range(32))
    return total


STRIDES = [0, 1, 2, 3, 4, 8, 32, 33]


@pytest.mark.parametrize("stride", STRIDES)
@pytest.mark.parametrize("size", [1, 4, 8, 16])
@pytest.mark.parametrize("space", ["shared", "global"])
def test_what_memory_is_made_to_do_is_counted(space: str, size: int, stride: int) -> None:
    vector = (
        ".v4.b32 {%r, %q, %s, %u}" if size == 16 else f".b{8 * size} {'%d' if size == 8 else '%r'}"
    )
    where = "room" if space == "shared" else "%in"
    body = f""".shared .align 16 .b8 room[40960]; .reg .b64 %in, %a, %d;
    .reg .b32 %t, %r, %q, %s, %u, %f; mov.u32 %t, %tid.x;
    ld.param.u64 %in, [in]; mul.lo.u32 %f, %t, {size * stride}; mov.u64 %a, {where};
    cvt.u64.u32 %d, %f; add.u64 %a, %a, %d; ld.{space}{vector}, [%a];"""
    counts = ptx.Counts()
    kernel(body, [".u64 in"]).launch(1, 32, [ROOM], counts=counts, races=False)
    ((_, found),) = [each for each in counts.found.items() if ", ld" in each[0][1]]
    addresses = [lane * size * stride for lane in range(32)]
    if space == "shared":
        assert found == [1, turns(addresses, size), max(1, size // 4)]
    else:
        sectors = {(at + byte) // 32 for at in addresses for byte in range(size)}
        assert found == [1, len(sectors), -(-len(set(addresses)) * size // 32)]


def test_what_is_wasted_is_told_with_its_line() -> None:
    body = """.reg .b32 %t; .reg .b64 %in, %a; ld.param.u64 %in, [in]; mov.u32 %t, %tid.x;
    mad.wide.u32 %a, %t, 64, %in; st.global.b32 [%a], %t; mad.wide.u32 %a, %t, 4, %in;
    ld.global.b32 %t, [%a];"""
    counts = ptx.Counts()
    kernel(body, [".u64 in"]).launch(2, 32, [ROOM], counts=counts, races=False)
    told = "st.global.b32: 2 requests took 64 sectors of 32 bytes, the least is 8"
    (line,) = counts.lines()
    assert line.endswith(told)
