"""Bugs planted in kernels in CUDA C++: each is seen, none of their repaired twins is accused."""

import pytest

from attnverify import ptx
from attnverify.ptx.launchers.nvrtc import compile_source
from tests.ptx.planted.locks import LOCKS
from tests.ptx.planted.memory import MEMORY
from tests.ptx.planted.table import Bug, Kernel

KERNELS = LOCKS + MEMORY
BUGS = [(kernel, bug) for kernel in KERNELS for bug in kernel.bugs]


def launch(kernel: Kernel, source: str, **settings: object) -> list[object]:
    given = kernel.arguments()
    compiled = compile_source(source, kernel.options)["k"]
    compiled.launch(kernel.grid, kernel.threads, given, **{**kernel.settings, **settings})
    return given


def line_of(source: str, place: ptx.Place | None) -> str:
    assert place is not None and place.source is not None
    return source.splitlines()[place.source.line - 1]


@pytest.mark.parametrize("lanes", [64, 512, 4096])
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_no_right_kernel_is_accused(kernel: Kernel, lanes: int) -> None:
    kernel.answer(launch(kernel, kernel.source, lanes=lanes, seed=lanes))


@pytest.mark.parametrize(("kernel", "bug"), BUGS, ids=lambda each: each.name)
def test_a_planted_bug_is_seen(kernel: Kernel, bug: Bug) -> None:
    assert kernel.source.count(bug.right) == 1
    source = kernel.source.replace(bug.right, bug.wrong)
    with pytest.raises(ptx.Finding) as raised:
        launch(kernel, source, timeout=60)
    found = raised.value
    assert found.kind == bug.kind, str(found)
    assert bug.at in line_of(source, found.place), str(found)
    if bug.other:
        assert bug.other in line_of(source, found.other), str(found)
