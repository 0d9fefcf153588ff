"""
Verify attention kernels against the law: every operation, hard inputs, derived error bounds.

Begin with: attnverify run --backend my_kernel.py
"""

# What a command needs is imported when it runs: attnverify doctor answers also where numpy cannot
# be imported.
import argparse
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnverify import PACKAGE
from attnverify.gpu_report import runner as gpu_report
from attnverify.options import CAMPAIGN, FAILURES, OPTIONS
from attnverify.precision import DTYPES

if TYPE_CHECKING:
    from attnverify.failures.record import FailureRecord
    from attnverify.isolation.supervisor import Worker

STATUS = """Exit status: 0 everything passed (or failed as known), 1 something failed,
             2 a backend is broken or missing, nothing was judged, or the run was interrupted,
             3 an error of attnverify itself, 4 an option is wrong"""

PLAIN = "Exit status: 0 done, 2 an argument is wrong or a file cannot be read"

Shown = Callable[[argparse.Namespace], int]


def main(arguments: list[str] | None = None) -> int:
    """Entry point of the console script; returns the exit status."""
    given = sys.argv[1:] if arguments is None else arguments
    try:
        if given[:1] == ["run"] and not {"-h", "--help"} & set(given):
            return run(given[1:])
        chosen = parser().parse_args(given)
        shown: int = chosen.shown(chosen)
    except ImportError as error:
        print(
            f"attnverify: {error}; attnverify doctor says what is missing on this machine",
            file=sys.stderr,
        )
        return 2
    return shown


