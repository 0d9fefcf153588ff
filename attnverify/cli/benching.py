"""The command that times a user's kernel beside its peers, once it is right."""

from pathlib import Path
from typing import Any

import click

from attnverify.cli.parameters import FILE, Command, Value, in_one_list
from attnverify.options import OPTIONS
from attnverify.report.waiting import Waiting, waiting

STATUS = """Exit status: 0 what was asked is right and timed, 1 something is wrong or not timed,
             2 the backend is broken, missing, or has none of the operations"""


class Sizes(click.ParamType):  # type: ignore[type-arg]  # generic in click 8.5 alone
    """Sizes by their letters, N=1024,D=64."""

    name = "sizes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, dict):
            return value
        try:
            pairs = [pair.split("=") for pair in str(value).split(",") if pair]
            return {letter.strip(): int(size) for letter, size in pairs}
        except ValueError:
            self.fail(f"wanted letters and sizes as N=1024,D=64, got {value}", param, ctx)


def time_kernel(
    backend: str, op: tuple[str, ...], sizes: dict[str, int], seconds: float, **more: Any
) -> int:
    """Judge and time every implementation of the backend that is asked for, and show the tables."""
    waiting.say(f"loading {backend}")
    try:
        races = race_loaded(backend, op or named_by(more["spec"]), sizes, seconds, more["wrong"])
    finally:
        waiting.end()
    from attnverify.bench.own_kernel import keep_records
    from attnverify.bench.report.tables import show

    records = [record for race in races for record in race]
    show(f"attnverify bench {backend}", records, [])
    if more["results"]:
        print(f"results: {keep_records(records, Path(more['results']))}")
    return int(any(race[0]["verdict"] != "correct" or race[0]["refused"] for race in races))


def named_by(specifications: tuple[str, ...]) -> tuple[str, ...]:
    """
    Make somebody's own specifications operations of the catalogue; their names. Raises UsageError.
    """
    if not specifications:
        return ()
    from attnverify.specified import register_file

    try:
        return tuple(name for path in specifications for name in register_file(path))
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def race_loaded(
    backend: str, op: tuple[str, ...], sizes: dict[str, int], seconds: float, wrong: bool
) -> list[list[dict[str, Any]]]:
    """Load the backend and race it, and tell each step as it begins; the records of each race."""
    from attnverify.bench.measure.race import on_step
    from attnverify.bench.own_kernel import race_backend
    from attnverify.judge import state_guard
    from attnverify.verdicts.found_out import loaded

    before = state_guard.snapshot(vital=True)
    found = loaded(backend)
    waiting.end()
    for change in state_guard.diff_and_restore(before):
        print(f"note: its import {change}")
    if found.broken or found.missing:
        raise click.ClickException(f"{found.source}: {found.broken or found.missing}")
    step = Waiting(0.0)  # few, and each may take minutes
    heard = on_step.set(step.say)
    try:
        races = list(race_backend(found, op, sizes, wrong, seconds))
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    finally:
        on_step.reset(heard)
        step.end()
    if not races:
        raise click.ClickException(f"{found.source}: it has none of the operations that were asked")
    return races


bench = Command(
    "bench",
    callback=time_kernel,
    params=[
        click.Argument(["backend"], type=FILE, metavar="BACKEND"),
        click.Option(
            ["--op"],
            type=Value(OPTIONS["op"]),
            multiple=True,
            callback=in_one_list,
            help="these operations alone",
        ),
        click.Option(
            ["--spec"],
            type=Value(OPTIONS["spec"]),
            multiple=True,
            callback=in_one_list,
            metavar="FILE",
            help="by your own specification, which is timed too; repeatable",
        ),
        click.Option(
            ["--sizes"],
            type=Sizes(),
            default="",
            metavar="N=1024,D=64",
            help="other sizes than the case has",
        ),
        click.Option(
            ["--seconds"],
            type=click.FloatRange(min=0),
            default=4.0,
            metavar="S",
            help="for the rounds of one race (default: 4; 0: everything runs once)",
        ),
        click.Option(["--wrong"], is_flag=True, help="time a wrong kernel too, marked as wrong"),
        click.Option(
            ["--results"],
            type=FILE,
            metavar="DIR",
            help="keep the record there, for attnverify bench-report --results DIR",
        ),
    ],
    help="Judge a kernel, then time it beside the peers that are installed.",
    example="attnverify bench my_kernel.py --sizes N=2048",
    status=STATUS,
)
