"""Completion at the prompt of a shell: what is offered is what the commands take."""

import pytest
from click.shell_completion import ShellComplete

from attnverify.catalogue.operation import CATALOGUE
from attnverify.catalogue.traits import DTYPES
from attnverify.cli.commands import attnverify
from attnverify.options import OPTIONS


def offered(*words: str) -> set[str]:
    """What a shell offers for the last of the words; "file" where it is to look for files."""
    shell = ShellComplete(attnverify, {}, "attnverify", "_ATTNVERIFY_COMPLETE")
    found = shell.get_completions([*words[:-1]], words[-1])
    return {item.type if item.type == "file" else item.value for item in found}


def test_the_commands_come_first() -> None:
    assert {"run", "replay", "doctor", "page", "forget"} <= offered("")


def test_the_options_of_a_command() -> None:
    assert {f"--{name}" for name in OPTIONS} | {"--junitxml"} <= offered("run", "--")


@pytest.mark.parametrize(
    ("option", "words"),
    [("--op", {name for name in CATALOGUE if not name.endswith("_grad")}), ("--dtype", {*DTYPES})],
)
def test_the_words_that_an_option_takes(option: str, words: set[str]) -> None:
    assert offered("run", option, "") == words


@pytest.mark.parametrize("words", [("run", "ker"), ("run", "--backend", "ker"), ("score", "ker")])
def test_files_where_files_are_wanted(words: tuple[str, ...]) -> None:
    assert offered(*words) == {"file"}


def test_every_command_teaches() -> None:
    for name, command in attnverify.commands.items():
        told = command.get_help(command.make_context(name, [], resilient_parsing=True))
        assert f"Example: attnverify {name}" in told and "Exit status: 0" in told
