"""The command that times a user's kernel beside its peers, once it is right."""

from pathlib import Path
from typing import Any

import click

from attnverify.cli.parameters import FILE, Command, Value
from attnverify.options import OPTIONS

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
    from attnverify.backends.loader import load
    from attnverify.bench.own_kernel import keep_records, race_backend
    from attnverify.bench.report.tables import show
    from attnverify.judge import state_guard

    before = state_guard.snapshot(vital=True)
    found = load(backend)
    for change in state_guard.diff_and_restore(before):
        print(f"note: its import {change}")
    if found.broken or found.missing:
        raise click.ClickException(f"{found.source}: {found.broken or found.missing}")
    races = list(race_backend(found, op, sizes, more["wrong"], seconds))
    if not races:
        raise click.ClickException(f"{found.source}: it has none of the operations that were asked")
    records = [record for race in races for record in race]
    show(f"attnverify bench {backend}", records, [])
    if more["results"]:
        print(f"results: {keep_records(records, Path(more['results']))}")
    return int(any(race[0]["verdict"] != "correct" or race[0]["refused"] for race in races))


bench = Command(
    "bench",
    callback=time_kernel,
    params=[
        click.Argument(["backend"], type=FILE, metavar="BACKEND"),
        click.Option(
            ["--op"], type=Value(OPTIONS["op"]), multiple=True, help="these operations alone"
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
