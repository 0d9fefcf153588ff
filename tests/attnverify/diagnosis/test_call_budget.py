"""
What a finding costs is counted in calls of the kernel and of the oracle, and hangs on no clock.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

import attnverify
from attnverify import numpy_ref as right
from attnverify.backends.implementation import Implementation
from attnverify.backends.machine import Machine
from attnverify.catalogue.operation import CATALOGUE
from attnverify.diagnosis.call_budget import EMULATED, KERNEL, ORACLE, CallBudget
from attnverify.inputs.fixed_cases import fixed_cases
from attnverify.judge import invoke
from attnverify.judge.case import case_of, small_case
from attnverify.reference import oracle
from attnverify.verdicts.cell import Cell, applicable_aspects
from attnverify.verdicts.columns import judge_cell
from attnverify.verdicts.search import Search, describe_found
from attnverify.verdicts.shown import shown_recipes
from attnverify.verdicts.tally import Options
from tests.support.sample_backends import load_sample

SDPA = "scaled_dot_product_attention"
FAULTY = (
    pytest.param(f"{SDPA}_mask_of_first_tile", marks=pytest.mark.thorough),
    f"{SDPA}_mask_of_first_batch",
    "update_mems_keeps_all",
)
"""Told by probes, of two kinds, and one without a query; each probe is counted alike."""


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The calls of the kernel and of the oracle, counted where they are made."""
    made = Counter[str]()

    @contextmanager
    def count(what: str) -> Iterator[None]:
        made[what] += 1
        yield

    small_case.cache_clear()  # what other tests have asked for would cost nothing
    monkeypatch.setattr(invoke, "account_for", count)
    monkeypatch.setattr(oracle, "account_for", count)
    return made


@pytest.mark.parametrize("name", FAULTY)
def test_a_finding_costs_no_more_calls_than_its_budget(name: str, calls: Counter[str]) -> None:
    (faulty,) = (i for i in load_sample("faulty_kernels").implementations if i.name == name)
    with TemporaryDirectory() as folder:
        options = Options("quick", failures=folder)
        search = Search(faulty, "float32", options)
        shown = shown_recipes(faulty, "values", options, "any", 20)
        for recipe in shown.at_first + shown.drawn:
            search.judge(recipe)
        calls.clear()
        found = describe_found(search, Cell(faulty, None, "float32", "values"), "any", 20)
    assert found and 0 < calls["backend"] <= KERNEL * len(found)
    assert calls["oracle"] <= ORACLE * len(found)


def test_a_kernel_on_an_emulated_gpu_is_called_a_third_as_often(calls: Counter[str]) -> None:
    wrong = softmax_of(lambda score, mask=None: right.softmax(score, mask) * 0.9)
    made = []
    for machine in (None, Machine(90, "torch")):
        backend = replace(wrong.backend, machine=machine)
        search = Search(replace(wrong, backend=backend), "float32", Options("quick"))
        shown = shown_recipes(wrong, "values", search.options, "any", 20)
        for recipe in shown.at_first + shown.drawn:
            search.judge(recipe)
        calls.clear()
        with TemporaryDirectory() as folder:
            search.options = replace(search.options, failures=folder)
            (found,) = describe_found(search, Cell(wrong, None, "float32", "values"), "any", 20)
        assert found.cause is not None and "every output" in found.cause.words
        made.append(calls["backend"])
    assert made[0] > KERNEL / EMULATED >= made[1] > 0


def softmax_of(function: Any) -> Implementation:
    return Implementation(load_sample("one_fault_each"), CATALOGUE["softmax"], "softmax", function)


SAMPLE = load_sample("one_fault_each")
RIGHT: dict[str, Any] = {name: getattr(right, name) for name in ("softmax", "update_mems", SDPA)}


def all_cells(implementation: Implementation) -> list[Cell]:
    """Every column of an implementation that comes without a gradient."""
    aspects = applicable_aspects(implementation, None)
    return [Cell(implementation, None, "float32", aspect) for aspect in aspects]


def wrong_function(**arguments: Any) -> Any:
    """An answer that is wrong in every element, with a mask in another way, and refuses nothing."""
    first = arguments.get("query", next(iter(arguments.values())))
    if isinstance(first, list):
        return [x * 0 + 2 for x in first]
    width = arguments.get("value", first).shape[-1:]
    number = np.nan if arguments.get("mask") is not None else 2
    return np.full((*first.shape[:-1], *width), number, first.dtype)


@pytest.mark.parametrize(
    "operation", [pytest.param("softmax", marks=pytest.mark.thorough), "update_mems", SDPA]
)
def test_a_run_that_fails_makes_three_times_the_calls_of_one_that_passes(
    operation: str, calls: Counter[str], tmp_path: Path
) -> None:
    made = []
    for function in (RIGHT[operation], wrong_function):
        calls.clear()
        implementation = Implementation(SAMPLE, CATALOGUE[operation], operation, function)
        for cell in all_cells(implementation):
            judge_cell(cell, Options("quick", failures=str(tmp_path)), ())
        made.append(calls["backend"])
    assert made[0] < made[1] <= 3 * made[0], made


def test_a_part_of_a_budget_is_spent_from_the_whole() -> None:
    whole = CallBudget(5, 2)
    part = whole.part(kernel=3, oracle=9)
    assert part.left == (3, 2) and part.affords(2, 2) and whole.left == (3, 0)
    assert not part.affords(1, 1) and not part.affords(2) and part.affords(1)
    assert whole.left == (2, 0) and whole.less(kernel=5).left == (0, 0)


def test_a_case_is_paid_for_once_and_one_of_the_run_needs_no_oracle() -> None:
    own, other = (case_of(recipe, "float32") for recipe in fixed_cases("softmax")[:2])
    budget = CallBudget(3, 1, judged=frozenset([own]))
    twice = softmax_of(lambda score, mask=None: 2 * right.softmax(score, mask))
    for case, left in ((own, (2, 1)), (other, (1, 0)), (other, (1, 0))):
        assert budget.outcome(twice, case) == "wrong number" and budget.left == left
    unseen = case_of(fixed_cases("softmax")[2], "float32")
    assert budget.outcome(twice, unseen) == "" and unseen not in budget.outcomes


ROOMS = ("judge", "diagnosis", "inputs", "verdicts", "failures", "checks", "bounds", "reference")


CLOCKS = ("time", "monotonic", "perf_counter")
"""Those that go on while other processes have the processor."""


def reads_clock(source: str) -> bool:
    """Whether a module asks what time it is."""
    nodes = list(ast.walk(ast.parse(source)))
    called = [node.func for node in nodes if isinstance(node, ast.Call)]
    names = [f.attr for f in called if isinstance(f, ast.Attribute)]
    names += [f.id for f in called if isinstance(f, ast.Name)]
    return any(name.removesuffix("_ns") in CLOCKS for name in names)


def test_no_verdict_and_no_cause_hangs_on_the_clock() -> None:
    package = Path(attnverify.__file__).parent
    modules = [path for room in ROOMS for path in (package / room).rglob("*.py")]
    assert len(modules) > 60
    assert not [path.name for path in modules if reads_clock(path.read_text())]


def test_a_module_that_reads_the_clock_is_seen() -> None:
    assert reads_clock("import time\nend = time.monotonic() + 4") and reads_clock(
        "perf_counter_ns()"
    )
    assert not reads_clock("with account_for('oracle'):\n    time.sleep(1)")
