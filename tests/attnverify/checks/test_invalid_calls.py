"""
Invalid calls: made from right ones by one change, refused by the specification in one form of
words, and expected of everyone.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy import ndarray

from attnverify.backends.implementation import Implementation
from attnverify.catalogue.operation import CATALOGUE
from attnverify.catalogue.pytrees import leaves
from attnverify.checks.invalid_calls import (
    UNLIMITED,
    calls_refused_by_spec,
    invalid_calls,
    limits_of,
    valid_call,
    without_dropout,
)
from attnverify.checks.registry import accepted_limits, judge_refusal
from attnverify.judge.errors import Disagreement
from attnverify.verdicts.cell import Cell
from attnverify.verdicts.columns import judge_cell
from attnverify.verdicts.tally import Options
from tests.support.sample_backends import implementation, load_sample

MESSAGE = re.compile(r"[\w.\[\]]+: wanted [^\n]+, got [^\n]+")
NOT_WRONG = {
    ("merge_masks", "num_heads 5, no divisor of 12"): "heads divide no width there",
    ("merge_masks", "attn_mask with queries too many"): "nothing else fixes N",
    ("get_alibi_biases", "visible with keys too many"): "nothing else fixes M",
}
ANY = [
    (operation, words)
    for operation in CATALOGUE
    for words in invalid_calls(operation)
    if (operation, words) not in NOT_WRONG
]


@pytest.fixture(autouse=True)
def no_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Judge without the failures that are recorded in this checkout, which would be replayed."""
    monkeypatch.chdir(tmp_path)


def test_there_are_many_invalid_calls() -> None:
    assert len(ANY) >= 60
    assert len({words for _, words in ANY}) >= 60


@pytest.mark.parametrize("operation", CATALOGUE)
def test_the_specification_accepts_the_right_call(operation: str) -> None:
    CATALOGUE[operation].specification(**valid_call(operation))


def answer(operation: str, words: str) -> str:
    """What the specification says to an invalid call."""
    try:
        CATALOGUE[operation].specification(**invalid_calls(operation)[words])
    except ValueError as error:
        return str(error)
    return "accepted"


@pytest.mark.parametrize("operation", CATALOGUE)
def test_the_specification_refuses_in_one_form_of_words(operation: str) -> None:
    answers = [answer(operation, words) for one, words in ANY if one == operation]
    assert [message for message in answers if not MESSAGE.fullmatch(message)] == []


@pytest.mark.parametrize("operation", CATALOGUE)
def test_the_message_names_an_argument_or_a_parameter(operation: str) -> None:
    for words in (words for one, words in ANY if one == operation):
        named = answer(operation, words).partition(":")[0]
        assert named.partition(".")[0] in CATALOGUE[operation].arguments or named in words.split()


@pytest.mark.parametrize(("operation", "words"), NOT_WRONG)
def test_what_the_specification_accepts_is_asked_of_no_one(operation: str, words: str) -> None:
    assert words in invalid_calls(operation) and words not in calls_refused_by_spec(operation)


@pytest.mark.parametrize("operation", CATALOGUE)
def test_every_array_is_given_with_a_wrong_rank_size_and_dtype(operation: str) -> None:
    op = CATALOGUE[operation]
    arrays = {
        name
        for name, x in valid_call(operation).items()
        if isinstance(x, ndarray) and x.dtype.kind == "f"
    }
    for name in {name for name in arrays if not op.axes[name].startswith("...")}:
        told = {
            words.removeprefix(f"{name} ")
            for words in calls_refused_by_spec(operation)
            if words.startswith(f"{name} ")
        }
        assert {"of integers", "with an axis too many", "with an axis too few"} <= told


@pytest.mark.parametrize("operation", CATALOGUE)
def test_what_was_an_array_is_no_numpy_scalar(operation: str) -> None:
    """PyTorch refuses those with an error of its own, which would be told of a right kernel."""
    given = [leaf for call in invalid_calls(operation).values() for leaf in leaves(call)]
    assert not [x for x in given if isinstance(x, np.generic)]


