"""
What each ptxas that is here makes of the Triton kernels for Hopper: no register that a product of a
warp group still reads is written (ptxas 12.8 does so in others' kernels, triton-lang/triton 9433).
"""

from functools import lru_cache

import pytest

from attnverify.ptx import sass
from attnverify.torch_impl.triton.kernels import block_sizes
from benchmarks.machine_code.triton_kernels import KERNELS, compile_kernel

pytestmark = pytest.mark.thorough

ASSEMBLERS = sass.assemblers()
CASES = [
    (name, "bf16" if aligned else "fp16", width, aligned)
    for width in (64, 128)
    for aligned in (True, False)
    for name in KERNELS
]
"""In float32 there are no products of warp groups; the half types differ in a word."""


@lru_cache(maxsize=1)
def compiled(name: str, dtype: str, width: int, aligned: bool) -> str:
    kernel, table, scores, given = KERNELS[name]
    chosen = block_sizes.of_gpu(table, scores, True, width, 90)
    made = compile_kernel(kernel, given, chosen, 90, dtype, width, aligned, HIDING=not aligned)
    return str(made.asm["ptx"])


def machine_code(case: tuple[str, str, int, bool], version: str) -> list[sass.Line]:
    (lines,) = sass.disassemble(sass.assemble(compiled(*case), ASSEMBLERS[version])).values()
    return lines


@pytest.mark.parametrize("case", CASES, ids=lambda case: " ".join(map(str, case)))
def test_no_operand_is_overwritten_in_any_variant(case: tuple[str, str, int, bool]) -> None:
    for version in ASSEMBLERS:
        assert not sass.hazards(machine_code(case, version))


@pytest.mark.parametrize("version", ASSEMBLERS)
def test_an_operand_that_is_overwritten_is_found_in_every_product(version: str) -> None:
    lines = machine_code(CASES[0], version)
    assert sass.products(lines)
    for place in sass.products(lines):
        found = sass.PRODUCT.search(lines[place].text)
        assert found
        write = sass.Line(-1, f"MOV R{found[1]}, RZ")
        planted = [*lines[: place + 1], write, *lines[place + 1 :]]
        assert any(hazard.write is write for hazard in sass.hazards(planted))
