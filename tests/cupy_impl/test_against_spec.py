"""
cupy_impl on NumPy arrays against the specification: values, gradients, refusals, poison, dtypes.
What a device does is not tested here.
"""

import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import cupy
import numpy as np
import pytest
from ml_dtypes import bfloat16
from numpy import ndarray

from attnverify import cupy_impl, spec
from attnverify.bounds import BOUNDS, bound
from attnverify.catalogue.operation import CATALOGUE
from attnverify.catalogue.pytrees import leaves, map_leaves
from attnverify.cupy_impl import arrays, cuda
from attnverify.judge.comparison import compare
from attnverify.precision import resolve
from tests.rounding_variants.cases import small_inputs
from tests.support.roundings import count_roundings

pytestmark = pytest.mark.filterwarnings("error")

CHAPTERS = ("scores", "masks", "attention", "shifts", "relative", "alibi", "memory", "layers")
MODULES = [importlib.import_module(f"attnverify.cupy_impl.{chapter}") for chapter in CHAPTERS]
OURS = {name: getattr(module, name) for module in MODULES for name in module.__all__}
GRADIENTS = sorted(n for n in OURS if n.endswith("_grad") and CATALOGUE[n].is_attention)
DTYPES = {"float64": "float64", "float32": "float32", "float16": "float16", "bfloat16": bfloat16}
WITH_DTYPE = {"get_slopes", "sinusoidal_positions", "init_mems", "get_alibi_biases", "merge_masks"}
BITS = {8: "uint64", 4: "uint32", 2: "uint16"}

each_dtype = pytest.mark.parametrize("dtype", DTYPES)
each_attention_gradient = pytest.mark.parametrize("name", GRADIENTS)
each_arithmetic = pytest.mark.parametrize("name", sorted(BOUNDS))


def rng(*seed: Any) -> np.random.Generator:
    return np.random.default_rng([len(seed), *map(ord, "".join(map(str, seed)))])


def draw(name: str, dtype: str, *seed: Any) -> dict[str, Any]:
    """A small case of an operation, with arrays of its own."""
    inputs = small_inputs(Random(repr((name, dtype, *seed))), name, dtype)
    return map_leaves(lambda x: x.copy() if isinstance(x, ndarray) else x, inputs)


def call(name: str, inputs: dict[str, Any], dtype: str) -> list[Any]:
    """Our result in float64, on inputs of the dtype; every float in the result has that dtype."""
    given = map_leaves(
        lambda x: cupy_impl.from_numpy(x, dtype) if isinstance(x, ndarray) else x, inputs
    )
    found = list(leaves(OURS[name](**given, **dtype_keyword(name, dtype))))
    assert all(x is None or x.dtype == DTYPES[dtype] for x in found)
    return [x if x is None else cupy_impl.to_numpy(x) for x in found]


def dtype_keyword(name: str, dtype: str) -> dict[str, str]:
    return {"dtype": dtype} if name in WITH_DTYPE else {}


def test_the_operations_and_their_parameters_are_those_of_the_specification() -> None:
    def parameters(function: Callable[..., Any]) -> list[Any]:
        return [
            (p.name, p.default)
            for p in inspect.signature(function).parameters.values()
            if p.name != "dtype"
        ]

    assert set(OURS) == set(spec.__all__)
    assert all(parameters(OURS[name]) == parameters(getattr(spec, name)) for name in OURS)


@each_dtype
@each_arithmetic
def test_arithmetic_stays_within_the_bound(name: str, dtype: str) -> None:
    precision = resolve("wide", name, name, dtype)
    for seed in range(12):
        inputs = draw(name, dtype, seed)
        with np.errstate(all="ignore"):
            specified, limit = (
                list(leaves(getattr(spec, name)(**inputs))),
                list(leaves(bound(name, inputs, precision))),
            )
        top = 65504.0 if dtype == "float16" else 3e38 if dtype != "float64" else np.inf
        for actual, expected, most in zip(call(name, inputs, dtype), specified, limit, strict=True):
            assert (actual is None) == (expected is None)
            if expected is not None:
                assert actual.shape == expected.shape
                assert (found := compare(actual, expected, most, top)).passed, str(found)


