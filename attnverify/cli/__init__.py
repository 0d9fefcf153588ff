"""
The command line. Begin with: attnverify run my_kernel.py
"""

# What a command needs is imported when it runs: attnverify doctor answers also where numpy cannot
# be imported.
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

WRONG_OPTION = 4


def main(arguments: list[str] | None = None) -> int:
    """Entry point of the console script; returns the exit status."""
    given = sys.argv[1:] if arguments is None else arguments
    if arguments is None:
        see_the_folder()
    try:
        with ended_as_by_hand():
            return run_command(given)
    except KeyboardInterrupt:
        print("attnverify: interrupted", file=sys.stderr)
        return 2
    except ImportError as error:
        print(f"attnverify: {error}; {ADVICE.get(error.name or '', DOCTOR)}", file=sys.stderr)
        return 2
    except Exception:  # a mistake of ours must not read as the kernel's: 1 is a verdict
        if is_folder_gone():
            print("attnverify: the folder in which it was started is gone", file=sys.stderr)
            return 2
        traceback.print_exc()
        print(
            "attnverify: an error of attnverify itself, no verdict; please report these lines",
            file=sys.stderr,
        )
        return 3


@contextmanager
def ended_as_by_hand() -> Iterator[None]:
    """
    Let what ends a process, as ``timeout`` and a CI system do, end a command as Ctrl-C does: what a
    run has found is told. The second time it ends at once.
    """

    def interrupt(number: int, _: Any) -> None:
        signal.signal(number, signal.SIG_DFL)
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # only a main thread may say so
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def is_folder_gone() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def see_the_folder() -> None:
    """A module of the folder can be named, as with python -m; it shadows nothing."""
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())


DOCTOR = "attnverify doctor says what is missing on this machine"
ADVICE = {"click": "the command line needs it: pip install click"}


def run_command(arguments: list[str]) -> int:
    """Run the command that the arguments name; the exit status."""
    import click

    from attnverify.cli.commands import attnverify
    from attnverify.cli.parameters import OutputClosed
    from attnverify.report.terminal_colours import fold_words, terminal_width

    width = terminal_width(sys.stderr)
    try:
        status = attnverify.main(arguments, prog_name="attnverify", standalone_mode=False)
    except click.UsageError as error:
        click.UsageError(fold_words(error.format_message(), width), error.ctx).show()
        return WRONG_OPTION
    except click.ClickException as error:
        click.ClickException(fold_words(error.format_message(), width)).show()
        return 2
    except OutputClosed:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 2
    except click.Abort:
        raise KeyboardInterrupt from None
    return int(status or 0)
