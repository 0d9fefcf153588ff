"""Sabotage: what is imported twice is noticed at the end of the suite."""

import subprocess
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from attnverify import ROOT
from tests.support.import_names import operators_defined_twice, second_imports


def module(name: str, file: str) -> dict[str, ModuleType]:
    made = ModuleType(name)
    made.__file__ = str(ROOT / file)
    return {name: made}


def test_a_column_by_its_bare_name_is_noticed() -> None:
    assert second_imports(module("spec.alibi", "spec/alibi.py")) == ["spec.alibi by its bare name"]


def test_one_file_under_two_names_is_noticed() -> None:
    twice = module("attnverify.spec", "spec/__init__.py") | module(
        "specification", "spec/__init__.py"
    )
    assert second_imports(twice) == ["attnverify.spec and specification"]


def test_a_users_module_of_that_name_is_their_business() -> None:
    assert second_imports(module("spec", "../elsewhere/spec.py")) == []


def test_an_operator_of_two_namespaces_is_noticed() -> None:
    names = ["torch_impl::attention", "attnverify_torch_impl::attention", "aten::mul"]
    torch: Any = SimpleNamespace(_C=SimpleNamespace(_dispatch_get_all_op_names=lambda: names))
    assert operators_defined_twice({"torch": torch}) == ["attention"]


@pytest.mark.parametrize(("line", "status"), [("import attnverify.spec", 0), ("import spec", 1)])
def test_a_run_in_which_a_column_is_imported_twice_is_red(line: str, status: int) -> None:
    test = ROOT / "tests" / "packaging" / "imported_twice.py"
    program = f"import sys, pytest; sys.path.insert(0, {str(ROOT)!r}); {line}; "
    program += f"sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', {str(test)!r}]))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == status, done.stdout
    assert ("by its bare name" in done.stdout) == bool(status)


def test_examples_of_the_specification_run_below_attnverify() -> None:
    """Sabotage is the end of the run, which is red where a column was imported by its bare name."""
    line = ["pytest", "--doctest-modules", "spec/shifts.py", "-v", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", *line], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    assert "attnverify.spec.shifts.rel_shift PASSED" in done.stdout
