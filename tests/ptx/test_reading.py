"""
Reading a kernel: no garbage is searched for meanwhile, and the collector is left as it was; what
was read is let go when it is asked.
"""

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from attnverify.backends.array_libraries import array_library
from attnverify.backends.machine import Machine
from attnverify.ptx.kernel import forget_kernels, load
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


def test_kernels_are_let_go_and_read_again() -> None:
    module = load(TEXT.format(body=""))
    kernel = weakref.ref(module["adding"])
    assert kernel() is module["adding"]
    forget_kernels()
    gc.collect()
    assert kernel() is None
    assert len(module["adding"].steps) == 1


def test_a_backend_on_the_machine_lets_go_of_its_kernels() -> None:
    module = load(TEXT.format(body=""))
    kernel, told = weakref.ref(module["adding"]), list[str]()
    library = replace(array_library("numpy"), forget=lambda: told.append("its own"))
    Machine(90, "torch").forgetting(library).forget()
    gc.collect()
    assert kernel() is None and told == ["its own"]


SCOPES = """
mov.u32 %r1, 1;
{
.reg .b64 %r1;
mov.u64 %r1, 2;
}
mov.u32 %r1, 3;
"""


def test_a_name_means_the_register_of_the_innermost_scope_that_is_open() -> None:
    program = load(TEXT.format(body=SCOPES))["adding"].program
    sizes = [each.operands[0].size for each in program.instructions if each.name == "mov"]  # type: ignore[union-attr]
    assert sizes == [4, 8, 4]


CIRCLE = ".reg .b16 %h<3>;\nadd.f16 %h1, %h2, %h2;"
"""Its closure knows the kernel."""


def test_what_is_frozen_is_let_go_though_nobody_searches_for_it() -> None:
    module = load(TEXT.format(body=CIRCLE))
    assert module["adding"].steps
    step, kernel = weakref.ref(module["adding"].steps[0]), weakref.ref(module["adding"])
    forget_kernels()
    assert step() is None and kernel() is None
