"""
The Triton kernels compiled for GPUs that are not here: registers, spills and shared memory of the
entries of the table of blocks.

A thread has 255 registers; what does not fit is spilled to memory in every turn of the loop.
Nothing may be up to a width of 64, forwards up to 128. The gradients keep two blocks of scores and
two sums at once, and beyond that width a block of queries fills the registers alone.
"""

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from attnverify.ptx import sass
from attnverify.torch_impl.triton.kernels import additive, block_sizes
from benchmarks.machine_code.table import find_costs, find_tangent_rows
from benchmarks.machine_code.triton_kernels import KERNELS, OPTIONAL, compile_kernel, find_resources

MOST_SLOTS = {
    "forward": 240,
    "forward, ALiBi": 320,
    "forward, mask": 1020,
    "forward, Transformer-XL": 560,
    "forward, learned": 660,
    "gradient of queries, Transformer-XL": 2300,
    "gradient of keys, Transformer-XL": 1060,
}
"""Issue slots of a tile of 64 x 64 pairs on sm_90, bfloat16, D 64: what a change may not lose."""

SHARED = {80: 163, 90: 227}
"""KiB of shared memory that one program may have."""

Entry = tuple[str, int, str, int]
EVERY: list[Entry] = list(product(KERNELS, (80, 90), ("fp32", "fp16", "bf16"), (64, 128, 256)))
FEW: list[Entry] = [
    *((name, 90, "bf16", 64) for name in KERNELS),
    ("gradients, additive", 80, "bf16", 64),
    ("gradients, additive", 90, "fp32", 64),
    *(
        (name, arch, dtype, 128)
        for name in ("forward", "forward, Transformer-XL")
        for arch, dtype in ((80, "bf16"), (90, "fp32"))
    ),
]
"""Every kernel once, and where it is tightest."""


def most_spilled(name: str, D: int) -> int:
    """Bytes a thread; see above."""
    if D <= 64:
        return 0
    if "forward" in name:
        return 0 if D <= 128 else 256
    return 32 if D <= 128 else 1024


def check(entry: Entry, record_property: Any) -> None:
    name, arch, dtype, D = entry
    kernel, which, scores, given = KERNELS[name]
    chosen = block_sizes.of_gpu(which, scores, dtype != "fp32", D, arch)
    made = compile_kernel(kernel, given, chosen, arch, dtype, D)
    (registers, spilled), shared = find_resources(made.asm["cubin"]), made.metadata.shared / 1024
    figures = f"{registers:3} registers, {spilled:4} bytes spilled, {shared:3.0f} KiB shared"
    record_property(
        "table",
        f"Triton sm_{arch} {dtype} D={D:<3} {name:36} {chosen.queries:3} x {chosen.keys}, "
        f"{chosen.warps} warps: {figures}",
    )
    assert shared <= SHARED[arch]
    assert spilled <= most_spilled(name, D)
    if (arch, dtype, D) == (90, "bf16", 64) and name in MOST_SLOTS:
        assert not spilled
        assert find_costs(name, made, chosen).issue <= MOST_SLOTS[name]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


@pytest.mark.parametrize("entry", FEW, ids=str)
def test_kernels_compile_within_their_limits(entry: Entry, record_property: Any) -> None:
    check(entry, record_property)


def test_a_tangent_takes_few_issue_slots() -> None:
    found = {row.name: row.issue for row in find_tangent_rows("tangent")}
    assert found["tangent, additive"] <= 4.8
    assert found["tangent, additive, scores of gradients"] <= 6.5
    assert found["tangent, additive, gradients"] <= 9.6


def test_sums_that_many_programs_add_to_wait_for_nobody() -> None:
    """An addition that is ordered with others flushes a whole cache, eight times a tile."""
    kernel, which, scores, given = KERNELS["gradient of queries, Transformer-XL"]
    chosen = block_sizes.of_gpu(which, scores, True, 64, 90)
    made = compile_kernel(kernel, given, chosen, 90, "bf16", 64)
    names = {line.name for line in sass.disassemble(made.asm["cubin"])["backward_query"]}
    assert any(name.startswith("RED") for name in names)
    assert not [name for name in names if name.startswith(("MEMBAR.ALL.GPU", "CCTL.IVALL"))]


@pytest.mark.thorough
@pytest.mark.parametrize("entry", [entry for entry in EVERY if entry not in FEW], ids=str)
def test_every_entry_compiles_within_its_limits(entry: Entry, record_property: Any) -> None:
    check(entry, record_property)


def test_eight_warps_on_64_rows_do_the_work_twice_and_are_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(block_sizes, "of_gpu", lambda *args: block_sizes.Blocks(64, 64, 8, 2))
    with pytest.raises(AssertionError, match="240"):
        check(("forward", 90, "bf16", 64), lambda name, line: None)


def test_blocks_that_are_too_large_are_seen(
    record_property: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_sizes, "of_gpu", lambda *args: block_sizes.Blocks(128, 128, 4, 1))
    with pytest.raises(AssertionError):
        check(("forward", 90, "bf16", 128), lambda name, line: None)


@pytest.mark.parametrize("dtype", ["fp16"])
@pytest.mark.parametrize(
    "name",
    ["forward", "gradient of queries", "gradient of keys", "gradient of rows, Transformer-XL"],
)
def test_kernels_compile_with_every_option(name: str, dtype: str) -> None:
    made = compile_kernel(
        KERNELS[name][0],
        OPTIONAL,
        block_sizes.Blocks(16, 16, 4, 1),
        90,
        dtype,
        16,
        CAUSAL=False,
        HIDING=True,
    )
    assert made.asm["cubin"]


@pytest.mark.parametrize(("over_n", "over_m"), [(False, True), (True, False), (True, True)])
def test_the_additive_gradient_compiles_for_every_mask(over_n: bool, over_m: bool) -> None:
    given = {"MASK", "KEEP", "DM"}
    made = compile_kernel(
        additive.additive_backward,
        given,
        block_sizes.Blocks(16, 16, 4, 1),
        90,
        "bf16",
        16,
        OVER_N=over_n,
        OVER_M=over_m,
    )
    assert made.asm["cubin"]
