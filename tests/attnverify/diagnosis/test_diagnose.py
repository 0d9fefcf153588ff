"""
A diagnosis names what is wrong: a convention, a known fault, a factor, or the first stage that a
probe finds wrong.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy import ndarray

from attnverify.backends.array_libraries import array_library
from attnverify.backends.calls.call_adapter import adapt_signature
from attnverify.backends.implementation import Backend, Implementation
from attnverify.catalogue.operation import CATALOGUE
from attnverify.catalogue.pytrees import leaves, map_leaves
from attnverify.conventions.convention import Convention, conventions
from attnverify.conventions.operation_rows import (
    CONVENTIONS_OF_OPERATION,
    OPERATION_SPEC_ANSWERS,
)
from attnverify.conventions.stage_rows import SPEC_ANSWERS, STAGE_ROWS
from attnverify.diagnosis.candidates import Candidate, candidates, from_fault, where_they_differ
from attnverify.diagnosis.diagnose import NUMERIC, diagnose
from attnverify.diagnosis.matching.best import best_matches
from attnverify.diagnosis.whereabouts.outputs import describe_wrong_outputs
from attnverify.faults import registry
from attnverify.inputs.fixed_cases import fixed_cases, fixed_recipe
from attnverify.inputs.recipe import Recipe
from attnverify.inputs.sampling import draw_recipes
from attnverify.judge.case import Case, case_of
from attnverify.judge.errors import Disagreement, Unsupported
from attnverify.judge.judging import judge
from attnverify.judge.observation import Observation, arrays
from attnverify.precision import resolve
from attnverify.reference.staged_attention import StagedAttention, evaluate, spec_stages
from attnverify.verdicts import findings as findings_module
from tests.support.roundings import count_roundings
from tests.support.sample_backends import tallies

KNOWN = registry.read_faults()
SILENT = ("state", "side effects", "refusals")
"""Classes that show in other columns than values and gradients."""
MARKED = {name: f for name, f in KNOWN.items() if f.kind not in SILENT}


def numpy_implementation(
    operation: str, function: Callable[..., Any], precision: Any = "wide"
) -> Implementation:
    backend = Backend("made", "made", library=array_library("numpy"), precision=precision)
    return Implementation(
        backend, CATALOGUE[operation], "made", adapt_signature(function, CATALOGUE[operation])
    )


def computed(operation: str, compute: Callable[[dict[str, Any], str], Any]) -> Implementation:
    """An implementation that computes in float64 and rounds its result."""

    def is_float(x: Any) -> bool:
        return isinstance(x, ndarray) and x.dtype.kind not in "bi"

    def run(**inputs: Any) -> Any:
        floats = [x.dtype for x in leaves(inputs) if is_float(x)]
        dtype = floats[0] if floats else np.dtype("float32")
        wide = map_leaves(lambda x: x.astype(float) if is_float(x) else x, inputs)
        rounded = compute(wide, str(dtype))
        return map_leaves(lambda x: x.astype(dtype) if is_float(x) else x, rounded)

    return numpy_implementation(operation, run)


def staged(operation: str, change: Callable[[StagedAttention], StagedAttention]) -> Implementation:
    return computed(
        operation,
        lambda inputs, dtype: evaluate(change(spec_stages(CATALOGUE[operation], inputs, dtype))),
    )


def cause(
    implementation: Implementation,
    dtype: str = "float32",
    cases: int = 40,
    among: list[Candidate] | None = None,
) -> str | None:
    """The diagnosis as a cell makes it, in words, of the most frequent kind of failure."""
    operation, kinds = implementation.operation.name, dict[str, list[Case]]()
    for recipe in (*fixed_cases(operation), *draw_recipes(operation, "any", cases, 0)):
        case = case_of(recipe, dtype)
        try:
            judge(implementation, case)
        except Disagreement as error:
            kinds.setdefault(error.kind, []).append(case)
        except Unsupported:
            pass
    numeric = [
        failing
        for kind, failing in kinds.items()
        if kind in (*NUMERIC, "wrong shape", "wrong type")
    ]
    if not numeric:
        return "no failure"
    others = (*fixed_cases(operation)[:6], *draw_recipes(operation, "any", 6, 0))
    beside = [case_of(recipe, dtype) for recipe in others]
    found = diagnose(implementation, max(numeric, key=len)[:7], beside, among=among)
    return found and found.words


def in_float32(recipes: Sequence[Recipe]) -> list[Case]:
    return [case_of(recipe, "float32") for recipe in recipes]


GRADIENTS = ("scaled_dot_product_attention_grad", "alibi_attention_grad")
"""
Two are enough, one of them nightly: the others are made of the same stages, which
reference/test_staged_attention.py holds to the specification.
"""


@pytest.mark.parametrize(
    "operation",
    [
        name
        for name in CATALOGUE
        if conventions(name) and (name in GRADIENTS or "_grad" not in name)
    ],
)
def test_a_convention_is_recognised(operation: str) -> None:
    dtype = "bool" if CATALOGUE[operation].dtypes == ("bool",) else "float32"
    for convention in conventions(operation):
        if convention.question != "ALiBi dtype":  # in float32 it is within the bound
            said = cause(
                computed(
                    operation,
                    lambda inputs, _, c=convention: c(CATALOGUE[operation], inputs, dtype),
                ),
                dtype,
                25,
            )
            assert said is not None and convention.words in said, f"{convention.words}: {said}"


def test_a_convention_is_told_once() -> None:
    for operation in CATALOGUE:
        words = [convention.words for convention in conventions(operation)]
        assert len(words) == len(set(words))


@pytest.mark.parametrize("share", [8, pytest.param(1, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("kind", [kind for kind in registry.FAULT_KINDS if kind not in SILENT])
def test_four_faults_in_five_are_named(kind: str, share: int) -> None:
    """
    By their own words, or by those of another candidate that is the same function wherever both
    were asked.
    """
    faults = {name: fault for name, fault in MARKED.items() if fault.kind == kind}
    some = [*faults.items()][:: share if len(faults) > 8 else 1]
    seen = {name: cause(of_fault(fault), dtype_of(fault)) for name, fault in some}
    told = {name: said for name, said in seen.items() if said != "no failure"}
    missed = {name: said for name, said in told.items() if not (said and named(KNOWN[name], said))}
    assert told and len(missed) <= 0.2 * len(told) + (share > 1), missed  # a sample may meet one


def of_fault(f: registry.Fault) -> Implementation:
    return numpy_implementation(f.operation.name, f.fresh(), f.precision)


def dtype_of(f: registry.Fault) -> str:
    if f.operation.name == "causal_mask":
        return "bool"
    return "float32" if "float32" in f.wrong_in else f.wrong_in[0]


def named(f: registry.Fault, said: str) -> bool:
    own, others = from_fault(f), [c for c in candidates(f.operation.name) if c.words in said]
    return f.words in said or any(same_function(own, other, f.operation.name) for other in others)


def same_function(one: Candidate, other: Candidate, operation: str) -> bool:
    """Whether the two agree on a hundred recipes that no diagnosis has seen."""
    for recipe in draw_recipes(operation, "any", 100, 99):
        seen = Observation(case_of(recipe, "float64"), (), (), (), 0.0)
        for x, y in zip(arrays(one.answer(seen)), arrays(other.answer(seen)), strict=False):
            if x.shape != y.shape or not same_numbers(x, y):
                return False
    return True


def same_numbers(x: ndarray, y: ndarray) -> bool:
    """Equal, or within 1e7 roundings of float64, with NaN in the same places."""
    if np.array_equal(x, y, equal_nan=x.dtype != bool):
        return True
    numbers = [np.nan_to_num(np.asarray(each, np.float64)) for each in (x, y)]
    return np.array_equal(np.isnan(x), np.isnan(y)) and count_roundings(*numbers) < 1e7


ALIBI = "alibi_attention"
SDPA = "scaled_dot_product_attention"
LEARNED = "learned_relative_attention"

FACTORS: dict[str, tuple[str, Callable[[StagedAttention], StagedAttention]]] = {
    "the scale is 0.36% low": (SDPA, lambda s: replace(s, scale=s.scale * 0.9964)),
    "the scale is off by a factor of M^-0.5": (
        SDPA,
        lambda s: replace(s, scale=s.scale * s.shape[-1] ** -0.5),
    ),
    "the slopes are off by a factor of 2 (2^1)": (ALIBI, lambda s: replace(s, slopes=s.slopes * 2)),
    "slope of head 1 off by a factor of 0.7071 (2^-0.5)": (
        ALIBI,
        lambda s: replace(s, slopes=s.slopes * np.where(np.arange(len(s.slopes)) == 1, 2**-0.5, 1)),
    ),
    "the position scores are off by a factor of 0.5 (2^-1)": (
        "transformer_xl_score",
        lambda s: replace(s, position=0.5),
    ),
    "the kept weights are off by a factor of 0.5": (
        SDPA,
        lambda s: replace(s, kept=s.kept * (1.0 if s.inputs.get("keep") is None else 0.5)),
    ),
    "the scale is 3.00% high": (f"{ALIBI}_grad", lambda s: replace(s, scale=s.scale * 1.03)),
}


@pytest.mark.parametrize("words", FACTORS)
def test_a_factor_is_fitted(words: str) -> None:
    operation, change = FACTORS[words]
    said = cause(staged(operation, change), among=[])
    assert said is not None and said.startswith(words), said


def keys_from(
    first: int, change: Callable[[ndarray], ndarray]
) -> Callable[[dict[str, Any], str], Any]:
    """The specification for other keys from one of them on."""

    def compute(inputs: dict[str, Any], dtype: str) -> Any:
        key = np.concatenate(
            [inputs["key"][..., :first, :], change(inputs["key"][..., first:, :])], axis=-2
        )
        return CATALOGUE[SDPA].reference(**inputs | {"key": key})

    return compute


def test_probes_say_which_stage_is_wrong_and_where() -> None:
    said = cause(computed(SDPA, keys_from(64, lambda key: key**3)), among=[], cases=60)
    assert said is not None and said.startswith("the weights are wrong, and right where query is 0")

    def hidden(inputs: dict[str, Any], dtype: str) -> Any:
        seen = np.arange(inputs["key"].shape[-2]) != 3
        return CATALOGUE[ALIBI].reference(
            **inputs | {"visible": seen if inputs["visible"] is None else inputs["visible"] & seen}
        )

    said = cause(computed(ALIBI, hidden), among=[])
    assert said is not None and said.startswith("a visible key has no weight: key 3 alone")

    def summed(inputs: dict[str, Any], dtype: str) -> Any:
        return (
            CATALOGUE[SDPA].reference(**inputs)
            * (1 + 0.5 * (np.arange(inputs["query"].shape[-2]) >= 2))[:, None]
        )

    said = cause(computed(SDPA, summed), among=[])
    assert (
        said is not None
        and said.startswith("wrong: the output, off by a factor of 1.5 where it is wrong")
        and "from row 2 of " in said
        and "wrong with one key" in said
    )


def test_infinity_in_hidden_slots_is_no_trouble_for_a_probe() -> None:
    """
    A warning of NumPy would be an error here: what is taken out of hidden slots must fit the dtype.
    """

    def wrong_scores(inputs: dict[str, Any], dtype: str) -> Any:
        return CATALOGUE[SDPA].reference(**inputs | {"query": inputs["query"] ** 3})

    recipes = [recipe for recipe in draw_recipes(SDPA, "nan", 40, 0) if recipe.poison == "inf"][:5]
    assert recipes and diagnose(computed(SDPA, wrong_scores), in_float32(recipes), among=[])


def test_what_is_right_has_no_cause() -> None:
    right = computed(SDPA, lambda inputs, dtype: CATALOGUE[SDPA].reference(**inputs))
    assert diagnose(right, in_float32(draw_recipes(SDPA, "any", 5, 0))) is None


def test_nothing_instead_of_a_list_can_be_diagnosed() -> None:
    nothing = computed(
        "update_mems",
        lambda inputs, dtype: (
            None if inputs["mem_len"] == 0 else CATALOGUE["update_mems"].reference(**inputs)
        ),
    )
    recipes = [
        replace(recipe, options=recipe.options | {"mem_len": 0})
        for recipe in draw_recipes("update_mems", "any", 4, 0)
    ]
    assert diagnose(nothing, in_float32(recipes)) is None


def test_a_slip_that_every_operation_can_show_is_named() -> None:
    def first_head(inputs: dict[str, Any], dtype: str) -> Any:
        return CATALOGUE[LEARNED].reference(
            **inputs | {"value": inputs["value"][:, :1].repeat(inputs["value"].shape[1], axis=1)}
        )

    said = cause(computed(LEARNED, first_head))
    assert said is not None and "the first head's value for all" in said


def test_a_candidate_that_is_the_specification_on_these_recipes_explains_nothing() -> None:
    """Without a mask every convention of masks is the specification."""
    plain = [
        recipe
        for recipe in draw_recipes(SDPA, "any", 60, 0)
        if recipe.mask is None and recipe.dropout is None
    ]
    slightly = computed(
        SDPA, lambda inputs, dtype: CATALOGUE[SDPA].reference(**inputs) * (1 + 3e-5)
    )
    masks = [c for c in candidates(SDPA) if "mask" in c.words]
    said = diagnose(slightly, in_float32(plain[:6]), among=masks)
    assert said is not None and "equals the specification" not in said.words


def test_each_failing_case_is_explained_by_what_the_specification_does_not_say() -> None:
    """NaN in empty rows is no reason for a small error where every row sees a key."""
    mask = {"pattern": "empty_rows", "axes": "N M", "form": "bool", "seed": 5}
    empty, plain = (
        case_of(fixed_recipe(CATALOGUE[SDPA], {"N": 5, "M": 7}, mask=hidden), "float32")
        for hidden in (mask, None)
    )
    (convention,) = (c for c in candidates(SDPA) if c.words == "NaN in rows that see no key")

    def seen(case: Case, share: float) -> Observation:
        (bound,) = arrays(case.bounds(resolve("eager", "", "", "float32")))
        unseen = Observation(case, (), tuple(arrays(case.expected)), (bound,), np.inf)
        (answer,) = arrays(convention.answer(unseen))
        return replace(unseen, actual=(answer + share * bound,))

    assert best_matches([convention], [seen(empty, 0.5)])
    assert not best_matches([convention], [seen(empty, 0.5), seen(plain, 1.5)])


def test_two_mistakes_at_once_are_told_together() -> None:
    """A second one beside a top-left mask: neither is the whole truth."""

    def both(s: StagedAttention) -> StagedAttention:
        top_left = next(c for c in conventions(ALIBI) if c.answer == "top-left")
        assert top_left.change is not None
        return replace(top_left.change(s), scale=1.0)

    said = cause(staged(ALIBI, both))
    assert said is not None and "not scaled and with a top-left causal mask" in said


def test_every_question_has_the_answer_of_the_specification() -> None:
    for _, question, *_ in STAGE_ROWS:
        assert question in SPEC_ANSWERS
    for operation, rows in CONVENTIONS_OF_OPERATION.items():
        for question, *_ in rows:
            assert question in SPEC_ANSWERS or question in OPERATION_SPEC_ANSWERS[operation]


def test_a_convention_without_stages_has_a_function() -> None:
    assert all(
        (c.change is None) != (c.function is None) for op in CATALOGUE for c in conventions(op)
    )
    assert isinstance(conventions("rel_shift")[0], Convention)
    assert conventions("additive_score") == ()


@pytest.fixture
def unshrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings_module, "find_smallest", lambda failing, *rest: failing[0])


def test_a_finding_tells_its_cause(
    unshrunk: None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    found = tallies("alibi_attention_off_by_one", folder=str(tmp_path_factory.mktemp("failures")))[
        "values"
    ]
    words = "a causal mask that hides the query's own key"
    assert f"  cause: equals the specification with {words} (" in found.reason
    assert found.findings[0].causes == {words}


def test_a_crash_needs_no_diagnosis(
    unshrunk: None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    found = tallies("softmax_runtime_error", folder=str(tmp_path_factory.mktemp("failures")))[
        "values"
    ]
    assert [finding.kind for finding in found.findings] == ["raised RuntimeError"]
    assert found.findings[0].cause is None


def test_one_function_under_two_names_is_told_once() -> None:
    series = from_fault(KNOWN["get_slopes_plain_series"])
    assert sum(c.words == series.words for c in candidates("get_slopes")) == 1
    convention = next(c for c in candidates("get_slopes") if c.rank == 0 and "series" in c.words)
    other = candidates("get_slopes")[-1]
    assert where_they_differ(series, convention, "get_slopes", "float32") == ()
    assert where_they_differ(series, other, "get_slopes", "float32") != ()


def test_where_a_gradient_is_wrong_is_told_by_the_axes_of_its_input() -> None:
    case = case_of(fixed_cases(f"{SDPA}_grad")[0], "float32")
    expected = tuple(arrays(case.expected))
    wrong = [x.copy() for x in expected]
    wrong[1][:, 2, 3:] += 1
    bounds = tuple(np.full(x.shape, 1e-6) for x in expected)
    seen = Observation(case, tuple(wrong), expected, bounds, 9.0)
    M = expected[1].shape[2]
    words = f"wrong: the gradient by key: from key 3 of {M} on, in the last head (2) alone"
    assert describe_wrong_outputs([seen]) == words


def test_what_few_clean_cases_cannot_tell_apart_is_not_told_of_hidden_slots() -> None:
    def zeros(inputs: dict[str, Any], dtype: str) -> Any:
        return 0 * np.nan_to_num(CATALOGUE[SDPA].reference(**inputs))

    def zeros_if(said: Callable[[Observation], bool]) -> Callable[[Observation], Any]:
        return lambda o: [x * (not said(o)) for x in arrays(o.case.expected)]

    one = Candidate("one", "one", zeros_if(lambda o: True))
    other = Candidate("other", "other", zeros_if(lambda o: bool(o.actual)))
    recipes = in_float32(draw_recipes(SDPA, "nan", 8, 0))
    said = [diagnose(computed(SDPA, zeros), recipes, among=c) for c in ([one], [one, other])]
    assert str(said[0]).startswith("equals the specification with one (")
    assert str(said[1]) == "wrong with ordinary numbers in the hidden slots too"


@pytest.mark.parametrize(
    ("fault", "named"),
    [
        ("multi_head_attention_grad_doubled_query", "query"),
        ("multi_head_attention_grad_heads_interleaved", "parameters.out_proj.weight"),
    ],
)
def test_a_gradient_is_named_by_its_input_inside_a_mapping_too(fault: str, named: str) -> None:
    case = case_of(fixed_cases("multi_head_attention_grad")[0], "float32")
    wrong = tuple(arrays(KNOWN[fault].function(**case.inputs)))
    expected = tuple(arrays(case.expected))
    bounds = tuple(np.full(x.shape, 1e-6) for x in expected)
    told = describe_wrong_outputs([Observation(case, wrong, expected, bounds, 9.0)])
    assert told.startswith(f"wrong: the gradient by {named}") and ";" not in told
