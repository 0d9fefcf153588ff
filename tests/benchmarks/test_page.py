"""The page of our races: goals, growth, and one colour for each who took part."""

import re
from typing import Any

from attnverify.bench.measure.summary import summarise
from attnverify.bench.report.figures import COLOURS, INK, assign_styles
from attnverify.bench.report.html_page import plots, report_page
from attnverify.bench.report.results import Run
from benchmarks.races.__main__ import GROWTH, describe_goals
from benchmarks.races.goals import closing_lines
from benchmarks.races.growth import draw_growth

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


RECORDS = [measured("torch_impl:blocked", 0.1), measured("labml-nn", 0.4)]


def growing(label: str, *lengths: int, **more: Any) -> list[dict[str, Any]]:
    """Records of one attention whose time grows with the length."""
    return [measured(label, n / 1e4, case=f"growth N={n}", sizes={"N": n}, **more) for n in lengths]


def test_a_goal_stands_on_the_page_with_its_figure() -> None:
    page = report_page([Run("a-device", "2026-01-01", "", RECORDS)], describe_goals)
    (table,) = re.findall(r'<table[^>]*id="goals-0-table".*?</table>', page, re.DOTALL)
    assert ">goal met: 4x (4.00 to 4.00)</td>" in table


def test_growth_is_a_table_of_the_page_and_goals_are_told_of_our_cases_alone() -> None:
    few = growing("torch_impl", 512, 1024)
    grown = growing("labml-nn", 512, 1024, 2048, peak_extra_bytes=0)
    page = report_page([Run("a-device", "2026-01-01", "", [*few, *grown])], describe_goals)
    (table,) = re.findall(r'<table[^>]*id="growth-0-table".*?</table>', page, re.DOTALL)
    cells = re.findall(r'<td class="whole"[^>]*>([^<]*)</td>', table)
    assert cells == [
        *("learned_relative_attention", "labml-nn", "N^1.00", "not measured", "512 to 2048")
    ]
    assert "goals-0-table" not in page and closing_lines(grown, "cpu")[-1] == ""


# One colour a contestant


def test_a_contestant_has_one_colour_in_every_plot_and_table() -> None:
    rates = {"tflops_true": 0.1, "intensity": 30.0, "ceilings": {"flops": 1e12, "bandwidth": 1e10}}
    lengths = growing("torch_impl:blocked", 512, 1024, 2048, **rates)
    run = Run("a-device", "2026-01-01", "", [*RECORDS, *lengths])
    styles = assign_styles(run.records)
    grown = (draw_growth(what, run.records, styles) for what in GROWTH.values())
    drawn = [*plots(run.records, styles).values(), *grown]
    own, peer = styles["torch_impl:blocked"]["color"], styles["labml-nn"]["color"]
    assert len(drawn) == 4
    for svg in drawn:
        assert own in str(svg) and not set(COLOURS) - {own, peer} & set(
            re.findall("#[0-9a-f]{6}", str(svg))
        )
    page = report_page([run], describe_goals)
    assert f'style="background: {own}"></span>torch_impl:blocked' in page


def test_contestants_are_told_apart() -> None:
    styles = assign_styles({"label": f"peer {number:02d}"} for number in range(30))
    assert len({(style["color"], style["marker"]) for style in styles.values()}) == 30
    assert assign_styles([{"label": "b"}, {"label": "a"}]) == assign_styles(
        [{"label": "a"}, {"label": "b"}, {"label": "b"}]
    )


def test_a_plot_has_the_ink_of_its_page_and_ticks_in_words() -> None:
    lengths = growing("torch_impl", 512, 1024)
    svg = draw_growth("seconds", lengths, assign_styles(lengths))
    assert svg is not None
    ticks = set(re.findall(r"<!-- (.*?) -->", svg))
    assert {"512", "1024", "100 ms", "learned_relative_attention", "length N"} <= ticks
    assert "currentColor" in svg and INK not in svg and not [t for t in ticks if "^" in t]
