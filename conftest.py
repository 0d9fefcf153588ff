"""
What this repository asks of its own runs: the plugins are loaded here, so that the suite runs from
a plain checkout too, and what takes long is left out unless a run names it.
"""

import sys
from collections.abc import Iterator

import pytest

from attnverify import describe_installation
from attnverify.fault_score import Scores
from tests.support.import_names import operators_defined_twice, second_imports

pytest_plugins = ["attnverify.plugin", "attnverify.bench.plugin"]

MARKERS = {
    "thorough": "long random campaigns",
    "browser": "opens a report in Chromium",
    "docs": "builds the book and reads it in Chromium",
    "faults": "seeded faults and controls",
}
"""The tests that are left out unless -m names them."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--attn-score-json", metavar="FILE", help="write the kill score of pytest -m faults as JSON"
    )


def pytest_configure(config: pytest.Config) -> None:
    for marker, what in MARKERS.items():
        config.addinivalue_line("markers", f"{marker}: {what}, left out unless named by -m")
    config.addinivalue_line("markers", "every_dtype: a fault in another dtype than its first")
    config.pluginmanager.register(Scores())


def pytest_report_header() -> str:
    return describe_installation()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    unnamed = [marker for marker in MARKERS if marker not in config.getoption("markexpr")]
    wanted = [item for item in items if not any(map(item.get_closest_marker, unnamed))]
    config.hook.pytest_deselected(items=[*set(items).difference(wanted)])
    items[:] = wanted


@pytest.fixture(scope="session", autouse=True)
def one_import_name() -> Iterator[None]:
    """The suite's last word: nothing was imported twice, and no operator was registered twice."""
    yield
    assert not second_imports(sys.modules)
    assert not operators_defined_twice(sys.modules)
