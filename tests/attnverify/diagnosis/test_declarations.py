"""
What is narrower than the dtype, or tiny and counted as 0, is told with the line of PRECISION under
which it passes: operands, sums between blocks of rows, steps in float32. A small fault that reads
every digit is taken for none of them, and a line takes the place of none that stands in the file.
"""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy import ndarray

from attnverify import numpy_ref, spec
from attnverify.backends.array_libraries import array_library
from attnverify.backends.calls.call_adapter import adapt_signature
from attnverify.backends.implementation import Backend, Implementation
from attnverify.backends.loader import load
from attnverify.catalogue.operation import CATALOGUE
from attnverify.diagnosis.declaring import declare, together
from attnverify.diagnosis.diagnose import diagnose
from attnverify.diagnosis.factors.fit import describe_zeros, fit_factor, scaled_output_model
from attnverify.diagnosis.factors.least_squares import fit_common_factor, is_no_rounding
from attnverify.diagnosis.mistakes.arithmetic import to_tf32
from attnverify.diagnosis.mistakes.narrow_operands import to_tf32_by_truncation
from attnverify.diagnosis.narrow_partials import HALVES, find_narrow_partials
from attnverify.diagnosis.sentences import NARROW_STEP
from attnverify.failures.record import FailureRecord
from attnverify.failures.replay import replay
from attnverify.inputs.fixed_cases import fixed_cases, fixed_recipe
from attnverify.inputs.real.calls import far_calls
from attnverify.inputs.sampling import draw_recipes
from attnverify.judge.case import Case, case_of
from attnverify.judge.errors import Disagreement, Unsupported
from attnverify.judge.judging import judge
from attnverify.judge.observation import Observation
from attnverify.precision import find_fields
from attnverify.report.next_steps import describe_declared
from tests.attnverify.verdicts.test_found_out import judge_file

SDPA = CATALOGUE["scaled_dot_product_attention"]


def implementation(function: Callable[..., Any], precision: Any = "wide") -> Implementation:
    backend = Backend("made", "made", library=array_library("numpy"), precision=precision)
    return Implementation(backend, SDPA, "made", adapt_signature(function, SDPA))


def with_operands(narrow: Callable[[ndarray], ndarray]) -> Callable[..., Any]:
    """
    A flash-style kernel: the scale in the query, weights not yet normalised, every operand of both
    products narrow.
    """

    def attend(
        query: Any, key: Any, value: Any, mask: Any = None, keep: Any = None, p: Any = 0.0
    ) -> Any:
        query, key, value = (x.astype(np.float64) for x in (query, key, value))
        score = narrow(query / query.shape[-1] ** 0.5) @ narrow(key).mT
        weights = np.exp(score - score.max(axis=-1, keepdims=True))
        total = weights.sum(axis=-1, keepdims=True)
        return (narrow(weights) @ narrow(value) / total).astype(np.float32)

    return attend


def float16(x: ndarray) -> ndarray:
    return x.astype(np.float16).astype(np.float64)


def plain_cases() -> list[Case]:
    """Cases without a mask and without dropout."""
    drawn = draw_recipes(SDPA.name, "any", 40, 0)
    plain = [r for r in drawn if r.mask is None and r.dropout is None]
    return [case_of(recipe, "float32") for recipe in (fixed_recipe(SDPA, {}, "normal"), *plain)]


def failing(function: Callable[..., Any], precision: Any = "wide") -> list[Case]:
    found, made = [], implementation(function, precision)
    for case in plain_cases():
        try:
            judge(made, case)
        except Disagreement:
            found.append(case)
    return found


@pytest.mark.parametrize(
    "narrow, name, declared",
    [
        (to_tf32, "TF32", "tf32"),
        (to_tf32_by_truncation, "TF32", "tf32"),
        (float16, "float16", "float16"),
    ],
)
def test_narrow_operands_are_told_with_the_declaration_under_which_they_pass(
    narrow: Callable[[ndarray], ndarray], name: str, declared: str
) -> None:
    kernel = with_operands(narrow)
    cases = failing(kernel)
    cause = diagnose(implementation(kernel), cases)
    assert str(cause) == (
        f"operands in {name}: the answer is the same, bit for bit, when value is rounded to it; "
        'declare PRECISION = {"*": "wide", "float32": '
        f'{{"preset": "wide", "operand": "{declared}"}}}}, under which these cases pass'
    )
    told = re.search(r"PRECISION = (\{.*\}), under", str(cause))
    assert cases and told and failing(kernel, json.loads(told[1])) == []


