"""No green without evidence: a cell of which no case is discriminating is weak, and says so."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from attnverify.catalogue.operation import CATALOGUE
from attnverify.inputs.recipe import Recipe
from attnverify.inputs.sampling import draw_recipes
from attnverify.judge.case import Case, case_of
from attnverify.judge.weak_cases import accepts
from attnverify.precision import resolve
from attnverify.report.html import report_page
from attnverify.report.table import summary_line
from attnverify.verdicts.tally import CellResult, decide_verdict
from tests.support.run_attnverify import Run, judged

WIDE = """\
from attnverify import numpy_ref

PRECISION = {"slack": 1e30}


def scaled_dot_product_score(query, key):
    return numpy_ref.scaled_dot_product_score(query, key)
"""
EMPTY = dict.fromkeys(("operation", "implementation", "backend", "how", "dtype"), "x")


def result(aspect: str = "values", cases: int = 9, strong: int = 0) -> CellResult:
    return CellResult(**EMPTY, aspect=aspect, cases=cases, strong=strong, checks=3)


def judged_in(folder: Path, *options: str) -> Run:
    """A right function that claims an arithmetic so coarse that zeros would pass for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path("mine.py").write_text(WIDE)
        return judged("--backend", "mine.py", "--op", "scaled_dot_product_score", *options)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return judged_in(tmp_path_factory.mktemp("weak"))


def test_a_bound_that_takes_everything_gives_no_green(run: Run) -> None:
    assert run.verdicts()["scaled_dot_product_score", "values"] == "weak"
    assert run.status == 1


def test_weak_stands_in_every_output(run: Run) -> None:
    assert run.report
    words = "cases, none of them discriminating"
    assert " WEAK " in run.output and " 1 weak" in run.output
    assert "weak: 1 cell without a discriminating case" in run.output
    assert words in run.output and words in report_page(run.report)
    assert "1 of 3 cells are weak" in report_page(run.report)


def test_weak_is_allowed_where_that_is_said(run: Run, tmp_path: Path) -> None:
    again = judged_in(tmp_path, "--allow-weak")
    assert again.status == 0 and again.report == run.report


@pytest.mark.parametrize("aspect", ["values", "gradients", "hidden NaN"])
def test_one_discriminating_case_is_enough(aspect: str) -> None:
    assert decide_verdict(result(aspect)).verdict == "weak"
    assert decide_verdict(result(aspect, strong=1)).verdict == "passed"


def test_columns_that_compare_no_output_are_not_weak() -> None:
    assert decide_verdict(result("refusals", cases=0)).verdict == "passed"


def test_the_summary_counts_weak_cells() -> None:
    found = [decide_verdict(result()), replace(result(), verdict="passed")]
    assert summary_line([each.as_dict() for each in found]).startswith("2 cells: 1 passed, 1 weak;")


# Trivial answers of the memory, which has no numbers of its own


def memory(mem_len: int = 3) -> Case:
    sizes = {"L": 2, "B": 1, "F": 4, "S": mem_len}
    recipe = Recipe(
        "init_mems", sizes, {"family": "normal", "seed": 1}, options={"mem_len": mem_len}
    )
    return case_of(recipe, "float32")


@pytest.mark.parametrize("mem_len", [0, 3])
def test_a_memory_of_zeros_is_told_from_one_of_another_form(mem_len: int) -> None:
    assert memory(mem_len).is_discriminating(resolve("wide", "init_mems", "init_mems", "float32"))


def test_a_case_to_which_no_trivial_answer_applies_is_not_discriminating(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("attnverify.judge.case.trivial_answers", lambda *_: iter(()))
    case = Case(memory().recipe, "float32")
    assert not case.is_discriminating(resolve("wide", "init_mems", "init_mems", "float32"))


def test_another_number_of_arrays_or_another_shape_is_no_answer() -> None:
    wanted = [np.zeros((1, 3, 4)), np.zeros((1, 3, 4))]
    assert accepts([x.copy() for x in wanted], wanted, None)
    assert not accepts(wanted[:1], wanted, None)
    assert not accepts([x[:, 1:] for x in wanted], wanted, None)
    assert not accepts(None, wanted, None) and not accepts(wanted, None, None)


def test_every_operation_has_discriminating_draws() -> None:
    for name, operation in CATALOGUE.items():
        dtype = operation.dtypes[0]
        precision = resolve("wide", name, name, "float64")
        cases = [case_of(recipe, dtype) for recipe in draw_recipes(name, "any", 20, 0)]
        assert any(case.is_discriminating(precision) for case in cases), name
