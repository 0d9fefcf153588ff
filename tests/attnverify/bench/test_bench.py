"""
The benchmarks themselves: cheats are refused, wrong peers are shown as wrong, figures are what
their words say.
"""

import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attnverify.backends.implementation import Implementation
from attnverify.backends.loader import load
from attnverify.bench.measure import roofline, sampling
from attnverify.bench.measure import shares as shares_of
from attnverify.bench.measure.cases import (
    ALIBI,
    CAUSAL,
    PLAIN,
    XL,
    Case,
    additive,
    learned,
    relative,
    square,
)
from attnverify.bench.measure.contestants import (
    Contestant,
    implementation_of,
    in_order,
)
from attnverify.bench.measure.inputs import draw_inputs, is_on_device, widened, with_fresh_values
from attnverify.bench.measure.race import Entry, Race, enter, race, record, run
from attnverify.bench.measure.roofline import Ceilings, Cost, cost
from attnverify.bench.measure.shares import Share, ask, draw_shares
from attnverify.bench.measure.summary import compare_rounds, interval, summarise
from attnverify.bench.measure.validation import check_shares, judged
from attnverify.bench.own_kernel import two_threads
from attnverify.bench.report.figures import assign_styles
from attnverify.bench.report.html_page import plots, report_page
from attnverify.bench.report.results import Run
from attnverify.bench.report.tables import show, verdict
from attnverify.catalogue.operation import CATALOGUE
from attnverify.cli import main
from attnverify.inputs.recipe import Inputs
from attnverify.judge.errors import Disagreement
from attnverify.timing import time_shares, time_summary
from attnverify.verdicts.cell import cells
from attnverify.verdicts.columns import judge_cell as judge_cell
from attnverify.verdicts.tally import Options
from tests.support.sample_backends import HERE, implementation

