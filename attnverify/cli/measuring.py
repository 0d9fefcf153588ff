"""The commands that ask: conventions of a backend, its mend, a user's test, a tolerance."""

import json
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from attnverify.backends.source import parse_source
from attnverify.cli.parameters import FILE, Command, Value
from attnverify.options import OPTIONS
from attnverify.report.waiting import waiting


def print_cards(backend: str, dtype: str, as_json: bool) -> int:
    """
    One card for each implementation: its answer to each question, and the specification's where
    that is another.
    """
    from attnverify.backends.loader import load
    from attnverify.diagnosis.identification.identify import identify as identify_all

    loaded = load(backend)
    if loaded.broken or loaded.missing:
        raise click.ClickException(f"{loaded.source}: {loaded.broken or loaded.missing}")
    cards = identify_all(loaded, dtype)
    print(
        json.dumps([card.as_dict() for card in cards], indent=1)
        if as_json
        else "\n\n".join("\n".join(card.lines()) for card in cards)
    )
    return 0 if cards else 2


identify = Command(
    "identify",
    callback=print_cards,
    params=[
        click.Argument(["backend"], type=FILE, metavar="BACKEND"),
        click.Option(
            ["--dtype"],
            type=Value(OPTIONS["dtype"]),
            default="float32",
            help="in which it is asked",
        ),
        click.Option(["--json", "as_json"], is_flag=True, help="the cards for a machine"),
    ],
    help="Say which conventions each implementation of a backend follows.",
    example="attnverify identify my_kernel.py",
)


def print_repairs(file: str, dtype: str, seconds: float) -> int:
    """Which single changes of a file make it right; status 1 where none was found."""
    from attnverify.repair.search import find_repairs
    from attnverify.report.table import number_of

    place = parse_source(file).place
    if not place.endswith(".py") or not Path(place).is_file():
        raise click.UsageError(f"FILE: wanted a Python file, got {file}")
    name, found = Path(place).name, dict[str, Any](mend=[], tried=0)

    def tell(so_far: dict[str, Any]) -> None:
        found.update(so_far)
        waiting.go_on(f"{found['tried']} changes tried, right with {len(found['mend'])} of them")

    with TemporaryDirectory(prefix="attnverify-repair-") as folder:
        try:
            with waiting.meanwhile(f"trying single changes of {file}, for about {seconds:.0f} s"):
                found = find_repairs(file, dtype, seconds, folder, tell=tell)
        except ValueError as error:
            raise click.ClickException(str(error)) from None
        except KeyboardInterrupt:
            print(
                f"interrupted: of the first {found['tried']} single changes of {name} "
                f"{'these make' if found['mend'] else 'none makes'} it right"
            )
            print_mends(name, found["mend"])
            print(f"next, for an end that is known: attnverify repair {file} --seconds 30")
            return 2
    failing = number_of(found["failing"], "call")
    print(f"{found['name']} in {dtype}: {failing} wrong; {found['passing']} that are right stay so")
    tried = f"{'all' if found['all'] else 'the first'} {found['tried']} single changes of {name}"
    if not found["mend"]:
        unchanged = "; its CUDA C++ was left as it is" * (b"__global__" in Path(place).read_bytes())
        print(f"none of {tried} makes it right{unchanged}")
        return 1
    print(f"of {tried} these make it right, on fresh calls too:")
    print_mends(name, found["mend"])
    return 0


def print_mends(name: str, mends: Sequence[dict[str, Any]]) -> None:
    """Name the line of each change, and what it is."""
    for x in mends:
        print(f"  {name}:{x['line']}: right {x['words']}{x['beside'] and '; ' + x['beside']}")


repair = Command(
    "repair",
    callback=print_repairs,
    params=[
        click.Argument(["file"], type=FILE, metavar="FILE"),
        click.Option(
            ["--dtype"],
            type=Value(OPTIONS["dtype"]),
            default="float32",
            help="in which it is wrong",
        ),
        click.Option(
            ["--seconds"], type=float, default=120.0, metavar="S", help="how long it looks"
        ),
    ],
    help="Look for the single change of a wrong file that makes it right: a statement moved, an "
    "operator, a number, a name or a part for another.\n\nFILE is named as run takes it, as "
    "FILE:FUNCTION or FILE:CLASS=OPERATION too. Copies of it with a change are run, in a process "
    "of their own.",
    short_help="Look for the single change that makes a wrong file right.",
    example="attnverify repair my_kernel.py",
    status="Exit status: 0 a change makes it right, 1 none of those tried does, 2 FILE cannot be "
    "judged or nothing of it is wrong, 4 an option is wrong",
)


def print_score(file: str, json_file: str | None) -> int:
    """How many faults a user's own checks notice, and what reveals those that they do not."""
    from attnverify.backends.modules import describe
    from attnverify.faults.user_tests import measure_user_tests

    try:
        found = measure_user_tests(file)
    except Exception as error:  # a user's file may do anything while it is imported
        words = describe(error).removeprefix("ValueError: ").removeprefix(f"{file}: ")
        raise click.ClickException(f"{file}: {words}") from None
    print("\n".join(line for check in found for line in check.lines()))
    if json_file:
        entries = [check.as_dict() for check in found]
        Path(json_file).write_text(json.dumps(entries, indent=1) + "\n")
    return 0


score = Command(
    "score",
    callback=print_score,
    params=[
        click.Argument(["file"], type=FILE, metavar="FILE"),
        click.Option(
            ["--json", "json_file"],
            type=FILE,
            metavar="FILE",
            help="write what was killed and what survived as JSON",
        ),
    ],
    help="Measure your own test: how many of the seeded faults it notices.\n\nFILE defines "
    "check_<operation>(function), which raises if the function is wrong.",
    short_help="Measure your own test: how many of the seeded faults it notices.",
    example="attnverify score my_test.py",
)


def print_holes(operations: tuple[str, ...], rule: str, dtype: str, seed: int) -> int:
    """How many faults a tolerance notices; of one rule also what it lets pass."""
    from attnverify.catalogue.operation import CATALOGUE
    from attnverify.faults.tolerances import SUITES, measure_tolerance, parse_tolerance

    try:
        chosen = [CATALOGUE[name] for name in operations]
        rules = {words: parse_tolerance(words) for words in ([rule] if rule else SUITES)}
    except ValueError as error:
        raise click.UsageError(f"--{error}") from None
    for words, tolerance in rules.items():
        found = [measure_tolerance(operation, tolerance, dtype, seed) for operation in chosen]
        for each in found:
            each.name = f"{words}: {each.name}"
            print("\n".join(islice(each.lines(), None if rule else 1)))
    return 0


holes = Command(
    "holes",
    callback=print_holes,
    params=[
        click.Argument(
            ["operations"],
            type=Value(OPTIONS["op"]),
            metavar="OPERATION...",
            nargs=-1,
            required=True,
        ),
        click.Option(
            ["--rule"],
            default="",
            metavar="RULE",
            help='"atol=1e-2, rtol=1e-2", "rms=5e-3", or a suite\'s name; all suites otherwise',
        ),
        click.Option(
            ["--dtype"], type=Value(OPTIONS["dtype"]), default="bfloat16", help="of the calls"
        ),
        click.Option(["--seed"], type=int, default=0, metavar="N", help="of the numbers drawn"),
    ],
    help="Say what a tolerance lets pass: which of the seeded faults it accepts in ordinary calls, "
    "of everyday sizes and standard normal numbers.",
    short_help="Say which of the seeded faults a tolerance lets pass.",
    example='attnverify holes grouped_attention --rule "atol=1e-2, rtol=1e-2"',
)
