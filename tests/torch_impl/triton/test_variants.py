"""
How many variants of each kernel a GPU's compiler is asked for by the cases of a quick run: none is
compiled, what Triton's binder tells the compiler of each launch is counted.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime.jit import create_function_from_signature

from attnverify.backends.implementation import Backend
from attnverify.backends.loader import load
from attnverify.inputs.fixed_cases import fixed_cases
from attnverify.inputs.sampling import draw_recipes
from attnverify.judge.case import case_of
from attnverify.judge.errors import Disagreement, Unsupported
from attnverify.judge.invoke import convert_and_call
from attnverify.options import PROFILES
from attnverify.ptx.launchers.torch_cuda import pretended_cuda
from attnverify.torch_impl.triton import additive_operators, operators
from attnverify.torch_impl.triton.kernels import block_sizes, launch
from attnverify.torch_impl.triton.operators import is_aligned

BACKEND = make_backend(GPUTarget("cuda", 90, 32))
MOST = 12
FUSED = (
    "scaled_dot_product_attention",
    "alibi_attention",
    "transformer_xl_attention",
    "learned_relative_attention",
    "additive_attention",
)
OPERATIONS = [f"{name}{grad}" for name in FUSED for grad in ("", "_grad")]


@pytest.fixture(scope="module")
def backend() -> Backend:
    return load("torch_impl")


@pytest.fixture
def variants(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[str]]:
    """What the compiler is told of each kernel, on a GPU that executes nothing."""
    found: dict[str, set[str]] = {}

    def record(kernel: Any, grid: Any, *args: Any, aligned: bool, **constants: Any) -> None:
        chosen, args, constants = launch.choose_variant(kernel, args, aligned, constants)
        bind = create_function_from_signature(chosen.signature, chosen.params, BACKEND)
        _, told, options = bind(*args, **constants)
        found.setdefault(kernel.fn.__name__, set()).add(f"{told} {options}")

    for module in (operators, additive_operators):
        monkeypatch.setattr(module, "launch", record)
        monkeypatch.setattr(module, "blocks", on_gpu(block_sizes.blocks))
        monkeypatch.setattr(module, "is_aligned", on_gpu(is_aligned))
    return found


def on_gpu(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, for which every tensor is one of a GPU."""

    def called(*args: Any, **kwargs: Any) -> Any:
        with pretended_cuda(90):
            return function(*args, **kwargs)

    return called


def call_quick_cases(backend: Backend, operation: str, dtype: str, seed: int = 0) -> None:
    (kernel,) = (
        one
        for one in backend.implementations
        if one.operation.name == operation and one.how == "triton"
    )
    kinds = {"any": PROFILES["quick"], "nan": max(10, PROFILES["quick"] // 4)}
    drawn = [
        recipe for kind, n in kinds.items() for recipe in draw_recipes(operation, kind, n, seed)
    ]
    for recipe in (*fixed_cases(operation), *drawn):
        try:
            convert_and_call(kernel, case_of(recipe, dtype))
        except (Unsupported, Disagreement):
            continue


def check(variants: dict[str, set[str]]) -> None:
    counts = {kernel: len(kinds) for kernel, kinds in variants.items()}
    assert counts and all(1 < count <= MOST for count in counts.values()), counts


@pytest.mark.parametrize("operation", ["scaled_dot_product_attention_grad", "additive_attention"])
def test_a_quick_run_compiles_few_variants(
    operation: str, backend: Backend, variants: dict[str, set[str]]
) -> None:
    call_quick_cases(backend, operation, "bfloat16")
    check(variants)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_quick_run_compiles_few_variants(
    operation: str, dtype: str, seed: int, backend: Backend, variants: dict[str, set[str]]
) -> None:
    call_quick_cases(backend, operation, dtype, seed)
    check(variants)


def test_strides_that_the_compiler_is_told_would_be_seen(
    backend: Backend, variants: dict[str, set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        launch, "choose_variant", lambda kernel, args, _, told: (kernel, args, told)
    )
    call_quick_cases(backend, "scaled_dot_product_attention", "bfloat16")
    with pytest.raises(AssertionError):
        check(variants)


@pytest.mark.parametrize("stride", [0, 1, 2, 16, 33, 4096])
def test_of_strides_without_hints_nothing_is_told(stride: int) -> None:
    written = launch.without_hints((stride,) * 4)
    bind = create_function_from_signature(
        operators.forward.signature, operators.forward.general.params, BACKEND
    )
    given = {name: 7 for name in operators.forward.arg_names} | {"q_": written}
    told = bind(**given)[1][operators.forward.arg_names.index("q_")]
    assert told[1][:4] == ("", "", "", "") and launch.strides_of(written) == (stride,) * 4


def test_a_view_that_is_not_aligned_is_seen() -> None:
    x = torch.zeros(2, 3, 32, 64)
    assert is_aligned(x, x, x.transpose(1, 2), x[:, :, 1:], None)
    with pretended_cuda(90):
        assert is_aligned(x, x, x.transpose(1, 2), x[:, :, 1:], None)
        for other in (
            x[..., 1:],
            x.mT,
            torch.zeros(2, 3, 32, 40),
            x.flatten()[1:-63].view(1, 1, -1, 64),
        ):
            assert not is_aligned(x, x, other)
        assert not is_aligned(x[..., :24], x)
        assert not is_aligned(x, x, others=(x.flatten()[1:],))
