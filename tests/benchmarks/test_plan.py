"""What a list of benchmarks takes on a card is planned case by case, and adds up."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from attnverify.bench.measure.cases import COMPILED
from attnverify.bench.measure.contestants import contestants, implementation_of
from benchmarks import plan
from benchmarks.races.lists import all_cases

SHORT = all_cases("short", "cuda")
SMALL = replace(SHORT[0].small, seconds=2.0)
RELATIVE = next(case for case in SHORT if case.name.startswith("relative"))


def takers(case: plan.Case) -> plan.Takers:
    found = {one: implementation_of(one, case) for one in contestants(case)}
    return {one: own for one, own in found.items() if not isinstance(own, str)}


@pytest.mark.parametrize("mode", ["forward", "both"])
def test_the_host_computes_what_is_judged(mode: str) -> None:
    case = replace(SMALL, mode=mode)
    before, after = plan.host_seconds(case, takers(case))
    assert after > 0 and before + after > 0


def test_a_compiler_takes_longer_and_who_is_missing_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plan, "host_seconds", lambda *_: (5.0, 3.0))
    lean, full = (plan.plan(one, 0.0) for one in (replace(RELATIVE, without=COMPILED), RELATIVE))
    assert full.loading - lean.loading > plan.BY_A_COMPILER
    assert lean.contestants == len(takers(replace(RELATIVE, without=COMPILED)))
    missing = {one.label for one in contestants(RELATIVE)} - {one.label for one in takers(RELATIVE)}
    absent = replace(RELATIVE, without=(*COMPILED, *missing))
    assert plan.plan(absent, 0.0).seconds == pytest.approx(lean.seconds)


def test_what_the_host_computes_first_counts_where_it_takes_longer_than_loading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plan, "host_seconds", lambda *_: (1.0, 3.0))
    short = plan.plan(RELATIVE, 0.0)
    monkeypatch.setattr(plan, "host_seconds", lambda *_: (short.loading + 7.0, 3.0))
    assert plan.plan(RELATIVE, 0.0).seconds - short.seconds == pytest.approx(7)


def test_a_kind_of_kernel_is_compiled_once() -> None:
    known: set[tuple[object, ...]] = set()
    forward, both = (
        plan.compiling_seconds(replace(RELATIVE, mode=m), known) for m in ("forward", "both")
    )
    assert (forward, both) == (plan.CUDA + plan.TRITON["forward"], plan.TRITON["both"])
    longer = replace(RELATIVE, sizes=RELATIVE.sizes | {"N": 4096, "M": 4096})
    assert plan.compiling_seconds(longer, known) == 0


@pytest.mark.parametrize("alike", [False, True])
def test_of_cases_that_are_alike_one_is_measured(
    alike: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two widths of a head, and one more with a mask, all of 2048 positions."""
    measured = ((float(n), 1.0) for n in range(100))
    monkeypatch.setattr(plan, "host_seconds", lambda *_: next(measured))
    found = [one for one in plan.plans("short", "B=8", alike) if "forward" in one.case][:3]
    assert [one.measured for one in found] == [True, not alike, not alike]
    assert [one.before for one in found] == ([0.0] * 3 if alike else [0.0, 1.0, 2.0])


def test_the_plan_of_a_list_adds_up_and_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plan, "host_seconds", lambda *_: (0.0, 30.0))
    path = tmp_path / "kept" / "plan.json"
    assert plan.main(["-k", "alibi", "--record", str(path)]) == 0
    told = json.loads(path.read_text())
    assert len(told["cases"]) == 2 and all(one["gigabytes"] < 70 for one in told["cases"])
    minutes = (plan.STARTING + sum(one["seconds"] for one in told["cases"])) / 60
    waited = 60 / plan.SIDE_BY_SIDE
    assert told["plan"] == f"{minutes:.1f} minutes; host 60 CPU s, waited for {waited:.0f} s"
    assert f"2 cases, {told['plan']}" in capsys.readouterr().out
