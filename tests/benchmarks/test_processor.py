"""Which settings of a processor are compared, and what is told of them."""

import json
from typing import Any

import pytest

from attnverify.bench.measure.cases import CPU
from attnverify.bench.measure.contestants import CONTESTANTS
from benchmarks import processor
from benchmarks.processor import OURS, RACES, SETTINGS, Setting, summarise_settings


def sample(ours: list[float], theirs: list[float], verdict: str = "correct") -> dict[str, Any]:
    told = {"race": "a race", "peer": "a peer", "units": "AVX2", "verdict": verdict}
    return told | {"ours": ours, "theirs": theirs}


def test_every_race_is_a_case_and_both_who_take_part_are_known() -> None:
    assert set(RACES) <= {(case.name, case.mode) for case in CPU}
    assert {OURS, *RACES.values()} <= {one.label for one in CONTESTANTS}


def test_a_peer_that_gets_slower_is_told_apart_from_ours_getting_faster() -> None:
    first, wide = SETTINGS[0], SETTINGS[1]
    samples = [(first, [sample([1.0, 1.0], [3.0, 3.0])]), (wide, [sample([1.0], [6.0])])]
    _, row = summarise_settings(samples)
    assert (row["ratio"], row["ours_over_first"], row["theirs_over_first"]) == (6, 1, 2)


def test_calls_of_all_turns_count_and_one_that_was_disturbed_does_not_decide() -> None:
    first = SETTINGS[0]
    turns = [(first, [sample([1.0], [2.0])]), (first, [sample([1.0, 9.0], [2.0, 2.0])])]
    (row,) = summarise_settings(turns)
    assert (row["rounds"], row["ratio"], row["seconds"]) == (3, 2, 1)


def test_what_is_wrong_under_a_setting_has_no_figure() -> None:
    (row,) = summarise_settings([(SETTINGS[0], [sample([1.0], [2.0], "wrong")])])
    assert row["rounds"] == 0 and "ratio" not in row


def test_a_setting_reaches_the_process_and_the_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    from attnverify.torch_impl.blocked import additive_operators, tiles

    for module in (tiles, additive_operators):
        monkeypatch.setattr(module, "ELEMENTS", module.ELEMENTS)
    assert processor.race_here(Setting("small", elements=2**10), 1, "no such race") == []
    assert tiles.ELEMENTS == additive_operators.ELEMENTS == 2**10
    given = {}

    def run(command: list[str], env: dict[str, str], **rest: Any) -> Any:
        given.update(env, setting=json.loads(command[command.index("--here") + 1]))
        return type("Ran", (), {"returncode": 1, "stderr": "no such unit", "stdout": ""})

    monkeypatch.setattr(processor.subprocess, "run", run)
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    narrow = Setting("narrow", 2, {"ATEN_CPU_CAPABILITY": "avx2"})
    assert processor.run_setting(narrow, 1) == []
    assert given["ATEN_CPU_CAPABILITY"] == "avx2" and given["OMP_NUM_THREADS"] == "2"
    assert "OPENBLAS_CORETYPE" not in given and given["setting"]["name"] == "narrow"


def test_settings_are_chosen_beside_what_they_are_compared_with() -> None:
    assert processor.chosen_settings() == SETTINGS
    names = [one.name for one in processor.chosen_settings("two threads")]
    assert names == ["one thread", "two threads", "two threads, asleep as they wait"]


def test_a_processor_is_named_with_its_caches() -> None:
    found = processor.name_processor()
    assert found["processor"] and found["cores"] >= 1
