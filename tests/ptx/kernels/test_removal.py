"""
The score of the watch: what is needed is noticed, what covers for another is noticed once that is
gone.
"""

import numpy as np
import pytest

from attnverify.ptx.findings import Finding
from attnverify.ptx.kernel import Recorded
from attnverify.ptx.removal import is_for_order, remove_each, summary
from tests.ptx.own_kernels.redundancy import explain
from tests.ptx.small import kernel

EXCHANGE = """
.shared .align 4 .b8 room[512]; .reg .b32 %t, %v, %s; .reg .b64 %o;
mov.u32 %t, %tid.x; ld.param.u64 %o, [out]; mad.wide.u32 %o, %t, 4, %o;
FIRST
shl.b32 %s, %t, 2; st.shared.u32 [%s], %t;
BARRIER
xor.b32 %s, %s, 256; ld.shared.u32 %v, [%s]; st.global.u32 [%o], %v;
LAST
"""


def recorded(**parts: str) -> Recorded:
    body = EXCHANGE
    for name in ("FIRST", "BARRIER", "LAST"):
        body = body.replace(name, parts.get(name, ""))
    calls: list[Recorded] = []
    kernel(body, [".u64 out"]).launch(1, 128, [np.zeros(128, np.uint32)], record=calls)
    return calls[0]


def outcomes(**parts: str) -> list[str]:
    return [removal.outcome for removal in remove_each(recorded(**parts))]


@pytest.mark.parametrize(
    ("parts", "wanted"),
    [
        ({"BARRIER": "bar.sync 0;"}, ["noticed"]),
        ({"BARRIER": "bar.sync 0;", "FIRST": "bar.sync 0;"}, ["idle", "noticed"]),
        ({"BARRIER": "bar.sync 0;", "LAST": "bar.sync 0;"}, ["noticed", "redundant"]),
        ({"BARRIER": "bar.sync 0; ld.shared.u32 %v, [%s]; bar.sync 0;"}, ["redundant", "noticed"]),
        ({"BARRIER": "cp.async.wait_all; bar.sync 0;"}, ["idle", "noticed"]),
    ],
)
def test_outcomes_of_removals(parts: dict[str, str], wanted: list[str]) -> None:
    assert outcomes(**parts) == wanted


def test_the_summary_counts_and_lists() -> None:
    told = summary(list(remove_each(recorded(BARRIER="bar.sync 0;", LAST="bar.sync 0;"))))
    assert "2: 1 noticed, 0 wrong, 1 redundant, 0 idle" in told
    assert "redundant: k sm_90, PTX line" in told


BEHIND = "cp.async.ca.shared.global [%s], [%o], 4; cp.async.wait_all;"


@pytest.mark.parametrize(
    ("parts", "place", "wanted"),
    [
        (
            {"BARRIER": "bar.sync 0;", "LAST": "bar.sync 0;"},
            1,
            "512 bytes before it, 0 behind it, 0 of both",
        ),
        (
            {"BARRIER": "bar.sync 0; ld.shared.u32 %v, [%s]; bar.sync 0;"},
            0,
            "512 bytes before it, 512 behind it, 512 of both, 512 of them written, by one warp",
        ),
        (
            {"BARRIER": "bar.sync 0;", "LAST": "bar.sync 0; ld.shared.u32 %v, [%s];"},
            1,
            "512 bytes before it, 512 behind it, 512 of both, only read",
        ),
        (
            {"BARRIER": "bar.sync 0;", "LAST": f"bar.sync 0; {BEHIND}"},
            2,
            "512 bytes before it, 0 behind it, 0 of both",
        ),
    ],
)
def test_what_is_redundant_is_told_with_what_lies_on_both_sides(
    parts: dict[str, str], place: int, wanted: str
) -> None:
    call = recorded(**parts)
    indices = [of.index for of in filter(is_for_order, call.kernel.program.instructions)]
    assert explain([call], [indices[place]]) == {indices[place]: wanted}


def test_what_is_needed_has_no_such_reason() -> None:
    call = recorded(BARRIER="bar.sync 0;")
    (index,) = [of.index for of in filter(is_for_order, call.kernel.program.instructions)]
    with pytest.raises(Finding, match="no barrier of the block lies between"):
        explain([call], [index])
