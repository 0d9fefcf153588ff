"""
The Triton kernels are not compiled again for each length: what the launcher tells the compiler of a
call.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime.jit import create_function_from_signature

from attnverify.torch_impl.triton import additive as triton_additive
from attnverify.torch_impl.triton import additive_operators, operators
from attnverify.torch_impl.triton import attention as triton_attention
from attnverify.torch_impl.triton.kernels import block_sizes, launch

BACKEND = make_backend(GPUTarget("cuda", 90, 32))
LENGTHS = [(1, 1), (1, 17), (5, 19), (7, 16), (16, 33), (33, 64), (64, 128), (127, 257)]


def zeros(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.bfloat16, requires_grad=True)


def attention(N: int, M: int) -> tuple[Tensor, ...]:
    return zeros(2, 3, N, 64), zeros(2, 3, M, 64), zeros(2, 3, M, 64)


def relative(N: int, M: int) -> Tensor:
    return triton_attention.transformer_xl_attention_triton(
        *attention(N, M), zeros(3, M, 64), zeros(3, 64), zeros(3, 64), deterministic=N > 5
    )


def learned(N: int, M: int) -> Tensor:
    tables = zeros(600, 3, 64), zeros(600, 3), zeros(3, 64)
    return triton_attention.learned_relative_attention_triton(*attention(N, M), *tables, "end")


def additive(N: int, M: int) -> Tensor:
    features = zeros(16, 8), zeros(16, 8), zeros(16)
    return triton_additive.additive_attention_triton(
        zeros(2, N, 8), zeros(2, M, 8), zeros(2, M, 64), *features
    )


CALLS: dict[str, Callable[[int, int], Tensor]] = {
    "SDPA": lambda N, M: triton_attention.scaled_dot_product_attention_triton(*attention(N, M)),
    "ALiBi": lambda N, M: triton_attention.alibi_attention_triton(*attention(N, M)),
    "Transformer-XL": relative,
    "learned": learned,
    "additive": additive,
}


def find_compiled_variants(launched: list[Any]) -> dict[str, set[str]]:
    """What the compiler is told of each kernel's calls, in as many ways as it would be compiled."""
    found: dict[str, set[str]] = {}
    for kernel, args, constants in launched:
        bind = create_function_from_signature(kernel.signature, kernel.params, BACKEND)
        found.setdefault(kernel.fn.__name__, set()).add(str(bind(*args, **constants)[1]))
    return found


def launches(call: Callable[[int, int], Tensor], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every launch, forwards and backwards, of calls of all lengths; nothing is run."""
    launched: list[Any] = []

    def launch(
        kernel: Any,
        grid: Any,
        *args: Any,
        num_warps: int,
        num_stages: int,
        aligned: bool,
        **constants: Any,
    ) -> None:
        launched.append((kernel, args, constants))

    for module in (operators, additive_operators):
        monkeypatch.setattr(module, "launch", launch)
    # on a GPU blocks do not depend on lengths
    monkeypatch.setattr(block_sizes, "INTERPRETED", (16, 16))
    for N, M in LENGTHS:
        call(N, M).sum().backward()
    return launched


@pytest.mark.parametrize("name", CALLS)
def test_kernels_are_compiled_once_for_all_lengths(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways = find_compiled_variants(launches(CALLS[name], monkeypatch))
    print(name, {kernel: len(kinds) for kernel, kinds in ways.items()})
    # backward_query is another kernel when it adds to no table
    assert all(
        len(kinds) == 1 + (kernel == "backward_query" and name == "Transformer-XL")
        for kernel, kinds in ways.items()
    ), ways


@pytest.mark.parametrize("name", CALLS)
def test_a_launcher_that_tells_lengths_would_be_seen(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched = launches(CALLS[name], monkeypatch)
    for kernel in {id(kernel): kernel for kernel, _, _ in launched}.values():
        plain = launch.JITFunction(kernel.fn)
        monkeypatch.setattr(kernel, "params", plain.params)
    assert all(len(kinds) > 2 for kinds in find_compiled_variants(launched).values())
