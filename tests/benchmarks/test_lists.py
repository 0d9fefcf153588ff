"""Lists of cases fit a card; a run that is cut leaves what was measured; goals are fair."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attnverify.bench.measure.cases import CAUSAL, PLAIN, XL, Case, relative, square
from attnverify.bench.measure.contestants import CONTESTANTS, Contestant, implementation_of
from attnverify.bench.measure.race import Entry, Race
from attnverify.bench.measure.shares import ask
from attnverify.bench.measure.validation import Judgement, judged
from attnverify.bench.report.results import read
from benchmarks.races import recorded as of_run
from benchmarks.races.goals import GOALS, Goal, outcome
from benchmarks.races.lists import (
    EVERY_PAIR,
    LISTS,
    MEMORY,
    all_cases,
    estimate_memory,
    fitting,
)
from tests.attnverify.bench.test_bench import measurement


@pytest.mark.parametrize("name", LISTS)
def test_no_case_asks_for_more_than_a_card_has(name: str) -> None:
    assert all(estimate_memory(case) <= MEMORY for case in all_cases(name, "cuda"))


def test_who_holds_every_pair_is_left_out_where_they_do_not_fit() -> None:
    case = Case("long", PLAIN, square(32768, H=16), "bfloat16", device="cuda")
    assert estimate_memory(case) > MEMORY >= estimate_memory(fitting(case))
    assert set(fitting(case).without) == set(EVERY_PAIR)
    short = Case("short", PLAIN, square(2048, H=16), "bfloat16", device="cuda")
    assert fitting(short) is short


def test_the_short_list_has_a_case_for_every_kernel_forward_and_both() -> None:
    found = all_cases("short", "cuda")
    kinds = {(case.operation, case.mode) for case in found}
    assert len(found) == 12 and len(kinds) == 10
    assert {case.dtype for case in found} == {"bfloat16"}


def test_each_list_is_of_the_next() -> None:
    ids = [{case.id for case in all_cases(name, "cuda")} for name in LISTS]
    assert ids[0] < ids[1] < ids[2]
    assert all_cases("short", "cpu") == all_cases("all", "cpu")


@pytest.mark.parametrize("against", ["own plain causal forward", "own plain forward"])
def test_causal_kernels_are_held_against_causality_in_the_kernel(against: str) -> None:
    sizes = relative(2048, 32, 64, 8)
    goal = Goal(
        "row", ("xl",), "torch_impl:triton", against, 2, 1, measure="overhead", at_most=True
    )
    ours = measurement("torch_impl:triton", [3.0] * 3, True, case="xl", operation=XL, sizes=sizes)
    plain: dict[str, Any] = {"operation": PLAIN, "sizes": square(2048, 32, 64, 8)}
    others = [
        measurement("torch_impl:triton", [1.0] * 3, True, case="flash grid", **plain),
        measurement("torch_impl:triton", [6.0] * 3, True, case="plain causal", **plain),
        measurement("torch_impl:causal", [2.0] * 3, True, case="plain causal", **plain),
    ]
    assert outcome(goal, [ours, *others]).figure == (1.5 if "causal" in against else 3.0)


@pytest.mark.parametrize("mode", ["forward", "both"])
def test_our_causal_kernel_is_right_where_the_mask_is_causal(mode: str) -> None:
    case = Case("small", PLAIN, square(21, 1, 16), "bfloat16", mode, device="cuda", mask=CAUSAL)
    assert judge_causal(case).verdict == "correct"
    assert judge_causal(replace(case, mask=None)).verdict == "unsupported"
    windowed = replace(case, mask=CAUSAL | {"pattern": "window"})
    assert judge_causal(windowed).verdict == "wrong"


def judge_causal(case: Case) -> Judgement:
    (ours,) = (one for one in CONTESTANTS if one.label == "torch_impl:causal")
    found = implementation_of(ours, case)
    assert not isinstance(found, str)
    return judged(ask(case), ours, found)


def test_transformer_xl_and_alibi_are_held_against_what_is_causal() -> None:
    overheads = {goal.what: goal.against for goal in GOALS["cuda"] if goal.measure == "overhead"}
    assert len(overheads) == 3
    assert all(
        ("causal" in against) != what.startswith("learned") for what, against in overheads.items()
    )


def test_a_goal_of_two_columns_is_of_the_faster_correct_one() -> None:
    goal = Goal("row", ("case",), "one or two", "peer", 2, 4)
    peer = measurement("peer", [8.0] * 3)
    beside = {"ratios": {"peer": (8.0, 8.0, 8.0)}}
    slow = measurement("one", [2.0] * 3, True, ratios={"peer": (4.0, 4.0, 4.0)})
    fast = measurement("two", [1.0] * 3, True, **beside)
    assert outcome(goal, [slow, fast, peer]).figure == 8.0
    assert outcome(goal, [slow, fast | {"refused": "x"}, peer]).figure == 4.0
    assert "one took no part" in outcome(Goal("row", ("case",), "one", "peer", 2, 4), [peer]).why


CASES = tuple(Case(f"case {i}", PLAIN, square(4), seconds=0.1) for i in range(2))


def raced(case: Case, device: str, measured: bool) -> Race:
    entry = Entry(Contestant("ours", "numpy_ref"), None, Judgement("correct"))
    entry.sampled.seconds += [1.0, 2.0]
    return Race(case, device, (entry,), None, None, {})


def test_what_every_race_came_to_is_written_when_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_run, "race", raced)
    path = tmp_path / "120000.json"
    run = of_run.Races(measured=True, path=path)
    for number, case in enumerate(CASES, 1):
        run.entry(case, "ours")
        assert [one["case"] for one in read(path)] == [case.name for case in CASES[:number]]
        assert read(path)[-1]["seconds"]["median"] == 1.5


def test_no_race_is_begun_when_the_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(monotonic=lambda: now[0])
    now = [0.0]
    monkeypatch.setattr(of_run, "race", raced)
    monkeypatch.setattr(of_run, "time", clock)
    run = of_run.Races(measured=True, seconds=60)
    now[0] = 59.0
    run.entry(CASES[0], "ours")
    now[0] = 61.0
    run.entry(CASES[0], "ours")
    with pytest.raises(pytest.skip.Exception, match="not begun: 60 s were given"):
        run.entry(CASES[1], "ours")
