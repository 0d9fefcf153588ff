"""A test that leaves its process changed is the one that fails."""

import os
from pathlib import Path

import pytest

from attnverify import ROOT
from tests.support.left_behind import environment_changes
from tests.support.run_attnverify import in_a_process

CULPRIT = """
import os
import pytest

def test_that_leaves_one():
    os.environ["CUDA_VISIBLE_DEVICES"] = "left"

def test_that_puts_it_back(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "back")

def test_after_them():
    assert os.environ.get("CUDA_VISIBLE_DEVICES") != "left"
"""


def test_a_test_that_leaves_a_variable_fails_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text((ROOT / "tests/conftest.py").read_text())
    (tmp_path / "test_culprit.py").write_text(CULPRIT)
    line = ("-q", "-p", "no:cacheprovider", "-c", os.devnull, str(tmp_path))
    done = in_a_process(*line, start=("-m", "pytest"))
    assert done.status == 1 and "3 passed, 1 error" in done.output
    assert "got other values of CUDA_VISIBLE_DEVICES" in done.output


@pytest.mark.parametrize("after", [{}, {"A": "2"}, {"A": "1", "B": "1"}], ids=str)
def test_a_variable_that_goes_changes_or_comes_is_seen(after: dict[str, str]) -> None:
    assert environment_changes({"A": "1"}, after) and not environment_changes(after, after)


def test_what_a_library_sets_for_itself_is_its_own() -> None:
    assert environment_changes({}, {"TORCHINDUCTOR_CACHE_DIR": "x", "PYTEST_VERSION": "9"}) == []
