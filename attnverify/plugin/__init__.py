"""
The pytest plugin: it adds our options, and minds its own business until a run uses it.

Every pytest of an environment in which attnverify is installed loads this module, so it imports
neither NumPy nor Hypothesis nor the specification. The judge (:mod:`attnverify.plugin.run`) is
loaded where an option of ours is given or a test module takes the differential tests.
"""

import argparse
from collections.abc import Callable
from typing import Any

import pytest

from attnverify.options import RUN

BACKENDS = "attn_backends"
"""The setting that names the backends of a project where the options name none."""

DIFFERENTIAL = "attnverify.differential"
"""The module whose tests are ours."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("attnverify", "differential verification of attention kernels")
    for option in RUN:
        if option.is_flag:
            group.addoption(option.flag, dest=option.dest, action="store_true", help=option.help)
            continue
        group.addoption(
            option.flag,
            dest=option.dest,
            action="extend" if option.repeatable else "store",
            type=_type_of(option.read),
            default=option.default,
            metavar=option.metavar,
            help=option.help,
        )
    parser.addini(BACKENDS, "backends that the differential tests judge", type="args")


def _type_of(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Build the parser of an option's value, with an error that argparse tells in its own words."""

    def read(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "differential: holds a backend to the specification")
    if config.getoption("attn_backend") or config.getini(BACKENDS):
        load_judge(config)


def load_judge(config: pytest.Config) -> Any:
    """Load the part of the plugin that needs the judge, registered when it is first wanted."""
    from attnverify.plugin import run

    if not config.pluginmanager.is_registered(run):
        config.pluginmanager.register(run)
    return run


def is_ours(function: Any) -> bool:
    """Tell whether a test function is one of the differential tests, wherever it was imported."""
    return getattr(function, "__module__", None) == DIFFERENTIAL


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if is_ours(metafunc.function):
        load_judge(metafunc.config).parametrize(metafunc)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Called by pytest-xdist when a worker has ended: whether it met differential tests."""
    if counts := (getattr(node, "workeroutput", None) or {}).get("attn_counts"):
        node.config.stash[load_judge(node.config).STATE].learn(*counts)


@pytest.fixture(scope="session")
def attnverify_run(pytestconfig: pytest.Config) -> Any:
    """The run's Verification, for the differential tests."""
    return load_judge(pytestconfig).verification_of(pytestconfig)
