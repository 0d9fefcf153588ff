"""Commands on saved reports: two beside each other, and one as a workflow shows it."""

from pathlib import Path

import click

from attnverify.cli.parameters import FILE, Command
from attnverify.cli.reading import load_report
from attnverify.options import REQUIRED


def print_comparison(old: str, new: str, factor: float, output: str | None) -> int:
    from attnverify.report.comparison import compare_reports, comparison_page, describe_comparison

    found = compare_reports(load_report(old), load_report(new), factor)
    print("\n".join(describe_comparison(found)))
    if output:
        try:
            Path(output).write_text(comparison_page(found), encoding="utf-8", errors="replace")
        except OSError as error:
            raise click.ClickException(str(error)) from None
        print(f"\npage: {output}")
    return 1 if found.new_failures else 0


compare = Command(
    "compare",
    callback=print_comparison,
    params=[
        click.Argument(["old"], type=FILE, metavar="OLD"),
        click.Argument(["new"], type=FILE, metavar="NEW"),
        click.Option(
            ["--factor"],
            type=click.FloatRange(min=1, min_open=True),
            default=1.5,
            metavar="X",
            help="a budget or a time has moved by more than this (default: 1.5)",
        ),
        click.Option(
            ["-o", "--output"],
            type=FILE,
            metavar="FILE",
            help="write a page of HTML, too",
        ),
    ],
    help="Compare two saved reports: new failures, gone failures, what moved.\n\nOLD and NEW are "
    "what attnverify run --report-json wrote.",
    short_help="Compare two saved reports: new failures, gone failures, what moved.",
    example="attnverify compare old.json new.json -o moved.html",
    status="Exit status: 0 nothing fails that did not, 1 something does, 2 a report cannot be read",
)


def print_annotations(report: str, require: str, summary: str | None) -> int:
    from attnverify.report.workflow import annotate as annotate_report
    from attnverify.report.workflow import summarise

    found = load_report(report)
    for line in annotate_report(found, require):
        print(line)
    if summary:
        try:
            with Path(summary).open("a", encoding="utf-8", errors="replace") as file:
                file.write("\n".join(summarise(found)) + "\n")
        except OSError as error:
            raise click.ClickException(str(error)) from None
    return 0


annotate = Command(
    "annotate",
    callback=print_annotations,
    params=[
        click.Argument(["report"], type=FILE, metavar="REPORT"),
        click.Option(
            ["--require"],
            type=click.Choice(list(REQUIRED)),
            default="answer",
            help="what is an error; all else is a warning (default: answer)",
        ),
        click.Option(
            ["--summary"],
            type=FILE,
            metavar="FILE",
            help="add a summary in Markdown, as to $GITHUB_STEP_SUMMARY",
        ),
    ],
    help="Write a saved report as annotations of a workflow.\n\nREPORT is what attnverify run "
    "--report-json wrote.",
    short_help="Write a saved report as annotations of a workflow.",
    example="attnverify annotate report.json --summary summary.md",
)
