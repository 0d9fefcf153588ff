"""
The script of a failure on few numbers is a page: the import, literals, the call, one assertion.
"""

import ast
import importlib
import re
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnverify.backends.implementation import Implementation
from attnverify.backends.loader import load
from attnverify.catalogue.operation import CATALOGUE
from attnverify.failures.record import FailureRecord
from attnverify.failures.scripts.page import write_page
from attnverify.failures.scripts.script import script
from attnverify.inputs.fixed_cases import fixed_cases
from attnverify.inputs.recipe import Recipe
from attnverify.inputs.sampling import simpler_recipes
from attnverify.judge.case import Case, case_of

SDPA = "scaled_dot_product_attention"
SIZES = {"B": 1, "H": 1, "N": 2, "M": 3, "D": 2, "E": 2}
MASK = {"pattern": "random", "axes": "N M", "form": "bool", "seed": 1}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In a folder of its own, where a page can be run in this process too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["page.py"])
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    importlib.invalidate_caches()
    yield
    for name in ("mine", "every"):
        sys.modules.pop(name, None)


def small_case(operation: str) -> Case:
    """A case of few numbers."""
    return case_of(next(simpler_recipes(fixed_cases(operation)[0])), "float32")


def file_of(body: str, library: str = "numpy") -> Implementation:
    """A user's attention that computes an expression; ``w`` are the right weights."""
    text = ATTENTION[library].replace("EXPRESSION", body)
    Path("mine.py").write_text(text)
    return load("mine.py").implementations[0]


ATTENTION = {
    "numpy": """
import numpy as np

PRECISION = "eager"


def scaled_dot_product_attention(q, k, v, attn_mask=None):
    s = q.astype("float64") @ k.astype("float64").swapaxes(-1, -2) / q.shape[-1] ** 0.5
    s = s if attn_mask is None else np.where(attn_mask, s, -np.inf)
    e = np.where(np.isneginf(s), 0, np.exp(s - s.max(-1, keepdims=True, initial=-1e30)))
    w = e / np.maximum(e.sum(-1, keepdims=True), 1e-300)
    return (EXPRESSION).astype(q.dtype)
""",
    "torch": """
import torch

PRECISION = "eager"


def scaled_dot_product_attention(query, key, value, mask=None):
    s = query @ key.mT / query.shape[-1] ** 0.5
    w = (s if mask is None else s.masked_fill(~mask, -1e30)).softmax(-1)
    v = value
    return EXPRESSION
""",
}
RIGHT, WRONG = "w @ v", "2 * (w @ v)"


def page_of(implementation: Implementation, dtype: str = "float32", **parts: Any) -> str:
    values = {"family": "normal", "seed": 1}
    case = case_of(Recipe(implementation.operation.name, SIZES, values, **parts), dtype)
    return script(FailureRecord.of(implementation, case, "values"), implementation)


def run(page: str, *place: str) -> tuple[int, str]:
    """The exit status of a page, and what it prints, in this process and its own module."""
    sys.argv[1:] = place
    sys.modules.pop("mine", None)
    importlib.invalidate_caches()
    with redirect_stdout(StringIO()) as told:
        try:
            exec(page, {})
        except AssertionError as error:
            return 1, f"{told.getvalue()}AssertionError: {error}"
        except SystemExit as ended:
            return int(str(ended.code)), told.getvalue()
    return 0, told.getvalue()


@pytest.mark.parametrize("library", ATTENTION)
def test_a_page_shows_the_failure_and_that_it_is_gone(library: str) -> None:
    page = page_of(file_of(WRONG, library))
    status, told = run(page)
    assert status == 1 and "AssertionError: output: 4 of 4 elements out of bound: got [" in told
    file_of(RIGHT, library)
    assert run(page) == (0, "output: 0 of 4 elements out of bound\n")


@pytest.mark.parametrize("body", ["undefined", "w @", "w @ v; raise NotImplementedError('no')"])
def test_a_page_that_cannot_run_says_why(body: str) -> None:
    page = page_of(file_of(WRONG))
    Path("mine.py").write_text(f"{body}\n")
    status, told = run(page)
    assert status == 125 and told.startswith("cannot run: ")


