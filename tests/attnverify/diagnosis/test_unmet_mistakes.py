"""
Kernels with one mistake of a kind that is searched for: temperatures, shifted heads and tables,
gradients of another forward, maxima, padding, sentinels, the stages of layers, roundings.

What must be told of each was written before the diagnosis was changed for any of them.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from numpy import ndarray

from attnverify.diagnosis.diagnose import diagnose
from attnverify.diagnosis.matching.best import explaining
from attnverify.diagnosis.matching.other_forwards import Projection, find_other_forward
from attnverify.diagnosis.mistakes.narrow_operands import is_allowed
from attnverify.inputs.fixed_cases import fixed_recipe
from attnverify.judge.case import case_of
from attnverify.judge.judging import is_right
from attnverify.judge.observation import observe
from attnverify.precision import FORMATS
from attnverify.reference import attention, gradients, layers
from tests.attnverify.diagnosis.test_two_mistakes import (
    ALIBI,
    MHA,
    PLACE,
    SDPA,
    attend,
    backward,
    causes_of,
    draws_of,
    implementation_of,
    mha,
    sdpa,
    shares,
)
from tests.support.judge_text import judged
from tests.support.quick_search import cell_of

XL, XL_LAYER = "transformer_xl_attention", "transformer_xl_layer"
LEARNED, LEARNED_LAYER = "learned_relative_attention", "relative_multi_head_attention"


def over_maximum(top: Callable[[ndarray], Any]) -> Callable[[ndarray], ndarray]:
    """A softmax in float32 that subtracts something else than the maximum of each row."""

    def weigh(score: ndarray) -> ndarray:
        with np.errstate(all="ignore"):
            return shares(np.exp(score - top(score)).astype(np.float32))

    return weigh


def from_number(number: float) -> Callable[[ndarray], Any]:
    return lambda score: np.maximum(score.max(-1, keepdims=True), number)


def never_lowered(score: ndarray) -> ndarray:
    """The maximum of a row is that of the rows before it too."""
    top = np.maximum.accumulate(score.max(-1, keepdims=True), axis=-2)
    return np.where(np.isneginf(top), 0, top)


def rounded(dtype: Any) -> Callable[[ndarray], ndarray]:
    return lambda x: np.asarray(x).astype(dtype).astype(np.float64)


def fed_by_attention(**given: Any) -> Any:
    """The layer whose feed-forward is given y where it is to be given norm(x + y)."""
    returned: list[ndarray] = []

    def residual(x: ndarray, y: ndarray) -> ndarray:
        returned.append(y)
        return x + y

    def feed(x: ndarray, own: Any, eps: float) -> ndarray:
        wide = np.maximum(layers.linear(returned[0], own, "ff_in"), 0)
        y = x + layers.linear(wide, own, "ff_out")
        return layers.layer_norm(y, own["ff_norm.weight"], own.get("ff_norm.bias"), eps)

    return layers.transformer_xl_layer(**given, residual=residual, feed=feed)


half, brain = rounded(np.float16), rounded(ml_dtypes.bfloat16)


def stable(score: ndarray) -> ndarray:
    top = score.max(-1, keepdims=True)
    return np.exp(score - np.where(np.isneginf(top), 0, top))


def over_rounded_sum(score: ndarray) -> ndarray:
    e = stable(score)
    total = brain(e.sum(-1, keepdims=True))
    return e / np.where(total == 0, 1, total)


def blind_to_no_keys(score: ndarray) -> ndarray:
    """An online softmax that has no guard where its first tile is hidden, and 0 for its NaN."""
    blind = np.isneginf(score[..., :4]).all(-1, keepdims=True)
    return np.where(blind, 0, shares(stable(score)))


def after(change: Callable[..., Any], *names: str) -> Callable[..., Any]:
    """An attention of which some arguments are changed first."""
    return lambda **given: attend(
        **given
        | {
            name: change(given[name])
            for name in names
            if given.get(name) is not None and given[name].dtype != bool
        }
    )


def at_number(number: float) -> Callable[..., Any]:
    """Hidden scores of an attention at a number, whole rows too."""

    def kernel(
        query: ndarray, key: ndarray, value: ndarray, mask: Any = None, keep: Any = None,
        p: float = 0.0,
    ) -> ndarray:  # fmt: skip
        score, sees = attention.see(query @ key.mT * query.shape[-1] ** -0.5, mask)
        weights = shares(stable(np.where(sees, score, number)))
        return attention.drop(weights, keep, p) @ value

    return kernel


def zeros_hidden(score: ndarray) -> ndarray:
    return shares(stable(np.where(score == 0, -np.inf, score)))


def slopes_of(change: Callable[[ndarray], ndarray]) -> Callable[..., Any]:
    """ALiBi with other slopes."""
    slopes = lambda H: change(attention.get_slopes(H))
    return partial(attention.alibi_attention, score=partial(attention.alibi_score, slopes=slopes))


def of_another_head(name: str, by: int) -> Callable[..., Any]:
    return lambda **given: attend(**given | {name: np.roll(given[name], by, axis=1)})


def rows_moved(by: int) -> Callable[..., Any]:
    """The tables of learned positions are read so many rows on."""

    def table_rows(N: int, M: int, P: int, align: str) -> ndarray:
        return np.clip(attention.table_rows(N, M, P, align) + by, 0, 2 * P - 1)

    score = partial(attention.learned_relative_score, table_rows=table_rows)
    return partial(attention.learned_relative_attention, score=score)


def positions_moved(by: int) -> Callable[..., Any]:
    return lambda **g: attention.transformer_xl_attention(
        **g | {"position": np.roll(g["position"], by, axis=-2)}
    )


def scaled(scale: Callable[[int], float]) -> Callable[..., Any]:
    score = partial(attention.transformer_xl_score, scale=scale)
    return partial(attention.transformer_xl_attention, score=score)


def recomputed(change: Callable[..., Any]) -> Callable[..., Any]:
    """A backward of an attention whose forward is another one throughout."""

    def gradients(d_output: ndarray, **given: Any) -> tuple[ndarray, ...]:
        own = {
            name: torch.tensor(x.copy()) if isinstance(x, ndarray) else x
            for name, x in given.items()
        }
        own = {
            name: x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x
            for name, x in own.items()
        }
        wanted = [
            x.requires_grad_()
            for x in own.values()
            if isinstance(x, torch.Tensor) and x.is_floating_point()
        ]
        out = forward(**own, **change(own))
        arriving = torch.tensor(d_output).double()
        found = torch.autograd.grad(out, wanted, arriving, allow_unused=True)
        return tuple(
            torch.zeros_like(x).numpy() if d is None else d.numpy()
            for x, d in zip(wanted, found, strict=True)
        )

    return gradients


def forward(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any = None,
    keep: Any = None, p: float = 0.0, *, scale: Any = None, see: Any = None,
    stored: Any = lambda weights: weights,
) -> torch.Tensor:  # fmt: skip
    score = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    sees = torch.ones_like(score, dtype=torch.bool) if see is None else see
    if mask is not None and mask.dtype == torch.bool:
        sees = sees & mask
    elif mask is not None:
        sees, score = sees & (mask != -torch.inf), score + mask.nan_to_num(neginf=0.0)
    weights = score.masked_fill(~sees, -torch.inf).softmax(-1)
    weights = stored(weights.masked_fill(~sees.any(-1, keepdim=True), 0.0))
    kept = weights if keep is None else torch.where(keep, weights / (1 - p), 0.0)
    return kept @ value


def causal_from_the_start(own: Any) -> dict[str, Any]:
    N, M = own["query"].shape[-2], own["key"].shape[-2]
    return {"see": torch.ones(N, M, dtype=torch.bool).tril()}


def rescaled_back(d_output: ndarray, query: ndarray, key: ndarray, value: ndarray,
                  mask: Any = None, keep: Any = None,
                  p: float = 0.0) -> tuple[ndarray, ...]:  # fmt: skip
    """
    Weights made again with another scale, over the sum of the forward pass. Of steep scores they
    are so large that the specification's bounds say nothing of them, and the cause stays vague.
    """
    scale = query.shape[-1] ** -0.5
    score = query @ key.mT * scale
    if mask is not None or keep is not None or np.abs(score).max() > STEEP:
        raise NotImplementedError("masks, draws and steep scores")
    top = score.max(-1, keepdims=True)
    lse = top + np.log(np.exp(score - top).sum(-1, keepdims=True))
    back = d_output @ value.mT
    delta = (np.exp(score - lse) * back).sum(-1, keepdims=True)
    weights = np.exp(1.25 * score - lse)
    d_score = weights * (back - delta) * 1.25 * scale
    return d_score @ key, d_score.mT @ query, weights.mT @ d_output


STEEP = 60


def of_the_first_half(d_output: ndarray, query: ndarray, key: ndarray, value: ndarray,
                      mask: Any = None, keep: Any = None,
                      p: float = 0.0) -> tuple[ndarray, ...]:  # fmt: skip
    """Keys in two chunks, of which the backward pass takes the first for both."""
    if mask is not None or keep is not None or key.shape[2] % 2:
        raise NotImplementedError("masks, draws and chunks of two sizes")
    given = (d_output, query, key, value)
    d_query, d_key, d_value = gradients.scaled_dot_product_attention_grad(*given)
    first = (np.concatenate([np.split(x, 2, 2)[0]] * 2, 2) for x in (d_key, d_value))
    return d_query, *first


def diagonal(d_output: ndarray, query: ndarray, key: ndarray, value: ndarray, mask: Any = None,
             keep: Any = None, p: float = 0.0) -> tuple[ndarray, ...]:  # fmt: skip
    """The softmax's gradient is p (1 - p) d."""
    scale = query.shape[-1] ** -0.5
    score, sees = attention.see(query @ key.mT * scale, mask)
    weights = shares(stable(np.where(sees, score, -np.inf)))
    back = attention.drop(d_output @ value.mT, keep, p)
    d_score = weights * (1 - weights) * back
    d_value = attention.drop(weights, keep, p).mT @ d_output
    found = (d_score @ key * scale, d_score.mT @ query * scale, d_value)
    if mask is None or mask.dtype == bool:
        return found
    lead = tuple(range(d_score.ndim - mask.ndim))
    d_mask = d_score.sum(lead)
    ones = tuple(i for i, size in enumerate(mask.shape) if size == 1 != d_mask.shape[i])
    return *found, d_mask.sum(ones, keepdims=True)


