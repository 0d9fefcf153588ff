"""
numpy_ref against the specification, beyond its bounds: within some ulps on small normal numbers,
bit for bit where numbers only move, NaN where the specification has it and nowhere else.
"""

import importlib
import inspect
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy import ndarray

from attnverify import numpy_ref, spec
from attnverify.catalogue.operation import CATALOGUE
from attnverify.catalogue.pytrees import leaves, map_leaves
from attnverify.catalogue.traits import CHAPTERS
from attnverify.inputs.expand import expand_anew
from tests.rounding_variants.cases import small_recipe

SEEDS = range(20)
FORMATS = ["float64", "float32", "float16", "bfloat16"]
ATTENTIONS = [name for name, operation in CATALOGUE.items() if operation.is_attention]
FORWARD = [name for name in ATTENTIONS if not CATALOGUE[name].is_gradient]
WELL_CONDITIONED = [
    name for name, operation in CATALOGUE.items() if not operation.is_layer_gradient
]
"""A norm of two features may divide by the root of eps: its gradient is judged by bounds alone."""
FLOATS = [
    name
    for name, operation in CATALOGUE.items()
    if not (operation.traits.wide or operation.traits.wide_outputs)
]
MASKS = {"mask", "visible", "keep"}
Inputs = dict[str, Any]


def draw(name: str, seed: int) -> Inputs:
    """
    A small case of an operation, whose float arrays hold normal numbers. An angle errs by ulps of
    its own size, and is small here: far positions are judged by bounds alone.
    """
    recipe = small_recipe(Random(f"{name} {seed}"), name)
    normal = replace(recipe, values={"family": "normal", "seed": seed})
    inputs = expand_anew(normal, "float64")
    return inputs | {name: inputs[name] % 8 for name in ("positions",) if name in inputs}


def arrays(result: Any) -> list[ndarray]:
    """The arrays in a result or in arguments, in order."""
    return [np.asarray(x) for x in leaves(result) if isinstance(x, ndarray | np.generic)]


def outcome(column: Any, name: str, inputs: Inputs) -> list[ndarray]:
    with np.errstate(all="ignore"):  # the specification may warn about what is hidden
        return arrays(getattr(column, name)(**inputs))


def assert_agrees(name: str, inputs: Inputs) -> None:
    compare = assert_same_bits if CATALOGUE[name].exact else assert_close
    compare(outcome(numpy_ref, name, inputs), outcome(spec, name, inputs))


def assert_close(actual: list[ndarray], expected: list[ndarray], ulps: int = 64) -> None:
    """
    Equal but for some ulps of the largest element; NaN where NaN is expected and nowhere else.
    """
    assert [x.shape for x in actual] == [x.shape for x in expected]
    for got, wanted in zip(actual, expected, strict=True):
        scale = 1 + np.max(np.abs(wanted), where=np.isfinite(wanted), initial=0)
        same = (got == wanted) | (np.isnan(got) & np.isnan(wanted))
        with np.errstate(invalid="ignore"):
            assert np.all(same | (np.abs(got - wanted) <= ulps * 2.0**-52 * scale)), (got, wanted)


def assert_same_bits(actual: list[ndarray], expected: list[ndarray]) -> None:
    assert [(x.shape, x.dtype, x.tobytes()) for x in actual] == [
        (x.shape, x.dtype, x.tobytes()) for x in expected
    ]


def poisoned(inputs: Inputs, seed: int, poison: float) -> Inputs:
    """
    Some rows of each array hold the poison, hidden or seen: the specification says whom it reaches.
    """
    rng = np.random.default_rng(seed)

    def plant(x: Any) -> Any:
        if not isinstance(x, ndarray) or x.dtype.kind != "f" or not x.ndim:
            return x
        return np.where(rng.random((*x.shape[:-1], 1)) < 0.15, poison, x)

    masks = {name: inputs[name] for name in MASKS & inputs.keys()}
    return {name: map_leaves(plant, value) for name, value in inputs.items()} | masks


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", WELL_CONDITIONED)
def test_agrees_with_the_specification(name: str, seed: int) -> None:
    assert_agrees(name, draw(name, seed))


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", FORWARD)
def test_poison_reaches_exactly_whom_the_specification_lets_it_reach(
    name: str, poison: float, seed: int
) -> None:
    assert_agrees(name, poisoned(draw(name, seed), seed, poison))


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("name", [name for name in ATTENTIONS if name not in FORWARD])
def test_poison_reaches_exactly_the_gradients_the_specification_lets_it_reach(
    name: str, seed: int
) -> None:
    assert_agrees(name, poisoned(draw(name, seed), seed, np.nan))


