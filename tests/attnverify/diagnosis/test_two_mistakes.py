"""
Kernels with two and three mistakes at once, of different stages and of the same one. What must be
told of each was written before any diagnosis looked for more than one; every mistake must be told,
and none that is not there.
"""

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy import ndarray

from attnverify.backends.implementation import Implementation
from attnverify.backends.loader import load
from attnverify.catalogue.operation import CATALOGUE
from attnverify.catalogue.pytrees import map_leaves
from attnverify.diagnosis.call_budget import CallBudget, outcome_kind
from attnverify.diagnosis.candidates import Candidate, candidates
from attnverify.diagnosis.cause import Cause
from attnverify.diagnosis.diagnose import NUMERIC, choose_of_other_kinds, diagnose
from attnverify.diagnosis.matching.best import cause_of_candidates
from attnverify.diagnosis.matching.together import joined_all, match_told
from attnverify.diagnosis.whereabouts.isolating import first_wrong_stage
from attnverify.inputs.fixed_cases import fixed_recipe
from attnverify.inputs.sampling import draw_recipes
from attnverify.judge.case import Case, case_of
from attnverify.judge.observation import observe
from attnverify.reference import layers
from tests.support.sample_backends import load_sample


def softmax(score: ndarray) -> ndarray:
    top = score.max(-1, keepdims=True)
    e = np.exp(score - np.where(np.isneginf(top), 0, top))
    return shares(e)


def shares(e: ndarray) -> ndarray:
    total = e.sum(-1, keepdims=True)
    return e / np.where(total == 0, 1, total)


def overflowing(score: ndarray) -> ndarray:
    with np.errstate(all="ignore"):
        return shares(np.exp(score).astype(np.float32))


def output_not_rescaled(score: ndarray) -> ndarray:
    """Tiles of 16 keys, of which the sum alone follows the maximum."""
    parts, top = list[ndarray](), np.full((*score.shape[:-1], 1), -np.inf)
    total = np.zeros_like(top)
    for at in range(0, score.shape[-1], 16):
        tile = score[..., at : at + 16]
        new = np.maximum(top, tile.max(-1, keepdims=True))
        base = np.where(np.isneginf(new), 0, new)
        parts.append(np.exp(tile - base))
        total = total * np.exp(top - base) + parts[-1].sum(-1, keepdims=True)
        top = new
    return np.concatenate(parts, -1) / np.where(total == 0, 1, total)


