"""
Every guard of the judge has a twin that it must catch: one fault each, told in the right column and
in the right words.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from attnverify.backends.loader import load
from attnverify.inputs.recipe import Recipe
from attnverify.judge.case import Case, case_of
from attnverify.judge.errors import Disagreement, Unsupported
from attnverify.judge.judging import compare_outputs, judge
from attnverify.judge.observation import observe_one
from attnverify.judge.side_effects import judge_side_effects
from attnverify.precision import REFERENCE
from attnverify.verdicts import findings as findings_module
from attnverify.verdicts.columns import judge_cell
from attnverify.verdicts.tally import CellResult, Options
from tests.support.sample_backends import cells_of, implementation, load_sample, tallies

SDPA, GRAD = "scaled_dot_product_attention", "alibi_attention_grad"

WRONG_VALUES = {
    "softmax_zeros": "wrong number",
    "softmax_one_element": "1 of 35 elements differ from the specification; worst at (4, 6)",
    "softmax_nan": "got nan",
    "softmax_shape": "wanted shape (5, 7), got (1, 5, 7)",
    "softmax_dtype": "wanted dtype float32, got float64",
    "softmax_float": "wanted ndarray of shape (5, 7), got float",
    "softmax_none": "wanted ndarray (5, 7), got None",
    "softmax_list": "wanted ndarray of shape (5, 7), got list of 1",
    "softmax_runtime_error": "raised RuntimeError: CUDA error: an illegal memory access was "
    "encountered",
    "softmax_type_error": "raised TypeError: unsupported operand",
    "softmax_uninitialised": "got nan, expected 0, exactly",
    "softmax_averages_empty_rows": "expected 0, exactly",
    "alibi_attention_off_by_one": "wrong number",
    "alibi_attention_transposed": "wanted shape (2, 3, 5, 6), got (2, 5, 3, 6)",
    "alibi_attention_mixes_the_batch": "wrong number",
    f"{SDPA}_ignores_keep": "wrong number",
    f"{SDPA}_ignores_p": "wrong number",
    f"{SDPA}_drops_the_mask": "wrong number",
}
"""Wrong whatever stands in the hidden slots: seen in both columns."""

IN_ONE_COLUMN = {
    "shift_right_unsigned_zero": ("values", "got 0, expected -0, exactly"),
    "shift_right_forgets_the_wrap": ("values", "exactly"),
    "alibi_attention_leaky": ("hidden NaN", "got nan"),
    "relative_multi_head_attention_leaky": ("hidden NaN", "got nan"),
    "multi_head_attention_leaky": ("hidden NaN", "got nan"),
    "softmax_in_place": ("side effects", "score: the input was changed in place"),
    "rel_shift_alias": ("side effects", "output shares memory with the input x"),
    "update_mems_alias": ("side effects", "output[0] shares memory with the input hids[0]"),
    "softmax_refuses_with_type_error": ("refusals", "score of integers: raised TypeError"),
    "softmax_refuses_with_runtime_error": (
        "refusals",
        "score of integers: raised RuntimeError",
    ),
    "softmax_accepts_integers": (
        "refusals",
        "1 of 4 invalid calls are not refused with ValueError\n  mask of integers: accepted",
    ),
}

WRONG_GRADIENTS = {
    f"{GRAD}_missing_term": "output[1]",
    f"{GRAD}_nan_in_hidden_slots": "got nan, expected 0, exactly",
    f"{GRAD}_two_of_three": "wanted 3 arrays, got tuple of 2",
}


pytestmark = pytest.mark.usefixtures("causes_are_not_sought")


@pytest.fixture(autouse=True)
def unshrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shrinking has its own tests (inputs/test_recipes.py); here it would only take time."""
    monkeypatch.setattr(findings_module, "find_smallest", lambda failing, *rest: failing[0])


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("failures"))


def failed(found: dict[str, CellResult]) -> set[str]:
    return {aspect for aspect, tally in found.items() if tally.verdict == "failed"}


@pytest.mark.parametrize("name", WRONG_VALUES)
def test_a_wrong_value_fails_in_its_own_words(name: str, folder: str) -> None:
    found = tallies(name, folder=folder)
    assert failed(found) == {"values", "hidden NaN", "isolation"} & set(found)
    assert WRONG_VALUES[name] in found["values"].reason


@pytest.mark.parametrize("name", IN_ONE_COLUMN)
def test_a_fault_of_one_kind_fails_in_one_column(name: str, folder: str) -> None:
    aspect, words = IN_ONE_COLUMN[name]
    found = tallies(name, folder=folder)
    assert failed(found) - ({"isolation"} if aspect == "hidden NaN" else set()) == {aspect}
    assert words in found[aspect].reason