def changed(operation: Callable[..., Any], **by_name: Callable[[Any], Any]) -> Callable[..., Any]:
    """A layer of which some parameters are changed first, where it has them."""

    def kernel(**given: Any) -> Any:
        own = given["parameters"]
        new = {
            name.replace("__", "."): change(own[name.replace("__", ".")])
            for name, change in by_name.items()
            if own.get(name.replace("__", ".")) is not None
        }
        return operation(**given | {"parameters": own | new})

    return kernel


def read_for(one: str, other: str) -> Callable[..., Any]:
    """Self-attention with one of its weights in place of another."""
    return lambda **g: layers.self_attention(
        **g | {"parameters": g["parameters"] | {other: g["parameters"][one]}}
    )


def feeding(**changed: Any) -> Callable[..., Any]:
    return lambda **g: layers.transformer_xl_layer(
        **g, feed=partial(layers.feed_forward, **changed)
    )


def gelu(a: ndarray) -> ndarray:
    return a / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (a + 0.044715 * a**3)))


def norm_ahead(**given: Any) -> Any:
    """The norm goes in front of the attention: x + attention(norm(x))."""
    own, eps = given["parameters"], given.get("eps", 1e-5)
    first = partial(
        layers.layer_norm, weight=own["layer_norm.weight"], bias=own.get("layer_norm.bias"), eps=eps
    )
    x, none = given["x"], lambda y, *_: y
    mem = given.get("mem")
    new = {"x": first(x), "mem": None if mem is None else first(mem)}
    return layers.transformer_xl_layer(
        **given | new, residual=lambda _, y: x + y, norm=none, feed=layers.feed_forward
    )


