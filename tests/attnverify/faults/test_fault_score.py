"""
The kill score: its sequence is that of a run, its gate can fail, and a user's own test is
measured by it.
"""

import contextlib
import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnverify import ROOT
from attnverify.catalogue.operation import CATALOGUE
from attnverify.catalogue.pytrees import map_leaves
from attnverify.cli import main
from attnverify.faults.registry import FAULTS, fault, read_faults, register
from attnverify.faults.user_tests import measure_user_tests
from attnverify.inputs.expand import expand
from attnverify.inputs.fixed_cases import fixed_recipe
from attnverify.verdicts import columns, one_case
from attnverify.verdicts.cell import Cell, applicable_aspects
from attnverify.verdicts.tally import Options
from tests.attnverify.faults import first_failure as module_of_score
from tests.attnverify.faults.controls.registry import read_controls
from tests.attnverify.faults.first_failure import first_failure, implementation_of
from tests.attnverify.faults.kill_score import dtypes_of, hardest, score_fault, table

read_faults()
CONTROLS = read_controls()
QUICK = Options("quick")
CHECKS = ROOT / "tests" / "sample_user_tests"


@pytest.mark.usefixtures("real_calls_are_judged")
@pytest.mark.parametrize(
    "name", ["softmax_key_by_key", "alibi_attention_grad_query_by_query", "causal_mask_running_sum"]
)
def test_the_score_judges_the_very_cases_of_a_run(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: dict[str, list[Any]] = {"cells": [], "score": []}
    for module, judge, key in (
        (one_case, "judge", "cells"),
        (columns, "judge_side_effects", "cells"),
        (module_of_score, "judge", "score"),
        (module_of_score, "judge_side_effects", "score"),
    ):
        monkeypatch.setattr(module, judge, recording(getattr(module, judge), seen[key]))
    control = CONTROLS[name]
    dtype = control.operation.dtypes[-1]
    assert not first_failure(implementation_of(control), dtype, QUICK).killed
    implementation = implementation_of(control)
    gradient = implementation if control.operation.is_gradient else None
    for aspect in applicable_aspects(implementation, gradient):
        tally = columns.judge_cell(
            Cell(implementation, gradient, dtype, aspect), Options("quick", failures=str(tmp_path))
        )
        assert tally.verdict == "passed"
    assert len(seen["score"]) > 40 and seen["score"] == seen["cells"]


@pytest.mark.parametrize("operation", CATALOGUE)
def test_a_fault_takes_every_argument(operation: str) -> None:
    """One that refuses what its operation takes is told by any call, whatever its numbers are."""
    inputs = expand(fixed_recipe(CATALOGUE[operation], {"N": 3, "M": 3}), "float32")
    for each in (*FAULTS.values(), *CONTROLS.values()):
        if each.operation.name == operation:
            with contextlib.suppress(ValueError):
                each.fresh()(**map_leaves(copy.copy, inputs))


def recording(judge: Any, seen: list[Any]) -> Any:
    def recorded(implementation: Any, case: Any, *more: Any) -> Any:
        seen.append((judge.__name__, case))
        return judge(implementation, case, *more)

    return recorded


def test_a_fault_that_is_none_survives() -> None:
    entry = score_fault(CONTROLS["softmax_key_by_key"], "float32", QUICK)
    assert (entry["killed"], entry["column"], entry["wanted"]) == (False, "", "accepted")


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("softmax_nan_of_empty_rows", "values"),
        ("alibi_attention_grad_top_left", "gradients"),
        ("rel_shift_same_row", "side effects"),
        ("rel_shift_static_output", "side effects"),
        ("init_mems_one_array", "side effects"),
        ("sinusoidal_positions_odd_width", "refusals"),
        ("sinusoidal_positions_cached", "values"),
    ],
)
def test_a_fault_is_noticed_in_its_column(name: str, column: str) -> None:
    entry = score_fault(FAULTS[name], "float32", QUICK)
    assert (entry["killed"], entry["column"], entry["wanted"]) == (
        True,
        column,
        "killed",
    ) and entry["words"]


def test_the_count_ends_at_the_first_failure() -> None:
    assert score_fault(FAULTS["dropout_scaled_by_p"], "float32", QUICK)["cases"] == 1


def entry(name: str, cases: int, killed: bool = True, wanted: str = "killed") -> dict[str, Any]:
    kind = (FAULTS | CONTROLS)[name].kind
    return {
        "fault": name,
        "kind": kind,
        "control": name in CONTROLS,
        "dtype": "float32",
        "cases": cases,
        "killed": killed,
        "wanted": wanted,
        "column": "values",
    }


def test_the_table_counts_the_killed_and_names_the_accused() -> None:
    entries = [
        entry("dropout_polarity", 1),
        entry("dropout_unscaled", 4),
        entry("softmax_key_by_key", 7, True, "accepted"),
    ]
    lines = table(entries)
    assert (
        lines[1].split()
        == ["dropout", "2", "2", "2", "2.5"]
        == lines[2].replace("all", "dropout").split()
    )
    assert lines[-1] == "controls: 1, accused softmax_key_by_key in float32 (values)"


def test_what_survives_is_the_hardest() -> None:
    entries = [
        entry("dropout_polarity", 1, killed=False),
        entry("dropout_unscaled", 400),
        entry("dropout_factor_two", 3),
    ]
    assert hardest(entries, 2) == [("dropout_polarity", 1), ("dropout_unscaled", 400)]


