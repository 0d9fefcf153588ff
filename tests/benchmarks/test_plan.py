"""What a list of benchmarks takes on a card is planned case by case, and adds up."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from attnverify.bench.lists import all_cases
from attnverify.bench.measure.cases import COMPILED
from benchmarks import plan

SMALL = replace(all_cases("short", "cuda")[0].small, seconds=2.0)


@pytest.mark.parametrize("mode", ["forward", "both"])
def test_the_host_computes_what_is_judged(mode: str) -> None:
    assert plan.host_seconds(replace(SMALL, mode=mode)) > 0


def test_a_compiler_and_more_contestants_take_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "host_seconds", lambda case: 5.0)
    case = next(one for one in all_cases("short", "cuda") if one.name.startswith("relative"))
    lean, compiled = plan.plan(replace(case, without=COMPILED)), plan.plan(case)
    assert case.seconds + plan.COMPILING["forward"] < lean.device < compiled.device
    assert compiled.device - lean.device > plan.BY_A_COMPILER
    assert compiled.contestants > lean.contestants


def test_the_plan_of_a_list_adds_up_and_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plan, "host_seconds", lambda case: 30.0)
    path = tmp_path / "plan.json"
    assert plan.main(["-k", "alibi", "--record", str(path)]) == 0
    told = json.loads(path.read_text())
    device = sum(one["device"] for one in told)
    assert len(told) == 2 and all(one["gigabytes"] < 70 for one in told)
    minutes = f"{(60 + device) / 60:.1f} minutes: host 60 s, device {device:.0f} s"
    assert f"2 cases, {minutes}" in capsys.readouterr().out
