"""The public interface in Python: what check raises, what a bound is, what a report says."""

import doctest
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import attnverify as av
from attnverify import interface
from attnverify.options import operation_names
from tests.support.run_attnverify import ROOT, judged, verify
from tests.support.sample_backends import HERE
from tests.support.synthetic_reports import large


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def softmax(score, mask=None):
    """Right but for rows that see no key, which it divides by zero."""
    weights = np.exp(score - score.max(-1, keepdims=True))
    if mask is not None:
        weights = weights * (mask if mask.dtype == bool else np.exp(mask))
    with np.errstate(all="ignore"):
        return (weights / weights.sum(-1, keepdims=True)).astype(score.dtype)


def test_the_documented_examples_run() -> None:
    assert doctest.testmod(interface).failed == 0


def test_a_wrong_function_is_told_with_its_finding() -> None:
    with pytest.raises(av.CheckFailed, match="not what the specification says") as failure:
        av.check(softmax, "softmax", dtype="fp16")
    assert failure.value.report.verdict("softmax", "float16") == "failed"


def test_a_right_function_gives_a_report() -> None:
    report = av.check(av.spec.rel_shift, "rel_shift", dtype=["float32", "f64"])
    assert report.passed and {result.dtype for result in report.results} == {"float32", "float64"}


def test_a_report_shows_itself_in_a_line_and_as_a_page() -> None:
    report = av.check(av.spec.rel_shift, "rel_shift")
    assert repr(report).startswith("<Report: 3 cells: 3 passed; ")
    frame = report._repr_html_()
    assert frame.startswith("<iframe") and "<html" not in frame and "&lt;html" in frame
    assert "date not said" not in frame and f"{report.about['date'][:10]} " in frame
    assert report.about["commit"] and report.about["environment"]["arithmetic"]


def test_a_report_that_was_read_says_what_the_file_says() -> None:
    read = av.Report.from_json(json.dumps(large(4)))
    assert read.results and "2026-01-02 03:04 UTC, 1 min 1 s" in read._repr_html_()


def accepts_everything(x):
    return np.array(
        av.spec.shift_right(x.astype(float) if x.ndim > 1 else np.zeros((1, 1))), x.dtype
    )


def test_require_says_what_must_hold() -> None:
    assert av.check(accepts_everything, "shift_right").failed[0].aspect == "refusals"
    with pytest.raises(av.CheckFailed, match="refusals"):
        av.check(accepts_everything, "shift_right", require="contract")


def test_what_the_file_of_a_function_declares_holds_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The advice was to add the line that stood there."""
    Path("of_mine.py").write_text(DECLARED)
    monkeypatch.syspath_prepend(".")
    of_mine = import_module("of_mine")
    assert av.check(of_mine.moved, "shift_right").verdict("shift_right", "float32") == "passed"
    monkeypatch.setattr(of_mine, "ARGUMENTS", {})
    with pytest.raises(av.CheckFailed, match=r'ARGUMENTS = {"this": "x"}'):
        av.check(of_mine.moved, "shift_right")


DECLARED = """
import attnverify as av

DTYPES, ARGUMENTS = [bool], {"this": "x"}


def moved(this):
    return av.spec.shift_right(this)
"""


def supports_nothing(x):
    raise NotImplementedError("not yet")


def test_where_nothing_is_judged_the_check_fails() -> None:
    with pytest.raises(av.CheckFailed, match="not yet"):
        av.check(supports_nothing, "shift_right")


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ("operation: wanted an operation of the catalogue, got sofmax", {"operation": "sofmax"}),
        ("dtype: wanted float64", {"dtype": "int8"}),
        ("profile: wanted quick", {"profile": "slow"}),
        ("require: wanted answer", {"require": "all"}),
        ("ARRAYS: wanted one of", {"arrays": "pandas"}),
    ],
)
def test_a_wrong_argument_is_named(words: str, given: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=words):
        av.check(softmax, **{"operation": "softmax"} | given)


def test_what_fails_can_be_replayed() -> None:
    Path("mine.py").write_text("def shift_right(x):\n    return x\n")
    done = judged("mine.py:shift_right")
    assert done.status == 1
    record = next(Path(".attnverify/failures").glob("*.json")).stem
    assert verify("replay", record, "--backend", "mine.py:shift_right").status == 1


def test_a_bound_grows_with_the_rounding_of_the_dtype() -> None:
    score = {"score": np.array([[0.0, 1.0, 2.0]])}
    narrow, wide = (av.bound("softmax", score, dtype=dtype) for dtype in ("bfloat16", "float32"))
    assert narrow.shape == (1, 3) and (narrow > 100 * wide).all()


def test_what_moves_numbers_has_no_bound() -> None:
    assert av.bound("shift_right", {"x": np.zeros((2, 2))}) is None


def test_a_report_is_read_from_the_json_of_a_run() -> None:
    judged(str(HERE / "mixed_verdicts.py"))
    report = av.Report.read("report.json")
    assert report.verdict("shift_right", "float32") == "passed" and not report.passed
    assert report.verdict("rel_shift", "float32", "refusals") == "failed"
    assert report.verdict("get_slopes", "float32") == "unsupported"


def test_the_package_alone_loads_nothing_heavy() -> None:
    program = (
        "import sys, attnverify; attnverify.__version__; "
        "print(*sorted({'numpy', 'hypothesis', 'attnverify.spec', 'click'} & {*sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert done.stdout == "\n"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'chek'"):
        av.chek  # noqa: B018


def test_every_operation_can_be_checked_by_name() -> None:
    assert all(hasattr(av.spec, name) for name in operation_names())


IN_HALF = """
import numpy as np

DTYPES = ("float16",)


def shift_right(x):
    padded = np.concatenate([x, np.zeros((*x.shape[:-1], 1), x.dtype)], -1)
    flat = padded.reshape(*x.shape[:-2], -1)[..., : -x.shape[-2]]
    return flat.reshape(x.shape).copy()
"""


@pytest.mark.parametrize("as_file", [False, True], ids=["function", "file"])
def test_what_dtypes_says_is_judged_where_nothing_is_asked(as_file: bool, tmp_path: Path) -> None:
    """It was float32, in which a file with DTYPES was not judged at all."""
    path, module = tmp_path / "in_half.py", ModuleType("in_half")
    path.write_text(IN_HALF)
    sys.modules["in_half"] = module
    exec(IN_HALF, vars(module))
    asked = {"failures": str(tmp_path)} | ({} if as_file else {"arrays": "numpy"})
    report = av.check(path if as_file else module.shift_right, "shift_right", **asked)
    assert {result.dtype for result in report.results} == {"float16"}
