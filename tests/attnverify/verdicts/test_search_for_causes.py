"""What a finding says of its cause, and what is left of it where the search for one breaks off."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnverify.backends.loader import load
from attnverify.catalogue.operation import CATALOGUE
from attnverify.diagnosis.cause import Cause
from attnverify.diagnosis.diagnose import diagnose
from attnverify.inputs.fixed_cases import fixed_recipe
from attnverify.judge.case import Case, case_of
from attnverify.judge.errors import DeviceLost, Disagreement
from attnverify.judge.judging import judge
from attnverify.verdicts import columns, findings
from attnverify.verdicts.cell import cells
from attnverify.verdicts.columns import judge_cell
from attnverify.verdicts.tally import Options
from tests.attnverify.diagnosis.test_two_mistakes import causes_in
from tests.attnverify.verdicts.test_found_out import judge_file
from tests.support.quick_search import cell_of
from tests.support.sample_backends import cells_of, implementation

LEARNED = "learned_relative_attention_grad"


def told_of(folder: Path, text: str, aspect: str = "values", **how: Any) -> list[str]:
    """The causes of what draws show of a file's function, without a run."""
    cell = cell_of(folder, text, "float32", aspect)
    own = cell.gradient if aspect == "gradients" else cell.implementation
    assert own is not None
    return [cause.words for cause in causes_in(own, **how)]


def learned_case() -> Case:
    sizes = {"B": 1, "H": 2, "N": 3, "M": 5, "D": 2, "E": 2, "P": 6}
    return case_of(fixed_recipe(CATALOGUE[LEARNED], sizes), "float32")


def with_one_wrong_row(case: Case) -> Any:
    """Gradients of which one row of the table's is wrong."""

    def gradients(**given: Any) -> Any:
        found = list(case.expected)
        found[3] = found[3].copy()
        found[3][7] += 1.0
        return tuple(np.asarray(x, np.float32) for x in found)

    return gradients


def test_a_row_of_a_table_is_told_by_its_position() -> None:
    case = learned_case()
    own = replace(
        implementation("softmax_right"),
        operation=CATALOGUE[LEARNED],
        function=with_one_wrong_row(case),
    )
    with pytest.raises(Disagreement):
        judge(own, case)
    told = str(diagnose(own, [case], among=[]))
    assert "the gradient by key_pos_embeddings: in position 7 alone" in told, told


def test_what_was_seen_in_another_call_tells_its_sizes() -> None:
    case = learned_case()
    seen = Cause("wrong: row 2").seen_in(case)
    assert str(seen) == "wrong: row 2 (seen with B=1 D=2 E=2 H=2 M=5 N=3 P=6)"
    assert str(seen.beside(case)) == "wrong: row 2"


