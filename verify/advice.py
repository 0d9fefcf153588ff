"""What to do next, in one line each: after a failure, a backend that is not there, or a run in which nothing was judged."""

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from verify.options import FAILURES
from verify.triage import told_in_full

if TYPE_CHECKING:
    from verify.plugin import Verification


def advice(run: "Verification", tallies: list[dict[str, Any]], page: str | None) -> Iterator[str]:
    """The lines that follow the table. The first failure is that of the lowest root cause; ``page`` is where the report went, if anywhere."""
    replays = [exhibit["replay"] for tally in told_in_full(tallies) for exhibit in tally["exhibits"].values()]
    if replays:
        yield f"next: {replays[0]}{folder(run.options.failures)}  shows the first root cause again"
    if page:
        yield f"report: {page}"
    elif replays:
        yield "next: --report out.html  writes a page with pictures of every failure"
    for backend in run.backends:
        yield from for_backend(backend)
    if not tallies and not any(backend.broken or backend.missing for backend in run.backends):
        yield "next: verify list  names the operations; a function of such a name is judged, --op and --dtype choose among them"


def folder(failures: str) -> str:
    return "" if failures == FAILURES else f" --failures {shlex.quote(failures)}"


def for_backend(backend: Any) -> Iterator[str]:
    """What its author can do about a backend that could not be judged."""
    if backend.missing and (package := absent(backend.missing)):
        yield f"next: install the package {package} (verify doctor says how for those it knows), then judge {backend.source}"
    elif backend.broken and backend.source.endswith(".py"):
        yield f"next: python {shlex.quote(backend.source)}  shows where its import fails"


def absent(missing: str) -> str:
    """The package that is not installed, where that is why a backend is missing."""
    head, tail = "the package ", " is not installed"
    return missing.removeprefix(head).removesuffix(tail) if missing.startswith(head) and missing.endswith(tail) else ""
