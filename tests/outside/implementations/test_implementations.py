"""
The table of public implementations, its adapters and its record belong together; no package is
needed for that.
"""

import ast
import json
import re

import pytest

from attnverify import ROOT
from attnverify.catalogue.operation import CATALOGUE
from tests.outside.implementations.grading import grade
from tests.outside.implementations.table import ADAPTERS, TABLE

RECORD = ROOT / "docs/data/implementations.json"


def test_there_are_54_and_each_has_its_adapter() -> None:
    assert len(TABLE) == 54
    assert {path.stem for path in ADAPTERS.glob("*.py")} == set(TABLE)


@pytest.mark.parametrize("name", TABLE)
def test_an_adapter_defines_its_operation_in_ten_statements_at_most(name: str) -> None:
    body = ast.parse((ADAPTERS / f"{name}.py").read_text()).body
    functions = [each for each in body if isinstance(each, ast.FunctionDef)]
    assert [each.name for each in functions] == [TABLE[name].operation]
    assert len(functions[0].body) <= 10
    assert TABLE[name].spec or TABLE[name].operation in CATALOGUE


@pytest.mark.parametrize("name", [name for name, row in TABLE.items() if row.reason])
def test_what_is_wrong_is_said_in_words_and_in_a_pattern_that_does_not_match_anything(
    name: str,
) -> None:
    assert TABLE[name].because
    assert not re.search(TABLE[name].reason, "wrong: the output")


def test_a_verdict_or_a_reason_that_is_not_as_expected_is_counted_out() -> None:
    right, wrong = {"verdict": "right", "causes": []}, {"verdict": "wrong", "causes": ["x"]}
    found = grade({"torch_sdpa": wrong, "torch_mha": wrong, "jax_attention": right})
    assert (found["verdicts_as_expected"], found["reasons_right"]) == (1, 0)
    assert found["other_verdicts"] == ["torch_sdpa", "jax_attention"]
    assert found["other_reasons"] == ["torch_mha"]


def test_the_record_is_that_of_the_table() -> None:
    record = json.loads(RECORD.read_text())
    assert list(record["kernels"]) == [name for name in TABLE if name not in record["not_judged"]]
    assert record.items() >= grade(record["kernels"]).items()
    assert set(record["packages"]) == {row.package for row in TABLE.values()}


def test_the_book_says_what_the_record_says() -> None:
    told, record = (ROOT / "docs/chapters/state.rst").read_text(), json.loads(RECORD.read_text())
    judged, expected = record["judged"], record["verdicts_as_expected"]
    assert re.search(rf"\n{judged} are judged( so far)?, {expected} as expected", told)
    assert f"of {record['reasons_expected']} that are wrong {record['reasons_right']} are" in told
