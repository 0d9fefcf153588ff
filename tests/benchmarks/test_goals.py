"""Our goals, what a run says of them, and what pytest-benchmark keeps of a run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from attnverify import ROOT
from attnverify.bench.measure import cases as named
from attnverify.bench.measure.contestants import CONTESTANTS
from attnverify.bench.report.results import files, new_results_file, read, slug
from attnverify.catalogue.traits import CHAPTERS
from benchmarks.races.goals import BEST, GOALS, Goal, closing_lines, outcome
from benchmarks.races.growth import exponent
from benchmarks.races.plugin import AboveNoise, latest
from benchmarks.races.recorded import signature
from tests.attnverify.bench.test_bench import measurement


def test_the_goals_speak_of_cases_that_are_run() -> None:
    for device, goals in GOALS.items():
        known = {case.name for chapter in CHAPTERS for case in named.cases(chapter, device)} | {
            "differential suite"
        }
        assert {case for goal in goals for case in goal.cases} <= known
        labels = {contestant.label for contestant in CONTESTANTS} | {"verify"}
        assert {one for goal in goals for one in goal.ours.split(" or ")} <= labels


@pytest.mark.parametrize("chapter", CHAPTERS)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_chapter_has_its_benchmarks(chapter: str, device: str) -> None:
    assert (ROOT / "tests" / f"bench_{chapter}.py").exists()
    found = named.cases(chapter, device)
    assert len({signature(case) for case in found}) == len(found)
    assert found or device == "cuda"


TWICE = Goal("row", ("case",), "ours", "peer", 2, 4)
OURS = measurement("ours", [1.0, 1.0, 1.0], ours=True, peak_extra_bytes=5)


def ours_beside(label: str, times: float) -> dict[str, object]:
    """Ours in a race in which another took so many times as long."""
    return OURS | {"ratios": {label: (times, times, times)}}


@pytest.mark.parametrize(
    ("times", "word"), [(5.0, "goal met"), (3.0, "floor met"), (1.5, "MISSED")]
)
def test_a_row_is_met_or_missed_with_its_figure(times: float, word: str) -> None:
    found = outcome(TWICE, [ours_beside("peer", times), measurement("peer", [times] * 3)])
    assert (found.word, found.figure) == (word, times)


@pytest.mark.parametrize(
    ("records", "why"),
    [
        ([], "no such case"),
        ([measurement("peer", [1.0])], "ours took no part"),
        ([OURS], "peer took no part"),
        (
            [OURS, measurement("peer", [], verdict="missing", reason="not installed")],
            "peer missing: not installed",
        ),
        ([OURS | {"refused": "too fast"}, measurement("peer", [1.0])], "ours refused: too fast"),
    ],
)
def test_a_row_that_cannot_be_measured_says_why(records: list[dict[str, object]], why: str) -> None:
    found = outcome(TWICE, records)
    assert found.word == "not measured" and why in found.why


def test_a_wrong_peer_is_not_the_best_correct_one() -> None:
    best = Goal("row", ("case",), "ours", BEST, 2, 4)
    records = [
        ours_beside("right", 3.0),
        measurement("wrong", [0.1], verdict="wrong"),
        measurement("refused", [0.1], refused="x"),
        measurement("right", [3.0] * 3),
    ]
    assert outcome(best, records).figure == 3.0


def test_the_worst_case_of_a_row_counts() -> None:
    both = Goal("row", ("case", "other"), "ours", "peer", 2, 4)
    records = [
        ours_beside("peer", 5.0),
        measurement("peer", [5.0] * 3),
        ours_beside("peer", 3.0) | {"case": "other"},
        measurement("peer", [3.0] * 3, case="other"),
    ]
    assert outcome(both, records).figure == 3.0
    assert (
        outcome(both, [*records, OURS | {"case": "other", "dtype": "float16"}]).word
        == "not measured"
    )


def test_memory_is_compared_by_its_peaks() -> None:
    goal = Goal("row", ("case",), "ours", "peer", 10, 40, measure="memory")
    assert outcome(goal, [OURS, measurement("peer", [1.0])]).figure == 20


def test_the_closing_lines_name_every_row_that_is_measured_here_and_count_the_others() -> None:
    lines = closing_lines([], "cpu")
    assert [line for line in lines if "no GPU" in line] == [
        f"{len(GOALS['cuda'])} more goals, of the other kind of device: not measured, no GPU"
    ]
    assert len([line for line in lines if "floor" in line]) == len(GOALS["cpu"])


def test_exponents_are_slopes() -> None:
    assert exponent([(n, 3.0 * n**2) for n in (512, 1024, 4096)]) == pytest.approx(2)
    assert (
        exponent([(512, 1.0), (1024, 2.0)]) is None
        and exponent([(1, 0.0), (2, 1.0), (3, 1.0)]) is None
    )


def test_the_last_result_of_the_same_device_is_found(tmp_path: Path) -> None:
    assert latest(tmp_path, "a") is None
    for folder, name in (
        ("a/2026-01-02", "120000"),
        ("a/2026-01-10", "080000"),
        ("b/2026-02-01", "080000"),
    ):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / f"{name}.json").write_text("{}")
    assert (
        latest(tmp_path, "a") == tmp_path / "a/2026-01-10/080000.json" and len(files(tmp_path)) == 3
    )
    assert (
        new_results_file(tmp_path, slug("NVIDIA H200 (141 GB)")).parent.parent.name
        == "nvidia-h200-141-gb"
    )


@pytest.mark.parametrize(("now", "fails"), [(1.0, False), (1.02, False), (1.5, True)])
def test_a_slowdown_above_its_noise_fails(now: float, fails: bool) -> None:
    ours = {"ours": True, "ceilings": {"flops": 1.0, "bandwidth": 1.0}}
    current, then = (
        {"median": now, "iqr": 0.01, "extra_info": ours},
        {"median": 1.0, "iqr": 0.01, "extra_info": ours},
    )
    assert bool(AboveNoise().fails(current, then)) == fails
    assert AboveNoise().fails(current | {"extra_info": {"ours": False}}, then) is None
    slower_machine = current | {"extra_info": ours | {"ceilings": {"flops": 0.4, "bandwidth": 1.0}}}
    assert AboveNoise().fails(slower_machine, then) is None


RECORDED = """
import pytest
from benchmarks.races.recorded import replay, replayed

@pytest.mark.benchmark(timer=replayed)
def test_time(benchmark):
    benchmark.extra_info["label"] = "honest"
    replay(benchmark, [0.5, 0.25])
"""


def test_the_record_is_what_was_measured(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text(RECORDED)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "benchmarks.races.plugin",
        "--benchmark-json=result.json",
    ]
    alone = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")
    }  # a worker keeps no record
    subprocess.run(
        command,
        cwd=tmp_path,
        env=alone | {"PYTHONPATH": str(ROOT)},
        check=True,
        capture_output=True,
    )
    (kept,) = read(tmp_path / "result.json")
    assert kept == {"label": "honest"}
    (bench,) = json.loads((tmp_path / "result.json").read_text())["benchmarks"]
    assert (
        bench["stats"]["median"] == pytest.approx(0.375) and bench["options"]["timer"] == "replayed"
    )
    assert "data" not in bench["stats"]
