"""
cupy_impl on NumPy arrays beyond what the differential suite judges of it: bits, dtypes, strides.
What a device does is not tested here; values and gradients within their bounds, changed inputs,
hidden poison, empty rows are judged there.
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
from attnverify.bounds import BOUNDS
from attnverify.catalogue.operation import CATALOGUE
from attnverify.catalogue.pytrees import leaves, map_leaves
from attnverify.cupy_impl import arrays, cuda
from attnverify.judge.comparison import compare
from attnverify.precision import resolve
from tests.rounding_variants.cases import small_inputs
from tests.support.roundings import count_roundings

pytestmark = pytest.mark.filterwarnings("error")

CHAPTERS = (
    *("scores", "masks", "attention", "shifts", "relative", "alibi", "memory", "layers"),
    *("grouped", "latent", "selected", "packed", "paged", "quantized", "rotary"),
)
MODULES = [importlib.import_module(f"attnverify.cupy_impl.{chapter}") for chapter in CHAPTERS]
OURS = {name: getattr(module, name) for module in MODULES for name in module.__all__}
DTYPES = {"float64": "float64", "float32": "float32", "float16": "float16", "bfloat16": bfloat16}
WITH_DTYPE = {"get_slopes", "sinusoidal_positions", "init_mems", "get_alibi_biases", "merge_masks"}
BITS = {8: "uint64", 4: "uint32", 2: "uint16"}

each_dtype = pytest.mark.parametrize("dtype", DTYPES)
ARITHMETIC = sorted(
    name
    for name in BOUNDS
    if not (CATALOGUE[name].traits.wide or CATALOGUE[name].traits.wide_outputs)
)
"""What has outputs of one dtype; the differential suite alone judges the others."""
each_arithmetic = pytest.mark.parametrize("name", ARITHMETIC)


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


def test_a_hidden_score_weighs_nothing_and_leaves_nan_to_its_row() -> None:
    score = np.array([[np.nan, 1.0, np.inf], [np.nan, 1.0, -np.inf], [-np.inf, -np.inf, np.nan]])
    visible = np.array([[False, True, False], [True, True, True], [True, True, False]])
    weights = OURS["softmax"](score, visible)
    np.testing.assert_array_equal(weights, [[0, 1, 0], [np.nan, np.nan, 0], [0, 0, 0]])


def test_no_finite_number_hides_a_key() -> None:
    lowest = np.full((1, 2), np.finfo("float32").min)
    np.testing.assert_array_equal(OURS["softmax"](np.ones((1, 2), "float32"), lowest), [[0.5, 0.5]])


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
    arrays = [x for x in leaves(right) if isinstance(x, ndarray) and x.dtype.kind != "i"]
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
