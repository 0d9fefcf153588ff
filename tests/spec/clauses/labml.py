"""Clauses of labml's layers and of their gradients."""

from typing import Any

import numpy as np
from numpy import ndarray

from attnverify import spec
from attnverify.spec import layers
from tests.spec.clauses.learned import exchanged
from tests.spec.clauses.multi_head_gradients import (
    are_derivatives,
    twins_of_presence,
    unseen_is_absent,
)
from tests.spec.clauses.projections import (
    B,
    D,
    F,
    H,
    M,
    N,
    drawn,
    in_heads,
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
from tests.spec.clauses.registry import Function, answering, clause, given, patched, refuses
from tests.support.random_arrays import close, normals

Inputs = dict[str, Any]
RELATIVE, ALIBI = "relative_multi_head_attention", "alibi_multi_head_attention"
LINEARS = ("query.linear", "key.linear", "value.linear", "output")
TABLES = ("key_pos_embeddings", "key_pos_bias", "query_pos_bias")
P = 5


def relative(bias: bool = True, **options: Any) -> Inputs:
    query, key, value = normals((B, N, F), (B, M, F), (B, M, F))
    absent = () if bias else ("value.linear.bias", "output.bias")
    square = {
        name: x
        for name, x in projections(*LINEARS).items()
        if name not in ("query.linear.bias", "key.linear.bias", *absent)
    }
    tables = dict(zip(TABLES, normals((2 * P, H, D), (2 * P, H), (H, D), seed=2), strict=True))
    inputs = {"query": query, "key": key, "value": value, "parameters": square | tables}
    return inputs | {"num_heads": H, "align": "end"} | options


def alibi(bias: bool = True, **options: Any) -> Inputs:
    query, key, value = normals((B, N, F), (B, N, F), (B, N, F))
    inputs = {"query": query, "key": key, "value": value, "num_heads": H, "visible": CAUSAL}
    return inputs | {"parameters": projections(*LINEARS, bias=bias)} | options


CAUSAL = spec.causal_mask(N, N)
SEEN = np.array([[True, True, False, True], [True, False, True, True], [False, True, True, True]])


def between_projections(x: Inputs, attend: Function) -> ndarray:
    names = ("query", "key", "value")
    q, k, v = (in_heads(linear(x[name], x["parameters"], f"{name}.linear")) for name in names)
    return linear(side_by_side(attend(q, k, v)), x["parameters"], "output")


def by_learned(x: Inputs, visible: Any = None) -> ndarray:
    tables = [x["parameters"][name] for name in TABLES]
    return between_projections(
        x,
        lambda q, k, v: spec.learned_relative_attention(q, k, v, *tables, x["align"], visible),
    )


def with_a_bias(x: ndarray, parameters: Inputs, name: str) -> ndarray:
    """Twin of ``linear``: one more for the queries."""
    return linear(x, parameters, name) + 0.1 * (name == "query.linear")


@clause(
    RELATIVE,
    1,
    false=[
        patched(RELATIVE, layers, "linear", with_a_bias),
        given(RELATIVE, known_names_alone(*relative()["parameters"])),
        given(RELATIVE, without("value.linear.bias")),
        given(RELATIVE, without("output.bias")),
        *[given(RELATIVE, transposed(f"{name}.weight")) for name in LINEARS],
    ],
)
def projections_of_queries_and_keys_have_no_bias(layer: Function) -> None:
    for x in (relative(), relative(bias=False)):
        assert close(layer(**x), by_learned(x))
    for name in ("query.linear.bias", "key.linear.bias"):
        assert refuses_other_names(layer, relative(), name)


def of_the_first_entry(visible: Any, **_: Any) -> Inputs:
    return {"visible": visible[:1] if np.ndim(visible) == 4 else visible}


@clause(
    RELATIVE,
    2,
    false=[
        given(RELATIVE, exchanged),
        given(RELATIVE, lambda **_: {"align": "end"}),
        given(RELATIVE, lambda **_: {"visible": None}),
        given(RELATIVE, of_the_first_entry),
    ],
)
def align_chooses_the_slice_and_visible_broadcasts(layer: Function) -> None:
    whole = drawn(B, H, N, M)
    for align in ("end", "start"):
        x = relative(align=align)
        for visible in (None, SEEN, SEEN[0], whole, whole[:, :1], whole[:, :1, :1]):
            assert close(layer(**x, visible=visible), by_learned(x, visible))


@clause(RELATIVE, 3, false=twins_of_dropout(RELATIVE))
def weights_of_the_relative_layer_are_dropped_by_the_draw(layer: Function) -> None:
    x, whole = relative(), drawn(B, H, N, M)
    tables = [x["parameters"][name] for name in TABLES]
    for keep in (whole, whole[0], whole[:, :1]):

        def attend(q: ndarray, k: ndarray, v: ndarray, keep: ndarray = keep) -> ndarray:
            score = spec.learned_relative_score(q, k, *tables, "end")
            return np.where(keep, spec.softmax(score, SEEN) / 0.75, 0.0) @ v

        wanted = between_projections(x, attend)
        assert close(layer(**x, visible=SEEN, keep=keep, p=0.25), wanted)


def by_counts(x: Inputs, keep: Any = True, p: float = 0.0) -> ndarray:
    def attend(q: ndarray, k: ndarray, v: ndarray) -> ndarray:
        score = q @ k.swapaxes(-1, -2) / np.sqrt(D)
        counts = np.cumsum(x["visible"], axis=-1)
        biased = score + spec.get_slopes(H)[:, None, None] * counts
        return np.where(keep, spec.softmax(biased, x["visible"]) / (1 - p), 0.0) @ v

    return between_projections(x, attend)


@clause(
    ALIBI,
    1,
    false=[
        given(ALIBI, ones_where_absent(*LINEARS)),
        given(ALIBI, known_names_alone(*alibi()["parameters"])),
        *[given(ALIBI, transposed(f"{name}.weight")) for name in LINEARS],
        *[
            given(ALIBI, without(f"{name}.bias"))
            for name in ("query.linear", "value.linear", "output")
        ],
    ],
)
def four_linear_maps_have_weights_and_biases(layer: Function) -> None:
    for x in (alibi(), alibi(bias=False)):
        assert close(layer(**x), by_counts(x))
    assert refuses_other_names(layer, alibi(), "q_proj.weight")


HOLES = np.array([[True, False, False], [True, False, True], [False, True, True]])


def by_position(n_heads: int, visible: ndarray) -> ndarray:
    return spec.get_slopes(n_heads)[:, None, None] * np.arange(visible.shape[-1])


def causal_if_absent(visible: Any = None, **_: Any) -> Inputs:
    return {"visible": CAUSAL if visible is None else visible}


def cut_to_size(query: ndarray, visible: Any, **_: Any) -> Inputs:
    """Twin: a larger mask is cut, as labml's cache of biases is."""
    size = query.shape[1]
    return {"visible": None if visible is None else visible[:size, :size]}


@clause(
    ALIBI,
    2,
    false=[
        patched(ALIBI, layers, "get_alibi_biases", by_position),
        given(ALIBI, causal_if_absent),
        given(ALIBI, cut_to_size),
    ],
)
def visible_is_required_and_its_keys_are_counted(layer: Function) -> None:
    for visible in (CAUSAL, HOLES, np.ones((N, N), bool)):
        x = alibi(visible=visible)
        assert close(layer(**x), by_counts(x))
    assert refuses(layer, "visible: wanted", **alibi(visible=None))
    assert refuses(layer, "visible: wanted", **alibi(visible=spec.causal_mask(N + 1, N + 1)))
    longer = normals((B, N + 1, F))[0]
    assert refuses(layer, "key: wanted", **alibi(key=longer, value=longer))


def remembering() -> Function:
    """Twin: the biases of the first mask, as long as it is not shorter (labml's page)."""
    kept: list[ndarray] = []

    def biases(n_heads: int, visible: ndarray) -> ndarray:
        kept.append(spec.get_alibi_biases(n_heads, visible))
        size = len(visible)
        return kept[0][:, :size, :size] if kept[0].shape[1] >= size else kept[-1]

    return patched(ALIBI, layers, "get_alibi_biases", biases)


@clause(ALIBI, 3, false=remembering())
def every_call_computes_the_biases_of_its_mask(layer: Function) -> None:
    for visible in (CAUSAL, HOLES, np.ones((N, N), bool), CAUSAL):
        x = alibi(visible=visible)
        assert close(layer(**x), by_counts(x))


@clause(ALIBI, 4, false=twins_of_dropout(ALIBI))
def weights_of_the_alibi_layer_are_dropped_by_the_draw(layer: Function) -> None:
    x, whole = alibi(), drawn(B, H, N, N)
    for keep in (whole, whole[0], whole[:, :1]):
        assert close(layer(**x, keep=keep, p=0.25), by_counts(x, keep, 0.25))


def unread_with_something(found: Any, **_: Any) -> Any:
    tables = {name: np.where(found[3][name] == 0, 1e-30, found[3][name]) for name in TABLES}
    return *found[:3], found[3] | tables


@clause(
    f"{RELATIVE}_grad",
    1,
    false=[
        answering(f"{RELATIVE}_grad", unread_with_something),
        given(f"{RELATIVE}_grad", lambda **_: {"visible": None}),
        given(f"{RELATIVE}_grad", exchanged),
    ],
)
def gradients_of_the_tables_are_those_of_the_attention(gradient: Function) -> None:
    visible = np.eye(N, M, dtype=bool)
    x, d_output = relative(align="start", visible=visible), normals((B, N, F), seed=3)[0]
    found = gradient(d_output=d_output, **x)
    assert are_derivatives(RELATIVE, found, x, ("query", "key", "value"), d_output)
    for name in TABLES[:2]:
        rows = found[3][name].reshape(2 * P, -1).any(axis=1)
        assert not rows[np.arange(2 * P) != P].any()  # the pairs read row P alone
    x, seen = relative(), SEEN & (np.arange(M) > 0)
    found = gradient(d_output=d_output, **x, visible=seen)[3]
    read = np.unique([P - (M - N) + j - i for i, j in np.argwhere(seen)])
    for name in TABLES[:2]:
        rows = found[name].reshape(2 * P, -1).any(axis=1)
        assert np.flatnonzero(rows).tolist() == read.tolist()


@clause(f"{RELATIVE}_grad", 2, false=twins_of_presence(f"{RELATIVE}_grad"))
def a_key_that_no_query_of_the_relative_layer_sees_is_absent(gradient: Function) -> None:
    d = {"d_output": normals((B, N, F), seed=3)[0]}
    unseen_is_absent(gradient, d, relative(visible=np.arange(M) < M - 1))


def biases_left_out(n_heads: int, visible: ndarray) -> ndarray:
    return 0 * spec.get_alibi_biases(n_heads, visible)


def with_slopes(found: Any, num_heads: int, **_: Any) -> Any:
    return *found, spec.get_slopes(num_heads)


@clause(
    f"{ALIBI}_grad",
    1,
    false=[
        patched(f"{ALIBI}_grad", layers, "get_alibi_biases", biases_left_out),
        answering(f"{ALIBI}_grad", with_slopes),
    ],
)
def the_biases_of_the_alibi_layer_are_constants(gradient: Function) -> None:
    x, d_output = alibi(visible=HOLES), normals((B, N, F), seed=3)[0]
    found = gradient(d_output=d_output, **x)
    assert len(found) == 4 and list(found[3]) == list(x["parameters"])
    assert are_derivatives(ALIBI, found, x, ("query", "key", "value"), d_output)


@clause(f"{ALIBI}_grad", 2, false=twins_of_presence(f"{ALIBI}_grad"))
def a_key_that_no_query_of_the_alibi_layer_sees_is_absent(gradient: Function) -> None:
    visible = np.array([[True, False, False], [True, True, False], [False, True, False]])
    d = {"d_output": normals((B, N, F), seed=3)[0]}
    unseen_is_absent(gradient, d, alibi(visible=visible))