@pytest.mark.parametrize("error", [TypeError("len() of unsized object"), DeviceLost("gone")])
def test_a_search_that_breaks_off_leaves_the_finding(
    error: Exception, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(findings, "diagnose", broken)
    (cell,) = (cell for cell in cells_of("softmax_zeros") if cell.aspect == "values")
    if isinstance(error, DeviceLost):
        with pytest.raises(DeviceLost):
            judge_cell(cell, Options("quick", failures=str(tmp_path)))
        return
    result = judge_cell(cell, Options("quick", failures=str(tmp_path)))
    assert result.verdict == "failed"
    assert "mistake of attnverify (TypeError: len()" in str(result.findings[0])
    assert "elements differ from the specification" in str(result.findings[0])


def test_checks_that_compare_with_bounds_tell_how_much_they_use() -> None:
    used = {
        name: columns.run_check(
            {"name": name}, lambda *_, x=x: x, implementation("softmax_right"), "float32"
        )
        for name, x in (("large", 0.75), ("relation", None))
    }
    assert {name: tally.budget for name, (tally, _) in used.items()} == {
        "large": 0.75,
        "relation": 0.0,
    }


def test_a_check_that_fails_tells_by_how_much() -> None:
    def check(*_: Any) -> None:
        raise Disagreement("large: wrong", budget=3.5)

    tally, error = columns.run_check(
        {"name": "large"}, check, implementation("softmax_right"), "float32"
    )
    assert tally.budget == 3.5 and error is not None


HALF_DETACHED = """
import torch
PRECISION = "eager"
def softmax(score, mask=None):
    if mask is None:
        return torch.softmax(score.detach(), -1)
    score = score.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else score + mask
    score = score.masked_fill((score == -torch.inf).all(-1, keepdim=True), 0.0)
    return torch.softmax(score, -1)
"""


def test_calls_without_a_gradient_are_told_by_the_smallest(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "half.py").write_text(HALF_DETACHED)
    found = cells([load(str(tmp_path / "half.py"))], (), ("float32",))
    (cell,) = (cell for cell in found if cell.aspect == "gradients")
    result = judge_cell(cell, Options("quick", failures=str(tmp_path / "failures")))
    (told,) = (finding for finding in result.findings if finding.kind == "no gradient")
    # of one column the gradient is 0, and none is right
    assert "without one:\n  inputs: d_output (2, 3), score (2, 3)" in str(told.message)
    assert told.record is not None and "mask" not in told.record.words
    assert list((tmp_path / "failures").iterdir())


KEEPING = """
KEPT = {}

def softmax(score, mask=None):
    return KEPT.setdefault(score.shape, right.softmax(score, mask))
"""


def test_what_is_kept_from_earlier_calls_is_the_cause(tmp_path: Path) -> None:
    (tmp_path / "keeping.py").write_text(f"from attnverify import numpy_ref as right\n{KEEPING}")
    backend = load(str(tmp_path / "keeping.py"))
    (cell,) = (c for c in cells([backend], (), ("float32",)) if c.aspect == "values")
    result = judge_cell(cell, Options("quick", failures=str(tmp_path)))
    assert result.findings
    for found in result.findings:
        assert found.cause is not None and "kept from earlier calls" in found.cause.words


WITH_A_NUMBER = """
import math
import torch

FEATURES = {{"float mask": False}}


def scaled_dot_product_attention(query, key, value, mask=None):
    D = query.shape[-1]
    scores = query @ key.transpose(-1, -2) {scale}
    mask = torch.ones_like(scores) > 0 if mask is None else mask
    scores = scores.masked_fill(~mask, -1e30)
    highest = scores.amax(-1, keepdim=True)
    e = torch.exp(scores - highest) * mask
    total = e.sum(-1, keepdim=True) + {added}
    return e / (total + (total == 0)) @ value
"""


@pytest.mark.parametrize(
    ("scale", "added", "told"),
    [
        ("/ math.sqrt(D + 1)", "0", "scores scaled by 1/sqrt(D +1)"),
        ("/ (math.sqrt(D) + 0.1)", "0", "scores scaled by 1/(sqrt(D) +0.1)"),
        ("/ math.sqrt(-(-D // 16) * 16)", "0", "1/sqrt(D rounded up to a multiple of 16)"),
        (
            "/ math.sqrt(2 ** math.ceil(math.log2(D)))",
            "0",
            "1/sqrt(D rounded up to a power of two)",
        ),
        ("/ math.sqrt(max(D, 16))", "0", "scores scaled by 1/sqrt(D), D at least 16,"),
        ("/ math.sqrt(min(D, 32))", "0", "scores scaled by 1/sqrt(D), D at most 32,"),
        ("/ math.sqrt(D) / 30; scores = 30 * torch.tanh(scores)", "0", "scores capped by 30,"),
        ("/ math.sqrt(D); scores = scores.clamp(-10, 10)", "0", "scores clipped to -10 and 10"),
        ("/ math.sqrt(D); scores = scores.clamp(max=5)", "0", "scores above 5 taken for 5"),
        ("/ math.sqrt(D)", "0.001", "0.001 added to the sum of the softmax"),
        ("/ math.sqrt(D)", "torch.exp(-highest)", "1 added to the sum of the exponentials"),
    ],
)
def test_a_number_that_the_law_does_not_have_is_told(
    scale: str, added: str, told: str, tmp_path: Path
) -> None:
    text = WITH_A_NUMBER.format(scale=scale, added=added)
    causes = told_of(tmp_path, text)
    assert causes and all(told in each for each in causes), causes


WITH_A_SLIP = """
import math
import torch
import torch.nn.functional as F

FEATURES = {{"float mask": False}}


def scaled_dot_product_attention(query, key, value, mask=None):
    {first}
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    is_bare = mask is None
    mask = torch.ones_like(scores) > 0 if is_bare else mask
    scores = {hidden}
    weights = {weights}
    return (weights * mask.any(-1, keepdim=True)) @ value
"""
SLIPS: dict[str, dict[str, str]] = {
    "hidden scores at -1, which is a number": {"hidden": "scores.masked_fill(~mask, -1.0)"},
    "hidden scores at 0.001, which is a number": {"hidden": "scores.masked_fill(~mask, 1e-3)"},
    "-3 added to hidden scores": {"hidden": "scores - 3.0 * ~mask"},
    "value of the keys in reverse order": {"first": "value = value.flip(-2)"},
    "value of the next key, the first behind the last": {"first": "value = value.roll(-1, -2)"},
    "each row of query divided by its length first": {
        "first": "query = F.normalize(query, dim=-1)"
    },
    "each row of query and key standardised": {
        "first": "query, key = (F.layer_norm(x, x.shape[-1:]) for x in (query, key))"
    },
    "exponentials that are not divided by their sum": {
        "weights": "torch.exp(scores - scores.amax(-1, keepdim=True))"
    },
    "a softmax over the queries and keys together": {
        "weights": "torch.softmax(scores.flatten(-2), -1).reshape(scores.shape)"
    },
    "a mask of which True means hidden beside rows without keys": {
        "hidden": "scores.masked_fill(mask != is_bare, -1e30)"
    },
    "0.01 added to each weight, to those of hidden keys too": {
        "weights": "torch.softmax(scores, -1) + 0.01"
    },
    "scores below 0 multiplied by 0.2": {"weights": "torch.softmax(F.leaky_relu(scores, 0.2), -1)"},
    "weights below 0.01 taken for 0": {
        "weights": "F.threshold(torch.softmax(scores, -1), 0.01, 0.0)"
    },
    "the last key of each tile of 64 left out": {
        "hidden": "scores.masked_fill(~mask | (torch.arange(key.shape[2]) % 64 == 63), -1e30)"
    },
    "a maximum of all rows of all heads": {
        "weights": "torch.exp(scores - scores.masked_fill(~mask, -torch.inf).amax());"
        " weights = weights / weights.sum(-1, True)"
    },
}


@pytest.mark.parametrize("told", SLIPS)
def test_a_slip_in_one_line_is_told_as_itself(told: str, tmp_path: Path) -> None:
    right = {
        "first": "",
        "hidden": "scores.masked_fill(~mask, -1e30)",
        "weights": "torch.softmax(scores, -1)",
    }
    text = WITH_A_SLIP.format(**right | SLIPS[told])
    causes = told_of(tmp_path, text)
    assert causes and all(told in each for each in causes), causes


@pytest.mark.parametrize(
    ("step", "told"),
    {
        -1: "a causal mask that hides the query's own key",
        1: "a causal mask that shows one key beyond",
    }.items(),
)
def test_causality_that_ends_a_key_too_early_or_late(step: int, told: str, tmp_path: Path) -> None:
    text = f"""
import torch

def causal_attention(q, k, v):
    score = q @ k.mT / q.shape[-1] ** 0.5
    n, m = score.shape[-2:]
    seen = torch.ones(n, m).tril(m - n + {step}) > 0
    return score.masked_fill(~seen, -torch.inf).softmax(-1).nan_to_num() @ v
"""
    findings = judge_file(tmp_path, text, "float32", "values").findings
    assert findings and all(
        str(one.cause).startswith(f"equals the specification with {told} (") for one in findings
    )


def test_exponentials_without_a_maximum_are_told_where_only_rows_far_below_0_failed(
    tmp_path: Path,
) -> None:
    text = """
import torch

FEATURES = {"mask": False}

def scaled_dot_product_attention(query, key, value):
    e = torch.exp(query @ key.mT / query.shape[-1] ** 0.5)
    return (e / e.sum(-1, keepdim=True)) @ value
"""
    findings = judge_file(tmp_path, text, "float32", "values").findings
    assert findings and "without the maximum subtracted" in str(findings[0].cause)


@pytest.mark.parametrize(
    ("where", "new"),
    {"first": "own if start == 0 else high", "last": "own"}.items(),
)
def test_a_maximum_of_one_tile_alone_is_told(where: str, new: str, tmp_path: Path) -> None:
    """It overflows where the scores rise, or fall, from one tile of 64 keys to the next."""
    text = f"""
import torch

FEATURES = {{"mask": False}}

def scaled_dot_product_attention(query, key, value):
    high, total, acc = -torch.inf, 0.0, 0.0
    for start in range(0, key.shape[2], 64):
        score = query @ key[:, :, start : start + 64].mT / query.shape[-1] ** 0.5
        own = score.amax(-1, keepdim=True)
        new = {new}
        p, scale = torch.exp(score - new), torch.exp(high - new)
        total = total * scale + p.sum(-1, keepdim=True)
        acc = acc * scale + p @ value[:, :, start : start + 64]
        high = new
    return acc / total
"""
    findings = judge_file(tmp_path, text, "float32", "values").findings
    assert findings and f"a maximum of the {where} keys alone" in str(findings[0].cause)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [("* keep * p", "p (1 - p)"), ("* keep / (1 - p) ** 2", "1 / (1 - p)")],
)
def test_a_factor_that_is_made_of_a_draw_is_told_by_it(
    wrong: str, told: str, tmp_path: Path
) -> None:
    text = f"""
import torch

class Dropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weights, keep, p):
        ctx.keep, ctx.p = keep, p
        return weights * keep / (1 - p)

    @staticmethod
    def backward(ctx, d_output):
        keep, p = ctx.keep, ctx.p
        return d_output {wrong}, None, None

def dropout(weights, keep=None, p=0.0):
    return weights.clone() if keep is None else Dropped.apply(weights, keep, p)
"""
    findings = judge_file(tmp_path, text, "float32", "gradients").findings
    assert findings and f"off by a factor of {told}, p the share" in str(findings[0].cause)