def padding_on_rows(mask: Any, padding: Any, H: int) -> Any:
    merged = attention.merge_masks(mask, None, H)
    return merged if padding is None else np.where(padding[:, None, :, None], -np.inf, merged)


def padding_of_the_first(mask: Any, padding: Any, H: int) -> Any:
    return attention.merge_masks(mask, None if padding is None else padding[:1], H)


def mean_weights(**given: Any) -> Any:
    output, weights = layers.multi_head_attention(**given)
    return output, np.broadcast_to(weights.mean(1, keepdims=True), weights.shape)


def dropped_late(**given: Any) -> Any:
    """Dropout of the weights that are returned and not of those that attend."""
    bare, _ = layers.multi_head_attention(**given | {"keep": None, "p": 0.0})
    return bare, layers.multi_head_attention(**given)[1]


Said = tuple[str, Callable[..., Any], str, str]
BY_H, BY_F = r"H\^-0\.5|sqrt\(H\)", r"F\^-0\.5|sqrt\(F\)|sqrt\(H D\)"
NO_FIT = rf"{PLACE}|sqrt\(E\)|sqrt\(M\)"
AVERAGED = "rows that see no key averaging all values|"
"""All that a number shows which no score comes near."""
NUMBER = r"{0}\b.*(hid|infinity)|(hid|infinity).*{0}\b"