@each_arithmetic
def test_narrow_floats_are_computed_wide_and_rounded_once(name: str) -> None:
    inputs = draw(name, "float16")
    once = [
        x if x is None else x.astype("float16").astype("float64")
        for x in call(name, inputs, "float32")
    ]
    for narrow, wide in zip(call(name, inputs, "float16"), once, strict=True):
        np.testing.assert_array_equal(narrow, wide)


def bits_of(dtype: str, *shape: int) -> ndarray:
    """Every kind of bits: NaN payloads, both zeros, subnormals."""
    width = np.dtype(DTYPES[dtype]).itemsize
    return rng(dtype, shape).integers(0, 256, (*shape, width), "uint8").view(DTYPES[dtype])[..., 0]


def moved(places: ndarray, *sources: ndarray) -> ndarray:
    """The bits that places (1 = the first element of all sources, 0 = a zero) stand for."""
    width = BITS[sources[0].dtype.itemsize]
    return np.concatenate([np.zeros(1, width), *(x.ravel().view(width) for x in sources)])[
        places.astype(int)
    ]


@each_dtype
@pytest.mark.parametrize("name", ["shift_right", "rel_shift"])
@pytest.mark.parametrize(
    "shape", [(1, 1), (1, 5), (5, 1), (3, 4), (2, 7, 4), (2, 3, 4, 4), (1, 2, 2, 3, 5)]
)
def test_shifts_move_bits(name: str, shape: tuple[int, ...], dtype: str) -> None:
    x = bits_of(dtype, *shape)
    y = OURS[name](x)
    assert y.dtype == x.dtype and not np.shares_memory(x, y)
    expected = moved(getattr(spec, name)(np.arange(1.0, x.size + 1).reshape(shape)), x)
    np.testing.assert_array_equal(np.ascontiguousarray(y).view(BITS[x.itemsize]), expected)


@each_dtype
@pytest.mark.parametrize("mem_len", [0, 1, 3, 4, 6, 9])
@pytest.mark.parametrize("S", [0, 1, 5])
def test_the_memory_moves_bits(mem_len: int, S: int, dtype: str) -> None:
    hid, mem = bits_of(dtype, 2, 3, 2), bits_of(dtype, 2, S, 2)
    (new,) = OURS["update_mems"]([hid], [mem], mem_len)
    places = np.arange(1.0, mem.size + hid.size + 1)
    (expected,) = spec.update_mems(
        [places[mem.size :].reshape(hid.shape)], [places[: mem.size].reshape(mem.shape)], mem_len
    )
    assert (
        new.dtype == hid.dtype and not np.shares_memory(new, hid) and not np.shares_memory(new, mem)
    )
    np.testing.assert_array_equal(new.view(BITS[hid.itemsize]), moved(expected, mem, hid))


def test_no_memory_stays_no_memory() -> None:
    assert OURS["update_mems"]([np.ones((1, 2, 3))], None, 2) is None
    assert OURS["init_mems"](2, 0, 1, 4) is None
    first, second = OURS["init_mems"](2, 3, 1, 4, dtype="float16")
    assert (
        not np.shares_memory(first, second)
        and first.shape == (1, 3, 4)
        and first.dtype == "float16"
        and not first.any()
    )


@pytest.mark.parametrize("N", [1, 2, 5])
@pytest.mark.parametrize("M", [1, 3, 5])
def test_the_causal_mask_aligns_the_ends(N: int, M: int) -> None:
    np.testing.assert_array_equal(OURS["causal_mask"](N, M), spec.causal_mask(N, M))


