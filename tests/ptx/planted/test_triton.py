"""Bugs planted in Triton kernels: each is seen, none of their repaired twins is accused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from attnverify import ptx
from attnverify.ptx.launchers.triton import on_machine
from tests.ptx.planted import triton_kernels as kernels

Run = Callable[[str], Any]


def locked_sum(bug: str) -> bool:
    x = torch.randint(-99, 99, (24, 100)).float()  # sums in any order are exact
    total, lock = torch.zeros(100), torch.zeros(1, dtype=torch.int32)
    kernels.locked_sum[(24,)](x, total, lock, 100, bug, 128)
    return torch.equal(total, x.sum(0))


def poll(bug: str) -> bool:
    flag, out = torch.zeros(9, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    kernels.poll_plainly[(9,)](flag, out, bug)
    return int(out) == 45


def masked_copy(bug: str) -> bool:
    x, y = torch.randn(300), torch.zeros(300)
    kernels.masked_copy[(3,)](x, y, 300, bug, 128)
    return torch.equal(x, y)


def row_maximum(bug: str) -> bool:
    x = torch.randn(5, 60)
    wanted = x[:4] - x[:4].max(1, keepdim=True).values
    kernels.row_maximum[(4,)](x, 60, bug, 64)
    return torch.equal(x[:4], wanted)


def add_of_pointers(bug: str) -> bool:
    given = [torch.randn(100) for _ in range(3)]
    before = [x.clone() for x in given]
    pointers = torch.tensor([x.data_ptr() for x in given])
    if bug == "no array":
        pointers[1] = 12345 << 20
    kernels.add_of_pointers[(3,)](pointers, 100, bug, 128)
    return all(torch.equal(x, y + 1) for x, y in zip(given, before, strict=True))


BUGS: list[tuple[Run, str, str, str]] = [
    (locked_sum, "no lock", "race", "tl.store(total"),
    (locked_sum, "opened without order", "race", "tl.load(total"),
    (locked_sum, "never opened", "deadlock", "tl.atomic_cas"),
    (poll, "no order", "race", "tl.load(out)"),
    (poll, "one is left out", "deadlock", "tl.atomic_add"),
    (masked_copy, "load too far", "out of bounds", "tl.load"),
    (masked_copy, "store too far", "out of bounds", "tl.store"),
    (masked_copy, "all at once", "race", "tl.store"),
    (add_of_pointers, "one too many", "out of bounds", "tl."),
    (add_of_pointers, "no array", "out of bounds", "tl."),
    (row_maximum, "two programs a row", "race", "tl."),
    (row_maximum, "in place of another row", "race", "tl."),
]


@pytest.mark.parametrize("target", [80, 90])
@pytest.mark.parametrize("run", dict.fromkeys(run for run, *_ in BUGS))
@pytest.mark.parametrize("lanes", [128, 4096])
def test_no_right_kernel_is_accused(run: Run, target: int, lanes: int) -> None:
    with on_machine(target, lanes=lanes, timeout=60):
        assert run("")


@pytest.mark.parametrize(("run", "bug", "kind", "at"), BUGS)
def test_a_planted_bug_is_seen(run: Run, bug: str, kind: str, at: str) -> None:
    with on_machine(90, timeout=60), pytest.raises(ptx.Finding) as raised:
        run(bug)
    found = raised.value
    assert found.kind == kind, str(found)
    source = found.place.source
    assert source is not None
    with open(source.file) as file:
        assert at in file.read().splitlines()[source.line - 1], str(found)
