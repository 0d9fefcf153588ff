"""
The Triton kernels compiled for GPUs that are not here: registers, spills and shared memory of the
entries of the table of blocks.

A thread has 255 registers; what does not fit is spilled to memory in every turn of the loop.
Forwards nothing may be, up to a width of 128. The gradients keep two blocks of scores and two sums
at once, and beyond that width a block of queries fills the registers alone.
"""

import re
import subprocess
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import triton

from attnverify.torch_impl.triton.kernels import additive, attention, block_sizes, launch

OPTIONAL = {
    "MASK",
    "KEEP",
    "SLOPES",
    "U",
    "W",
    "R",
    "S",
    "DM",
    "DMN",
    "DMM",
    "DU",
    "DW",
    "DR",
    "DS",
}
FLOAT32 = {
    "LSE",
    "DELTA",
    "SLOPES",
    "DM",
    "DMN",
    "DMM",
    "DU",
    "DW",
    "DR",
    "DS",
    "ZQ",
    "ZK",
    "DZQ",
    "DZK",
    "DWS",
}
WIDTHS = {"D", "E", "A"}
INTEGERS = {"B", "H", *WIDTHS, *launch.VARYING}
XL, LEARNED = {"U", "W", "R", "DU", "DW", "DR"}, {"U", "R", "S", "DU", "DR", "DS"}
KERNELS: dict[str, tuple[launch.Kernel, str, str, set[str]]] = {
    "forward": (attention.forward, "forward", "plain", set()),
    "forward, ALiBi": (attention.forward, "forward", "plain", {"SLOPES"}),
    "forward, mask": (attention.forward, "forward", "masked", {"MASK"}),
    "forward, Transformer-XL": (attention.forward, "forward", "relative", XL),
    "forward, learned": (attention.forward, "forward", "relative", LEARNED),
    "forward, additive": (additive.additive_forward, "forward", "additive", set()),
    "gradient of queries": (attention.backward_query, "backward", "plain", set()),
    "gradient of queries, mask": (attention.backward_query, "backward", "masked", {"MASK", "DM"}),
    "gradient of queries, Transformer-XL": (attention.backward_query, "backward", "relative", XL),
    "gradient of keys": (attention.backward_key, "backward", "plain", set()),
    "gradient of keys, mask": (attention.backward_key, "backward", "masked", {"MASK"}),
    "gradient of keys, Transformer-XL": (attention.backward_key, "backward", "relative", XL),
    "gradient of rows, Transformer-XL": (attention.backward_table, "backward", "relative", XL),
    "gradients, additive": (additive.additive_backward, "backward", "additive", set()),
}
"""Each with its column of the table of blocks and the optional arguments that it is given."""

SHARED = {80: 163, 90: 227}
"""KiB of shared memory that one program may have."""

Entry = tuple[str, int, str, int]
EVERY: list[Entry] = list(product(KERNELS, (80, 90), ("fp32", "fp16", "bf16"), (64, 128, 256)))
FEW: list[Entry] = [
    *((name, 90, "bf16", 64) for name in KERNELS),
    *(
        (name, arch, dtype, 128)
        for name in ("forward", "forward, Transformer-XL")
        for arch, dtype in ((80, "bf16"), (90, "fp32"))
    ),
]
"""Every kernel once, and the forward kernels where they are tightest."""


def most_spilled(name: str, D: int) -> int:
    """Bytes a thread; see above."""
    if "forward" in name:
        return 0 if D <= 128 else 256
    return 256 if D <= 128 else 1024


def kind(
    kernel: launch.Kernel, name: str, given: set[str], dtype: str, constants: dict[str, Any]
) -> tuple[Any, Any]:
    """The type of a kernel's argument, and its value where that is known to the compiler."""
    if name in constants or (name in OPTIONAL and name not in given):
        return "constexpr", constants.get(name)
    if name.endswith("_"):
        return ("i32", "i32", "i32", "constexpr"), 1
    if name in FLOAT32 or (name == "DV" and kernel is additive.additive_backward):
        return "*fp32", None
    masks = {
        "MASK": "*i1" if "DM" not in given else f"*{dtype}",
        "KEEP": "*i1",
        "scale": "fp32",
        "share": "fp32",
    }
    return masks.get(name, "i32" if name in INTEGERS else f"*{dtype}"), None


