"""The commands that read, and judge nothing."""

from pathlib import Path
from typing import Any

import click

from attnverify.cli.parameters import FILE, Command


def examine() -> int:
    from attnverify import doctor

    return doctor.main()


doctor = Command(
    "doctor",
    callback=examine,
    help="Say what this machine can run and what is missing, in words.",
    example="attnverify doctor",
    status="Exit status: 0 pytest -m differential can run here, 1 it cannot",
)


def load_report(path: str) -> dict[str, Any]:
    """
    Load a report that was saved as JSON. Raises an error with status 2 where it is no such thing.
    """
    from attnverify.report.json_report import read_report

    try:
        return read_report(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise click.ClickException(
            f"report: wanted what --report-json wrote, got {path} ({error})"
        ) from None


REPORT = click.Argument(["report"], type=FILE, metavar="REPORT")


def make_page(report: str, output: str | None, book: str) -> int:
    """Write the page of a report, beside it unless another place is named."""
    from attnverify.report.json_report import write_page

    path = Path(output or Path(report).with_suffix(".html"))
    found = load_report(report)
    try:
        write_page(found, path, Path(report), book)
    except OSError as error:
        raise click.ClickException(str(error)) from None
    print(f"report: {path}")
    return 0


page = Command(
    "page",
    callback=make_page,
    params=[
        REPORT,
        click.Option(
            ["-o", "--output"],
            type=FILE,
            metavar="FILE",
            help="where the page goes (default: beside the report)",
        ),
        click.Option(
            ["--book"],
            default="",
            metavar="ADDRESS",
            help="where the book is built: the clauses of the specification lead there",
        ),
    ],
    help="Make the page of a report that was saved as JSON.\n\nREPORT is what attnverify run "
    "--report-json wrote.",
    short_help="Make the page of a report that was saved as JSON.",
    example="attnverify page report.json -o report.html",
)


def print_matrix(report: str) -> int:
    from attnverify.report.readme_matrix import readme_matrix

    print("\n".join(readme_matrix(load_report(report)["tallies"])))
    return 0


matrix = Command(
    "matrix",
    callback=print_matrix,
    params=[REPORT],
    help="Print the matrix of a saved report, operation x implementation.\n\nREPORT is what "
    "attnverify run --report-json wrote.",
    short_help="Print the matrix of a saved report, operation x implementation.",
    example="attnverify matrix report.json",
)


def show_benchmarks(results: str, device: str | None, output: str | None) -> int:
    from attnverify.bench.report.html_page import report

    return report(Path(results), device, Path(output) if output else None)


bench_report = Command(
    "bench-report",
    callback=show_benchmarks,
    params=[
        click.Option(
            ["--results"],
            type=FILE,
            default="benchmarks/results",
            metavar="DIR",
            help="where they are (default: benchmarks/results)",
        ),
        click.Option(
            ["--device"], metavar="NAME", help="one device alone, by the name of its folder"
        ),
        click.Option(
            ["-o", "--output"],
            type=FILE,
            metavar="FILE",
            help="write a page of HTML with plots, too",
        ),
    ],
    help="Show what was measured: tables, and one page.",
    example="attnverify bench-report -o bench.html",
    status="Exit status: 0, or 2 where there are no results, or what shows them is not installed",
)
