"""
The recorded runs of a device over dates and commits: what each goal and each time was in all of
them, and what moved by more than its spread.
"""

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from math import exp, log
from pathlib import Path

from attnverify.bench.report.figures import (
    Style,
    extract_svg,
    name_contestants,
    open_figure,
    place_ticks,
)
from attnverify.bench.report.goals import GOALS, outcome
from attnverify.bench.report.results import Record, correct, files, read
from attnverify.bench.report.tables import time

SHOWN = 8
"""So many of the last runs stand beside each other."""

Key = tuple[str, str]
"""What was timed, in words, and by whom."""


@dataclass(frozen=True)
class Run:
    """One recorded run: on which device, when, at which commit, and its records."""

    device: str
    date: str
    commit: str
    records: list[Record]

    @property
    def name(self) -> str:
        """``2026-11-22 07:30, 8344e49``"""
        return ", ".join(filter(None, (self.date, self.commit)))

    @property
    def kind(self) -> str:
        """``cpu`` or ``cuda``"""
        return next((record["device"] for record in self.records if "device" in record), "cpu")


def read_runs(root: Path, device: str | None = None) -> dict[str, list[Run]]:
    """Read the recorded runs of each device, or of the one that is named, oldest first."""
    found: dict[str, list[Run]] = defaultdict(list)
    for path in files(root):
        name = path.parent.parent.name
        if device in (None, name):
            found[name].append(_read_run(name, path))
    return dict(found)


def _read_run(device: str, path: Path) -> Run:
    commit = json.loads(path.read_text()).get("commit_info", {})
    words = commit.get("id", "")[:7] + " and changes" * bool(commit.get("dirty"))
    clock = f"{path.stem[:2]}:{path.stem[2:4]}"
    return Run(device, f"{path.parent.name} {clock}", words, read(path))


def tell_goals(runs: list[Run]) -> list[tuple[str, ...]]:
    """Tell of each goal what it was in each run: ``3.09x``, or ``-`` where it was not measured."""
    told = []
    for goal in GOALS[runs[-1].kind]:
        found = [outcome(goal, run.records) for run in runs]
        unit = "" if goal.at_most else "x"
        figures = ("-" if one.figure is None else f"{one.figure:.3g}{unit}" for one in found)
        told.append((goal.what, goal.against, *figures))
    return told


def tell_times(runs: list[Run]) -> list[tuple[str, ...]]:
    """
    Tell of each case and contestant its median in each run, and how the last of them stands to the
    one before.
    """
    timed = [_timed(run) for run in runs]
    keys = dict.fromkeys(key for found in reversed(timed) for key in found)
    rows = []
    for what, label in keys:
        found = [times.get((what, label)) for times in timed]
        medians = ("-" if one is None else time(one["seconds"]["median"]) for one in found)
        rows.append((what, label, *medians, describe_change(*_last_two(found))))
    return rows


def _timed(run: Run) -> dict[Key, Record]:
    """The records of a run that are correct and have a time, by what they are of."""
    letters = ("case", "operation", "dtype", "mode")
    return {
        (
            ", ".join(dict.fromkeys(str(record[letter]) for letter in letters)),
            record["label"],
        ): record
        for record in run.records
        if "operation" in record and correct(record)
    }


def _last_two(found: list[Record | None]) -> tuple[Record | None, Record | None]:
    """The last and the one before it, where the last run has one."""
    there = [one for one in found if one is not None]
    return (there[-2], found[-1]) if len(there) > 1 else (None, found[-1])


def describe_change(old: Record | None, new: Record | None) -> str:
    """
    Say how a time stands to an older one: ``1.32x as long``; ``as before`` where their quantiles
    of 20 and 80 % overlap; nothing where one of them is missing.
    """
    if old is None or new is None:
        return ""
    was, now = old["seconds"], new["seconds"]
    apart = now["quantile_20"] > was["quantile_80"] or now["quantile_80"] < was["quantile_20"]
    return f"{now['median'] / was['median']:.2f}x as long" if apart else "as before"


def describe_history(runs: list[Run]) -> Iterator[str]:
    """Write for a terminal what moved in the last run, against the one before it."""
    if len(runs) < 2:
        return
    rows = [row for row in tell_times(runs[-2:]) if row[-1]]
    moved = [row for row in rows if row[-1] != "as before"]
    yield f"since {runs[-2].name}: {len(moved)} of {len(rows)} times moved beyond their spread"
    yield from (
        f"  {what}, {label}: {was} -> {now} ({change})" for what, label, was, now, change in moved
    )
    yield ""


def draw_history(runs: list[Run], styles: dict[str, Style]) -> str | None:
    """
    Draw each contestant's time in each run beside its first, over the cases that every run timed.
    """
    timed = [_timed(run) for run in runs]
    every = set.intersection(*(set(found) for found in timed))
    labels = sorted({label for _, label in every})
    if len(runs) < 2 or not labels:
        return None
    with open_figure() as (figure, (axis,), text):
        axis.set(ylabel="time / time in the first run", title="each contestant over the runs")
        for label in labels:
            ratios = [
                _mean_ratio(found, timed[0], {key for key in every if key[1] == label})
                for found in timed
            ]
            axis.plot(range(len(runs)), ratios, label=label, markersize=5, **styles[label])
        place_ticks(axis.xaxis, range(len(runs)), (run.name.replace(", ", "\n") for run in runs))
        axis.tick_params("x", rotation=30 * (len(runs) > 3))
        axis.set_ylim(bottom=0)
        name_contestants(figure, [axis])
    return extract_svg(text)


def _mean_ratio(found: dict[Key, Record], first: dict[Key, Record], keys: set[Key]) -> float:
    """The geometric mean of what these took, beside what they took at first."""
    medians = [(found[key]["seconds"]["median"], first[key]["seconds"]["median"]) for key in keys]
    return exp(sum(log(now / was) for now, was in sorted(medians)) / len(medians))