def with_subnormals_as_zero(**given: Any) -> Any:
    """A kernel compiled with -ftz=true."""
    given = {name: flush(x) if isinstance(x, ndarray) else x for name, x in given.items()}
    return flush(numpy_ref.scaled_dot_product_attention(**given))


def flush(x: ndarray) -> ndarray:
    return np.where(np.abs(x) < np.finfo(np.float32).tiny, 0, x) if x.dtype.kind == "f" else x


def test_subnormal_numbers_that_count_as_0_are_told_and_no_narrow_operands() -> None:
    cases = [case_of(fixed_recipe(SDPA, {"N": 4, "M": 4}, "subnormal"), "float32")]
    made = implementation(with_subnormals_as_zero)
    with pytest.raises(Disagreement):
        judge(made, cases[0])
    cause = diagnose(made, cases)
    assert str(cause).startswith("subnormal numbers count as 0, as with -ftz=true")
    told = re.search(r"PRECISION = (\{.*\})", str(cause))
    assert told
    declared = {"preset": "wide"} | json.loads(told[1])["float32"]
    judge(implementation(with_subnormals_as_zero, declared), cases[0])


def test_a_wrong_number_that_is_subnormal_was_not_taken_for_0() -> None:
    def half(**given: Any) -> Any:
        return numpy_ref.scaled_dot_product_attention(**given) * np.float32(0.5)

    cases = [case_of(fixed_recipe(SDPA, {"N": 4, "M": 4}, "subnormal"), "float32")]
    made = implementation(half)
    with pytest.raises(Disagreement):
        judge(made, cases[0])
    assert "subnormal" not in str(diagnose(made, cases))


def test_a_wrong_number_beside_subnormal_ones_is_not_taken_for_them() -> None:
    def half(**given: Any) -> Any:
        return with_subnormals_as_zero(**given) * np.float32(0.5)

    made = implementation(half)
    plain = fixed_recipe(SDPA, {"N": 4, "M": 4}, "normal")
    cause = diagnose(made, [case_of(plain, "float32")])
    assert "subnormal" not in str(cause) and "operands" not in str(cause)


def test_a_small_fault_that_reads_every_digit_is_not_taken_for_narrow_operands() -> None:
    def slightly_wide(**given: Any) -> Any:
        return numpy_ref.scaled_dot_product_attention(**given) * np.float32(1.0003)

    cause = diagnose(implementation(slightly_wide), failing(slightly_wide))
    assert str(cause) == "every output is 0.03% high"


def test_what_does_not_read_the_values_is_not_taken_for_narrow_operands() -> None:
    def zero(**given: Any) -> Any:
        return 0 * numpy_ref.scaled_dot_product_attention(**given)

    assert "operands" not in str(diagnose(implementation(zero), failing(zero)))


@pytest.mark.parametrize(
    "factor, dtype",
    [(1 + 4e-6, "float32"), (1 - 1e-5, "float64"), (1.01, "bfloat16"), (0.999, "float16")],
)
def test_a_factor_that_roundings_make_is_never_told(factor: float, dtype: str) -> None:
    assert not is_no_rounding(factor, dtype)


@pytest.mark.parametrize(
    "factor, dtype", [(0.9981, "float32"), (1.44, "bfloat16"), (-1, "float16")]
)
def test_a_factor_beyond_roundings_is_one(factor: float, dtype: str) -> None:
    assert is_no_rounding(factor, dtype)


@pytest.mark.parametrize("factor, told", [(1 + 4e-6, None), (1.01, "1.00% high")])
def test_only_a_factor_beyond_roundings_is_told_of_what_it_fits(
    factor: float, told: str | None
) -> None:
    case = case_of(fixed_recipe(SDPA, {}, "normal"), "float32")
    bounds = (1e-5 * np.abs(case.expected),)
    seen = Observation(case, (factor * case.expected,), (case.expected,), bounds, 2.0)
    fit = scaled_output_model(seen)
    found = fit_common_factor([fit], [fit])
    assert (found.words if found else None) == told


@pytest.mark.parametrize(
    "shares, told",
    [
        ((0.25,), "off by a factor of 0.75"),
        ((0.25, 0.5), "off by a factor of 1 - p, p the share that dropout drops"),
    ],
)
def test_a_constant_is_no_share_of_a_draw(shares: tuple[float, ...], told: str) -> None:
    plain = fixed_recipe(SDPA, {}, "normal")
    fits = []
    for p in shares:
        case = case_of(replace(plain, dropout={"p": p, "seed": 2}), "float32")
        bounds = (1e-5 * np.abs(case.expected),)
        seen = Observation(case, ((1 - p) * case.expected,), (case.expected,), bounds, 9.0)
        fits.append(scaled_output_model(seen))
    found = fit_common_factor(fits, fits)
    assert found and found.words == told


