"""Somebody's own arrays are judged, told and replayed like drawn ones."""

import json
import pickle
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.testing import assert_array_equal

import attnverify as av
from attnverify import numpy_ref
from attnverify.backends.implementation import Backend
from attnverify.backends.loader import implementation_of_function
from attnverify.catalogue.operation import CATALOGUE
from attnverify.diagnosis.sentences import ZERO_TIMES_NAN
from attnverify.failures.record import find_record
from attnverify.failures.replay import replay
from attnverify.inputs import given
from attnverify.inputs.expand import expand
from attnverify.inputs.given import (
    describe_file,
    dtype_of_file,
    notes_of_file,
    read_arrays,
    recipe_of_file,
    save_inputs,
)
from attnverify.inputs.masks import scores_shape
from attnverify.judge.case import case_of, refuse_given
from attnverify.judge.errors import Disagreement
from attnverify.judge.judging import judge
from attnverify.report.table import JUDGED_APART, NO_D_OUTPUT, describe_given
from tests.support.run_attnverify import verify

RNG = np.random.default_rng(0)
ARRAYS = {
    "query": RNG.standard_normal((1, 2, 5, 4)).astype(np.float32),
    "key": RNG.standard_normal((1, 2, 35, 4)).astype(np.float32),
    "value": RNG.standard_normal((1, 2, 35, 3)).astype(np.float32),
}
ATTENTION = CATALOGUE["scaled_dot_product_attention"]


def right(query: Any, key: Any, value: Any) -> Any:
    return numpy_ref.scaled_dot_product_attention(query, key, value)


def wrong(query: Any, key: Any, value: Any) -> Any:
    """Forgets the keys behind the first tile."""
    return right(query, key[..., :32, :], value[..., :32, :])


def check(function: Any, folder: Path, inputs: dict[str, Any] = ARRAYS) -> av.Report:
    return av.check(function, ATTENTION.name, inputs=inputs, arrays="numpy", failures=str(folder))


def test_a_right_function_passes_on_them(tmp_path: Path) -> None:
    (result,) = check(right, tmp_path).results
    found = result.verdict, result.aspect, result.cases, result.strong
    assert found == ("passed", "values", 1, 1)


def test_a_wrong_function_fails_on_them_and_is_replayed(tmp_path: Path) -> None:
    with pytest.raises(av.CheckFailed, match="elements differ") as caught:
        check(wrong, tmp_path)
    (finding,) = caught.value.report.results[0].findings
    assert "M=35" in str(finding)  # as it was given, not made smaller
    assert finding.record is not None
    backend = Backend("mine", "mine", by_name=True)
    implementation_of_function(backend, wrong, ATTENTION.name, "numpy")
    with pytest.raises(Disagreement):
        replay(find_record(finding.record.hash, str(tmp_path)), backend.implementations[0])


def test_numbers_of_every_dtype_come_back(tmp_path: Path) -> None:
    import torch

    numbers = {name: x.astype(ml_dtypes.bfloat16) for name, x in ARRAYS.items()}
    np.savez(tmp_path / "a.npz", **numbers)  # type: ignore[arg-type]
    torch.save(
        {name: torch.from_numpy(x).bfloat16() for name, x in ARRAYS.items()}, tmp_path / "a.pt"
    )
    found = [
        expand(recipe_of_file(ATTENTION, str(tmp_path / name)), "bfloat16")["query"]
        for name in ("a.npz", "a.pt")
    ]
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], numbers["query"].astype(np.float64))
    assert {dtype_of_file(str(tmp_path / name)) for name in ("a.npz", "a.pt")} == {"bfloat16"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"first": ARRAYS["query"]}, "got first$"),
        ({"is_causal": np.array(True)}, "all in the file are arguments of --op grouped_attention"),
        (
            {"causal": np.array(True), "dout": ARRAYS["value"]},
            "arguments of --op grouped_attention",
        ),
        ({"q": ARRAYS["query"]}, "query: wanted it once, got q too"),
        ({"query": (9 * ARRAYS["query"]).astype(np.int64)}, "query: wanted a float array"),
        ({"mask": np.ones((4, 7), bool)}, "mask: wanted a shape that broadcasts"),
        ({"d_output": np.ones((1, 2, 5, 3), np.int64)}, "d_output: wanted a float array"),
        ({"key": None}, "wants key"),
        ({"key": ARRAYS["key"][0]}, r"key: wanted \[B H M D\]"),
        ({"value": ARRAYS["value"][..., 1:, :]}, "value: wanted M = 35, got 34"),
    ],
    ids=[
        "a name",
        "an option of others",
        "one beside a gradient",
        "one twice",
        "integers",
        "a mask",
        "a gradient",
        "a missing one",
        "axes",
        "sizes",
    ],
)
def test_what_is_wrong_with_them_is_told(
    change: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=words):
        check(right, tmp_path, ARRAYS | change)


