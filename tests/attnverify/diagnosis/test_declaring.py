"""A line of PRECISION that is told takes the place of none that stands in the file or beside it."""

import json
from dataclasses import replace
from typing import Any

import pytest

from attnverify.backends.loader import load
from attnverify.diagnosis.declaring import declare, together
from attnverify.precision import find_fields
from attnverify.report.next_steps import describe_declared

SAID: dict[str, Any] = {
    "nothing": None,
    "a preset": "fused",
    "fields": {"preset": "fused", "operand": "tf32"},
    "a dtype": {"bfloat16": {"preset": "fused"}, "*": "eager"},
    "an operation": {"softmax": {"*": "fused", "bfloat16": "eager"}, "*": "eager"},
    "an operation, one for all": {"softmax": "fused", "dropout": "eager"},
    "this dtype": {"float16": "fused", "*": "eager"},
    "all of all": {"*": {"float16": "fused", "*": "eager"}},
}
ASKED = [(name, d) for name in ("softmax", "dropout") for d in ("float16", "bfloat16", "float32")]


@pytest.mark.parametrize("what", SAID)
def test_a_line_says_what_was_found_and_keeps_what_the_file_says(what: str) -> None:
    """That of numbers counted as 0 left out what the file says, and what was found beside it."""
    (own,) = (x for x in load("numpy_ref").implementations if x.operation.name == "softmax")
    own = replace(own, backend=replace(own.backend, precision=SAID[what]))
    more = {"exp_ulps": 128.0}
    said = json.loads(declare(own, {"float16": more}))
    for name, dtype in ASKED:
        before = find_fields(SAID[what], name, name, dtype)
        is_meant = (name, dtype) == ("softmax", "float16")
        after = find_fields(said, name, name, dtype)
        if name == "softmax" or what.startswith("an operation"):
            assert after == (before | more if is_meant else before)


def test_lines_of_several_findings_are_one() -> None:
    lines = ['{"float16": {"exp_ulps": 128.0}}', '{"bfloat16": {"lse_merge": True}}']
    told = '{"float16": {"exp_ulps": 128.0}, "bfloat16": {"lse_merge": True}}'
    assert together(lines) == told
    explained = [[{"name": "a", "words": "a", "declares": line}] for line in lines]
    cells = [
        {"backend": "mine", "findings": [{"cause": {"explanations": each}}]} for each in explained
    ]
    assert [*describe_declared(cells)][1:] == [f"  PRECISION = {told}"]
    assert [*describe_declared(cells[:1])] == []