@each_dtype
@pytest.mark.parametrize("attn", ["none", "bool", "float", "bool heads", "float heads"])
@pytest.mark.parametrize("padding", [False, True])
def test_masks_merge_bit_for_bit(attn: str, padding: bool, dtype: str) -> None:
    random, shape = rng(attn, padding, dtype), (6, 3, 5) if "heads" in attn else (3, 5)
    mask = {"none": None, "bool": random.random(shape) < 0.4}.get(
        attn.split()[0], bits_of("float16", *shape).astype("float64")
    )
    if attn.startswith("float"):
        mask = np.where(random.random(shape) < 0.3, -np.inf, mask).astype(DTYPES[dtype])
    pad = random.random((2, 5)) < 0.4 if padding else None
    merged = OURS["merge_masks"](mask, pad, 3, dtype=dtype)
    expected = spec.merge_masks(
        mask.astype("float64") if attn.startswith("float") else mask, pad, 3
    )
    assert (
        merged.dtype == DTYPES[dtype]
        and merged.shape == expected.shape
        and (mask is None or not np.shares_memory(mask, merged))
    )
    assert compare(merged.astype("float64"), expected, None).passed


def test_a_float_mask_keeps_its_own_dtype() -> None:
    assert (
        OURS["merge_masks"](np.zeros((2, 2), "float16"), np.ones((1, 2), bool), 1).dtype
        == "float16"
    )


def test_results_without_a_float_input_are_float32() -> None:
    visible = np.ones((2, 3), bool)
    results = (
        OURS["get_slopes"](3),
        OURS["sinusoidal_positions"](3, 4),
        OURS["get_alibi_biases"](2, visible),
    )
    masks = (
        OURS["merge_masks"](None, None, 2),
        OURS["merge_masks"](visible, None, 2),
        OURS["init_mems"](1, 1, 1, 1)[0],
    )
    assert {x.dtype.name for x in results + masks} == {"float32"}


HIDING = sorted(name for name in BOUNDS if "attention" in name and "self" not in name)


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf, 1e30])
@pytest.mark.parametrize("name", HIDING)
def test_what_no_query_sees_changes_no_bit(name: str, poison: float) -> None:
    for seed in range(8):
        clean = without_the_last_key(draw(name, "float32", seed), as_float=seed % 2 == 0)
        dirty = planted(name, clean, poison)
        for x, y in zip(call(name, clean, "float32"), call(name, dirty, "float32"), strict=True):
            np.testing.assert_array_equal(x, y)


def without_the_last_key(inputs: dict[str, Any], as_float: bool) -> dict[str, Any]:
    """The same case with a mask that hides the last key from every query."""
    visible = np.ones((inputs["query"].shape[-2], inputs["key"].shape[-2]), bool)
    visible[:, -1] = False
    (which,) = {"attn_mask", "mask", "visible"} & set(inputs)
    as_float = as_float and which != "visible"
    return inputs | {
        which: np.where(visible, 0.5, -np.inf) if as_float else visible ^ (which == "attn_mask")
    }


def planted(name: str, inputs: dict[str, Any], poison: float) -> dict[str, Any]:
    """
    Poison in the last key and value, in every row of the tables that only it reads, and in the
    queries that see nothing.
    """
    inputs = map_leaves(lambda x: x.copy() if isinstance(x, ndarray) else x, inputs)
    N, M, causal = (
        inputs["query"].shape[-2],
        inputs["key"].shape[-2],
        name.startswith(("alibi", "transformer_xl")),
    )
    inputs["key"][..., -1, :] = inputs["value"][..., -1, :] = poison
    if "parameters" not in inputs:
        fully_masked = N if M == 1 else max(0, N - M) if causal else 0
        for queries in {"query", "d_output"} & set(inputs):
            inputs[queries][..., :fully_masked, :] = poison
    i, j = np.ogrid[:N, : M - 1]
    if "position" in inputs:
        inputs["position"][:, np.setdiff1d(np.arange(M), (N - 1 - i + j)[j <= M - N + i])] = poison
    if "key_pos_bias" in inputs:
        P = len(inputs["key_pos_bias"]) // 2
        unread = np.setdiff1d(
            np.arange(2 * P), P + j - i - (M - N if inputs["align"] == "end" else 0)
        )
        inputs["key_pos_bias"][unread] = inputs["key_pos_embeddings"][unread] = poison
    return inputs


