"""Results: where they are kept, how they are read back, and what two of them say of each other."""

import json
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
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
    import os

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


def latest(root: Path, device: str) -> Path | None:
    found = [path for path in files(root) if path.parent.parent.name == device]
    return found[-1] if found else None


def read(path: Path) -> list[Record]:
    """Read the records of a file that pytest-benchmark wrote, and who was left out of it."""
    told = json.loads(path.read_text())
    timed = [bench["extra_info"] for bench in told["benchmarks"] if "label" in bench["extra_info"]]
    return timed + told.get("left_out", [])


def correct(record: Record) -> bool:
    return record["verdict"] == "correct" and not record["refused"] and bool(record["seconds"])


def ratio(slow: Record, fast: Record) -> tuple[float, float, float]:
    """Estimate how many times as long ``slow`` takes, and an interval of 95 % for it."""
    middle, low, high = fast["ratios"][slow["label"]]
    return middle, low, high


def select(records: Iterable[Record], **wanted: Any) -> list[Record]:
    """Select the records that say all of this."""
    return [
        record
        for record in records
        if all(record.get(name) == value for name, value in wanted.items())
    ]
