"""The table of instructions says what is true, and the command line says it."""

from pathlib import Path

import pytest

from attnverify import ptx
from attnverify.ptx.__main__ import main
from attnverify.ptx.decode import BUILDERS
from attnverify.ptx.table import ABSENT, PARTLY, THERE
from tests.ptx.small import kernel

REGISTERS = ".reg .pred %p, %q; .reg .b16 %h; .reg .b32 %r, %s, %f; .reg .b64 %d; HERE: "


def test_the_table_has_a_row_for_every_instruction_that_is_there() -> None:
    assert set(THERE) == set(BUILDERS)


@pytest.mark.parametrize("text", [text for row in THERE.values() for text in row.examples])
def test_what_the_table_says_is_there_is_understood(text: str) -> None:
    assert len(kernel(REGISTERS + text).steps) == 2


@pytest.mark.parametrize(
    "text", [*(f"{name}.b32 %r, %r;" for names in ABSENT.values() for name in names), *PARTLY]
)
def test_what_the_table_says_is_refused_is_refused(text: str) -> None:
    with pytest.raises(ptx.NotUnderstood):
        kernel(REGISTERS + text).steps  # noqa: B018


def test_every_row_is_about_its_own_instruction() -> None:
    assert all(name in text for name, row in THERE.items() for text in row.examples)


def test_the_table_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["table"]) == 0
    printed = capsys.readouterr().out
    assert (
        "wgmma" in printed
        and "refused:" in printed
        and all(f"  {name} " in printed for name in THERE)
    )


def test_a_file_is_read_and_refusals_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "k.ptx"
    file.write_text(
        ".version 8.0\n.target sm_80\n.visible .entry k() { .reg .b32 %r; add.s32 %r, %r, 1; "
        "tex.a %r, %r; tex.a %r, %r; ret; }"
    )
    assert main(["read", str(file)]) == 1
    assert capsys.readouterr().out.startswith("2 instructions understood, 2 refused")
