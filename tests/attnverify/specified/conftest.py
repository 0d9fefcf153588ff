"""What a test registers is forgotten when its module ends: others count the catalogue."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from attnverify.bounds import BOUNDS
from attnverify.catalogue.operation import CATALOGUE
from attnverify.catalogue.outside import ANSWERS
from attnverify.specified.registering import VARIABLE, forget_cases


@pytest.fixture(autouse=True, scope="module")
def as_before() -> Iterator[None]:
    operations, bounds = dict(CATALOGUE), dict(BOUNDS)
    yield
    for table, before in ((CATALOGUE, operations), (BOUNDS, bounds)):
        for name in set(table) - set(before):
            del table[name]
    forget_cases()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A test writes its files into a folder of its own; what a run sets is taken back."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(VARIABLE, "")
    ANSWERS.clear()
    return tmp_path
