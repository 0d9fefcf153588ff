"""Attention over caches by a Triton kernel: 8 bits, what it refuses, planted faults."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from attnverify.backends.implementation import Implementation
from attnverify.backends.loader import load
from attnverify.inputs.sampling import FROM_SOME, draw_recipes
from attnverify.judge.case import case_of
from attnverify.judge.errors import Disagreement
from attnverify.judge.judging import judge
from attnverify.torch_impl import dequantize, latent_attention, paged_attention
from attnverify.torch_impl.triton import (
    cached_operators,
    latent_attention_triton,
    paged_attention_triton,
)
from attnverify.torch_impl.triton.kernels import cached
from tests.ptx.own_kernels.triton import triton_on_machine
from tests.support.triton_sabotage import caught, planted, put

Z, W, G, H, D = 9, 16, 2, 6, 64
POOLS = {"key_pages": "key_scale", "value_pages": "value_scale"}
HALVES = torch.float16, torch.bfloat16
FORMATS = {"int8": torch.int8, "float8_e4m3fn": torch.float8_e4m3fn}


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def call(dtype: torch.dtype = torch.float32, D: int = D) -> dict[str, Any]:
    """Four sequences, the last empty, rows of none before and behind, one entry beyond a length."""
    pools = {name: normal(Z, W, G, D, seed=i, dtype=dtype) for i, name in enumerate(POOLS)}
    table = torch.tensor([[6, 0, 3, 2], [1, 5, 99, 0], [4, 3, 1, -1], [2, 2, 2, 2]])
    of = {"page_table": table, "lengths": torch.tensor([61, 32, 40, 0])}
    rows = {"query": normal(12, H, D, seed=5, dtype=dtype)}
    starts = {"query_starts": torch.tensor([1, 4, 8, 9, 11])}
    return pools | of | rows | starts | {"causal": True, "window": (40, 0), "soft_cap": 5.0}


def in_8_bits(kind: str, dtype: torch.dtype) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Pools of all 256 codes with their scales; and the same numbers as they are dequantized."""
    stored, wide = {}, {}
    for seed, (pool, of) in enumerate(POOLS.items()):
        codes = torch.arange(Z * W * G * D).mul(7 + 4 * seed).remainder(256).to(torch.uint8)
        codes = codes.view(torch.int8).view(Z, W, G, D)
        scale = (normal(Z, W, G, seed=7 + seed).abs() / 64).to(dtype)
        wide[pool] = dequantize(codes, scale, kind)
        stored |= {pool: codes.view(FORMATS[kind]), of: scale}
    return stored, wide


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
@pytest.mark.parametrize("kind", FORMATS)
def test_8_bits_are_read_as_their_dequantized_numbers(kind: str, dtype: torch.dtype) -> None:
    """Bit for bit, each code, NaN of float8_e4m3fn too, which the scale of a slot makes none of."""
    stored, wide = in_8_bits(kind, dtype)
    one, other = (paged_attention_triton(**call(dtype) | pools) for pools in (stored, wide))
    for got, wanted in zip(one, other, strict=True):
        np.testing.assert_array_equal(got.float().numpy(), wanted.float().numpy())


@pytest.mark.parametrize("target", [80, 90])
@pytest.mark.parametrize("kind", FORMATS)
def test_so_do_compiled_kernels(kind: str, target: int) -> None:
    stored, wide = in_8_bits(kind, torch.bfloat16)
    given = call(torch.bfloat16)
    numbers = {name: x.nan_to_num(0.0) for name, x in wide.items()}
    if kind != "int8":
        codes = {name: x.view(torch.uint8) for name, x in stored.items() if name in POOLS}
        codes = {name: torch.where((x & 127) == 127, 0, x) for name, x in codes.items()}
        stored |= {name: x.view(torch.float8_e4m3fn) for name, x in codes.items()}
    with triton_on_machine(target) as machine:
        found = paged_attention_triton(**given | stored)
    assert machine.launches
    for got, wanted in zip(found, paged_attention(**given | numbers), strict=True):
        there = wanted.isfinite()
        assert torch.equal(there, got.isfinite())
        error = (got[there] - wanted[there]).float().norm() / wanted[there].float().norm()
        assert error < 2e-2