@pytest.mark.parametrize(
    "name", [name for name in HIDING if "multi_head" not in name and "additive" not in name]
)
def test_what_one_head_does_not_see_is_absent_for_that_head_alone(name: str) -> None:
    for seed in range(12):
        clean = draw(name, "float32", seed)
        visible = np.ones((*clean["query"].shape[1:3], clean["key"].shape[2]), bool)
        visible[0, :, -1] = False
        clean |= {"mask" if "mask" in clean else "visible": visible}
        for x, y in zip(
            call(name, clean, "float32"),
            call(name, planted_in_head_0(name, clean), "float32"),
            strict=True,
        ):
            np.testing.assert_array_equal(x, y)


def planted_in_head_0(name: str, clean: dict[str, Any]) -> dict[str, Any]:
    dirty = planted(name, clean, np.nan)
    for argument in set(clean) & {
        "d_output",
        "query",
        "key",
        "value",
        "position",
        "key_pos_embeddings",
        "key_pos_bias",
    }:
        others = np.s_[1:] if argument == "position" else np.s_[:, 1:]
        dirty[argument][others] = clean[argument][others]
    return dirty


@each_attention_gradient
def test_the_gradients_of_hidden_slots_are_exactly_zero(name: str) -> None:
    for seed in range(8):
        inputs = planted(
            name,
            without_the_last_key(draw(name, "float32", seed), as_float=True),
            np.nan,
        )
        _, d_key, d_value, *others = call(name, inputs, "float32")
        assert not d_key[..., -1, :].any() and not d_value[..., -1, :].any()
        if "mask" in inputs:
            assert not others[-1][..., -1].any()
        for table in {"position", "key_pos_bias", "key_pos_embeddings"} & set(inputs):
            gradient = others[{"position": 0, "key_pos_embeddings": 0, "key_pos_bias": 1}[table]]
            assert not gradient[np.isnan(inputs[table])].any()


@pytest.mark.parametrize("name", sorted({*HIDING} - {n for n in HIDING if "multi_head" in n}))
def test_rows_that_see_no_key_give_zero_and_gradient_zero(name: str) -> None:
    inputs = draw(name, "float32", "empty")
    (which,) = {"mask", "visible"} & set(inputs)
    nothing = np.zeros((inputs["query"].shape[-2], inputs["key"].shape[-2]), bool)
    assert not any(x.any() for x in call(name, inputs | {which: nothing}, "float32"))


def test_a_hidden_score_weighs_nothing_and_leaves_nan_to_its_row() -> None:
    score = np.array([[np.nan, 1.0, np.inf], [np.nan, 1.0, -np.inf], [-np.inf, -np.inf, np.nan]])
    visible = np.array([[False, True, False], [True, True, True], [True, True, False]])
    weights = OURS["softmax"](score, visible)
    np.testing.assert_array_equal(weights, [[0, 1, 0], [np.nan, np.nan, 0], [0, 0, 0]])


def test_no_finite_number_hides_a_key() -> None:
    lowest = np.full((1, 2), np.finfo("float32").min)
    np.testing.assert_array_equal(OURS["softmax"](np.ones((1, 2), "float32"), lowest), [[0.5, 0.5]])


@each_arithmetic
def test_inputs_are_neither_changed_nor_shared(name: str) -> None:
    inputs = draw(name, "float64", "alias")
    before = map_leaves(lambda x: x.tobytes() if isinstance(x, ndarray) else x, inputs)
    found = OURS[name](**inputs, **dtype_keyword(name, "float64"))
    assert map_leaves(lambda x: x.tobytes() if isinstance(x, ndarray) else x, inputs) == before
    given = [x for x in leaves(inputs) if isinstance(x, ndarray)]
    assert not any(np.shares_memory(x, y) for x in given for y in leaves(found) if y is not None)


