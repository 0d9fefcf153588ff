"""Sequences of calls: what outlives a call is found, whoever keeps it."""

from dataclasses import replace
from pathlib import Path

import pytest

from attnverify.backends.array_libraries import array_library
from attnverify.backends.implementation import Implementation
from attnverify.backends.loader import load
from attnverify.checks.call_sequences import call_steps, judge_sequence, passes_when_reloaded
from attnverify.checks.registry import IN_INFERENCE, WRITTEN_ANEW, checks, concerns
from attnverify.inputs.fixed_cases import fixed_cases
from attnverify.inputs.recipe import Recipe
from attnverify.inputs.sampling import draw_recipes
from attnverify.judge.case import case_of
from attnverify.judge.errors import Disagreement, Unsupported
from attnverify.judge.judging import is_right, judge

SHORT = Recipe(
    "softmax",
    {"N": 2, "M": 3},
    {"family": "normal", "seed": 1},
    mask={"pattern": "random", "axes": "N M", "form": "bool", "seed": 3},
)
LONG = Recipe("softmax", {"N": 5, "M": 17}, {"family": "normal", "seed": 2})
HEAD = """
import numpy as np
from attnverify import numpy_ref as right

ARRAYS, PRECISION, KEPT = "numpy", "wide", {}

"""

STATEFUL = {
    "mask": "def softmax(score, mask=None):\n    return right.softmax(score, "
    "KEPT.setdefault(score.shape, mask))\n",
    "longest": """
def softmax(score, mask=None):
    # a buffer that is as wide as its first user
    out = KEPT.setdefault("out", np.zeros((5, 17), score.dtype))
    weights = right.softmax(score, mask)
    KEPT["calls"] = KEPT.get("calls", 0) + 1
    if KEPT["calls"] < 3:
        return weights
    return weights + out[: len(weights), : weights.shape[-1]] + np.float32(0.01)
""",
    "dtype": """
def softmax(score, mask=None):
    dtype = KEPT.setdefault("dtype", score.dtype)
    return right.softmax(score.astype(dtype), mask)
""",
    "view": """
def softmax(score, mask=None):
    buffer = KEPT.setdefault(score.shape, np.empty_like(score))
    buffer += np.nan_to_num(right.softmax(score, mask)) - np.nan_to_num(buffer) * (len(KEPT) < 2)
    return buffer.copy()
""",
}


def written(folder: Path, body: str, head: str = HEAD) -> Implementation:
    path = folder / "stateful.py"
    path.write_text(head + body)
    return load(str(path)).implementations[0]


@pytest.mark.parametrize("kept", ["mask", "longest", "dtype"])
def test_what_outlives_a_call_is_found(kept: str, tmp_path: Path) -> None:
    with pytest.raises(Disagreement, match="the result depends on earlier calls") as error:
        judge_sequence(SHORT, LONG, written(tmp_path, STATEFUL[kept]), "float32")
    assert error.value.kind == "state"


@pytest.mark.parametrize("kept", ["mask", "longest", "dtype"])
def test_each_of_its_calls_is_right_alone(kept: str, tmp_path: Path) -> None:
    for recipe in (SHORT, LONG):
        judge(written(tmp_path, STATEFUL[kept]), case_of(recipe, "float32"))


def test_a_function_of_its_arguments_passes(tmp_path: Path) -> None:
    judge_sequence(
        SHORT,
        LONG,
        written(tmp_path, "softmax = right.softmax\n__all__ = ['softmax']\n"),
        "float32",
    )


def test_what_is_wrong_alone_is_no_state(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="no two calls"):
        judge_sequence(
            SHORT,
            LONG,
            written(tmp_path, "def softmax(score, mask=None):\n    return 0 * score\n"),
            "float32",
        )