CASE = Case("small", PLAIN, square(33, H=2, D=16), seconds=0.3)
RACERS = HERE / "benchmark_cheats.py"
MODEST = Ceilings(flops=1e15, bandwidth=1e15, tanh=1e15)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ceilings that nobody reaches, so that none has to be measured."""
    monkeypatch.setattr("attnverify.bench.measure.race.ceilings", lambda device, dtype: MODEST)


def racer(how: str) -> Entry:
    found = implementation(f"{PLAIN}_{how}" if how else PLAIN, "benchmark_cheats")
    contestant = Contestant(how or "honest", str(RACERS), how)
    return Entry(contestant, found, judged(ask(CASE), contestant, found))


def raced(*hows: str) -> Race:
    return run(ask(CASE), "cpu", tuple(racer(how) for how in hows))


# Sabotage: right when judged, a cheat when timed


def test_an_honest_contestant_is_believed() -> None:
    (entry,) = raced("").entries
    assert (entry.judgement.verdict, entry.refused) == ("correct", "")
    assert len(entry.sampled.seconds) >= sampling.LEAST and 0 < entry.judgement.budget <= 1


@pytest.mark.parametrize("how", ["caches", "early", "elsewhere"])
def test_a_cheat_is_right_when_it_is_judged_and_refused_when_it_is_timed(how: str) -> None:
    honest, cheat = raced("", how).entries
    assert honest.refused == "" and cheat.judgement.verdict == "correct"
    assert "wrong while it was" in cheat.refused or "still being written" in cheat.refused


def test_work_that_goes_on_after_the_clock_has_stopped_is_seen_even_if_it_ends_well() -> None:
    late, copy = np.ones(3), np.array([1.0, 0.0, 1.0])
    assert "still being written" in sampling.changed_after_timing((late,), (copy,))
    assert sampling.changed_after_timing((late,), (late.copy(),)) == ""


def test_a_time_below_the_floor_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "attnverify.bench.measure.race.ceilings", lambda device, dtype: Ceilings(1.0, 1e15, 1.0)
    )
    (entry,) = raced("").entries
    assert "is less than the" in entry.refused


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_round_has_numbers_of_its_own(device: str) -> None:
    inputs, rng = draw_inputs(replace(CASE, device=device), 1), np.random.default_rng(0)
    one, two = (widened(with_fresh_values(inputs, rng)) for _ in range(2))
    assert is_on_device(inputs["query"]) == (device == "cuda")
    inputs = widened(inputs)
    for name in ("query", "key", "value"):
        assert not np.array_equal(one[name], two[name]) and not np.array_equal(
            one[name], inputs[name]
        )
        assert np.array_equal(np.sort(one[name], axis=None), np.sort(inputs[name], axis=None))


@pytest.mark.parametrize("make", [np.zeros, torch.zeros])
def test_the_memory_of_an_output_is_poisoned_before_it_is_asked_for(make: Any) -> None:
    left = sampling.unwritten(make((2, 3)))
    assert np.isnan(np.asarray(left)).all() and left.shape == (2, 3)
    assert not sampling.unwritten(make(2) > 0).any()


# Who takes part


def test_a_wrong_peer_is_timed_and_shown_as_wrong() -> None:
    found = raced("", "wrong")
    told = record(found, found.entries[1])
    assert told["verdict"] == "wrong" and "row" in told["reason"] and told["seconds"]["median"] > 0


def test_who_cannot_is_unsupported_and_has_no_time() -> None:
    found = raced("", "unable")
    assert (
        record(found, found.entries[1])["reason"] == "on Sundays"
        and not found.entries[1].sampled.seconds
    )


@pytest.mark.parametrize("how", ["greedy", "greedier"])
def test_who_has_no_memory_left_is_not_wrong(how: str) -> None:
    honest, entry = raced("", how).entries
    told = entry.judgement
    assert (told.verdict, told.reason) == ("out of memory", "Tried to allocate 34.00 GiB")
    assert honest.sampled.seconds and not entry.sampled.seconds


def test_what_is_not_there_is_missing_with_its_reason() -> None:
    absent = Contestant("absent", "examples/no_such_file.py")
    assert "no file" in str(implementation_of(absent, CASE))
    assert enter(ask(CASE), absent).judgement.verdict == "missing"
    assert (
        implementation_of(Contestant("ours", "numpy_ref", "flash"), CASE)
        == f"numpy_ref has no {PLAIN}_flash"
    )


SHAPES = square(12, H=3, D=8, B=2)
KINDS = {
    "plain": Case("gradient", PLAIN, SHAPES, "float64", "both"),
    "hidden": Case("gradient", PLAIN, SHAPES, "float64", "both", mask=CAUSAL),
    "alibi": Case("gradient", ALIBI, SHAPES, "float64", "both"),
    "tables": learned("gradient", relative(12, H=3, D=8, B=2), dtype="float64", mode="both"),
    "positions": Case("gradient", XL, relative(12, H=3, D=8, B=2), "float64", "both"),
    "additive": Case(
        "gradient", "additive_attention", additive(12, 12, 4, 2, 8), "float64", "both"
    ),
}


def answered(case: Case, inputs: Inputs) -> list[np.ndarray]:
    """The right answer to the whole call."""
    found = CATALOGUE[case.timed].reference(**widened(inputs))
    return [x.copy() for x in (found if isinstance(found, tuple) else (found,))]


def ours(case: Case) -> Implementation:
    found = implementation_of(Contestant("ours", "numpy_ref"), case)
    assert not isinstance(found, str)
    return found


def budget(case: Case, shares: tuple[Share, ...], inputs: Inputs, outputs: list[np.ndarray]) -> Any:
    given = tuple(outputs) if CATALOGUE[case.timed].is_gradient else outputs[0]
    return check_shares(shares, ours(case), inputs, given, case.dtype)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("rows", [2**22, 4 * 12 * 3])
def test_every_gradient_is_judged_before_the_timing(
    kind: str, device: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In full where it is no more than so many pairs, else for the last rows of queries."""
    monkeypatch.setattr(shares_of, "BEFORE", rows)
    case = replace(KINDS[kind], device=device)
    question = ask(case)
    gradients = answered(case, question.asked)
    assert budget(case, question.shares, question.asked, gradients) <= 1
    for output in range(len(gradients)):
        wrong = [x.copy() for x in gradients]
        question.shares[0].of(wrong)[output][...] += 1e-9
        with pytest.raises(Disagreement, match=rf"output\[{output}\]"):
            budget(case, question.shares, question.asked, wrong)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("N", [1, 12, 37])
def test_rows_of_every_batch_entry_and_head_are_judged(kind: str, N: int) -> None:
    sizes = KINDS[kind].sizes | {"N": N, "M": 37} | ({"P": 37} if "P" in KINDS[kind].sizes else {})
    case = replace(KINDS[kind], mode="forward", sizes=sizes)
    question = ask(case)
    (output,) = answered(case, question.asked)
    assert budget(case, question.shares, question.asked, [output]) <= 1
    assert {share.at["B"].start for share in question.shares} == {0, 1}
    seen = np.zeros(output.shape, bool)
    for share in question.shares:
        seen[shares_of.slices("B H N E" if output.ndim == 4 else "B N E", share.at)] = True
        wrong = output.copy()
        share.of(wrong)[...] += 1e-9
        with pytest.raises(Disagreement, match="batch entry"):
            budget(case, (share,), question.asked, [wrong])
    assert (seen.sum(-2) >= min(8, N)).all()


