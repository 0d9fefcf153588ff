"""The table: what every kernel costs a tile of 64 x 64 pairs in bfloat16, at one width."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from attnverify.cupy_impl.cuda import kernel_configs
from attnverify.ptx import sass
from attnverify.ptx.sass import Line
from attnverify.torch_impl.triton.kernels import block_sizes
from benchmarks.machine_code import cuda_kernels, triton_kernels
from benchmarks.machine_code.loops import (
    Loop,
    find_fast_feature_loop,
    find_feature_gradient_loop,
    find_feature_loop,
    find_pair_loop,
)

__all__ = [
    "CUDA",
    "GOALS",
    "Row",
    "find_costs",
    "find_cuda_rows",
    "find_cuda_tangent_rows",
    "find_tangent_rows",
    "find_triton_row",
]

Costs = tuple[float, float, float]
"""To issue, of the tensor cores, of the unit for exponentials and reciprocals."""

WIDTH, ARCH = 64, 90
TANGENTS = {
    "tangent, additive": ("forward, additive", find_feature_loop),
    "tangent, additive, scores of gradients": ("gradients, additive", find_feature_loop),
    "tangent, additive, gradients": ("gradients, additive", find_feature_gradient_loop),
}
"""
The kernel whose loop it is: the gradients make each tangent twice, for the scores and for the sums.
"""

CUDA_TANGENTS = {
    "CUDA tangent, additive": "additive_forward",
    "CUDA tangent, additive, gradients": "additive_backward_query",
}
CUDA = {"CUDA, plain": False, "CUDA, relative": True}
GOALS = {
    "forward": 300,
    "forward, ALiBi": 350,
    "forward, Transformer-XL": 620,
    "forward, learned": 700,
    "CUDA, plain: forward": 700,
    "CUDA, relative: forward": 1000,
    "tangent, additive": 5,
    "CUDA tangent, additive": 5,
}
"""At most so many issue slots, for a tile or for a tangent."""

BACKWARD = ("gradient of queries, Transformer-XL", "gradient of keys, Transformer-XL")
BACKWARD_GOAL = 3600
"""For both together."""


@dataclass(frozen=True)
class Row:
    """
    A kernel: its blocks, what a thread needs, clocks for 64 x 64 pairs, and the megabytes that all
    who run side by side read (:func:`megabytes_of_a_wave`).
    """

    name: str
    blocks: str
    registers: int
    spilled: int
    shared: float
    issue: float
    tensor: float
    special: float
    wave: float | None = None

    def __str__(self) -> str:
        return (
            f"{self.name:38} {self.blocks:16} {self.registers:5} {self.spilled:5} "
            f"{self.shared:6.1f} {self.issue:8.1f} {self.tensor:7.1f} {self.special:8.1f} "
            f"{'' if self.wave is None else f'{self.wave:.1f}':>6}"
        )


HEAD = (
    f"{'kernel':38} {'blocks':16} {'regs':>5} {'spill':>5} {'KiB':>6} "
    f"{'issue':>8} {'tensor':>7} {'special':>8} {'wave':>6}  goal"
)

HEADS, LENGTH, PROCESSORS = 256, 2048, 132
"""Of a batch of 8 with 32 heads, and of an H100."""


def count_programs(warps: int, registers: int, shared: float) -> int:
    """How many programs a processor of sm_90 runs at a time: by its registers and its memory."""
    return min(65536 // (32 * warps * registers), int(228 // (shared + 1)), 64 // warps)


def megabytes_of_a_wave(programs: int, rows: int, width: int, relative: bool) -> float:
    """
    What so many programs on each processor read together, in bfloat16: keys and values (or queries
    and gradients) of the heads whose blocks of so many rows they take, and their positions.
    """
    blocks = -(-LENGTH // rows)
    heads = min(HEADS, -(-programs * PROCESSORS // blocks))
    return heads * LENGTH * width * 2 * (4 if relative else 2) / 1e6


def find_triton_row(
    name: str,
    chosen: block_sizes.Blocks | None = None,
    arch: int = ARCH,
    dtype: str = "bf16",
    width: int = WIDTH,
) -> Row:
    """A Triton kernel with the blocks of the table, or with these."""
    kernel, which, scores, given = triton_kernels.TABLE[name]
    chosen = chosen or block_sizes.of_gpu(which, scores, dtype != "fp32", width, arch)
    made = triton_kernels.compile_kernel(kernel, given, chosen, arch, dtype, width)
    return find_costs(name, made, chosen, width)


def find_costs(name: str, made: Any, chosen: block_sizes.Blocks, width: int = WIDTH) -> Row:
    """The row of a kernel that is compiled; of an additive one, all its loops for a tangent."""
    kernel, _, scores, _ = triton_kernels.TABLE[name]
    code = sass.disassemble(made.asm["cubin"])[kernel.fn.__name__]
    if scores == "additive":
        loops = [find_loop(code) for of, find_loop in TANGENTS.values() if of == name]
        costs = add_costs(map(per_tangent, loops))
    else:
        costs = per_tile(find_pair_loop(code), chosen.warps, chosen.queries * chosen.keys)
    return write_row(name, made, chosen, costs, None if scores == "additive" else width)


def write_row(
    name: str, made: Any, chosen: block_sizes.Blocks, costs: Costs, width: int | None = None
) -> Row:
    """Write what was found of a kernel as its row; of one with heads of this width, its wave."""
    registers, spilled = triton_kernels.find_resources(made.asm["cubin"])
    shared, blocks = made.metadata.shared / 1024, describe_blocks(chosen)
    wave = None
    if width is not None:
        rows = chosen.keys if "keys" in name else chosen.queries
        relative = name.endswith(("Transformer-XL", "learned"))
        programs = count_programs(chosen.warps, registers, shared)
        wave = megabytes_of_a_wave(programs, rows, width, relative)
    return Row(name, blocks, registers, spilled, shared, *costs, wave)


def add_costs(costs: Iterable[Costs]) -> Costs:
    issue, tensor, special = map(sum, zip(*costs, strict=True))
    return issue, tensor, special


def find_tangent_rows(wanted: str) -> Iterator[Row]:
    """The loops of additive attention in which two tangents share a reciprocal, for a tangent."""
    for name, (kernel, find_loop) in TANGENTS.items():
        if wanted in name:
            yield find_tangent_row(name, kernel, find_loop)


def find_tangent_row(name: str, kernel: str, find_loop: Callable[[list[Line]], Loop]) -> Row:
    function, which, scores, given = triton_kernels.KERNELS[kernel]
    chosen = block_sizes.of_gpu(which, scores, True, WIDTH, ARCH)
    made = triton_kernels.compile_kernel(function, given, chosen, ARCH, "bf16", WIDTH)
    loop = find_loop(sass.disassemble(made.asm["cubin"])[function.fn.__name__])
    return write_row(name, made, chosen, per_tangent(loop))


def find_cuda_tangent_rows(wanted: str) -> Iterator[Row]:
    """The loops of CUDA C++ over features or columns, in which two tangents share a reciprocal."""
    names = [name for name in CUDA_TANGENTS if wanted in name]
    if not names:
        return
    made = kernel_configs.instance("additive.cu", "bfloat16", WIDTH, False, False, True)
    cubin, log = cuda_kernels.compile_instance(made, ARCH)
    code, resources = sass.disassemble(cubin), cuda_kernels.find_resources(log)
    for name in names:
        kernel = CUDA_TANGENTS[name]
        loop = find_fast_feature_loop(code[kernel])
        registers, _, spilled = resources[kernel]
        shared = made.shared_bytes(kernel) / 1024
        costs = per_tangent(loop)
        yield Row(name, describe_instance(made, kernel), registers, spilled, shared, *costs)


def find_cuda_rows(name: str, width: int = WIDTH) -> list[Row]:
    """The forward kernel and both gradients of an instance in CUDA C++."""
    made = kernel_configs.instance("attention.cu", "bfloat16", width, CUDA[name], False, True)
    cubin, log = cuda_kernels.compile_instance(made, ARCH)
    code, warps, rows = sass.disassemble(cubin), made.threads // 32, []
    for kernel, (registers, _, spilled) in cuda_kernels.find_resources(log).items():
        shared, own = made.shared_bytes(kernel) / 1024, made.rows(kernel)
        costs = per_tile(find_pair_loop(code[kernel]), warps, own * made.step)
        programs = count_programs(warps, registers, shared)
        wave = megabytes_of_a_wave(programs, own, width, CUDA[name])
        blocks = describe_instance(made, kernel)
        rows.append(Row(f"{name}: {kernel}", blocks, registers, spilled, shared, *costs, wave))
    return rows


def per_tangent(loop: Loop) -> Costs:
    """What a thread issues for a tangent, of which two share a reciprocal."""
    tangents = 2 * loop.counts["MUFU.RCP"]
    return loop.counts.total() / tangents, 0.0, loop.count("MUFU") / tangents


def per_tile(loop: Loop, warps: int, pairs: int) -> Costs:
    """Clocks to issue, of tensor cores and of the unit for exponentials, for 64 x 64 pairs."""
    share = 64 * 64 / pairs
    return loop.issue(warps) * share, loop.tensor(warps) * share, loop.special(warps) * share


def describe_instance(made: kernel_configs.Instance, kernel: str) -> str:
    return f"{made.rows(kernel)} x {made.step}, {made.threads // 32} w"


def describe_blocks(chosen: block_sizes.Blocks) -> str:
    return f"{chosen.queries} x {chosen.keys}, {chosen.warps} w, {chosen.stages} s"
