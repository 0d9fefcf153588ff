"""The commands that judge: ``run`` and ``campaign``."""

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from attnverify import PACKAGE, describe_installation
from attnverify.backends.source import parse_source
from attnverify.cli.first_look import (
    find_operations,
    find_unreadable,
    only_function,
    operation_of_name,
)
from attnverify.cli.parameters import FILE, STATUS, Command, to_click
from attnverify.cli.pytest_options import PYTEST, to_pytest
from attnverify.device_assignment import check_device
from attnverify.options import CAMPAIGN, RUN, STATE_FOLDER
from attnverify.report.terminal_colours import print_folded
from attnverify.report.waiting import waiting


class RunCommand(Command):
    """``attnverify run``: our options, pytest's that are listed, and after -- any of pytest's."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        head, rest = split_at_dashes(args)
        ctx.meta["rest"] = rest
        return super().parse_args(ctx, head)

    def sections(self, ctx: click.Context) -> dict[str, list[click.Option]]:
        options = super().sections(ctx)["Options"]
        return {
            "Options": [option for option in options if option not in PYTEST],
            "Options of pytest, passed on": list(PYTEST),
        }


def split_at_dashes(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Return the arguments before ``--`` and those after it."""
    if "--" not in arguments:
        return arguments, []
    at = arguments.index("--")
    return arguments[:at], arguments[at + 1 :]


@contextmanager
def report_alone(given: dict[str, Any]) -> Iterator[None]:
    """
    Let standard output be the report alone where --report-json - asks for it; all else that is
    printed, by backends too, then goes to standard error.
    """
    if given["report_json"] != "-":
        yield
        return
    with TemporaryDirectory(prefix="attnverify-report-") as folder:
        report = Path(folder) / "report.json"
        given["report_json"] = str(report)
        sys.stdout.flush()
        kept = os.dup(1)
        os.dup2(2, 1)
        try:
            yield
        finally:
            sys.stdout.flush()
            os.dup2(kept, 1)
            os.close(kept)
        if report.exists():
            sys.stdout.write(report.read_text(encoding="utf-8"))


def judge(backends: tuple[str, ...], **given: Any) -> int:
    """``pytest -m differential`` on the importable body, from anywhere."""
    with report_alone(given):
        return judge_here(backends, given)


def judge_here(backends: tuple[str, ...], given: dict[str, Any]) -> int:
    """The same, wherever standard output goes."""
    named = [f"{function}{operation_of(function, given)}" for function in given.pop("fn")]
    given["backend"] = introduce((*map(partial(with_operation, given), backends), *named), given)
    if not is_worth_a_run(given):
        return NOTHING_JUDGED
    if given["device"]:
        refuse_absent(given["device"])
    given["op"] = operations_of_inputs(given)
    if not given["quiet"]:
        waiting.say(f"loading {', '.join(given['backend'])}")
    try:
        status = run_pytest(
            [*ours(given), *to_pytest(given), *click.get_current_context().meta["rest"]]
        )
    finally:
        waiting.end()
    if given["junitxml"] and Path(given["junitxml"]).exists():
        from attnverify.report.junit import name_cells

        name_cells(given["junitxml"])
    return status


def introduce(backends: tuple[str, ...], given: dict[str, Any]) -> list[str]:
    """
    The backends to judge. They are printed before any library is loaded: somebody waits. Raises
    UsageError where there are none.
    """
    sources = [*backends, *given["backend"]]
    if not sources:
        raise click.UsageError(HOW_TO_NAME_ONE)
    if not given.get("quiet"):
        print_folded([f"{describe_installation()}: {', '.join(sources)}"])
    return sources


def refuse_absent(device: str) -> None:
    """Raise UsageError for a device that is not there, before anything is imported for it."""
    try:
        check_device(device)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


NOTHING_JUDGED = 2


def is_worth_a_run(given: dict[str, Any]) -> bool:
    """
    Tell whether one of the files can be read, or a report of those that cannot is wanted; they are
    printed at once.
    """
    unreadable = [lines for source in given["backend"] if (lines := find_unreadable(source))]
    for lines in unreadable:
        print("\n".join(lines), flush=True)
    wants_report = any(given[name] for name in ("report", "report_json", "junitxml"))
    return wants_report or len(unreadable) < len(given["backend"])


def operations_of_inputs(given: dict[str, Any]) -> tuple[str, ...]:
    """
    Return the operations to judge. With --inputs there is one: where --op does not name it, that of
    the backend's only function, by its name or, once it is loaded, by what it is taken for. Raises
    UsageError where there is another number of them.
    """
    asked: tuple[str, ...] = given["op"]
    if not given["inputs"]:
        return asked
    if given["spec"]:
        return asked  # the specification is the operation
    if not Path(given["inputs"]).is_file():
        raise click.UsageError(f"--inputs: no file {given['inputs']}")
    found = asked or tuple({one for name in given["backend"] for one in find_operations(name)})
    found = found or tuple({one for name in given["backend"] for one in loaded_operations(name)})
    if len(found) != 1:
        there = f" ({', '.join(sorted(found))})" if found else ""
        raise click.UsageError(
            f"--inputs: wanted one operation, by --op, got {len(found)}{there}: a file of arrays "
            "holds the arguments of one"
        )
    return found


