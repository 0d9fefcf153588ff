"""The commands, by name."""

from difflib import get_close_matches

import click

from attnverify import __version__, describe_installation
from attnverify.cli import benching, comparing, failures, judging, measuring, operations, reading
from attnverify.cli.parameters import STATUS

COMPLETION = """\
\b
Completion at the prompt of a shell, in its start-up file:
  eval "$(_ATTNVERIFY_COMPLETE=bash_source attnverify)"    (or zsh_source)
  _ATTNVERIFY_COMPLETE=fish_source attnverify | source     (fish)

"""


class Commands(click.Group):
    """Commands; a misspelt one is answered with the nearest, whatever the version of click."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known = self.get_command(ctx, args[0])
        if not (known or ctx.resilient_parsing or args[0].startswith("-")):
            ctx.fail(f"No such command '{args[0]}'.{self._suggest_command(args[0])}")
        return super().resolve_command(ctx, args)

    def _suggest_command(self, name: str) -> str:
        """Name the command that is nearest as a whole or by its first word; run, for a file."""
        if name.endswith(".py"):
            return f" Did you mean 'attnverify run {name}'?"
        heads = {command.partition("-")[0]: command for command in self.commands}
        names = heads | {command: command for command in self.commands}
        close = get_close_matches(name, names, n=1)
        return f" Did you mean '{names[close[0]]}'?" if close else ""


@click.group(
    cls=Commands,
    help="Judge attention kernels by the specification: every operation, hard inputs, derived "
    "error bounds.\n\nBegin with: attnverify run my_kernel.py",
    epilog=COMPLETION + STATUS,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, message=describe_installation())
def attnverify() -> None:
    """The command line."""


for command in (
    judging.run,
    judging.campaign,
    failures.replay,
    failures.forget,
    measuring.identify,
    measuring.repair,
    measuring.score,
    measuring.holes,
    reading.doctor,
    operations.list_operations,
    operations.new,
    operations.spec,
    reading.page,
    reading.matrix,
    comparing.compare,
    comparing.annotate,
    benching.bench,
    reading.bench_report,
):
    attnverify.add_command(command)