def parser() -> argparse.ArgumentParser:
    """
    The parser of every command: each says what it does in a sentence, gives an example, and what
    its exit status means.
    """
    whole = argparse.ArgumentParser(
        prog="attnverify",
        description=__doc__,
        epilog=STATUS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = whole.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(
        name: str, shown: Shown, does: str, example: str, status: str = PLAIN
    ) -> argparse.ArgumentParser:
        made = commands.add_parser(
            name,
            help=does[0].lower() + does[1:].rstrip("."),
            description=does,
            epilog=f"Example: {example}\n{status}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        made.set_defaults(shown=shown)
        return made

    add_judging(command)
    add_reading(command)
    return whole


def add_judging(command: Callable[..., argparse.ArgumentParser]) -> None:
    """The commands that run a backend."""
    judge = command(
        "run",
        unreachable,
        "Judge backends by the law.",
        "attnverify run --backend my_kernel.py --op softmax --report out.html",
        RUN,
    )
    for name, words in OPTIONS.items():
        judge.add_argument(name, **words)
    hours = command(
        "campaign",
        show_campaign,
        "Judge for hours, on many cores or machines.",
        "attnverify campaign --hours 2",
        STATUS,
    )
    for name, words in CAMPAIGN.items():
        hours.add_argument(name, **words)
    again = command(
        "replay",
        show_again,
        "Show a recorded failure again.",
        "attnverify replay 67d901747637 --backend my_kernel.py",
        REPLAY,
    )
    again.add_argument("hash", help="the hash that the failure printed, or the path of its record")
    again.add_argument("--backend", help="another backend than the one that failed first")
    again.add_argument(
        "--failures",
        default=FAILURES,
        metavar="DIR",
        help=f"where it was recorded (default: {FAILURES})",
    )
    again.add_argument(
        "--case-seconds",
        type=float,
        default=60.0,
        metavar="S",
        help="time limit, for a backend given by path",
    )
    again.add_argument(
        "--memory",
        type=int,
        default=0,
        metavar="MB",
        help="memory limit, for a backend given by path",
    )
    again.add_argument(
        "--script",
        action="store_true",
        help="print a program that shows it with NumPy and your library alone",
    )
    which = command(
        "identify",
        show_cards,
        "Say which conventions each implementation of a backend follows.",
        "attnverify identify my_kernel.py",
    )
    which.add_argument("backend", help="name or path, as --backend takes it")
    which.add_argument("--dtype", choices=DTYPES, default="float32")
    which.add_argument("--json", action="store_true", help="the cards for a machine")
    score = command(
        "score",
        show_score,
        "Measure your own test: how many of the seeded faults it notices.",
        "attnverify score my_test.py",
    )
    score.add_argument(
        "file", help="defines check_<operation>(function), which raises if the function is wrong"
    )
    score.add_argument(
        "--json", metavar="FILE", help="write what was killed and what survived as JSON"
    )
    gpu = command(
        "gpu-report",
        show_gpu_report,
        "Run everything that wants a GPU, and keep what comes out.",
        "attnverify gpu-report",
        GPU,
    )
    gpu_report.add_options(gpu)


RUN = f"Every other option is pytest's: -n 2 for two processes, -q, -x, -k ...\n{STATUS}"
GPU = "Exit status: 0 every step passed, 1 a step failed, 2 a step was not run: each says why"
REPLAY = (
    "Exit status: 0 it passes now, 1 it fails again, 2 there is no such record, or the "
    "backend does not support the case"
)


COMPLETE = "attnverify completion bash > ~/.local/share/bash-completion/completions/attnverify"
BENCH = "Exit status: 0, or 2 where there are no results, or what shows them is not installed"
DOCTOR = "Exit status: 0 pytest -m differential can run here, 1 it cannot"


def add_reading(command: Callable[..., argparse.ArgumentParser]) -> None:
    """The commands that read, and judge nothing."""
    command(
        "doctor",
        show_health,
        "Say what this machine can run and what is missing, in words.",
        "attnverify doctor",
        DOCTOR,
    )
    command(
        "list",
        show_list,
        "List the operations of the catalogue and their parameters.",
        "attnverify list",
    )
    page = command(
        "page",
        show_page,
        "Make the page of a report that was saved as JSON.",
        "attnverify page report.json -o report.html",
    )
    page.add_argument("report", help="what attnverify run --report-json wrote")
    page.add_argument(
        "-o", "--output", metavar="FILE", help="where the page goes (default: beside the report)"
    )
    bench = command(
        "bench-report",
        show_bench,
        "Show what was measured: tables, goals, and one page.",
        "attnverify bench-report -o bench.html",
        BENCH,
    )
    bench.add_argument(
        "--results",
        default="benchmarks/results",
        metavar="DIR",
        help="where they are (default: benchmarks/results)",
    )
    bench.add_argument(
        "--device", metavar="NAME", help="one device alone, by the name of its folder"
    )
    bench.add_argument(
        "-o", "--output", metavar="FILE", help="write a page of HTML with plots, too"
    )
    shell = command(
        "completion",
        show_completion,
        "Print what completes attnverify at the prompt of a shell.",
        COMPLETE,
    )
    shell.add_argument("shell", choices=("bash", "zsh", "fish"))
    state = command(
        "matrix",
        show_matrix,
        "Print the README's matrix of a saved report.",
        "attnverify matrix report.json",
    )
    state.add_argument("report", help="what attnverify run --report-json wrote")


def unreachable(_: argparse.Namespace) -> int:
    raise AssertionError("answered by main")


def run(options: list[str]) -> int:
    """``pytest -m differential`` on the importable body, from anywhere."""
    import pytest

    body = PACKAGE / "differential.py"
    isolated = [
        "-c",
        str(body.with_name("pytest.ini")),
        "--rootdir",
        ".",
        "-o",
        "cache_dir=.attnverify/cache",
    ]
    return int(
        pytest.main(
            ["-p", "attnverify.plugin", *isolated, "-q", "-rN", "--no-header", str(body), *options]
        )
    )


def show_campaign(chosen: argparse.Namespace) -> int:
    from attnverify.campaign.engine import campaign

    return campaign(chosen)


def saved(path: str) -> dict[str, Any]:
    """A report that was saved as JSON. Raises ValueError where the file is no such thing."""
    import json

    try:
        report = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"report: wanted what --report-json wrote, got {path} ({error})") from None
    if not isinstance(report, dict) or not isinstance(report.get("tallies"), list):
        raise ValueError(
            f"report: wanted what --report-json wrote, got {path}, which has no tallies"
        )
    return report


def show_completion(chosen: argparse.Namespace) -> int:
    from attnverify.catalogue.operation import CATALOGUE
    from attnverify.cli.completion import completion

    operations = tuple(name for name, operation in CATALOGUE.items() if not operation.is_gradient)
    print(completion(parser(), chosen.shell, operations), end="")
    return 0


def show_health(_: argparse.Namespace) -> int:
    from attnverify import doctor

    return doctor.main()


def show_gpu_report(chosen: argparse.Namespace) -> int:
    return gpu_report.main(chosen)


def show_bench(chosen: argparse.Namespace) -> int:
    from attnverify.bench.report.overview import report

    return report(
        Path(chosen.results), chosen.device, Path(chosen.output) if chosen.output else None
    )


def show_matrix(chosen: argparse.Namespace) -> int:
    from attnverify.report.readme_matrix import readme_matrix

    try:
        print("\n".join(readme_matrix(saved(chosen.report)["tallies"])))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def show_page(chosen: argparse.Namespace) -> int:
    """The page of a report, beside it unless another place is named."""
    from attnverify.report.html import report_page

    path = Path(chosen.output or Path(chosen.report).with_suffix(".html"))
    try:
        path.write_text(report_page(saved(chosen.report)), encoding="utf-8", errors="replace")
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    print(f"report: {path}")
    return 0


def show_score(chosen: argparse.Namespace) -> int:
    """How many faults a stranger's own checks notice, and what reveals those that they do not."""
    import json

    from attnverify.backends.loader import describe
    from attnverify.faults.user_tests import measure_user_tests

    try:
        found = measure_user_tests(chosen.file)
    except Exception as error:  # a stranger's file may do anything while it is imported
        print(f"{chosen.file}: {describe(error)}", file=sys.stderr)
        return 2
    print("\n".join(line for check in found for line in check.lines()))
    if chosen.json:
        Path(chosen.json).write_text(
            json.dumps([check.as_dict() for check in found], indent=1) + "\n"
        )
    return 0


def show_list(_: argparse.Namespace) -> int:
    from attnverify.catalogue.operation import CATALOGUE

    for name, operation in CATALOGUE.items():
        print(f"{name}({', '.join(operation.arguments)})")
    return 0


def show_cards(chosen: argparse.Namespace) -> int:
    """
    One card for each implementation: its answer to each question, and the law's where that is
    another.
    """
    import json

    from attnverify.backends.loader import load
    from attnverify.diagnosis.identify import identify

    backend = load(chosen.backend)
    if backend.broken or backend.missing:
        print(f"{backend.source}: {backend.broken or backend.missing}", file=sys.stderr)
        return 2
    cards = identify(backend, chosen.dtype)
    print(
        json.dumps([card.as_dict() for card in cards], indent=1)
        if chosen.json
        else "\n\n".join("\n".join(card.lines()) for card in cards)
    )
    return 0 if cards else 2


def show_again(chosen: argparse.Namespace) -> int:
    """Judge the recorded recipe once more, on the backend that failed or on another."""
    from attnverify.failures import record
    from attnverify.isolation.supervisor import Limits, Worker, runs_in_own_process

    try:
        failure = record.find_record(chosen.hash, chosen.failures)
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    source = chosen.backend or failure.backend
    with closing(Worker(source, Limits(chosen.case_seconds, chosen.memory))) as worker:
        return show(
            chosen, failure, worker if runs_in_own_process(source, "paths") else None, source
        )


def show(
    chosen: argparse.Namespace, failure: "FailureRecord", worker: "Worker | None", source: str
) -> int:
    """The same with the backend in a process of its own, or in this one."""
    from attnverify.backends.loader import load
    from attnverify.failures.replay import replay
    from attnverify.failures.script import script
    from attnverify.isolation.supervisor import WorkerDied, describe_backend, replay_in_worker
    from attnverify.judge.errors import Disagreement, Unsupported

    backend = describe_backend(worker) if worker else load(source)
    candidates = [i for i in backend.implementations if i.operation.name == failure.operation]
    named = [i for i in candidates if i.name == failure.implementation] or candidates
    if backend.broken or backend.missing or not named:
        print(
            f"{backend.source}: "
            f"{backend.broken or backend.missing or f'has no {failure.operation}'}",
            file=sys.stderr,
        )
        return 2
    try:
        if chosen.script:
            print(
                replay_in_worker(worker, failure, named[0].name, script=True)
                if worker
                else script(failure, named[0])
            )
            return 0
        budget = (
            replay_in_worker(worker, failure, named[0].name)
            if worker
            else replay(failure, named[0])
        )
    except (Disagreement, WorkerDied) as error:
        print(
            f"{named[0].name} of {backend.source} in {failure.dtype} ({failure.aspect})\n  "
            f"{error}\n  recipe: {failure.words}"
        )
        return 1
    except Unsupported as reason:
        print(f"unsupported: {reason}")
        return 2
    print(f"passed, {budget:.2g}x of the bound")
    return 0