@pytest.mark.parametrize("seed", SEEDS)
def test_the_softmax_of_what_is_no_number_is_that_of_the_specification(seed: int) -> None:
    rng, inputs = np.random.default_rng(seed), draw("softmax", seed)
    odd = rng.choice([-np.inf, np.inf, np.nan, 800.0])
    score = np.where(rng.random(inputs["score"].shape) < 0.2, odd, inputs["score"])
    assert_agrees("softmax", inputs | {"score": score})


def test_a_leak_of_poison_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "attnverify.numpy_ref.hidden_keys.sum_seen", lambda factor, hidden, value: factor @ value
    )
    with pytest.raises(AssertionError):
        for seed in range(60):
            name = "alibi_attention"
            test_poison_reaches_exactly_whom_the_specification_lets_it_reach(name, np.nan, seed)


@pytest.mark.parametrize("wrong", [1.0 + 1e-12, np.nan, np.inf])
def test_a_wrong_number_would_be_seen(wrong: float) -> None:
    with pytest.raises(AssertionError):
        assert_close([np.array([0.5, wrong])], [np.array([0.5, 1.0])])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ["additive_attention", "additive_attention_grad"])
def test_additive_blocks_change_nothing(
    name: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnverify.numpy_ref.scores.BLOCK", 1)
    assert_agrees(name, draw(name, seed))


def any_bits(seed: int, dtype: str, *shape: int) -> ndarray:
    """Random bits as floats: NaN payloads, infinities, subnormals, both zeros."""
    storage = numpy_ref.from_numpy(np.zeros(1), dtype).dtype
    bits = np.random.default_rng(seed).integers(0, 256, (*shape, storage.itemsize), dtype=np.uint8)
    return bits.view(storage)[..., 0]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("name", ["shift_right", "rel_shift"])
def test_shifts_move_every_bit_as_the_specification_does(name: str, dtype: str, seed: int) -> None:
    x = any_bits(seed, dtype, *draw(name, seed)["x"].shape)
    source = getattr(spec, name)(np.arange(1.0, x.size + 1).reshape(x.shape)).astype(int)
    zero_and_all = np.concatenate([np.zeros(1, x.dtype), x.reshape(-1)])
    assert_same_bits([getattr(numpy_ref, name)(x)], [zero_and_all[source]])


@pytest.mark.parametrize("mem_len", range(12))
@pytest.mark.parametrize("dtype", FORMATS)
def test_memory_moves_every_bit_as_the_specification_does(dtype: str, mem_len: int) -> None:
    N, S = mem_len % 4 + 1, mem_len % 5
    hids, mems = any_bits(1, dtype, 2, 3, N, 2), any_bits(2, dtype, 2, 3, S, 2)
    expected = np.concatenate([mems, hids], axis=2)[:, :, max(0, S + N - mem_len) :]
    kept = numpy_ref.update_mems(list(hids), list(mems), mem_len)
    assert_same_bits(arrays(kept), list(expected))
    if dtype == "float64":
        assert_same_bits(arrays(kept), arrays(spec.update_mems(list(hids), list(mems), mem_len)))


def test_a_float_mask_keeps_its_bits_in_every_format() -> None:
    for storage in (np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)):
        mask = np.array([[-0.0, np.nan, 1.5]]).astype(storage)
        merged_mask = numpy_ref.merge_masks(mask, np.array([[False, False, True]]), 1)
        assert (
            merged_mask.dtype == storage
            and merged_mask[0, 0, :, :2].tobytes() == mask[:, :2].tobytes()
        )
        assert merged_mask[0, 0, 0, 2] == -np.inf


@pytest.mark.parametrize("column", [spec, numpy_ref])
def test_a_mask_with_axes_for_batch_and_heads_apart_is_refused_by_name(column: Any) -> None:
    for lead in ((2, 1), (2, 3), (1, 2)):
        with pytest.raises(ValueError, match=r"attn_mask: wanted shape \[N M\] or \[B\*H N M\]"):
            column.merge_masks(np.zeros((*lead, 3, 4), bool), None, 2)