def test_a_file_that_has_changed_is_not_replayed_as_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "case.npz"
    np.savez(path, **ARRAYS)  # type: ignore[arg-type]
    recipe = recipe_of_file(ATTENTION, str(path))
    np.savez(path, **{name: x + 1 for name, x in ARRAYS.items()})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no longer the file that was judged"):
        expand(recipe, "float32")
    np.savez(path, **{name: x[:, :1] for name, x in ARRAYS.items()})  # type: ignore[arg-type]
    assert recipe_of_file(ATTENTION, str(path)).sizes["H"] == 1


MINE = """
import numpy as np
DTYPES = ("float32",)

def scaled_dot_product_attention(query, key, value):
    score = query @ np.swapaxes(key, -1, -2) / np.sqrt(query.shape[-1])
    e = np.exp(score - score.max(-1, keepdims=True))
    return (e @ value / e.sum(-1, keepdims=True)).astype(np.float32) {tail}
"""


@pytest.mark.parametrize(("tail", "status"), [("", 0), ("* np.float32(1.1)", 1)])
def test_the_command_judges_them(
    tail: str, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("case.npz", **ARRAYS)  # type: ignore[arg-type]
    Path("mine.py").write_text(MINE.format(tail=tail))
    done = verify("run", "mine.py", "--op", ATTENTION.name, "--inputs", "case.npz")
    assert done.status == status
    assert "case.npz: B=1 D=4 E=3 H=2 M=35 N=5" in " ".join(done.output.split())
    assert ("1 cell: 1 passed" if status == 0 else "1 of 1 failed cell") in done.output


@pytest.mark.parametrize("name", [ATTENTION.name, "my_attention"])
def test_they_are_judged_as_the_only_operation_of_a_file(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the function's name, or by what it is taken for."""
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(MINE.format(tail="").replace(ATTENTION.name, name))
    np.savez("case.npz", **ARRAYS)  # type: ignore[arg-type]
    done = verify("run", "mine.py", "--inputs", "case.npz")
    assert done.status == 0 and "1 cell: 1 passed" in done.output


LONG = {
    "query": RNG.standard_normal((1, 2, 300, 4)).astype(np.float32),
    "key": RNG.standard_normal((1, 2, 300, 4)).astype(np.float32),
    "value": RNG.standard_normal((1, 2, 300, 3)).astype(np.float32),
}


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the specification room for a tenth of the pairs of LONG."""
    monkeypatch.setattr(given, "LARGEST", 18_000)


def wrong_when_long(query: Any, key: Any, value: Any) -> Any:
    """Is right for a row alone, and loses the last query of many."""
    output = right(query, key, value)
    output[..., 256:, :] *= np.float32(1.01)
    return output


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("name", ["scaled_dot_product_attention", "alibi_attention"])
def test_what_does_not_fit_is_judged_in_sampled_rows(name: str, tmp_path: Path) -> None:
    shapes = []

    def noted(query: Any, key: Any, value: Any) -> Any:
        shapes.append(query.shape)
        return getattr(numpy_ref, name)(query, key, value)

    report = av.check(noted, name, inputs=LONG, arrays="numpy", failures=str(tmp_path))
    assert {(r.verdict, r.cases, r.strong) for r in report.results} == {("passed", 1, 1)}
    assert set(shapes) == {(1, 2, 300, 4)}  # as it was given, and never another


@pytest.mark.usefixtures("little_memory")
def test_a_row_that_is_wrong_alone_is_explained_alone(tmp_path: Path) -> None:
    with pytest.raises(av.CheckFailed, match="the keys behind the first 32 left out") as caught:
        check(wrong, tmp_path, LONG)
    (finding,) = caught.value.report.results[0].findings
    assert finding.record is not None
    assert finding.share == "35 of 35 cases"
    assert finding.record.recipe["sizes"] == {"B": 1, "H": 2, "N": 1, "D": 4, "M": 300, "E": 3}


@pytest.mark.usefixtures("little_memory")
def test_what_is_wrong_in_the_whole_call_alone_is_told_by_its_row(tmp_path: Path) -> None:
    with pytest.raises(av.CheckFailed, match=r"row 2\d\d of 300: 6 of 6") as caught:
        check(wrong_when_long, tmp_path, LONG)
    (finding,) = caught.value.report.results[0].findings
    assert finding.record is not None
    backend = Backend("mine", "mine", by_name=True)
    implementation_of_function(backend, wrong_when_long, ATTENTION.name, "numpy")
    with pytest.raises(Disagreement, match=r"row 2\d\d of 300"):
        replay(find_record(finding.record.hash, str(tmp_path)), backend.implementations[0])


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize(("factor", "verdict"), [(1, "passed"), (2, "failed")])
def test_of_large_gradients_the_one_by_the_query_is_judged(
    factor: float, verdict: str, tmp_path: Path
) -> None:
    def doubled(d_output: Any, query: Any, key: Any, value: Any) -> Any:
        first, *rest = numpy_ref.scaled_dot_product_attention_grad(d_output, query, key, value)
        return factor * first, *rest

    backend = Backend("mine", "mine", by_name=True)
    name = "scaled_dot_product_attention_grad"
    implementation_of_function(backend, doubled, name, "numpy")
    path = save_inputs(LONG | {"d_output": LONG["value"]}, str(tmp_path))
    case = case_of(recipe_of_file(CATALOGUE[name], path), "float32")
    try:
        seen = "passed" if judge(backend.implementations[0], case).discriminating else "weak"
    except Disagreement as error:
        seen = "failed" if "row 0 of 300" in str(error) else str(error)
    assert seen == verdict


@pytest.mark.usefixtures("little_memory")
def test_what_has_no_rows_of_its_own_is_refused_where_it_does_not_fit(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="wanted at most 18000 pairs"):
        av.check(
            numpy_ref.scaled_dot_product_score,
            "scaled_dot_product_score",
            inputs={name: LONG[name] for name in ("query", "key")},
            arrays="numpy",
            failures=str(tmp_path),
        )


@pytest.mark.usefixtures("little_memory")
def test_the_head_of_a_run_says_that_rows_are_sampled(tmp_path: Path) -> None:
    path = save_inputs(LONG, str(tmp_path))
    words = "too many pairs to be held at once: 35 sampled rows are judged"
    assert describe_file(ATTENTION, path).endswith(words)


REFUSED = {
    "integers": ({"query": np.ones((1, 2, 5, 4), np.int64)}, "query: wanted a float array"),
    "a mask": ({"mask": np.ones((4, 7), bool)}, "mask: wanted a shape that broadcasts"),
}


@pytest.mark.parametrize(("change", "words"), REFUSED.values(), ids=REFUSED)
def test_what_the_specification_refuses_is_a_wrong_option_and_leaves_no_record(
    change: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("case.npz", **(ARRAYS | change))
    Path("mine.py").write_text(MINE.format(tail=""))
    done = verify("run", "mine.py", "--inputs", "case.npz")
    assert (done.status, list(Path.cwd().glob("**/failures/*"))) == (4, [])
    assert f"ERROR: --inputs: {words}" in done.output


def test_names_that_are_known_in_a_signature_are_known_in_a_file(tmp_path: Path) -> None:
    short = {name[0]: x for name, x in ARRAYS.items()}
    named = short | {"attn_bias": np.zeros((5, 35), np.float32)}
    path = save_inputs(named | {"do": np.ones((1, 2, 5, 3), np.float32)}, str(tmp_path))
    found = expand(recipe_of_file(ATTENTION.gradient or ATTENTION, path), "float32")
    assert {*found} == {"d_output", "query", "key", "value", "mask"}


def test_what_somebody_may_not_know_of_his_numbers_is_told(tmp_path: Path) -> None:
    key, mask = ARRAYS["key"].copy(), np.full((5, 35), -np.inf, np.float32)
    key[0, 0, 0, :2] = np.nan, np.inf
    changed = {"key": key, "mask": mask, "query": ARRAYS["query"].astype(np.float16)}
    assert notes_of_file(save_inputs(ARRAYS | changed, str(tmp_path))) == [
        "query is float16, and cast: float32 is judged where --dtype names no other",
        "key holds NaN: 1 of 280 numbers",
        "key holds infinity: 1 of 280 numbers",
    ]


@pytest.mark.parametrize("more", [{}, {"d_output": np.ones((1, 2, 5, 3), np.float32)}])
def test_that_no_gradient_is_judged_is_told(
    more: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file without what arrives at the output was judged without its gradients, in silence."""
    monkeypatch.chdir(tmp_path)
    run = SimpleNamespace(
        options=SimpleNamespace(inputs=save_inputs(ARRAYS | more, str(tmp_path))),
        operations=(ATTENTION.name,),
    )
    assert any(NO_D_OUTPUT in line for line in describe_given(run)) == (not more)  # type: ignore[arg-type]
    run.operations = ("get_slopes",)
    run.options.inputs = save_inputs({"n_heads": np.array(4)}, str(tmp_path))
    assert "get_slopes_grad" not in CATALOGUE
    assert not any(NO_D_OUTPUT in line for line in describe_given(run))  # type: ignore[arg-type]


HIDDEN = {"mask": np.arange(35) != 3}


@pytest.fixture
def hidden_nan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A right kernel, beside arrays with NaN in a value that no row sees."""
    monkeypatch.chdir(tmp_path)
    value = ARRAYS["value"].copy()
    value[:, :, 3] = np.nan
    np.savez("case.npz", **(ARRAYS | HIDDEN | {"value": value}))
    masked = MINE.replace("value):", "value, mask=None):").format(tail="")
    taken = "    if mask is not None:\n        score = np.where(mask, score, np.float32(-1e30))\n"
    Path("mine.py").write_text(masked.replace("    e =", f"{taken}    e ="))


@pytest.mark.usefixtures("hidden_nan")
def test_a_nan_that_no_row_sees_is_judged_as_hidden_nan_and_by_nothing_else() -> None:
    """The values of a right kernel were red, in this run and in all that followed."""
    done = verify("run", "mine.py", "--inputs", "case.npz")
    told = " ".join(done.output.split())
    assert done.status == 0 and "values passed; hidden NaN (no row sees it) not met" in told
    assert JUDGED_APART in told
    required = verify("run", "mine.py", "--inputs", "case.npz", "--require", "contract")
    assert required.status == 1 and ZERO_TIMES_NAN[:40] in " ".join(required.output.split())


@pytest.mark.usefixtures("hidden_nan")
def test_a_nan_that_a_row_sees_stays_and_hidden_ones_are_kept_for_their_own_question() -> None:
    arrays = dict(np.load("case.npz"))
    arrays["key"][:, :, 0] = np.nan
    np.savez("seen.npz", **arrays)
    found = expand(recipe_of_file(ATTENTION, "seen.npz"), "float32")
    assert np.isnan(found["key"][:, :, 0]).all() and np.isfinite(found["value"]).all()
    kept = expand(recipe_of_file(ATTENTION, "seen.npz", as_it_is=True), "float32")
    assert np.isnan(kept["value"][:, :, 3]).all()


def test_a_recorded_case_of_ones_own_is_not_told_as_a_smaller_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later run took sizes away from the recipe, which expands to the same file all the same."""
    monkeypatch.chdir(tmp_path)
    np.savez("case.npz", **ARRAYS)  # type: ignore[arg-type]
    Path("mine.py").write_text(MINE.format(tail="* np.float32(1 + (query.shape == (1, 2, 5, 4)))"))
    assert verify("run", "mine.py", "--inputs", "case.npz").status == 1
    assert verify("run", "mine.py", "--profile", "quick").status == 1
    records = [json.loads(x.read_text()) for x in Path(".attnverify/failures").glob("*.json")]
    given = [x["recipe"] for x in records if x["recipe"].get("values", {}).get("family") == "given"]
    assert [recipe["sizes"]["M"] for recipe in given] == [35]


GROUPED = CATALOGUE["grouped_attention"]
PAIRS = {
    "an array": np.array([15, 0]),
    "a list": [15, 0],
    "no limit": np.array([-1, 0]),
    "None": (None, 0),
    "segments": (np.zeros((1, 5), np.int64), np.ones((1, 35), np.int64)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_a_pair_is_taken_as_an_array_a_list_or_a_tuple(name: str, tmp_path: Path) -> None:
    """``window=array([15, 0])`` was refused, and a window with None in it as Python objects."""
    argument = "segments" if name == "segments" else "window"
    path = save_inputs(ARRAYS | {argument: PAIRS[name]}, str(tmp_path))
    found = expand(recipe_of_file(GROUPED, path), "float32")[argument]
    first = None if name in ("no limit", "None") else 15
    if name == "segments":
        assert [x.shape for x in found] == [(1, 5), (1, 35)]
    else:
        assert found == (first, 0)
    refuse_given(GROUPED, path, "float32")


def cut_off(path: Path) -> None:
    np.savez(path, **ARRAYS)  # type: ignore[arg-type]
    path.write_bytes(path.read_bytes()[:200])


def one_array(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, ARRAYS["query"])


UNREADABLE = {
    "a pickle": (lambda path: path.write_bytes(pickle.dumps({"query": 1})), "Python objects"),
    "objects": (lambda path: np.savez(path, query=np.array([{}], object)), "Python objects"),
    "cut off": (cut_off, "cut off"),
    "text": (lambda path: path.write_text("query"), "no such file"),
    "one array": (one_array, "without names"),
}


@pytest.mark.parametrize(("write", "words"), UNREADABLE.values(), ids=UNREADABLE)
def test_a_file_that_holds_no_arrays_by_name_is_told_in_our_words(
    write: Any, words: str, tmp_path: Path
) -> None:
    write(path := tmp_path / "case.npz")
    with pytest.raises(ValueError, match=words) as caught:
        read_arrays(str(path))
    assert "allow_pickle" not in str(caught.value) and "zip" not in str(caught.value)


def test_a_layer_without_a_memory_has_scores(tmp_path: Path) -> None:
    x, position = np.ones((1, 3, 4)), np.ones((3, 4))
    inputs = {"x": x, "position": position, "num_heads": 2}
    assert scores_shape(CATALOGUE["transformer_xl_layer"], inputs) == (1, 2, 3, 3)


@pytest.mark.parametrize("shape", [(2, 5, 4), (5, 4)])
def test_arrays_without_heads_are_of_one_head(shape: tuple[int, ...], tmp_path: Path) -> None:
    arrays = {name: RNG.standard_normal(shape) for name in ("q", "k", "v")}
    mask = RNG.standard_normal((*shape[:-1], shape[-2])) > 0
    path = tmp_path / "case.npz"
    np.savez(path, **arrays, mask=mask)  # type: ignore[arg-type]
    sizes = {"B": prod(shape[:-2]), "H": 1, "N": 5, "M": 5, "D": 4, "E": 4}
    for name in ("scaled_dot_product_attention", "grouped_attention"):
        operation = CATALOGUE[name]
        recipe = recipe_of_file(operation, str(path))
        assert recipe.sizes.items() >= (sizes | {"H": 1}).items()
        inputs = expand(recipe, "float32")
        lead = prod(shape[:-2])
        assert_array_equal(inputs["query"].reshape(shape), arrays["q"].astype(np.float32))
        assert inputs["mask"].shape == ((lead, 1, 5, 5) if len(shape) == 3 else (5, 5))
