"""Reading a kernel: no garbage is searched for meanwhile, and the collector is left as it was."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from attnverify.ptx.kernel import load
from attnverify.ptx.text.collection import uncollected

MANY = 4000
TEXT = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry adding()
{{
.reg .b32 %r<3>;
{body}
ret;
}}
"""


@contextmanager
def collections() -> Iterator[list[str]]:
    """The searches that begin meanwhile."""
    begun: list[str] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            begun.append(phase)

    gc.callbacks.append(note)
    try:
        yield begun
    finally:
        gc.callbacks.remove(note)


def test_a_long_kernel_is_read_without_a_search_for_garbage() -> None:
    module = load(TEXT.format(body="add.u32 %r1, %r1, 1;\n" * MANY))
    with collections() as begun:
        assert len(module["adding"].steps) == MANY + 1
    assert gc.isenabled() and len(begun) <= 2  # what was counted meanwhile begins one afterwards


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_left_as_it_was(enabled: bool) -> None:
    def fail() -> None:
        assert not gc.isenabled()
        raise KeyError

    try:
        if not enabled:
            gc.disable()
        with pytest.raises(KeyError):
            uncollected(fail)()
        assert gc.isenabled() == enabled
    finally:
        gc.enable()
