"""Twelve problems: right answers are right, wrong ones wrong, also those that 1e-2 lets pass."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attnverify.backends.implementation import Implementation
from attnverify.catalogue.operation import CATALOGUE
from attnverify.judge.judging import is_right
from attnverify.specified.registering import register_file
from tests.attnverify.specified.problems_in_own_words import EXAMPLES
from tests.attnverify.specified.told import answered_in_file, cases, failing, told

every = pytest.mark.parametrize("name", EXAMPLES)


def registered(name: str) -> str:
    Path(f"{name}.py").write_text(EXAMPLES[name].problem)
    (operation,) = register_file(f"{name}.py")
    return operation


CAUSES = {
    ("1_product_of_a_transposed", "seen"): "`a` negated",
    ("1_product_of_a_transposed", "unseen"): "`a` rounded to bfloat16",
    ("2_softmax_of_rows", "seen"): "the sum over axis 0 in place of 1",
    ("2_softmax_of_rows", "unseen"): "the maximum not subtracted, so that exp overflows",
    ("3_norm_of_rows", "unseen"): "the term 1e-05 as 0.001 in `return self.norm(x)`",
    ("4_root_of_mean_square", "unseen"): "+ 1e-05` as `x.square().mean(1, keepdim=True)`",
    ("4_root_of_mean_square", "seen"): "the sum over axis 0 in place of 1",
    ("5_gelu", "seen"): "the factor 0.5 doubled",
    ("5_gelu", "unseen"): "`F.gelu(x)` as `F.gelu(x, approximate='tanh')`",
    ("6_pool", "seen"): "padding of 0 in place of -inf",
    ("7_sum_from_the_end", "unseen"): "operands in float16",
    ("8_huber", "seen"): "the factor 0.5 doubled in `return F.smooth_l1_loss(a, b)`",
    ("9_linear_then_relu", "seen"): "`linear_bias` negated",
    ("9_linear_then_relu", "unseen"): "`x` rounded to bfloat16",
    ("10_linear_then_swish", "seen"): "`F.silu(self.linear(x)) * 2` as `F.silu(self.linear(x))`",
    ("11_convolution_then_tanh", "seen"): "the max in place of the min",
    ("12_linear_then_softplus", "unseen"): "the limit 20 as 5 in `return torch.logsumexp",
}
"""What is told of a wrong answer; of the others it is not what they compute."""
KINDS = ("seen", "unseen")
UNTOLD = [(name, kind) for name in EXAMPLES for kind in KINDS if (name, kind) not in CAUSES]
OFTEN = ("7_sum_from_the_end", "seen")
"""Of what nothing explains every search is made: one in each run, the others nightly."""


def wrong_answer(name: str, kind: str) -> Implementation:
    example = EXAMPLES[name]
    return answered_in_file(example.answer(*getattr(example, kind)), f"{kind}.py")[0]


@every
def test_a_right_answer_is_right_and_a_wrong_one_wrong_and_told(name: str) -> None:
    """A right one with its gradient; the three are held to the same bounds."""
    operation = registered(name)
    for answer in answered_in_file(EXAMPLES[name].answer()):
        assert failing(answer, cases(answer.operation.name)) == [], answer.operation.name
    for kind in KINDS:
        answer, among = wrong_answer(name, kind), cases(operation, drawn=10)
        if (name, kind) in CAUSES:
            assert CAUSES[name, kind] in told(answer, among)
        else:
            assert not all(is_right(answer, case) for case in among)


@pytest.mark.parametrize(
    ("name", "kind"),
    [pytest.param(*x, marks=[] if x == OFTEN else pytest.mark.thorough) for x in UNTOLD],
)
def test_of_what_nothing_explains_no_cause_is_told(name: str, kind: str) -> None:
    operation = registered(name)
    assert "equals" not in told(wrong_answer(name, kind), cases(operation, drawn=10))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_factors_of_a_product_are_rounded_to_the_format_that_is_told(dtype: torch.dtype) -> None:
    operation: Any = CATALOGUE[registered("9_linear_then_relu")]
    inputs = next(cases(operation.name)).inputs
    own = f"both factors rounded to {str(dtype).removeprefix('torch.')} in `return F.relu"
    (answer,) = (of for words, of, _ in operation.mutants() if words.startswith(own))
    x, weight, bias = map(torch.tensor, inputs.values())
    wanted = (x.to(dtype).double() @ weight.to(dtype).double().T + bias).relu()
    np.testing.assert_allclose(answer(inputs), wanted, rtol=1e-9)


@every
def test_the_second_wrong_answer_passes_a_tolerance_of_a_hundredth(name: str) -> None:
    """The rule of KernelBench, on its own sizes and inputs, five draws."""
    example = EXAMPLES[name]
    for seed in range(5):
        law = run(example.problem, example.answer(), seed)
        assert torch.allclose(run(example.problem, "", seed), law, 1e-4, 1e-4)
        unseen = run(example.problem, example.answer(*example.unseen), seed)
        assert torch.allclose(unseen, law, 1e-2, 1e-2)
        seen = run(example.problem, example.answer(*example.seen), seed)
        assert not torch.allclose(seen, law, 1e-2, 1e-2)


def run(problem: str, answer: str, seed: int) -> torch.Tensor:
    """Run the model, or an answer, on the problem's own inputs, with parameters of this seed."""
    names: dict[str, Any] = {}
    exec(problem + "\n" + answer, names)
    torch.manual_seed(seed)
    given = names["get_inputs"]()
    model = names["ModelNew" if answer else "Model"](*names["get_init_inputs"]())
    with torch.no_grad():
        found: torch.Tensor = model(*given)
    return found
