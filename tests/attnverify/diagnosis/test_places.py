"""Where something is wrong, axis by axis: what repeats is told by its period."""

import re
from pathlib import Path

import numpy as np
import pytest

from attnverify.backends.implementation import Implementation
from attnverify.backends.loader import load
from attnverify.diagnosis.call_budget import CallBudget
from attnverify.diagnosis.whereabouts.first_line import first_wrong_line
from attnverify.diagnosis.whereabouts.outputs import describe_repeated
from attnverify.diagnosis.whereabouts.places import describe_indices
from attnverify.inputs.real.required_kinds import required_cases
from attnverify.judge.observation import Observation, observe, passed_observation
from tests.reports.test_causes import sort_draws


@pytest.mark.parametrize(
    ("wrong", "place"),
    [
        (np.arange(13) % 4 != 0, ": row 1, 2, 3 of every 4"),
        (np.arange(129) % 4 >= 2, ": row 2, 3 of every 4"),
        (np.arange(20) % 2 == 1, ": row 1 of every 2"),
        (np.arange(6) % 4 != 0, ": row 1, 2, 3, 5"),
        (np.arange(20) > 15, ": from row 16 of 20 on"),
        (np.isin(np.arange(20), (1, 2, 3, 5, 9, 17)), ": row 1, 2, 3, 5 ..."),
    ],
)
def test_a_place_that_repeats_is_told_by_its_period(wrong: np.ndarray, place: str) -> None:
    assert describe_indices(wrong[:, None], "NE") == place
    assert describe_indices(wrong[:, None], "NE", [np.arange(30)[:, None] == 0]) == ""


def test_an_axis_is_called_by_what_lies_along_it() -> None:
    """A wrong head of keys was told as ``in the last axis 1, index (1) alone``."""
    wrong = np.zeros((2, 3, 4, 5), bool)
    wrong[:, 2] = True
    assert describe_indices(wrong, "BGMD") == ": in the last head of keys (2) alone"


def test_what_comes_again_is_told_where_the_right_answer_has_it_not() -> None:
    """A row alone, or rows that are all to be alike, say nothing of a kernel that repeats them."""
    rows = np.arange(12.0).reshape(6, 2)
    again, alike = np.tile(rows[:3], (2, 1)), np.ones((6, 2))
    told = describe_repeated([(again, rows), (np.tile(rows[:1], (4, 1)), rows[:4])], "ND")
    assert told.startswith(", that of the first rows again and again")
    assert told.endswith("(in one of 2 cases that of the first 3 of 6)")
    assert describe_repeated([(again, rows), (rows, rows)], "ND") == ""
    assert describe_repeated([(again, rows), (2 * alike, alike)], "ND") == ""
    assert describe_repeated([(again, rows)], "ND") == ""


IN_A_HELPER = """
import numpy as np
FEATURES = {"mask": False, "dropout": False, "gradient": False}

def lowered(scores):
    return scores - (np.abs(scores) > 2) * scores.dtype.type(0.5)

def scaled_dot_product_attention(query, key, value):
    logits = query @ key.mT * query.dtype.type(query.shape[-1] ** -0.5)
    scores = lowered(logits)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True) @ value
"""
IN_LOOPS = """
import numpy as np
FEATURES = {"mask": False, "dropout": False, "gradient": False}

def scaled_dot_product_attention(query, key, value):
    output = np.zeros(query.shape[:-1] + value.shape[-1:], query.dtype)
    for b, h in np.ndindex(query.shape[:2]):
        scores = key[b, h] @ query[b, h].T / np.sqrt(query.dtype.type(query.shape[-1]))
        scores = np.exp(scores - scores.max(0))
        weights = scores / scores.sum(0)
        output[b, h] = weights.T @ value[b, h] * (1 + (weights.max() > 0.9) / query.dtype.type(7))
    return output
"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (IN_A_HELPER, r"`scores` \(line 4\) is `score` of the specification, but what `lowered` "
         r"returns \(line 5\) is not `score`"),
        (IN_LOOPS, r"`weights` \(line 9\) is `weights` of the specification, but (`output`|what "
         r"`scaled_dot_product_attention` returns) \(line 1[01]\) is not `output`"),
    ],
    ids=["in a helper", "in loops"],
)  # fmt: skip
def test_the_first_line_that_differs_is_told(text: str, words: str, tmp_path: Path) -> None:
    """Variables by their values: the scores of the loop lie transposed, one head at a time."""
    own, wrong, right = seen_of(text, tmp_path)
    assert re.search(words, first_wrong_line(own, wrong, right, CallBudget()))


def test_of_calls_that_all_fail_the_last_variable_is_told_that_is_right(tmp_path: Path) -> None:
    own, wrong, _ = seen_of(IN_A_HELPER, tmp_path)
    told = first_wrong_line(own, wrong, [], CallBudget())
    assert (
        "the last variable that is right in calls that fail is `scores` (line 4), `score`" in told
    )


def seen_of(text: str, folder: Path) -> tuple[Implementation, list[Observation], list[Observation]]:
    """A file's implementation, and what its calls have shown that fail and that pass."""
    path = folder / "mine.py"
    path.write_text(text.lstrip())
    (own,) = load(str(path)).implementations
    failing, passing = sort_draws(own, required_cases(own.operation.name))
    return own, observe(own, failing), [passed_observation(own, case) for case in passing]
