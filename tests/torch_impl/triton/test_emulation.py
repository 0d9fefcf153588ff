"""
The interpreter of the Triton kernels: what it repeats from a record is what Triton makes of it
anew.
"""

from typing import Any

import pytest
import torch
import triton.language as tl
from torch import Tensor

from attnverify.torch_impl.triton import additive, attention
from attnverify.torch_impl.triton.emulation import recording
from attnverify.torch_impl.triton.kernels import launch


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def rows(N: int, D: int, seed: int = 0) -> Tensor:
    return normal(2, 3, N, D, seed=seed)


HIDDEN = normal(2, 1, 18, 35, seed=8) > -1
TABLES = normal(70, 3, 6, seed=4), normal(70, 3, seed=5), normal(3, 6, seed=6)
RUNS: dict[str, Any] = {
    "mask": lambda q, k, v: attention.scaled_dot_product_attention_triton(
        q, k, v, normal(18, 1).expand(18, 35), HIDDEN, 0.1
    ),
    "alibi": lambda q, k, v: attention.alibi_attention_triton(q, k, v, HIDDEN),
    "relative": lambda q, k, v: attention.transformer_xl_attention_triton(
        q, k, v, normal(3, 35, 6), normal(3, 6), normal(3, 6)
    ),
    "learned": lambda q, k, v: attention.learned_relative_attention_triton(q, k, v, *TABLES, "end"),
    "additive": lambda q, k, v: additive.additive_attention_triton(
        q[:, 0], k[:, 0], v[:, 0], *(normal(5, 6),) * 2, normal(5)
    ),
}


def results(run: Any, dtype: torch.dtype, seed: int) -> list[Tensor]:
    """The output and the gradients of a case of several blocks."""
    given = [
        rows(size, width, seed + width).requires_grad_()
        for size, width in ((18, 6), (35, 6), (35, 4))
    ]
    output = run(*given) if dtype == torch.float32 else cast(run, dtype)(*given)
    return [output, *torch.autograd.grad(output.float().square().sum(), given)]


def cast(run: Any, dtype: torch.dtype) -> Any:
    def cast_run(*given: Tensor) -> Any:
        with torch.autocast("cpu", dtype):
            return run(*given)

    return cast_run


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", RUNS)
def test_what_is_repeated_is_what_triton_makes_anew(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    results(RUNS[name], dtype, seed=1)
    known = len(recording.RECORDINGS)
    repeated = results(RUNS[name], dtype, seed=2)
    assert len(recording.RECORDINGS) == known > 0
    monkeypatch.setattr(
        recording, "recorders", [recording.Recorder([])]
    )  # as if all were a part of something: nothing is repeated
    anew = results(RUNS[name], dtype, seed=2)
    assert all(map(torch.equal, repeated, anew))


@launch.Kernel
def between(low, high):
    return high - low


@launch.Kernel
def spans(X, OUT):
    a, b = tl.load(X), tl.load(X + 1)
    tl.store(OUT, between(a, a))
    tl.store(OUT + 1, between(a, b))


def test_one_array_in_two_places_says_nothing_of_two_arrays() -> None:
    out = torch.empty(2)
    launch.launch(spans, (1, 1), torch.tensor([3.0, 5.0]), out, num_warps=1, num_stages=1)
    assert out.tolist() == [0, 2]


@launch.Kernel
def halved(x):
    if x > 8.0:
        x = x * 0.5
    return x


@launch.Kernel
def halve(X, OUT):
    tl.store(OUT, halved(tl.load(X)))


def test_a_branch_on_what_is_in_an_array_is_not_repeated() -> None:
    x, out = torch.tensor([16.0]), torch.zeros(1)
    for number, half in ((16.0, 8.0), (4.0, 4.0), (10.0, 5.0)):
        launch.launch(halve, (1,), x.fill_(number), out, num_warps=1, num_stages=1)
        assert out.item() == half


def test_constants_of_another_type_or_sign_are_others() -> None:
    assert (
        len(
            {
                recording.kind(x)
                for x in (0, 0.0, -0.0, False, None, "0", (0,), (0.0,), tl.float32, "fp32")
            }
        )
        == 10
    )
