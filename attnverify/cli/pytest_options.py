"""The options of pytest that ``attnverify run`` passes on; what is not listed goes after ``--``."""

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import click

PYTEST = (
    click.Option(["-k", "keyword"], metavar="EXPRESSION", help="only cells whose names match it"),
    click.Option(
        ["-n", "--numprocesses"], metavar="N", help="in so many processes (needs pytest-xdist)"
    ),
    click.Option(["--dist"], metavar="MODE", help="how pytest-xdist hands cells to processes"),
    click.Option(["-x", "--exitfirst"], is_flag=True, help="stop at the first failure"),
    click.Option(["--maxfail"], metavar="N", help="stop after so many failures"),
    click.Option(["-q", "--quiet"], count=True, help="say less"),
    click.Option(
        ["-v", "--verbose"],
        count=True,
        help="say more: a failing case of each cause in full; -vv: of every cell",
    ),
    click.Option(["-s", "capture_no"], is_flag=True, help="let the backends print"),
    click.Option(["--collect-only", "--co"], is_flag=True, help="list the cells, judge none"),
    click.Option(["--deselect"], metavar="CELL", multiple=True, help="leave a cell out"),
    click.Option(["--junitxml", "--junit-xml"], metavar="FILE", help="write a report as JUnit XML"),
    click.Option(["--durations"], metavar="N", help="show the N slowest cells (0: all)"),
    click.Option(["--durations-min"], metavar="S", help="but only those above so many seconds"),
    click.Option(["--tb"], metavar="STYLE", help="style of tracebacks"),
    click.Option(["--color"], metavar="WHEN", help="yes, no or auto"),
    click.Option(["-r", "report_chars"], metavar="CHARS", help="what the closing lines list"),
    click.Option(["--timeout"], metavar="S", help="seconds for a cell (needs pytest-timeout)"),
    click.Option(["--pdb"], is_flag=True, help="enter the debugger where a cell fails"),
    click.Option(["-W", "pythonwarnings"], metavar="FILTER", multiple=True, help="as of Python"),
    click.Option(["-p", "plugins"], metavar="NAME", multiple=True, help="load a plugin"),
)

NEEDS = {"numprocesses": ("xdist", "pytest-xdist"), "timeout": ("pytest_timeout", "pytest-timeout")}
"""Options that another package brings: the module and the package."""


def to_pytest(given: dict[str, Any]) -> Iterator[str]:
    """
    Build the arguments for pytest. Raises UsageError where the package of an option is missing.
    """
    for option in PYTEST:
        assert option.name is not None
        value, flag = given[option.name], option.opts[0]
        if not value:
            continue
        module, package = NEEDS.get(option.name, ("pytest", "pytest"))
        if find_spec(module) is None:
            raise click.UsageError(f"{flag} needs the package {package}: pip install {package}")
        if option.is_flag or option.count:
            yield from [flag] * int(value)
        else:
            for one in value if option.multiple else (value,):
                yield from (flag, one) if len(flag) == 2 else (f"{flag}={one}",)