@pytest.mark.parametrize("body", ["0 * score", "KEPT['gone']"])
def test_what_is_wrong_alone_is_imported_once_more_and_no_oftener(
    body: str, tmp_path: Path
) -> None:
    log = f"open({str(tmp_path / 'log')!r}, 'a').write('x')\n"
    text = f"{log}def softmax(score, mask=None):\n    return {body}\n"
    implementation = written(tmp_path, text)
    for first, other in ((SHORT, LONG), (LONG, SHORT)):
        with pytest.raises(Unsupported, match="no two calls"):
            judge_sequence(first, other, implementation, "float32")
    assert len((tmp_path / "log").read_text()) == 2


def test_a_copy_that_was_right_is_asked_no_second_time(tmp_path: Path) -> None:
    """What its first call kept must not hide what the second is alone."""
    implementation = written(tmp_path, STATEFUL["mask"])
    other = replace(SHORT, mask={**(SHORT.mask or {}), "seed": 4})
    cases = [case_of(recipe, "float32") for recipe in (SHORT, other)]
    assert [passes_when_reloaded(implementation, case) for case in cases] == [True, True]


def test_a_sequence_that_nobody_answers_shows_nothing(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="no two calls"):
        judge_sequence(
            SHORT,
            LONG,
            written(tmp_path, "def softmax(score, mask=None):\n    raise NotImplementedError\n"),
            "float32",
        )


def test_a_sequence_repeats_changes_and_returns() -> None:
    words = [step[0] for step in call_steps(SHORT, LONG, "float32")]
    assert words[:3] == ["the first call", "another geometry", "the first call again"]
    assert words[3:5] == [
        "the same geometry under a boolean mask",
        "the same geometry under another mask",
    ]
    assert words[5:] == ["another dtype", "the first call once more"]


def test_two_masks_of_one_geometry_differ() -> None:
    one, two = (step[1].recipe for step in call_steps(SHORT, LONG, "float32")[3:5])
    assert one.sizes == two.sizes and one.mask != two.mask


TRAINED = str(Path(__file__).parents[2] / "sample_backends/training_elsewhere.py")
ELSEWHERE = {i.how: i for i in load(TRAINED).implementations if not i.operation.is_gradient}


def objection(own: Implementation, aspect: str, name: str, dtype: str = "float32") -> str:
    try:
        checks(own.operation.name, aspect, "quick", 0)[name](own, dtype)
    except Disagreement as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("how", "aspect", "name"),
    [
        ("packs_keys_once", "side effects", WRITTEN_ANEW),
        ("wrong_in_inference", "values", IN_INFERENCE),
        ("wrong_in_inference_on_the_fast_path", "values", IN_INFERENCE),
    ],
)
def test_a_fault_is_noticed_by_the_one_check_that_is_for_it(
    how: str, aspect: str, name: str
) -> None:
    own = ELSEWHERE[how]
    assert objection(own, aspect, name)
    assert not objection(ELSEWHERE["sound"], aspect, name)
    for recipe in fixed_cases(own.operation.name)[::3]:
        assert judge(own, case_of(recipe, "float32")).budget <= 1


def test_a_third_of_the_values_is_judged_without_a_graph() -> None:
    recipes = draw_recipes("scaled_dot_product_attention", "any", 60, 0)
    wrong = ELSEWHERE["wrong_without_a_graph"]
    right = [is_right(wrong, case_of(recipe, "float32")) for recipe in recipes]
    assert 20 < sum(right) < 55
    assert all(is_right(ELSEWHERE["sound"], case_of(recipe, "float32")) for recipe in recipes)


def test_what_a_library_has_no_notion_of_is_not_asked() -> None:
    numpy = load("numpy_ref").implementations[0]
    assert not concerns(IN_INFERENCE, numpy) and concerns(WRITTEN_ANEW, numpy)
    assert concerns(IN_INFERENCE, ELSEWHERE["sound"])
    library = replace(array_library("numpy"), is_writable=False)
    fixed = replace(numpy, backend=replace(numpy.backend, library=library))
    assert not concerns(WRITTEN_ANEW, fixed)
