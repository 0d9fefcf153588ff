"""
The layers, and every gradient of the specification and its vectorised form, against scalar loops in
long double and a step of 1e-200 in the imaginary direction.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy import ndarray

from attnverify import numpy_ref, spec
from attnverify.catalogue.operation import CATALOGUE
from attnverify.catalogue.pytrees import leaves, map_leaves
from tests.spec.scalar_derivatives import PARTS, gradients
from tests.spec.scalar_layers import LABML, LAYERS, of_batch
from tests.spec.test_scalar_oracle import COLUMNS, drawing, given, hiding, near, some
from tests.support.scalar_oracle import ATTENTIONS, Inputs, long

B, H, N, M, F, P, S, INNER = 2, 2, 3, 4, 4, 4, 1, 3
D = F // H
SHAPES: dict[str, tuple[int, ...]] = {
    "qkv_net": (3 * F, F),
    "layer_norm": (F,),
    "ff_in": (INNER, F),
    "ff_out": (F, INNER),
    "ff_norm": (F,),
}


def weights(names: str, bias: str = "", seed: int = 1, **tables: tuple[int, ...]) -> Inputs:
    """The weights of these names, [F F] or as in SHAPES, the biases of those, and tables."""
    draw, found = drawing(seed), {}
    for name in names.split():
        found[f"{name}.weight"] = draw(*SHAPES.get(name, (F, F)))
        if name in bias.split():
            found[f"{name}.bias"] = draw(SHAPES.get(name, (F,))[0])
    return found | {name: draw(*shape) for name, shape in tables.items()}


MULTI_HEAD = "q_proj k_proj v_proj out_proj"
XL = "qkv_net r_net o_net layer_norm"
FED = "ff_in ff_out ff_norm"
TABLES = {"key_pos_embeddings": (2 * P, H, D), "key_pos_bias": (2 * P, H)}
TABLES |= {"query_pos_bias": (H, D)}
U_V = {"u": (H, D), "v": (H, D)}


def three(keys: int) -> Inputs:
    draw = drawing(2)
    return {"query": draw(B, N, F), "key": draw(B, keys, F), "value": draw(B, keys, F)}


def square(**options: Any) -> Inputs:
    draw = drawing(3)
    parameters = {"w_query": draw(2, F), "w_key": draw(2, F), "w_value": draw(3, F)}
    return {"x": draw(B, M, F), "parameters": parameters} | options


def many(**options: Any) -> Inputs:
    return three(M) | {"parameters": weights(MULTI_HEAD, MULTI_HEAD), "num_heads": H} | options


def many_of_one(**options: Any) -> Inputs:
    x = {"x": drawing(2)(B, M, F), "parameters": weights(MULTI_HEAD, "q_proj v_proj")}
    return x | {"num_heads": H} | options


def relative(**options: Any) -> Inputs:
    parameters = weights(LABML, "value.linear output", **TABLES)
    return three(M) | {"parameters": parameters, "num_heads": H} | options


def alibi(**options: Any) -> Inputs:
    return three(N) | {"parameters": weights(LABML, LABML), "num_heads": H} | options


def layer(fed: bool, memory: int, bias: str, **options: Any) -> Inputs:
    draw = drawing(4)
    names = f"{XL} {FED}" if fed else XL
    x = {"x": draw(B, N, F), "position": draw(N + memory, F)}
    x |= {"parameters": weights(names, bias, **U_V), "num_heads": H}
    return x | ({"mem": draw(B, memory, F)} if memory else {}) | options


def stack(memory: int, mem_len: int, **options: Any) -> Inputs:
    draw = drawing(5)
    layers = [weights(f"{XL} {FED}", "ff_in", seed=6, **U_V), weights(XL, XL, seed=7, **U_V)]
    x = {"x": draw(1, N, F), "parameters": layers, "num_heads": H}
    return x | {"mems": [draw(1, memory, F) for _ in layers], "mem_len": mem_len} | options


def kept(*shape: int) -> ndarray:
    return np.random.default_rng(8).random(shape) < 0.7


PADDED = np.arange(M) >= np.array([[M - 1], [M]])
DROPPED = {"keep": kept(B, H, N, M), "p": 0.3}
CALLS: dict[str, list[Inputs]] = {
    "self_attention": [
        square(),
        square(mask=some(M, M)),
        square(mask=hiding(some(B, M, M)), keep=kept(B, M, M), p=0.3),
    ],
    "multi_head_attention": [
        many(),
        many(attn_mask=hiding(some(N, M)), key_padding_mask=PADDED) | DROPPED,
        many(attn_mask=hiding(some(B * H, N, M))),
        many(attn_mask=~some(B * H, N, M)[:, ::-1], keep=kept(H, 1, M), p=0.5),
    ],
    "multi_head_self_attention": [
        many_of_one(attn_mask=hiding(some(M, M)), key_padding_mask=PADDED),
        many_of_one(keep=kept(B, H, M, M), p=0.3),
    ],
    "relative_multi_head_attention": [
        relative(align="end", visible=some(N, M)) | DROPPED,
        relative(align="start", visible=some(B, 1, N, M)),
    ],
    "alibi_multi_head_attention": [
        alibi(visible=some(N, N)),
        alibi(visible=np.tri(N, dtype=bool), keep=kept(B, 1, N, N), p=0.3),
    ],
    "transformer_xl_layer": [
        layer(False, 0, XL),
        layer(True, S, f"{FED} qkv_net", visible=np.arange(M) != 1, eps=0.25),
        layer(True, S, "", **DROPPED),
    ],
    "transformer_xl": [
        stack(S, 2, eps=1e-3),
        stack(0, 0),
        stack(S, 9, keep=kept(2, 1, H, N, M), p=0.3),
    ],
}
each_layer = pytest.mark.parametrize(
    ("name", "x"), [(name, x) for name, calls in CALLS.items() for x in calls]
)


def agree(found: Any, expected: list[ndarray]) -> bool:
    """
    Each near its own largest number, or to a hundredth of the largest of all: the gradient of a
    key's bias is 0.
    """
    found = list(leaves(found))
    least = max(float(np.abs(y).max(initial=0.0)) for y in expected) / 100
    return len(found) == len(expected) and all(
        near(x, y, least=least) for x, y in zip(found, expected, strict=True)
    )


@COLUMNS
@each_layer
def test_a_layer_is_its_formula(name: str, x: Inputs, column: Any) -> None:
    assert agree(getattr(column, name)(**x), of_batch(name, long(x)))


def arriving(name: str, outputs: list[Any]) -> dict[str, Any]:
    """What arrives at the outputs, by the names of the gradient's arguments."""
    draw = drawing(9)
    d_output, *more = (draw(*y.shape) for y in outputs)
    if name == "transformer_xl":
        return {"d_output": d_output, "d_new_mems": more}
    second = "d_lse" if CATALOGUE[name].traits.wide_outputs else "d_weights"
    return {"d_output": d_output} | ({second: more[0]} if more else {})