@pytest.mark.parametrize("N", [1, 2, 3, 8])
@pytest.mark.parametrize("M", [1, 2, 5, 13])
def test_makes_masks_positions_slopes_and_memories_as_the_specification_does(
    N: int, M: int
) -> None:
    visible = np.random.default_rng(N * M).random((N, M)) < 0.5
    assert_same_bits([numpy_ref.causal_mask(N, M)], [spec.causal_mask(N, M)])
    assert_same_bits(arrays(numpy_ref.init_mems(N, M, 2, 3)), arrays(spec.init_mems(N, M, 2, 3)))
    assert_close([numpy_ref.get_slopes(N * M)], [spec.get_slopes(N * M)], 2)
    assert_close([numpy_ref.get_alibi_biases(N, visible)], [spec.get_alibi_biases(N, visible)], 2)
    assert_close(
        [numpy_ref.sinusoidal_positions(M, 2 * N)], [spec.sinusoidal_positions(M, 2 * N)], 4
    )


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("name", FLOATS)
def test_results_have_the_dtype_of_their_inputs_and_are_rounded_once(name: str, dtype: str) -> None:
    narrow = numpy_ref.rounding.each(partial(numpy_ref.from_numpy, dtype=dtype), draw(name, 7))
    wide = numpy_ref.rounding.each(
        lambda x: x.astype(np.promote_types(x.dtype, np.float32)), narrow
    )
    storage = numpy_ref.from_numpy(np.zeros(1), dtype).dtype
    if not any(x.dtype == storage for x in arrays(narrow)):
        return
    got = outcome(numpy_ref, name, narrow)
    assert {x.dtype for x in got} <= {storage}
    assert_same_bits(got, [x.astype(storage) for x in outcome(numpy_ref, name, wide)])


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_results_without_a_float_input_have_the_dtype_asked_for(dtype: str) -> None:
    hides, storage = np.array([[True, False]]), numpy_ref.from_numpy(np.zeros(1), dtype).dtype
    results = [
        numpy_ref.get_slopes(6, dtype=dtype),
        numpy_ref.get_alibi_biases(6, hides, dtype=dtype),
    ]
    results += [
        numpy_ref.sinusoidal_positions(3, 4, dtype=dtype),
        *arrays(numpy_ref.init_mems(1, 1, 1, 1, dtype=dtype)),
    ]
    results += [
        numpy_ref.merge_masks(hides, None, 1, dtype=dtype),
        numpy_ref.merge_masks(None, hides, 1, dtype=storage),
    ]
    assert {x.dtype for x in results} == {storage}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("name", ATTENTIONS)
def test_warns_of_nothing(name: str, dtype: str) -> None:
    given = poisoned(draw(name, 11), 11, np.inf)
    numbers = {n: x for n, x in given.items() if n not in MASKS}
    large = numpy_ref.rounding.each(lambda x: numpy_ref.from_numpy(x * 1e4, dtype), numbers)
    getattr(numpy_ref, name)(**given | large)


@pytest.mark.parametrize("name", CATALOGUE)
def test_inputs_are_neither_changed_nor_shared(name: str) -> None:
    given = draw(name, 5)
    inputs = arrays(given)
    before = [x.copy() for x in inputs]
    outputs = outcome(numpy_ref, name, given)
    assert_same_bits(inputs, before)
    assert not any(np.shares_memory(x, y) for x in inputs for y in outputs)


@pytest.mark.parametrize("dtype", ["int32", "float33", "complex64", object()])
def test_refuses_a_dtype_that_is_no_float(dtype: Any) -> None:
    with pytest.raises(ValueError, match=r"^dtype: wanted "):
        numpy_ref.get_slopes(3, dtype=dtype)


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_has_the_operations_and_parameters_of_the_specification(chapter: str) -> None:
    law, column = (
        importlib.import_module(f"attnverify.{package}.{chapter}")
        for package in ("spec", "numpy_ref")
    )
    assert column.__all__ == law.__all__
    for name in law.__all__:
        assert [*parameters(column, name)] == [*parameters(law, name)]


def parameters(module: Any, name: str) -> Iterator[tuple[str, Any]]:
    for one in inspect.signature(getattr(module, name)).parameters.values():
        if one.name != "dtype":
            yield one.name, one.default


def test_is_a_backend() -> None:
    x = np.array([1.0, np.pi, -0.0, np.inf])
    for dtype, digits in [("float64", 52), ("float32", 23), ("float16", 10), ("bfloat16", 7)]:
        there = numpy_ref.to_numpy(numpy_ref.from_numpy(x, dtype))
        assert there.dtype == np.float64 and there[1] == round(np.pi * 2 ** (digits - 1)) / 2 ** (
            digits - 1
        )
    assert (
        numpy_ref.from_numpy(x > 2, "float16").dtype == bool
        and numpy_ref.from_numpy(np.arange(3), "float16").dtype == int
    )
    assert numpy_ref.missing() is None and numpy_ref.PRECISION == "wide"
    numpy_ref.synchronize()
