"""What a test registers is forgotten when its module ends: others count the catalogue."""

from collections.abc import Iterator

import pytest

from attnverify.bounds import BOUNDS
from attnverify.catalogue.operation import CATALOGUE
from attnverify.specified.registering import forget_cases


@pytest.fixture(autouse=True, scope="module")
def as_before() -> Iterator[None]:
    operations, bounds = dict(CATALOGUE), dict(BOUNDS)
    yield
    for table, before in ((CATALOGUE, operations), (BOUNDS, bounds)):
        for name in set(table) - set(before):
            del table[name]
    forget_cases()
