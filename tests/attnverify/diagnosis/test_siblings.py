"""
Faults of the kinds that outsiders report, in kernels of their own: a part of them is in no table of
mistakes, and asked for by the stage that is wrong first.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy import ndarray

from attnverify.backends.implementation import Implementation
from attnverify.catalogue.operation import CATALOGUE
from attnverify.catalogue.pytrees import map_leaves
from attnverify.diagnosis.diagnose import diagnose
from attnverify.diagnosis.whereabouts.heads import describe_heads
from attnverify.diagnosis.whereabouts.isolating import is_wrong
from attnverify.inputs.fixed_cases import fixed_recipe
from attnverify.judge.case import case_of
from attnverify.judge.observation import observe
from attnverify.reference import attention, layers
from tests.reports.test_causes import sort_draws
from tests.support.sample_backends import load_sample

SDPA, MHA = "scaled_dot_product_attention", "multi_head_attention"


def attend(query: Any, key: Any, value: Any, mask: Any = None, keep: Any = None, p: float = 0.0,
           **stages: Any) -> ndarray:  # fmt: skip
    """Attention of an outsider, with stages that can be replaced."""
    scale = stages.get("scale", query.shape[-1] ** -0.5)
    score = stages.get("product", lambda q, k: q @ k.mT)(query, key) * scale
    visible = np.ones(score.shape, bool)
    if mask is not None:
        given = stages.get("read", lambda mask: mask)(mask)
        visible = visible & (given if given.dtype == bool else given != -np.inf)
        score = score if given.dtype == bool else score + np.where(given == -np.inf, 0, given)
    weights = stages.get("softmax", softmax)(np.where(visible, score, -np.inf))
    kept = weights if keep is None else np.where(keep, weights / (1 - p), 0)
    return stages.get("mix", lambda p, v: p @ v)(kept, value)


def softmax(score: ndarray) -> ndarray:
    top = score.max(-1, keepdims=True)
    e = np.exp(score - np.where(np.isneginf(top), 0, top))
    total = e.sum(-1, keepdims=True)
    return e / np.where(total == 0, 1, total)


def from_minus_5(score: ndarray) -> ndarray:
    top = np.maximum(score.max(-1, keepdims=True), -5.0)
    e = np.exp((score - top).astype(np.float32))
    total = e.sum(-1, keepdims=True)
    return e / np.where(total == 0, 1, total)


def zeros_hidden(score: ndarray) -> ndarray:
    return softmax(np.where(score == 0, -np.inf, score))


def first_head_of_key(q: ndarray, k: ndarray) -> ndarray:
    return q @ k[:, :1].mT


def last_of_16(q: ndarray, k: ndarray) -> ndarray:
    M = k.shape[-2]
    return q @ k[..., np.minimum(np.arange(M) // 16 * 16 + 15, M - 1), :].mT


def to_bfloat16(x: ndarray) -> ndarray:
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x8000) & np.uint32(0xFFFF0000)).view(np.float32)


def heads_in_tiles(query: Any, key: Any, value: Any, **others: Any) -> Any:
    groups = query.shape[1] // key.shape[1]
    key, value = (np.tile(x, (1, groups, 1, 1)) for x in (key, value))
    return CATALOGUE["grouped_attention"].reference(query, key, value, **others)


def heads_by_groups(query: Any, key: Any, value: Any, **others: Any) -> Any:
    """Head h of the queries reads head h // G, of which the last is the last."""
    H, G = query.shape[1], key.shape[1]
    read = np.minimum(np.arange(H) // G, G - 1)
    key, value = (x[:, read] for x in (key, value))
    return CATALOGUE["grouped_attention"].reference(query, key, value, **others)


def heads_by_groups_back(key: Any, value: Any, **others: Any) -> Any:
    H, G = others["query"].shape[1], key.shape[1]
    read = np.minimum(np.arange(H) // G, G - 1)
    given = {"key": key[:, read], "value": value[:, read]}
    d_query, *back = CATALOGUE["grouped_attention_grad"].reference(**others, **given)
    for place, x in enumerate((key, value)):
        total = np.zeros_like(x)
        np.add.at(total, (slice(None), read), back[place])
        back[place] = total
    return (d_query, *back)


def merged_by_maximum(outputs: ndarray, lses: ndarray) -> Any:
    top = lses.max(0)
    seen = np.where(np.isneginf(top), 0, top)
    e = np.exp(lses - seen)[..., None]
    parts = np.where(np.isneginf(lses)[..., None], 0, outputs)
    total = e.sum(0)
    return (e * parts).sum(0) / np.where(total == 0, 1, total), top


def merged_by_mean(outputs: ndarray, lses: ndarray) -> Any:
    _, lse = CATALOGUE["merge_attention"].reference(outputs, lses)
    return np.where(np.isneginf(lses)[..., None], 0, outputs).mean(0), lse


def memory_with_a_hole(hids: Any, mems: Any, mem_len: int) -> Any:
    """One position fewer of the memory is kept, and zeros stand in front of it."""
    if mems is None:
        return None
    kept = []
    for hid, mem in zip(hids, mems, strict=True):
        both = np.concatenate([mem, hid], 1)[:, -mem_len:] if mem_len else hid[:, :0]
        if both.shape[1] > hid.shape[1]:
            both = both.copy()
            both[:, 0] = 0
        kept.append(both)
    return kept


def without_a_shift(score: ndarray, mask: Any = None) -> ndarray:
    """The largest score of the first half of a row is taken for that of the row."""
    seen = score if mask is None else np.where(mask, score, -np.inf)
    if mask is not None and mask.dtype != bool:
        seen = score + mask
    top = seen[..., : (seen.shape[-1] + 1) // 2].max(-1, keepdims=True)
    with np.errstate(all="ignore"):
        e = np.exp((seen - np.where(np.isneginf(top), 0, top)).astype(np.float32))
        total = e.sum(-1, keepdims=True)
        return e / np.where(total == 0, 1, total)


def layer(**changed: Any) -> Callable[..., Any]:
    return lambda **given: layers.multi_head_attention(**given, **changed)


def of_bias_per_head(x: ndarray, parameters: Any, name: str) -> ndarray:
    y = layers.linear(x, parameters, name)
    return y + parameters["out_proj.bias"] if name == "out_proj" else y


def xl(**changed: Any) -> Callable[..., Any]:
    return lambda **given: layers.transformer_xl_layer(**given, **changed)


def norm_before(y: ndarray, weight: ndarray, bias: Any, eps: float) -> ndarray:
    """A norm whose gain is added to 1, as Gemma's."""
    return layers.layer_norm(y, 1 + weight, bias, eps)


def as_float32(leaf: Any) -> Any:
    return leaf.astype(np.float32) if isinstance(leaf, ndarray) else leaf


Said = tuple[str, Callable[..., Any], str, str]
HEAD, PLACE = r"head \d+ alone|last head", r"(row|key|column) \d+ alone"

SIBLINGS: dict[str, Said] = {
    "a maximum that starts at -5": (
        SDPA, lambda **g: attend(**g, softmax=from_minus_5), r"maximum|underflow", PLACE),
    "scores of 0 taken for hidden": (
        SDPA, lambda **g: attend(**g, softmax=zeros_hidden), r"scores? of 0|score is 0", PLACE),
    "the key of the first head": (
        SDPA, lambda **g: attend(**g, product=first_head_of_key), r"first head", PLACE),
    "the last key of each tile": (
        SDPA, lambda **g: attend(**g, product=last_of_16), r"each key.*last one", "scale"),
    "scores divided by D": (
        SDPA, lambda **g: attend(**g, scale=1 / g["query"].shape[-1]), r"D\^-1|scal", HEAD),
    "weights rounded": (
        SDPA, lambda **g: attend(**g, softmax=lambda s: to_bfloat16(softmax(s))),
        r"weights.*bfloat16", HEAD),
    "columns of the value in turn": (
        SDPA, lambda **g: attend(**g, mix=lambda p, v: np.roll(p @ v, 1, -1) if v.shape[-1] > 3
                                 else p @ v), r"value", "the mask|temperature"),
    "heads that are added up": (
        SDPA, lambda **g: attend(**g, mix=lambda p, v: (p @ v).sum(1, keepdims=True) + 0 * (p @ v)),
        r"right with one head", "the mask|temperature"),
    "a mask at half its numbers": (
        SDPA, lambda **g: attend(**g, read=lambda m: m if m.dtype == bool else np.sqrt(np.abs(m))),
        r"mask", "temperature"),
    "values of every other key": (
        SDPA, lambda **g: attend(**g, mix=lambda p, v: p[..., ::2] @ v[..., ::2, :]),
        r"value|weights are right|visible key", "temperature|scale"),
    "a mask inverted": (
        SDPA, lambda **g: attend(**g, read=lambda m: ~m if m.dtype == bool else m), "mask", HEAD),
    "the square of the weights": (
        SDPA, lambda **g: attend(**g, softmax=lambda s: softmax(s) ** 2), "weights", HEAD),
    "heads in tiles": (
        "grouped_attention", heads_in_tiles, r"head", PLACE),
    "heads by the number of groups": (
        "grouped_attention", heads_by_groups,
        r"query heads read other heads of keys and values \(h // G\)", PLACE),
    "heads by the number of groups, backwards": (
        "grouped_attention_grad", heads_by_groups_back,
        r"query heads read other heads of keys and values \(h // G\)", PLACE),
    "a lse that is the maximum": (
        "merge_attention", merged_by_maximum, r"largest lse|lse.*maximum", "no maximum"),
    "parts averaged": (
        "merge_attention", merged_by_mean, r"mean|average", "maximum"),
    "a memory with a hole": (
        "update_mems", memory_with_a_hole, r"oldest position lost.*in front", "head"),
    "the maximum of half a row": ("softmax", without_a_shift, r"maximum", PLACE),
    "the output's bias for each of two": (
        MHA, layer(linear=of_bias_per_head), r"out_proj|bias.* of the output", HEAD),
    "1/sqrt(F) in a layer": (
        MHA, lambda **g: layers.multi_head_attention(
            **g, scale=lambda D: g["query"].shape[-1] ** -0.5), r"F\^-0\.5|sqrt\((F|H D)\)", HEAD),
    "1/sqrt(F) in a layer of Transformer-XL": (
        "transformer_xl_layer", lambda **g: layers.transformer_xl_layer(
            **g, weigh=lambda s, seen: attention.weigh(s / g["num_heads"] ** 0.5, seen)),
        r"F\^-0\.5", HEAD),
    "scores by 1.25 in one head": (
        "self_attention", lambda **g: layers.self_attention(
            **g, weigh=lambda s, seen: attention.weigh(1.25 * s, seen)),
        r"first: the attention's scores and what they are projected from", "values"),
    "heads joined backwards": (
        "transformer_xl_layer", lambda **g: layers.transformer_xl_layer(
            **g, join=lambda y: layers.join(y)[..., ::-1]),
        r"first: the projections of values and output, how heads", "scores of"),
    "steeper scores in a layer of Transformer-XL": (
        "transformer_xl_layer", lambda **g: layers.transformer_xl_layer(
            **g, weigh=lambda s, seen: attention.weigh(np.sign(s) * np.abs(s) ** 1.5, seen)),
        r"first: the attention's scores and what they are projected from", "projections of"),
    "a gain added to 1": (
        "transformer_xl_layer", xl(norm=norm_before), r"norm|gain", HEAD),
    "GELU": (
        "transformer_xl_layer", xl(feed=lambda *a, **k: layers.feed_forward(
            *a, **k, activation=lambda x: 0.5 * x * (1 + np.tanh(0.8 * (x + 0.0447 * x**3))))),
        r"activation|feed.?forward|GELU|ReLU", HEAD),
}  # fmt: skip
"""The operation, a function of an outsider, what must be told of it, and what must not."""


@pytest.mark.parametrize("name", SIBLINGS)
def test_the_kind_is_told(name: str) -> None:
    operation, function, told, not_told = SIBLINGS[name]

    def kernel(**given: Any) -> Any:
        return map_leaves(as_float32, function(**given))

    backend = load_sample("one_fault_each")
    faulty = Implementation(backend, CATALOGUE[operation], operation, kernel)
    failing, passing = sort_draws(faulty)
    cause = str(diagnose(faulty, failing[:7], passing=passing))
    assert re.search(told, cause, re.IGNORECASE), cause
    assert not re.search(not_told, cause), cause


def test_a_mask_that_ends_is_told_by_the_key() -> None:
    def kernel(**given: Any) -> Any:
        return attend(**given, read=lambda m: m | (np.arange(m.shape[-1]) >= 16))

    faulty = Implementation(load_sample("one_fault_each"), CATALOGUE[SDPA], SDPA, kernel)
    plain = fixed_recipe(CATALOGUE[SDPA], {"B": 1, "H": 2, "N": 5, "M": 40})
    mask = {"pattern": "random", "axes": "N M", "form": "bool"}
    failing = [case_of(replace(plain, mask=mask | {"seed": seed}), "float32") for seed in range(4)]
    cause = str(diagnose(faulty, failing, passing=[case_of(plain, "float32")]))
    assert "mask ignored from key 16 on" in cause


def test_a_rule_by_which_heads_are_shared_is_named_where_it_alone_fits() -> None:
    """Of two heads, both of which read the first, nobody knows why."""
    plain = fixed_recipe(CATALOGUE["grouped_attention"], {"H": 2, "G": 2, "N": 5, "M": 7})
    cause = describe_heads(observe(by_groups(), [case_of(plain, "float32")]))
    assert str(cause) == (
        "query heads read other heads of keys and values: 0 0 where 0 1 are shared (H=2, G=2)"
    )


def test_what_the_specification_refuses_isolates_nothing() -> None:
    plain = fixed_recipe(CATALOGUE["grouped_attention"], {"B": 2, "N": 5, "M": 7})
    (seen,) = observe(by_groups(), [case_of(plain, "float32")])
    assert is_wrong(by_groups(), seen, seen.inputs | {"blocks": np.zeros((2, 1), int)}) is None


def by_groups() -> Implementation:
    def kernel(**given: Any) -> Any:
        return map_leaves(as_float32, heads_by_groups(**given))

    name = "grouped_attention"
    return Implementation(load_sample("one_fault_each"), CATALOGUE[name], name, kernel)
