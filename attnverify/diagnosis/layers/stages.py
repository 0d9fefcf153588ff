"""
Mistakes in one stage of a layer: how heads are split and joined, a projection that is passed by,
the norm, the activation, what its masks become.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import permutations
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.operation import Operation
from attnverify.conventions.slopes import SLOPES, of_ranks_alone
from attnverify.diagnosis.layers.in_stages import in_stages
from attnverify.diagnosis.mistakes.sentinels import NUMBERS
from attnverify.diagnosis.mistakes.stages import OTHER_SOFTMAXES
from attnverify.diagnosis.tiles.scores import tile_softmaxes
from attnverify.inputs.recipe import Inputs
from attnverify.reference import attention, layers

Mistake = tuple[str, Callable[[Operation, Inputs], Any]]


def layer_stage_mistakes(operation: Operation) -> Iterator[Mistake]:
    """Words and function of each, for a layer that has the stage."""
    if operation.chapter != "layers" or operation.is_gradient:
        return
    for stages, words, hooks in HOOKED:
        if all(takes(operation, name) for name in stages):
            yield words, with_hooks(hooks)
    if takes(operation, "norm") and "mems" not in operation.arguments:
        yield "the layer's input x added behind the feed-forward, not its input", of_the_input
        yield OF_ATTENTION, fed_by_attention
    if {"query", "key", "value"} <= set(operation.arguments):
        for one, other in permutations(PARTS, 2):
            words = ANOTHERS.format(one=one, other=other)
            yield words, partial(with_projection_of, one, other)
        yield "key and value exchanged behind their projections", with_key_for_value


def of_the_input(operation: Operation, inputs: Inputs) -> Any:
    """A second residual that begins where the first does."""
    feed = partial(layers.feed_forward, residual=lambda _, y: inputs["x"] + y)
    return in_stages(operation)(**inputs, feed=feed)


OF_ATTENTION = (
    "a feed-forward whose input is what the attention returns, ahead of residual and norm"
)


def fed_by_attention(operation: Operation, inputs: Inputs) -> Any:
    """The residual around the feed-forward is the right one."""
    returned: list[ndarray] = []

    def residual(x: ndarray, y: ndarray) -> ndarray:
        returned.append(y)
        return x + y

    def feed(x: ndarray, parameters: Any, eps: float) -> ndarray:
        return layers.feed_forward(returned[-1], parameters, eps, residual=lambda _, y: x + y)

    return in_stages(operation)(**inputs, residual=residual, feed=feed)


def takes(operation: Operation, hook: str) -> bool:
    """Whether the reference has a stage of this name."""
    return hook in HOOKS.get(operation.name, ())


COMMON = ("weigh", "split", "join")
HOOKS: dict[str, tuple[str, ...]] = {
    "multi_head_attention": (*COMMON, "linear", "merge_masks", "drop", "see"),
    "multi_head_self_attention": (*COMMON, "linear", "merge_masks", "drop", "see"),
    "relative_multi_head_attention": COMMON,
    "alibi_multi_head_attention": (*COMMON, "biases"),
    "transformer_xl_layer": ("weigh", "join", "norm", "parts", "together", "residual"),
    "transformer_xl": ("weigh", "join", "norm", "parts", "together", "residual"),
    "self_attention": ("weigh",),
}
"""The stages that each layer of :mod:`attnverify.reference.layers` takes as arguments."""
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")


def with_hooks(hooks: dict[str, Any]) -> Callable[[Operation, Inputs], Any]:
    return lambda operation, inputs: in_stages(operation)(**inputs, **hooks)


def split_by_reshape(x: ndarray, H: int) -> ndarray:
    B, N, F = x.shape
    return x.reshape(B, H, N, F // H)


def split_in_turn(x: ndarray, H: int) -> ndarray:
    B, N, F = x.shape
    return x.reshape(B, N, F // H, H).transpose(0, 3, 1, 2)


def join_by_reshape(x: ndarray) -> ndarray:
    B, H, N, D = x.shape
    return x.reshape(B, N, H * D)


def join_heads_first(x: ndarray) -> ndarray:
    """What has the batch in front is read with the heads in front."""
    B, H, N, D = x.shape
    return x.reshape(H, B, N, D).transpose(1, 2, 0, 3).reshape(B, N, H * D)


def join_in_turn(x: ndarray) -> ndarray:
    B, H, N, D = x.shape
    return x.transpose(0, 2, 3, 1).reshape(B, N, H * D)


def passed_by(which: str, x: ndarray, parameters: Any, name: str) -> ndarray:
    return x if name == which else layers.linear(x, parameters, name)


def parts_in_order(order: tuple[int, ...], y: ndarray, H: int) -> list[ndarray]:
    found = np.split(y, 3, axis=-1)
    return [found[order.index(i)] for i in range(3)]


PARTS = ("query", "key", "value")
ANOTHERS = "the projected {one} in place of the projected {other}, which is never read"


def parts_of_another(one: int, other: int, y: ndarray, H: int) -> list[ndarray]:
    found = np.split(y, 3, axis=-1)
    found[other] = found[one]
    return found


def with_projection_of(one: str, other: str, operation: Operation, inputs: Inputs) -> Any:
    """What is projected for one argument stands in for another."""
    own = inputs["parameters"]
    is_short = "k_proj.weight" in own
    a, b = (f"{name[0]}_proj" if is_short else f"{name}.linear" for name in (one, other))
    new = {f"{b}.{leaf}": own.get(f"{a}.{leaf}") for leaf in ("weight", "bias")}
    return operation.reference(**inputs | {"parameters": own | new, other: inputs[one]})


def with_key_for_value(operation: Operation, inputs: Inputs) -> Any:
    """Key and value change places with the parameters of their projections."""
    own = inputs["parameters"]
    k, v = ("k_proj", "v_proj") if "k_proj.weight" in own else ("key.linear", "value.linear")
    leaves = ("weight", "bias")
    new = {f"{a}.{leaf}": own.get(f"{b}.{leaf}") for a, b in ((k, v), (v, k)) for leaf in leaves}
    changed = {"parameters": own | new, "key": inputs["value"], "value": inputs["key"]}
    return operation.reference(**inputs | changed)


def with_hidden_rows(mask: Any, padding: Any, H: int) -> ndarray:
    """Where N and M agree; else nothing is hidden by padding."""
    merged = attention.merge_masks(mask, None, H)
    return merged if padding is None else np.where(padding[:, None, :, None], -np.inf, merged)


def zeroed(score: ndarray, mask: Any) -> tuple[ndarray, ndarray]:
    s, visible = attention.see(score, mask)
    return np.where(visible, s, 0.0), np.ones_like(visible)


STAGES: dict[str, dict[str, Any]] = {
    "heads split by a reshape alone, without a transpose": {"split": split_by_reshape},
    "heads split and joined by a reshape alone, without a transpose": {
        "split": split_by_reshape,
        "join": join_by_reshape,
    },
    "columns dealt to the heads in turn where they are split": {"split": split_in_turn},
    "columns dealt to the heads in turn where they are split and joined": {
        "split": split_in_turn,
        "join": join_in_turn,
    },
    "heads joined by a reshape alone, without a transpose": {"join": join_by_reshape},
    "heads joined as if they stood in front of the batch (batch and heads in the other order)": {
        "join": join_heads_first
    },
    "heads joined column by column": {"join": join_in_turn},
    "dropout ignored": {"drop": lambda weights, keep, p: weights},
    "kept weights that are not scaled by 1/(1-p)": {
        "drop": lambda w, keep, p: w if keep is None else np.where(keep, w, 0)
    },
    "kept weights scaled by 1/(1-p) twice": {
        "drop": lambda w, keep, p: attention.drop(w, keep, p) / (1 - p)
    },
    "a keep mask of which True means dropped": {
        "drop": lambda w, keep, p: attention.drop(w, None if keep is None else ~keep, p)
    },
    "a memory that stands behind the segment": {
        "together": lambda mem, x: np.concatenate([x, mem], axis=1)
    },
    "padding that hides rows in place of keys": {"merge_masks": with_hidden_rows},
    "boolean masks added as numbers, 1 for True": {
        "merge_masks": partial(attention.merge_masks, hidden=1.0)
    },
    **{
        f"what is hidden at {number:g}, which is a number and not minus infinity": {
            "merge_masks": partial(attention.merge_masks, hidden=number)
        }
        for number in NUMBERS
    },
    "what is hidden at 1e-9, which hides nothing": {
        "merge_masks": partial(attention.merge_masks, hidden=1e-9)
    },
    "hidden scores at 0, so that they count": {"see": zeroed},
    "scores of 0 taken for hidden": {
        "weigh": lambda score, visible: attention.weigh(score, visible & (score != 0))
    },
}


def norm_of(
    normal: Callable[[ndarray, float], ndarray], x: ndarray, weight: ndarray, bias: Any, eps: float
) -> ndarray:
    y = weight * normal(x, eps)
    return y if bias is None else y + bias


def over(axes: Any, x: ndarray, eps: float) -> ndarray:
    centred = x - x.mean(axis=axes, keepdims=True)
    out: ndarray = centred / np.sqrt((centred**2).mean(axis=axes, keepdims=True) + eps)
    return out


def parts_of_norm(x: ndarray) -> tuple[ndarray, ndarray]:
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred, (centred**2).mean(axis=-1, keepdims=True)


def divided(by: Callable[[ndarray, float, int], ndarray], x: ndarray, eps: float) -> ndarray:
    """Return a norm that divides what is centred by a function of variance, eps and width."""
    centred, variance = parts_of_norm(x)
    return centred / by(variance, eps, x.shape[-1])


def over_padding(by: int, counted: bool, x: ndarray, eps: float) -> ndarray:
    """
    Norm rows padded by 0 up to a power of two.

    ``by``: how many of mean and variance are divided by the padded width, the variance first;
    ``counted``: whether what is padded, 0 minus the mean, is summed into the variance.
    """
    F = x.shape[-1]
    P = 1 << (F - 1).bit_length()
    mean = x.sum(axis=-1, keepdims=True) / (P if by > 1 else F)
    squares = ((x - mean) ** 2).sum(axis=-1, keepdims=True) + counted * (P - F) * mean**2
    out: ndarray = (x - mean) / np.sqrt(squares / (P if by else F) + eps)
    return out


PADDED = "padded columns up to a power of two"
DIVIDED = ("", "variance divided by the padded width", "mean and variance divided by that width")
NORMS: dict[str, Callable[..., ndarray]] = {
    "a norm that divides by the square of variance and eps, not by its root": partial(
        norm_of, partial(divided, lambda v, eps, F: (v + eps) ** 2)
    ),
    "a norm that divides by variance and eps, without the root": partial(
        norm_of, partial(divided, lambda v, eps, F: v + eps)
    ),
    "a norm with an unbiased variance, which divides by F - 1": partial(
        norm_of, partial(divided, lambda v, eps, F: np.sqrt(v * F / max(F - 1, 1e-300) + eps))
    ),
    "a norm without its eps": partial(norm_of, partial(divided, lambda v, eps, F: np.sqrt(v))),
    "a norm whose eps is added to the number of columns, not to the variance": partial(
        norm_of, partial(divided, lambda v, eps, F: np.sqrt(v * F / (F + eps)))
    ),
    "a norm with the eps beside the root": partial(
        norm_of, partial(divided, lambda v, eps, F: np.sqrt(v) + eps)
    ),
    "a norm with an unbiased deviation, F - 1 for F, and the eps beside the root": partial(
        norm_of, partial(divided, lambda v, eps, F: np.sqrt(v * F / max(F - 1, 1e-300)) + eps)
    ),
    "a norm that only centres, its deviation not divided by": partial(
        norm_of, partial(divided, lambda v, eps, F: np.ones_like(v))
    ),
    "a norm without its mean, by the root of the mean square": partial(
        norm_of, lambda x, eps: x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps)
    ),
    "a norm with the deviation of numbers that are not centred": partial(
        norm_of,
        lambda x, eps: parts_of_norm(x)[0] / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps),
    ),
    "a norm over the positions in place of the width": partial(norm_of, partial(over, -2)),
    "a norm over positions and width together": partial(norm_of, partial(over, (-2, -1))),
    **{
        f"a norm with {PADDED}, {said}": partial(norm_of, partial(over_padding, by, counted))
        for by, counted, said in (
            (0, True, "each minus the mean, summed into the variance"),
            (1, True, f"summed into the variance: {DIVIDED[1]}"),
            (2, True, f"summed into mean and variance: {DIVIDED[2]}"),
            (1, False, f"its {DIVIDED[1]}"),
            (2, False, f"its {DIVIDED[2]}, nothing of them summed"),
        )
    },
    "a norm left out": lambda x, weight, bias, eps: x,
}
RESIDUALS: dict[str, Callable[[ndarray, ndarray], ndarray]] = {
    "residuals left out": lambda x, y: y,
    "residuals added twice": lambda x, y: 2 * x + y,
    "residuals subtracted": lambda x, y: y - x,
}
ACTIVATIONS: dict[str, Callable[[ndarray], ndarray]] = {
    "tanh in place of the ReLU": np.tanh,
    "SiLU in place of the ReLU": lambda a: a / (1 + np.exp(-a)),
    "a sigmoid in place of the ReLU": lambda a: 1 / (1 + np.exp(-a)),
    "the square of the ReLU in its place": lambda a: np.maximum(a, 0) ** 2,
}
FEEDS: dict[str, dict[str, Any]] = {
    "the ReLU behind the second linear map of the feed-forward, not between the two": {
        "activation": lambda a: a,
        "residual": lambda x, y: x + np.maximum(y, 0),
    },
    "the ReLU behind the residual of the feed-forward, not between its linear maps": {
        "activation": lambda a: a,
        "residual": lambda x, y: np.maximum(x + y, 0),
    },
}


def feed(**stages: Any) -> dict[str, Any]:
    return {"feed": partial(layers.feed_forward, **stages)}


own_biases = attention.get_alibi_biases
BIASES: dict[str, Callable[[int, ndarray], ndarray]] = {
    **{words: partial(own_biases, slopes=rule) for words, rule in SLOPES.values()},
    **{
        f"slopes of H/{ranks} heads in each of {ranks} shards, as if they were all": partial(
            own_biases, slopes=partial(of_ranks_alone, ranks)
        )
        for ranks in (2, 4)
    },
    "an ALiBi bias that grows with the distance": lambda H, visible: -own_biases(H, visible),
    "no ALiBi bias": lambda H, visible: 0 * own_biases(H, visible),
    "an ALiBi bias of positions, hidden keys counted too": (
        lambda H, visible: own_biases(H, np.ones_like(visible))
    ),
}
HOOKED: tuple[tuple[tuple[str, ...], str, dict[str, Any]], ...] = (
    *((tuple(hooks), words, hooks) for words, hooks in STAGES.items()),
    *((("weigh",), words, {"weigh": weigh}) for words, weigh in OTHER_SOFTMAXES.items()),
    *(
        (("weigh",), words, {"weigh": lambda s, seen, w=w: w(np.where(seen, s, -np.inf))})
        for words, w in tile_softmaxes()
    ),
    *(
        (("norm",), f"{words}{where}", hooks)
        for words, norm in NORMS.items()
        for where, hooks in (
            ("", {"norm": norm, **feed(norm=norm)}),
            (", in the first norm alone", {"norm": norm}),
            (", in the second norm alone", feed(norm=norm)),
        )
    ),
    *(
        (("norm",), f"{words}{where}", hooks)
        for words, residual in RESIDUALS.items()
        for where, hooks in (
            ("", {"residual": residual, **feed(residual=residual)}),
            (", that of the attention alone", {"residual": residual}),
            (", that of the feed-forward alone", feed(residual=residual)),
        )
    ),
    *((("norm",), words, feed(activation=change)) for words, change in ACTIVATIONS.items()),
    *((("norm",), words, feed(**stages)) for words, stages in FEEDS.items()),
    *(
        (
            ("norm",),
            f"a joint projection that holds {', '.join(PARTS[i] for i in order)}, in this order",
            {"parts": partial(parts_in_order, order)},
        )
        for order in permutations(range(3))
    ),
    *(
        (
            ("norm",),
            ANOTHERS.format(one=PARTS[read], other=PARTS[lost]),
            {"parts": partial(parts_of_another, read, lost)},
        )
        for read, lost in permutations(range(3), 2)
    ),
    *((("biases",), words, {"biases": biases}) for words, biases in BIASES.items()),
    *(
        (
            ("linear",),
            f"{name} never applied: what goes in goes on",
            {"linear": partial(passed_by, name)},
        )
        for name in PROJECTIONS
    ),
)
"""The stages that a layer must have, the words, and what stands in their place."""
