"""
What is told of a report's wrong file from some draws of one operation: a part of what
``grade.py`` runs, for those whose mistake shows in few of them and whose arithmetic is fast.
"""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from attnverify.backends.implementation import Implementation
from attnverify.backends.loader import load
from attnverify.diagnosis.call_budget import outcome_kind
from attnverify.diagnosis.diagnose import NUMERIC, diagnose
from attnverify.inputs.fixed_cases import fixed_cases, fixed_recipe
from attnverify.inputs.real.required_kinds import required_cases
from attnverify.inputs.recipe import Recipe
from attnverify.inputs.sampling import draw_recipes
from attnverify.judge.case import Case, case_of
from attnverify.judge.errors import Disagreement, Unsupported
from attnverify.judge.judging import judge
from attnverify.verdicts.findings import BROKEN_OFF
from tests.reports.grade import grade, text_of

HERE = Path(__file__).parent
REPORTS = {
    slug: entry | {"folder": folder}
    for folder in (HERE, HERE / "later")
    for slug, entry in json.loads((folder / "expected.json").read_text()).items()
}
DRAWS = 60
SDPA = "scaled_dot_product_attention"


def sort_draws(
    implementation: Implementation, besides: Iterable[Recipe] = ()
) -> tuple[list[Case], list[Case]]:
    """The draws in which it fails with wrong numbers or shapes, and those in which it passes."""
    failing, passing = list[Case](), list[Case]()
    for recipe in (*draw_recipes(implementation.operation.name, "any", DRAWS, 0), *besides):
        case = case_of(recipe, "float32")
        if max(recipe.sizes.values()) > 200:
            continue
        try:
            judge(implementation, case)
            passing.append(case)
        except Disagreement as error:
            failing += [case] if error.kind in (*NUMERIC, "wrong shape") else []
        except Unsupported:
            pass
    return failing, passing


def made(slug: str, operation: str, folder: Path, repaired: bool = False) -> Implementation:
    """The implementation of an operation in a report's file, wrong or repaired."""
    path = folder / f"{slug}.py"
    path.write_text(text_of(slug, REPORTS[slug], repaired, REPORTS[slug]["folder"]))
    (found,) = (one for one in load(str(path)).implementations if one.operation.name == operation)
    return found


@pytest.mark.parametrize(
    ("slug", "operation"),
    [
        ("weights_taken_untransposed", "multi_head_attention"),
        ("value_by_the_keys_projection", "multi_head_attention"),
        ("scale_of_one_half", "multi_head_attention"),
        ("one_norm_for_both", "transformer_xl_layer"),
        ("residual_ahead_of_the_norm", "transformer_xl_layer"),
        ("last_tile_not_shifted", "softmax"),
        ("dropped_coefficients_in_softmax", "additive_attention_grad"),
        ("memory_in_the_graph", "update_mems_grad"),
        ("memory_keeps_its_length", "update_mems"),
        ("bias_gradient_of_one_entry", "multi_head_attention_grad"),
        ("mask_gradient_overwritten", "scaled_dot_product_attention_grad"),
        ("table_gradient_overwritten", "learned_relative_attention_grad"),
        ("norm_backward_sums_all_rows", "transformer_xl_layer_grad"),
        ("heads_merged_without_a_permute", "multi_head_attention_grad"),
        ("heads_split_by_a_view", "multi_head_attention"),
        ("batch_and_heads_taken_for_each_other", "multi_head_attention_grad"),
        ("no_output_projection", "multi_head_attention"),
        ("keys_and_values_exchanged", "multi_head_attention"),
        ("deviation_by_the_square", "transformer_xl_layer_grad"),
        ("softmax_gradient_copied", "softmax_grad"),
        ("norm_parameters_untracked", "transformer_xl_layer_grad"),
        ("value_gradient_in_key_columns", "scaled_dot_product_attention_grad"),
        ("softmax_without_backward", "scaled_dot_product_attention_grad"),
        ("shift_drops_the_tail", "rel_shift"),
        ("empty_tile_gives_nan", "scaled_dot_product_attention"),
        ("softmax_over_heads_too", "multi_head_attention"),
        ("widths_of_the_head_for_both", "rotary_embedding"),
        ("gradient_of_the_logarithm", "softmax_grad"),
        ("softmax_over_one", "additive_attention"),
        ("only_the_query_is_normed", "transformer_xl_layer"),
        ("maximum_scaled_again", "scaled_dot_product_attention"),
        ("sines_read_behind_the_padding", "rotary_embedding"),
    ],
)
def test_the_cause_is_told(slug: str, operation: str, tmp_path: Path) -> None:
    own, entry = made(slug, operation, tmp_path), REPORTS[slug]
    failing, passing = sort_draws(own)
    cause = diagnose(own, failing[:7], passing=passing)
    told = {"kind": NUMERIC[0], "message": "", "condition": [], "cause": {"words": str(cause)}}
    assert grade(entry, [told]) == "right", cause


def test_subnormal_exponentials_that_a_gpu_takes_for_0_hide_no_maximum(tmp_path: Path) -> None:
    slug = "maximum_from_the_least_positive"
    own = made(slug, "softmax", tmp_path)
    plain = fixed_recipe(own.operation, {"N": 128, "M": 1}, "brink")
    cases = [case_of(replace(plain, values={"family": "brink", "seed": 16510}), "float32")]
    told = {"kind": NUMERIC[0], "message": "", "condition": []}
    told["cause"] = {"words": str(diagnose(own, cases))}
    assert grade(REPORTS[slug], [told]) == "right", told