def test_the_search_for_the_cause_of_a_wrong_mask_does_not_break_off(tmp_path: Path) -> None:
    text = """
import numpy as np

def causal_mask(N, M):
    return np.tri(N, M, abs(M - N), dtype=bool)
"""
    findings = judge_file(tmp_path, text, "bool", "values").findings
    assert findings and "broke off" not in str(findings[0].cause)


def test_the_number_of_hidden_scores_is_told_only_where_another_would_not_do(
    tmp_path: Path,
) -> None:
    text = WITH_A_SLIP.format(
        first="", hidden="scores.masked_fill(~mask, -1.0)", weights="torch.softmax(scores, -1)"
    )
    found = judge_file(tmp_path, text, "float32", "gradients").findings
    assert len({each.name for one in found if one.cause for each in one.cause.explanations}) == 1
    assert not any("scores at 0" in str(one.cause) for one in found)


BACKWARD = """
import math
import torch

FEATURES = {{"float mask": False}}


class Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query, key, value, mask):
        scores = query @ key.mT / math.sqrt(query.shape[-1])
        scores = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
        weights = torch.softmax(scores, -1).nan_to_num(0.0)
        ctx.save_for_backward(query, key, value, weights)
        return weights @ value

    @staticmethod
    def backward(ctx, d_output):
        query, key, value, weights = ctx.saved_tensors
        d_weights, scale = d_output @ value.mT, 1 / math.sqrt(query.shape[-1])
        delta = (weights * d_weights).sum(-1, keepdim=True)
        d_scores = weights * (d_weights - delta)
        d_value = weights.mT @ d_output
        return {query} @ key * scale, {key}.mT @ query * scale, {value}, None


def scaled_dot_product_attention(query, key, value, mask=None):
    return Attention.apply(query, key, value, mask)
"""
BACKWARDS: dict[str, dict[str, str]] = {
    "the gradient by key as of the specification with no row mean in the softmax's gradient": {
        "key": "(weights * d_weights)"
    },
    "the gradient of the scores clipped to -0.1 and 0.1": {
        "query": "d_scores.clamp(-0.1, 0.1)",
        "key": "d_scores.clamp(-0.1, 0.1)",
    },
    "the gradient by value as of the specification with that of the next head": {
        "value": "d_value.roll(-1, 1)"
    },
}


