"""Ways of a column that the default profile judges as the quick one does."""

from dataclasses import replace
from pathlib import Path

import pytest

from attnverify.backends.loader import load
from attnverify.verdicts.cell import Cell
from attnverify.verdicts.columns import checks_to_run, judge_cell, options_of
from attnverify.verdicts.tally import Options


def cell(source: str, how: str, aspect: str = "values") -> Cell:
    (found,) = (
        own
        for own in load(source).implementations
        if own.operation.name == "self_attention" and own.how == how
    )
    return Cell(found, None, "float32", aspect)


@pytest.mark.parametrize(
    ("how", "profile", "wanted"),
    [
        ("module", "default", "quick"),
        ("module", "thorough", "thorough"),
        ("module", "quick", "quick"),
        ("autocast", "default", "quick"),
        ("", "default", "default"),
    ],
)
def test_a_module_is_judged_as_in_the_quick_profile_unless_all_is_asked_for(
    how: str, profile: str, wanted: str
) -> None:
    assert options_of(cell("torch_impl", how), Options(profile)).profile == wanted


def test_it_is_drawn_fewer_cases_than_the_functions_that_it_calls() -> None:
    own = cell("torch_impl", "module")
    cases = [
        judge_cell(
            Cell(replace(own.implementation, quick=quick), None, "float32", "values"), Options()
        )
        for quick in (True, False)
    ]
    assert 0 < 2 * cases[0].cases < cases[1].cases


@pytest.mark.parametrize(
    ("how", "profile", "sequences"),
    [
        ("module", "default", 1),
        ("module", "quick", 1),
        ("module", "thorough", 50),
        ("", "quick", 2),
    ],
)
def test_it_is_called_in_a_row_once(how: str, profile: str, sequences: int) -> None:
    own = cell("torch_impl", how, "side effects")
    run = checks_to_run(own, own.implementation, Options(profile, failures=""))
    names = [named["name"] for named, _ in run]
    assert names[0] == "outputs of their own"
    assert sum(name.startswith("calls in a row") for name in names) == sequences


def test_kernels_that_a_cpu_executes_are_a_second_opinion() -> None:
    for source, how in (("torch_impl", "triton"), ("cupy_impl", "cuda")):
        quick = {own.how for own in load(source).implementations if own.quick}
        assert (how in quick) == (load(source).device == "cpu")


@pytest.mark.parametrize("word", ["True", "('',)"])
def test_a_file_of_somebody_else_may_use_the_name(word: str, tmp_path: Path) -> None:
    path = tmp_path / "theirs.py"
    path.write_text(f"import numpy as np\nQUICK = {word}\ndef softmax(scores): return scores\n")
    backend = load(str(path))
    assert backend.broken is None and not backend.implementations[0].quick
