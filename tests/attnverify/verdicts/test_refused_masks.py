"""
A function that raises an error for every float mask takes none: that is told with the line to add,
and what it does take is judged. So is one that unpacks a shape of so many axes.
"""

from pathlib import Path

import pytest

from tests.support.run_attnverify import Run, judged, load_backends_here

KERNEL = """
import numpy as np

def scaled_dot_product_attention(query, key, value, mask=None):
    score = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1], dtype=query.dtype)
    if mask is not None:
        REFUSAL
        score = np.where(mask, score, -np.inf)
    score = score - np.maximum(score.max(-1, keepdims=True), np.finfo(score.dtype).min)
    weights = np.exp(score)
    return weights @ value / np.maximum(weights.sum(-1, keepdims=True), 1e-30, dtype=score.dtype)
"""
LINE = ("--profile", "quick", "--dtype", "float32", "-k", "values")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    load_backends_here(monkeypatch)


def run_of(refusal: str, head: str = "") -> Run:
    Path("mine.py").write_text(head + KERNEL.replace("REFUSAL", refusal))
    return judged("mine.py", *LINE)


@pytest.mark.parametrize(
    "refusal",
    [
        "if mask.dtype != bool: raise TypeError('mask must be boolean')",
        "assert mask.dtype == bool",
        "mask = ~~mask",
    ],
    ids=["refused", "asserted", "inverted"],
)
def test_what_takes_no_float_mask_is_right_without_and_says_so(refusal: str) -> None:
    done = run_of(refusal)
    assert done.status == 0 and done.output.count("mine takes no float mask: raised ") == 1
    assert '\n  FEATURES = {"float mask": False}\n' in done.output
    assert "of the bound); takes no float mask" in done.output
    declared = run_of(refusal, 'FEATURES = {"float mask": False}\n')
    assert declared.status == 0 and "if meant so" not in declared.output


@pytest.mark.parametrize(
    "refusal",
    [
        "if mask.dtype != bool and mask.ndim == 4: raise TypeError('mask must have two axes')",
        "raise TypeError('no mask of any kind')",
        "mask = mask if mask.dtype == bool else mask[5:, 7]",
    ],
    ids=["some axes", "every mask", "a slip"],
)
def test_what_raises_otherwise_than_for_every_float_mask_alone_is_wrong(refusal: str) -> None:
    done = run_of(refusal)
    assert done.status == 1 and "takes no float mask" not in done.output


def test_who_says_that_it_takes_float_masks_is_held_to_it() -> None:
    done = run_of("assert mask.dtype == bool", 'FEATURES = {"float mask": True}\n')
    assert done.status == 1 and "takes no float mask" not in done.output


SHIFT = """
import numpy as np

def rel_shift(x):
    REFUSAL
    *lead, n, m = x.shape
    padded = np.concatenate([np.zeros((*lead, n, 1), x.dtype), x], -1)
    return padded.reshape(*lead, m + 1, n)[..., 1:, :].reshape(*lead, n, m)FAULT
"""


@pytest.mark.parametrize(
    ("refusal", "fault", "told"),
    [
        ("b, h, n, m = x.shape", "", "; rel_shift takes arrays of 4 axes alone"),
        ("assert x.ndim == 3", "", "; rel_shift takes arrays of 3 axes alone"),
        ("assert x.ndim > 3", "", "; rel_shift takes arrays of 4 or 5 axes alone"),
        ("b, h, n, m = x.shape", " * x.dtype.type(1.01)", "mine.py: wrong in float32"),
        ("assert x.shape[0] > 1", "", "mine.py: wrong in float32: raised AssertionError"),
        ("raise ValueError('never')", "", "mine.py: wrong in float32: raised ValueError"),
    ],
)
def test_a_function_of_so_many_axes_is_judged_by_these(refusal: str, fault: str, told: str) -> None:
    """A helper of a layer is found by its name, and written for the layer's own arrays."""
    Path("mine.py").write_text(SHIFT.replace("REFUSAL", refusal).replace("FAULT", fault))
    done = judged("mine.py", *LINE)
    assert told in " ".join(done.output.split()), done.output
    assert done.status == ("wrong" in told)


def test_what_is_refused_for_another_reason_is_no_question_of_axes() -> None:
    """Without a mask it answers arrays of the same axes: nothing is excused."""
    Path("mine.py").write_text(UNMASKED)
    done = judged("mine.py", *LINE)
    assert done.status == 1 and "axes alone" not in done.output


UNMASKED = """
import numpy as np

def softmax(score, mask=None):
    assert mask is None
    top = score.max(-1, keepdims=True)
    e = np.exp(score - np.where(top == -np.inf, 0, top))
    total = e.sum(-1, keepdims=True)
    return e / np.where(total == 0, 1, total)
"""
