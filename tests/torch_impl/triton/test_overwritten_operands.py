"""
What each ptxas that is here makes of the Triton kernels for Hopper: no register that a product of a
warp group still reads is written (ptxas 12.8 does so in others' kernels, triton-lang/triton 9433).
"""

import pytest

from attnverify import ROOT
from attnverify.ptx import sass
from tests.ptx.own_kernels.machine_code import VARIANTS, Variant, describe, machine_code
from tests.ptx.own_kernels.published import lines_of

PUBLISHED = lines_of(ROOT / "docs" / "data" / "sass.json", "kernels")


def test_every_variant_was_looked_at_as_an_old_and_a_new_assembler_make_it() -> None:
    versions = {line["ptxas"] for line in PUBLISHED}
    assert {version.rpartition(".")[0] for version in versions} >= {"12.8", "13.5"}
    for version in versions:
        lines = [line for line in PUBLISHED if line["ptxas"] == version]
        assert {line["variant"] for line in lines} == set(map(describe, VARIANTS))
        assert not any(line["overwritten"] for line in lines)
        assert sum(line["products from registers"] for line in lines) > 400


@pytest.mark.thorough
@pytest.mark.parametrize("variant", VARIANTS, ids=describe)
def test_no_operand_is_overwritten_in_any_variant(variant: Variant) -> None:
    for ptxas in sass.assemblers().values():
        assert not sass.hazards(machine_code(variant, ptxas))


@pytest.mark.thorough
@pytest.mark.parametrize("version", sass.assemblers())
def test_an_operand_that_is_overwritten_is_found_in_every_product(version: str) -> None:
    lines = machine_code(VARIANTS[0], sass.assemblers()[version])
    assert sass.products(lines)
    for place in sass.products(lines):
        found = sass.PRODUCT.search(lines[place].text)
        assert found
        write = sass.Line(-1, f"MOV R{found[1]}, RZ")
        planted = [*lines[: place + 1], write, *lines[place + 1 :]]
        assert any(hazard.write is write for hazard in sass.hazards(planted))
