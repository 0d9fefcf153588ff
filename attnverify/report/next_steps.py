"""
What to do next, in one line each: after a failure, a backend that is not there, or a run in which
nothing was judged.
"""

import shlex
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnverify.backends.declarations import NO_GRADIENT, Declarations
from attnverify.backends.loader import HAS_OTHERS
from attnverify.backends.source import parse_source
from attnverify.catalogue.traits import DTYPES
from attnverify.judge.errors import DOES_NOT_COMPILE
from attnverify.options import FAILURES
from attnverify.report.root_causes import triage
from attnverify.verdicts.found_out import ABOUT_DTYPES

if TYPE_CHECKING:
    from attnverify.session import Verification


def next_steps(
    run: "Verification", tallies: list[dict[str, Any]], page: str | None, is_cut: bool = False
) -> Iterator[str]:
    """
    Write the lines that follow the table; the failure to see first is that of the lowest root
    cause that was recorded. ``page`` is where the report went; a run that was cut says so itself.
    """
    replays = {number: cause.replay for number, cause in enumerate(triage(tallies), 1)}
    recorded = next((number for number, replay in replays.items() if replay), 0)
    if recorded:
        which = "the first root cause" if recorded == 1 else f"root cause {recorded}"
        kept = failures_option(run.options.failures)
        yield f"next, to see {which} again: {replays[recorded]}{kept}"
    if page:
        yield f"report: {page}"
    elif recorded:
        yield "next, for a page with pictures of the failures: the same line with --report out.html"
    for backend in run.backends:
        yield from for_backend(backend)
    unusable = any(backend.broken or backend.missing for backend in run.backends)
    if not (tallies or is_cut or unusable):
        if run.operations:
            yield from name_what_is_there(run)
        yield "next, for the names of the operations, by which functions are found: attnverify list"


def name_what_is_there(run: "Verification") -> Iterator[str]:
    """Say of each backend what it has, where nothing of it was asked for."""
    for backend in run.backends:
        there = [one.operation for one in backend.implementations]
        found = dict.fromkeys(one.name for one in there if not one.is_gradient)
        asked = " --op ".join(run.operations)
        yield f"{backend.source} has {', '.join(found)}, and nothing of --op {asked}"


def lines_to_add(
    tallies: list[dict[str, Any]], declared: Mapping[str, Declarations]
) -> Iterator[str]:
    """
    List what was found out of a backend that it may declare beside what it declares, each with
    the line.
    """
    found: dict[tuple[str, str], dict[str, list[str]]] = {}
    for tally in tallies:
        name = declaration(tally["reason"])
        if tally["verdict"] == "unsupported" and name:
            reasons = found.setdefault((tally["backend"], name), {})
            reasons.setdefault(tally["reason"], []).append(tally["dtype"])
    for (backend, name), reasons in found.items():
        told = [f"{reason} ({', '.join(dict.fromkeys(d))})" for reason, d in reasons.items()]
        without = {dtype for dtypes in reasons.values() for dtype in dtypes}
        yield f"{backend} {'; '.join(told)}; if meant so, add"
        yield f"  {line_of(name, without, declared.get(backend, Declarations()))}"
    yield from describe_uncompiled(tallies)


def declaration(reason: str) -> str:
    """Name what a file declares by which the reason says; "" where nothing does."""
    if reason == NO_GRADIENT:
        return "FEATURES"
    return "DTYPES" if reason.startswith(ABOUT_DTYPES) else ""


def line_of(name: str, without: set[str], declared: Declarations) -> str:
    """Write a declaration; of the dtypes those that are left."""
    if name == "FEATURES":
        return declared.line_without("gradient")
    return f"{name} = {tuple(x for x in DTYPES if x not in without)}".replace("'", '"')


def describe_uncompiled(tallies: list[dict[str, Any]]) -> Iterator[str]:
    """Say of each backend how many calls its kernels were not compiled for, and why."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for tally in tallies:
        for reason, count in tally["reasons"].items():
            if reason.startswith(DOES_NOT_COMPILE):
                found[tally["backend"]][reason] += count
    for backend, reasons in found.items():
        why, _ = reasons.most_common(1)[0]
        yield f"{backend} {why}: {reasons.total()} calls were left out"


def see_its_import(backend: Any) -> Iterator[str]:
    """Say how to import a file as it wants to be: alone, or as a part of its package."""
    path = Path(parse_source(backend.source).place).absolute()
    if "relative import" not in backend.broken or not (path.parent / "__init__.py").exists():
        yield f"next, to see where its import fails: python {shlex.quote(backend.source)}"
        return
    root = next(folder for folder in path.parents if not (folder / "__init__.py").exists())
    name = ".".join(path.relative_to(root).with_suffix("").parts)
    go = "" if root == Path.cwd() else f"cd {shlex.quote(str(root))} && "
    yield f"next, it is a part of a package, judge it as one: {go}attnverify run {name}"


def is_file(backend: Any) -> bool:
    """Tell whether a backend is a file that is there."""
    return backend.source.endswith(".py") and "FileNotFoundError" not in backend.broken


def failures_option(failures: str) -> str:
    return "" if failures == FAILURES else f" --failures {shlex.quote(failures)}"


def for_backend(backend: Any) -> Iterator[str]:
    """Say what its author can do about a backend that could not be judged."""
    if backend.missing and backend.missing_package:
        yield (
            f"next, for {backend.source}: install the package {backend.missing_package}; what "
            "attnverify itself can use, and how to get it: attnverify doctor"
        )
    elif (backend.broken or "").startswith("cannot be imported") and is_file(backend):
        yield from see_its_import(backend)
    elif (backend.broken or "").startswith("names no operation"):
        yield from name_the_operation(backend)
        yield "next, for the names of the operations, by which functions are found: attnverify list"


def name_the_operation(backend: Any) -> Iterator[str]:
    """Say how to tell which operation a function is that has a name of its own."""
    place = shlex.quote(backend.source)
    if parse_source(backend.source).function:
        yield f"next, say which operation it is: attnverify run {place}=OPERATION"
    elif HAS_OTHERS in backend.broken:
        yield f"next, say which operation one of them is: attnverify run {place}:FUNCTION=OPERATION"