@each_layer
def test_a_gradient_of_a_layer_is_the_derivative_of_the_formula(name: str, x: Inputs) -> None:
    d = arriving(name, list(leaves(getattr(spec, name)(**x))))
    at_outputs = [y for key, y in d.items() if key != "d_new_mems"]
    expected = gradients(lambda x: of_batch(name, x), long(x), *long(at_outputs))
    for column in (spec, numpy_ref):
        assert agree(getattr(column, f"{name}_grad")(**d, **x), expected)


def score_calls(name: str) -> list[Inputs]:
    x = given(name.replace("score", "attention"), 3, 4)
    del x["value"]
    if "additive" in name or "scaled" in name:
        x |= {key: x[key][(0,) * (x[key].ndim - 2)] for key in ("query", "key")}
    return [x, x | {"align": "end"}] if "align" in x else [x]


def part_calls(name: str) -> list[Inputs]:
    draw = drawing(1)
    if name == "softmax":
        masks = (None, some(3, 4), hiding(some(3, 4)), hiding(some(3, 4))[1:2], draw(3, 1))
        return [{"score": draw(3, 4)} | ({} if m is None else {"mask": m}) for m in masks]
    if name == "dropout":
        return [{"weights": draw(3, 4), "keep": keep, "p": 0.3} for keep in (kept(3, 4), kept(4))]
    if name == "merge_attention":
        lses = draw(3, 1, 2, 4)
        lses[1:, 0, 0], lses[:2, 0, 1, 1:] = -np.inf, -np.inf
        return [{"outputs": draw(3, 1, 2, 4, 5), "lses": lses}]
    if name == "grouped_attention":
        shapes = {"query": (1, 4, 3, 2), "key": (1, 2, 4, 2), "value": (1, 2, 4, 2)}
        arrays = {each: draw(*shape) for each, shape in shapes.items()}
        arrays |= {"mask": hiding(some(3, 4)), "sink": draw(4)}
        return [arrays | {"soft_cap": 1.5, "causal": True}]
    if name == "latent_attention":
        shapes = {"query": (2, 3, 2, 3), "query_rope": (2, 3, 2, 2)}
        shapes |= {"latent": (2, 4, 3), "key_rope": (2, 4, 2), "sink": (3,)}
        parts = {each: draw(*shape) for each, shape in shapes.items()}
        return [parts | {"scale": 5**-0.5, "soft_cap": 1.5, "causal": True}]
    if name == "selected_attention":
        shapes = {"query": (2, 4, 3, 2), "key": (2, 2, 5, 2), "value": (2, 2, 5, 2), "sink": (4,)}
        arrays = {each: draw(*shape) for each, shape in shapes.items()}
        rows = [[2, 0], [1, -1], [-1, 2]], [[-1, -1], [0, 1], [1, 0]]
        choices = {"selection": np.array([rows, rows[::-1]]), "block": 2}
        return [arrays | choices | {"soft_cap": 1.5, "causal": True}]
    if name == "packed_attention":
        shapes = {"query": (6, 4, 2), "key": (7, 2, 2), "value": (7, 2, 2)}
        tokens = {each: draw(*shape) for each, shape in shapes.items()} | {"sink": draw(4)}
        starts = {
            "query_starts": np.array([1, 3, 3, 4, 5]),
            "key_starts": np.array([0, 2, 3, 3, 6]),
        }
        return [tokens | starts | {"soft_cap": 1.5, "causal": True}]
    if name == "rotary_embedding":
        call = {"x": draw(2, 1, 3, 7), "positions": np.array([[0, 3, -2], [9, 9, 1]])}
        return [
            call | {"pairing": "halves", "rotary_dim": 6, "frequencies": draw(3)},
            call | {"pairing": "interleaved", "rotary_dim": 4, "base": 8.0},
        ]
    if "shift" in name:
        return [{"x": draw(*size)} for size in ((3, 4), (5, 2), (1, 3), (4, 4))]
    return score_calls(name)


