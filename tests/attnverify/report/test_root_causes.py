"""
Triage: failed cells are led back to their root causes; what only waits for them is told in one
line.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace as Namespace
from typing import Any

import numpy as np
import pytest
from numpy import ndarray

from attnverify.backends.array_libraries import array_library
from attnverify.backends.calls.round_trip import check_round_trip
from attnverify.backends.implementation import Backend
from attnverify.catalogue.operation import CATALOGUE
from attnverify.catalogue.traits import DTYPES
from attnverify.diagnosis.cause import Cause, Explanation
from attnverify.diagnosis.sentences import FREEDOM_DECLARED
from attnverify.diagnosis.smallest_cover import smallest_cover
from attnverify.failures.finding import NOT_RECORDED, NOT_REFUSED, Finding
from attnverify.failures.record import FailureRecord
from attnverify.options import FAILURES
from attnverify.report.causes.prerequisites import operations_used_by
from attnverify.report.causes.root_causes import RootCause, triage
from attnverify.report.causes.words import format_root_causes, representative_cells
from attnverify.report.html.failures import render_failures
from attnverify.report.next_steps import see_again
from attnverify.verdicts.tally import CellResult
from tests.support.run_attnverify import Run, in_pytest, judged
from tests.support.sample_backends import HERE, load_sample

STACKED, BENT = str(HERE / "dependent_faults.py"), str(HERE / "lossy_adapter.py")


def failed(
    operation: str,
    *symptoms: str,
    aspect: str = "values",
    dtype: str = "float32",
    how: str = "",
    causes: tuple[str, ...] = (),
) -> dict[str, Any]:
    """
    A failed cell: each symptom is "<kind>" or "<kind> when <condition> and <condition>", and the
    causes are the mistakes that its diagnoses name.
    """
    return CellResult(
        operation=operation,
        implementation=f"{operation}_{how}" if how else operation,
        backend="mine",
        how=how,
        dtype=dtype,
        aspect=aspect,
        verdict="failed",
        reason="what was found",
        findings=[finding(symptom, causes) for symptom in symptoms],
    ).as_dict()


def finding(symptom: str, causes: tuple[str, ...] = ()) -> Finding:
    kind, _, region = symptom.partition(" when ")
    cause = Cause("it equals", tuple(Explanation(name, name) for name in causes))
    condition = tuple(region.split(" and ")) if region else ()
    return Finding(kind, condition=condition, cause=cause if causes else None)


def found(*tallies: dict[str, Any]) -> list[tuple[str, int, int]]:
    return [(cause.words, len(cause.cells), len(cause.blocked)) for cause in triage(list(tallies))]


BLIND = "NaN when a row sees no key"
SERIES = "wrong number when H is no power of two"


def test_the_specification_says_what_is_built_on_what() -> None:
    assert {"softmax", "get_slopes"} <= operations_used_by("alibi_attention")
    assert {"rel_shift", "transformer_xl_score"} <= operations_used_by("transformer_xl")
    assert {"scaled_dot_product_attention", "merge_masks"} <= operations_used_by(
        "multi_head_self_attention"
    )
    assert not operations_used_by("softmax") and not any(
        name in operations_used_by(name) for name in CATALOGUE
    )


def of_a_library(F: Any, x: Any) -> Any:
    return F.rms_norm(F.of_a_library(x))


def called_by_each_other(x: Any) -> Any:
    return of_each_other(x)


def of_each_other(x: Any) -> Any:
    return called_by_each_other(of_each_other(x))


@pytest.mark.parametrize(
    "function, used",
    [
        (of_a_library, set()),  # F.rms_norm as the specification of rms_norm ended in a traceback
        (called_by_each_other, {"of_each_other"}),
        (of_each_other, {"called_by_each_other"}),
    ],
)
def test_an_operation_of_a_users_own_is_not_made_of_itself(
    monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any], used: set[str]
) -> None:
    for one in (of_a_library, called_by_each_other, of_each_other):
        own = replace(CATALOGUE["softmax"], specification=one)
        monkeypatch.setitem(CATALOGUE, one.__name__, own)
    assert operations_used_by.__wrapped__(function.__name__) == used


def test_one_cause_in_four_dtypes_is_one_root_cause() -> None:
    assert found(*(failed("softmax", BLIND, dtype=dtype) for dtype in DTYPES)) == [(BLIND, 4, 0)]


def test_gradients_and_hidden_nan_wait_for_the_values() -> None:
    columns = (
        failed("alibi_attention", "wrong number", aspect=aspect)
        for aspect in ("values", "gradients", "hidden NaN", "side effects")
    )
    assert found(*columns) == [("wrong number", 1, 3)]


def test_an_attention_and_a_layer_wait_for_the_softmax() -> None:
    tallies = [
        failed(name, BLIND)
        for name in ("multi_head_attention", "scaled_dot_product_attention", "softmax")
    ]
    assert found(*tallies) == [(BLIND, 1, 2)]
    assert triage(tallies)[0].cells[0]["operation"] == "softmax"


def test_one_cause_is_told_once_with_its_cells_in_terminal_json_and_page() -> None:
    dtypes = ("float32", "float16")
    tallies = [failed("softmax", BLIND, dtype=dtype, causes=("a slip",)) for dtype in dtypes]
    causes = triage(tallies)
    assert format_root_causes(causes)[1:] == [
        "  1. mine, softmax: a slip (seen when a row sees no key)",
        "       shown by softmax values f32 f16",
    ]
    plain = [cause.as_dict() for cause in causes]
    assert [cause["cells"] for cause in plain] == [[f"softmax {dtype} values" for dtype in dtypes]]
    anchors = {id(tally): f"failure-{number}" for number, tally in enumerate(tallies, 1)}
    page = render_failures({"tallies": tallies, "root_causes": plain}, tallies, anchors, {})
    assert page.count("it equals") == 1
    assert 'as told of <a href="#failure-1">softmax float32 values</a>' in page


def is_required(tally: dict[str, Any]) -> bool:
    return tally["aspect"] in ("values", "gradients")


def test_what_is_not_required_comes_last_and_blocks_nothing_that_is() -> None:
    hidden = failed("softmax", "NaN", aspect="hidden NaN")
    layer = failed("multi_head_attention", "wrong number")
    causes = triage([hidden, layer], is_required)
    assert [(cause.required, len(cause.blocked)) for cause in causes] == [(True, 0), (False, 0)]
    told = format_root_causes(causes)
    assert told[0] == "triage: 1 root cause, 0 cells blocked by it"
    assert "not required, and no failure of this run; to require it: --require contract" in told
    assert told[-1] == "       not met  softmax hidden NaN f32"
    assert "root cause" not in "".join(format_root_causes(triage([hidden], is_required)))


def test_another_trouble_does_not_wait_for_an_operation_that_nobody_may_call() -> None:
    tallies = [failed("merge_masks", "wrong shape"), failed("multi_head_attention", BLIND)]
    assert found(*tallies) == [("wrong shape", 1, 0), (BLIND, 1, 0)]


def test_what_a_waiting_cell_shows_is_told() -> None:
    tallies = [
        failed("softmax", "wrong number"),
        failed("softmax", "NaN when M > 3", aspect="gradients"),
    ]
    told = format_root_causes(triage(tallies))
    assert told[-1] == "       blocks   softmax gradients f32: NaN when M > 3"


def test_a_check_without_a_diagnosis_waits_for_a_mistake_that_has_one() -> None:
    check = {"name": "long: N=1025", "profile": "quick", "seed": 0}
    record = FailureRecord("softmax", "float16", "values", {}, "softmax", "mine.py", check)
    long = failed("softmax", dtype="float16")
    long["findings"] = [replace(finding("long: N=1025"), record=record).as_dict()]
    assert found(failed("softmax", "wrong number", causes=("scale",)), long) == [("scale", 1, 1)]


def test_another_dtype_does_not_block() -> None:
    assert (
        len(
            found(
                failed("softmax", "wrong number", dtype="float16"),
                failed("alibi_attention", "wrong number"),
            )
        )
        == 2
    )


def test_a_region_of_its_own_is_a_cause_of_its_own() -> None:
    assert found(failed("softmax", BLIND), failed("alibi_attention", SERIES)) == [
        (BLIND, 1, 0),
        (SERIES, 1, 0),
    ]
    assert found(failed("softmax", "wrong number"), failed("alibi_attention", SERIES)) == [
        ("wrong number", 1, 1)
    ]


def test_a_diagnosis_of_its_own_is_a_cause_of_its_own() -> None:
    nan, series = ("NaN rows",), ("a plain series", "a twisted one")
    assert (
        len(
            found(
                failed("softmax", "NaN", causes=nan),
                failed("alibi_attention", "wrong number", causes=series),
            )
        )
        == 2
    )
    tallies = [
        failed("get_slopes", "wrong number", causes=("a twisted one",)),
        failed("alibi_attention", "wrong number", causes=series),
    ]
    assert found(*tallies) == [("a twisted one", 1, 1)]


def test_a_root_cause_is_told_with_the_region_of_what_names_it() -> None:
    tallies = [
        failed("softmax", "wrong number when M > 32", causes=("splits",)),
        failed("softmax", BLIND, dtype="float16", causes=("splits", "empty rows")),
        failed("softmax", BLIND, dtype="bfloat16", causes=("empty rows",)),
        failed("softmax", BLIND, dtype="float64", causes=("empty rows",)),
    ]
    assert found(*tallies) == [
        ("splits (seen when M > 32)", 1, 0),
        ("empty rows (seen when a row sees no key)", 3, 0),
    ]


def test_an_arithmetic_that_comes_near_is_no_cause_beside_a_mistake() -> None:
    name = "exponentials of few digits"
    near = Cause(FREEDOM_DECLARED.format(what=name, declared="{}"), (Explanation(name, name),))
    slow = failed("softmax", "wrong number", aspect="gradients", causes=(name,))
    slow["findings"] = [Finding("wrong number", cause=near).as_dict()]
    mistake = failed("softmax", "NaN", causes=("a maximum of all rows",))
    (told,) = triage([mistake, slow])
    assert (told.cells, told.blocked) == ([mistake], [slow])
    (alone,) = triage([slow])
    assert alone.cells == [slow]


def test_two_faults_of_one_cell_are_two_causes() -> None:
    assert (
        len(
            found(
                failed(
                    "softmax", "wrong number when N > M", "raised RuntimeError when a mask is given"
                )
            )
        )
        == 2
    )


def test_an_implementation_is_not_blocked_by_another_one() -> None:
    assert (
        len(
            found(
                failed("softmax", BLIND, how="split"),
                failed("alibi_attention", SERIES, how="fused"),
            )
        )
        == 2
    )
    assert found(
        failed("softmax", "wrong number"), failed("alibi_attention", "wrong number", how="fused")
    ) == [("wrong number", 1, 1)]


def test_calls_that_are_not_refused_are_one_cause() -> None:
    assert found(
        *(
            failed(name, NOT_REFUSED, aspect="refusals")
            for name in ("softmax", "rel_shift", "alibi_attention")
        )
    ) == [(NOT_REFUSED, 3, 0)]


def test_causes_come_from_the_lowest_rung_upwards() -> None:
    tallies = [
        failed("alibi_attention", f"{SERIES} and mask.pattern!=one_key"),
        failed("rel_shift", "wrong number when x is transposed"),
        failed("softmax", "wrong number when M > 64"),
        failed("merge_masks", "wrong number"),
        failed("softmax", NOT_REFUSED, aspect="refusals"),
        failed("get_slopes", "wrong number when H == 7", dtype="float16"),
        failed("get_slopes", "x") | {"verdict": "passed"},
    ]
    assert [cause.rung for cause in triage(tallies)] == [
        "layout",
        "dtype",
        "softmax",
        "masks",
        "attention",
        "refusals",
    ]


def test_every_failed_cell_is_somewhere() -> None:
    names = [name for name in CATALOGUE if not CATALOGUE[name].is_gradient]
    tallies = [
        failed(name, f"wrong number when {'NMH'[i % 3]} > {i}", aspect=a)
        for i, name in enumerate(names)
        for a in ("values", "gradients")
    ]
    told = [id(tally) for cause in triage(tallies) for tally in (*cause.cells, *cause.blocked)]
    assert set(told) == {id(tally) for tally in tallies} and len(told) == len(set(told))


def test_what_passes_is_no_cause() -> None:
    assert (
        triage(
            [
                failed("softmax", BLIND) | {"verdict": verdict}
                for verdict in ("passed", "known failure", "unsupported")
            ]
        )
        == []
    )
    assert format_root_causes([]) == []


def test_the_lines_count_causes_and_what_they_block() -> None:
    tallies = [
        failed(name, BLIND, dtype=dtype)
        for name in ("softmax", "scaled_dot_product_attention")
        for dtype in ("float32", "float16")
    ]
    assert format_root_causes(triage(tallies)) == [
        "triage: 1 root cause, 2 cells blocked by it",
        f"  1. mine, softmax: {BLIND}",
        "       shown by softmax values f32 f16",
        "       blocks   scaled_dot_product_attention values f32 f16",
    ]


def test_the_cell_told_in_full_is_the_one_in_float32() -> None:
    tallies = [failed("softmax", BLIND, dtype=dtype) for dtype in DTYPES]
    assert (
        representative_cells(tallies)
        == [tallies[1]]
        == [cause.shown_by for cause in triage(tallies)]
    )
    assert isinstance(triage(tallies)[0], RootCause)


def recorded(symptom: str, causes: tuple[str, ...], seed: int) -> Finding:
    recipe = {"operation": "softmax", "sizes": {"N": 2, "M": 2}, "values": {"seed": seed}}
    record = FailureRecord("softmax", "float16", "values", recipe, "softmax", "mine.py")
    return replace(finding(symptom, causes), record=record)


def replay_of(found: Finding) -> str:
    return found.record.replay_line if found.record else ""


def test_two_mistakes_are_two_though_a_third_sign_may_be_either() -> None:
    signs = (("float64", ("scale",)), ("float32", ("scale", "tail")), ("float16", ("tail",)))
    cells = [failed("softmax", "NaN", dtype=dtype, causes=names) for dtype, names in signs]
    told = {words: number for words, number, _ in found(*cells)}
    assert told == {"scale": 2, "tail": 1}
    assert [words for words, _, _ in found(*cells[:2])] == ["scale"]
    assert [words for words, _, _ in found(*cells[1:])] == ["tail"]


def together(tally: dict[str, Any]) -> dict[str, Any]:
    """The same cell, of which all the mistakes that it names are told, and not one of them."""
    for each in tally["findings"]:
        each["cause"]["together"] = True
    return tally


def test_what_needs_two_mistakes_is_shown_by_both() -> None:
    both = together(failed("softmax", "NaN", dtype="float64", causes=("scale", "tail")))
    one = failed("softmax", "NaN", dtype="float32", causes=("tail",))
    assert {words: cells for words, cells, _ in found(both, one)} == {"scale": 1, "tail": 2}
    assert {words: cells for words, cells, _ in found(both)} == {"scale": 1, "tail": 1}
    either = failed("softmax", "NaN", dtype="float16", causes=("tail", "head"))
    assert {words: cells for words, cells, _ in found(both, either)} == {"scale": 1, "tail": 2}


def test_of_two_mistakes_each_is_told_by_what_shows_it_alone() -> None:
    """The slopes of ALiBi were told with the NaN of rows that see no key."""
    both = ("empty rows", "slopes")
    cell = failed("alibi_attention", "NaN when a row sees no key", "wrong number", causes=both)
    joint, alone = (Finding.from_dict(plain) for plain in cell["findings"])
    assert joint.cause and alone.cause
    joint = replace(joint, cause=replace(joint.cause, together=True))
    slopes = tuple(x for x in alone.cause.explanations if x.name == "slopes")
    alone = replace(alone, cause=replace(alone.cause, explanations=slopes))
    cell["findings"] = [joint.as_dict(), alone.as_dict()]
    told = {cause.brief: cause.told[0].kind for cause in triage([cell])}
    assert told == {"empty rows": "NaN", "slopes": "wrong number"}


def test_two_names_of_one_slip_are_one_mistake() -> None:
    """Rows without keys that average all values, and keys hidden at a number, were counted both."""
    averaged, at_a_number = "rows that see no key averaging all values", "hidden scores at "
    name = "scaled_dot_product_attention"
    values = failed(name, "not exactly 0", causes=(averaged,))
    gradients = failed(name, "wrong number", aspect="gradients", causes=(at_a_number,))
    assert found(values, gradients) == [(at_a_number, 1, 1)]
    assert found(values) == [(averaged, 1, 0)]
    beside = failed("softmax", "wrong number", causes=(at_a_number,))
    assert len(found(failed("alibi_attention", "NaN", causes=(averaged,)), beside)) == 2


def test_a_gradient_waits_for_its_output_where_both_hide_pairs() -> None:
    """A row without keys, and a key without rows, were taken for two mistakes."""
    name = "scaled_dot_product_attention"
    values = failed(name, "not exactly 0 when a row sees no key")
    gradients = failed(name, "wrong number when a key is hidden from every row", aspect="gradients")
    assert found(values, gradients) == [("not exactly 0 when a row sees no key", 1, 1)]


def test_the_name_of_the_only_output_is_no_brief_cause() -> None:
    """The last line of a run named "1. the output"."""
    cell = failed("alibi_attention", "NaN when a row sees no key")
    finding = replace(Finding.from_dict(cell["findings"][0]), condition=())
    for words, brief in (
        ("wrong: the output (seen with B=1)", "NaN"),
        ("wrong: the output; what is wrong first: the mask: wrong without dropout (seen with B=1)",
         "what is wrong first: the mask"),
    ):  # fmt: skip
        cell["findings"] = [replace(finding, cause=Cause(words)).as_dict()]
        assert [each.brief for each in triage([cell])] == [brief]


def test_what_no_mistake_explains_is_told_with_its_condition() -> None:
    """The last line said "wrong number", and not when."""
    cell = failed("alibi_attention", "wrong number")
    finding = replace(Finding.from_dict(cell["findings"][0]), condition=("causal is given",))
    cell["findings"] = [finding.as_dict()]
    assert [each.brief for each in triage([cell])] == ["wrong number, only when causal is given"]


def test_one_mistake_in_nine_places_is_one_root_cause() -> None:
    operations = ("softmax", "scaled_dot_product_attention", "multi_head_attention")
    cells = [
        failed(name, kind, aspect=aspect, causes=tuple({"tail", name} - {"softmax"}))
        for name in operations
        for aspect, kind in (("values", "NaN"), ("gradients", "infinity"), ("hidden NaN", "NaN"))
    ]
    ((words, shown, blocked),) = found(*cells)
    assert words == "tail" and shown + blocked == 9


@pytest.mark.parametrize(
    ("named", "chosen"),
    [
        ([], ()),
        ([set()], ()),
        ([{"a", "b"}, {"b"}], ("b",)),
        ([{"a"}, {"b"}, {"a", "b"}], ("a", "b")),
        ([{"a", "z"}, {"b", "z"}, {"c", "z"}, {"d"}], ("z", "d")),
    ],
)
def test_the_fewest_mistakes_are_told(named: list[set[str]], chosen: tuple[str, ...]) -> None:
    assert smallest_cover(named) == chosen


def test_the_replay_of_a_cause_is_that_of_its_own_finding() -> None:
    tiles, top = recorded("wrong number", ("tiles",), 1), recorded("infinity", ("top",), 2)
    cell = failed("softmax", dtype="float16") | {"findings": [tiles.as_dict(), top.as_dict()]}
    replays = {cause.words: cause.replay for cause in triage([cell])}
    assert replays == {"tiles": replay_of(tiles), "top": replay_of(top)}


def test_the_next_line_says_which_cause_it_shows_where_the_first_was_not_recorded() -> None:
    tiles, top = recorded("wrong number", ("tiles",), 1), recorded("infinity", ("top",), 2)
    unkept = replace(tiles, notes=(f"{NOT_RECORDED}no room",))
    options = Namespace(failures=FAILURES)
    run: Any = Namespace(options=options, backends=[], is_red=lambda tally: True)
    lines = []
    for first in (tiles, unkept):
        cell = failed("softmax", dtype="float16") | {"findings": [first.as_dict(), top.as_dict()]}
        lines.append(next(see_again(run, [cell], None)))
    assert lines == [
        f"next, to see the first root cause again: {replay_of(tiles)}",
        f"next, to see root cause 2 again: {replay_of(top)}",
    ]


# In a run


@pytest.fixture(scope="module")
def stacked(tmp_path_factory: pytest.TempPathFactory) -> Run:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("run"))
        return judged("--backend", STACKED)


def test_two_faults_are_two_root_causes(stacked: Run) -> None:
    report = stacked.report or {}
    cells = [tally for tally in report["tallies"] if tally["verdict"] == "failed"]
    causes = {cause["rung"]: cause for cause in report["root_causes"]}
    assert stacked.status == 1 and len(cells) >= 6
    assert set(causes) == {"softmax", "parts"}
    assert causes["softmax"]["cells"] == ["softmax float32 values"] and causes["parts"][
        "cells"
    ] == ["get_slopes float32 values"]
    assert "scaled_dot_product_attention float32 values" in causes["softmax"]["blocked"]
    assert causes["parts"]["blocked"] == ["get_alibi_biases float32 values"]


def test_each_root_cause_is_shown_once_in_full_and_the_rest_in_one_line(stacked: Run) -> None:
    output = stacked.output
    assert "triage: 2 root causes, " in output and "blocks   get_alibi_biases values f32" in output
    assert output.count("is not what the specification says") == 2
    assert (
        "softmax of dependent_faults in float32 is not what" in output
        and "get_slopes of dependent_faults in float32 is not what" in output
    )
    last = [line for line in output.splitlines() if "dependent_faults.py: " in line][-1]
    assert "dependent_faults.py: wrong in float32: 1. " in last and "; 2. " in last


def test_more_words_show_every_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    line = (
        "--backend=" + STACKED,
        "--op",
        "get_slopes",
        "--op",
        "get_alibi_biases",
        "--dtype",
        "float32",
        "--profile",
        "quick",
    )
    test = Path("test_mine.py")
    test.write_text("from attnverify.differential import test_values\n")
    told = {
        words: in_pytest(str(test), "-rN", *line, *words).output.count(
            "is not what the specification says"
        )
        for words in ((), ("-v",))
    }
    assert told == {(): 1, ("-v",): 2}


# The adapter


@pytest.mark.parametrize("dtype", [*DTYPES, "bool"])
@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_an_exact_adapter_brings_everything_back(backend: str, dtype: str) -> None:
    assert (
        check_round_trip(Backend(backend, backend, library=array_library(backend)), dtype) is None
    )


def unsigned(x: ndarray) -> ndarray:
    return x + 0.0 if x.dtype.kind == "f" else x


def flushed(x: ndarray) -> ndarray:
    return np.where(np.abs(x) < 1e-37, 0.0 * x, x) if x.dtype.kind == "f" else x


BENDINGS: dict[str, tuple[Callable[[ndarray], Any], str]] = {
    "the sign of zero": (
        unsigned,
        "numbers of float32 back: np.float64\\(-0.0\\) becomes np.float64\\(0.0\\)",
    ),
    "subnormal numbers": (flushed, "numbers of float32 back: np.float64\\(1.4.*e-45\\) becomes"),
    "NaN": (
        lambda x: np.nan_to_num(x, posinf=np.inf, neginf=-np.inf) if x.dtype.kind == "f" else x,
        "nan.* becomes",
    ),
    "infinity": (lambda x: np.clip(x, -3e38, 3e38) if x.dtype.kind == "f" else x, "inf.* becomes"),
    "single numbers": (
        np.ascontiguousarray,
        "one of the numbers of float32 back: wanted float64 \\(\\), got float64 \\(1,\\)",
    ),
    "booleans": (lambda x: x.astype(float), "booleans of float32 back: wanted bool.*, got float64"),
    "strides": (lambda x: np.ndarray(x.shape, x.dtype, x.tobytes("A")), "matrix of"),
    "the last bit": (
        lambda x: x.astype(np.float16).astype(float) if x.dtype.kind == "f" else x,
        "becomes",
    ),
    "nothing": (lambda x: None, "got NoneType"),
    "everything": (lambda x: 1 / 0, "the adapter raises ZeroDivisionError for numbers of float32"),
}


@pytest.mark.parametrize("name", BENDINGS)
def test_a_bent_adapter_is_told(name: str) -> None:
    bend, words = BENDINGS[name]
    library = array_library("numpy")
    bent = replace(library, to_numpy=lambda x: bend(library.to_numpy(x)))
    told = check_round_trip(Backend("mine", "mine", library=bent), "float32")
    assert told is not None
    assert pytest.raises(AssertionError, match=words).matches(AssertionError(told)), told


def test_another_dtype_than_asked_for_is_told() -> None:
    library = array_library("numpy")
    wide = replace(library, from_numpy=lambda x, dtype: library.from_numpy(x, "float64"))
    assert (
        check_round_trip(Backend("mine", "mine", library=wide), "float32")
        == "the adapter makes float64 of numbers of float32"
    )


def test_a_bent_adapter_blocks_its_dtype_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = judged("--backend", BENT, "--dtype", "float16", dtype="float32")
    verdicts = {(tally["dtype"], tally["verdict"]) for tally in (done.report or {})["tallies"]}
    assert done.status == 1 and verdicts == {("float32", "passed"), ("float16", "failed")}
    assert (
        "1 root cause" in done.output
        and "blocks   every cell: 7 cells" in done.output
        and done.output.count(
            "blocked: lossy_adapter in float16: the adapter does not bring numbers"
        )
        == 1
    )
    (cause,) = json.loads(Path("report.json").read_text())["root_causes"]
    assert (
        cause["rung"] == "adapter"
        and len(cause["cells"])
        == sum(t["dtype"] == "float16" for t in (done.report or {})["tallies"])
        == 7
    )


def test_the_backends_of_the_tests_have_exact_adapters() -> None:
    for name in ("one_fault_each", "mixed_verdicts", "dependent_faults"):
        assert [check_round_trip(load_sample(name), dtype) for dtype in DTYPES] == [None] * 4
