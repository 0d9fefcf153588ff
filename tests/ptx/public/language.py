"""
Triton's own language tests on the machine: what each of a sample comes to, and which of those that
pass have NumPy's answer bit for bit.

    git clone --branch release/3.6.x https://github.com/triton-lang/triton
    python -m attnverify.ptx pytest -p tests.ptx.public.language \\
        --record tests/ptx/public/language.json triton/python/test/unit/language/test_core.py

A plugin of pytest: of each function it leaves at most five tests, at equal distances, and notes the
outcome of each; the tests themselves are not changed. What they hold against each other by
``assert_allclose`` or ``assert_close`` is compared bit for bit beside it: *exact* is a test in
which nothing differs, but perhaps the sign of a zero; *close* one in which something does, by less
than it allows.
"""

import json
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attnverify.ptx.findings import Finding, NotUnderstood

__all__ = ["exactly", "sampled", "summary"]

EACH = 5


def sampled(names: list[str], each: int = EACH) -> list[int]:
    """Return the places of at most so many of each function's tests, at equal distances."""
    groups: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        groups.setdefault(name.partition("[")[0], []).append(place)
    kept = []
    for places in groups.values():
        count = min(each, len(places))
        kept += [places[i * (len(places) - 1) // max(count - 1, 1)] for i in range(count)]
    return sorted(kept)


def exactly(got: Any, wanted: Any) -> bool:
    """Whether two arrays hold the same numbers; NaN is NaN, and a zero has no sign."""
    pair = [x.detach().cpu() if isinstance(x, torch.Tensor) else x for x in (got, wanted)]
    if any(isinstance(x, torch.Tensor) for x in pair):
        a, b = (torch.as_tensor(x) for x in pair)
        return a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())
    a, b = map(np.asarray, pair)
    return bool(((a == b) | ((a != a) & (b != b))).all())


class Notes:
    """What became of each test."""

    def __init__(self, record: str | None) -> None:
        self.record, self.bits = record, list[bool]()
        self.rows: dict[str, dict[str, Any]] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [items[place] for place in sampled([each.name for each in items])]

    def beside(self, compare: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(compare)
        def compared(got: Any, wanted: Any, *args: Any, **kwargs: Any) -> Any:
            done = compare(got, wanted, *args, **kwargs)
            self.bits.append(exactly(got, wanted))
            return done

        return compared

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        self.bits.clear()
        with pytest.MonkeyPatch.context() as patch:
            for module, name in ((np.testing, "assert_allclose"), (torch.testing, "assert_close")):
                patch.setattr(module, name, self.beside(getattr(module, name)))
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[Any]
    ) -> Iterator[pytest.TestReport]:
        report = yield
        if report.when == "call" or report.outcome != "passed":
            error = call.excinfo.value if call.excinfo is not None else None
            self.rows[item.name] = self.row(report.outcome, error, f"{item.path.parent}/")
        return report

    def row(self, outcome: str, error: BaseException | None, folder: str) -> dict[str, Any]:
        if outcome == "passed":
            return {"outcome": "exact" if all(self.bits) else "close"}
        if outcome == "skipped":
            return {"outcome": "skipped"}
        words = str(error).strip().split("\n")[0].replace(folder, "")
        kind = getattr(error, "kind", "") if isinstance(error, Finding) else "refused"
        if not isinstance(error, Finding | NotUnderstood):
            kind = type(error).__name__
        return {"outcome": kind, "words": words[:160]}

    def pytest_sessionfinish(self) -> None:
        if self.record:
            rows = (json.dumps({"test": name} | row) for name, row in sorted(self.rows.items()))
            Path(self.record).write_text("[\n" + ",\n".join(rows) + "\n]\n")


def summary(rows: list[dict[str, Any]]) -> dict[str, int]:
    """Count the outcomes, the most frequent first."""
    outcomes = [row["outcome"] for row in rows]
    return {each: outcomes.count(each) for each in sorted(set(outcomes), key=outcomes.count)[::-1]}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", help="where to write what became of each test")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Notes(config.getoption("--record")))
