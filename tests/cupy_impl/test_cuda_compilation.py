"""
The CUDA C++ kernels compiled for GPUs that are not here, by NVRTC without a driver: a table of what
they need, and limits.

The limits, with their reasons: a thread has 255 registers, and what does not fit is spilled to its
stack, the slowest memory, in the innermost loop. Forward kernels spill nothing at widths of 64 and
128, and where relative blocks 256 wide also take masks a few bytes. Backwards, a block that is 128
wide keeps two sums of 64 numbers in each thread beside scores and their gradients, and may spill a
few bytes; one that is 256 wide keeps sums of 256 numbers, for which no thread has room. The stack
is what counts: the stores that spill stand once in every loop over steps, of which a kernel has
three. A block has 163 KiB of shared memory on sm_80, 227 KiB on sm_90.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest
from cupy.cuda import nvrtc

from attnverify.cupy_impl.cuda.kernel_configs import Instance, instance
from attnverify.cupy_impl.cuda.launch import options
from attnverify.cupy_impl.cuda.source import text
from benchmarks.machine_code.table import find_cuda_rows

ROOM = {80: 163 * 1024, 90: 227 * 1024}
FORWARD_STACK, STACK = {64: 0, 128: 0, 256: 64}, {64: 0, 128: 64, 256: 4 * 256}
"""Bytes that a thread may spill, forwards and backwards, by the width of the heads."""


@dataclass(frozen=True)
class Used:
    """What a compiled kernel needs."""

    kernel: str
    registers: int
    stack: int
    spilled: int
    shared: int


def compiled(made: Instance, arch: int) -> Iterator[Used]:
    """What every kernel of an instance needs, as the assembler says."""
    program = nvrtc.createProgram(text(made.source), made.source, [], [])
    try:
        nvrtc.compileProgram(program, [f"-arch=sm_{arch}", *options(made), "--ptxas-options=-v"])
    except nvrtc.NVRTCError:
        pytest.fail(nvrtc.getProgramLog(program)[:3000])
    assert len(nvrtc.getCUBIN(program)) > 1000
    log = nvrtc.getProgramLog(program)
    nvrtc.destroyProgram(program)
    found = re.findall(
        r"entry function '(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores.*?Used (\d+) "
        r"registers",
        log,
        re.DOTALL,
    )
    assert len(found) == len(KERNELS[made.source])
    for kernel, stack, spilled, registers in found:
        yield Used(kernel, int(registers), int(stack), int(spilled), made.shared_bytes(kernel))


def excess(used: Used, made: Instance, arch: int) -> list[str]:
    """What goes beyond a limit."""
    forward = used.kernel.endswith("forward")
    most = (FORWARD_STACK if forward else STACK)[made.width]
    found = [f"{used.stack} bytes of stack, at most {most}"] if used.stack > most else []
    found += (
        [f"{used.shared} bytes of shared memory, at most {ROOM[arch]}"]
        if used.shared > ROOM[arch]
        else []
    )
    return found


def gate(made: Instance, arch: int, record_property: Callable[[str, object], None]) -> None:
    """Tell the table (tests/conftest.py prints it), and hold the limits."""
    for used in compiled(made, arch):
        kinds = " ".join(
            kind for kind, there in (("relative", made.relative), ("masked", made.masked)) if there
        )
        line = (
            f"sm_{arch} {used.kernel:24s} {made.element:8s} width {made.width:3d} blocks "
            f"{made.own} x {made.step} {kinds:15s}: "
            f"{used.registers:3d} registers, {used.stack:4d} bytes of stack, "
            f"{used.shared / 1024:5.1f} KiB shared"
        )
        record_property("table", line)
        assert not excess(used, made, arch), used


FEW = [
    instance("attention.cu", "bfloat16", 64, True, False, True),
    instance("attention.cu", "bfloat16", 128, False, False, True),
    instance("attention.cu", "float16", 64, False, True, True),
    instance("additive.cu", "bfloat16", 64, False, True, True),
]
ALL = [
    instance(source, dtype, width, relative, masked, True)
    for source, relatives in (("attention.cu", (False, True)), ("additive.cu", (False,)))
    for dtype, width, relative, masked in product(
        ("float32", "float16", "bfloat16"), (64, 128, 256), relatives, (False, True)
    )
]


def label(made: Instance) -> str:
    kinds = "-relative" * made.relative + "-masked" * made.masked
    return f"{made.source}-{made.element}-{made.width}{kinds}"


@pytest.mark.parametrize("made", FEW, ids=label)
def test_kernels_compile_for_sm_90_within_their_limits(
    made: Instance, record_property: Callable[[str, object], None]
) -> None:
    gate(made, 90, record_property)


@pytest.mark.parametrize("made", FEW[1:2], ids=label)
def test_kernels_compile_for_sm_80_within_their_limits(
    made: Instance, record_property: Callable[[str, object], None]
) -> None:
    gate(made, 80, record_property)


@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.parametrize("arch", ROOM)
@pytest.mark.parametrize("made", ALL, ids=label)
def test_every_instance_compiles_within_its_limits(
    made: Instance, arch: int, record_property: Callable[[str, object], None]
) -> None:
    gate(made, arch, record_property)


def test_all_that_a_call_can_ask_for_is_compiled() -> None:
    assert len(set(ALL)) == len(ALL) == 54 and set(FEW) <= set(ALL)


KERNELS = {
    "attention.cu": ("forward", "backward_query", "backward_key"),
    "additive.cu": ("additive_forward", "additive_backward_query", "additive_backward_key"),
    "repair.cu": ("repair",),
    "additive_repair.cu": ("additive_repair",),
}


@pytest.mark.parametrize(
    ("source", "relative"), [("repair.cu", True), ("additive_repair.cu", False)]
)
def test_repairs_compile_for_sm_90_without_a_spill(source: str, relative: bool) -> None:
    (used,) = compiled(instance(source, "bfloat16", 64, relative, True, True), 90)
    assert (used.spilled, used.stack, used.shared) == (0, 0, 0)


@pytest.mark.parametrize("made", ALL, ids=label)
def test_every_instance_has_room_in_the_smallest_gpu(made: Instance) -> None:
    assert max(made.shared_bytes(kernel) for kernel in KERNELS[made.source]) <= min(ROOM.values())


MOST_SLOTS = {
    "CUDA, plain": {"forward": 390, "backward_query": 460, "backward_key": 665},
    "CUDA, relative": {"forward": 675, "backward_query": 1645, "backward_key": 1215},
}
"""Issue slots of a tile of 64 x 64 pairs on sm_90, bfloat16, D 64: what a change may not lose;
loops inside of a step count as often as they turn."""


@pytest.mark.parametrize("name", MOST_SLOTS)
def test_a_tile_takes_few_issue_slots(name: str) -> None:
    found = {row.name: row.issue for row in find_cuda_rows(name)}
    most = {f"{name}: {kernel}": slots for kernel, slots in MOST_SLOTS[name].items()}
    assert found.keys() == most.keys()
    assert all(found[kernel] <= most[kernel] for kernel in most), found


@pytest.mark.parametrize("change", [{"shared": 10**6}, {"stack": 8}])
def test_a_kernel_beyond_a_limit_is_noticed(change: dict[str, Any]) -> None:
    given: dict[str, Any] = {
        "kernel": "forward",
        "registers": 99,
        "stack": 0,
        "spilled": 0,
        "shared": 1000,
    }
    assert (
        excess(Used(**given), FEW[0], 90) == []
        and len(excess(Used(**given | change), FEW[0], 90)) == 1
    )


def test_tensor_cores_multiply_half_types_and_no_float32() -> None:
    for dtype, many in (("bfloat16", True), ("float32", False)):
        program = nvrtc.createProgram(text("attention.cu"), "attention.cu", [], [])
        nvrtc.compileProgram(
            program,
            [
                "-arch=compute_80",
                "-std=c++17",
                *instance("attention.cu", dtype, 64, False, False, True).defines,
            ],
        )
        assert (
            nvrtc.getPTX(program).count(b"mma.sync.aligned.m16n8k16.row.col.f32.bf16") > 20
        ) == many
        nvrtc.destroyProgram(program)