def test_a_latent_as_wide_as_a_models_is_taken_at_once() -> None:
    """512 channels and 64 that are rotated, one row of a decode of 16 heads."""
    q, q_rope = (normal(2, 16, 1, width, seed=1, dtype=torch.bfloat16) for width in (512, 64))
    c, k_rope = (normal(2, 70, width, seed=2, dtype=torch.bfloat16) for width in (512, 64))
    given, lengths = (q, q_rope, c, k_rope, 0.05), torch.tensor([70, 33])
    with triton_on_machine(90) as machine:
        found = latent_attention_triton(*given, lengths=lengths)
    assert machine.launches
    for got, wanted in zip(found, latent_attention(*given, lengths=lengths), strict=True):
        assert (got - wanted).float().norm() < 5e-3 * wanted.float().norm()


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "8 bits without a scale": (
        {"key_pages": torch.zeros(Z, W, G, D, dtype=torch.int8)},
        r"key_scale: wanted a tensor \[Z W G\] beside pages of 8 bits.*got NoneType",
    ),
    "a scale beside others": (
        {"value_scale": normal(Z, W, G)},
        r"value_scale: wanted .* none beside others, got torch.float32 .* beside torch.float32",
    ),
    "a scale for each page": (
        {"key_pages": torch.zeros(Z, W, G, D, dtype=torch.int8), "key_scale": normal(Z)},
        r"key_scale: wanted torch.float32 \(9, 16, 2\), got torch.float32 \(9,\)",
    ),
    "a page that is seen and not there": (
        {"page_table": torch.full((4, 4), Z)},
        "page_table: wanted 0 to 8 where a row sees a page",
    ),
}


@pytest.mark.parametrize("refused", REFUSED)
def test_what_is_refused_is_told(refused: str) -> None:
    changed, words = REFUSED[refused]
    with pytest.raises(ValueError, match=words):
        paged_attention_triton(**call() | changed)


def test_what_the_kernel_lacks_is_told() -> None:
    given = call()
    given["query"].requires_grad_()
    with pytest.raises(NotImplementedError, match="no gradient"):
        paged_attention_triton(**given)
    with pytest.raises(NotImplementedError, match="heads wider than 512"):
        paged_attention_triton(**call(D=513))


FAULTS = {
    "a slot of the next page": ("(at_m % W)", "((at_m + 1) % W)"),
    "one key too many": ("at_m < length", "at_m <= length"),
    "the window's end": ("at_m >= position - left", "at_m > position - left"),
    "chunks before position 0": ("((position % chunk) + chunk) % chunk", "position % chunk"),
    "the sink in no sum": ('tl.where(top == float("-inf"), 0.0, 1.0)', "top * 0"),
    "heads by the modulus": ("i_g * r + at % r", "i_g + (at % r) * G"),
    "the cap on nothing": ("cap * tangent(s / cap)", "tangent(s / cap)"),
    "a block that is not rescaled": ("take_values(out * fade[:, None]", "take_values(out"),
    "hidden NaN reaches all rows": ("add_product(out, p, finite(v))", "add_product(out, p, v)"),
    "an lse of base 2": ("(top + tl.log2(norm)) / LOG2E", "top + tl.log2(norm)"),
}


def is_caught(judged: Implementation) -> bool:
    """By the judge, in float32, or by NaN in what some rows do not see."""
    if caught(judged, 60):
        return True
    try:
        for recipe in draw_recipes(judged.operation.name, FROM_SOME, 12, 0):
            judge(judged, case_of(recipe, "float32"))
    except Disagreement:
        return True
    return False


@pytest.mark.parametrize("fault", [*FAULTS, ""])
def test_a_planted_fault_is_caught(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And without one nothing is."""
    put(planted(cached, *FAULTS.get(fault, ("", "")), tmp_path), cached_operators, monkeypatch)
    names = {i.name: i for i in load("torch_impl").implementations}
    assert is_caught(names["paged_attention_triton"]) == bool(fault)
