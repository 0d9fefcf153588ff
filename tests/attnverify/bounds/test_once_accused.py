"""
Right kernels that were once accused, each in an order of evaluation that is usual: by a bound that
lacked its term, or until they say what they do.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy import ndarray

import attnverify as av
from attnverify.backends.implementation import Implementation
from attnverify.backends.loader import load
from attnverify.bounds import bound
from attnverify.catalogue.operation import CATALOGUE
from attnverify.catalogue.pytrees import leaves
from attnverify.inputs.fixed_cases import fixed_recipe
from attnverify.isolation.second_look import bare_answer, look_again
from attnverify.judge import judging
from attnverify.judge.case import case_of
from attnverify.judge.comparison import compare
from attnverify.judge.errors import Disagreement
from attnverify.judge.judging import judge
from attnverify.precision import resolve
from attnverify.reference.oracle import evaluate_spec
from attnverify.verdicts.cell import Cell
from attnverify.verdicts.tally import Options

CAST_BIAS = """
import torch

ARRAYS = "torch"
{declared}

def alibi_attention(query, key, value, visible=None):
    H, N, M = query.shape[1], query.shape[2], key.shape[2]
    slopes = 2.0 ** (-8 * torch.arange(1, H + 1) / H)
    distance = torch.arange(M) - (M - N + torch.arange(N)[:, None])
    bias = (slopes[:, None, None] * distance).to(query.dtype)
    score = query @ key.mT * query.shape[-1] ** -0.5 + bias
    seen = distance <= 0 if visible is None else (distance <= 0) & visible
    return torch.softmax(score.masked_fill(~seen, -torch.inf), -1) @ value
"""
"""ALiBi's bias cast to the dtype of the query, which is that of the score it is added to."""


def loaded(folder: Path, text: str) -> list[Implementation]:
    (folder / "mine.py").write_text(text)
    return load(str(folder / "mine.py")).implementations


