"""Which cases are kept: those of one operation in one dtype where they are large."""

from weakref import ref

from attnverify.inputs.real.calls import everyday_calls
from attnverify.judge.case import case_of

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
