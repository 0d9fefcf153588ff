"""
One comparison: nothing in the judge and in the book holds two arrays against each other but
``attnverify.judge.comparison``, and there is no ``atol`` anywhere, in the tests neither.
"""

import ast
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from attnverify import ROOT

HOME = ROOT / "attnverify" / "judge" / "comparison.py"
SOURCES = [
    path
    for folder in ("attnverify", "docs/_ext")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if path != HOME
]
FORMULAS = ("catalogue", "inputs", "bounds", "derived", "reference", "faults")
"""Rooms that compute and judge nothing: no output of a backend comes there."""

TOLERANT = {"allclose", "isclose", "assert_allclose", "assert_almost_equal", "approx"}
NUMBERS = {
    "attnverify/conventions/stage_rows.py": "distances of keys",
    "attnverify/diagnosis/factors/least_squares.py": "fitted factors, in words",
    "attnverify/diagnosis/factors/stages.py": "fitted factors, in words",
    "attnverify/diagnosis/regions/boundaries.py": "sizes of calls, whole numbers",
    "attnverify/diagnosis/matching/other_forwards.py": "slopes of two forwards along a direction",
    "attnverify/diagnosis/identification/staged.py": "a measured share and its scatter",
    "attnverify/specified/form.py": "two answers of the specification, PyTorch's and what was read",
    "attnverify/specified/pytorch/problems.py": "sizes of calls, whole numbers",
    "attnverify/verdicts/found_out.py": "two answers of the specification, a part of a bound",
    "attnverify/ptx/numbers/errors.py": "an approximate instruction, kept within its stated error",
}
"""Modules in which something else is subtracted: never an output and what was expected."""


def tolerances(source: str) -> Iterator[str]:
    """The names in a source of what compares to a tolerance."""
    if not any(name in source for name in ("atol", "rtol", *TOLERANT)):
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.keyword | ast.arg) and node.arg in ("atol", "rtol"):
            yield str(node.arg)
        name = getattr(node, "attr", getattr(node, "id", ""))
        if name in TOLERANT:
            yield name


def differences(source: str) -> Iterator[str]:
    """What in a source reduces a difference to its size: ``abs(x - y)`` and norms."""
    if "abs" not in source and "norm" not in source:
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and node.args:
            name = ast.unparse(node.func).rpartition(".")[2]
            inside = ast.walk(node.args[0])
            if name in ("abs", "absolute", "fabs", "norm") and any(map(subtracts, inside)):
                yield ast.unparse(node)


def subtracts(node: ast.AST) -> bool:
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.Sub)
    return isinstance(node, ast.Attribute) and node.attr == "subtract"


def place(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


FOLDERS = ("spec", "numpy_ref", "torch_impl", "cupy_impl", "benchmarks", "examples")
OTHERS = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
"""Where nothing is judged; a tolerance would be as odd there."""


def found_in(paths: Iterable[Path], by: Callable[[str], Iterator[str]]) -> dict[str, list[str]]:
    """What is found in these files, of those in which there is any."""
    found = {place(path): list(by(path.read_text())) for path in paths}
    return {name: words for name, words in found.items() if words}


def test_nothing_has_a_tolerance() -> None:
    assert len(SOURCES) > 300 and len(OTHERS) > 100
    assert found_in([*SOURCES, *OTHERS], tolerances) == {}


TESTS = [
    path
    for path in sorted((ROOT / "tests").rglob("*.py"))
    if not path.relative_to(ROOT / "tests").parts[0].startswith("sample_")
]
"""The samples of users' tests and kernels apart: their tolerances are what is judged."""


def absolute_tolerances(source: str) -> Iterator[str]:
    if "atol" in source or "abs_tol" in source:
        named = {getattr(node, "arg", "") for node in ast.walk(ast.parse(source))}
        yield from named & {"atol", "abs_tol"}


def test_no_test_of_ours_has_an_absolute_tolerance() -> None:
    assert len(TESTS) > 500 and found_in(TESTS, absolute_tolerances) == {}
    assert [*absolute_tolerances("close(a, b, abs_tol=1e-6)")] == ["abs_tol"]


JUDGING = [path for path in SOURCES if path.relative_to(ROOT).parts[1] not in FORMULAS]


def test_nothing_else_compares_arrays() -> None:
    assert len(JUDGING) > 200 and {*found_in(JUDGING, differences)} == {*NUMBERS}


def test_the_one_comparison_does_compare() -> None:
    assert list(differences(HOME.read_text()))


@pytest.mark.parametrize(
    "source",
    [
        "np.allclose(a, b)",
        "from numpy import isclose\nisclose(a, b)",
        "np.testing.assert_allclose(a, b, 1e-3)",
        "close(a, b, atol=1e-6)",
        "def close(a, b, rtol=0.02): ...",
    ],
)
def test_a_tolerance_is_noticed(source: str) -> None:
    assert list(tolerances(source)) and not list(tolerances("compare(a, b, bound)"))


@pytest.mark.parametrize(
    "source",
    [
        "error = np.linalg.norm(a - b) / np.linalg.norm(b)",
        "wrong = np.abs(a - b) > 1e-3",
        "error = abs(x.ravel() - y)\nright = error <= limit",
        "error = np.abs(np.subtract(actual, exact, dtype=float))",
    ],
)
def test_a_second_comparison_is_noticed(source: str) -> None:
    assert list(differences(source)) and not list(differences("x - y < 3 or abs(x) > 1"))
