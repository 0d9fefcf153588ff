"""
The static check of machine code: a write under a product is found on every path, and nothing else
is.
"""

import re
from pathlib import Path

import pytest

from attnverify.ptx import sass
from attnverify.ptx.__main__ import main
from tests.ptx.instructions.test_matrices import FROM_REGISTERS, PARAMETERS, group_body

PRODUCT = "HGMMA.64x32x16.F32.BF16 R68, R136, gdesc[UR36], R68, gsb0"
WAIT = "WARPGROUP.DEPBAR.LE gsb0, 0x0"


def lines(*texts: str) -> list[sass.Line]:
    return [sass.Line(16 * place, text) for place, text in enumerate(texts)]


@pytest.mark.parametrize(
    "write",
    [
        "MOV R138, R2",
        "@P0 FADD R139, R1, R2",
        "LDG.E.128 R136, desc[UR4][R2.64]",
        "IMAD.WIDE R138, R1, R2, R4",
        "LDSM.16.M88.4 R134, [R1]",
        "SHFL.IDX PT, R137, R1, R2, 0x1f",
        "CS2R R138, SRZ",
        "LDS.64 R135, [R1]",
    ],
)
def test_a_write_into_a_left_factor_is_found(write: str) -> None:
    found = sass.hazards(lines(PRODUCT, write, WAIT, "EXIT"))
    assert len(found) == 1 and found[0].write.text == write and "still reads" in str(found[0])


@pytest.mark.parametrize(
    "other",
    [
        "MOV R140, R2",
        "FADD R1, R136, R2",
        "STG.E.128 desc[UR4][R2.64], R136",
        "ISETP.LT.AND P0, PT, R136, R2, PT",
        "LDS R135, [R1]",
        "UMOV UR136, 0x1",
        "LDSM.16.M88.2 R134, [R1]",
        "R2UR UR4, R136",
    ],
)
def test_other_instructions_are_no_hazard(other: str) -> None:
    assert not sass.hazards(lines(PRODUCT, other, WAIT, "MOV R136, R2", "EXIT"))


def test_every_path_is_walked() -> None:
    branch = lines(PRODUCT, "@P0 BRA 0x40", WAIT, "EXIT", "MOV R136, R2", WAIT, "EXIT")
    assert [found.write.address for found in sass.hazards(branch)] == [0x40]
    loop = lines("MOV R136, R2", PRODUCT, "@P0 BRA 0x0", WAIT, "EXIT")
    assert [found.write.address for found in sass.hazards(loop)] == [0x0]


def test_a_wait_that_leaves_the_product_running_is_none() -> None:
    other = "HGMMA.64x32x16.F32.BF16 R4, R200, gdesc[UR36], R4, gsb0"
    kept = "WARPGROUP.DEPBAR.LE gsb0, 0x1"
    assert sass.hazards(lines(PRODUCT, kept, "MOV R136, R2", WAIT, "EXIT"))
    assert not sass.hazards(lines(PRODUCT, other, kept, "MOV R136, R2", WAIT, "EXIT"))


def text_of_a_kernel() -> str:
    body = group_body(16, "{%a0,%a1,%a2,%a3}", FROM_REGISTERS)
    given = ", ".join(f".param {each}" for each in PARAMETERS)
    return (
        f".version 8.7\n.target sm_90a\n.address_size 64\n.visible .entry "
        f"k({given})\n{{\n{body}\nret;\n}}\n"
    )


@pytest.mark.parametrize("ptxas", list(sass.assemblers().values()), ids=list(sass.assemblers()))
def test_a_kernel_is_assembled_and_checked(ptxas: Path) -> None:
    (lines_,) = sass.disassemble(sass.assemble(text_of_a_kernel(), ptxas)).values()
    assert len(sass.products(lines_)) == 1 and not sass.hazards(lines_)
    place = sass.products(lines_)[0]
    factor = re.search(r"R\d+, (R\d+), gdesc", lines_[place].text)
    assert factor is not None
    planted = [*lines_[: place + 1], sass.Line(-1, f"MOV {factor[1]}, RZ"), *lines_[place + 1 :]]
    assert len(sass.hazards(planted)) == 1


def test_the_command_line_checks_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "k.ptx"
    file.write_text(text_of_a_kernel())
    assert main(["sass", str(file)]) == 0
    assert capsys.readouterr().out.count("1 products from registers, 0 overwritten") == len(
        sass.assemblers()
    )
