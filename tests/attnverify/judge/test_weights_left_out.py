"""
A kernel that returns None for the weights has its output judged.
"""

from pathlib import Path

import pytest

from attnverify.backends.implementation import Implementation
from attnverify.backends.loader import load
from attnverify.catalogue.operation import CATALOGUE
from attnverify.checks.projected_factors import measure_projected
from attnverify.inputs.fixed_cases import fixed_cases
from attnverify.judge.case import case_of
from attnverify.judge.errors import Disagreement
from attnverify.judge.judging import judge

MULTI_HEAD = """
from attnverify import numpy_ref

PRECISION = "wide"
{declared}


def multi_head_attention(**inputs):
    output, _ = numpy_ref.multi_head_attention(**inputs)
    return output * {factor}, None
"""
DECLARED = 'FEATURES = {"weights": False}'


def kernel(folder: Path, declared: str, factor: float) -> Implementation:
    file = folder / "mine.py"
    file.write_text(MULTI_HEAD.format(declared=declared, factor=factor))
    (found,) = load(str(file)).implementations
    return found


CASE = case_of(fixed_cases("multi_head_attention")[0], "float32")


def test_the_output_is_judged_where_weights_are_said_to_be_left_out(tmp_path: Path) -> None:
    assert judge(kernel(tmp_path, DECLARED, 1.0), CASE).judged


@pytest.mark.parametrize("declared", ["", DECLARED])
def test_a_wrong_output_is_told_before_the_weights(declared: str, tmp_path: Path) -> None:
    with pytest.raises(Disagreement) as told:
        judge(kernel(tmp_path, declared, 1.1), CASE)
    assert told.value.kind == "wrong number" and str(told.value).startswith("output[0]: ")


@pytest.mark.parametrize("declared", ["", 'FEATURES = {"weights": True}'])
def test_weights_that_are_not_said_to_be_left_out_are_missed(declared: str, tmp_path: Path) -> None:
    with pytest.raises(Disagreement, match=r"wanted the weights, .* got None; .*FEATURES = "):
        judge(kernel(tmp_path, declared, 1.0), CASE)


def test_layers_of_multi_head_attention_have_weights_and_their_gradients_have_none() -> None:
    found = {name for name, operation in CATALOGUE.items() if operation.second_result == "weights"}
    assert found == {"multi_head_attention", "multi_head_self_attention"}


TRAINED = """
import torch

FEATURES = {{"weights": False}}


def multi_head_self_attention(x, parameters, num_heads):
    heads = [
        torch.nn.functional.linear(x, parameters[f"{{n}}.weight"], parameters.get(f"{{n}}.bias"))
        .unflatten(-1, (num_heads, -1))
        .transpose(1, 2)
        for n in ("q_proj", "k_proj", "v_proj")
    ]
    out = torch.nn.functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)
    out = {change}
    last = (parameters.get("out_proj." + part) for part in ("weight", "bias"))
    return torch.nn.functional.linear(out, *last), None
"""
GRADIENT = "multi_head_self_attention_grad"


def trained(folder: Path, change: str) -> Implementation:
    file = folder / "mine.py"
    file.write_text(TRAINED.format(change=change))
    return next(i for i in load(str(file)).implementations if i.operation.name == GRADIENT)


def test_nothing_arrives_at_weights_that_are_left_out(tmp_path: Path) -> None:
    right = trained(tmp_path, "out")
    for recipe in fixed_cases(GRADIENT)[:3]:
        assert judge(right, case_of(recipe, "float32")).judged
    assert not any(each.significant for each in measure_projected(right, "float32", 0).values())


def test_a_wrong_gradient_is_told_where_weights_are_left_out(tmp_path: Path) -> None:
    wrong = trained(tmp_path, "out + 0.5 * (out - out.detach())")
    with pytest.raises(Disagreement, match="differ"):
        judge(wrong, case_of(fixed_cases(GRADIENT)[0], "float32"))
