"""
Attentions of today with one mistake in a step: the formula written once more, each kernel with one
line of it changed, and what must be told of it.
"""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy import ndarray

from attnverify.catalogue.operation import CATALOGUE
from attnverify.conventions.visibility import hidden_but, real_offset
from attnverify.diagnosis import sentences as say
from attnverify.diagnosis.candidates import Candidate
from attnverify.diagnosis.diagnose import diagnose
from attnverify.diagnosis.matching.told_numbers import of_one_kind_once
from attnverify.diagnosis.mistakes.today.rows import OF_TODAY
from attnverify.diagnosis.mistakes.today.steps import in_backward_alone, in_one_step
from attnverify.inputs.masks import visible_pairs
from attnverify.inputs.real.required_kinds import required_cases
from attnverify.reference.gradients import mask_grad
from tests.attnverify.diagnosis.test_two_mistakes import implementation_of
from tests.reports.test_causes import sort_draws

GROUPED, GRAD = CATALOGUE["grouped_attention"], CATALOGUE["grouped_attention_grad"]


def attend(x: dict[str, Any], kind: str) -> tuple[ndarray, ...]:
    """Weights with dropout and without, capped scores, lse [B H N 1], and the sink's weight."""
    q, sink, cap, mask = (x.get(name) for name in ("query", "sink", "soft_cap", "mask"))
    r, given = q.shape[1] // x["key"].shape[1], x.get("scale")
    key = np.tile(x["key"], (1, r, 1, 1)) if kind == "keys" else np.repeat(x["key"], r, 1)
    scale = q.shape[-1] ** -0.5 if given is None else 1 / given if kind == "scale" else given
    scale = (-(-q.shape[-1] // 16) * 16) ** -0.5 if kind == "width" and given is None else scale
    s = q @ key.mT * scale
    if cap is not None:
        s = cap * np.tanh(s / scale / cap) * scale if kind == "cap" else cap * np.tanh(s / cap)
        s = np.arctanh(s / cap) * s if kind == "score for cap" else s
    t = s
    if mask is not None and mask.dtype != bool:
        t = s - mask if kind == "mask" else s + mask
    elif mask is not None and kind in OF_BOOLEAN:
        t, x = OF_BOOLEAN[kind](s, mask), x | {"mask": None}
    seen = visible_pairs(GROUPED, x)
    if kind == "tile":
        every = visible_pairs(GROUPED, x | {"causal": False})
        seen = np.where(np.arange(s.shape[-1]) < 16, seen, every)
    if kind == "window" and x.get("window") and x.get("causal"):
        left, _ = x["window"]
        seen = visible_pairs(GROUPED, x | {"causal": False, "window": (left, left)})
    at = seen.any(-1, keepdims=True) if kind == "hidden but" else kind == "hidden"
    t = np.where(seen, t, np.where(at, -1e4, -np.inf))
    rest = np.full((s.shape[1], 1, 1), -np.inf) if sink is None else sink[:, None, None]
    rest = -rest if kind == "sink" and sink is not None else rest
    if kind == "split":
        rest = rest + np.log(2) * ~seen[..., :8].any(-1, keepdims=True)
    top = np.maximum(t.max(-1, keepdims=True), rest)
    top = np.where(np.isneginf(top), 0, top)
    e, own = np.exp(t - top), np.exp(rest - top)
    total = e.sum(-1, keepdims=True) + own
    lse = np.log(total) + (0 if kind == "lse" else top)
    w, own = (y / np.where(total == 0, 1, total) for y in (e, own))
    kept = 1.0 if x.get("keep") is None or kind == "drop" else x["keep"] / (1 - x["p"])
    return w, w * kept, s, lse, own


def value_of(x: dict[str, Any]) -> ndarray:
    r = x["query"].shape[1] // x["value"].shape[1]
    return np.nan_to_num(np.repeat(x["value"], r, 1))


def forward(kind: str) -> Callable[..., Any]:
    def attention(**x: Any) -> Any:
        with np.errstate(all="ignore"):
            _, dropped, _, lse, _ = attend(x, kind)
        return dropped @ value_of(x), lse[..., 0]

    return attention


def weights_over_lse(x: dict[str, Any], s: ndarray) -> ndarray:
    """Weights by the forward's lse, of rows that stand at the starts where the ends are meant."""
    mask, starts = x.get("mask"), np.zeros(len(s), np.int64)
    seen = visible_pairs(GROUPED, x | ({"offset": starts} if x.get("offset") is None else {}))
    t = s if mask is None or mask.dtype == bool else s + np.where(seen, mask, 0)
    given = {name: y for name, y in x.items() if name not in ("d_output", "d_lse")}
    lse = GROUPED.reference(**given)[1][..., None]
    return np.where(seen, np.exp(t - np.where(lse == -np.inf, 0, lse)), 0)


def shared_mean(w: ndarray, d_w: ndarray) -> ndarray:
    total = w.sum(-1, keepdims=True)
    return (w * d_w).sum(-1, keepdims=True) / np.where(total == 0, 1, total)


def backward(kind: str) -> Callable[..., Any]:
    """The gradient by value is the reference's."""

    def gradient(**x: Any) -> Any:
        with np.errstate(all="ignore"):
            w, _, s, _, own = attend(x, "")
        r, given = s.shape[1] // x["key"].shape[1], x.get("scale")
        scale = x["query"].shape[-1] ** -0.5 if given is None else given
        d_w = x["d_output"] @ value_of(x).mT
        keep, p, cap, d_lse = x.get("keep"), x.get("p"), x.get("soft_cap"), x["d_lse"][..., None]
        d_w = d_w if keep is None else d_w * keep / (1 if kind == "drop back" else 1 - p)
        delta = (w * d_w).sum(-1, keepdims=True)
        delta = delta / x["value"].shape[-1] if kind == "mean" else delta
        if kind == "halves":
            cut = -(-w.shape[-1] // 2)
            parts = [(w[..., :cut], d_w[..., :cut]), (w[..., cut:], d_w[..., cut:])]
            delta = np.concatenate([0 * a + shared_mean(a, b) for a, b in parts], axis=-1)
        if kind == "scale" and (cap is not None or given is not None):
            raise NotImplementedError("the scale is the kernel's own")
        if kind == "scale":
            w, scale = np.where(w == 0, 0, w * np.exp(0.1 * np.where(w == 0, 0, s))), 1.1 * scale
        if kind == "starts":
            w = weights_over_lse(x, s)
        total = w.sum(-1, keepdims=True)
        w = w / np.where(total == 0, 1, total) if kind == "sink" else w
        d_t = w * (d_w - delta + d_lse)
        d_s = d_t if cap is None or kind == "slope" else d_t * (1 - (s / cap) ** 2)
        d_key, d_value = (
            y.reshape(len(y), -1, r, *y.shape[2:]).sum(2)
            for y in (
                d_s.mT @ x["query"],
                (w if keep is None else w * keep / (1 - p)).mT @ x["d_output"],
            )
        )
        found = list(GRAD.reference(**x))
        found[2] = d_value if kind in ("scale", "starts") else found[2]
        found[:2] = d_s @ np.repeat(x["key"], r, 1) * scale, d_key * scale
        found[3:-1] = mask_grad(d_t, x.get("mask"))
        if x.get("sink") is not None and kind != "halves":
            found[-1] = (own * (d_lse - delta)).sum((0, 2, 3))
        elif len(found) > 3:
            found[3:] = mask_grad(d_t, x.get("mask"))
        return tuple(found)

    return gradient


OF_BOOLEAN: dict[str, Callable[[ndarray, ndarray], ndarray]] = {
    "ones": lambda s, mask: s + mask,
    "-10": lambda s, mask: np.where(mask, s, -10),
}
FORWARDS = {
    "mask": "float mask subtracted",
    "ones": "boolean masks added as ones and zeros",
    "hidden": "hidden scores at -10000, which is a number",
    "hidden but": "hidden scores at -10000, .* but for rows that see no key",
    "-10": "keys that a boolean mask hides at -10, which is a number",
    "cap": "soft cap before the scale",
    "score for cap": "soft cap that multiplies by the score in place of the cap",
    "scale": "given scale that divides",
    "sink": "sink with the other sign",
    "lse": "lse without the maximum",
    "width": r"scaled by 1/sqrt\(D rounded up to a multiple of 16\)",
    "drop": "dropout ignored",
    "keys": "heads of keys alone in turn",
    "tile": "causality in the first tile of 16 keys alone",
    "window": "a hidden key has weight, which causal alone hides",
    "split": "as if a sink counted 2 times",
}
BACKWARDS = {
    "mean": "delta that is the mean over the width",
    "sink": "weights sum to 1 without the sink",
    "slope": "leaves out the cap's slope",
    "scale": r"scaled by 1\.1/sqrt\(D\) in place of 1/sqrt\(D\) in the backward pass",
    "halves": "a delta of each half of the keys alone",
    "starts": "rows aligned at the starts in the backward pass, by rows that saw no key too",
    "drop back": r"gradient of the weights.*not scaled by 1/\(1-p\)",
}
ROWS = [
    *(("grouped_attention", forward(kind), words) for kind, words in FORWARDS.items()),
    *(("grouped_attention_grad", backward(kind), words) for kind, words in BACKWARDS.items()),
]


@pytest.mark.parametrize(("operation", "function", "words"), ROWS, ids=[row[2] for row in ROWS])
def test_the_step_is_told(operation: str, function: Callable[..., Any], words: str) -> None:
    own = implementation_of(operation, function)
    failing, passing = sort_draws(own)
    told = str(diagnose(own, failing[:7], passing=passing))
    assert re.search(words, told), told


def changed(name: str, change: Callable[[Any], Any]) -> Callable[..., Any]:
    """The law with another option, where a call has it."""

    def attention(**x: Any) -> Any:
        other = {name: change(x[name])} if x.get(name) is not None else {}
        return CATALOGUE["packed_attention"].reference(**x | other)

    return attention


OPTIONS = {
    "a right window of one key less": (
        "window", lambda w: (w[0], None if w[1] is None else max(w[1] - 1, 0))
    ),
    "a left window of one key more": (
        "window", lambda w: (None if w[0] is None else w[0] + 1, w[1])
    ),
    "the right side of windows ignored": ("window", lambda w: (w[0], None)),
    "the left side of windows ignored": ("window", lambda w: (None, w[1])),
    "one pinned key less": ("pinned", lambda pinned: max(pinned - 1, 0)),
    "chunks of one key more": ("chunk", lambda chunk: chunk + 1),
    "rows one position too far on": ("offset", lambda offset: offset + 1),
}  # fmt: skip


@pytest.mark.parametrize("words", OPTIONS)
def test_an_option_that_reaches_to_another_key_is_told(words: str) -> None:
    own = implementation_of("packed_attention", changed(*OPTIONS[words]))
    failing, passing = sort_draws(own, required_cases("packed_attention"))
    told = str(diagnose(own, failing[:7], passing=passing))
    assert re.search(words, told), told


@pytest.mark.parametrize("word", ("halves", "interleaved"))
@pytest.mark.parametrize("operation", ("rotary_embedding", "rotary_embedding_grad"))
def test_an_option_of_words_that_is_never_read_is_told(operation: str, word: str) -> None:
    law = CATALOGUE[operation].reference
    own = implementation_of(operation, lambda **x: law(**x | {"pairing": word}))
    failing, passing = sort_draws(own)
    told = str(diagnose(own, failing[:7], passing=passing))
    assert f"pairing ignored, and taken for {word}" in told, told


def paged(size: int) -> Callable[..., Any]:
    """Of each ``size`` pages the first from the table, the others behind it in the pool."""

    def attention(**x: Any) -> Any:
        pool, table = len(x["key_pages"]), np.array(x["page_table"])
        for y in range(table.shape[1]):
            table[:, y] = np.clip(x["page_table"][:, y - y % size] + y % size, 0, pool - 1)
        return CATALOGUE["paged_attention"].reference(**x | {"page_table": table})

    return attention


@pytest.mark.parametrize(
    ("size", "words"), [(2, "every second page taken from the pool"), (99, "behind its first")]
)
def test_pages_that_are_taken_for_neighbours_are_told(size: int, words: str) -> None:
    test_the_step_is_told("paged_attention", paged(size), words)


def without_full_page(**x: Any) -> Any:
    """The last page of a sequence is not read where it is full."""
    lengths, W = x["lengths"], x["key_pages"].shape[1]
    offset = x["lengths"] - np.diff(x["query_starts"]) if x.get("offset") is None else x["offset"]
    left = np.where(lengths % W == 0, np.maximum(lengths - W, 0), lengths).astype(lengths.dtype)
    return CATALOGUE["paged_attention"].reference(**x | {"lengths": left, "offset": offset})


def at_the_longest(**x: Any) -> Any:
    """Row b of the mask of lengths begins at b times the longest length."""
    lengths = x.get("lengths")
    if lengths is None:
        return GROUPED.reference(**x)
    (B, H, N, _), M = x["query"].shape, x["key"].shape[2]
    flat = np.zeros(B * M, bool)
    for b, length in enumerate(lengths):
        flat[b * lengths.max() : b * lengths.max() + length] = True
    offset = real_offset({"B": B, "N": N, "M": M, **x})
    mask = hidden_but(x.get("mask"), np.broadcast_to(flat.reshape(B, 1, 1, M), (B, H, N, M)))
    return GROUPED.reference(**x | {"lengths": None, "offset": offset, "mask": mask})


def end_to_end(**x: Any) -> Any:
    """Page p of a pool is taken to begin p W slots behind its first number."""
    pools = {name: x[name] for name in ("key_pages", "value_pages")}
    for name, pool in pools.items():
        base = pool
        while isinstance(base.base, ndarray):
            base = base.base
        steps = pool.shape[1] * pool.strides[1], *pool.strides[1:]
        first = pool.ctypes.data - base.ctypes.data
        flat = base.reshape(-1).view(np.uint8)[first:].view(pool.dtype)
        pools[name] = np.lib.stride_tricks.as_strided(flat, pool.shape, steps)
    return CATALOGUE["paged_attention"].reference(**x | pools)


@pytest.mark.parametrize(
    ("operation", "function", "words"),
    [
        ("paged_attention", end_to_end,
         "key_pages and value_pages read as if the parts of its first axis lay end to end"),
        ("paged_attention", without_full_page, "the last page lost where it is full"),
        ("grouped_attention", at_the_longest, "multiples of the longest length"),
    ],
)  # fmt: skip
def test_what_is_taken_otherwise_is_told(
    operation: str, function: Callable[..., Any], words: str
) -> None:
    own = implementation_of(operation, function)
    failing, passing = sort_draws(own, required_cases(operation))
    told = str(diagnose(own, failing[:7], passing=passing))
    assert words in told, told


WITH_GRADIENTS = [f"{name}{end}" for name in OF_TODAY for end in ("", "_grad")]


@pytest.mark.parametrize("name", [name for name in WITH_GRADIENTS if name in CATALOGUE])
def test_the_steps_of_the_law_are_the_specification(name: str) -> None:
    operation = CATALOGUE[name]
    own = implementation_of(name, lambda **x: in_one_step({}, operation, x))
    failing, passing = sort_draws(own)
    assert not failing and len(passing) > FEW
    if operation.is_gradient:
        again = implementation_of(name, lambda **x: in_backward_alone(0.0, {}, operation, x))
        failing, passing = sort_draws(again)
        assert not failing and len(passing) > FEW


FEW = 10


def test_one_kind_of_a_number_is_told_once() -> None:
    some, one, other, nan = (
        (Candidate(words, words, lambda _: None), 0.1)
        for words in (
            say.HIDDEN_AT_SOME,
            say.HIDDEN_AT.format(number=-100.0),
            say.HIDDEN_AT.format(number=-1e30),
            "NaN where a row sees no key",
        )
    )
    own = implementation_of("grouped_attention", forward(""))
    assert of_one_kind_once([some, one, nan], own) == [some, nan]
    told = of_one_kind_once([one, other], own)
    assert [each.words for each, _ in told] == [say.HIDDEN_AT_SOME]
