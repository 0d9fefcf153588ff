"""
What ``attnverify run`` alone asks of pytest: the table counts the cells, so that pytest's own count
of tests, in which other words mean the same, is left out, with -q its dots too; -v asks for our
words, and only a second one for pytest's.
"""

from collections.abc import Generator
from typing import Any

import pytest

from attnverify.plugin.closing import IN_FULL, QUIET, is_quiet
from attnverify.plugin.state import STATE


def pytest_configure(config: pytest.Config) -> None:
    if config.option.verbose == 0:
        config.stash[IN_FULL], config.option.verbose = True, -1


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(config: pytest.Config) -> None:
    if config.stash[STATE].verification is not None:
        config.option.verbose = QUIET


@pytest.hookimpl(wrapper=True)
def pytest_report_teststatus(config: pytest.Config) -> Generator[None, Any, Any]:
    category, letter, word = yield
    return (category, "", word) if is_quiet(config) else (category, letter, word)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """
    Say in our words that a run was interrupted, and print with -q one line a file and nothing else;
    no public option says so.
    """
    plugins = session.config.pluginmanager
    reporter = plugins.get_plugin("terminalreporter")
    if reporter is not None:
        reporter._report_keyboardinterrupt = nothing  # its line names a file of ours
    if reporter is not None and session.config.option.maxfail:
        ruled = reporter.write_sep  # "stopping after 1 failures" would be the last line
        reporter.write_sep = lambda sep, *words, **markup: (
            sep == "!" or ruled(sep, *words, **markup)
        )
    if reporter is None or not is_quiet(session.config):
        return
    reporter._show_progress_info = False  # without dots there is no share of them either
    if (distributed := plugins.get_plugin("terminaldistreporter")) is not None:
        distributed.getstatus = str  # "bringing up nodes..."
    write = reporter._tw.line
    reporter._tw.line = lambda words="", **markup: write(words, **markup) if words else None


def nothing() -> None:
    """Print nothing."""
