"""
What this repository asks of its own runs: the plugins are loaded here, so that the suite runs from
a plain checkout too, and what takes long is left out unless a run names it.
"""

import gc
import sys
from collections.abc import Generator, Iterator
from importlib import import_module
from pathlib import Path

import pytest

from attnverify import COLUMNS, ROOT, describe_installation
from tests.attnverify.faults.kill_score import Scores
from tests.support.import_names import operators_defined_twice, second_imports
from tests.support.nightly import leave_to_the_night

pytest_plugins = ["attnverify.plugin", "benchmarks.races.plugin"]

MARKERS = {
    "thorough": "long random campaigns",
    "browser": "opens a report in Chromium",
    "docs": "builds the book and reads it in Chromium",
    "faults": "seeded faults and controls",
    "gpu": "the steps of benchmarks.gpu_report on this device, at small sizes without one",
    "machines": "the code paths of other processors, each in a process of its own",
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


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected stays to the end: no search for garbage goes through it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_report_header() -> str:
    return describe_installation()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    leave_to_the_night(items)
    unnamed = [marker for marker in MARKERS if marker not in config.getoption("markexpr")]
    wanted = [item for item in items if not any(map(item.get_closest_marker, unnamed))]
    config.hook.pytest_deselected(items=[*set(items).difference(wanted)])
    items[:] = wanted


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The main job lies in the modules of ``tests``, and none of it in the folders beside them."""
    beside = collection_path.parent == ROOT / "tests" and collection_path.is_dir()
    return True if beside and config.getoption("markexpr") == "differential" else None


def is_of_a_column(path: Path) -> bool:
    """Whether a path lies in a column, which pytest would import by its bare name."""
    return path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[:1] in {(c,) for c in COLUMNS}


def pytest_collect_directory(path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """A folder of a column is collected as one, without importing it as a package."""
    return pytest.Dir.from_parent(parent, path=path) if is_of_a_column(path) else None


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(
    file_path: Path,
) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """The examples of a column are those of the module below attnverify."""
    collected = yield
    if is_of_a_column(file_path):
        parts = file_path.relative_to(ROOT).with_suffix("").parts
        for node in collected:
            if isinstance(node, pytest.Module):
                name = ".".join(("attnverify", *parts)).removesuffix(".__init__")
                node.obj = import_module(name)
    return collected


@pytest.fixture(scope="session", autouse=True)
def one_import_name() -> Iterator[None]:
    """The suite's last word: nothing was imported twice, and no operator was registered twice."""
    yield
    assert not second_imports(sys.modules)
    assert not operators_defined_twice(sys.modules)