@each_arithmetic
def test_the_layout_of_the_inputs_does_not_matter(name: str) -> None:
    inputs = draw(name, "float64", "layout")
    strided = map_leaves(
        lambda x: (
            np.asfortranarray(np.repeat(x, 2, axis=-1))[..., ::2] if isinstance(x, ndarray) else x
        ),
        inputs,
    )
    for x, y in zip(
        call(name, inputs, "float64"),
        leaves(OURS[name](**strided, **dtype_keyword(name, "float64"))),
        strict=True,
    ):
        assert x is y is None or count_roundings(x, y) < 64


one, integers = np.ones((1, 1, 1, 1)), np.ones((1, 1, 1, 1), int)
q, k, v, mask = (
    np.ones((2, 3, 5, 4)),
    np.ones((2, 3, 7, 4)),
    np.ones((2, 3, 7, 6)),
    np.ones((5, 7), bool),
)
d, position, u = np.ones((2, 3, 5, 6)), np.ones((3, 7, 4)), np.ones((3, 4))
table, table_bias = np.ones((14, 3, 4)), np.ones((14, 3))
q3, k3, v3, w_q, w_k, w_s = (
    np.ones((2, 5, 4)),
    np.ones((2, 7, 3)),
    np.ones((2, 7, 6)),
    np.ones((8, 4)),
    np.ones((8, 3)),
    np.ones(8),
)
x, FF = np.ones((2, 5, 6)), np.ones((6, 6))
SELF = {"w_query": FF, "w_key": FF, "w_value": FF}
HEADS = {f"{name}_proj.weight": FF for name in ("q", "k", "v", "out")}
LABML = {f"{name}.weight": FF for name in ("query.linear", "key.linear", "value.linear", "output")}
TABLES = {
    "key_pos_embeddings": np.ones((10, 2, 3)),
    "key_pos_bias": np.ones((10, 2)),
    "query_pos_bias": np.ones((2, 3)),
}
NORM = {"layer_norm.weight": np.ones(6), "u": np.ones((2, 3)), "v": np.ones((2, 3))}
XL = {"qkv_net.weight": np.ones((18, 6)), "r_net.weight": FF, "o_net.weight": FF} | NORM