@pytest.mark.parametrize("declared", ["", 'PRECISION = {"bias": "bfloat16"}'])
def test_a_bias_in_the_dtype_of_the_query_is_declared(declared: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    accused = 0
    for implementation in loaded(tmp_path, CAST_BIAS.format(declared=declared)):
        for seed in range(4):
            sizes = {"B": 1, "H": 4, "N": 1, "M": 512, "D": 16, "E": 16}
            recipe = fixed_recipe(implementation.operation, sizes, "normal", seed=seed)
            try:
                judge(implementation, case_of(recipe, "bfloat16"))
            except Disagreement:
                accused += 1
    assert (accused > 0) == (not declared)


def share(operation: str, inputs: dict[str, Any], found: Any, dtype: str, declared: Any) -> float:
    """The worst share of its bound that an answer has used; infinite where it is wrong."""
    precision = resolve(declared, operation, operation, dtype)
    limits = leaves(bound(operation, inputs, precision))
    expected = leaves(evaluate_spec(CATALOGUE[operation], inputs))
    pairs = zip(leaves(found), expected, limits, strict=True)
    results = [compare(np.asarray(x, float), y, limit) for x, y, limit in pairs]
    return max(result.budget for result in results)


def stored(*arrays: ndarray) -> tuple[ndarray, ...]:
    return tuple(x.astype(np.float32).astype(float) for x in arrays)


def folded_softmax(score: ndarray, mask: ndarray) -> ndarray:
    """The exponential to the base 2, log2(e) folded into score and mask before they are added."""
    c = np.float32(np.log2(np.e))
    s = score.astype(np.float32) * c + mask.astype(np.float32) * c
    w = np.exp2(s - s.max(-1, keepdims=True))
    return w / w.sum(-1, keepdims=True)


@pytest.mark.parametrize("size", [1.0, 100.0, 10000.0])
def test_a_constant_may_be_folded_into_score_and_mask(size: float) -> None:
    rng = np.random.default_rng(int(size))
    score, near = size * rng.standard_normal((2, 64, 48)), rng.standard_normal((2, 64, 48))
    score, mask = stored(score, near - score)
    inputs = {"score": score, "mask": mask}
    assert share("softmax", inputs, folded_softmax(score, mask), "float32", None) <= 1
    rough = folded_softmax(score, mask * (1 + 2.0**-18))
    assert size < 100 or share("softmax", inputs, rough, "float32", None) > 1


def by_logarithm(score: ndarray) -> ndarray:
    """Weights exp(s - lse): nothing is divided by their sum."""
    s = score.astype(np.float32)
    m = s.max(-1, keepdims=True)
    return np.exp(s - (m + np.log(np.exp(s - m).sum(-1, keepdims=True))))


@pytest.mark.parametrize(("family", "is_told"), [("brink", True), ("spread", False)])
def test_an_exponent_by_the_logarithm_of_the_sum_is_declared(family: str, is_told: bool) -> None:
    shares = []
    for seed in range(6):
        recipe = fixed_recipe(CATALOGUE["softmax"], {"N": 8, "M": 33}, family, seed=seed)
        inputs = case_of(recipe, "float32").inputs
        found = by_logarithm(inputs["score"])
        assert share("softmax", inputs, found, "float32", {"lse_merge": True}) <= 1
        shares.append(share("softmax", inputs, found, "float32", None))
    assert (max(shares) > 1) == is_told


def test_what_overflows_at_a_dropped_weight_is_not_judged() -> None:
    """In half precision, dO v / (1 - p) times keep is no number there, nor is the row's mean."""
    rng = np.random.default_rng(0)
    query, key, value = (rng.standard_normal((1, 1, n, 4)).round(2) for n in (2, 3, 3))
    d_output = np.full((1, 1, 2, 4), 100.0)
    value[0, 0, 1] = 60.0
    keep = np.array([[[[True, False, True], [True, True, True]]]])
    given = {"d_output": d_output, "query": query, "key": key, "value": value}
    given = {name: x.astype(np.float16).astype(float) for name, x in given.items()}
    limits = {
        p: bound(
            "scaled_dot_product_attention_grad",
            given | {"mask": None, "keep": keep, "p": p},
            resolve(None, *2 * ("scaled_dot_product_attention_grad",), "float16"),
        )[0]
        for p in (0.9, 0.25)
    }
    assert np.isinf(limits[0.9][0, 0, 0]).all()
    assert np.isfinite(limits[0.25]).all()


TILES = """
import torch

FEATURES = {{"mask": False, "dropout": False}}

def scaled_dot_product_attention(query, key, value):
    m, size, total = torch.tensor(-torch.inf, dtype=query.dtype), 0.0, 0.0
    for k, v in zip(key.split({tile}, -2), value.split({tile}, -2)):
        s = query @ k.mT * query.shape[-1] ** -0.5
        new = torch.maximum(m, s.amax(-1, keepdim=True)){detached}
        w, decay = torch.exp(s - new), torch.exp(m - new)
        size, total, m = decay * size + w.sum(-1, keepdim=True), decay * total + w @ v, new
    return {factor} * total / size
"""
"""A running maximum, through which the gradient goes where it is not detached."""


@pytest.mark.parametrize("tile", [16, 4096])
@pytest.mark.parametrize("family", ["one_signed", "uniform"])
def test_a_maximum_may_be_differentiated(tile: int, family: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    narrower = {}
    for detached in ("", ".detach()"):
        text = TILES.format(tile=tile, detached=detached, factor=1.0)
        _, own = loaded(tmp_path, text)
        for seed in (1, 2, 7):
            sizes = {"B": 1, "H": 2, "N": 1, "M": 3000, "D": 1, "E": 8}
            judge(own, case_of(fixed_recipe(own.operation, sizes, family, seed=seed), "float32"))
        narrower[detached] = own.precision("float32").maximum == "detached"
    assert narrower == {"": False, ".detach()": True}


def test_a_factor_beside_a_differentiated_maximum_is_accused(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    text = TILES.format(tile=16, detached="", factor=1.001)
    _, own = loaded(tmp_path, text)
    with pytest.raises(Disagreement):
        judge(own, case_of(fixed_recipe(own.operation, {"M": 33, "N": 5}, "normal"), "float32"))
    assert own.precision("float32").maximum == "detached"  # what makes nothing right is not taken


GROUPED = """
import torch

FEATURES = {"mask": False, "dropout": False, "lse": False}

def grouped_attention(query, key, value):
    B, H, N, D = query.shape
    q = query.reshape(B, key.shape[1], -1, N, D)
    s = q @ key.mT[:, :, None] * D ** -0.5
    e = torch.exp(s - s.amax(-1, keepdim=True))
    return (e @ value[:, :, None] / e.sum(-1, keepdim=True)).reshape(B, H, N, -1)
"""


@pytest.mark.parametrize("family", ["one_signed", "uniform"])
def test_so_may_that_of_groups(family: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    _, own = loaded(tmp_path, GROUPED)
    sizes = {"B": 1, "G": 1, "H": 1, "N": 1, "M": 3000, "D": 1, "E": 8}
    for seed in range(12):
        judge(own, case_of(fixed_recipe(own.operation, sizes, family, seed=seed), "float32"))
    assert own.precision("float32").maximum == "differentiated"


STEP_BY_STEP = """
import torch

FEATURES = {{"mask": False, "dropout": False}}
{declared}

def scaled_dot_product_attention(query, key, value):
    s = query @ key.mT * query.shape[-1] ** -0.5
    {weights}
    return {factor} * w @ value
"""
WRITTEN = "e = torch.exp(s - s.amax(-1, keepdim=True)); w = e / e.sum(-1, keepdim=True)"
BY_LSE = "w = torch.exp(s - s.logsumexp(-1, keepdim=True))"
BY_WIDE_LSE = "w = torch.exp(s.float() - s.float().logsumexp(-1, keepdim=True)).to(s.dtype)"
BY_LIBRARY = "w = torch.softmax(s, -1)"
SLIPS = {
    "no maximum": "e = torch.exp(s); w = e / e.sum(-1, keepdim=True)",
    "sum over queries": f"{WRITTEN}; w = e / e.sum(-2, keepdim=True)",
    "last keys not in the sum": f"{WRITTEN}; w = e / e[..., :-2].sum(-1, keepdim=True)",
    "last keys not divided": f"{WRITTEN}; w = torch.cat([w[..., :-2], e[..., -2:]], -1)",
    "weights in eight bits": f"{WRITTEN}; w = w.to(torch.float8_e4m3fn).to(s.dtype)",
    "sum kept in half precision": "e = torch.exp(s - s.amax(-1, keepdim=True)); "
    "w = e / sum(e.unbind(-1))[..., None]",
}
SHORT = {"B": 2, "H": 2, "N": 5, "M": 7, "D": 4, "E": 6}
LONG = {"B": 1, "H": 1, "N": 33, "M": 130, "D": 64, "E": 64}


def judged(folder: Path, dtype: str, gradient: bool = False, **text: Any) -> tuple[int, Any]:
    """How often a file is accused that has these lines, and by which arithmetic it was judged."""
    text = {"declared": "", "factor": 1.0} | text
    own = loaded(folder, STEP_BY_STEP.format(**text))[gradient]
    accused = 0
    for family in ("identity", "needles", "brink", "large", "one_hot"):
        for sizes in (SHORT, LONG):
            for seed in range(3 * (family in own.operation.families)):
                recipe = fixed_recipe(own.operation, sizes, family, seed=seed)
                try:
                    judge(own, case_of(recipe, dtype))
                except Disagreement:
                    accused += 1
    return accused, own.precision(dtype)


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_softmax_may_be_written_out_in_half_precision(
    dtype: str, gradient: bool, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    accused, precision = judged(tmp_path, dtype, gradient, weights=WRITTEN)
    assert not accused and precision.step == precision.storage


@pytest.mark.parametrize(("dtype", "factor"), [("bfloat16", 1.03), ("float16", 1.004)])
def test_a_factor_beside_a_softmax_that_is_written_out_is_accused(
    dtype: str, factor: float, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    assert judged(tmp_path, dtype, weights=WRITTEN, factor=factor)[0]


@pytest.mark.parametrize("slip", SLIPS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_slip_in_a_softmax_that_is_written_out_is_accused(
    slip: str, dtype: str, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    assert judged(tmp_path, dtype, weights=SLIPS[slip])[0]


@pytest.mark.parametrize(
    ("weights", "declared"),
    [
        (BY_LIBRARY, ""),
        (WRITTEN, 'PRECISION = {"softmax": "float32"}'),
        (WRITTEN, 'PRECISION = "wide"'),
    ],
)
def test_steps_that_are_not_shown_or_declared_otherwise_are_not_admitted(
    weights: str, declared: str, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    given = {"weights": weights, "declared": declared, "factor": 1.02}
    accused, precision = judged(tmp_path, "bfloat16", **given)
    assert accused and precision.step is None


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_logarithm_of_the_sum_is_admitted_where_it_is_wide(dtype: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    accused, precision = judged(tmp_path, dtype, weights=BY_LSE)
    assert not accused and precision.weights == "lse"
    assert judged(tmp_path, dtype, weights=BY_LSE, factor=1 + 2e-4)[0]


def test_a_run_tells_what_steps_have_shown(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "kernel.py").write_text(STEP_BY_STEP.format(declared="", factor=1, weights=WRITTEN))
    asked = {"dtype": "float16", "failures": str(tmp_path / "failures")}
    report = av.check(tmp_path / "kernel.py", "scaled_dot_product_attention", **asked)
    told = " ".join(report.notes)
    both = '{"step": "float16", "maximum": "differentiated"}'  # of the values and of the gradient
    assert "stores each step" in told and f'PRECISION = {{"float16": {both}}}' in told


def test_steps_are_not_asked_of_what_no_rounding_explains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    asked = list[Any]()
    monkeypatch.setattr(judging, "steps_of", lambda _: asked.append(1) or [])
    own = loaded(tmp_path, STEP_BY_STEP.format(declared="", factor=1e6, weights=WRITTEN))[0]
    for family, is_asked in (("normal", False), ("large", True)):
        recipe = fixed_recipe(own.operation, SHORT, family)
        with pytest.raises(Disagreement):
            judge(own, case_of(recipe, "float32"))
        assert bool(asked) == is_asked


def test_an_arithmetic_that_the_second_look_shows_is_looked_at_once_more(tmp_path: Path) -> None:
    """What passed before it was shown is no answer that the judge's own, out of reach, made."""
    pytest.importorskip("torch")
    implementation = loaded(tmp_path, STEP_BY_STEP.format(declared="", factor=1, weights=BY_LSE))[0]
    plain = Cell(implementation, None, "float32", "values").result()
    verdicts = set[tuple[str, str]]()
    for seed in range(30):
        options = Options(seed=seed, failures=str(tmp_path / "failures"))
        found = []
        for shown in ({}, {"weights": "lse"}):
            own = replace(implementation, precisions={}, shown={})
            again = partial(replace, plain, shown=shown)
            cell = Cell(own, None, "float32", "values")
            found.append(look_again(plain, cell, options, bare_answer, again).verdict)
        verdicts.add((found[0], found[1]))
    assert verdicts == {("passed", "passed"), ("failed", "passed")}


def test_one_that_is_stored_in_half_precision_is_accused_until_it_is_declared(
    tmp_path: Path,
) -> None:
    pytest.importorskip("torch")
    assert judged(tmp_path, "bfloat16", weights=BY_LSE)[0]
    assert not judged(tmp_path, "bfloat16", weights=BY_WIDE_LSE)[0]
    declared = 'PRECISION = {"bfloat16": {"step": "bfloat16", "weights": "lse"}}'
    assert not judged(tmp_path, "bfloat16", weights=BY_LSE, declared=declared)[0]
