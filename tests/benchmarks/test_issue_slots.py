"""What the profiler counted stands beside what the machine code predicts, in the report."""

import json
import os
from dataclasses import asdict
from pathlib import Path

import pytest

from attnverify.bench.report.html_page import report_page
from benchmarks.profile import Profiled
from benchmarks.races.__main__ import issue_slot_sections, main
from benchmarks.races.issue_slots import describe_issue_slots, read_issue_slots

COUNTED = Profiled("forward", 234.0, 251.5, 61.5)
LOST = Profiled("forward, ALiBi", 300.0, why_not="no ncu here")


def record(folder: Path, *found: Profiled) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "why.json"
    path.write_text(json.dumps([asdict(one) for one in found]))
    return path


def test_measured_slots_stand_beside_predicted_ones(tmp_path: Path) -> None:
    record(tmp_path / "nvidia-h100" / "2026-12-01", COUNTED, LOST)
    rows = read_issue_slots(tmp_path)
    assert rows[0] == ("forward", "234", "252", "1.07x", "62 %", "")
    assert rows[1] == ("forward, ALiBi", "300", "-", "-", "-", "no ncu here")
    page = report_page([], last=issue_slot_sections(rows))
    assert all(f">{cell}<" in page for cell in ("234", "252", "1.07x", "no ncu here"))
    assert describe_issue_slots(rows)[1:] == [
        "  forward: 234, 252 (1.07x), 62 % busy",
        "  forward, ALiBi: 300, not measured: no ncu here",
    ]


def test_the_newest_figures_are_shown(tmp_path: Path) -> None:
    old = record(tmp_path / "a" / "1", LOST)
    record(tmp_path / "a" / "0", COUNTED)
    os.utime(old, (1, 1))
    assert [row[0] for row in read_issue_slots(tmp_path)] == ["forward"]


def test_the_report_prints_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record(tmp_path, COUNTED)
    main(["--results", str(tmp_path)])
    assert "  forward: 234, 252 (1.07x), 62 % busy" in capsys.readouterr().out


def test_without_a_profile_there_is_no_section(tmp_path: Path) -> None:
    assert read_issue_slots(tmp_path) == describe_issue_slots([]) == []
    assert "Issue slots" not in report_page([], last=issue_slot_sections([]))