@pytest.mark.usefixtures("real_calls_are_judged")
def test_a_key_that_is_lost_in_long_calls_alone_fails(folder: str) -> None:
    assert failed(tallies(LONG_ALONE, folder=folder)) == {"values"}


LONG_ALONE = "alibi_attention_short"


@pytest.mark.parametrize("name", WRONG_GRADIENTS)
def test_a_wrong_gradient_fails(name: str, folder: str) -> None:
    found = tallies(name, folder=folder)
    assert failed(found) == {"gradients", "hidden NaN", "isolation"}
    assert WRONG_GRADIENTS[name] in found["gradients"].reason


def test_a_library_gradient_that_stops_fails_though_the_output_is_right(folder: str) -> None:
    found = tallies(SDPA, "detached_gradient", folder=folder)
    assert failed(found) == {"gradients", "hidden NaN", "isolation"}
    assert found["values"].verdict == "passed" and "output[1]" in found["gradients"].reason


def test_state_between_calls_is_told_apart(folder: str) -> None:
    found = tallies(f"{SDPA}_remembers", folder=folder)
    assert {"values", "side effects"} <= failed(found)
    assert "something kept from earlier calls" in found["values"].reason
    assert "under another mask is wrong after the first call" in found["side effects"].reason


def test_declared_determinism_is_held(folder: str) -> None:
    found = tallies("softmax", "nondeterministic", folder=folder)
    assert failed(found) == {"side effects"}
    assert "other bits, though DETERMINISTIC is declared" in found["side effects"].reason


def test_what_is_not_declared_deterministic_may_differ_within_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(load_sample("nondeterministic"), "deterministic", False)
    assert not failed(
        {
            cell.aspect: judge_cell(cell, Options("quick"))
            for cell in cells_of("softmax", "nondeterministic")
        }
    )


def test_a_draw_that_is_not_supported_is_rejected_alone(folder: str) -> None:
    values = tallies("softmax_no_float_masks", folder=folder)["values"]
    assert (
        values.verdict == "passed"
        and values.unsupported > 0
        and values.reasons == {"float masks": values.unsupported}
    )
    assert values.cases >= Options("quick").cases  # others are drawn in their place


def test_what_supports_nothing_is_unsupported_and_never_passed(folder: str) -> None:
    found = tallies("softmax_never", folder=folder)
    assert {tally.verdict for tally in found.values()} == {"unsupported"}
    assert (
        found["values"].reason == "needs a device of the next generation"
        and found["values"].cases == 0
    )