NIGHTLY = ("the gradient by value as of the specification with that of the next head",)
"""It takes a minute, and is found as that by key is: output by output."""


@pytest.mark.parametrize(
    "told", [pytest.param(x, marks=[pytest.mark.thorough] * (x in NIGHTLY)) for x in BACKWARDS]
)
def test_a_slip_in_a_backward_is_told_as_itself(told: str, tmp_path: Path) -> None:
    right = {"query": "d_scores", "key": "d_scores", "value": "d_value"}
    text = BACKWARD.format(**right | BACKWARDS[told])
    causes = told_of(tmp_path, text, "gradients")
    assert any(told in each for each in causes), causes


LAYER = """
import math
import torch


def multi_head_attention(
    query, key, value, parameters, num_heads, attn_mask=None, key_padding_mask=None
):
    def project(x, name, bias):
        bias = parameters.get(f"{bias}.bias")
        return torch.nn.functional.linear(x, parameters[f"{name}.weight"], bias)

    def heads(*of):
        return project(*of).unflatten(-1, (num_heads, -1)).transpose(1, 2)

    q, k = heads(query, "q_proj", "k_proj"), heads(key, "k_proj", "k_proj")
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if key_padding_mask is not None:
        scores = scores.masked_fill(key_padding_mask[:, None, None], -torch.inf)
    if attn_mask is not None:
        mask = attn_mask.unflatten(0, (-1, num_heads)) if attn_mask.ndim == 3 else attn_mask
        hidden = mask.dtype == torch.bool
        scores = scores.masked_fill(mask, -torch.inf) if hidden else scores + mask
    weights = torch.softmax(scores, -1).nan_to_num(0.0)
    mixed = (weights @ heads(value, "v_proj", "v_proj")).transpose(1, 2).flatten(2)
    return project(mixed, "out_proj", "out_proj"), weights
"""


