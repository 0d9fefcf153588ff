"""
Kernels that are causal without being told, as most tutorials' are: found out, right where the file
says so, and wrong where it says so and they are not, or are causal otherwise.
"""

from pathlib import Path

import numpy as np
import pytest

from attnverify.backends.calls.terms import is_causal_call, may_be_causal
from attnverify.catalogue.operation import CATALOGUE
from attnverify.inputs.fixed_cases import fixed_cases
from attnverify.judge.case import refuse_what_is_refused
from attnverify.verdicts.fitting import fitted_recipes, limits_draws
from tests.attnverify.verdicts.test_found_out import judge_file
from tests.attnverify.verdicts.test_terms import passes, told
from tests.support.nightly import covering

KERNEL = """
import torch
FEATURES = {{"lse": False}}
{declared}

def {name}({arguments}scale=None):
    if {behind}:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    N, M, D = q.shape[-2], k.shape[-2], q.shape[-1]
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    score = q @ k.transpose(-1, -2) * (D**-0.5 if scale is None else scale)
    i, j = torch.arange(N)[:, None] + M - N, torch.arange(M)
    hidden = {hidden}
    {chosen}
    weights = torch.nan_to_num(torch.softmax(score.masked_fill(hidden, -torch.inf), -1))
    return (weights @ v).transpose(1, 2) if {behind} else weights @ v
"""
CHOSEN = """
    one = block_indices.transpose(1, 2)
    of_heads = one.repeat_interleave(q.shape[1] // one.shape[1], 1)
    hidden = hidden | ~(of_heads[..., None] == j // block_size).any(-2)
"""
NAMES = {
    "scaled_dot_product_attention": "",
    "grouped_attention": "",
    "selected_attention": CHOSEN,
}
"""An attention with a mask, with options, and with an array of integers behind its heads."""


def kernel(name: str, declared: str = "", hidden: str = "j > i", behind: bool | None = None) -> str:
    chosen = NAMES[name]
    behind = bool(chosen) if behind is None else behind
    arguments = "q, k, v, " + "block_indices, block_size, " * bool(chosen)
    return KERNEL.format(
        name=name,
        declared=declared,
        hidden=hidden,
        chosen=chosen,
        arguments=arguments,
        behind=behind,
    )


OTHERWISE = (
    *("j > i + 1", "j >= i", "j > i - (M - N)"),
    *("(j > i) & (i != M - 2)", "(j > i) | (i - j > 32)"),
)


def lines_of(name: str) -> list[str]:
    return ['LAYOUT = "BNHD"'] * bool(NAMES[name]) + ["CAUSAL = True"]


def test_causality_and_the_order_of_axes_are_found_out_together(tmp_path: Path) -> None:
    name, lines = "scaled_dot_product_attention", ['LAYOUT = "BNHD"', "CAUSAL = True"]
    assert told(tmp_path, kernel(name, behind=True)) == lines
    assert passes(tmp_path, kernel(name, "\n".join(lines), behind=True))


@pytest.mark.parametrize(("name", "aspect"), covering(NAMES, ["values", "gradients"]))
def test_what_is_causal_untold_is_found_out_and_holds_when_said(
    name: str, aspect: str, tmp_path: Path
) -> None:
    assert told(tmp_path, kernel(name), aspect) == lines_of(name)
    assert passes(tmp_path, kernel(name, "\n".join(lines_of(name))), aspect)


@pytest.mark.usefixtures("causes_are_not_sought")
@pytest.mark.parametrize(("name", "hidden"), covering(NAMES, OTHERWISE))
def test_what_is_causal_otherwise_is_wrong(name: str, hidden: str, tmp_path: Path) -> None:
    file = kernel(name, "\n".join(lines_of(name)), hidden)
    assert judge_file(tmp_path, file, "float32").verdict == "failed"


def test_what_takes_a_mask_and_adds_another_is_not_offered_the_line(tmp_path: Path) -> None:
    file = kernel("scaled_dot_product_attention").replace(
        "q, k, v, scale", "q, k, v, mask=None, scale"
    )
    file = file.replace("hidden = j > i", "hidden = j > i if mask is None else ~mask | (j > i)")
    assert "CAUSAL = True" not in told(tmp_path, file)


@pytest.mark.parametrize("name", CATALOGUE)
def test_causal_calls_are_taken_by_the_specification(name: str) -> None:
    assert limits_draws({"causal": True})
    found = fitted_recipes(fixed_cases(name)[::5], {"causal": True})
    for recipe in found:
        refuse_what_is_refused(recipe, "float32")
    is_causal = [
        r.options.get("causal") or (r.mask or {}).get("pattern") == "causal" for r in found
    ]
    assert all(is_causal) or not may_be_causal(CATALOGUE[name])


def test_what_takes_no_causality_is_not_made_causal() -> None:
    recipes = fixed_cases("grouped_attention")
    assert any(recipe.options.get("causal") for recipe in recipes)
    found = fitted_recipes(recipes, {"causal": False})
    assert not any(recipe.options.get("causal") for recipe in found)


@pytest.mark.parametrize(
    ("name", "shape"), [("packed_attention", (7, 1, 4)), ("grouped_attention", (1, 2, 1, 4))]
)
def test_one_head_or_one_row_makes_no_call_causal_that_says_it_is_not(
    name: str, shape: tuple[int, ...]
) -> None:
    operation, inputs = CATALOGUE[name], {"query": np.zeros(shape), "offset": np.array([0])}
    assert not is_causal_call(operation, inputs | {"causal": False})
    assert is_causal_call(operation, inputs | {"causal": True})
