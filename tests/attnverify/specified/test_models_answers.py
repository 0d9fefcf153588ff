"""
What answers that language models wrote to problems of KernelBench have shown, in our own words: a
right one accused, errors of ours, and wrong ones that pass the benchmark's check.
"""

from pathlib import Path

import pytest

from attnverify.backends.implementation import Implementation
from attnverify.catalogue.field_words import LAYOUT
from attnverify.catalogue.operation import CATALOGUE
from attnverify.inputs.conditions import parse_condition
from attnverify.inputs.masks import visible_pairs
from attnverify.inputs.memory_layouts import LAYOUTS
from attnverify.inputs.recipe import Recipe
from attnverify.judge.case import case_of
from attnverify.judge.judging import judge
from attnverify.specified.registering import register_file
from tests.attnverify.specified.told import answered_in_file, cases, failing, told

PROBLEM = """
import math
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, width, features, constant):
        super().__init__()
        self.linear = nn.Linear(width, features)
        self.constant = nn.Parameter(torch.tensor(constant))
        self.gelu = nn.GELU()
        self.far = nn.PairwiseDistance()

    def forward(self, x):
        {}


rows = 16
width = 32
features = 24
constant = 2.0


def get_inputs():
    return [torch.randn(rows, width)]


def get_init_inputs():
    return [width, features, constant]
"""


def answered(problem: str, answer: str, before: str = "") -> list[Implementation]:
    """The answer to a problem whose forward gives one, and the gradient of the answer."""
    Path("problem.py").write_text(PROBLEM.format(f"return {problem}"))
    register_file("problem.py")
    text = PROBLEM.replace("class Model", f"{before}\n\n\nclass ModelNew")
    return answered_in_file(text.format(f"return {answer}"))


FLAT = """
def flat(x):
    strides = [math.prod(x.shape[k + 1 :]) for k in range(x.ndim)]
    return torch.as_strided(x, x.shape, strides, x.storage_offset())
"""
BY_TANH = "erf approximated by tanh, as GELU with approximate='tanh' has it,"
BY_SIGMOID = "erf approximated by a sigmoid, as GELU by sigmoid(1.702 x),"


@pytest.mark.parametrize(
    ("problem", "answer", "cause"),
    [
        ("self.gelu(self.linear(x))", "F.gelu(self.linear(x), approximate='tanh')", BY_TANH),
        ("self.gelu(x)", "x * torch.sigmoid(1.702 * x)", BY_SIGMOID),
        (
            "torch.selu(x)",
            "torch.where(x > 0, 1.0507009873554805 * x, 1.6732632423543772 * torch.expm1(x))",
            "the factor 1.051 only where the condition holds",
        ),
        ("x + self.constant", "(x + self.constant) * self.constant", "output times `constant`"),
        ("F.elu(x, 0.9)", "F.elu(x, 1.3)", "the factor 0.9 as 1.3"),
        ("F.elu(x, 0.9)", "F.elu(flat(x), 1.3)", "the factor 0.9 as 1.3"),
        (
            "self.far(x, x.flip(0)) + self.far(x, x.roll(1, 0))",
            "F.pairwise_distance(x, x.flip(0), eps=3e-5)"
            " + F.pairwise_distance(x, x.roll(1, 0), eps=3e-5)",
            "the term 1e-06 as 3e-05",
        ),
        ("F.leaky_relu(x, 0.01)", "F.leaky_relu(x, 0.027)", "the factor 0.01 as 0.027"),
    ],
)
def test_what_a_wrong_answer_computes_is_told(problem: str, answer: str, cause: str) -> None:
    own = answered(problem, answer, FLAT)[0]
    assert cause in told(own, cases(own.operation.name))


def test_a_parameter_lies_as_a_model_makes_it() -> None:
    """A kernel that takes its weight for contiguous is right: what a module holds is."""
    linear = "F.linear(x, flat(self.linear.weight), self.linear.bias)"
    (answer, _) = answered("self.linear(x)", linear, FLAT)
    assert failing(answer, cases(answer.operation.name)) == []


def test_a_parameter_without_axes_is_drawn() -> None:
    text = "torch.min(self.linear(x), self.constant) - self.constant"
    for answer in answered(text, text):
        for family in ("spread", "large", "lattice"):
            usual = next(CATALOGUE[answer.operation.name].fixed())
            values = {"family": family, "seed": 1}
            recipe = Recipe(answer.operation.name, **usual | {"values": values})
            judge(answer, case_of(recipe, "float32"))


CUT = """
class Cut(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, d):
        return None
"""


def test_a_gradient_that_is_cut_off_is_told_by_what_it_does_not_reach() -> None:
    """Not as a parameter that is 0, by which the gradient of what lies before it is 0 too."""
    problem = "self.linear(x) * self.constant"
    gradient = answered(problem, "Cut.apply(self.linear(x)) * self.constant", CUT)[1]
    assert told(gradient) == "no gradient reaches x, linear_weight and linear_bias: 0 everywhere"


def test_an_operation_from_outside_has_no_scores() -> None:
    """An argument called x was taken for a query, and what is called mask added to its shape."""
    (answer, _) = answered("self.linear(x)", "self.linear(x)")
    for case in cases(answer.operation.name):
        assert visible_pairs(case.operation, case.inputs) is None


def test_how_an_input_lies_is_said_so_that_it_can_be_read_back() -> None:
    (answer, _) = answered("self.linear(x)", "self.linear(x)")
    usual = next(CATALOGUE[answer.operation.name].fixed())
    for kind in LAYOUTS:
        recipe = Recipe(answer.operation.name, **usual | {"layout": {"kind": kind, "seed": 1}})
        case = case_of(recipe, "float32")
        assert parse_condition(f"x is {LAYOUT[kind]}")(case)
        assert parse_condition(f"the inputs are all {LAYOUT[kind]}")(case)
