"""The commands about recorded failures: ``replay`` and ``forget``."""

import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from attnverify.cli.parameters import FILE, Command, to_click
from attnverify.options import OPTIONS
from attnverify.report.terminal_colours import print_folded
from attnverify.report.waiting import waiting

if TYPE_CHECKING:
    from attnverify.backends.implementation import Implementation
    from attnverify.failures.record import FailureRecord
    from attnverify.isolation.worker_process import Worker

REPLAY = (
    "Exit status: 0 it passes now, 1 it fails again, 2 there is no such record, or the "
    "backend does not support the case"
)


def replay_records(hashes: tuple[str, ...], script: bool, **given: Any) -> int:
    """Judge the recorded recipes once more, on the backend that failed or on another."""
    statuses = [replay_record(hash, script, **given) for hash in hashes]
    return 1 if 1 in statuses else max(statuses)


def replay_record(hash: str, script: bool, **given: Any) -> int:
    """Judge one of them."""
    from attnverify.failures import record
    from attnverify.isolation.supervisor import runs_in_own_process
    from attnverify.isolation.worker_process import Limits, Worker

    try:
        failure = record.find_record(hash, given["failures"])
    except (ValueError, OSError) as error:
        raise click.ClickException(str(error)) from None
    if drift := failure.describe_drift():
        print(f"warning: {drift}", file=sys.stderr)
    source = given["backend"] or failure.backend
    with closing(Worker(source, Limits(given["case_seconds"], given["memory"]))) as worker:
        there = worker if runs_in_own_process(source, "paths") else None
        with waiting.meanwhile(f"loading {source}", is_silent=script):
            named = find_implementation(failure, there, source)
        return print_script(failure, there, named) if script else judge(failure, there, named)


def find_implementation(
    failure: "FailureRecord", worker: "Worker | None", source: str
) -> "Implementation":
    """Find the backend's implementation that failed, or another of the same operation."""
    from attnverify.isolation.supervisor import describe_backend
    from attnverify.verdicts.found_out import loaded

    backend = describe_backend(worker) if worker else loaded(source)
    candidates = [i for i in backend.implementations if i.operation.name == failure.operation]
    if backend.broken or backend.missing or not candidates:
        reason = backend.broken or backend.missing or f"has no {failure.operation}"
        raise click.ClickException(f"{backend.source}: {reason}")
    return next((i for i in candidates if i.name == failure.implementation), candidates[0])


def print_script(
    failure: "FailureRecord", worker: "Worker | None", implementation: "Implementation"
) -> int:
    """Print the program that shows the failure with NumPy and the user's library alone."""
    from attnverify.failures.scripts.script import script
    from attnverify.isolation.supervisor import replay_in_worker

    print(
        replay_in_worker(worker, failure, implementation.name, script=True)
        if worker
        else script(failure, implementation)
    )
    return 0


def judge(
    failure: "FailureRecord", worker: "Worker | None", implementation: "Implementation"
) -> int:
    """The same with the backend in a process of its own, or in this one."""
    from attnverify.failures.replay import replay
    from attnverify.isolation.supervisor import replay_in_worker
    from attnverify.isolation.worker_process import WorkerDied
    from attnverify.judge.errors import Disagreement, Unsupported

    try:
        with waiting.meanwhile("judging the call once more"):
            budget = (
                replay_in_worker(worker, failure, implementation.name)
                if worker
                else replay(failure, implementation)
            )
    except (Disagreement, WorkerDied) as error:
        source = implementation.backend.source
        told = (
            f"{implementation.name} of {source} in {failure.dtype} ({failure.aspect})\n  "
            f"{error}\n  recipe: {failure.words}"
        )
        print_folded(told.splitlines())
        return 1
    except Unsupported as reason:
        print(f"unsupported: {reason}")
        return 2
    print(f"passed, {budget:.2g}x of the bound")
    return 0


replay = Command(
    "replay",
    callback=replay_records,
    params=[
        click.Argument(["hashes"], nargs=-1, required=True, metavar="HASH..."),
        click.Option(
            ["--backend"], type=FILE, help="another backend than the one that failed first"
        ),
        *to_click(OPTIONS[name] for name in ("failures", "case-seconds", "memory")),
        click.Option(
            ["--script"],
            is_flag=True,
            help="print a program that shows it with NumPy and your library alone",
        ),
    ],
    help="Show recorded failures again.\n\nHASH is what a failure printed, or the path of its "
    "record.",
    short_help="Show recorded failures again.",
    example="attnverify replay 67d901747637 --backend my_kernel.py",
    status=REPLAY,
)


def forget_records(hashes: tuple[str, ...], everything: bool, failures: str) -> int:
    """Remove records and their scripts."""
    from attnverify.failures.store import remove

    if not hashes and not everything:
        raise click.UsageError("wanted the hashes of records, or --all")
    names = ("",) if everything else hashes
    found = {name: sorted(Path(failures).glob(f"{name}*.json")) for name in names}
    for name, paths in found.items():
        if not paths:
            print(
                f"no failure {name} is recorded in {failures}".replace("  ", " "), file=sys.stderr
            )
        for path in paths:
            remove(path)
    print(f"{sum(map(len, found.values()))} forgotten")
    return 0 if all(found.values()) or everything else 2


forget = Command(
    "forget",
    callback=forget_records,
    params=[
        click.Argument(["hashes"], nargs=-1, metavar="[HASH]..."),
        click.Option(["--all", "everything"], is_flag=True, help="every failure that is recorded"),
        *to_click([OPTIONS["failures"]]),
    ],
    help="Remove recorded failures, which would be tried first in every run.",
    example="attnverify forget 67d901747637",
    status="Exit status: 0 done, 2 there is no such record, 4 an option is wrong",
)
