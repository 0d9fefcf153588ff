"""
A run that was broken off goes on by ``--resume``, and says what it has not judged.
"""

from typing import Any

import pytest

from attnverify.report.table import number_of
from attnverify.verdicts.journal import Journal, fingerprint, journal_of


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


def tell_cut(left_out: list[str], judged: int, minutes: float | None) -> list[str]:
    """Say which cells a run had no time for."""
    if not left_out:
        return []
    aspects = dict[str, list[str]]()
    for title in left_out:
        aspect, _, own = title.partition(" of ")
        aspects.setdefault(own, []).append(aspect)
    told = [f"{own} ({', '.join(kinds)})" for own, kinds in aspects.items()]
    named = "; ".join(told[:TOLD])
    rest = f" and {len(told) - TOLD} more" if len(told) > TOLD else ""
    return [
        f"cut by --minutes {minutes:g}: {len(left_out)} of {len(left_out) + judged} cells were not "
        f"judged, and nothing is known of them: {named}{rest}",
        "next, to judge them too: the same line with --resume",
    ]


TOLD = 3
"""Of so many implementations and dtypes the cells are named where a run was cut."""


def tell_interrupted(selected: int, judged: int, under_way: str, profile: str) -> list[str]:
    """
    Say what a run that was broken off has not judged, and how to have it: by what was judged
    before, or sooner. Of a cell ``under_way`` nothing is kept.
    """
    lost = f", {under_way}" if under_way else ""
    sooner = ["next, for a verdict sooner: --profile quick"] * (profile != "quick")
    if not judged:
        return [f"interrupted before any cell had a verdict{lost}: nothing to go on with", *sooner]
    return [
        f"interrupted: {selected - judged} of {selected} cells were not judged{lost}",
        "next, to go on where it was broken off: the same line with --resume",
        *sooner,
    ]


def tell_resumed(config: pytest.Config, journal: Journal | None) -> list[str]:
    """Say what --resume has found."""
    if not config.getoption("attn_resume") or journal is None:
        return []
    if not journal.kept:
        return ["nothing to resume: no run of these files, seed, profile and versions is there"]
    cells = number_of(len(journal.kept), "cell")
    return [f"resumed: {cells} judged before, of the same files, seed, profile and versions"]