@pytest.mark.parametrize("sizes, told", [({"E": 1}, False), ({"E": 6}, True)])
def test_a_factor_is_not_fitted_to_a_single_number(sizes: dict[str, int], told: bool) -> None:
    one = {"B": 1, "H": 1, "N": 1, "M": 2} | sizes
    case = case_of(fixed_recipe(SDPA, one, "normal"), "float32")
    bounds = (1e-3 * np.abs(case.expected),)
    seen = Observation(case, (8.5 * case.expected,), (case.expected,), bounds, 9.0)
    assert (fit_factor(SDPA, [seen]) is not None) is told


@pytest.mark.parametrize(
    "names, told",
    [
        (["the gradient by query"], "no gradient reaches query: 0 everywhere"),
        (
            ["the gradient by query", "the gradient by key", "the gradient by mask"],
            "no gradient reaches query, key and mask: 0 everywhere",
        ),
        (["output 3"], "nothing but zeros in output 3"),
        (["the output", "the weights"], "nothing but zeros in the output and the weights"),
    ],
)
def test_outputs_of_zeros_are_told_in_one_sentence(names: list[str], told: str) -> None:
    assert describe_zeros(names) == told


WRITTEN_OUT = """
import torch
FEATURES = {"mask": False, "dropout": False}

def scaled_dot_product_attention(query, key, value):
    score = query @ key.mT / query.shape[-1] ** 0.5
    lse = torch.logsumexp(score, -1, keepdim=True)
    return torch.exp(score - lse) @ value
"""


def test_an_lse_in_half_precision_is_told_with_its_line(tmp_path: Path) -> None:
    """It was told as weights that are wrong, and right where query is 0."""
    result = judge_file(tmp_path, WRITTEN_OUT, "bfloat16")
    (finding,) = result.findings
    line = str(finding.cause).partition("declare ")[2].partition("}}")[0] + "}}"
    assert line.startswith('PRECISION = {"bfloat16": {"step": ') and '"weights": "lse"' in line
    again = judge_file(tmp_path, f"{WRITTEN_OUT}\n{line}\n", "bfloat16")
    assert again.verdict == "passed"


KERNEL = """
import numpy as np
from attnverify.numpy_ref.attention import scaled_dot_product_attention_grad as exact
{declared}

def scaled_dot_product_attention_grad(d_output, query, key, value):
    others = (d_output, query, key, value)
    d_query, d_key, _ = exact(*others)
    scores = query.astype("f4") @ key.astype("f4").mT / np.float32(query.shape[-1] ** 0.5)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    total = np.zeros_like(value)
    for i in range(0, query.shape[2], 64):
        rows = slice(i, i + 64)
        total += (weights[:, :, rows].mT @ d_output[:, :, rows].astype("f4")).astype(value.dtype)
    return d_query, d_key, {factor} * total
"""
LARGE = far_calls(CATALOGUE["scaled_dot_product_attention_grad"], "default")[-1]
CASE = case_of(LARGE, "float16")
LINE = '{"float16": {"grad_partial": "float16"}, "bfloat16": {"grad_partial": "bfloat16"}}'
ALONE = '{"float16": {"grad_partial": "float16"}}'


def gradient(folder: Path, declared: str = "", factor: float = 1) -> Implementation:
    file = folder / "mine.py"
    file.write_text(KERNEL.format(declared=declared, factor=f"value.dtype.type({factor})"))
    backend = load(str(file))
    assert not backend.broken
    return next(found for found in backend.implementations if found.operation.is_gradient)


def test_the_declaration_is_told_and_passes(tmp_path: Path) -> None:
    made = gradient(tmp_path)
    with pytest.raises(Disagreement):
        judge(made, CASE)
    cause = find_narrow_partials(made, CASE)
    assert cause is not None and LINE in str(cause)
    judge(gradient(tmp_path, f"PRECISION = {LINE}"), CASE)


def test_the_line_of_both_dtypes_is_one(tmp_path: Path) -> None:
    """A second line of PRECISION would take the place of the first."""
    made = gradient(tmp_path)
    one, other = (find_narrow_partials(made, case_of(LARGE, dtype)) for dtype in HALVES)
    assert one is not None and one == other
    alone = find_narrow_partials(gradient(tmp_path, 'DTYPES = ("float16",)'), CASE)
    assert alone is not None and f"declare PRECISION = {ALONE}, " in str(alone)


def test_a_replay_tells_the_same(tmp_path: Path) -> None:
    made = gradient(tmp_path)
    record = FailureRecord.of(made, CASE, "gradients")
    with pytest.raises(Disagreement, match="cause: as near as sums that are kept in float16"):
        replay(record, made)