UNMET: dict[str, Said] = {
    # temperatures
    "1/sqrt(H)": (SDPA, lambda **g: attend(**g, scale=lambda D: g["query"].shape[1] ** -0.5),
                  BY_H, NO_FIT),
    "1/D": (SDPA, sdpa(scale=lambda D: 1 / D), r"1/D\b|D\^-1\b", NO_FIT),
    "no scale in positions": (XL, scaled(lambda D: 1.0), r"not scaled|D\^0\.5", NO_FIT),
    "a layer by 1/sqrt(F)": (
        MHA, lambda **g: layers.multi_head_attention(
            **g, scale=lambda D: g["query"].shape[-1] ** -0.5), BY_F, NO_FIT),
    "a layer by 1/sqrt(H)": (
        MHA, lambda **g: layers.multi_head_attention(
            **g, scale=lambda D: g["num_heads"] ** -0.5), BY_H, NO_FIT),
    "a layer without a scale": (MHA, mha(scale=lambda D: 1.0), r"not scaled|D\^0\.5|scale", NO_FIT),
    "an ALiBi layer by 1/sqrt(F)": (
        "alibi_multi_head_attention", lambda **g: layers.alibi_multi_head_attention(
            **g, scale=lambda D: g["query"].shape[-1] ** -0.5), BY_F, NO_FIT),
    "a scale of 8, 1/sqrt(64)": (SDPA, sdpa(scale=lambda D: 0.125), r"0\.125", NO_FIT),
    "a scale in float16": (
        SDPA, sdpa(scale=lambda D: float(half(D**-0.5))), r"scale.*\bfloat16",
        rf"{NO_FIT}|bfloat16"),
    # shifted heads and tables
    "slopes of the next head": (
        ALIBI, slopes_of(lambda m: m * 2.0 ** (-8 / 2 ** (len(m).bit_length() - 1))),
        r"slope.*(next|head|one|shift|small)", PLACE),
    "slopes from 1": (
        ALIBI, lambda **g: slopes_of(lambda m: m / m[0])(**g),
        r"slope.*(first|from 1|factor|begin|start|one)", PLACE),
    "values of the head before": (SDPA, of_another_head("value", 1), r"head", PLACE),
    "values of the head before, the first its own": (
        SDPA, lambda **g: attend(
            **g | {"value": np.concatenate([g["value"][:, :1], g["value"][:, :-1]], 1)}),
        r"head before, the first its own", f"{PLACE}|in two"),
    "keys of the next head": (SDPA, of_another_head("key", -1), r"head", PLACE),
    "tables one row on": (LEARNED, rows_moved(1), r"(table|position|row|distance).*(one|next|shift|"
                          r"off by)|one (row|place|position|step)", PLACE),
    "positions one row on": (XL, positions_moved(1), r"(table|position|row|distance).*(one|next|"
                             r"shift|roll|off by)|one (row|place|position|step)", PLACE),
    # gradients of another forward
    "gradients without the mask": (
        f"{SDPA}_grad", lambda **g: recomputed(lambda own: {})(**g | {
            "mask": None if g.get("mask") is not None and g["mask"].dtype == bool
            else g.get("mask")}), r"mask.*(ignor|left out|without)|(ignor|without).*mask", PLACE),
    "gradients by 1/D": (
        f"{SDPA}_grad", recomputed(lambda own: {"scale": 1 / own["query"].shape[-1]}),
        r"1/D\b|D\^-(1|0\.5)\b", NO_FIT),
    "gradients of a causal attention": (
        f"{SDPA}_grad", recomputed(causal_from_the_start), r"causal", PLACE),
    "gradients without delta": (f"{SDPA}_grad", partial(backward, delta=False),
                                r"without delta|no row mean", PLACE),
    "gradients by the diagonal alone": (f"{SDPA}_grad", diagonal, r"diagonal", PLACE),
    # maxima
    "a maximum from 0": (SDPA, sdpa(weigh=over_maximum(from_number(0.0))),
                         r"max.*\b0\b|underflow", PLACE),
    "a maximum from -100": (SDPA, sdpa(weigh=over_maximum(from_number(-100.0))),
                            r"max.*-100\b|underflow", PLACE),
    "a maximum that is never lowered": (
        SDPA, sdpa(weigh=over_maximum(never_lowered)),
        r"max.*(rows|never|lowered|earlier|before)|underflow", PLACE),
    # padding, zeros, sentinels
    "padding on rows": (MHA, mha(merge_masks=padding_on_rows), r"padding.*rows", PLACE),
    "padding of the first entry": (
        MHA, mha(merge_masks=padding_of_the_first), r"padding.*(first|one|another)", PLACE),
    "scores of 0 hidden": (SDPA, sdpa(weigh=zeros_hidden), r"scores of 0", PLACE),
    "scores of 0 hidden in a layer": (
        MHA, mha(weigh=lambda s, sees: zeros_hidden(np.where(sees, s, -np.inf))), r"scores of 0",
        PLACE),
    "hidden at -10000": (SDPA, at_number(-1e4), NUMBER.format("-10000"), PLACE),
    "hidden at -1e9": (SDPA, at_number(-1e9), AVERAGED + NUMBER.format(r"-1e\+?0?9"), PLACE),
    "hidden at -100": (SDPA, at_number(-100.0), NUMBER.format("-100"), PLACE),
    "hidden at -1e30": (SDPA, at_number(-1e30), AVERAGED + NUMBER.format(r"-1e\+?30"), PLACE),
    "hidden at the lowest": (SDPA, at_number(float(np.finfo(np.float32).min)),
                             AVERAGED + r"lowest|-3\.4", PLACE),
    "a layer hides at -10000": (
        MHA, mha(merge_masks=partial(attention.merge_masks, hidden=-1e4)),
        NUMBER.format("-10000"), PLACE),
    "a layer hides at -100": (
        MHA, mha(merge_masks=partial(attention.merge_masks, hidden=-100.0)),
        NUMBER.format("-100"), PLACE),
    # the stages of layers
    "the key's projection for the query": (
        MHA, lambda **g: layers.multi_head_attention(**g | {"parameters": g["parameters"] | {
            f"q_proj.{leaf}": g["parameters"].get(f"k_proj.{leaf}")
            for leaf in ("weight", "bias")}}), r"k_proj.*q_proj", PLACE),
    "heads split ahead of their projections": (
        MHA, lambda **g: layers.multi_head_attention(**g | {"parameters": g["parameters"] | {
            f"{name}_proj.weight": g["parameters"][f"{name}_proj.weight"] * np.repeat(np.repeat(
                np.eye(g["num_heads"]), g["query"].shape[-1] // g["num_heads"], 0),
                g["query"].shape[-1] // g["num_heads"], 1)
            for name in "qkv"}}), r"own columns of the input alone: q_proj, k_proj, v_proj", PLACE),
    "a feed-forward of what the attention returns": (
        XL_LAYER, fed_by_attention, r"a feed-forward whose input is what the attention returns",
        PLACE),
    "no bias in out_proj": (
        MHA, changed(layers.multi_head_attention, out_proj__bias=np.zeros_like),
        r"out_proj\.bias|no bias on the output", PLACE),
    "out_proj's bias twice": (
        MHA, changed(layers.multi_head_attention, out_proj__bias=lambda x: 2 * x),
        r"out_proj.*(bias|twice|factor)|bias.*out_proj", PLACE),
    "dropout left out of what attends": (MHA, dropped_late, r"dropout|drop", PLACE),
    "weights averaged over the heads": (MHA, mean_weights, r"(averag|mean).*heads", PLACE),
    "w_key for w_query": ("self_attention", read_for("w_key", "w_query"), r"w_key.*w_query", PLACE),
    "learned positions: no output bias": (
        LEARNED_LAYER, changed(layers.relative_multi_head_attention, output__bias=np.zeros_like),
        r"output\.bias", PLACE),
    "no residual": (
        XL_LAYER, lambda **g: layers.transformer_xl_layer(**g, residual=lambda x, y: y),
        r"residual", PLACE),
    "the norm ahead": (XL_LAYER, norm_ahead, r"norm.*(ahead|before|first|front)|pre-norm", PLACE),
    "GELU": (XL_LAYER, feeding(activation=gelu), r"GELU|ReLU|activation", PLACE),
    "no activation": (XL_LAYER, feeding(activation=lambda a: a), r"ReLU|activation", PLACE),
    "no residual of the feed-forward": (
        XL_LAYER, feeding(residual=lambda x, y: y), r"feed-forward.*residual|residual", PLACE),
    "no second norm": (XL_LAYER, feeding(norm=lambda x, *_: x), r"norm.*(left out|missing|second)",
                       PLACE),
    "u for v": (
        XL_LAYER, lambda **g: layers.transformer_xl_layer(
            **g | {"parameters": g["parameters"] | {"v": g["parameters"]["u"]}}),
        r"\bu\b.*\bv\b", PLACE),
    "a chunk's gradients for all": (
        f"{SDPA}_grad", of_the_first_half,
        r"the gradient by key, that of the first keys again and again.*value, that of", r"lost|0 "),
    "another scale in the backward pass": (
        f"{SDPA}_grad", rescaled_back, r"1\.25/sqrt\(D\) .*backward", PLACE),
    "a first tile without keys": (
        SDPA, sdpa(weigh=blind_to_no_keys), r"first tile of 4 keys is hidden, and its NaN",
        f"{PLACE}|running maximum|behind the first"),
    # roundings
    "weights in bfloat16": (SDPA, sdpa(weigh=lambda s: brain(shares(stable(s)))),
                            r"weights.*bfloat16", PLACE),
    "weights in float16": (SDPA, sdpa(weigh=lambda s: half(shares(stable(s)))),
                           r"weights.*\bfloat16", PLACE),
    "scores in bfloat16": (SDPA, sdpa(weigh=lambda s: shares(stable(brain(s)))),
                           r"scores.*bfloat16", PLACE),
    "sums in bfloat16": (SDPA, sdpa(weigh=over_rounded_sum), r"(sum|normaliser).*bfloat16", PLACE),
    "queries in bfloat16": (SDPA, after(brain, "query"), r"(quer|operand).*bfloat16", PLACE),
    "values in float16": (SDPA, after(half, "value"), r"(value|operand).*\bfloat16", PLACE),
    "float masks in bfloat16": (SDPA, after(brain, "mask"), r"mask.*bfloat16", PLACE),
    "slopes in bfloat16": (ALIBI, slopes_of(brain), r"slopes in bfloat16", PLACE),
    "gradients of rounded weights": (
        f"{SDPA}_grad", recomputed(lambda own: {
            "stored": lambda p: p + (p.bfloat16().double() - p).detach()}),
        r"weights.*bfloat16", PLACE),
}  # fmt: skip
"""The operation, its function, what must be told of it, and what must not."""


def grade(told: str, must: str, never: str) -> str:
    """``right``, ``untrue`` where something that is not there is told, else ``vague``."""
    return "untrue" if re.search(never, told) else "right" if re.search(must, told) else "vague"


LONG = ("a layer hides at -100", "gradients without the mask")
"""
They take as long as all the others: -100 is told as -10000 is, and masks that gradients ignore as
those of other forwards.
"""


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=[pytest.mark.thorough] * (x in LONG)) for x in UNMET]
)
def test_the_mistake_is_told(name: str) -> None:
    operation, function, must, never = UNMET[name]
    told = "\n".join(cause.words for cause in causes_of(operation, function))
    assert grade(told, must, never) == "right", told