def compiled(
    kernel: launch.Kernel,
    given: set[str],
    chosen: block_sizes.Blocks,
    arch: int,
    dtype: str,
    D: int,
    **flags: Any,
) -> Any:
    """
    A kernel compiled for heads of this width, told what the launcher tells of aligned tensors.
    """
    E = min(D, additive.COLUMNS) if kernel is additive.additive_backward else D
    constants = {
        "CAUSAL": True,
        "HIDING": False,
        "OVER_N": False,
        "OVER_M": False,
        "BLOCK_D": D,
        "BLOCK_E": E,
    } | flags
    constants |= {"BLOCK_N": chosen.size, "BLOCK_M": chosen.size}
    kinds = {name: kind(kernel, name, given, dtype, constants) for name in kernel.arg_names}
    known: dict[tuple[int, ...], Any] = {}
    aligned: list[tuple[int, ...]] = []
    for place, (name, (of, value)) in enumerate(kinds.items()):
        if isinstance(of, tuple):
            known[place, 3] = value
            aligned += [(place, axis) for axis in range(3)]
        elif of == "constexpr":
            known[(place,)] = value
        elif of.startswith("*") or name in WIDTHS:
            aligned.append((place,))
    attributes = {place: [["tt.divisibility", 16]] for place in aligned}
    source = triton.compiler.ASTSource(
        kernel, {name: of for name, (of, _) in kinds.items()}, known, attributes
    )
    target = triton.backends.compiler.GPUTarget("cuda", arch, 32)
    return triton.compile(source, target=target, options=chosen.options)


def used(cubin: bytes) -> tuple[int, int]:
    """Registers of a thread and bytes that it spills."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        tool = triton.knobs.nvidia.cuobjdump.path
        text = subprocess.run(
            [tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    registers, stack = re.findall(r"REG:(\d+) STACK:(\d+)", text)[-1]
    return int(registers), int(stack)


def check(entry: Entry, record_property: Any) -> None:
    name, arch, dtype, D = entry
    kernel, which, scores, given = KERNELS[name]
    chosen = block_sizes.of_gpu(which, scores, dtype != "fp32", D, arch)
    made = compiled(kernel, given, chosen, arch, dtype, D)
    (registers, spilled), shared = used(made.asm["cubin"]), made.metadata.shared / 1024
    figures = f"{registers:3} registers, {spilled:4} bytes spilled, {shared:3.0f} KiB shared"
    record_property(
        "table",
        f"Triton sm_{arch} {dtype} D={D:<3} {name:36} {chosen.size:3} x {chosen.size}, "
        f"{chosen.warps} warps: {figures}",
    )
    assert shared <= SHARED[arch]
    assert spilled <= most_spilled(name, D)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


@pytest.mark.parametrize("entry", FEW, ids=str)
def test_kernels_compile_within_their_limits(entry: Entry, record_property: Any) -> None:
    check(entry, record_property)


@pytest.mark.thorough
@pytest.mark.parametrize("entry", [entry for entry in EVERY if entry not in FEW], ids=str)
def test_every_entry_compiles_within_its_limits(entry: Entry, record_property: Any) -> None:
    check(entry, record_property)


def test_blocks_that_are_too_large_are_seen(
    record_property: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_sizes, "of_gpu", lambda *args: block_sizes.Blocks(128, 4, 1))
    with pytest.raises(AssertionError):
        check(("forward", 90, "bf16", 128), lambda name, line: None)


@pytest.mark.parametrize("dtype", ["fp16"])
@pytest.mark.parametrize(
    "name",
    ["forward", "gradient of queries", "gradient of keys", "gradient of rows, Transformer-XL"],
)
def test_kernels_compile_with_every_option(name: str, dtype: str) -> None:
    made = compiled(
        KERNELS[name][0],
        OPTIONAL,
        block_sizes.Blocks(16, 4, 1),
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
    made = compiled(
        additive.additive_backward,
        given,
        block_sizes.Blocks(16, 4, 1),
        90,
        "bf16",
        16,
        OVER_N=over_n,
        OVER_M=over_m,
    )
    assert made.asm["cubin"]
