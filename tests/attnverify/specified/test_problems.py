"""Problem files with a class Model, as KernelBench has them, judge a class ModelNew."""

from pathlib import Path
from typing import Any

import pytest
import torch

from attnverify.backends.functions import exported_functions
from attnverify.backends.loader import load
from attnverify.specified.pytorch.problems import Problem, name_of_problem
from attnverify.specified.registering import load_module, register_file
from tests.attnverify.specified.told import told
from tests.support.run_attnverify import judged, load_backends_here

LINEAR = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)

    def forward(self, x):
        return torch.softmax(self.linear(x), dim=1)


batch_size = 1024
in_features = 8192
out_features = 4096


def get_inputs():
    return [torch.rand(batch_size, in_features).cuda()]


def get_init_inputs():
    return [in_features, out_features]
"""
ANSWER = """
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(out_features, in_features))
        self.bias = nn.Parameter(torch.zeros(out_features))

    def forward(self, x):
        return torch.softmax(x @ self.weight.T + self.bias, dim={dim})
"""
CONVOLUTION = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, num_groups):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size, stride=2)
        self.norm = nn.GroupNorm(num_groups, out_channels)

    def forward(self, x):
        return torch.relu(self.norm(self.conv(x))).amax(dim=(2, 3))


batch_size, channels = 128, 3
out_channels = 64
height = width = 32
kernel_size = 3
num_groups = 8


def get_inputs():
    return [torch.randn(batch_size, channels, height, width)]


def get_init_inputs():
    return [channels, out_channels, kernel_size, num_groups]
"""
CLASSES = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, predictions, targets):
        return nn.functional.cross_entropy(predictions, targets)


batch_size = 32768
num_classes = 4096
input_shape = (num_classes,)


def get_inputs():
    return [torch.rand(batch_size, *input_shape), torch.randint(0, num_classes, (batch_size,))]


def get_init_inputs():
    return []
