"""
The score of the watch: what is needed is noticed, what covers for another is noticed once that is
gone.
"""

import numpy as np
import pytest

from attnverify.ptx.kernel import Recorded
from attnverify.ptx.removal import remove_each, summary
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


def outcomes(**parts: str) -> list[str]:
    body = EXCHANGE
    for name in ("FIRST", "BARRIER", "LAST"):
        body = body.replace(name, parts.get(name, ""))
    calls: list[Recorded] = []
    kernel(body, [".u64 out"]).launch(1, 128, [np.zeros(128, np.uint32)], record=calls)
    return [removal.outcome for removal in remove_each(calls[0])]


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
    calls: list[Recorded] = []
    body = (
        EXCHANGE.replace("FIRST", "")
        .replace("BARRIER", "bar.sync 0;")
        .replace("LAST", "bar.sync 0;")
    )
    kernel(body, [".u64 out"]).launch(1, 128, [np.zeros(128, np.uint32)], record=calls)
    told = summary(list(remove_each(calls[0])))
    assert "2: 1 noticed, 0 wrong, 1 redundant, 0 idle" in told
    assert "redundant: k sm_90, PTX line" in told
