"""What commands are made of: option values with suggestions, help that ends in an example."""

import sys
from collections.abc import Iterable
from itertools import chain
from typing import Any

import click
from click.shell_completion import CompletionItem

from attnverify.options import Option

STATUS = (
    "Exit status: 0 everything passed (or failed as known), 1 something failed, 2 a backend is "
    "broken or missing, nothing was judged, or the run was cut before all was that must hold, 3 an "
    "error of attnverify itself, 4 an option is wrong"
)

PLAIN = "Exit status: 0 done, 2 a file cannot be read, 4 an option is wrong"


class Value(click.ParamType):  # type: ignore[type-arg]  # generic in click 8.5 alone
    """The value of an option of ours, read by the option itself."""

    def __init__(self, option: Option) -> None:
        self.option, self.name = option, option.metavar

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            several = param is not None and param.multiple
            return (self.option.read if several else self.option.parse)(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        if self.option.is_file:
            return [CompletionItem(incomplete, type="file")]
        return [CompletionItem(word) for word in self.option.words() if word.startswith(incomplete)]


def to_click(options: Iterable[Option]) -> list[click.Parameter]:
    """Build the options of a command."""
    return [
        click.Option([f"--{option.name}"], is_flag=True, help=option.help)
        if option.is_flag
        else click.Option(
            [*filter(None, [option.short]), f"--{option.name}"],
            type=Value(option),
            default=option.default,
            multiple=option.repeatable,
            callback=in_one_list if option.repeatable else None,
            metavar=option.metavar,
            help=option.help,
        )
        for option in options
    ]


def in_one_list(ctx: click.Context, param: click.Parameter, values: Any) -> tuple[Any, ...]:
    """Return the values of an option that was given several times, each a list."""
    return tuple(chain.from_iterable(values or ()))


class OutputClosed(Exception):
    """Whoever read our lines has seen enough; click alone would end with a failure's status."""


class Command(click.Command):
    """A command whose help ends in an example and in what its exit status means."""

    def __init__(self, *given: Any, example: str, status: str = PLAIN, **more: Any) -> None:
        super().__init__(*given, **more)
        self.example, self.status = example, status

    def invoke(self, ctx: click.Context) -> Any:
        try:
            status = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            raise OutputClosed from None
        return status

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Format the options, one section for each kind."""
        for title, options in self.sections(ctx).items():
            if rows := [row for option in options if (row := option.get_help_record(ctx))]:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def sections(self, ctx: click.Context) -> dict[str, list[click.Option]]:
        """Return the options by the title that they stand under."""
        return {"Options": [one for one in self.get_params(ctx) if isinstance(one, click.Option)]}

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write(f"\nExample: {self.example}\n")
        formatter.write_text(" ".join(self.status.split()))


FILE = click.Path(path_type=str)
"""A file; whether it can be read is found out by whoever reads it, who can say more."""
