"""The runs of a device over dates and commits, and the colours of those who took part."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from attnverify.bench.measure.summary import summarise
from attnverify.bench.report.figures import COLOURS, INK, assign_styles
from attnverify.bench.report.history import (
    SHOWN,
    Run,
    describe_history,
    draw_history,
    read_runs,
    tell_goals,
    tell_times,
)
from attnverify.bench.report.html_page import report_page
from attnverify.bench.report.plots import plots
from attnverify.cli import main

CASE = "relative N=1024"


def measured(label: str, seconds: float, **more: Any) -> dict[str, Any]:
    """A record of ours or of a peer, whose rounds lie within 2 % of each other."""
    times = (seconds, seconds * 1.01, seconds * 1.02)
    return {
        "case": CASE,
        "operation": "learned_relative_attention",
        "dtype": "float32",
        "mode": "forward",
        "device": "cpu",
        "label": label,
        "verdict": "correct",
        "reason": "",
        "refused": "",
        "budget": 0.1,
        "peak_extra_bytes": 100,
        "seconds": summarise([*times]),
        "ratios": {"labml-nn": (0.4 / seconds,) * 3},
    } | more


def run(day: int, ours: float, peer: float = 0.4, **more: Any) -> Run:
    records = [measured("torch_impl:blocked", ours, **more), measured("labml-nn", peer)]
    return Run("a-device", f"2026-01-0{day} 12:00", f"000000{day}", records)


def test_a_time_that_moved_beyond_its_spread_is_told_with_its_factor() -> None:
    rows = tell_times([run(1, 0.1), run(2, 0.1), run(3, 0.15)])
    assert [(row[1], *row[2:]) for row in rows] == [
        ("torch_impl:blocked", "101 ms", "101 ms", "152 ms", "1.50x as long"),
        ("labml-nn", "404 ms", "404 ms", "404 ms", "as before"),
    ]


def test_a_time_within_its_spread_has_not_moved() -> None:
    assert [row[-1] for row in tell_times([run(1, 0.1), run(2, 0.101)])] == ["as before"] * 2


def test_what_one_run_lacks_is_compared_with_the_run_before_that() -> None:
    wrong = run(2, 0.1, verdict="wrong")
    rows = {row[1]: row[2:] for row in tell_times([run(1, 0.1), wrong, run(3, 0.2)])}
    assert rows["torch_impl:blocked"] == ("101 ms", "-", "202 ms", "2.00x as long")
    gone = {row[1]: row[2:] for row in tell_times([run(1, 0.1), wrong])}
    assert gone["torch_impl:blocked"] == ("101 ms", "-", "")


def test_a_goal_has_its_figure_in_every_run() -> None:
    found = {row[:2]: row[2:] for row in tell_goals([run(1, 0.1), run(2, 0.2)])}
    goal = "relative forward, N = M = 1024, H 8, D 64", "labml-nn"
    assert found.pop(goal) == ("4x", "2x")
    assert found["relative forward, peak extra memory", "labml-nn"] == ("1x", "1x")
    assert found["relative forward + backward", "labml-nn"] == ("-", "-")


def test_the_terminal_tells_what_moved_since_the_run_before() -> None:
    first, *rest = describe_history([run(1, 0.1), run(2, 0.05)])
    assert first == "since 2026-01-01 12:00, 0000001: 1 of 2 times moved beyond their spread"
    assert rest[0].endswith("torch_impl:blocked: 101 ms -> 50.5 ms (0.50x as long)")
    assert list(describe_history([run(1, 0.1)])) == []


def test_the_page_has_the_history_and_no_more_runs_than_fit() -> None:
    page = report_page({"a-device": [run(day, 0.1 * day) for day in range(1, 10)]})
    (table,) = re.findall(r'<table id="time-history-0">.*?</table>', page, re.DOTALL)
    heads = re.findall(r"<th[^>]*>(.*?)</th>", table)
    assert heads[2:-1] == [f"2026-01-0{day} 12:00, 000000{day}" for day in range(2, 2 + SHOWN)]
    assert 'data-title="moved" class="moved">1.12x as long</td>' in table
    assert page.count('<svg class="plot"') == 2  # of the history, and accuracy against speed
    alone = report_page({"a-device": [run(1, 0.1)]})
    assert "One run is recorded" in alone and "time-history" not in alone


def test_a_run_says_its_date_its_commit_and_whether_that_was_changed(tmp_path: Path) -> None:
    for folder, commit in ("2026-01-02", {"id": "b" * 40, "dirty": True}), ("2026-01-01", {}):
        path = tmp_path / "a-device" / folder / "080910.json"
        path.parent.mkdir(parents=True)
        told = [{"extra_info": one} for one in run(1, 0.1).records]
        path.write_text(json.dumps({"benchmarks": told, "commit_info": commit}))
    runs = read_runs(tmp_path)["a-device"]
    assert [one.name for one in runs] == [
        "2026-01-01 08:09",
        "2026-01-02 08:09, bbbbbbb and changes",
    ]
    assert read_runs(tmp_path, "another") == {}


def test_the_command_says_what_moved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for hour, seconds in ("08", 0.1), ("09", 0.3):
        path = tmp_path / "a-device" / "2026-01-01" / f"{hour}0000.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        told = [{"extra_info": one} for one in run(1, seconds).records]
        path.write_text(json.dumps({"benchmarks": told}))
    assert main(["bench-report", "--results", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "since 2026-01-01 08:00: 1 of 2 times moved" in shown
    assert "101 ms -> 303 ms (3.00x as long)" in shown


# One colour a contestant


def test_a_contestant_has_one_colour_in_every_plot_and_table() -> None:
    rates = {"tflops_true": 0.1, "intensity": 30.0, "ceilings": {"flops": 1e12, "bandwidth": 1e10}}
    lengths = [
        measured("torch_impl:blocked", n / 1e4, case=f"growth N={n}", sizes={"N": n}, **rates)
        for n in (512, 1024, 2048)
    ]
    runs = [Run("a-device", "2026-01-01", "", [*run(1, 0.1).records, *lengths])] * 2
    styles = assign_styles(runs[0].records)
    drawn = [*plots(runs[0].records, styles).values(), draw_history(runs, styles)]
    own, peer = styles["torch_impl:blocked"]["color"], styles["labml-nn"]["color"]
    assert len(drawn) == 5
    for svg in drawn:
        assert own in str(svg) and not set(COLOURS) - {own, peer} & set(
            re.findall("#[0-9a-f]{6}", str(svg))
        )
    page = report_page({"a-device": runs})
    assert f'style="background: {own}"></span>torch_impl:blocked' in page


def test_contestants_are_told_apart() -> None:
    styles = assign_styles({"label": f"peer {number:02d}"} for number in range(30))
    assert len({(style["color"], style["marker"]) for style in styles.values()}) == 30
    assert assign_styles([{"label": "b"}, {"label": "a"}]) == assign_styles(
        [{"label": "a"}, {"label": "b"}, {"label": "b"}]
    )


def test_a_plot_has_the_ink_of_its_page_and_ticks_in_words() -> None:
    lengths = [
        measured("torch_impl", n / 1e4, case=f"growth N={n}", sizes={"N": n}) for n in (512, 1024)
    ]
    svg = plots(lengths)["Time over the length N"]
    ticks = set(re.findall(r"<!-- (.*?) -->", svg))
    assert {"512", "1024", "100 ms", "learned_relative_attention", "length N"} <= ticks
    assert "currentColor" in svg and INK not in svg and not [t for t in ticks if "^" in t]
