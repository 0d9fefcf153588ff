"""What nothing explains is told with the one change of the file that makes it right."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.run_attnverify import verify

FILE = """
import numpy as np

DTYPES = ("float32",)

def softmax(score, mask=None):
    if mask is not None:
        score = np.where(mask, score, -np.inf) if mask.dtype == bool else score + mask
    m = score.max(-1, keepdims=True)
    e = np.exp(score - np.where(m > -np.inf, m, 0))
    ripple = np.cos(np.arange(score.shape[-1], dtype=score.dtype)) / 8
    e = e + e * ripple ** 3
    total = e.sum(-1, keepdims=True)
    return np.divide(e, total, out=np.zeros_like(e), where=total > 0)
"""
FOUND: dict[str, Any] = {"failing": 1, "passing": 1, "tried": 9, "mend": [], "all": True}


def lines_of_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The answer of a run at 80 columns, from its verdict on."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "80")
    (folder / "mine.py").write_text(FILE)
    done = verify("run", "mine.py", "--profile", "quick", "--report-json", "found.json")
    lines = done.output.splitlines()
    assert done.status == 1
    return lines[next(at for at, line in enumerate(lines) if "mine.py is wrong" in line) :]


@pytest.mark.usefixtures("mends_are_sought")
def test_what_nothing_explains_is_told_with_what_mends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = lines_of_run(tmp_path, monkeypatch)
    assert "   mine.py:12: right with" in "\n".join(answer) and len(answer) <= 15
    assert "explains it, but a change of the file mends it" in " ".join(
        " ".join(answer[:2]).split()
    )
    assert answer[-1].startswith("mine.py: wrong in float32: line 12: right with")
    assert "calls" not in answer[-1]
    tallies = json.loads((tmp_path / "found.json").read_text())["tallies"]
    found = [x["mend"] for one in tallies for x in one["findings"] if x["mend"]]
    assert found and all(x == found[0] for x in found)
    assert (found[0]["file"], found[0]["line"]) == ("mine.py", 12)
    assert (
        found[0]["change"].startswith("without `e = e + e")
        and "calls that failed" in found[0]["seen"]
    )
    assert not any(x["notes"] for one in tallies for x in one["findings"])


@pytest.mark.usefixtures("mends_are_sought")
def test_that_nothing_mends_it_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnverify.plugin.mending.find_repairs", lambda *_: FOUND)
    lines_of_run(tmp_path, monkeypatch)
    assert "no single change of mine.py makes it right (9 tried)" in Path("found.json").read_text()


@pytest.mark.usefixtures("mends_are_sought")
def test_that_not_all_was_tried_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = FOUND | {"all": False}
    monkeypatch.setattr("attnverify.plugin.mending.find_repairs", lambda *_: found)
    lines_of_run(tmp_path, monkeypatch)
    told = Path("found.json").read_text()
    assert "none of the first 9 changes of mine.py makes it right; more of them: attnverify" in told


@pytest.mark.usefixtures("mends_are_sought")
def test_a_search_that_breaks_off_is_a_note_and_changes_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnverify.plugin.mending.find_repairs", lambda *_: 1 // 0)
    assert "right with" not in "\n".join(lines_of_run(tmp_path, monkeypatch))
    assert "broke off (ZeroDivisionError" in Path("found.json").read_text()


def test_our_own_tests_do_not_pay_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[Any]()
    monkeypatch.setattr("attnverify.plugin.mending.find_repairs", lambda *_: asked.append(1))
    lines_of_run(tmp_path, monkeypatch)
    assert not asked