def last_tile_lost(score: ndarray) -> ndarray:
    M = score.shape[-1]
    kept = np.arange(M) < (M // 16 * 16 or M)
    return softmax(np.where(kept, score, -np.inf))


def attend(
    query: ndarray, key: ndarray, value: ndarray, mask: Any = None, keep: Any = None,
    p: float = 0.0, *, scale: Any = lambda D: D**-0.5, inverted: bool = False,
    floats: bool = True, weigh: Any = softmax, kept: Any = lambda p: 1 / (1 - p),
    ahead: bool = False,
) -> ndarray:  # fmt: skip
    score = query @ key.mT * scale(query.shape[-1])
    visible = np.ones(score.shape, bool)
    if mask is not None and mask.dtype == bool:
        visible = visible & (~mask if inverted else mask)
    elif mask is not None and floats:
        visible = visible & (mask != -np.inf)
        score = score + np.where(mask == -np.inf, 0, mask) * (
            scale(query.shape[-1]) if ahead else 1
        )
    weights = weigh(np.where(visible, score, -np.inf))
    return (weights if keep is None else np.where(keep, weights * kept(p), 0)) @ value


def alibi(
    query: ndarray, key: ndarray, value: ndarray, visible: Any = None, *,
    scale: Any = lambda D: D**-0.5, offset: Any = lambda N, M: M - N, sign: float = 1.0,
    inverted: bool = False, inside: bool = False, exponent: float = 8.0,
) -> ndarray:  # fmt: skip
    (H, N, D), M = query.shape[1:], key.shape[2]
    base = 2 ** int(np.log2(H))
    slopes = [2 ** (-exponent * (h + 1) / base) for h in range(base)]
    slopes += [2 ** (-exponent * (h + 1) / (2 * base)) for h in range(0, 2 * (H - base), 2)]
    distance = np.arange(M) - np.arange(N)[:, None] - (M - N)
    bias = sign * np.array(slopes)[:, None, None] * distance
    score = query @ key.mT
    score = (score + bias) * scale(D) if inside else score * scale(D) + bias
    sees = np.arange(M) <= np.arange(N)[:, None] + offset(N, M)
    if visible is not None:
        sees = sees & (~visible if inverted else visible)
    return softmax(np.where(sees, score, -np.inf)) @ value


def plain_softmax(score: ndarray, mask: Any = None, *, floats: bool = True) -> ndarray:
    if mask is not None and mask.dtype == bool:
        score = np.where(mask, score, -np.inf)
    elif mask is not None and floats:
        score = score + mask
    return overflowing(score)


def relative(
    query: ndarray, key: ndarray, value: ndarray, position: ndarray, u: ndarray, v: ndarray,
    visible: Any = None, *, exchanged: bool = False, moved: bool = True,
    scale: Any = lambda D: D**-0.5, hidden: Any = lambda mask: mask,
) -> ndarray:  # fmt: skip
    N, M = query.shape[2], key.shape[2]
    u, v = (v, u) if exchanged else (u, v)
    far = (query + v[:, None]) @ position.mT
    if moved:
        at = np.arange(M) + (N - 1) - np.arange(N)[:, None]
        far = np.take_along_axis(far, np.broadcast_to(np.minimum(at, M - 1), far.shape), -1)
    score = ((query + u[:, None]) @ key.mT + far) * scale(query.shape[-1])
    sees = np.arange(M) <= np.arange(N)[:, None] + M - N
    sees = sees if visible is None else sees & hidden(visible)
    return softmax(np.where(sees, score, -np.inf)) @ value


def additive(
    query: ndarray, key: ndarray, value: ndarray, w_query: ndarray, w_key: ndarray,
    w_score: ndarray, mask: Any = None, keep: Any = None, p: float = 0.0, *,
    scale: float = 1.0, inverted: bool = False, kept: Any = lambda p: 1 / (1 - p),
) -> ndarray:  # fmt: skip
    q, k = query @ w_query.T, key @ w_key.T
    score = np.tanh(q[..., :, None, :] + k[..., None, :, :]) @ w_score * scale
    visible = np.ones(score.shape, bool)
    if mask is not None and mask.dtype == bool:
        visible = visible & (~mask if inverted else mask)
    elif mask is not None:
        visible, score = visible & (mask != -np.inf), score + np.where(mask == -np.inf, 0, mask)
    weights = softmax(np.where(visible, score, -np.inf))
    return (weights if keep is None else np.where(keep, weights * kept(p), 0)) @ value


def backward(
    d_output: ndarray, query: ndarray, key: ndarray, value: ndarray, mask: Any = None,
    keep: Any = None, p: float = 0.0, *, query_scale: Any = lambda D: D**-0.5,
    delta: bool = True, undropped: bool = False, transposed: bool = False,
    forgotten: bool = False,
) -> tuple[ndarray, ...]:  # fmt: skip
    scale = query.shape[-1] ** -0.5
    score = query @ key.mT * scale
    if mask is not None:
        score = np.where(mask, score, -np.inf) if mask.dtype == bool else score + mask
    weights = softmax(score)
    factor = 1.0 if keep is None else keep / (1 - p)
    d_weights = d_output @ value.mT * (1.0 if forgotten else factor)
    mean = (weights * d_weights).sum(-1, keepdims=True) if delta else 0.0
    d_score = weights * (d_weights - mean)
    d_key = (d_score.mT @ query) * scale
    if transposed:
        d_key = d_key.reshape(*d_key.shape[:2], *d_key.shape[:1:-1]).mT
    d_value = (weights if undropped else weights * factor).mT @ d_output
    found = (d_score @ key * query_scale(query.shape[-1]), d_key, d_value)
    if mask is None or mask.dtype == bool:
        return found
    extra = tuple(range(d_score.ndim - mask.ndim))
    ones = tuple(
        at for at, size in enumerate(mask.shape) if size == 1 != d_score.sum(extra).shape[at]
    )
    return *found, d_score.sum(extra).sum(ones, keepdims=True)


def without_padding(mask: Any, padding: Any, H: int) -> Any:
    return layers.merge_masks(mask, None, H)


def rms(y: ndarray, weight: ndarray, bias: Any, eps: float) -> ndarray:
    found = weight * y / np.sqrt((y**2).mean(-1, keepdims=True) + eps)
    return found if bias is None else found + bias


def exchanged_uv(**given: Any) -> Any:
    own = given["parameters"]
    return given | {"parameters": own | {"u": own["v"], "v": own["u"]}}


def heads_by_reshape(x: ndarray, H: int) -> ndarray:
    B, N, F = x.shape
    return x.reshape(B, H, N, F // H)


def mha(**changed: Any) -> Callable[..., Any]:
    return lambda **given: layers.multi_head_attention(**given, **changed)


def sdpa(**changed: Any) -> Callable[..., Any]:
    return partial(attend, **changed)


Said = tuple[str, Callable[..., Any], tuple[str, ...], str]
SDPA, ALIBI, MHA = "scaled_dot_product_attention", "alibi_attention", "multi_head_attention"
PLACE = r"(row|key|column|head) \d+ alone|last head|temperature"
BY_D, UNSCALED, INVERTED = r"scaled by 1/D|D\^-1\b", r"not scaled|scale", r"True means hidden"
KEPT, TOP_LEFT = r"kept weights that are not scaled", r"top-left causal"


def filled(number: float) -> Callable[..., Any]:
    """Boolean masks fill with a number, float ones are added: softmax as in a textbook."""

    def kernel(
        query: ndarray, key: ndarray, value: ndarray, mask: Any = None, keep: Any = None,
        p: float = 0.0,
    ) -> Any:  # fmt: skip
        score = query @ key.mT * query.shape[-1] ** -0.5
        if mask is not None:
            score = np.where(mask, score, number) if mask.dtype == bool else score + mask
        with np.errstate(invalid="ignore"):
            e = np.exp(score - score.max(-1, keepdims=True))
            weights = e / e.sum(-1, keepdims=True)
        return (weights if keep is None else np.where(keep, weights / (1 - p), 0)) @ value

    return kernel


FILLED = r"boolean mask hides at {},", r"NaN in rows that a float mask empties"
TWO: dict[str, Said] = {
    **{
        f"masks filled with {number:g}": (
            SDPA, filled(number), (FILLED[0].format(f"{number:g}"), FILLED[1]), PLACE)
        for number in (-100.0, -1e4)
    },
    "1/D, a mask inverted": (
        SDPA, sdpa(scale=lambda D: 1 / D, inverted=True), (BY_D, INVERTED), PLACE),
    "no scale, dropout not scaled": (
        SDPA, sdpa(scale=lambda D: 1.0, kept=lambda p: 1.0),
        (r"scores that are not scaled", KEPT), PLACE),
    "1/D, float masks ignored": (
        SDPA, sdpa(scale=lambda D: 1 / D, floats=False), (BY_D, r"float masks? .*ignored"), PLACE),
    "no scale, the last tile lost": (
        SDPA, sdpa(scale=lambda D: 1.0, weigh=last_tile_lost),
        (r"scores that are not scaled", r"last tile left out where it is not full"), PLACE),
    "an output not rescaled, a mask inverted": (
        SDPA, sdpa(weigh=output_not_rescaled, inverted=True),
        (r"output that is not rescaled", INVERTED), PLACE),
    "1/D, no maximum": (
        SDPA, sdpa(scale=lambda D: 1 / D, weigh=overflowing),
        (BY_D, r"without the maximum subtracted"), PLACE),
    "no maximum, a mask inverted": (
        SDPA, sdpa(weigh=overflowing, inverted=True),
        (r"without the maximum subtracted", INVERTED), PLACE),
    "a mask inverted, dropout not scaled": (
        SDPA, sdpa(inverted=True, kept=lambda p: 1.0), (INVERTED, KEPT), PLACE),
    "start-aligned, no scale": (
        ALIBI, partial(alibi, offset=lambda N, M: 0, scale=lambda D: 1.0),
        (TOP_LEFT, r"scores that are not scaled"), PLACE),
    "start-aligned, slopes that grow": (
        ALIBI, partial(alibi, offset=lambda N, M: 0, sign=-1.0), (TOP_LEFT, r"grows with"), PLACE),
    "a bias within the scale, a mask inverted": (
        ALIBI, partial(alibi, inside=True, inverted=True),
        (r"bias scaled with the scores", INVERTED), PLACE),
    "no maximum in softmax, float masks ignored": (
        "softmax", partial(plain_softmax, floats=False),
        (r"without the maximum subtracted", r"float masks? .*ignored"), PLACE),
    "u and v exchanged, positions not shifted": (
        "transformer_xl_attention", partial(relative, exchanged=True, moved=False),
        (r"u and v exchanged", r"not shifted"), PLACE),
    "u and v exchanged, 1/D": (
        "transformer_xl_attention", partial(relative, exchanged=True, scale=lambda D: 1 / D),
        (r"u and v exchanged", BY_D), PLACE),
    "additive: a mask inverted, dropout not scaled": (
        "additive_attention", partial(additive, inverted=True, kept=lambda p: 1.0),
        (INVERTED, KEPT), PLACE),
    "dq not scaled, dv without dropout": (
        f"{SDPA}_grad", partial(backward, query_scale=lambda D: 1.0, undropped=True),
        (r"query.*(not scaled|factor|D\^)", r"value.*(dropout|undropped|draw|kept|where .*p)"),
        PLACE),
    "no delta, dv without dropout": (
        f"{SDPA}_grad", partial(backward, delta=False, undropped=True),
        (r"without delta|no row mean", r"value.*(dropout|undropped|draw|kept|where .*p)"), PLACE),
    "dq not scaled, dk transposed": (
        f"{SDPA}_grad", partial(backward, query_scale=lambda D: 1.0, transposed=True),
        (r"query.*(not scaled|factor|D\^)", r"key.*(transposed|exchanged|other order|read as)"),
        PLACE),
    "1/sqrt(F), padding ignored": (
        MHA, lambda **g: layers.multi_head_attention(
            **g, scale=lambda D: g["query"].shape[-1] ** -0.5, merge_masks=without_padding),
        (r"1/sqrt\((F|H D)\)|F\^-0\.5", r"padding"), PLACE),
    "heads by a reshape, padding ignored": (
        MHA, mha(split=heads_by_reshape, merge_masks=without_padding),
        (r"heads split", r"padding"), PLACE),
    "a norm without the mean, u and v exchanged": (
        "transformer_xl_layer",
        lambda **g: layers.transformer_xl_layer(**exchanged_uv(**g), norm=rms),
        (r"mean", r"u and v exchanged"), PLACE),
    "three: 1/D, a mask inverted, dropout not scaled": (
        SDPA, sdpa(scale=lambda D: 1 / D, inverted=True, kept=lambda p: 1.0),
        (BY_D, INVERTED, KEPT), PLACE),
    "three: start-aligned, no scale, slopes that grow": (
        ALIBI, partial(alibi, offset=lambda N, M: 0, scale=lambda D: 1.0, sign=-1.0),
        (TOP_LEFT, r"scores that are not scaled", r"grows with"), PLACE),
    "three: float masks ignored, a mask inverted, no maximum": (
        SDPA, sdpa(floats=False, inverted=True, weigh=overflowing),
        (r"float masks? .*ignored", INVERTED, r"without the maximum subtracted"), PLACE),
}  # fmt: skip
"""The operation, its function, what must be told of each mistake, and what must not."""


DRAWS = 60


def draws_of(implementation: Implementation) -> dict[str, list[Case]]:
    """Draws by the kind of their failure, or "passed"."""
    found = dict[str, list[Case]]()
    for recipe in draw_recipes(implementation.operation.name, "any", DRAWS, 0):
        case = case_of(recipe, "float32")
        if max(recipe.sizes.values()) <= 200:
            found.setdefault(outcome_kind(implementation, case), []).append(case)
    return found


def implementation_of(operation: str, function: Callable[..., Any]) -> Implementation:
    """A function whose answers are stored in float32."""

    def kernel(**given: Any) -> Any:
        found = function(**given)
        return map_leaves(lambda x: None if x is None else np.asarray(x, np.float32), found)

    return Implementation(load_sample("one_fault_each"), CATALOGUE[operation], operation, kernel)


def causes_of(operation: str, function: Callable[..., Any]) -> list[Cause]:
    """What is told of a function, of each kind of failure."""
    return causes_in(implementation_of(operation, function))


def causes_in(faulty: Implementation, **how: Any) -> list[Cause]:
    """The same of an implementation."""
    found = draws_of(faulty)
    passing = found.pop("passed", [])
    failing = {kind: cases for kind, cases in found.items() if kind in NUMERIC}
    told = (
        diagnose(faulty, cases, choose_of_other_kinds(failing, kind), passing=passing, **how)
        for kind, cases in failing.items()
    )
    return [cause for cause in told if cause]


def grade(causes: Sequence[Cause], musts: Sequence[str], never: str) -> str:
    """
    ``right``: every mistake is told; ``part``: some are; ``untrue``: one is told that is not there.
    """
    named = [each.words for cause in causes for each in cause.explanations]
    words = [each for both in named for each in both.split(" and with ")]
    text = "\n".join(cause.words for cause in causes)
    if re.search(never, text) or not all(any(re.search(m, w) for m in musts) for w in words):
        return "untrue"
    found = [bool(re.search(one, text)) for one in musts]
    return "right" if all(found) else "part" if any(found) else "vague"


VAGUE = {"heads by a reshape, padding ignored"}
"""Of these no mistake is told: a scale of the values that no bound of the specification covers."""
PARAMETERS = [
    pytest.param(name, marks=pytest.mark.xfail(strict=True)) if name in VAGUE else name
    for name in TWO
]


@pytest.mark.parametrize("name", PARAMETERS)
def test_every_mistake_is_told_and_no_other(name: str) -> None:
    operation, function, musts, never = TWO[name]
    causes = causes_of(operation, function)
    assert grade(causes, musts, never) == "right", [cause.words for cause in causes]


SLOPES_AND_NAN = """
import numpy as np

def alibi_attention(query, key, value):
    (N, D), (H, M) = query.shape[-2:], key.shape[1:3]
    i, j = np.arange(N)[:, None], np.arange(M)
    slopes = 2.0 ** -np.arange(1, H + 1, dtype=query.dtype)[:, None, None]
    score = query @ key.swapaxes(-1, -2) / np.sqrt(D) + slopes * (j - (M - N + i))
    score = np.where(j <= M - N + i, score, -np.inf)
    with np.errstate(all="ignore"):
        e = np.exp(score - score.max(-1, keepdims=True))
        return (e / e.sum(-1, keepdims=True) @ value).astype(query.dtype)
"""


def test_nan_where_no_key_is_seen_makes_no_other_stage_wrong(tmp_path: Path) -> None:
    """With one key and causality most rows see none; what was wrong of ALiBi are its slopes."""
    (tmp_path / "mine.py").write_text(SLOPES_AND_NAN)
    own = load(str(tmp_path / "mine.py")).implementations[0]
    for N in (5, 9):
        sizes = {"B": 1, "H": 3, "N": N, "M": 5, "D": 4, "E": 4}
        (seen,) = observe(own, [case_of(fixed_recipe(own.operation, sizes, seed=7), "float32")])
        found = first_wrong_stage(own, seen, CallBudget())
        assert found and found[1].startswith("the softmax's sum or the product with the values")
        assert "right with one key and no mask" in found[1]


def test_nan_where_no_key_is_seen_alone_is_of_no_stage(tmp_path: Path) -> None:
    """With eight heads the slopes are right."""
    (tmp_path / "mine.py").write_text(SLOPES_AND_NAN)
    own = load(str(tmp_path / "mine.py")).implementations[0]
    sizes = {"B": 1, "H": 8, "N": 9, "M": 5, "D": 4, "E": 4}
    (seen,) = observe(own, [case_of(fixed_recipe(own.operation, sizes, seed=7), "float32")])
    assert seen.wrong and first_wrong_stage(own, seen, CallBudget()) is None


def two_of_alibi_backward(**given: Any) -> Any:
    """The gradient of an attention with one mask too many and the slopes of another paper."""
    return explained_gradient(TWO_OF_ALIBI)(given)


def explained_gradient(words: Sequence[str]) -> Callable[[Any], Any]:
    """The gradient of ALiBi's attention with these mistakes, in float32."""
    operation = CATALOGUE[f"{ALIBI}_grad"]
    own = [one for one in candidates(operation.name) if one.words in words]
    both = joined_all(operation, own)
    assert len(own) == len(words) and both is not None and both.of is not None
    of = both.of
    return lambda inputs: of(inputs, "float32")


TWO_OF_ALIBI = ("a top-left causal mask", "slopes in a plain geometric series")


def test_a_gradient_is_explained_by_what_is_told_of_its_output() -> None:
    """A third mistake was told of the gradient, which was both others said again."""
    faulty = implementation_of(f"{ALIBI}_grad", two_of_alibi_backward)
    found = draws_of(faulty)
    failing = observe(faulty, found["wrong number"][:6])
    passed = observe(faulty, found["passed"][:6])
    told = frozenset((*TWO_OF_ALIBI, "scores that are not scaled"))
    best = match_told(faulty.operation, told, failing, passed)
    assert [{*each.parts} for each, _ in best] == [{*TWO_OF_ALIBI}]
    assert not match_told(faulty.operation, frozenset(TWO_OF_ALIBI[:1]), failing, passed)
    cause = diagnose(faulty, found["wrong number"], passing=found["passed"], told=told)
    assert cause and cause.together and cause.names == {*TWO_OF_ALIBI}


def test_sets_of_mistakes_that_nothing_tells_apart_are_no_mistake_of_their_own() -> None:
    def candidate(*parts: str) -> Candidate:
        return Candidate("", " and with ".join(parts), lambda seen: None, parts=parts[1:] and parts)

    sets = [(candidate("scale", "tail"), 0.1), (candidate("scale", "head"), 0.1)]
    cause = cause_of_candidates(sets)
    assert cause.together and cause.names == {"scale", "tail"} and "head" in cause.words
    alone = cause_of_candidates([*sets, (candidate("mask"), 0.1)])
    assert not alone.together and alone.names == {"mask"}