WRONG: list[tuple[str, tuple[Any, ...]]] = [
    ("scaled_dot_product_score", (q, k[..., :3])),
    ("scaled_dot_product_score", (q, k[0])),
    ("scaled_dot_product_score", (integers, one)),
    ("scaled_dot_product_score", ([[1.0]], one)),
    ("scaled_dot_product_score", (np.ones((0, 4)), np.ones((7, 4)))),
    ("additive_score", (q3, k3, w_k, w_k, w_s)),
    ("additive_score", (q3, k3, w_q, w_k, np.ones(7))),
    ("causal_mask", (0, 3)),
    ("causal_mask", (3, 2.0)),
    ("causal_mask", (True, 3)),
    ("merge_masks", (mask.astype(int), None, 1)),
    ("merge_masks", (mask[None], None, 2)),
    ("merge_masks", (mask[0], None, 1)),
    ("merge_masks", (mask, np.ones((2, 6), bool), 1)),
    ("merge_masks", (np.ones((4, 5, 7)), np.ones((3, 7), bool), 2)),
    ("merge_masks", (None, np.ones((2, 6)), 1)),
    ("merge_masks", (None, np.ones(6, bool), 1)),
    ("merge_masks", (None, None, 0)),
    ("softmax", (np.ones(3),)),
    ("softmax", (np.ones((2, 3)), np.ones((2, 3), int))),
    ("softmax", (np.ones((2, 3)), np.ones((1, 2, 3), bool))),
    ("softmax", (np.ones((1, 3)), np.ones((2, 3), bool))),
    ("softmax", (np.ones((2, 3)), [[True] * 3] * 2)),
    ("dropout", (np.ones(3), None, 0.5)),
    ("dropout", (np.ones(3), np.ones(3, bool), 1.0)),
    ("dropout", (np.ones(3), np.ones(3, bool), -0.1)),
    ("dropout", (np.ones(3), np.ones(3, bool), np.nan)),
    ("dropout", (np.ones(3), np.ones(4, bool), 0.5)),
    ("dropout", (np.ones(3), np.ones(3), 0.5)),
    ("additive_attention", (q3, k3, v3[:, :6], w_q, w_k, w_s)),
    ("additive_attention", (q3, k3, v3, w_q, w_k, w_s, np.ones((3, 5, 7), bool))),
    ("additive_attention_grad", (q3, q3, k3, v3[0], w_q, w_k, w_s)),
    ("scaled_dot_product_attention", (q, k, v[:, :2])),
    ("scaled_dot_product_attention", (q, k, v, mask.T)),
    ("scaled_dot_product_attention", (q, k, v, None, mask.astype(float), 0.5)),
    ("scaled_dot_product_attention", (q, k, v, None, None, 0.5)),
    ("scaled_dot_product_attention_grad", (d[..., :5], q, k, v)),
    ("scaled_dot_product_attention_grad", (d, q, k, v, mask[:, :3])),
    ("scaled_dot_product_attention_grad", (d, q, k, v, None, mask, 2)),
    ("shift_right", (np.ones(3),)),
    ("rel_shift", (np.ones((2, 0)),)),
    ("rel_shift", (mask,)),
    ("sinusoidal_positions", (3, 5)),
    ("sinusoidal_positions", (0, 4)),
    ("transformer_xl_score", (q, k, position[:, 1:], u, u)),
    ("transformer_xl_attention", (q, k, v, position, u[1:], u)),
    ("transformer_xl_attention", (q, k, v, position, u, u, mask.astype(float))),
    ("transformer_xl_attention_grad", (d, q, k, v, position, u, u[:, 1:])),
    ("learned_relative_score", (q, k, table[1:], table_bias, u, "end")),
    ("learned_relative_score", (q, k, table[2:], table_bias[2:], u, "end")),
    ("learned_relative_attention", (q, k, v, table, table_bias, u, "middle")),
    ("learned_relative_attention_grad", (d, q, k, v, table, table_bias[:, 1:], u, "start")),
    ("get_slopes", (0,)),
    ("get_slopes", ("8",)),
    ("get_alibi_biases", (2, mask.astype(float))),
    ("get_alibi_biases", (2, mask[0])),
    ("get_alibi_biases", (-1, mask)),
    ("alibi_attention", (q, k, v, np.ones((2, 3, 1, 5), bool))),
    ("alibi_attention_grad", (d[0], q, k, v)),
    ("init_mems", (1, -1, 1, 1)),
    ("init_mems", (0, 1, 1, 1)),
    ("init_mems", (1, 1, 1, 1.5)),
    ("update_mems", ([x], [x, x], 1)),
    ("update_mems", ([x], [x[:1]], 1)),
    ("update_mems", (x, None, 1)),
    ("update_mems", ([x], None, -1)),
    ("self_attention", (x, {"w_query": FF, "w_key": FF})),
    ("self_attention", (x, SELF | {"w_key": FF[:5]})),
    ("self_attention", (x, SELF, np.ones((5, 6), bool))),
    ("multi_head_attention", (x, x, x, HEADS, 4)),
    ("multi_head_attention", (x, x, x, HEADS | {"bias": FF}, 2)),
    ("multi_head_attention", (x, x, x, HEADS | {"q_proj.bias": FF}, 2)),
    ("multi_head_attention", (x, x, x, HEADS, 2, np.ones((5, 4), bool))),
    ("multi_head_attention", (x, x, x, HEADS, 2, None, np.ones((1, 5), bool))),
    ("multi_head_self_attention", (x[0], HEADS, 2)),
    ("relative_multi_head_attention", (x, x, x, LABML | TABLES, 2, None)),
    (
        "relative_multi_head_attention",
        (x, x, x, LABML | TABLES | {"key.linear.bias": np.ones(6)}, 2, "end"),
    ),
    ("alibi_multi_head_attention", (x, x, x, LABML, 2, None)),
    ("alibi_multi_head_attention", (x, x, x, LABML, 2, mask)),
    ("transformer_xl_layer", (x, x[0], XL, 2, x)),
    ("transformer_xl_layer", (x, x[0], XL, 2, None, None, -1.0)),
    ("transformer_xl_layer", (x, x[0], [], 2)),
    ("transformer_xl_layer", (x, x[0], XL | {"ff_in.weight": FF}, 2)),
    ("transformer_xl_layer", (x, x[0], XL | {"ff_in": FF}, 2)),
    ("transformer_xl", (x, XL, 2, None, 1)),
    ("transformer_xl", (x, [XL], 2, [x, x], 1)),
    ("transformer_xl", (x, [XL, 3], 2, None, 1)),
    ("transformer_xl", (np.ones((1, 2, 3)), [XL], 1, None, 1)),
    ("transformer_xl", (x, [XL], 2, [x], None)),
]


