"""The commands, by name."""

import click

from attnverify import __version__, describe_installation
from attnverify.cli import failures, judging, measuring, operations, reading
from attnverify.cli.parameters import STATUS

COMPLETION = """\
\b
Completion at the prompt of a shell, in its start-up file:
  eval "$(_ATTNVERIFY_COMPLETE=bash_source attnverify)"    (or zsh_source)
  _ATTNVERIFY_COMPLETE=fish_source attnverify | source     (fish)

\b
"""


@click.group(
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
    measuring.score,
    measuring.gpu_report,
    reading.doctor,
    operations.list_operations,
    operations.new,
    reading.page,
    reading.matrix,
    reading.bench_report,
):
    attnverify.add_command(command)