@pytest.mark.parametrize(("A", "rows"), [(1, 12), (4, 10), (100, 8)])
def test_the_features_of_an_additive_score_count(
    A: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the timing as many rows as have so many scores, at least eight."""
    monkeypatch.setattr(shares_of, "BEFORE", 4 * 12 * 10)
    case = replace(KINDS["additive"], sizes=KINDS["additive"].sizes | {"A": A})
    assert shares_of.count_rows(CATALOGUE[case.timed], case) == rows


def test_nothing_of_the_judge_runs_beside_a_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was begun in threads has ended when the first contestant is warmed up."""
    case, ended = replace(KINDS["plain"], mode="forward"), list[bool]()
    find = Share.find_bound

    def slowly(share: Share, precision: Any) -> Any:
        time.sleep(0.05)
        return find(share, precision)

    monkeypatch.setattr(Share, "find_bound", slowly)
    question = ask(case)
    shares_of.begin(question.shares, ours(case).precision(case.dtype))
    futures = [found for share in question.shares for found in share.bounds.values()]
    assert len(futures) == len(question.shares) and not all(found.done() for found in futures)

    def clocks(device: str) -> dict[str, Any]:
        ended.extend(found.done() for found in futures)
        return {}

    monkeypatch.setattr("attnverify.bench.measure.race.clocks", clocks)
    run(question, "cpu", ())
    assert ended and all(ended)


def test_a_wrong_shape_is_told_though_a_share_would_not_show_it() -> None:
    case = replace(KINDS["plain"], mode="forward")
    question = ask(case)
    (output,) = answered(case, question.asked)
    with pytest.raises(Disagreement, match="wanted shape"):
        budget(case, question.shares, question.asked, [np.repeat(output, 2, 0)])


@pytest.mark.parametrize("kind", KINDS)
def test_shares_of_a_timed_call_are_drawn_after_it(kind: str) -> None:
    case = KINDS[kind]
    inputs = draw_inputs(case, 1)
    shares, not_judged = draw_shares(case, inputs, np.random.default_rng(0))
    gradients = answered(case, inputs)
    assert not_judged == "" and budget(case, shares, inputs, gradients) <= 1
    for output in shares[-1].which:
        wrong = [x.copy() for x in gradients]
        shares[-1].of(wrong)[output][...] += 1e-9
        with pytest.raises(Disagreement):
            budget(case, shares, inputs, wrong)
    assert set(shares[-1].which) >= {0, 1, 2}


def test_of_many_heads_with_slopes_the_last_is_judged_in_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shares_of, "PAIRS", 12 * 12)
    case = replace(KINDS["alibi"], sizes=KINDS["alibi"].sizes | {"H": 4})
    inputs = draw_inputs(case, 1)
    shares, not_judged = draw_shares(case, inputs, np.random.default_rng(0))
    gradients = answered(case, inputs)
    assert not_judged == "" and shares[-1].at["H"] == slice(3, 4)
    assert budget(case, shares, inputs, gradients) <= 1
    for output in range(3):
        wrong = [x.copy() for x in gradients]
        wrong[output][:, 3] += 1e-9
        with pytest.raises(Disagreement, match="head 3"):
            budget(case, shares[-1:], inputs, wrong)


def test_what_is_asked_is_computed_once_for_all() -> None:
    question = ask(CASE)
    share = question.shares[0]
    precision = ours(CASE).precision("float32")
    assert share.bound(precision) is share.bound(precision)


def test_a_share_that_is_too_large_is_said_not_to_be_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shares_of, "PAIRS", 100)
    case = KINDS["tables"]
    inputs = draw_inputs(case, 1)
    shares, not_judged = draw_shares(case, inputs, np.random.default_rng(0))
    assert not_judged == "144 pairs, more than 100"
    assert all(share.which == (0,) for share in shares)
    told = verdict({"verdict": "correct", "reason": "", "not_judged": not_judged})
    assert told.startswith("correct; timed gradients by keys not judged: 144 pairs")


def test_a_contestant_gets_its_arrays_in_its_own_order_of_memory() -> None:
    x = np.arange(2 * 3 * 4 * 5.0).reshape(2, 3, 4, 5)
    turned = in_order(x, "NBHD")
    assert np.array_equal(turned, x) and turned.transpose(2, 0, 1, 3).flags.c_contiguous


