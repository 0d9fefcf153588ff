"""Results: where they are kept, how they are read back, and what two of them say of each other."""

import json
import os
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from textwrap import shorten
from typing import Any

from attnverify.machine import processor_name

Record = dict[str, Any]
"""
One contestant in one case: what attnverify.bench.measure.race.record says of it. ``seconds`` has
the median, the quantiles and the number of its rounds, ``ratios`` says how many times as long each
of the others took.
"""


def device_name(device: str) -> str:
    """
    Derive a folder's name for the device: ``nvidia-h200``, ``intel-r-xeon-r-processor-2-cores``.
    """
    if device == "cuda":
        return slug(import_module("torch").cuda.get_device_name())
    return slug(f"{processor_name()} {os.cpu_count()} cores")


def slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def new_results_file(root: Path, device: str) -> Path:
    """Name a new file for the results of today."""
    now = datetime.now(UTC)
    folder = root / device / now.strftime("%Y-%m-%d")
    folder.mkdir(parents=True, exist_ok=True)
    return folder / now.strftime("%H%M%S.json")


def write_records(path: Path, records: list[Record]) -> None:
    """Write records as pytest-benchmark does, where :func:`read` finds them."""
    timed = [{"extra_info": record} for record in records if record["seconds"]]
    left_out = [record for record in records if not record["seconds"]]
    told = json.dumps({"benchmarks": timed, "left_out": left_out}, indent=1) + "\n"
    beside = path.with_suffix(".part")
    beside.write_text(told)
    beside.replace(path)  # whole, or as it was


def files(root: Path) -> list[Path]:
    """List every result, oldest first."""
    return sorted(root.glob("*/*/[0-9]*.json"), key=lambda path: (path.parent.name, path.name))


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


def read_last_runs(root: Path, device: str | None = None) -> list[Run]:
    """Read the last run of each device, or of the one that is named."""
    newest = {path.parent.parent.name: path for path in files(root)}
    return [_read_run(name, path) for name, path in newest.items() if device in (None, name)]


def _read_run(name: str, path: Path) -> Run:
    commit = json.loads(path.read_text()).get("commit_info", {})
    words = commit.get("id", "")[:7] + " and changes" * bool(commit.get("dirty"))
    clock = f"{path.stem[:2]}:{path.stem[2:4]}"
    return Run(name, f"{path.parent.name} {clock}", words, read(path))


def read(path: Path) -> list[Record]:
    """Read the records of a file that pytest-benchmark wrote, and who was left out of it."""
    told = json.loads(path.read_text())
    timed = [bench["extra_info"] for bench in told["benchmarks"] if "label" in bench["extra_info"]]
    return timed + told.get("left_out", [])


def correct(record: Record) -> bool:
    return record["verdict"] == "correct" and not record["refused"] and bool(record["seconds"])


def first_line(text: str) -> str:
    return shorten((text.splitlines() or [""])[0], 120, placeholder=" ...")


def not_measured(records: list[Record]) -> list[str]:
    """Tell who is missing, wrong or out of memory, once each with the first reason."""
    reasons = {
        (record["label"], record["verdict"]): first_line(record["reason"])
        for record in reversed(records)
        if record["verdict"] in ("missing", "wrong", "out of memory")
    }
    return [
        f"{label}: {verdict} ({reason})" for (label, verdict), reason in sorted(reasons.items())
    ]