"""
LOGARITHM = CLASSES.replace("cross_entropy(predictions, targets)", "relu(predictions.log())")


def written(problem: Problem) -> dict[str, str]:
    return {one.name: one.written for one in problem.arguments}


def problem(text: str, name: str = "12_some_problem.py") -> Problem:
    Path(name).write_text(text)
    return Problem(Path(name).absolute())


def test_numbers_that_may_vary_are_letters() -> None:
    linear = problem(LINEAR)
    assert linear.small == {"batch_size": 5, "in_features": 6, "out_features": 7}
    assert written(linear) == {"x": "B C", "linear_weight": "D C", "linear_bias": "D"}
    assert {kind.choices for kind in linear.arguments} == {()}, "negative numbers too"


def test_what_a_model_cannot_be_made_with_is_not_drawn() -> None:
    convolution = problem(CONVOLUTION)
    shapes = written(convolution)
    assert shapes["x"] == "B 3 D D" and shapes["conv_weight"] == "C 3 3 3"
    assert convolution.lengths["out_channels"] == (8, 16), "groups divide them"
    assert min(convolution.lengths["height"]) == 3, "a window is within it"
    for height in (1, 2, 33):
        sizes = convolution.fitted({"B": 1, "C": 8, "D": height})
        assert convolution.shapes(dict(zip(convolution.lengths, sizes.values(), strict=True)))


def test_indices_are_below_the_size_they_are_drawn_below() -> None:
    predictions, targets = problem(CLASSES).arguments
    assert (predictions.written, targets.written) == ("B C", "B")
    assert (targets.kind, targets.below, targets.least) == ("int", "C", 0)


def test_where_negative_numbers_give_none_inputs_are_drawn_as_the_file_does() -> None:
    assert problem(LOGARITHM).arguments[0].choices == (0.0, 1.0)


def test_what_stays_too_large_is_refused_and_not_made() -> None:
    large = CLASSES.replace("*input_shape)", "2 ** 14)").replace("batch_size,", "5000,")
    with pytest.raises(ValueError, match=r"at most 4,194,304 numbers where .* got 81,925"):
        problem(large).fitted({})


def test_numbers_that_must_be_alike_are_made_small_together() -> None:
    text = CLASSES.replace("4096", "256 * 128").replace(
        "cross_entropy(predictions, targets)", "relu(predictions * targets)"
    )
    text = text.replace("torch.randint(0, num_classes, (batch_size,))", "torch.rand(batch_size)")
    alike = problem(text)
    assert alike.numbers["num_classes"] == 32768
    assert alike.small["num_classes"] == alike.small["batch_size"] == 5


def test_a_part_of_a_number_is_no_number_of_times_it() -> None:
    text = CONVOLUTION.replace("stride=2", "groups=2").replace("= 128, 3", "= 128, 16")
    channels = problem(text).axes("conv_weight")[1]
    assert channels == (problem(text).small["(batch_size, channels)[1]"] // 2, "")


def test_a_number_as_a_parameter_has_no_axes() -> None:
    text = LINEAR.replace(
        "self.linear = ", "self.c = nn.Parameter(torch.tensor(2.0))\n        self.linear = "
    )
    own = problem(text.replace("self.linear(x)", "self.linear(x) * self.c"), "5_scaled.py")
    assert written(own)["c"] == ""
    assert register_file("5_scaled.py") == ("scaled",)


def test_the_name_is_that_of_the_file() -> None:
    assert name_of_problem(Path("1_Square_matrix_multiplication_.py")) == (
        "square_matrix_multiplication"
    )


def test_a_model_that_does_not_run_is_refused() -> None:
    with pytest.raises(ValueError, match=r"12_some_problem.py: wanted a Model that runs on get_in"):
        problem(LINEAR.replace("self.linear(x)", "self.linear(x.T)")).fitted({})


def test_an_answer_is_judged_and_a_wrong_one_told_in_the_words_of_forward(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    load_backends_here(monkeypatch)
    Path("5_linear.py").write_text(LINEAR)
    Path("right.py").write_text(ANSWER.format(dim=1))
    Path("wrong.py").write_text(ANSWER.format(dim=0))
    right = judged("right.py", "--spec", "5_linear.py", "-k", "values")
    assert right.verdicts() == {("linear", "values"): "passed"}
    wrong = load("wrong.py").implementations[0]
    words = "as `torch.softmax(self.linear(x), dim=0)`, 5_linear.py:12"
    assert words in told(wrong)


TWO = {
    "1_doubled.py": ("", "return 2 * x"),
    "2_scaled.py": ("self.c = nn.Parameter(torch.ones(()))", "return self.c * x"),
    "3_halved.py": ("", "return x / 2"),
}
"""By its file: what a model is made of, and what it gives."""
CLASS = """
import torch
import torch.nn as nn


class {name}(nn.Module):
    def __init__(self):
        super().__init__()
        {made}

    def forward(self, x):
        {gives}
"""
REST = """

def get_inputs():
    return [torch.rand(50, 60)]


def get_init_inputs():
    return []
"""


def answered(file: str, problem: str) -> dict[str, Any]:
    """Write the right answer of a problem to a file; the functions that it answers with."""
    made, gives = TWO[problem]
    Path(file).write_text(CLASS.format(name="ModelNew", made=made, gives=gives))
    return exported_functions([load_module(Path(file).absolute())])


def test_each_of_several_problems_has_its_own_answer() -> None:
    for file, (made, gives) in TWO.items():
        Path(file).write_text(CLASS.format(name="Model", made=made, gives=gives) + REST)
        register_file(file)
    x = torch.ones(3, 4)
    assert [*answered("doubled_fast.py", "1_doubled.py")] == ["doubled"]
    assert [*answered("3_halved_new.py", "3_halved.py")] == ["halved"]
    (by_parameters,) = answered("answer.py", "2_scaled.py").items()
    assert by_parameters[0] == "scaled"
    assert by_parameters[1](x=x, c=torch.tensor(3.0)).equal(3 * x)
    with pytest.raises(ValueError, match=r"ModelNew of other.py answers one of doubled, halved"):
        answered("other.py", "1_doubled.py")


def test_other_parameters_are_refused_by_name() -> None:
    own = problem(LINEAR)
    with pytest.raises(ValueError, match=r"ModelNew: wanted the parameters linear_weight \(7, 6\)"):
        own.answered_by(lambda *sizes: torch.nn.Linear(1, 1))(
            torch.ones(5, 6), torch.ones(7, 6), torch.ones(7)
        )
