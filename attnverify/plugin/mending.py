"""
What follows a red run: where no known mistake explains a failure, the search for the one change of
the file that makes it right. What it finds stands beside the finding, and changes no verdict.
"""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from attnverify import options
from attnverify.backends.source import parse_source
from attnverify.catalogue.operation import CATALOGUE
from attnverify.failures.finding import Finding, Mend
from attnverify.failures.plain_data import to_plain
from attnverify.judge.invoke import describe_error
from attnverify.repair.search import find_repairs
from attnverify.report.answer import explains
from attnverify.report.causes.root_causes import RootCause, triage
from attnverify.report.waiting import waiting
from attnverify.session import Verification


def note_mends(run: Verification, tallies: list[dict[str, Any]]) -> None:
    """
    Add a mend, or a note that none was found, to the first failure of each file that must not fail
    and that nothing explains.
    """
    seconds = options.SEEKING.get(run.options.profile, 0.0)
    wanted = [*unexplained(run, tallies).items()] if seconds else []
    for source, cause in wanted:
        own = seconds / len(wanted)
        waiting.say(f"looking for a change of {source} that makes it right, for about {own:.0f} s")
        try:
            found = mend_of(source, cause, own)
        except Exception as error:  # a file may do anything; what was judged stands
            found = (
                f"the search for a change that makes it right broke off ({describe_error(error)})"
            )
        finally:
            waiting.end()
        for sign in cause.signs if found else ():
            for plain in sign.tally["findings"]:
                if not Finding.from_dict(plain).causes:
                    plain |= told(found, plain["notes"])


def told(found: Mend | str, notes: Sequence[str]) -> dict[str, Any]:
    """Return what is told of a finding that had these notes, as plain data."""
    if isinstance(found, Mend):
        return {"mend": to_plain(found)}
    return {"notes": [*dict.fromkeys((*notes, found))]}


def unexplained(run: Verification, tallies: list[dict[str, Any]]) -> dict[str, RootCause]:
    """Find what no mistake explains of what must not fail, by the file that fails."""
    sources = {backend.name: backend.source for backend in run.backends}
    found = dict[str, RootCause]()
    for cause in triage(tallies, run.is_red):
        source, tally = sources.get(cause.backend, ""), cause.shown_by
        is_answer = tally["aspect"] in options.ANSWER and cause.required and not explains(cause)
        if CATALOGUE[tally["operation"]].outside is not None:
            continue  # what stands for the specification is known in this process alone
        if is_answer and parse_source(source).place.endswith(".py"):
            found.setdefault(source, cause)
    return found


def mend_of(source: str, cause: RootCause, seconds: float) -> Mend | str:
    """Return the change that makes right what failed, or say that none was found."""
    tally, place = cause.shown_by, parse_source(source).place
    name = tally["operation"] + "_grad" * (tally["aspect"] == "gradients")
    own = f"{name}_{tally['how']}".removesuffix("_")
    records = [sign.finding.record for sign in cause.signs if sign.tally is tally]
    known = [one.recipe for one in records if one and one.recipe]
    with TemporaryDirectory(prefix="attnverify-repair-") as folder:
        found = find_repairs(source, tally["dtype"], seconds, folder, own, 1, known)
    for mend in found["mend"]:
        calls = f"{found['failing']} calls that failed, {found['passing']} that did not"
        calls = f"in {calls} and {mend['fresh']} fresh ones (tried {mend['at']} changes)"
        beside = f"; {mend['beside']}" if mend["beside"] else ""
        return Mend(place, mend["line"], mend["words"], f"{calls}{beside}")
    if not found["tried"]:
        return ""
    if found["all"]:
        return f"no single change of {Path(place).name} makes it right ({found['tried']} tried)"
    tried = f"none of the first {found['tried']} changes of {Path(place).name} makes it right"
    return f"{tried}; more of them: attnverify repair {source} --dtype {tally['dtype']}"