def test_state_is_forgotten_between_two_runs() -> None:
    assert [
        score_fault(FAULTS["dropout_off_for_ever"], "float32", QUICK)["cases"] for _ in range(2)
    ] == [score_fault(FAULTS["dropout_off_for_ever"], "float32", QUICK)["cases"]] * 2


def test_a_name_that_is_no_operation_is_refused() -> None:
    with pytest.raises(ValueError, match="name: wanted <operation>_<what is wrong>"):
        fault("scale", "", source="", clause="", reveals="")(lambda: None)
    with pytest.raises(ValueError, match="kind: wanted one of scale"):
        register({}, kind="scales")


def is_complete(each: Any) -> bool:
    """Whether a fault takes what the specification does, and is described."""
    takes = set(each.function.__signature__.parameters) - {"dtype"}
    described = each.source and each.clause and each.reveals and dtypes_of(each)
    return bool(
        takes == set(each.operation.arguments)
        and each.words
        and (each.name in CONTROLS or described)
    )


def test_a_fault_has_the_parameters_of_the_specification() -> None:
    assert len(FAULTS) > 900 and len(CONTROLS) > 10
    assert [each.name for each in (FAULTS | CONTROLS).values() if not is_complete(each)] == []


def test_what_is_wrong_in_no_narrow_dtype_is_the_exception() -> None:
    narrow = [each for each in FAULTS.values() if not {"float16", "bfloat16"} & set(each.wrong_in)]
    assert len(narrow) <= len(FAULTS) / 20


# a user's own test


def killed(name: str, check: str) -> set[str]:
    return next(
        {each.name for each in found.killed}
        for found in measure_user_tests(str(CHECKS / name))
        if found.name == check
    )


def test_a_weak_check_kills_little_and_is_told_what_reveals_the_rest(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert (
        main(["score", str(CHECKS / "weak_torch.py"), "--json", str(tmp_path / "score.json")]) == 0
    )
    printed = capsys.readouterr().out
    (found,) = json.loads((tmp_path / "score.json").read_text())
    total = len(found["killed"]) + len(found["survivors"])
    assert f"check_scaled_dot_product_attention kills {len(found['killed'])} of {total}" in printed
    assert (
        len(found["killed"]) < total / 3
        and "scaled_dot_product_attention_unscaled" in found["killed"]
    )
    assert "mask_dropped: the mask dropped (revealed by: any mask)" in printed


def test_a_strong_check_kills_most_forward_and_backward() -> None:
    (found,) = measure_user_tests(str(CHECKS / "strong_torch.py"))
    names = {each.name for each in found.killed}
    assert len(names) > 0.7 * (len(names) + len(found.survivors))
    assert {
        "scaled_dot_product_attention_grad_without_mean",
        "scaled_dot_product_attention_grad_mask_unsummed",
    } <= names


def test_checks_in_numpy() -> None:
    found = {each.name: each for each in measure_user_tests(str(CHECKS / "numpy_checks.py"))}
    assert "shift_right_printed_example" in {
        each.name for each in found["check_shift_right"].killed
    }
    assert {each.operation.name for each in found["check_alibi_attention_grad"].survivors} == {
        "alibi_attention_grad"
    }


def test_a_check_that_rejects_what_is_right_scores_nothing() -> None:
    slopes = next(
        each
        for each in measure_user_tests(str(CHECKS / "numpy_checks.py"))
        if each.name == "check_get_slopes"
    )
    assert "a plain series" in slopes.rejected and not slopes.killed
    assert next(slopes.lines()).startswith(
        "check_get_slopes rejects a right implementation, and scores nothing: AssertionError"
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import numpy\n", "wanted functions check_<operation>, got none"),
        (
            "import numpy\ndef check_atention(function): ...\n",
            "wanted check_<operation of the catalogue>, got atention",
        ),
        (
            "if False:\n    import jax\ndef check_softmax(function): ...\n",
            "wanted a file that imports torch or numpy, got jax",
        ),
        ("1 / 0\n", "ZeroDivisionError"),
    ],
)
def test_a_file_without_checks_is_broken(
    text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text(text)
    assert main(["score", str(tmp_path / "mine.py")]) == 2
    assert words in " ".join(capsys.readouterr().err.split())


def test_an_in_place_fault_reaches_a_tensor() -> None:
    import torch

    from attnverify.catalogue.operation import CATALOGUE
    from attnverify.faults.user_tests import with_torch

    for dtype in (torch.float32, torch.bfloat16):
        score = torch.randn(3, 4).to(dtype)
        before = score.clone()
        weights = with_torch(CATALOGUE["softmax"], FAULTS["softmax_in_place"].fresh(), None)(score)
        assert weights.dtype == dtype and not torch.equal(score, before)


def test_one_array_stays_one_array() -> None:
    mems = FAULTS["init_mems_one_array"].fresh()(2, 3, 1, 4, dtype="float32")
    assert mems[0] is mems[1] and mems[0].dtype == np.float32


def test_the_faults_run_only_where_they_are_named() -> None:
    body = str(Path(__file__).with_name("test_faults.py"))
    command = [
        sys.executable,
        "-m",
        "pytest",
        body,
        "--collect-only",
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
    ]
    unnamed = subprocess.run(
        [*command, "not differential"],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert "no tests collected" in unnamed.stdout and "deselected" in unnamed.stdout