def test_a_page_finds_the_file_that_it_is_given() -> None:
    page = page_of(file_of(WRONG))
    Path("elsewhere").mkdir()
    Path("mine.py").rename("elsewhere/mine.py")
    assert run(page)[0] == 125 and run(page, "elsewhere/mine.py")[0] == 1


def test_a_page_is_short_and_holds_nobodys_folders(tmp_path: Path) -> None:
    page = page_of(file_of(WRONG), mask=MASK)
    assert len(page.splitlines()) < 60 and max(map(len, page.splitlines())) <= 100
    assert str(tmp_path) not in page and "attnverify." not in page
    calls = [node for node in ast.walk(ast.parse(page)) if isinstance(node, ast.Assert)]
    assert len(calls) == 2  # of its form, and by the bound
    assert re.search(r"^attn_mask = np.array\(\[\[(True|False), ", page, re.M)


@pytest.mark.parametrize("sizes", [SIZES, SIZES | {"M": 65}])
def test_a_script_says_where_its_inputs_are_not_those_recorded(sizes: dict[str, int]) -> None:
    own = file_of(WRONG)
    case = case_of(Recipe(SDPA, sizes, {"family": "normal", "seed": 1}), "float32")
    record = FailureRecord.of(own, case, "values")
    drifted = replace(record, inputs="0" * 12)
    said = [" ".join(script(each, own).split()) for each in (record, drifted)]
    assert ["the inputs drawn here are not those that were recorded" in x for x in said] == [
        False,
        True,
    ]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("library", ATTENTION)
def test_its_literals_are_the_numbers_that_were_drawn(library: str, dtype: str) -> None:
    implementation = file_of(RIGHT, library)
    page, given = page_of(implementation, dtype), {}
    exec(page.split("\ntry:\n    output")[0], given)
    case = case_of(Recipe(SDPA, SIZES, {"family": "normal", "seed": 1}), dtype)
    own = given["q" if library == "numpy" else "query"]
    assert dtype in str(own.dtype)
    wide = own.double().numpy() if library == "torch" else own.astype(np.float64)
    assert np.array_equal(wide, case.inputs["query"])


def test_a_gradient_is_taken_by_autograd() -> None:
    forward = file_of("w @ v * 1.0", "torch")
    (gradient,) = (i for i in forward.backend.implementations if i.operation.is_gradient)
    assert run(page_of(gradient))[0] == 0
    file_of("w @ v.detach() + 0 * v.sum()", "torch")
    status, told = run(page_of(gradient))
    assert status == 1 and told.startswith("output[0]: 0 of 4 elements out of bound\noutput[1]: 0")
    assert re.search(r"AssertionError: output\[2\]: \d of 6", told)


PARTS = {
    "layout": {"layout": {"kind": "offset", "seed": 0}},
    "dropout": {"dropout": {"p": 0.5, "seed": 1}},
}


@pytest.mark.parametrize("part", PARTS)
def test_what_no_page_can_say_has_the_script_of_any_failure(part: str) -> None:
    assert "show_again(" in page_of(file_of(WRONG), **PARTS[part])


def test_many_numbers_have_the_script_of_any_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    implementation = file_of(WRONG)
    assert "show_again(" not in page_of(implementation)
    monkeypatch.setitem(SIZES, "M", 65)
    assert "show_again(" in page_of(implementation)


EVERY = """
from attnverify import numpy_ref

PRECISION = "wide"
__all__ = {names}
"""
RIGHT_ONE = "{name} = numpy_ref.{name}\n"
WRONG_ONE = """
def {name}(**inputs):
    from attnverify.catalogue.pytrees import map_leaves
    return map_leaves(lambda x: ~x if x.dtype == bool else x * 0 + 7, numpy_ref.{name}(**inputs))
"""


@pytest.mark.parametrize("function, wanted", [(RIGHT_ONE, 0), (WRONG_ONE, 1)])
def test_a_page_agrees_with_the_judge_on_every_operation(function: str, wanted: int) -> None:
    names = [name for name, op in CATALOGUE.items() if not op.is_gradient]
    functions = "".join(function.format(name=name) for name in names)
    Path("every.py").write_text(EVERY.format(names=names) + functions)
    pages = {i.name: write_page(small_case(i.name), i) for i in load("every.py").implementations}
    said = {name: run(page) for name, page in pages.items() if page}
    assert len(said) > 15 and {name: s for name, s in said.items() if s[0] != wanted} == {}