@pytest.mark.parametrize("name", PARTS)
def test_a_part_and_its_gradient_are_formula_and_derivative(name: str) -> None:
    for x in part_calls(name):
        expected = PARTS[name](long(x))
        d = arriving(name, expected)
        derivatives = gradients(PARTS[name], long(x), *long([*d.values()]))
        for column in (spec, numpy_ref):
            assert agree(getattr(column, name)(**x), expected)
            assert agree(getattr(column, f"{name}_grad")(**d, **x), derivatives)


@COLUMNS
def test_a_memory_begins_as_zeros_is_kept_as_rows_and_has_no_gradient(column: Any) -> None:
    for length in (1, 4):
        mems = column.init_mems(2, length, 3, 5)
        assert [x.tolist() for x in mems] == [[[[0.0] * 5] * length] * 3] * 2
    draw = drawing(1)
    for old, new, length in ((2, 3, 4), (2, 3, 1), (1, 2, 9), (0, 2, 2), (2, 1, 0)):
        mems, hids = [draw(2, old, 3)], [draw(2, new, 3)]
        rows = [
            [*before, *after]
            for before, after in zip(mems[0].tolist(), hids[0].tolist(), strict=True)
        ]
        wanted = [row[max(0, old + new - length) :] for row in rows]
        found = column.update_mems(hids, mems, length)
        assert found[0].shape == (2, min(length, old + new), 3) and found[0].tolist() == wanted
        by = column.update_mems_grad([np.ones_like(found[0])], hids, mems, length)
        assert agree(by, [0 * hids[0], 0 * mems[0]])


def off_by_little(gradient: Callable[..., Any], last: bool) -> Callable[..., Any]:
    """Twin: the largest number of the first or the last gradient that is not all zeros."""

    def wrong(**inputs: Any) -> Any:
        found = map_leaves(np.copy, gradient(**inputs))
        numbers = [x for x in leaves(found) if x.any()]
        x = numbers[-1 if last else 0]
        x[np.unravel_index(np.argmax(np.abs(x)), x.shape)] *= 1 + 1e-11
        return found

    return wrong


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_a_gradient_of_a_layer_that_is_off_by_little_would_be_noticed(
    name: str, last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = off_by_little(getattr(spec, f"{name}_grad"), last)
    monkeypatch.setattr(spec, f"{name}_grad", wrong)
    with pytest.raises(AssertionError):
        test_a_gradient_of_a_layer_is_the_derivative_of_the_formula(name, CALLS[name][0])


@pytest.mark.parametrize("name", PARTS)
def test_a_gradient_of_a_part_that_is_off_by_little_would_be_noticed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = off_by_little(getattr(spec, f"{name}_grad"), True)
    monkeypatch.setattr(spec, f"{name}_grad", wrong)
    with pytest.raises(AssertionError):
        test_a_part_and_its_gradient_are_formula_and_derivative(name)


def test_every_operation_has_its_formula_and_every_gradient_its_derivative() -> None:
    differentiated = {name.removesuffix("_grad") for name in CATALOGUE if name.endswith("_grad")}
    others = CATALOGUE.keys() - differentiated - {f"{name}_grad" for name in differentiated}
    files = [Path(__file__), Path(__file__).with_name("test_scalar_oracle.py")]
    tests = "".join(file.read_text() for file in files)
    assert all(f"column.{name}(" in tests for name in others)
    assert differentiated == {*ATTENTIONS, *PARTS, *LAYERS, "update_mems"}
    assert CALLS.keys() == LAYERS.keys()