def test_a_race_of_real_contestants() -> None:
    case = learned("small", relative(33, H=2, D=16), mask=CAUSAL)
    with two_threads(measured=False):
        found = race(case, "cpu", measured=False)
    verdicts = {entry.contestant.label: entry.judgement.verdict for entry in found.entries}
    assert verdicts["torch_impl"] == verdicts["SDPA"] == "correct"
    assert not any(entry.refused for entry in found.entries)


# Time


def test_warming_up_ends_when_three_calls_agree() -> None:
    times: Iterator[float] = iter([0.9, 0.5, 0.2, 0.1, 0.101, 0.1])
    assert sampling.warm_up(lambda: next(times), 12) == 6


def test_nobody_is_always_behind_the_same_neighbour() -> None:
    orders = list(sampling.balanced_orders(["A", "B", "C"], 6))
    before_b = {order[order.index("B") - 1] for order in orders if order.index("B")}
    assert before_b == {"A", "C"} and {order[0] for order in orders} == {"A", "B", "C"}


def test_rounds_fit_into_the_time() -> None:
    assert [sampling.rounds_for(seconds, 0.5) for seconds in (10, 1, 1000, 0)] == [
        20,
        sampling.LEAST,
        sampling.MOST,
        2,
    ]


# Memory


def test_memory_that_a_call_does_not_need_is_counted() -> None:
    lean, large = raced("", "large").entries
    assert lean.peak is not None and large.peak is not None
    assert 2**21 <= large.peak <= 2**21 + lean.peak + 2**14


# Operations and bytes


def test_operations_are_counted_by_pairs_and_products() -> None:
    inputs = draw_inputs(CASE, 1)
    counted = cost(CASE, inputs, np.zeros((1, 2, 33, 16), np.float32))
    assert counted.convention == counted.true == 4 * 2 * 33 * 33 * 16
    assert counted.bytes == 4 * 4 * 2 * 33 * 16


def test_what_a_causal_mask_hides_costs_nothing() -> None:
    case = learned("small", relative(33, H=2, D=16), mask=CAUSAL)
    counted = cost(case, draw_inputs(case, 1), None)
    assert counted.true == 6 * 2 * (33 * 34 / 2) * 16 and counted.convention == 2 * 2 * 33 * 33 * 16


@pytest.mark.parametrize(("mode", "share"), [("backward", 2.5), ("both", 3.5)])
def test_backward_costs_two_and_a_half_times_as_much(mode: str, share: float) -> None:
    case = Case("small", PLAIN, square(33, H=2, D=16), mode=mode)
    assert cost(case, draw_inputs(case, 1), None).true == share * 4 * 2 * 33 * 33 * 16


def test_the_floor_is_the_larger_of_two_times() -> None:
    assert MODEST.floor(Cost(2e15, 2e15, 1e15)) == 2 and MODEST.floor(Cost(0, 1e15, 3e15)) == 3


def test_ceilings_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roofline, "best", lambda device, call, seconds=1.0: call() is None or 1e-3)
    assert roofline.ceilings.__wrapped__("cpu", "float32") == Ceilings(
        2e3 * 2048**3, 2e3 * 2**26, 1e3 * 2**17
    )


# Results


def measurement(
    label: str, seconds: list[float], ours: bool = False, **more: object
) -> dict[str, object]:
    facts = {
        "case": "case",
        "operation": PLAIN,
        "dtype": "float32",
        "mode": "forward",
        "sizes": {},
        "verdict": "correct",
        "refused": "",
    }
    return (
        facts
        | {"label": label, "ours": ours, "reason": "", "peak_extra_bytes": 100}
        | {"seconds": summarise(seconds), "ratios": {}}
        | more
    )


def test_ratios_are_taken_round_by_round() -> None:
    assert compare_rounds([2.0, 20.0, 4.0], [1.0, 10.0, 2.0]) == (2.0, 2.0, 2.0)
    assert interval(5) == (0, 4) and interval(20) == (5, 14)


def test_a_record_says_how_much_slower_the_others_were() -> None:
    found = raced("", "large")
    lean, large = (record(found, entry) for entry in found.entries)
    (there,), (back,) = lean["ratios"].values(), large["ratios"].values()
    assert list(lean["ratios"]) == [large["label"]] and there[1] <= there[0] <= there[2]
    assert there[0] * back[0] == pytest.approx(1, rel=0.1)  # two medians of as many rounds


# The judge's own time


def test_a_cell_says_where_its_time_went() -> None:
    cell = next(
        cell
        for cell in cells([load("numpy_ref")], ("rel_shift",), ("float64",))
        if cell.aspect == "values"
    )
    seconds = judge_cell(cell, Options("quick", seed=77)).seconds
    assert 0 < seconds["backend"] + seconds["oracle"] < seconds["all"] and min(seconds.values()) > 0