def test_a_query_with_the_bias_of_the_keys_is_no_mistake_of_the_values(tmp_path: Path) -> None:
    """What leaves all scores equal is 0 on both sides: one may take what belongs to the other."""
    causes = told_of(tmp_path, LAYER, among=[])
    assert causes and not any("projections of values" in each for each in causes), causes


BY_AUTOGRAD = """
import torch

def scaled_dot_product_attention(query, key, value):
    return torch.softmax(query @ key.transpose(-1, -2), -1) @ value
"""


def test_a_gradient_is_asked_first_for_what_is_told_of_its_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    asked: list[frozenset[str]] = []

    def noted(*given: Any, told: frozenset[str], **others: Any) -> Cause | None:
        asked.append(told)
        return diagnose(*given, told=told, **others)

    monkeypatch.setattr(findings, "diagnose", noted)
    (tmp_path / "mine.py").write_text(BY_AUTOGRAD)
    found = cells([load(str(tmp_path / "mine.py"))], (), ("float32",))
    options = Options("quick", failures=str(tmp_path))
    values, gradients = (
        judge_cell(next(cell for cell in found if cell.aspect == aspect), options)
        for aspect in ("values", "gradients")
    )
    told = values.findings[0].causes
    assert told and gradients.findings[0].causes == told
    assert asked[0] == frozenset() and asked[-1] == told


NONE_FOR_A_MASK = """
import torch

class Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query, key, value, mask):
        score = query @ key.mT * query.shape[-1] ** -0.5
        if mask is not None:
            mask = torch.where(mask, 0.0, -torch.inf) if mask.dtype == torch.bool else mask
            score = score + mask
        weights = torch.softmax(score, -1).nan_to_num(0.0)
        ctx.save_for_backward(query, key, value, weights)
        return weights @ value

    @staticmethod
    def backward(ctx, d):
        query, key, value, weights = ctx.saved_tensors
        d_weights = d @ value.mT
        d_score = weights * (d_weights - (d_weights * weights).sum(-1, keepdim=True))
        d_score = d_score * query.shape[-1] ** -0.5
        return d_score @ key, d_score.mT @ query, weights.mT @ d, None

def scaled_dot_product_attention(query, key, value, mask=None):
    return Attention.apply(query, key, value, mask)
"""


def test_none_in_place_of_a_gradient_is_said(tmp_path: Path, causes_are_not_sought: None) -> None:
    """That nothing reaches the mask was told, and not what the file had returned."""
    pytest.importorskip("torch")
    found = judge_file(tmp_path, NONE_FOR_A_MASK, "float32", "gradients").findings
    assert [each.notes[0] for each in found] == [
        "None was returned for the gradient by mask, and counts as 0"
    ]


TWO_SLIPS = """
import torch

def scaled_dot_product_attention(query, key, value, mask=None):
    score = query @ key.mT / query.shape[-1]
    if mask is not None:
        score = score.masked_fill(mask, -torch.inf) if mask.dtype == torch.bool else score + mask
    return torch.softmax(score, -1).nan_to_num(0.0) @ value
"""


def test_what_is_replayed_has_the_mask_that_the_cause_speaks_of(tmp_path: Path) -> None:
    """A mask of which True means hidden was shown by a call without one."""
    pytest.importorskip("torch")
    found = judge_file(tmp_path, TWO_SLIPS, "float32", "values").findings
    joint = [each for each in found if each.cause and each.cause.together]
    assert joint
    for each in joint:
        assert each.record and each.record.recipe["mask"]["form"] == "bool", str(each)
        assert each.record.words in str(each)
    (wrong,) = (each for each in joint if each.kind == "wrong number")
    assert wrong.record and wrong.record.recipe["sizes"]["M"] > 1
