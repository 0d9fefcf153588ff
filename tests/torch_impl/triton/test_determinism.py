"""
Gradients of the Triton kernels that are the same bits whatever the order in which the programs run.
"""

from collections.abc import Callable, Iterator
from itertools import islice, product
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from triton.runtime.interpreter import TensorHandle

from attnverify.backends.implementation import Backend
from attnverify.backends.loader import load
from attnverify.inputs.fixed_cases import fixed_cases
from attnverify.inputs.sampling import draw_recipes
from attnverify.judge.case import case_of
from attnverify.judge.judging import judge
from attnverify.torch_impl.triton import additive as triton_additive
from attnverify.torch_impl.triton import additive_operators, operators
from attnverify.torch_impl.triton import attention as triton_attention
from attnverify.torch_impl.triton.emulation import interpreter
from attnverify.torch_impl.triton.kernels import attention
from tests.support.triton_sabotage import caught, planted, put

SDPA, XL, LEARNED, ADDITIVE = (
    f"{name}_attention_grad"
    for name in ("scaled_dot_product", "transformer_xl", "learned_relative", "additive")
)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def backend() -> Backend:
    return load("torch_impl")


@pytest.fixture
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("operation", [SDPA, XL, LEARNED, ADDITIVE])
def test_deterministic_gradients_are_what_the_specification_says(
    operation: str, dtype: str, backend: Backend
) -> None:
    implementation = next(
        i for i in backend.implementations if (i.operation.name, i.how) == (operation, "triton")
    )
    count = 8 if dtype == "float32" else 4
    recipes = (
        *islice(fixed_cases(operation), count),
        *draw_recipes(operation, "any", count, 1),
        *draw_recipes(operation, "nan", count // 2, 1),
    )
    cases = [case_of(recipe, dtype) for recipe in recipes]
    assert sum(judge(implementation, case).discriminating for case in cases) >= count


def relative(deterministic: bool | None) -> tuple[Tensor, ...]:
    """
    Two batch entries, three blocks of queries and four of keys, in front of them a memory: each row
    of the table is read by several.
    """
    given = [normal(2, 2, size, 6, seed=size).requires_grad_() for size in (40, 52, 53)]
    query, key, value = given[0], given[1], given[2][:, :, :52]
    tables = [normal(2, 52, 6, seed=4), normal(2, 6, seed=5), normal(2, 6, seed=6)]
    shared = [x.requires_grad_() for x in tables]
    output = triton_attention.transformer_xl_attention_triton(
        query, key, value, *shared, deterministic=deterministic
    )
    return torch.autograd.grad(output.square().sum(), [*given, *shared])


def learned(deterministic: bool | None) -> tuple[Tensor, ...]:
    query, key, value = (normal(2, 2, size, 6, seed=size).requires_grad_() for size in (33, 20, 20))
    shared = [
        x.requires_grad_()
        for x in (normal(68, 2, 6, seed=4), normal(68, 2, seed=5), normal(2, 6, seed=6))
    ]
    output = triton_attention.learned_relative_attention_triton(
        query, key, value, *shared, "start", deterministic=deterministic
    )
    return torch.autograd.grad(output.square().sum(), [query, key, value, *shared])


def masked(*shape: int) -> Callable[[bool | None], tuple[Tensor, ...]]:
    """The attention with a float mask of this shape; it follows the setting of PyTorch."""

    def run(deterministic: bool | None) -> tuple[Tensor, ...]:
        given = [
            x.requires_grad_()
            for x in (
                normal(3, 2, 18, 6),
                normal(3, 2, 20, 6, seed=1),
                normal(3, 2, 20, 4, seed=2),
                normal(*shape),
            )
        ]
        return torch.autograd.grad(
            triton_attention.scaled_dot_product_attention_triton(*given).square().sum(), given
        )

    return run


def additive(*shape: int) -> Callable[[bool | None], tuple[Tensor, ...]]:
    def run(deterministic: bool | None) -> tuple[Tensor, ...]:
        given = [
            normal(3, 40, 4),
            normal(3, 20, 5),
            normal(3, 20, 6),
            normal(3, 4),
            normal(3, 5),
            normal(3),
            normal(*shape),
        ]
        given = [x.requires_grad_() for x in given]
        return torch.autograd.grad(
            triton_additive.additive_attention_triton(*given).square().sum(), given
        )

    return run


RUNS: dict[str, Callable[[bool | None], tuple[Tensor, ...]]] = {
    "Transformer-XL": relative,
    "learned": learned,
    "a mask for all heads": masked(18, 20),
    "additive, a mask for each": additive(3, 40, 20),
    "additive, a mask for all": additive(40, 20),
}
SUMMED: dict[str, Callable[[bool | None], tuple[Tensor, ...]]] = {
    "a mask of keys": masked(3, 1, 1, 20),
    "a mask of queries": masked(1, 2, 18, 1),
    "a mask of one number": masked(1, 1),
    "a mask for each head": masked(3, 2, 18, 20),
}
"""Nothing is added up in memory here, so that the same bits come in any case."""


def one_by_one(order: int) -> Any:
    """The launcher, for one program after the other: 0 as they are numbered, else shuffled."""

    def launch(
        kernel: Any,
        grid: tuple[int, int],
        *args: Any,
        num_warps: int,
        num_stages: int,
        aligned: bool,
        **constants: Any,
    ) -> None:
        programs = list(product(range(grid[0]), range(grid[1])))
        if order:
            Random(order).shuffle(programs)
        for program in programs:
            answers = {
                "create_get_program_id": numbers(program),
                "create_get_num_programs": numbers(grid),
            }
            with pytest.MonkeyPatch.context() as patch:
                for name, answer in answers.items():
                    patch.setitem(interpreter.SIDE_BY_SIDE, name, answer)
                with interpreter.interpreting(range(1)):
                    kernel.interpreted[(1,)](*args, **constants)

    return launch


def numbers(of_axes: tuple[int, int]) -> Any:
    return lambda programs, axis: TensorHandle(
        np.array([of_axes[axis]], np.int32), interpreter.core.int32
    )


def in_orders(
    run: Callable[[bool | None], tuple[Tensor, ...]],
    flag: bool | None,
    monkeypatch: pytest.MonkeyPatch,
) -> list[bool]:
    """For each gradient, whether it is the same bits in three orders."""
    found = []
    for order in range(3):
        for module in (operators, additive_operators):
            monkeypatch.setattr(module, "launch", one_by_one(order))
        found.append(run(flag))
    return [all(torch.equal(x, y) for y in others) for x, *others in zip(*found, strict=True)]


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("name", RUNS)
def test_the_order_of_the_programs_is_not_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(in_orders(RUNS[name], None, monkeypatch))


@pytest.mark.parametrize("name", RUNS)
def test_without_it_the_order_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not all(in_orders(RUNS[name], None, monkeypatch))


@pytest.mark.parametrize("name", SUMMED)
def test_what_is_summed_in_registers_is_the_same_in_any_case(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert all(in_orders(SUMMED[name], None, monkeypatch))


def refused(*args: Any) -> None:
    raise AssertionError("an atomic addition")


@pytest.mark.parametrize("run", [relative, learned])
def test_positions_take_no_atomics_when_asked(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = run(False)
    monkeypatch.setitem(interpreter.SIDE_BY_SIDE, "create_atomic_rmw", refused)
    for x, y in zip(run(True), usual, strict=True):
        torch.testing.assert_close(x, y)
    with pytest.raises(Exception, match="an atomic addition"):
        run(None)


FAULTS = {
    "one diagonal off": (
        "(at[None, :] + at[:, None]) % BLOCK_N",
        "(at[None, :] + at[:, None] + 1) % BLOCK_N",
    ),
    "the second block of keys lost": (
        "at_m = i_m + at[None, :] + tl.where(upper, 0, BLOCK_N)",
        "at_m = i_m + at[None, :]",
    ),
    "the first batch entry alone": ("        i_b += 1", "        i_b += 0"),
    "a block of queries skipped": ("first - i_r - 2 * BLOCK_N + 2)", "first - i_r - BLOCK_N + 2)"),
    "keys before the first": ("tl.where(at_m < 0, M, at_m)", "tl.where(at_m < 0, 0, at_m)"),
    "the last batch entry's bias": ("ds_sum += total(db, 0)", "ds_sum = total(db, 0)"),
}


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_planted_in_the_kernel_is_caught(
    fault: str, backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(planted(attention, *FAULTS[fault], tmp_path), operators, monkeypatch)
    assert caught(
        next(i for i in backend.implementations if (i.operation.name, i.how) == (LEARNED, "triton"))
    )