def test_shares_are_of_the_whole_time() -> None:
    cells = [
        {"seconds": {"all": 3.0, "backend": 1.0, "oracle": 0.5}},
        {"seconds": {"all": 1.0, "backend": 1.0, "oracle": 0.0}},
        {},
    ]
    assert time_shares(cells) == {"backend": 0.5, "oracle": 0.125, "elsewhere": 0.375}
    assert (
        time_summary(cells)
        == "time: 50% in the backends, 12% in the specification, "
        "38% in drawing, comparing and explaining"
        and time_summary([]) == ""
    )


# The report


@pytest.fixture(scope="module")
def records() -> list[dict[str, object]]:
    """A few lengths of one operation by two contestants, one of them wrong once."""
    machine = {"versions": "torch 1", "clocks": {"before": {"load": 1}}}
    case = {
        "case": "growth",
        "device": "cpu",
        "ceilings": vars(Ceilings(1e12, 1e10, 1e9)),
    } | machine
    rates = {
        "tflops_true": 0.1,
        "tflops_convention": 0.1,
        "gb_per_s": 1.0,
        "intensity": 30.0,
        "roofline": 0.1,
        "budget": 0.5,
    }
    made = [
        measurement(
            label,
            [n / fast, n / fast * 1.1],
            **case | rates | {"ours": fast == 1e5, "case": f"growth N={n}", "sizes": {"N": n}},
        )
        for n in (512, 1024, 2048)
        for label, fast in (("torch_impl", 1e5), ("labml-nn", 1e4))
    ]
    made[0] |= {"verdict": "wrong", "reason": "row 3 <of> 5", "budget": 9.0}
    return [one | {"peak_extra_bytes": one["sizes"]["N"] * 10} for one in made] + [  # type: ignore[index]
        measurement(
            "flash-attn",
            [],
            **case | {"verdict": "missing", "reason": "the package flash_attn is not installed"},
        )
    ]


def test_the_page_needs_nothing_beside_it(records: list[dict[str, object]]) -> None:
    page = report_page([Run("a-device", "2026-01-01 12:00", "0123456", records)])
    (plots_of,) = re.findall(r'<div class="plots">(.*?)</div>', page, re.DOTALL)
    assert plots_of.count("<figure>") == page.count("<svg ") == 2
    assert "row 3 &lt;of&gt; 5" in page and "flash_attn is not installed" in page
    outside = [
        link for link in re.findall(r'(?:src|href)="([^"]*)"', page) if not link.startswith("#")
    ]
    assert outside == [] and page.startswith("<!doctype html>")
    names = re.findall(r'\bid="([^"]*)"', page)
    assert len(names) == len(set(names))


@pytest.mark.parametrize("columns", [60, 80, 100, 200])
def test_a_table_is_as_wide_as_its_terminal_and_no_number_is_folded(
    records: list[dict[str, object]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    columns: int,
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    show("a device", records, [])
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= columns
    assert re.search(r"torch_impl +[\d.]+ ms .* correct", shown)
    assert ("host" in shown.split("left out")[0]) == (columns == 200)


def test_the_terminal_has_every_contestant(
    records: list[dict[str, object]], capsys: pytest.CaptureFixture[str]
) -> None:
    show("a device", records, ["the last line"])
    shown = capsys.readouterr().out
    assert all(
        label in shown for label in ("torch_impl", "labml-nn", "flash-attn")
    ) and shown.endswith("the last line\n")


def test_the_report_is_made_of_committed_results(
    tmp_path: Path, records: list[dict[str, object]]
) -> None:
    folder = tmp_path / "results" / "a-device" / "2026-01-01"
    folder.mkdir(parents=True)
    benchmarks = [{"extra_info": one} for one in records if one["seconds"]]
    written = {
        "benchmarks": benchmarks,
        "left_out": [one for one in records if not one["seconds"]],
        "commit_info": {"id": "0123456789"},
    }
    (folder / "120000.json").write_text(json.dumps(written))
    page = tmp_path / "page.html"
    assert main(["bench-report", "--results", str(tmp_path / "results"), "-o", str(page)]) == 0
    assert "a-device: run of 2026-01-01 12:00, 0123456." in page.read_text()
    assert main(["bench-report", "--results", str(tmp_path)]) == 2


def test_a_figure_is_drawn_the_same_way_twice(records: list[dict[str, object]]) -> None:
    styles = assign_styles(records)
    drawn = plots(records, styles)
    assert drawn == plots(records, styles) and len(drawn) == 2 and plots([], styles) == {}
