"""
An online softmax over the keys of each sequence, in kernels of grouped, packed and paged attention:
what is not carried from tile to tile is told, and what a last page holds behind its length.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy import ndarray

from attnverify.catalogue.operation import CATALOGUE
from attnverify.diagnosis.diagnose import diagnose
from attnverify.inputs.masks import visible_pairs
from tests.attnverify.diagnosis.test_two_mistakes import implementation_of
from tests.reports.test_causes import sort_draws

GROUPED = CATALOGUE["grouped_attention"]
Fade = tuple[bool, bool]
"""Whether the sum and the output are brought to each new maximum."""


def walk(q: ndarray, k: ndarray, v: ndarray, seen: ndarray, size: int, fades: Fade) -> Any:
    """[H n D] over [H m D], a tile after the other; output and lse, heads in front."""
    top = np.full((*seen.shape[:-1], 1), -np.inf)
    total, out = np.zeros_like(top), np.zeros((*seen.shape[:-1], v.shape[-1]))
    for at in range(0, seen.shape[-1], size):
        tile = slice(at, at + size)
        s = np.where(seen[..., tile], q @ k[:, tile].swapaxes(1, 2) / q.shape[-1] ** 0.5, -np.inf)
        new = np.maximum(top, s.max(-1, keepdims=True))
        safe = np.where(np.isneginf(new), 0, new)
        p, fade = np.exp(s - safe), np.exp(top - safe)
        total = total * (fade if fades[0] else 1) + p.sum(-1, keepdims=True)
        out = out * (fade if fades[1] else 1) + p @ v[:, tile]
        top = new
    with np.errstate(divide="ignore"):
        return out / np.where(total == 0, 1, total), (top + np.log(total))[..., 0]


def of_heads(x: ndarray, heads: int) -> ndarray:
    return np.repeat(x, heads // len(x), axis=0)


def visible(n: int, m: int, causal: bool) -> ndarray:
    return np.tri(n, m, m - n, dtype=bool) if causal else np.ones((n, m), bool)


def grouped(fades: Fade, **_: Any) -> Callable[..., Any]:
    def attention(**x: Any) -> Any:
        if any(x.get(name) is not None for name in ("keep", "soft_cap", "sink", "scale")):
            raise NotImplementedError("nothing but what may see what")
        if x.get("mask") is not None and x["mask"].dtype != bool:
            raise NotImplementedError("float masks")
        H = x["query"].shape[1]
        each = [
            walk(q, of_heads(k, H), of_heads(v, H), own, 4, fades)
            for q, k, v, own in zip(
                x["query"], x["key"], x["value"], visible_pairs(GROUPED, x), strict=True
            )
        ]
        return tuple(np.stack(part) for part in zip(*each, strict=True))

    return attention


def packed(fades: Fade, **_: Any) -> Callable[..., Any]:
    def attention(
        query: Any, key: Any, value: Any, query_starts: Any, key_starts: Any, causal: Any = False
    ) -> Any:
        out, lse = empty(query, value)
        for t, u in zip(slices(query_starts), slices(key_starts), strict=True):
            if t.start < t.stop and u.start < u.stop:
                attend(out, lse, query, t, key[u], value[u], causal, 8, fades)
        return out, lse

    return attention


def paged(fades: Fade, whole: bool = False) -> Callable[..., Any]:
    def attention(
        query: Any, key_pages: Any, value_pages: Any, page_table: Any, lengths: Any,
        query_starts: Any, causal: Any = False,
    ) -> Any:  # fmt: skip
        out, lse = empty(query, value_pages[0])
        W = key_pages.shape[1]
        for t, table, m in zip(slices(query_starts), page_table, lengths, strict=True):
            pages = table[: -(-m // W)]
            end = len(pages) * W if whole else m
            if t.start < t.stop and m:
                k, v = (x[pages].reshape(-1, *x.shape[2:])[:end] for x in (key_pages, value_pages))
                attend(out, lse, query, t, k, v, causal, W, fades, m)
        return out, lse

    return attention


def empty(query: ndarray, value: ndarray) -> Any:
    out = np.zeros((*query.shape[:2], value.shape[-1]), query.dtype)
    return out, np.full(query.shape[:2], -np.inf, query.dtype)


def slices(starts: Any) -> list[slice]:
    return [slice(a, b) for a, b in pairwise(starts)]


def attend(
    out: ndarray, lse: ndarray, query: ndarray, t: slice, key: ndarray, value: ndarray,
    causal: bool, size: int, fades: Fade, length: int | None = None,
) -> None:  # fmt: skip
    q = query[t].swapaxes(0, 1)
    k, v = (of_heads(x.swapaxes(0, 1), len(q)) for x in (key, value))
    (H, n, _), m = q.shape, len(key)
    length = m if length is None else length
    seen = visible(n, length, causal)
    behind = np.full((n, m - length), not causal)
    seen = np.broadcast_to(np.concatenate([seen, behind], 1), (H, n, m))
    own, own_lse = walk(q, k, v, seen, size, fades)
    out[t], lse[t] = own.swapaxes(0, 1), own_lse.T


KERNELS = {"grouped_attention": grouped, "packed_attention": packed, "paged_attention": paged}
TILES = {"grouped_attention": "tiles of 4 keys", "packed_attention": "tiles of 8 keys"}
LOST = {
    "an output that is not rescaled": (True, False),
    "a sum that is not rescaled": (False, True),
    "nothing rescaled": (False, False),
}


@pytest.mark.parametrize("name", KERNELS)
def test_with_all_of_it_nothing_fails(name: str) -> None:
    failing, passing = sort_draws(implementation_of(name, KERNELS[name]((True, True))))
    assert not failing and len(passing) > 3


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("words", LOST)
def test_what_is_not_rescaled_is_told(name: str, words: str) -> None:
    own = implementation_of(name, KERNELS[name](LOST[words]))
    failing, passing = sort_draws(own)
    told = str(diagnose(own, failing, passing=passing))
    assert f"with {words} when the maximum rises, in {TILES.get(name, 'pages')}" in told


def test_a_last_page_that_is_read_to_its_end_is_told() -> None:
    own = implementation_of("paged_attention", paged((True, True), whole=True))
    failing, passing = sort_draws(own)
    told = str(diagnose(own, failing, passing=passing))
    assert "with the last page of a sequence not cut to its length" in told