@pytest.mark.parametrize(
    ("name", "arguments"), WRONG, ids=[f"{name}-{i}" for i, (name, _) in enumerate(WRONG)]
)
def test_what_the_specification_refuses_is_refused_with_the_same_argument_named(
    name: str, arguments: tuple[Any, ...]
) -> None:
    with pytest.raises(ValueError) as theirs:
        getattr(spec, name)(*arguments)
    with pytest.raises(ValueError, match=r"^\S+: wanted .+, got .+$") as ours:
        OURS[name](*arguments)
    assert str(ours.value).split(":")[0] == str(theirs.value).split(":")[0] and "\n" not in str(
        ours.value
    )


# What is no plain array is refused by every path: a kernel would read the bytes that stand there

NOT_PLAIN: dict[str, tuple[Callable[[ndarray], ndarray], str]] = {
    "byte order": (
        lambda array: array.astype(array.dtype.newbyteorder("S")),
        r"byte-swapped float64 \(",
    ),
    "mask of its own": (np.ma.masked_array, r"MaskedArray (float64|bool) \("),
    "matrix": (lambda array: array.reshape(-1, array.shape[-1]).view(np.matrix), "matrix"),
    "longdouble": (
        lambda array: array.astype(np.longdouble if array.dtype == float else bool),
        rf"{np.dtype(np.longdouble).name} \(",
    ),
}
PATHS = OURS | {name: getattr(cuda, name) for name in cuda.__all__}
MOVES: dict[str, dict[str, Any]] = {
    "shift_right": {"x": np.ones((2, 3))},
    "rel_shift": {"x": np.ones((2, 3))},
    "merge_masks": {"attn_mask": np.ones((2, 3)), "key_padding_mask": None, "num_heads": 1},
    "update_mems": {"hids": [np.ones((1, 2, 3))], "mems": [np.ones((1, 2, 3))], "mem_len": 2},
}
TAKING_ARRAYS = [
    path
    for path in PATHS
    if path.removesuffix("_cuda") in {*MOVES, *BOUNDS} - {"get_slopes", "sinusoidal_positions"}
]