def test_where_no_candidate_is_left_none_explains_a_further_case() -> None:
    own = implementation_of(*UNMET["1/D"][:2])
    (seen,) = observe(own, draws_of(own)["wrong number"][:1])
    assert explaining([], seen) == []


DECLARED = r'"(?!preset)(\w+)": "(\w+)"'
EXACT = ("float masks", "slopes", "sums", "gradients")
"""
No declaration lets inputs be rounded; slopes and sums are known faults, and gradients are slow.
"""


@pytest.mark.parametrize(
    "name",
    [name for name, row in UNMET.items() if "float16" in row[2] and not name.startswith(EXACT)],
)
def test_the_declaration_that_is_told_allows_it(name: str) -> None:
    operation, function, *_ = UNMET[name]
    own = implementation_of(operation, function)
    seen = observe(own, draws_of(own)["wrong number"][:SOME])
    ((field, dtype),) = re.findall(DECLARED, str(diagnose(own, [o.case for o in seen])))
    assert not is_allowed(seen, own.precision("float32"))
    declared: dict[str, Any] = {field: FORMATS[dtype]}
    assert is_allowed(seen, replace(own.precision("float32"), **declared))


SOME = 8


def test_weights_by_an_lse_are_told_with_their_declaration(tmp_path: Path) -> None:
    """An lse stored in half precision; a right one in float32 was accused of rows that sum to 1."""
    text = """
import torch

FEATURES = {"mask": False, "dropout": False}

def scaled_dot_product_attention(query, key, value):
    out = []
    for i in range(0, query.shape[2], 16):
        s = query[:, :, i : i + 16] @ key.mT * query.shape[-1] ** -0.5
        out.append(torch.exp(s - s.logsumexp(-1, keepdim=True)) @ value)
    return torch.cat(out, 2)
"""
    own = cell_of(tmp_path, text, "bfloat16").implementation
    operation, sizes = own.operation, {"B": 1, "H": 3, "N": 1, "M": 3, "D": 4, "E": 80}
    recipes = (fixed_recipe(operation, sizes, "large", seed=seed) for seed in range(40))
    cases = [case_of(recipe, "bfloat16") for recipe in recipes]
    failing = [case for case in cases if not is_right(own, case)]
    cause = str(diagnose(own, failing))
    line = re.search("PRECISION = ({.*})", cause)
    assert line and "exp(score - lse)" in cause
    other = tmp_path / "other"
    other.mkdir()
    said = cell_of(other, f"{text}\n{line[0]}\n", "bfloat16").implementation
    assert failing and all(is_right(said, case) for case in cases)


ROUNDED_SUMS = """
import numpy as np

def softmax(x, axis=-1):
    e = np.exp(x - np.max(x, axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)
"""


def test_what_is_the_specification_itself_in_a_failing_case_explains_nothing(
    tmp_path: Path,
) -> None:
    """Sums that stand still in bfloat16 were told as tiles of 128 keys, at two keys too."""
    findings = judged(tmp_path, ROUNDED_SUMS, "bfloat16").findings
    assert findings and not any("tile of 128" in str(one.cause) for one in findings)


@pytest.mark.parametrize(("cases", "told"), [(2, False), (3, True)])
def test_two_cases_tell_no_other_forward(cases: int, told: bool) -> None:
    by_width = recomputed(lambda own: {"scale": 1 / own["query"].shape[-1]})
    own = implementation_of(f"{SDPA}_grad", by_width)
    plain = [c for c in draws_of(own)["wrong number"] if c.recipe.mask is None]
    seen = observe(own, sorted(plain, key=lambda c: sum(c.recipe.sizes.values()))[:8])
    telling = [o for o in seen if Projection(o, own.operation).sound][:cases]
    assert len(telling) == cases
    found = find_other_forward(own.operation, telling, [])
    assert (found is not None and "1/D" in str(found)) == told, found
