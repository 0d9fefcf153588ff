"""Clauses of self-attention and multi-head attention."""

from typing import Any

import numpy as np
from numpy import ndarray

from attnverify import spec
from attnverify.spec import layers
from tests.spec.clauses.projections import (
    B,
    D,
    F,
    H,
    M,
    N,
    drawn,
    in_heads,
    interleaved,
    known_names_alone,
    linear,
    ones_where_absent,
    projections,
    refuses_other_names,
    side_by_side,
    transposed,
    twins_of_dropout,
    without,
)
from tests.spec.clauses.registry import Function, answering, clause, given, patched
from tests.support.random_arrays import close, normals

Inputs = dict[str, Any]
SINGLE, MANY, SELF = "self_attention", "multi_head_attention", "multi_head_self_attention"


def single(**options: Any) -> Inputs:
    x, *weights = normals((B, N, F), (3, F), (3, F), (2, F))
    names = ("w_query", "w_key", "w_value")
    return {"x": x, "parameters": dict(zip(names, weights, strict=True))} | options


NAMES = ("q_proj", "k_proj", "v_proj", "out_proj")


def many(bias: bool = True, **options: Any) -> Inputs:
    query, key, value = normals((B, N, F), (B, M, F), (B, M, F))
    inputs = {"query": query, "key": key, "value": value, "num_heads": H}
    return inputs | {"parameters": projections(*NAMES, bias=bias)} | options


def several(**options: Any) -> Inputs:
    """Multi-head attention of a sequence to itself."""
    inputs = {"x": normals((B, N, F))[0], "num_heads": H}
    return inputs | {"parameters": projections(*NAMES)} | options


@clause(
    SINGLE,
    1,
    false=[
        given(SINGLE, known_names_alone("w_query", "w_key", "w_value")),
        answering(SINGLE, lambda o, **_: o + 0.1),
        given(SINGLE, lambda x, **_: {"x": x + 0.1}),
    ],
)
def three_weights_and_no_bias_are_the_parameters(layer: Function) -> None:
    x = single()
    q, k, v = (x["x"] @ w.T for w in x["parameters"].values())
    assert close(layer(**x), spec.softmax(q @ k.swapaxes(1, 2) / np.sqrt(3)) @ v)
    assert refuses_other_names(layer, x, "w_query.bias")


def rescaled(parameters: Inputs, **_: Any) -> Inputs:
    """Twin: the scale is that of the width F."""
    return {"parameters": parameters | {"w_query": parameters["w_query"] * np.sqrt(3 / F)}}


SEEN = np.array([[True, False, True], [False, True, True], [True, True, False]])


@clause(
    SINGLE,
    2,
    false=[
        given(SINGLE, rescaled),
        given(SINGLE, lambda mask=None, **_: {"mask": mask[:1] if np.ndim(mask) > 1 else mask}),
        given(SINGLE, lambda mask=None, **_: {"mask": None if np.ndim(mask) == 1 else mask}),
    ],
)
def the_scale_is_of_the_width_of_the_key_and_the_mask_broadcasts(layer: Function) -> None:
    x = single()
    q, k, v = (x["x"] @ w.T for w in x["parameters"].values())
    score = q @ k.swapaxes(1, 2) / np.sqrt(3)
    assert close(layer(**x), spec.softmax(score) @ v)
    each = np.stack([SEEN, SEEN.T])
    for mask in (SEEN, SEEN[0], SEEN[:, :1], each, each[:, :1]):
        assert close(layer(**x, mask=mask), spec.softmax(score, mask) @ v)


@clause(SINGLE, 3, false=twins_of_dropout(SINGLE))
def weights_of_one_head_are_dropped_by_the_draw(layer: Function) -> None:
    x = single()
    q, k, v = (x["x"] @ w.T for w in x["parameters"].values())
    weights = spec.softmax(q @ k.swapaxes(1, 2) / np.sqrt(3), SEEN)
    whole = drawn(B, N, N)
    for keep in (whole, whole[0], whole[:, :1]):
        wanted = np.where(keep, weights / 0.75, 0.0) @ v
        assert close(layer(**x, mask=SEEN, keep=keep, p=0.25), wanted)


def formula(
    query: ndarray, key: ndarray, value: ndarray, parameters: Inputs, mask: Any = None
) -> tuple[ndarray, ndarray]:
    q, k, v = (
        in_heads(linear(x, parameters, name))
        for x, name in zip((query, key, value), NAMES, strict=False)
    )
    weights = spec.softmax(q @ k.swapaxes(-1, -2) / np.sqrt(D), mask)
    return linear(side_by_side(weights @ v), parameters, "out_proj"), weights


def equal_pairs(found: Any, wanted: Any) -> bool:
    return len(found) == len(wanted) and all(
        close(*pair) for pair in zip(found, wanted, strict=True)
    )


@clause(
    MANY,
    1,
    false=[
        given(MANY, ones_where_absent(*NAMES)),
        given(MANY, known_names_alone(*projections(*NAMES))),
        *[given(MANY, transposed(f"{name}.weight")) for name in NAMES],
        *[given(MANY, without(f"{name}.bias")) for name in ("q_proj", "v_proj", "out_proj")],
    ],
)
def four_projections_have_weights_and_biases(layer: Function) -> None:
    for x in (many(), many(bias=False)):
        inputs = {name: value for name, value in x.items() if name != "num_heads"}
        assert equal_pairs(layer(**x), formula(**inputs))
    assert refuses_other_names(layer, many(), "in_proj_weight")


