"""Where something is wrong, axis by axis: what repeats is told by its period."""

import numpy as np
import pytest

from attnverify.diagnosis.whereabouts.outputs import describe_repeated
from attnverify.diagnosis.whereabouts.places import describe_indices


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