def loaded_operations(source: str) -> Iterator[str]:
    """Name the operations, gradients apart, that a backend turns out to have."""
    from attnverify.backends.loader import load

    for one in load(source).implementations:
        yield one.operation.forward.name


HOW_TO_NAME_ONE = """a backend to judge is wanted:
  attnverify run my_kernel.py             a file (or several)
  attnverify run my_package.kernels       a module or a package that can be imported
  attnverify run my_kernel.py:my_softmax --op softmax
  attnverify run --fn torch.nn.functional:scaled_dot_product_attention \\
      --op scaled_dot_product_attention   one function, as an operation
  attnverify run numpy_ref                one of our own: numpy_ref, torch_impl, cupy_impl"""


def with_operation(given: dict[str, Any], source: str) -> str:
    """Let --op say what one function of a file, or its only one, is whose own name does not."""
    asked = parse_source(source)
    says_none = not (asked.function or given["spec"] or find_operations(source))
    if says_none and len(given["op"]) == 1:
        source = f"{source}:{name}" if (name := only_function(source)) else source
        asked = parse_source(source)
    says_it = not asked.function or asked.operation or operation_of_name(asked.name)
    return source if says_it else f"{source}{operation_of(source, given)}"


def operation_of(source: str, given: dict[str, Any]) -> str:
    """What --op makes of one function, whose name may say another thing or nothing."""
    operations = given["op"]
    if len(operations) > 1:
        raise click.UsageError(f"{source}: wanted one --op for it, got {len(operations)}")
    return f"={operations[0]}" if operations else ""


def refuse_hypothesis_seed(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
    if value is not None:
        raise click.UsageError(
            "--hypothesis-seed: what is drawn comes from --seed, Hypothesis' search included: "
            f"write --seed {value}",
            ctx,
        )


FUNCTION = click.Option(
    ["--fn"],
    metavar="MODULE:FUNCTION",
    multiple=True,
    help="judge one function, as the operation of --op",
)
HYPOTHESIS_SEED = click.Option(
    ["--hypothesis-seed"], hidden=True, expose_value=False, callback=refuse_hypothesis_seed
)


def ours(given: dict[str, Any]) -> Iterator[str]:
    """Our options as pytest takes them."""
    for option in RUN:
        value = given[option.name.replace("-", "_")]
        if option.is_flag:
            yield from [option.flag] * value
            continue
        for one in value if option.repeatable else (value,):
            if one is not None:
                yield f"{option.flag}={one}"


def run_pytest(options: list[str]) -> int:
    """Run the differential tests, and nothing of the directory where this is started."""
    import pytest

    isolated = ["-c", str(PACKAGE / "pytest.ini"), "--rootdir", "."]
    isolated += ["-o", f"cache_dir={STATE_FOLDER}/cache", "-q", "-rN", "--no-header"]
    isolated += [
        "--assert=plain"
    ]  # else each start compiles a hundred modules of ours and Hypothesis anew
    body = str(PACKAGE / "differential.py")
    ours = ["-p", "attnverify.plugin", "-p", "attnverify.plugin.command"]
    return int(pytest.main([*ours, *isolated, body, *options]))


run = RunCommand(
    "run",
    callback=judge,
    params=[
        click.Argument(["backends"], nargs=-1, type=FILE, metavar="[BACKEND]..."),
        FUNCTION,
        *to_click(RUN),
        HYPOTHESIS_SEED,
        *PYTEST,
    ],
    help="Judge backends by the specification.\n\nA backend is a file, a module or a package. What "
    "is given after -- goes to pytest as it stands.",
    short_help="Judge backends by the specification.",
    example="attnverify run my_kernel.py --op softmax --report out.html",
    status=STATUS,
)


def judge_for_hours(backends: tuple[str, ...], **given: Any) -> int:
    """The thorough profile, spread over many processes."""
    with report_alone(given):
        given["backend"] = introduce(backends, given)
        from attnverify.campaign.engine import campaign as run_campaign

        return run_campaign(argparse.Namespace(**given))


campaign = Command(
    "campaign",
    callback=judge_for_hours,
    params=[
        click.Argument(["backends"], nargs=-1, type=FILE, metavar="[BACKEND]..."),
        *to_click(CAMPAIGN),
    ],
    help="Judge for hours, on many cores or machines.",
    example="attnverify campaign my_kernel.py --hours 2",
    status=STATUS,
)