@pytest.mark.parametrize(
    ("name", "verdict"), [("softmax_right", "passed"), ("softmax_zeros", "failed")]
)
def test_what_strict_bounds_reject_is_judged_by_the_whole_ones(
    name: str, verdict: str, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    monkeypatch.setattr(Case, "strict_bounds", lambda case, _: np.zeros(case.expected.shape))
    (cell,) = (cell for cell in cells_of(name) if cell.aspect == "values")
    assert judge_cell(cell, Options("quick", failures=folder)).verdict == verdict


def test_a_column_without_one_finite_bound_is_not_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("bounds", "strict_bounds"):
        monkeypatch.setattr(Case, name, lambda case, _: np.full(case.expected.shape, np.inf))
    (cell,) = (cell for cell in cells_of("softmax_zeros") if cell.aspect == "values")
    tally = judge_cell(cell, Options("quick"))
    assert (tally.verdict, tally.cases, tally.strong) == (
        "unsupported",
        0,
        0,
    ) and tally.outside > 20
    assert "no bound is finite" in tally.reason


def test_what_always_raises_passes_nothing(folder: str) -> None:
    found = tallies("softmax_runtime_error", folder=folder)
    assert [aspect for aspect, tally in found.items() if tally.verdict == "passed"] == ["refusals"]


@pytest.mark.parametrize(
    "name", ["softmax_right", "alibi_attention_right", f"{SDPA}_right", "update_mems_right"]
)
def test_what_is_right_passes_everywhere(name: str, folder: str) -> None:
    found = tallies(name, folder=folder)
    assert {tally.verdict for tally in found.values()} == {"passed"}
    assert found["values"].cases >= 20 and found["values"].strong >= 0.6 * found["values"].cases


RECIPE = Recipe("softmax", {"N": 2, "M": 3}, {"family": "normal", "seed": 1})


@pytest.mark.parametrize(("name", "wrong"), [("softmax_right", False), ("softmax_zeros", True)])
def test_what_passes_is_seen_without_what_the_specification_errs(name: str, wrong: bool) -> None:
    """That takes as long to work out as the bound itself, and is asked for what is wrong alone."""
    seen = observe_one(implementation(name), Case(RECIPE, "float32"))
    assert seen.wrong == (REFERENCE in seen.case._errors) == wrong


def test_a_case_is_judged_by_itself() -> None:
    assert 0 <= judge(implementation("softmax_right"), case_of(RECIPE, "float32")).budget <= 1
    with pytest.raises(Disagreement, match="6 of 6 elements differ from the specification"):
        judge(implementation("softmax_zeros"), case_of(RECIPE, "float32"))
    with pytest.raises(Unsupported, match="next generation"):
        judge(implementation("softmax_never"), case_of(RECIPE, "float32"))


def test_side_effects_are_judged_by_themselves() -> None:
    judge_side_effects(implementation("softmax_right"), case_of(RECIPE, "float32"))
    with pytest.raises(Disagreement, match="changed in place"):
        judge_side_effects(implementation("softmax_in_place"), case_of(RECIPE, "float32"))


def test_a_failure_names_the_place_both_values_and_the_bound() -> None:
    with pytest.raises(Disagreement) as error:
        judge(implementation("softmax_zeros"), case_of(RECIPE, "float32"))
    for word in (
        "6 of 6 elements",
        "worst at (",
        "got 0, expected 0.",
        "bound ",
        "inputs: score (2, 3)",
    ):
        assert word in str(error.value)


def test_different_failures_of_one_cell_are_told_apart(folder: str) -> None:
    reason = tallies("softmax_two_faults", folder=folder)["values"].reason
    assert "raised RuntimeError" in reason and "wrong number" in reason


def test_where_triton_finds_no_gpu_the_line_that_needs_none_is_told() -> None:
    def kernel_from_elsewhere(**_: object) -> None:
        raise RuntimeError("0 active drivers ([]). There should only be one.")

    own = replace(implementation("softmax_zeros"), function=kernel_from_elsewhere)
    with pytest.raises(Disagreement, match=r'drivers .*; TARGET = "sm_90a" in the file has Triton'):
        judge(own, case_of(RECIPE, "float32"))


def test_an_error_without_words_is_told_by_its_line() -> None:
    def strict(**_: object) -> None:
        raise AssertionError

    own = replace(implementation("softmax_zeros"), function=strict)
    with pytest.raises(Disagreement, match="AssertionError: raise AssertionError"):
        judge(own, case_of(RECIPE, "float32"))


def test_infinity_is_no_number(folder: str) -> None:
    assert "infinity" in tallies("softmax_infinity", folder=folder)["values"].reason


def test_freed_memory_is_poisoned() -> None:
    mask = {"pattern": "nothing", "axes": "N M", "form": "bool", "seed": 1}
    recipe = Recipe("softmax", {"N": 5, "M": 7}, {"family": "normal", "seed": 1}, mask=mask)
    with pytest.raises(Disagreement, match="got nan, expected 0"):
        judge(implementation("softmax_uninitialised"), case_of(recipe, "float32"))


@pytest.mark.parametrize("wrong", range(8))
def test_each_of_many_outputs_is_compared(wrong: int) -> None:
    expected = [np.full(3, 1.0) for _ in range(8)]
    outputs = [x + (index == wrong) for index, x in enumerate(expected)]
    right = implementation("softmax_right")
    compared = compare_outputs(outputs, expected, [np.zeros(3)] * 8, "float64", right)
    assert [path for path, each in compared if not each.passed] == [f"output[{wrong}]"]


APART = ("right", "no_float_masks", "never", "two_faults", "infinity", "remembers")


def test_every_fault_has_a_test() -> None:
    told = {*WRONG_VALUES, *IN_ONE_COLUMN, *WRONG_GRADIENTS, LONG_ALONE}
    assert told == {
        i.name for i in load_sample("one_fault_each").implementations if i.how not in APART
    }


@pytest.mark.parametrize(
    ("output", "kind"),
    [
        ("np.zeros(score.shape + (1,), score.dtype)", "wrong shape"),
        ("np.zeros(score.shape, np.float16)", "wrong dtype"),
        ("score.tolist()", "wrong type"),
        ("np.full(score.shape, 7, score.dtype)", "wrong number"),
    ],
)
def test_what_is_wrong_is_named_in_words(output: str, kind: str, tmp_path: Path) -> None:
    text = f"import numpy as np\n\n\ndef softmax(score, mask=None):\n    return {output}\n"
    (tmp_path / "mine.py").write_text(text)
    (implementation,) = load(str(tmp_path / "mine.py")).implementations
    recipe = Recipe("softmax", {"N": 2, "M": 3}, {"family": "normal", "seed": 1})
    with pytest.raises(Disagreement) as told:
        judge(implementation, case_of(recipe, "float32"))
    assert told.value.kind == kind
