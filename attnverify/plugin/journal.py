"""
A run that was broken off goes on by ``--resume``, and says what it has not judged.
"""

from typing import Any

import pytest

from attnverify.failures.record import FailureRecord
from attnverify.failures.store import save_or_say
from attnverify.report.next_steps import Cut, failures_option
from attnverify.report.table import number_of
from attnverify.verdicts.journal import Journal, fingerprint, journal_of
from attnverify.verdicts.tally import Options


def open_journal(config: pytest.Config, sources: list[str], settings: Any) -> Journal | None:
    """
    Open the journal of a run: to go on with what was broken off, where that is asked for, and else
    from the beginning. Workers of pytest-xdist write into that of their controller.
    """
    given = getattr(config, "workerinput", None)
    if given is None and settings is None:
        return None
    name = fingerprint(sources, settings) if given is None else given.get("attn_journal")
    if not name:
        return None
    journal = journal_of(name)
    if config.getoption("attn_resume"):
        journal.read()
    elif given is None:
        journal.forget()
    return journal


def tell_cut(cut: Cut, judged: int, minutes: float | None) -> list[str]:
    """Say which cells a run had no time for, or has not reached."""
    if not cut.left:
        return []
    aspects = dict[str, list[str]]()
    for cell in cut.left:
        own = cell.implementation
        whose = f"{own.name} of {own.backend.name} in {cell.dtype}"
        aspects.setdefault(whose, []).append(cell.aspect)
    told = [f"{own} ({', '.join(kinds)})" for own, kinds in aspects.items()]
    named = "; ".join(told[:TOLD])
    why = "not finished" if minutes is None else f"cut by --minutes {minutes:g}"
    rest = f" and {len(told) - TOLD} more" if len(told) > TOLD else ""
    return [
        f"{why}: {len(cut.left)} of {len(cut.left) + judged} cells were not judged, and "
        f"nothing is known of them: {named}{rest}",
        "next, to judge them too: the same line with --resume",
    ]


TOLD = 3
"""Of so many implementations and dtypes the cells are named where a run was cut."""


def tell_interrupted(cut: Cut, judged: int, under_way: str, options: Options) -> list[str]:
    """
    Say what a run that was broken off has not judged, and how to have it: by what was judged
    before, or sooner. Of a cell ``under_way`` what it has found is kept, and nothing else.
    """
    lost = f", {under_way}" if under_way else ""
    found = tell_found(cut, options.failures)
    sooner = ["next, for a verdict sooner: --profile quick"] * (options.profile != "quick")
    if not judged:
        told = f"interrupted before any cell had a verdict{lost}: nothing to go on with"
        return [told, *found, *sooner]
    return [
        f"interrupted: {len(cut.left)} of {len(cut.left) + judged} cells were not judged{lost}",
        *found,
        "next, to go on where it was broken off: the same line with --resume",
        *sooner,
    ]


def tell_found(cut: Cut, failures: str) -> list[str]:
    """Say what was found in the cell under way, which nothing has explained, and record it."""
    if not cut.found:
        return []
    record = FailureRecord(**cut.found["record"])
    kept = save_or_say(record, failures, None)
    replay = f"next, to see it: {record.replay_line}{failures_option(failures)}"
    return [f"found in the cell under way, and not explained yet: {cut.words}", *(kept or [replay])]


def tell_resumed(config: pytest.Config, journal: Journal | None) -> list[str]:
    """Say what --resume has found."""
    if not config.getoption("attn_resume") or journal is None:
        return []
    if not journal.kept:
        return ["nothing to resume: no run of these files, seed, profile and versions is there"]
    cells = number_of(len(journal.kept), "cell")
    return [f"resumed: {cells} judged before, of the same files, seed, profile and versions"]
