"""
Completion for a shell: a script made from the parsers themselves, so that it knows every option and
asks nobody at the prompt.
"""

import argparse
from collections.abc import Iterator

SHELLS = ("bash", "zsh", "fish")


def completion(parser: argparse.ArgumentParser, shell: str, operations: tuple[str, ...]) -> str:
    """The script for a shell; bash's serves zsh as well. ``operations`` are what --op may be."""
    commands = {
        name: options_of(command, operations) for name, command in commands_of(parser).items()
    }
    return (
        "\n".join(
            fish(commands)
            if shell == "fish"
            else [*(ZSH if shell == "zsh" else []), *bash(commands)]
        )
        + "\n"
    )


def commands_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The parsers of the commands by name."""
    found: dict[str, argparse.ArgumentParser] = {}
    for action in parser._actions:  # argparse has no public way to its own subparsers
        if isinstance(action, argparse._SubParsersAction):
            found |= action.choices
    return found


def options_of(
    parser: argparse.ArgumentParser, operations: tuple[str, ...]
) -> dict[str, tuple[str, ...] | None]:
    """
    What may follow each option: some words, a file (no words), or nothing (None). Arguments without
    a name are files.
    """
    found: dict[str, tuple[str, ...] | None] = {}
    for action in parser._actions:
        for name in action.option_strings:
            if name.startswith("--"):
                words = operations if name == "--op" else tuple(map(str, action.choices or ()))
                found[name] = None if action.nargs == 0 else words
    return found


ZSH = ["autoload -U +X bashcompinit && bashcompinit"]


def bash(commands: dict[str, dict[str, tuple[str, ...] | None]]) -> Iterator[str]:
    """
    After an option its words or files, after a dash the options of the command, first of all the
    commands.
    """
    yield "_attnverify() {"
    yield (
        '    local word="${COMP_WORDS[COMP_CWORD]}" last="${COMP_WORDS[COMP_CWORD-1]}" '
        'command="${COMP_WORDS[1]}" words=""'
    )
    yield '    if [ "$COMP_CWORD" = 1 ]; then'
    yield f'        COMPREPLY=($(compgen -W "{" ".join(commands)}" -- "$word")); return'
    yield "    fi"
    yield '    case "$command $last" in'
    for command, options in commands.items():
        for option, words in options.items():
            offered = f'words="{" ".join(words)}"' if words else "last=file"
            if words is not None:
                yield f"""        "{command} {option}") {offered};;"""
    yield "    esac"
    yield '    if [ -n "$words" ]; then COMPREPLY=($(compgen -W "$words" -- "$word")); return; fi'
    yield (
        '    if [ "$last" = file ] || [ "${word#-}" = "$word" ]; then COMPREPLY=($(compgen -f '
        '-- "$word")); return; fi'
    )
    yield '    case "$command" in'
    for command, options in commands.items():
        yield f'        {command}) COMPREPLY=($(compgen -W "{" ".join(options)}" -- "$word"));;'
    yield "    esac"
    yield "}"
    yield "complete -o filenames -F _attnverify attnverify"


def fish(commands: dict[str, dict[str, tuple[str, ...] | None]]) -> Iterator[str]:
    """One line for each command and each of its options."""
    yield f"complete -c attnverify -n __fish_use_subcommand -f -a '{' '.join(commands)}'"
    for command, options in commands.items():
        for option, words in options.items():
            follows = "" if words is None else f" -x -a '{' '.join(words)}'" if words else " -r"
            yield (
                f"complete -c attnverify -n '__fish_seen_subcommand_from {command}' -l "
                f"{option.removeprefix('--')}{follows}"
            )
