"""
The command line: ``verify run``, ``verify campaign``, ``verify replay``, ``verify score``, ``verify identify``,
``verify list``, ``verify matrix``.

Exit status: 0 everything passed (or failed as known), 1 something failed, 2 a backend is broken, missing, or nothing was judged.
"""

import argparse
import json
import sys
from contextlib import closing
from pathlib import Path

import pytest

from verify import replay
from verify.backends import describe, load
from verify.catalogue import CATALOGUE, DTYPES
from verify.identify import identify
from verify.isolation import Died, Limits, Worker, described, isolated, see_again
from verify.judge import Disagreement, Unsupported
from verify.report import matrix


def main(arguments: list[str] | None = None) -> int:
    """Entry point of the console script; returns the exit status."""
    given = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(prog="verify", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("run", add_help=False, help="judge backends: takes the options of pytest -m differential")
    commands.add_parser("campaign", add_help=False, help="the thorough profile for hours, spread over processes and machines")
    again = commands.add_parser("replay", help="show a recorded failure again")
    again.add_argument("hash", help="the hash that the failure printed, or the path of its record")
    again.add_argument("--backend", help="another backend than the one that failed first")
    again.add_argument("--failures", default=".verify/failures", metavar="DIR")
    again.add_argument("--case-seconds", type=float, default=60.0, metavar="S", help="time limit, for a backend given by path")
    again.add_argument("--memory", type=int, default=0, metavar="MB", help="memory limit, for a backend given by path")
    again.add_argument("--script", action="store_true", help="print a stand-alone script instead")
    which = commands.add_parser("identify", help="which conventions each implementation of a backend follows")
    which.add_argument("backend", help="name or path, as --backend takes it")
    which.add_argument("--dtype", choices=DTYPES, default="float32")
    which.add_argument("--json", action="store_true", help="the cards for a machine")
    commands.add_parser("list", help="the operations of the catalogue and their parameters")
    score = commands.add_parser("score", help="how many of the seeded faults your own test notices")
    score.add_argument("file")
    score.add_argument("--json", metavar="FILE", help="write what was killed and what survived as JSON")
    state = commands.add_parser("matrix", help="the README's matrix, from what --report-json wrote")
    state.add_argument("report")
    if given[:1] == ["run"]:
        return run(given[1:])
    if given[:1] == ["campaign"]:
        return campaign(given[1:])
    chosen = parser.parse_args(given)
    shown = {"list": show_list, "matrix": show_matrix, "replay": show_again, "score": show_score, "identify": show_cards}
    return shown[chosen.command](chosen)


def run(options: list[str]) -> int:
    """``pytest -m differential`` on the importable body, from anywhere."""
    body = Path(__file__).with_name("differential.py")
    isolated = ["-c", str(body.with_name("pytest.ini")), "--rootdir", ".", "-o", "cache_dir=.verify/cache"]
    return int(pytest.main(["-p", "verify.plugin", *isolated, "-q", "-rN", "--no-header", str(body), *options]))


def campaign(options: list[str]) -> int:
    """Imported here, for it brings the pytest plugin along, which pytest wants to import itself."""
    from verify.campaign import main

    return main(options)


def show_matrix(chosen: argparse.Namespace) -> int:
    print("\n".join(matrix(json.loads(Path(chosen.report).read_text())["tallies"])))
    return 0


def show_score(chosen: argparse.Namespace) -> int:
    """How many faults a stranger's own checks notice, and what reveals those that they do not."""
    from verify.faults.strangers import measure

    try:
        found = measure(chosen.file)
    except Exception as error:  # a stranger's file may do anything while it is imported
        print(f"{chosen.file}: {describe(error)}", file=sys.stderr)
        return 2
    print("\n".join(line for check in found for line in check.lines()))
    if chosen.json:
        Path(chosen.json).write_text(json.dumps([check.as_dict() for check in found], indent=1) + "\n")
    return 0


def show_list(_: argparse.Namespace) -> int:
    for name, operation in CATALOGUE.items():
        print(f"{name}({', '.join(operation.arguments)})")
    return 0


def show_cards(chosen: argparse.Namespace) -> int:
    """One card for each implementation: its answer to each question, and the law's where that is another."""
    backend = load(chosen.backend)
    if backend.broken or backend.missing:
        print(f"{backend.source}: {backend.broken or backend.missing}", file=sys.stderr)
        return 2
    cards = identify(backend, chosen.dtype)
    print(
        json.dumps([card.as_dict() for card in cards], indent=1) if chosen.json else "\n\n".join("\n".join(card.lines()) for card in cards)
    )
    return 0 if cards else 2


def show_again(chosen: argparse.Namespace) -> int:
    """Judge the recorded recipe once more, on the backend that failed or on another."""
    try:
        failure = replay.find(chosen.hash, chosen.failures)
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    source = chosen.backend or failure.backend
    with closing(Worker(source, Limits(chosen.case_seconds, chosen.memory))) as worker:
        return show(chosen, failure, worker if isolated(source, "paths") else None, source)


def show(chosen: argparse.Namespace, failure: replay.Failure, worker: Worker | None, source: str) -> int:
    """The same with the backend in a process of its own, or in this one."""
    backend = described(worker) if worker else load(source)
    candidates = [i for i in backend.implementations if i.operation.name == failure.operation]
    named = [i for i in candidates if i.name == failure.implementation] or candidates
    if backend.broken or backend.missing or not named:
        print(f"{backend.source}: {backend.broken or backend.missing or f'has no {failure.operation}'}", file=sys.stderr)
        return 2
    try:
        if chosen.script:
            print(see_again(worker, failure, named[0].name, script=True) if worker else replay.script(failure, named[0]))
            return 0
        budget = see_again(worker, failure, named[0].name) if worker else replay.judge_again(failure, named[0])
    except (Disagreement, Died) as error:
        print(f"{named[0].name} of {backend.source} in {failure.dtype} ({failure.aspect})\n  {error}\n  recipe: {failure.words}")
        return 1
    except Unsupported as reason:
        print(f"unsupported: {reason}")
        return 2
    print(f"passed, {budget:.2g}x of the bound")
    return 0


if __name__ == "__main__":
    sys.exit(main())
