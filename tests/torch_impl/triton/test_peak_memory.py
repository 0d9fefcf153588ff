"""
The memory that the Triton attentions take beside their inputs: O(N + M), forwards and backwards,
however long the sequences.

PyTorch's profiler tells every allocation and release. Nothing is interpreted: the kernels are not
launched, since they allocate nothing.
"""

from collections.abc import Callable
from math import log
from typing import Any

import pytest
import torch
from torch import Tensor

from attnverify.torch_impl.attention import scaled_dot_product_attention_eager
from attnverify.torch_impl.triton import additive_operators, operators
from attnverify.torch_impl.triton.additive import additive_attention_triton
from attnverify.torch_impl.triton.attention import (
    alibi_attention_triton,
    learned_relative_attention_triton,
    scaled_dot_product_attention_triton,
    transformer_xl_attention_triton,
)

LENGTHS = (512, 2048, 8192)
H, D = 2, 16


def some(*shape: int) -> Tensor:
    return torch.zeros(shape).requires_grad_()


def qkv(length: int) -> list[Tensor]:
    return [some(1, H, length, D) for _ in range(3)]


def padding(length: int) -> Tensor:
    return (torch.arange(length) < length - 3)[None, None, None]


CALLS: dict[str, Callable[[int], tuple[Callable[..., Tensor], list[Any]]]] = {
    "scaled_dot_product_attention": lambda n: (scaled_dot_product_attention_triton, qkv(n)),
    "with padding": lambda n: (scaled_dot_product_attention_triton, [*qkv(n), padding(n)]),
    "with a mask of keys that learns": lambda n: (
        scaled_dot_product_attention_triton,
        [*qkv(n), some(1, 1, 1, n)],
    ),
    "alibi_attention": lambda n: (alibi_attention_triton, qkv(n)),
    "transformer_xl_attention": lambda n: (
        transformer_xl_attention_triton,
        [*qkv(n), some(H, n, D), some(H, D), some(H, D)],
    ),
    "learned_relative_attention": lambda n: (
        learned_relative_attention_triton,
        [*qkv(n), some(2 * n, H, D), some(2 * n, H), some(H, D), "end", padding(n)],
    ),
    "additive_attention": lambda n: (
        additive_attention_triton,
        [
            some(1, n, D),
            some(1, n, D),
            some(1, n, D),
            some(8, D),
            some(8, D),
            some(8),
            padding(n)[0],
        ],
    ),
}


@pytest.fixture(autouse=True)
def not_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    for place in (operators, additive_operators):
        monkeypatch.setattr(place, "launch", lambda *args, **sizes: None)


def peak(run: Callable[[], Any]) -> int:
    """The most bytes that were alive at once of what was allocated while this ran."""
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        held = run()
    del held
    alive = most = 0
    events = (
        profile.profiler.kineto_results.events()
    )  # profile.events() leaves out what happens inside of an operation
    for event in sorted((e for e in events if e.name() == "[memory]"), key=lambda e: e.start_ns()):
        alive += event.nbytes()
        most = max(most, alive)
    return most


def forwards(attend: Callable[..., Tensor], given: list[Any]) -> Tensor:
    with torch.no_grad():
        return attend(*given)


def both_ways(attend: Callable[..., Tensor], given: list[Any]) -> Any:
    output = attend(*given)
    needed = [x for x in given if isinstance(x, Tensor) and x.requires_grad]
    return output, torch.autograd.grad(output, needed, torch.zeros_like(output))


def slope(run: Callable[..., Any], call: Callable[[int], Any]) -> float:
    """The steepest slope of log(bytes) over log(length) between neighbouring lengths."""
    run(*call(32))  # what a first call sets up
    bytes_of = [peak(lambda n=n: run(*call(n))) - size_of(call(n)[1]) for n in LENGTHS]
    slopes = [
        log(b / a) / log(m / n)
        for a, b, n, m in zip(bytes_of, bytes_of[1:], LENGTHS, LENGTHS[1:], strict=False)
    ]
    print(f"{bytes_of} bytes at {LENGTHS}: slopes {[round(x, 3) for x in slopes]}")
    return max(slopes)


def size_of(given: list[Any]) -> int:
    """
    The inputs are made while it is measured, so that all calls are alike; they are no extra memory.
    """
    return sum(x.nbytes for x in given if isinstance(x, Tensor))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("run", [forwards, both_ways])
@pytest.mark.parametrize("name", CALLS)
def test_extra_memory_grows_no_faster_than_the_lengths(name: str, run: Callable[..., Any]) -> None:
    assert 0.9 < slope(run, CALLS[name]) <= 1.05


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("run", [forwards, both_ways])
def test_a_matrix_of_all_pairs_would_be_noticed(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.LENGTHS", (128, 512))
    assert slope(run, lambda n: (scaled_dot_product_attention_eager, qkv(n))) > 1.5


@pytest.mark.filterwarnings("ignore")
def test_what_is_released_is_not_counted() -> None:
    def run() -> Tensor:
        torch.zeros(1000)
        return torch.zeros(500)

    assert 4000 <= peak(run) < 4500
