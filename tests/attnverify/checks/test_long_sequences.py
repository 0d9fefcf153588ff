"""
Long sequences: the specification of a sampled row is the specification of the whole call, and a
fault that depends on size is found.
"""

import pytest

from attnverify.backends.implementation import Implementation
from attnverify.backends.loader import load
from attnverify.catalogue.operation import CATALOGUE
from attnverify.catalogue.rows import (
    few_rows,
    has_independent_rows,
    sampled_rows,
    single_row,
)
from attnverify.checks.long_sequences import (
    LENGTHS,
    judge_long,
    long_recipe,
    long_sequence_checks,
)
from attnverify.inputs.expand import expand
from attnverify.judge.case import case_of
from attnverify.judge.errors import Disagreement
from attnverify.judge.judging import judge
from tests.support.roundings import count_roundings
from tests.support.sample_backends import implementation

JUDGED = [name for name, operation in CATALOGUE.items() if has_independent_rows(operation)]


def ours(operation: str) -> Implementation:
    return next(i for i in load("numpy_ref").implementations if i.name == operation)


@pytest.mark.parametrize("operation", JUDGED)
@pytest.mark.parametrize(("N", "M"), [(1, 9), (4, 9), (7, 7), (9, 4), (5, 1)])
def test_a_row_alone_is_the_row_of_the_whole(operation: str, N: int, M: int) -> None:
    inputs = expand(long_recipe(operation, N, M), "float64")
    whole = CATALOGUE[operation].specification(**inputs)
    for i in range(max(N - M, 0), N):
        alone = CATALOGUE[operation].specification(**single_row(CATALOGUE[operation], inputs, i))
        assert count_roundings(alone[..., 0, :], whole[..., i, :]) < 64


@pytest.mark.parametrize("operation", JUDGED)
@pytest.mark.parametrize(("N", "M"), [(4, 9), (7, 7), (9, 4)])
@pytest.mark.parametrize("count", [2, 3])
def test_a_few_rows_alone_are_those_of_the_whole(
    operation: str, N: int, M: int, count: int
) -> None:
    inputs = expand(long_recipe(operation, N, M), "float64")
    whole = CATALOGUE[operation].specification(**inputs)
    for i in range(N - count + 1):
        alone = few_rows(CATALOGUE[operation], inputs, i, count)
        found = CATALOGUE[operation].specification(**alone)
        assert count_roundings(found, whole[..., i : i + count, :]) < 64


@pytest.mark.parametrize("operation", JUDGED)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_long_call_of_a_right_function_passes(operation: str, dtype: str) -> None:
    for _, case in long_sequence_checks(operation, "thorough")[2:]:
        case(ours(operation), dtype)


@pytest.mark.parametrize("operation", JUDGED)
def test_the_longest_call_is_longer_than_the_specification_could_answer(operation: str) -> None:
    assert max(M for lengths in LENGTHS.values() for _, M in lengths) >= 131072
    assert long_sequence_checks(operation, "thorough")


def test_what_is_wrong_beyond_two_thousand_keys_is_found_there_alone() -> None:
    short = implementation("alibi_attention_short")
    judge(short, case_of(long_recipe("alibi_attention", 3, 900), "float32"))
    with pytest.raises(Disagreement, match="row 0 of 2"):
        judge_long(long_recipe("alibi_attention", 2, 2051), short, "float32")


def test_a_wrong_shape_of_a_long_call_is_told() -> None:
    with pytest.raises(Disagreement, match="wanted shape"):
        judge_long(
            long_recipe("alibi_attention", 3, 1025),
            implementation("alibi_attention_transposed"),
            "float32",
        )


def test_the_edges_of_blocks_are_sampled() -> None:
    assert {15, 16, 64, 127, 128, 511, 512} <= set(sampled_rows(4099))


@pytest.mark.parametrize("N", [1, 3, 513, 4097])
def test_the_first_and_the_last_row_are_sampled(N: int) -> None:
    assert {0, N - 1} <= set(sampled_rows(N)) <= set(range(N))
