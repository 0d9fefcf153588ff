"""
Isolating inputs: the kernel is asked with inputs that leave one stage of it to be seen, from one
stage to all of them. What is wrong first names the stage; what was right before says what was left
out by then.

An attention with a single key returns its value, whatever the scores are; with equal scores it
averages; without a mask the scores alone are added. A layer whose output projection and
feed-forward are 0 is its norm and what it adds up.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify import bounds
from attnverify.backends.implementation import Implementation
from attnverify.catalogue.operation import Operation
from attnverify.diagnosis import sentences as say
from attnverify.diagnosis.call_budget import CallBudget
from attnverify.diagnosis.whereabouts.outputs import exceeds_bound
from attnverify.inputs.recipe import Inputs
from attnverify.judge.errors import Disagreement, Unsupported
from attnverify.judge.observation import Observation, arrays, observe_answer
from attnverify.reference.oracle import evaluate_spec

Change = Callable[[Inputs], Inputs | None]
MASKS = ("mask", "visible", "attn_mask", "key_padding_mask")
EQUAL, BIASED = "where all scores are equal, without a mask", "where {} are 0, without a mask"
SCORING = ("query", "u", "v", "query_pos_bias", "key_pos_bias", "w_score")


@dataclass(frozen=True)
class Isolated:
    """
    What an input leaves.

    words    what is said of the input: "with one key"
    stage    what is wrong if this is, and what leaves less was right; "" where that says nothing
    change   of the inputs, None where it cannot be made; what it does not change asks nothing new
    weights  what a probe of the weights has to add: "all" of it, "more" beside it, or "nothing"
    """

    words: str
    stage: str
    change: Change
    weights: str = "more"


def with_one_key(given: Inputs) -> Inputs:
    """The first key alone, visible to all rows, or to the last where a row sees no later one."""
    keys = {name: given[name][..., :1, :] for name in ("key", "value") if name in given}
    rows = {"query": given["query"][..., :1, :]} if is_tied(given) else {}
    return without_masks(given) | keys | rows


def is_tied(given: Inputs) -> bool:
    """Whether rows and keys are counted alike, or by a table."""
    return "position" in given or "key_pos_bias" in given


def without_masks(given: Inputs) -> Inputs:
    return given | {name: None for name in MASKS if given.get(name) is not None}


def without_draw(given: Inputs) -> Inputs:
    return given | ({"keep": None, "p": 0.0} if given.get("keep") is not None else {})


def with_equal_scores(given: Inputs) -> Inputs:
    """Nothing that is scored: queries, keys and positions, or what projects them."""
    own: Any = given.get("parameters")
    if own is None:
        return given | {name: np.zeros_like(given[name]) for name in SCORING if name in given}
    new = {n: np.zeros_like(x) for n, x in own.items() if n in SCORED and x is not None}
    for name in {"qkv_net.weight", "qkv_net.bias"} & {*own}:
        scored = np.arange(len(own[name])) * 3 // len(own[name]) < 2
        new[name] = np.where(scored.reshape(-1, *(1,) * (own[name].ndim - 1)), 0, own[name])
    return given | {"parameters": own | new}


def below_zero(score: np.ndarray) -> np.ndarray:
    """The scores less the largest of each row."""
    top = score.max(axis=-1, keepdims=True)
    return np.asarray(score - np.where(np.isfinite(top), top, 0))


SIDES = ("q_proj", "query.linear", "k_proj", "key.linear", "r_net")
SCORED = (
    *(f"{part}.{leaf}" for part in SIDES for leaf in ("weight", "bias")),
    *("w_query", "w_key", "u", "v", "query_pos_bias", "key_pos_bias", "key_pos_embeddings"),
)
"""Both sides, since one may take what belongs to the other, and the positions."""

OUT, FEED = ("o_net", "out_proj", "output"), ("ff_in", "ff_out")


def zeroed(given: Inputs, *parts: str) -> Inputs | None:
    """The weights of some parts of a layer at 0, their biases left; None of one without them."""
    own: Any = given["parameters"]
    names = {f"{part}.weight" for part in parts}
    new = {n: np.zeros_like(x) for n, x in own.items() if n in names and x is not None}
    return given | {"parameters": own | new} if new else None


ATTENTION = (
    Isolated(
        "with one key and no mask",
        "the weight of a single key, the values or how they are added up",
        lambda x: without_draw(with_one_key(x)) if not is_tied(x) else x,
        "nothing",
    ),
    Isolated(
        EQUAL,
        "the softmax's sum or the product with the values",
        lambda x: with_equal_scores(without_draw(without_masks(x))),
        "all",
    ),
    Isolated(
        "without mask and dropout",
        "the scores and what is made of them",
        lambda x: without_draw(without_masks(x)),
        "all",
    ),
    Isolated("without dropout", "the mask", without_draw),
    Isolated("with all of it", "the dropout", lambda x: x),
)
SOFTMAX = (
    Isolated(
        "where all scores are 0, without a mask",
        "",
        lambda x: without_masks(x | {"score": np.zeros_like(x["score"])}),
    ),
    Isolated(
        "where each row's largest score is 0",
        "the maximum or the exponentials",
        lambda x: without_masks(x | {"score": below_zero(x["score"])}),
    ),
    Isolated("without a mask", "the maximum that is subtracted", without_masks),
    Isolated("with all of it", "the mask", lambda x: x),
)
LAYER = (
    Isolated(
        "where the weights of the output projection and the feed-forward are 0",
        "the norm, the biases of the output projections and what is added up",
        lambda x: zeroed(x, *OUT, *FEED),
    ),
    Isolated(
        "where the weights of the output projection are 0",
        "the feed-forward",
        lambda x: zeroed(x, *OUT),
    ),
    Isolated(
        EQUAL,
        "the projections of values and output, how heads are split and joined",
        lambda x: with_equal_scores(without_draw(without_masks(zeroed(x, *FEED) or x))),
    ),
    Isolated(
        "without mask and dropout",
        "the attention's scores and what they are projected from",
        lambda x: without_draw(without_masks(zeroed(x, *FEED) or x)),
    ),
    Isolated("without dropout", "the masks", without_draw),
    Isolated("with all of it", "the dropout", lambda x: x),
)


def rows_of(operation: Operation) -> Sequence[Isolated]:
    """What isolates the stages of an operation; nothing for what has one alone."""
    if operation.is_gradient or operation.outside is not None:
        return ()
    if "parameters" in operation.arguments:
        return of_biased(LAYER, "queries and keys") if operation.traits.slopes else LAYER
    if "score" in operation.arguments:
        return SOFTMAX
    if not {"query", "key", "value"} <= set(operation.arguments):
        return ()
    return of_biased(ATTENTION, "queries") if operation.traits.slopes else ATTENTION


def of_biased(rows: Sequence[Isolated], zeros: str) -> Sequence[Isolated]:
    """The same where scores have biases that no query makes, with what is 0."""
    words = BIASED.format(zeros)
    return [replace(row, words=words) if row.words == EQUAL else row for row in rows]


def first_wrong_stage(
    implementation: Implementation, o: Observation, budget: CallBudget
) -> tuple[Isolated, str] | None:
    """Find which stage is wrong first, with the words for it; None where nothing isolates it."""
    rows, right = rows_of(implementation.operation), ""
    if not rows or not isinstance(o.inputs.get("parameters", {}), dict):
        return None  # each of several layers has its own
    own, law = o.actual[0], o.expected[0]
    if own.shape == law.shape and not wrong_where_seen(own, law, o.bounds[0]).any():
        return None  # what isolates a stage isolates it in rows of the first output that see a key
    for row, given in new_inputs(rows, o.inputs):
        if given is o.inputs:
            return (row, say.WRONG_STAGE.format(stage=row.stage, right=right)) if right else None
        if not budget.affords(1, 1):
            return None
        wrong = is_wrong(implementation, o, given)
        if wrong and not row.stage:
            return None
        if wrong:
            before = say.RIGHT_BEFORE.format(words=right) if right else ""
            words = say.FIRST_STAGE.format(stage=row.stage, words=row.words, right=before)
            return row, words + right_alone(implementation, o, given, budget)
        right = right if wrong is None else row.words
    return None


def right_alone(
    implementation: Implementation, o: Observation, given: Inputs, budget: CallBudget
) -> str:
    """Say that the same is right where there is one head, or one batch element."""
    axes = implementation.operation.axes
    for letter, words in (("H", say.RIGHT_WITH_ONE_HEAD), ("B", say.RIGHT_WITH_ONE_ENTRY)):
        there = {name: x.split() for name, x in axes.items() if given.get(name) is not None}
        held = {name: x.index(letter) for name, x in there.items() if letter in x}
        if "query" not in held or given["query"].shape[held["query"]] == 1:
            continue
        alone = {name: given[name].take([0], axis=at) for name, at in held.items()}
        plain = without_draw(without_masks(given)) | alone
        if budget.affords(1, 1) and is_wrong(implementation, o, plain) is False:
            return words
    return ""


def new_inputs(rows: Sequence[Isolated], inputs: Inputs) -> Iterator[tuple[Isolated, Inputs]]:
    """Each row with its inputs, without those that leave what another row leaves."""
    changed = [(row, new) for row in rows if (new := row.change(inputs)) is not None]
    for number, (row, given) in enumerate(changed):
        if is_same(given, inputs):
            yield row, inputs
            return
        if not any(is_same(given, other) for _, other in changed[:number]):
            yield row, given


def is_same(one: Inputs, other: Inputs) -> bool:
    """Whether two inputs hold the same arrays, by their numbers."""
    return one.keys() == other.keys() and all(alike(one[name], other[name]) for name in one)


def alike(x: Any, y: Any) -> bool:
    if isinstance(x, dict) and isinstance(y, dict):
        return x.keys() == y.keys() and all(alike(x[name], y[name]) for name in x)
    if isinstance(x, np.ndarray) and isinstance(y, np.ndarray):
        return x is y or (x.shape == y.shape and np.array_equal(x, y, equal_nan=x.dtype != bool))
    return x is y or (not isinstance(x, np.ndarray) and not isinstance(y, np.ndarray) and x == y)


def is_wrong(implementation: Implementation, o: Observation, given: Inputs) -> bool | None:
    """
    Whether the kernel's first output errs on the inputs; None where it, or the specification, does
    not take them.
    """
    try:
        law = tuple(arrays(evaluate_spec(implementation.operation, given)))[: len(o.expected)]
    except ValueError:  # one key, and blocks for many
        return None
    with np.errstate(all="ignore"):
        limits = bounds.bound(
            implementation.operation.name, given, implementation.precision(o.dtype)
        )
    try:
        own = observe_answer(implementation, replace(o, expected=law), given)
    except (Disagreement, Unsupported):
        return None
    return bool(wrong_where_seen(own[0], law[0], arrays(limits)[0]).any())


def wrong_where_seen(own: ndarray, law: ndarray, bound: ndarray | None) -> ndarray:
    """
    Tell which elements err beyond their bound in rows that see a key: where one sees none nothing
    is scored, weighed or added up, and all of it is exactly 0.
    """
    wrong = exceeds_bound(own, law, bound)
    if bound is None or law.ndim < 2:
        return wrong
    seen = ((law != 0) | (bound > 0)).any(axis=-1, keepdims=True)
    return np.asarray(wrong & seen)
