"""Completion at the prompt of a shell: what bash offers is what the parsers take."""

import subprocess
from pathlib import Path

import pytest

from attnverify.catalogue.operation import CATALOGUE
from attnverify.catalogue.traits import DTYPES
from attnverify.options import OPTIONS
from tests.support.run_attnverify import verify


def offered(tmp_path: Path, *words: str) -> set[str]:
    """What bash offers for the last of the words."""
    script = tmp_path / "completion.bash"
    script.write_text(verify("completion", "bash").output)
    (tmp_path / "kernel.py").touch()
    typed = " ".join(f"'{word}'" for word in words)
    asked = (
        f"source {script.name}; COMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}; _attnverify; "
        f"printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    done = subprocess.run(
        ["bash", "-c", asked], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    return {*done.stdout.split()}


def test_the_commands_come_first(tmp_path: Path) -> None:
    assert {"run", "replay", "doctor", "page", "completion"} <= offered(tmp_path, "attnverify", "")


def test_the_options_of_a_command(tmp_path: Path) -> None:
    assert offered(tmp_path, "attnverify", "run", "--") == {*OPTIONS, "--help"}


@pytest.mark.parametrize(
    ("option", "words"),
    [("--op", {name for name in CATALOGUE if not name.endswith("_grad")}), ("--dtype", {*DTYPES})],
)
def test_the_words_that_an_option_takes(tmp_path: Path, option: str, words: set[str]) -> None:
    assert offered(tmp_path, "attnverify", "run", option, "") == words


def test_files_where_files_are_wanted(tmp_path: Path) -> None:
    assert (
        offered(tmp_path, "attnverify", "run", "--backend", "ker")
        == offered(tmp_path, "attnverify", "score", "ker")
        == {"kernel.py"}
    )


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_know_the_same(shell: str) -> None:
    script = verify("completion", shell).output
    assert all(
        words in script for words in ("known-failures", "gpu-report", "alibi_attention", "bfloat16")
    )


def test_every_command_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    for command in (
        "run",
        "campaign",
        "replay",
        "identify",
        "score",
        "gpu-report",
        "doctor",
        "list",
        "page",
        "completion",
        "matrix",
    ):
        with pytest.raises(SystemExit) as done:
            verify_here(command)
        told = capsys.readouterr().out
        assert (
            done.value.code == 0
            and f"Example: attnverify {command}" in told
            and "Exit status: 0 " in told
        )


def verify_here(command: str) -> None:
    from attnverify.cli import main

    main([command, "--help"])
