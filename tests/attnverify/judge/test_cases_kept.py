"""Which cases are kept: those of one operation in one dtype where they are large."""

from weakref import ref

import pytest

from attnverify.catalogue.pytrees import leaves
from attnverify.inputs.real.calls import everyday_calls
from attnverify.judge.case import Case, case_of, shared_errors
from attnverify.precision import resolve

SDPA = "scaled_dot_product_attention"


def test_large_cases_of_another_operation_or_dtype_are_forgotten() -> None:
    forward, gradient = (everyday_calls(name, "quick", 0)[0] for name in (SDPA, f"{SDPA}_grad"))
    other = everyday_calls("alibi_attention", "quick", 0)[0]
    for following, dtype in ((other, "float32"), (forward, "float16")):
        first = case_of(forward, "float32")
        case_of(gradient, "float32")
        assert case_of(forward, "float32") is first
        seen = ref(first)
        del first
        case_of(following, dtype)
        assert seen() is None


@pytest.mark.parametrize("name", ["get_alibi_biases", "merge_attention_grad"])
def test_bounds_of_a_large_call_have_the_shapes_of_its_answer(name: str) -> None:
    """A count of heads cannot be cut; of several arriving gradients none is a result."""
    case = case_of(everyday_calls(name, "quick", 0)[0], "float32")
    assert case.recipe.is_large
    limits = case.strict_bounds(resolve(None, name, name, "float32"))
    pairs = zip(leaves(limits), leaves(case.expected), strict=True)
    assert all(limit.shape == x.shape for limit, x in pairs)


@pytest.mark.parametrize("name", ["packed_attention", "packed_attention_grad", "paged_attention"])
def test_what_bounds_of_real_calls_share_is_not_kept(name: str) -> None:
    """A quick run of packed_attention kept the graph of every call: 12 GB in one process."""
    before = shared_errors.cache_info().currsize
    case = Case(everyday_calls(name, "quick", 0)[-1], "float32")
    case.strict_bounds(resolve(None, name, name, "float32"))
    assert shared_errors.cache_info().currsize == before
