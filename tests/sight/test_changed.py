"""Of single changes of right files, which nobody chose, the quick profile sees what is wrong."""

from pathlib import Path

import pytest

from tests.sight.changed import unseen

HERE = Path(__file__).parent
REPORTS = HERE.parent / "reports" / "later"
RIGHT = (
    HERE / "tiled_attention.py",
    REPORTS / "fifth/window_on_the_other_side_of_the_diagonal/right.py",
)


@pytest.mark.usefixtures("real_calls_are_judged", "causes_are_not_sought")
@pytest.mark.parametrize("file", RIGHT, ids=["tiled", "grouped"])
def test_no_change_that_more_calls_show_to_be_wrong_is_green(file: Path, tmp_path: Path) -> None:
    found = [*unseen(str(file), 120, 0, str(tmp_path))]
    assert len(found) == 120
    assert [(change.line, change.words) for _, change in found if change] == []