@clause(
    MANY,
    2,
    false=[
        patched(MANY, layers, "split_heads", interleaved),
        answering(MANY, lambda found, **_: (found[0], found[1][:, ::-1])),
        patched(
            MANY,
            layers,
            "scaled_dot_product_score",
            lambda q, k: spec.scaled_dot_product_score(q, k) / np.sqrt(H),
        ),
    ],
)
def a_head_has_its_columns_and_the_scale_of_its_width(layer: Function) -> None:
    x = many()
    _, weights = layer(**x)
    q, k = (linear(x[name], x["parameters"], f"{name[0]}_proj") for name in ("query", "key"))
    for h in range(H):
        columns = slice(h * D, h * D + D)
        score = q[..., columns] @ k[..., columns].swapaxes(1, 2) / np.sqrt(D)
        assert close(weights[:, h], spec.softmax(score))
    out = np.eye(F) * (np.arange(F) < D)  # what head 1 gives is left out
    alone = x | {"parameters": x["parameters"] | {"out_proj.weight": out}}
    assert np.ptp(layer(**alone)[0][..., D:], axis=(0, 1)).tolist() == [0.0] * D


HIDING = np.array([[False, True, False, False], [True, False, True, False], [False] * 4])
PADDING = np.array([[False, False, False, True], [False, False, True, True]])


@clause(
    MANY,
    3,
    false=[
        given(MANY, lambda attn_mask=None, **_: {"attn_mask": ~attn_mask}),
        given(MANY, lambda key_padding_mask, **_: {"key_padding_mask": ~key_padding_mask}),
        given(MANY, lambda **_: {"attn_mask": None}),
        given(MANY, lambda **_: {"key_padding_mask": None}),
    ],
)
def both_masks_hide_where_they_are_true(layer: Function) -> None:
    visible = ~(HIDING[None, None] | PADDING[:, None, None])
    x = many()
    inputs = {name: value for name, value in x.items() if name != "num_heads"}
    found = layer(**x, attn_mask=HIDING, key_padding_mask=PADDING)
    assert equal_pairs(found, formula(**inputs, mask=visible))
    assert np.array_equal(found[1] > 0, np.broadcast_to(visible, (B, H, N, M)))


def averaged(found: Any, **_: Any) -> Any:
    mean = found[1].mean(axis=1, keepdims=True)
    return found[0], np.broadcast_to(mean, found[1].shape)


def over_the_heads(found: Any, **_: Any) -> Any:
    return found[0], found[1].mean(axis=1)


def even_where_none_is_seen(found: Any, **_: Any) -> Any:
    return found[0], np.where(found[1].any(axis=-1, keepdims=True), found[1], 1 / M)


def zero_where_none_is_seen(found: Any, **_: Any) -> Any:
    none = ~found[1].any(axis=(1, 3))
    return np.where(none[..., None], 0.0, found[0]), found[1]


@clause(
    MANY,
    4,
    false=[
        answering(MANY, averaged),
        answering(MANY, over_the_heads),
        answering(MANY, even_where_none_is_seen),
        answering(MANY, zero_where_none_is_seen),
    ],
)
def weights_come_per_head_and_a_row_without_keys_gives_the_bias(layer: Function) -> None:
    nothing_seen = np.arange(N)[:, None] == np.full(M, 1)
    x = many(attn_mask=nothing_seen)
    output, weights = layer(**x)
    assert weights.shape == (B, H, N, M) and not close(weights[:, 0], weights[:, 1], within=1e-3)
    assert not weights[:, :, 1].any() and close(weights[:, :, [0, 2]].sum(-1), np.ones((B, H, 2)))
    assert (output[:, 1] == x["parameters"]["out_proj.bias"]).all()


def weights_before_the_dropout(found: Any, **x: Any) -> Any:
    return found[0], spec.multi_head_attention(**x | {"keep": None, "p": 0.0})[1]


@clause(MANY, 5, false=twins_of_dropout(MANY, answering(MANY, weights_before_the_dropout)))
def the_weights_are_those_behind_the_dropout(layer: Function) -> None:
    x = many(attn_mask=HIDING)
    inputs = {name: value for name, value in many().items() if name != "num_heads"}
    plain = formula(**inputs, mask=~HIDING)[1]
    v = in_heads(linear(x["value"], x["parameters"], "v_proj"))
    whole = drawn(B, H, N, M)
    for keep in (whole, whole[0], whole[:, :1, :1]):
        weights = np.where(keep, plain / 0.75, 0.0)
        output = linear(side_by_side(weights @ v), x["parameters"], "out_proj")
        assert equal_pairs(layer(**x, keep=keep, p=0.25), (output, weights))


def ignoring(name: str, *arguments: str) -> list[Function]:
    return [given(name, lambda argument=each, **_: {argument: None}) for each in arguments]


@clause(
    SELF,
    1,
    false=[
        answering(SELF, lambda found, **_: found[:1]),
        answering(SELF, averaged),
        *ignoring(SELF, "attn_mask", "key_padding_mask"),
        given(SELF, lambda **_: {"keep": None, "p": 0.0}),
        given(SELF, without("q_proj.bias")),
    ],
)
def one_sequence_is_query_key_and_value(layer: Function) -> None:
    masks = {"attn_mask": ~SEEN, "key_padding_mask": np.array([[False] * N, [False, False, True]])}
    options = masks | {"keep": drawn(B, H, N, N), "p": 0.25}
    x = several(**options)
    sequence = x.pop("x")
    wanted = spec.multi_head_attention(sequence, sequence, sequence, **x)
    assert equal_pairs(layer(**several(**options)), wanted)
