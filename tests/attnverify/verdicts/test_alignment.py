"""
A causal mask that is aligned at the start where N != M is one convention, told once with the line
that says so; what is wrong besides is told of the calls that show it alone.
"""

from pathlib import Path

import pytest

from attnverify.diagnosis.alignment import TOP_LEFT
from attnverify.failures.finding import Finding
from tests.attnverify.verdicts.test_causal_alone import kernel, lines_of
from tests.attnverify.verdicts.test_found_out import judge_file
from tests.attnverify.verdicts.test_terms import told

SDPA = "scaled_dot_product_attention"
AT_START = "j > i - (M - N)"
LINE = 'CAUSAL = "start"'
BY_OPTION = 'FEATURES = {"lse": False, "N != M": False}'


def declared(name: str = SDPA, *more: str) -> str:
    return "\n".join([*lines_of(name), *more])


def findings(folder: Path, text: str) -> list[Finding]:
    result = judge_file(folder, text, "float32")
    assert result.verdict == "failed"
    return result.findings


@pytest.mark.parametrize(
    ("name", "aspect", "line"),
    [
        (SDPA, "values", LINE),
        (SDPA, "gradients", LINE),
        ("grouped_attention", "values", BY_OPTION),
    ],
)
def test_it_is_told_once_with_its_line_and_holds_when_said(
    name: str, aspect: str, line: str, tmp_path: Path
) -> None:
    result = judge_file(tmp_path, kernel(name, declared(name), AT_START), "float32", aspect)
    assert [found.kind for found in result.findings] == [TOP_LEFT]
    assert line in result.findings[0].notes[0]
    said = judge_file(tmp_path, kernel(name, declared(name, line), AT_START), "float32", aspect)
    assert said.verdict == "passed"


@pytest.mark.usefixtures("causes_are_not_sought")
@pytest.mark.parametrize(
    ("hidden", "verdict"),
    [
        (AT_START, "passed"),
        ("j > i", "failed"),
        (f"({AT_START}) & (j < N)", "failed"),
        (f"({AT_START}) & (M < N)", "failed"),
    ],
    ids=["as it says", "at the end", "further keys are seen", "none is hidden"],
)
def test_who_says_that_it_is_aligned_at_the_start_is_held_to_it_where_lengths_differ(
    hidden: str, verdict: str, tmp_path: Path
) -> None:
    text = kernel(SDPA, declared(SDPA, LINE), hidden)
    assert judge_file(tmp_path, text, "float32").verdict == verdict


def test_it_is_found_out_together_with_causality(tmp_path: Path) -> None:
    assert told(tmp_path, kernel(SDPA, "", AT_START)) == [LINE]


def test_a_slip_beside_it_is_told_of_equal_lengths(tmp_path: Path) -> None:
    text = kernel(SDPA, declared(), AT_START).replace("D**-0.5", "D**-1")
    convention, slip = findings(tmp_path, text)
    assert convention.kind == TOP_LEFT and LINE in convention.notes[0]
    assert slip.causes == {"scores scaled by 1/D"}


@pytest.mark.usefixtures("causes_are_not_sought")
@pytest.mark.parametrize(
    "hidden", ["(j > i) | (j >= N)", "j > i + 1", "j >= i", "j > i - 2 * (M - N)"]
)
def test_another_mistake_is_no_convention(hidden: str, tmp_path: Path) -> None:
    found = findings(tmp_path, kernel(SDPA, declared(), hidden))
    assert TOP_LEFT not in {each.kind for each in found}


@pytest.mark.usefixtures("causes_are_not_sought")
def test_who_promises_unequal_lengths_is_held_to_them(tmp_path: Path) -> None:
    text = kernel(SDPA, declared(SDPA, 'FEATURES = {"lse": False, "N != M": True}'), AT_START)
    assert TOP_LEFT not in {each.kind for each in findings(tmp_path, text)}


@pytest.mark.usefixtures("causes_are_not_sought")
def test_nan_is_no_convention(tmp_path: Path) -> None:
    text = kernel(SDPA, declared()).replace("else weights @ v", "else weights @ v * torch.nan")
    assert TOP_LEFT not in {each.kind for each in findings(tmp_path, text)}


@pytest.mark.usefixtures("causes_are_not_sought")
def test_what_has_leading_axes_and_no_causality_is_not_asked(tmp_path: Path) -> None:
    text = """
import numpy as np

def additive_score(query, key, w_query, w_key, w_score):
    return np.zeros((*query.shape[:-1], key.shape[-2]), query.dtype)
"""
    (found,) = findings(tmp_path, text)
    assert found.kind == "wrong number"
