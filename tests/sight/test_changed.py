"""Of single changes of right files, which nobody chose, the quick profile sees what is wrong."""

from pathlib import Path

import pytest

from tests.sight.changed import is_green, unseen

HERE = Path(__file__).parent
REPORTS = HERE.parent / "reports" / "later"
RIGHT = (
    HERE / "tiled_attention.py",
    REPORTS / "fifth/window_on_the_other_side_of_the_diagonal/right.py",
)


@pytest.mark.usefixtures("real_calls_are_judged", "causes_are_not_sought")
@pytest.mark.parametrize("file", RIGHT, ids=["tiled", "grouped"])
def test_no_change_that_more_calls_show_to_be_wrong_is_green(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # what failed before in another folder says nothing here
    found = [*unseen(str(file), 120, 0, str(tmp_path))]
    assert len(found) == 120
    assert [(change.line, change.words) for _, change in found if change] == []


@pytest.mark.usefixtures("causes_are_not_sought")
def test_a_row_without_keys_behind_the_first_queries_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NaN of such a row in every tile of queries but the first."""
    monkeypatch.chdir(tmp_path)
    right, name = RIGHT[0].read_text(), "scaled_dot_product_attention"
    changed = right.replace("where(total > 0", "where(total + first > 0")
    assert changed != right and not is_green(changed, name, ".")
