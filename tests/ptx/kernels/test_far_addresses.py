"""
This project's kernels, compiled and executed, where rows or heads of what they read lie further
apart than 32 bits count: on a card this needs gigabytes, on the machine the pages that are there.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attnverify import ptx
from attnverify.torch_impl import paged_attention
from attnverify.torch_impl.triton import cached_operators, operators, paged_attention_triton
from attnverify.torch_impl.triton.kernels import attention, cached
from tests.ptx.kernels.test_own_kernels import ERRORS, caches  # noqa: F401
from tests.ptx.own_kernels import cuda, triton
from tests.ptx.own_kernels.cases import Case, cases_of, gradient_of_output, run_reference
from tests.support.triton_sabotage import planted, put

NEAR = cases_of(18, 21, 3)
"""The last of three heads, for a stride that leaves 32 bits itself is given to Triton in 64."""

ROWS, HEADS = -2, -3


def far(x: np.ndarray, axis: int) -> np.ndarray:
    """An array whose last place along an axis lies behind 2^31 elements; none overlap."""
    if x.ndim + axis < 0 or x.shape[axis] == 1:
        return x
    strides = list(np.ascontiguousarray(x).strides)
    strides[axis] = x.itemsize * (2**31 // (x.shape[axis] - 1) // 16 + 1) * 16
    last = sum((size - 1) * step for size, step in zip(x.shape, strides, strict=True))
    memory = np.zeros(last // x.itemsize + 1, x.dtype)
    made = np.lib.stride_tricks.as_strided(memory, x.shape, strides)
    made[...] = x
    return made


@dataclass(frozen=True)
class Far(Case):
    axis: int = ROWS

    def inputs(self, dtype: str, seed: int = 0) -> list[np.ndarray]:
        return [far(x, self.axis) for x in super().inputs(dtype, seed)]

    def extra(self, dtype: str) -> dict[str, Any]:
        given = super().extra(dtype).items()
        return {name: far(x, self.axis) if isinstance(x, np.ndarray) else x for name, x in given}


def run(column: str, name: str, axis: int, patch: pytest.MonkeyPatch) -> None:
    """The answer, and the gradients, are those of the same numbers side by side."""
    near, module = NEAR[name], triton if column == "Triton" else cuda

    def far_gradient(shape: tuple[int, ...], dtype: str) -> np.ndarray:
        return far(gradient_of_output(shape, dtype), axis)

    patch.setattr(module, "gradient_of_output", far_gradient)
    case = Far(near.operation, near.shapes, near.options, axis)
    if column == "Triton":
        with triton.triton_on_machine(90):
            found = triton.run_triton(case, "bfloat16")
    else:
        with cuda.cuda_on_machine(90):
            found = cuda.run_cuda(case, "bfloat16")
    for got, wanted in zip(found, run_reference(near, "bfloat16"), strict=True):
        assert np.linalg.norm(got - wanted) <= ERRORS["bfloat16"] * np.linalg.norm(wanted)


@pytest.mark.parametrize("column", ["Triton", "CUDA C++"])
def test_rows_lie_further_apart_than_32_bits_count(
    column: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(column, "plain", ROWS, monkeypatch)


@pytest.mark.thorough
@pytest.mark.parametrize("axis", [ROWS, HEADS])
@pytest.mark.parametrize("name", NEAR)
@pytest.mark.parametrize("column", ["Triton", "CUDA C++"])
def test_so_do_rows_and_heads_of_every_kernel(
    column: str, name: str, axis: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(column, name, axis, monkeypatch)


CUT = {
    "rows": (ROWS, "at_row.to(tl.int64)", "at_row"),
    "heads": (HEADS, "(i_head % H).to(tl.int64)", "(i_head % H)"),
}


@pytest.mark.parametrize("cut", CUT)
def test_an_offset_of_32_bits_is_told(
    cut: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    axis, old, new = CUT[cut]
    put(planted(attention, old, new, tmp_path), operators, monkeypatch)
    with pytest.raises(ptx.Finding) as raised:
        run("Triton", "plain", axis, monkeypatch)
    assert raised.value.kind == "overflow" and "left 32 bits" in str(raised.value)


def run_paged() -> None:
    """Three pages of a pool of which the last begins behind 2^31 elements; one entry is beyond."""
    numbers = np.random.default_rng(0).standard_normal((3, 16, 2, 64)).astype(np.float16)
    near, query = torch.from_numpy(numbers), torch.from_numpy(numbers[0, :, 0].copy())[:3, None]
    of = [torch.tensor(x, dtype=torch.int32) for x in ([[2, 0, 1, 9]], [40], [0, 3])]
    query = query.expand(3, 4, 64).contiguous()
    pool = torch.from_numpy(far(numbers, -4))
    with triton.triton_on_machine(90):
        found = paged_attention_triton(query, pool, pool, *of, causal=True)
    for got, wanted in zip(
        found, paged_attention(query, near, near, *of, causal=True), strict=True
    ):
        assert (got - wanted).norm() <= ERRORS["float16"] * wanted.norm()


def test_pages_lie_further_apart_than_32_bits_count() -> None:
    run_paged()


def test_a_page_times_its_stride_in_32_bits_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = planted(cached, "mask=in_m, other=0).to(tl.int64)", "mask=in_m, other=0)", tmp_path)
    put(cut, cached_operators, monkeypatch)
    with pytest.raises(ptx.Finding) as raised:
        run_paged()
    assert raised.value.kind in ("overflow", "out of bounds")