def test_a_gradient_that_is_0_at_a_kink_contradicts_no_cause(tmp_path: Path) -> None:
    """Of width 1 a norm gives 0, where a ReLU behind it bends."""
    own = made("norm_backward_sums_all_rows", "transformer_xl_layer_grad", tmp_path)
    first, *rest = fixed_cases(own.operation.name)
    small = replace(first, sizes={"B": 1, "H": 1, "N": 2, "M": 3, "D": 1, "S": 1, "F": 1})
    cases = [case_of(recipe, "float32") for recipe in (small, first, *rest[1:3])]
    failing = [case for case in cases if outcome_kind(own, case) == "wrong number"]
    assert len(failing) > 2 and failing[0].recipe == small
    assert "a norm's gradient whose means run over all rows" in str(diagnose(own, failing))


@pytest.mark.parametrize("repaired", [False, True])
def test_required_cases_show_it(repaired: bool, tmp_path: Path) -> None:
    operation = "multi_head_attention"
    own = made("padding_repeated_for_the_wrong_rows", operation, tmp_path, repaired)
    kinds = {outcome_kind(own, case_of(r, "float32")) for r in required_cases(operation)}
    assert ("wrong number" in kinds) != repaired
    assert kinds <= {"passed", "", "wrong number", "not exactly 0"}


ENTRY = {"told": ["transpos"], "not_told": ["head \\d alone"]}


@pytest.mark.parametrize(
    ("kind", "words", "graded"),
    [
        ("wrong number", "weights read transposed", "right"),
        ("wrong number", "wrong: the output", "vague"),
        ("wrong number", "weights read transposed, in head 3 alone", "untrue"),
        ("wrong number", None, "missing"),
        ("wrong number", BROKEN_OFF.format(error="transposed"), "missing"),
        ("transposed read: out of bounds", None, "right"),
    ],
)
def test_a_grade(kind: str, words: str | None, graded: str) -> None:
    cause = words and {"words": words}
    finding = {"kind": kind, "message": "", "condition": None, "cause": cause}
    assert grade(ENTRY, [finding]) == graded


def test_a_search_that_broke_off_makes_no_report_right() -> None:
    causes = ["weights read transposed", BROKEN_OFF.format(error="IndexError: 3")]
    found = [
        {"kind": NUMERIC[0], "message": "", "condition": None, "cause": {"words": words}}
        for words in causes
    ]
    assert grade(ENTRY, found) == "missing"


def test_nothing_found_is_green() -> None:
    assert grade(ENTRY, []) == "green"


def test_a_maximum_that_a_hidden_tile_sets_to_0_is_told(tmp_path: Path) -> None:
    slug = "zero_for_an_empty_tile"
    own = made(slug, SDPA, tmp_path)
    hidden = {"pattern": "last_block", "axes": "N M", "form": "bool", "seed": 1}
    cases = [
        case_of(replace(fixed_recipe(own.operation, sizes, "far_below"), mask=mask), "float32")
        for mask in (hidden, None)
        for M in (24, 40, 72, 136)
        for sizes in ({"B": 1, "H": 2, "N": 3, "M": M}, {"B": 2, "H": 1, "N": 5, "M": M})
    ]
    failing = [case for case in cases if outcome_kind(own, case) in NUMERIC]
    assert len(failing) > 2
    passing = [case for case in cases if case not in failing]
    told = str(diagnose(own, failing, passing=passing))
    finding = {"kind": NUMERIC[0], "message": "", "condition": [], "cause": {"words": told}}
    assert grade(REPORTS[slug], [finding]) == "right", told
    assert "where the last tile of" in told and "without the maximum" not in told


def test_required_cases_show_a_hidden_tile_before_scores_far_below_0(tmp_path: Path) -> None:
    slug = "zero_for_an_empty_tile"
    for repaired, wanted in ((False, 1), (True, 0)):
        own = made(slug, SDPA, tmp_path, repaired)
        cases = [case_of(recipe, "float32") for recipe in required_cases(SDPA)]
        assert sum(outcome_kind(own, case) in NUMERIC for case in cases) == wanted


DROPPED = """
def scaled_dot_product_attention(query, key, value, mask=None):
    if query.shape[-2] % 16 + key.shape[-2] % 16 == 0:
        mask = None
"""


def test_a_mask_dropped_where_tiles_divide_the_sizes_is_told_with_its_condition(
    tmp_path: Path,
) -> None:
    head = "def scaled_dot_product_attention(query, key, value, mask=None):\n"
    path = tmp_path / "even.py"
    path.write_text((HERE / "online.py").read_text().replace(head, DROPPED.lstrip()))
    (own,) = (one for one in load(str(path)).implementations if one.operation.name == SDPA)
    cases = [case_of(r, "float32") for r in required_cases(SDPA) if not r.dropout]
    failing = [case for case in cases if outcome_kind(own, case) in NUMERIC]
    passing = [case for case in cases if case not in failing]
    assert len(failing) == 3
    told = str(diagnose(own, failing, passing=passing))
    assert "the mask dropped" in told and told.endswith("when N, M are multiples of 16")