@pytest.mark.parametrize("given", [{"factor": 1.5}, {"declared": f"PRECISION = {LINE}"}])
def test_nothing_is_told_of_another_error(given: dict[str, Any], tmp_path: Path) -> None:
    """Of sums that are wrong beyond it, and where it is declared already."""
    made = gradient(tmp_path, **given)
    assert find_narrow_partials(made, CASE) is None


def test_a_line_holds_what_is_declared_already(tmp_path: Path) -> None:
    made = gradient(tmp_path, 'PRECISION = {"float16": {"preset": "eager", "exp_ulps": 8}}')
    cause = find_narrow_partials(made, CASE)
    assert '"preset": "eager", "exp_ulps": 8, "grad_partial": "float16"' in str(cause)


def float32(x: ndarray) -> ndarray:
    return x.astype(np.float32).astype(x.dtype)


def alibi_attention(query: Any, key: Any, value: Any, visible: Any = None) -> Any:
    """ALiBi whose slopes are made in float32."""
    H, N, M = query.shape[1], query.shape[2], key.shape[2]
    distance = np.arange(M) - (np.arange(N)[:, None] + M - N)
    slopes = float32(np.asarray(spec.get_slopes(H)))
    biases = np.where(distance <= 0, slopes[:, None, None] * distance, -np.inf)
    score = numpy_ref.scaled_dot_product_score(query, key) + biases
    return (
        numpy_ref.softmax(score if visible is None else np.where(visible, score, -np.inf)) @ value
    )


def softmax(score: Any, mask: Any = None) -> Any:
    """A softmax by powers of two, whose log2(e) is a number of float32."""
    log2_of_e = float(np.float32(np.log2(np.e)))
    return numpy_ref.softmax(score * log2_of_e * np.log(2), mask)


@pytest.mark.parametrize("function", [alibi_attention, softmax])
def test_what_is_computed_in_float32_is_told(function: Callable[..., Any]) -> None:
    """Of slopes it was "the weights are wrong even where the scores are their biases alone"."""
    name = function.__name__
    (own,) = (x for x in load("numpy_ref").implementations if x.operation.name == name)
    own = replace(own, function=function)
    wrong = []
    for recipe in fixed_cases(name):
        case = case_of(recipe, "float64")
        if not recipe.is_large and not recipe.dropout:
            try:
                judge(own, case)
            except Unsupported:
                continue
            except Disagreement:
                wrong.append(case)
    assert wrong and str(diagnose(own, wrong)).startswith(NARROW_STEP)


SAID: dict[str, Any] = {
    "nothing": None,
    "a preset": "fused",
    "fields": {"preset": "fused", "operand": "tf32"},
    "a dtype": {"bfloat16": {"preset": "fused"}, "*": "eager"},
    "an operation": {"softmax": {"*": "fused", "bfloat16": "eager"}, "*": "eager"},
    "an operation, one for all": {"softmax": "fused", "dropout": "eager"},
    "this dtype": {"float16": "fused", "*": "eager"},
    "all of all": {"*": {"float16": "fused", "*": "eager"}},
}
ASKED = [(name, d) for name in ("softmax", "dropout") for d in ("float16", "bfloat16", "float32")]


@pytest.mark.parametrize("what", SAID)
def test_a_line_says_what_was_found_and_keeps_what_the_file_says(what: str) -> None:
    """That of numbers counted as 0 left out what the file says, and what was found beside it."""
    (own,) = (x for x in load("numpy_ref").implementations if x.operation.name == "softmax")
    own = replace(own, backend=replace(own.backend, precision=SAID[what]))
    more = {"exp_ulps": 128.0}
    said = json.loads(declare(own, {"float16": more}))
    for name, dtype in ASKED:
        before = find_fields(SAID[what], name, name, dtype)
        is_meant = (name, dtype) == ("softmax", "float16")
        after = find_fields(said, name, name, dtype)
        if name == "softmax" or what.startswith("an operation"):
            assert after == (before | more if is_meant else before)


def test_lines_of_several_findings_are_one() -> None:
    lines = ['{"float16": {"exp_ulps": 128.0}}', '{"bfloat16": {"lse_merge": True}}']
    told = '{"float16": {"exp_ulps": 128.0}, "bfloat16": {"lse_merge": True}}'
    assert together(lines) == told
    explained = [[{"name": "a", "words": "a", "declares": line}] for line in lines]
    cells = [
        {"backend": "mine", "findings": [{"cause": {"explanations": each}}]} for each in explained
    ]
    assert [*describe_declared(cells)][1:] == [f"  PRECISION = {told}"]
    assert [*describe_declared(cells[:1])] == []