@pytest.mark.parametrize("what", NOT_PLAIN)
@pytest.mark.parametrize("path", TAKING_ARRAYS)
def test_an_array_that_is_not_plain_is_refused_in_words(path: str, what: str) -> None:
    (change, got), operation = NOT_PLAIN[what], path.removesuffix("_cuda")
    right = MOVES.get(operation) or draw(operation, "float64")
    arrays = [x for x in leaves(right) if isinstance(x, ndarray)]
    assert arrays
    for array in arrays:
        changed = change(array)
        if type(changed) is ndarray and changed.dtype == array.dtype:
            continue  # a boolean has one byte and no wider kin
        wrong = map_leaves(lambda x, old=array, new=changed: new if x is old else x, right)
        with pytest.raises(ValueError, match=rf"^\S+: wanted .+, got {got}"):
            PATHS[path](**wrong)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_an_array_in_a_file_is_plain(dtype: str, tmp_path: Path) -> None:
    x = np.memmap(tmp_path / "x", dtype, "w+", shape=(2, 3))
    x[:] = 1
    np.testing.assert_array_equal(OURS["softmax"](x), OURS["softmax"](np.ones((2, 3), dtype)))


def test_what_comes_to_the_backend_is_made_plain() -> None:
    x = np.arange(3.0)
    for other in (x.astype(">f8"), x.astype(np.longdouble)):
        np.testing.assert_array_equal(cupy_impl.from_numpy(other, "float32"), x.astype("float32"))


@pytest.mark.parametrize("dtype", ["int32", "float", None, "bfloat8", np.int64])
def test_a_dtype_that_is_no_float_format_is_refused(dtype: Any) -> None:
    with pytest.raises(ValueError, match=r"^dtype: wanted"):
        OURS["get_slopes"](2, dtype=dtype)


@each_dtype
def test_arrays_go_to_the_backend_and_back_exactly(dtype: str) -> None:
    x = np.array([1.0, -0.0, np.inf, 3.0])
    there = cupy_impl.from_numpy(x, dtype)
    back = cupy_impl.to_numpy(there)
    assert (
        there.dtype == DTYPES[dtype]
        and not np.shares_memory(x, there)
        and compare(back, x, None).passed
    )
    assert cupy_impl.from_numpy(np.array([True]), dtype).dtype == bool and back.dtype == "float64"
    cupy_impl.synchronize()


def run(code: str, **environment: str) -> str:
    root = str(Path(cupy_impl.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": root, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_without_the_package_cupy_the_backend_says_so() -> None:
    hidden = (
        "import sys; sys.modules['cupy'] = None; "
        "from attnverify import cupy_impl; print(cupy_impl.missing())"
    )
    assert run(hidden) == "the package cupy is not installed"
    assert cupy_impl.missing() is None


def test_precision_follows_the_environment() -> None:
    code = "from attnverify import cupy_impl; print(cupy_impl.PRECISION)"
    assert "wide" in run(code) and "tf32" not in run(code) and "tf32" in run(code, CUPY_TF32="1")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_what_cupy_compiles_for_a_device_is_declared_to_flush(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("softmax", "softmax"), ("alibi_attention", "alibi_attention_cuda")
    here = [resolve(cupy_impl.PRECISION, *name, dtype) for name in names]
    monkeypatch.setattr(arrays, "on_device", lambda: True)
    there = [resolve(cupy_impl.PRECISION, *name, dtype) for name in names]
    assert all(P.acc.ftz and P.storage.ftz == (dtype != "float16") for P in there)
    assert there[0].softmax.ftz and there[0].stage.ftz
    assert not any(P.acc.ftz or P.storage.ftz for P in here)
    for name in names:
        assert not resolve(cupy_impl.PRECISION, *name, "float64").acc.ftz


SOURCES = {path.name: path.read_text() for path in Path(cupy_impl.__file__).parent.glob("*.py")}


@pytest.mark.parametrize("file", SOURCES)
def test_every_function_of_the_array_module_exists_in_both(file: str) -> None:
    used = re.findall(r"\b(?:xp|get_array_module\(\w+\))\.(\w+)", SOURCES[file])
    assert all(hasattr(np, name) and hasattr(cupy, name) for name in used)


@pytest.mark.parametrize("file", SOURCES)
def test_nothing_imports_numpy_or_waits_for_the_device(file: str) -> None:
    assert not re.search(
        r"^\s*(import|from) numpy|\.item\(|\.tolist\(|\bbool\([a-z]\w*\.any", SOURCES[file], re.M
    )
