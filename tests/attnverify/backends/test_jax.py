"""JAX's arrays, gradients and dtypes, where JAX is installed."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnverify import ROOT
from attnverify.backends.array_libraries import X64_IS_OFF, array_library, jax_gradient
from attnverify.precision import DTYPES

jax = pytest.importorskip("jax")


def test_flushing_of_subnormals_is_seen_on_the_device() -> None:
    small = jax.numpy.asarray(np.float32(1e-39))
    assert array_library("jax").flushes_subnormals() == (DTYPES if float(small * 1) == 0 else ())


def test_float64_is_unsupported_where_x64_is_off() -> None:
    library = array_library("jax")
    assert library.unsupported("float64") == ("" if jax.config.jax_enable_x64 else X64_IS_OFF)
    assert library.unsupported("float32") == ""


def test_an_array_that_is_key_and_value_has_two_gradients() -> None:
    one, arriving = jax.numpy.ones(3), jax.numpy.ones(3)
    gradient = jax_gradient(lambda key, value: 2 * key + 5 * value)
    for_key, for_value = gradient(key=one, value=one, d_output=arriving)
    assert (for_key == 2).all()
    assert (for_value == 5).all()


def test_what_arrives_at_an_output_that_is_not_returned_goes_nowhere() -> None:
    x = jax.numpy.ones(3)
    (grad,) = jax_gradient(lambda query: 2 * query)(query=x, d_output=x, d_lse=x)
    assert (grad == 2).all()


def softmax(x: Any, axis: int) -> Any:
    y = jax.numpy.exp(x)
    return y / y.sum(axis, keepdims=True)


def whole_gradients(function: Callable[..., Any]) -> int:
    """How many programs hold the gradient of a function from its input to its end."""
    found: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, _, **more: found.append(f"{name} {more.get('fun_name')}")
    )
    x = jax.device_put(np.array([1.0, 2.0], np.float32))
    (grad,) = jax_gradient(function)(x=x, axis=-1, d_output=x)
    assert [round(float(g), 4) for g in grad] == [-0.1966, 0.1966]
    compiled = [name for name in found if "backend_compile" in name]
    assert compiled
    return sum("pull_back" in name for name in compiled)


def test_the_gradient_of_a_compiled_function_is_one_program() -> None:
    assert whole_gradients(jax.jit(softmax, static_argnames="axis")) == 1


def test_the_gradient_of_a_function_that_is_not_compiled_is_run_step_by_step() -> None:
    assert whole_gradients(softmax) == 0


def test_handing_arrays_over_compiles_nothing() -> None:
    library, seen = array_library("jax"), list[str]()
    library.to_numpy(library.from_numpy(np.ones((2, 3)), "float32"))
    jax.monitoring.register_event_duration_secs_listener(lambda name, _, **more: seen.append(name))
    back = library.to_numpy(library.from_numpy(np.ones((3, 2)), "bfloat16"))
    assert (back == 1).all()
    assert not [name for name in seen if "backend_compile" in name]
    jax.jit(lambda x: x + 1)(back)
    assert [name for name in seen if "backend_compile" in name]


def test_a_jax_function_is_judged_in_the_dtypes_that_jax_has(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import jax\n\ndef shift_right(x):\n    wide = jax.numpy.pad(x, [(0, 0)] * (x.ndim - 1) "
        "+ [(0, 1)])\n    return wide.reshape(*x.shape[:-2], -1)[..., : x.shape[-2] * x.shape[-1]]"
        ".reshape(x.shape)\n"
    )
    line = ["run", "mine.py", "--profile", "quick", "--dtype", "fp64", "--dtype", "fp32"]
    done = subprocess.run(
        [sys.executable, "-m", "attnverify", *line, "-k", "values"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "JAX_ENABLE_X64": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "1 passed, 1 unsupported" in done.stdout
    assert "x64 is off" in done.stdout