def test_something_that_raises_otherwise_is_told_so() -> None:
    wrong = invalid_calls("softmax")["mask of integers"]
    judge_refusal(wrong, implementation("softmax_right"), "float32")
    with pytest.raises(Disagreement, match="raised TypeError: mask: wanted"):
        judge_refusal(wrong, implementation("softmax_refuses_with_type_error"), "float32")


def test_a_runtime_error_is_no_refusal() -> None:
    """PyTorch raises it wherever shapes do not fit: whoever does not look gets it too."""
    wrong = invalid_calls("softmax")["mask of integers"]
    with pytest.raises(Disagreement, match="raised RuntimeError: mask: wanted"):
        judge_refusal(wrong, implementation("softmax_refuses_with_runtime_error"), "float32")


def test_a_negative_epsilon_is_asked_of_every_norm() -> None:
    having = [operation for operation in CATALOGUE if "eps" in CATALOGUE[operation].arguments]
    assert having and all("eps -1" in calls_refused_by_spec(operation) for operation in having)


def test_lengths_of_keys_and_values_that_differ_are_asked_with_no_mask_to_tell() -> None:
    having = [
        operation
        for operation in CATALOGUE
        if {"key", "value"} <= {*CATALOGUE[operation].arguments}
        and {"mask", "visible"} & {*CATALOGUE[operation].arguments}
        and not any(map(CATALOGUE[operation].requires, ("mask", "visible")))
    ]
    for operation in having:
        refused = calls_refused_by_spec(operation)
        for one, other in (("key", "value"), ("value", "key")):
            call = refused[f"{one} longer than {other}, without a mask"]
            assert call.get("mask") is call.get("visible") is None
            assert call[one].shape[-2] == 2 * call[other].shape[-2]
    assert len(having) >= 5


def test_something_that_accepts_is_told_so() -> None:
    with pytest.raises(Disagreement, match="accepted"):
        judge_refusal(
            invalid_calls("softmax")["mask of integers"],
            implementation("softmax_accepts_integers"),
            "float32",
        )


def test_not_supported_is_no_refusal_and_no_fault() -> None:
    tally = judge_cell(
        Cell(implementation("softmax_never"), None, "float32", "refusals"), Options("quick")
    )
    assert (tally.verdict, tally.checks, tally.unsupported) == (
        "unsupported",
        0,
        len(calls_refused_by_spec("softmax")),
    )


def test_all_that_is_not_refused_is_told_at_once() -> None:
    tally = judge_cell(
        Cell(implementation("softmax_refuses_with_type_error"), None, "float32", "refusals"),
        Options("quick"),
    )
    assert "4 of 4 invalid calls are not refused with ValueError" in tally.reason
    assert all(words in tally.reason for words in calls_refused_by_spec("softmax"))


def limited(query: Any, key: Any, value: Any, **others: Any) -> Any:
    """A kernel for square calls of one width and an even number of heads, which refuses nothing."""
    N, D, H = query.shape[-2], query.shape[-1], query.shape[1]
    if others.get("mask") is not None or (key.shape[-2], value.shape[-1]) != (N, D) or H % 2:
        raise NotImplementedError("square calls of one width and an even number of heads")
    return query


def test_invalid_calls_are_made_from_one_that_a_limited_kernel_takes() -> None:
    backend, op = load_sample("one_fault_each"), CATALOGUE["scaled_dot_product_attention"]
    kernel = Implementation(backend, op, "limited", limited)
    found = accepted_limits(kernel, "float32")
    assert dict(found.sizes) | {"N": 6, "M": 6, "H": 4} == dict(found.sizes)
    assert not found.has_mask
    tally = judge_cell(Cell(kernel, None, "float32", "refusals"), Options("quick"))
    assert tally.verdict == "failed" and "query of integers: accepted" in tally.reason
    assert accepted_limits(implementation("softmax_right"), "float32") == UNLIMITED


@pytest.mark.parametrize("operation", CATALOGUE)
def test_every_call_that_a_limited_kernel_may_take_is_valid(operation: str) -> None:
    op = CATALOGUE[operation]
    for limits in limits_of(op):
        with np.errstate(all="ignore"):
            op.specification(**without_dropout(op, valid_call(operation, limits)))
