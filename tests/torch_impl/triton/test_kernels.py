"""
The Triton kernels, in the interpreter: every branch is reached, planted faults are caught, nothing
of Triton is left changed.
"""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from torch import Tensor

from attnverify import ROOT
from attnverify.backends.implementation import Backend, Implementation
from attnverify.backends.loader import load
from attnverify.catalogue.operation import CATALOGUE
from attnverify.inputs.expand import expand
from attnverify.inputs.masks import visible_pairs
from attnverify.inputs.recipe import Recipe
from attnverify.inputs.sampling import draw_recipes
from attnverify.judge.case import case_of
from attnverify.judge.judging import judge
from attnverify.torch_impl.triton import additive as triton_additive
from attnverify.torch_impl.triton import additive_operators, operators
from attnverify.torch_impl.triton import attention as triton_attention
from attnverify.torch_impl.triton.emulation import interpreter
from attnverify.torch_impl.triton.kernels import additive, attention, block_sizes, launch
from attnverify.verdicts.cell import cells
from tests.support.roundings import count_roundings
from tests.support.triton_sabotage import caught, planted, put

SDPA, ALIBI, XL, LEARNED = (
    "scaled_dot_product_attention",
    "alibi_attention",
    "transformer_xl_attention",
    "learned_relative_attention",
)
ADDITIVE = "additive_attention"
OPERATIONS = (SDPA, ALIBI, XL, LEARNED, ADDITIVE)


@pytest.fixture(scope="module")
def backend() -> Backend:
    return load("torch_impl")


def named(backend: Backend, operation: str) -> Implementation:
    return next(
        i for i in backend.implementations if (i.operation.name, i.how) == (operation, "triton")
    )


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def qkv(
    N: int = 5, M: int = 19, D: int = 7, E: int = 3, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        normal(2, 3, N, D, seed=1, dtype=dtype),
        normal(2, 3, M, D, seed=2, dtype=dtype),
        normal(2, 3, M, E, seed=3, dtype=dtype),
    )


# Every branch of the kernels is reached by what is drawn

JUDGED = [*OPERATIONS, *(f"{operation}_grad" for operation in OPERATIONS)]
AXES = (
    ["N M", "B N M", "B 1 M", "B N 1"],
    ["N M", "B H N M", "B 1 N M", "B 1 1 M", "1 H N M", "B 1 N 1"],
)
FACES = (
    "no mask",
    "ragged queries",
    "ragged keys",
    "several blocks of queries",
    "several blocks of keys",
    "several of both",
)
FACES += (
    "N < M",
    "N = M",
    "N > M",
    "a row that sees no key",
    "a key that nobody sees",
    "value of another width",
)


def faces(recipe: Recipe) -> Iterator[str]:
    """What a case has that some branch of a kernel is for."""
    N, M, mask, operation = (
        recipe.sizes["N"],
        recipe.sizes["M"],
        recipe.mask,
        CATALOGUE[recipe.operation],
    )
    yield from (
        ["no mask"]
        if mask is None
        else [f"{'bool' if mask['form'] == 'bool' else 'float'} mask", f"mask {mask['axes']}"]
    )
    size = block_sizes.interpreted(N, M)
    yield from (f"ragged {side}" for side, length in (("queries", N), ("keys", M)) if length % size)
    yield from (
        f"several blocks of {side}"
        for side, length in (("queries", N), ("keys", M))
        if length > size
    )
    yield from ["several of both"] * (min(N, M) > size)
    yield f"N {'<' if N < M else '>' if N > M else '='} M"
    seen_pairs = visible_pairs(operation, expand(recipe, "float32"))
    yield from ["a row that sees no key"] * (not seen_pairs.any(-1).all()) + [
        "a key that nobody sees"
    ] * (not seen_pairs.any(-2).all())
    yield from (f"align {recipe.options['align']}",) if "align" in recipe.options else ()
    yield "dropout" if recipe.dropout else "no dropout"
    yield from ["value of another width"] * (recipe.sizes["E"] != recipe.sizes.get("D"))


def wanted(operation: str) -> dict[str, int]:
    """How often each face has to be among the hundred draws of the default profile, at least."""
    forward = operation.removesuffix("_grad")
    found = dict.fromkeys(
        (*FACES, *(f"mask {axes}" for axes in AXES[forward != ADDITIVE]), "bool mask"), 5
    )
    found |= {"float mask": 20} if forward in (SDPA, ADDITIVE) else {}
    found |= dict.fromkeys(["align start", "align end"], 20) if forward == LEARNED else {}
    return found | (
        dict.fromkeys(["dropout", "no dropout"], 20) if forward in (SDPA, ADDITIVE) else {}
    )


@pytest.mark.parametrize("operation", JUDGED)
def test_every_branch_is_reached_by_what_is_drawn(operation: str) -> None:
    counts = Counter(
        face for recipe in draw_recipes(operation, "any", 100, 0) for face in faces(recipe)
    )
    print(operation, dict(counts))
    assert not {
        face: counts[face] for face, least in wanted(operation).items() if counts[face] < least
    }


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_every_dtype_has_a_verdict(dtype: str, backend: Backend) -> None:
    judged = {
        cell.implementation.operation.name
        for cell in cells([backend], dtypes=(dtype,))
        if cell.implementation.how == "triton"
    }
    assert judged == {*OPERATIONS, "paged_attention", "latent_attention"}


@pytest.mark.parametrize("axes", AXES[1])
@pytest.mark.parametrize("form", ["bool", "noisy"])
def test_masks_broadcast_forwards_and_backwards(backend: Backend, axes: str, form: str) -> None:
    mask = {"pattern": "random", "axes": axes, "form": form, "seed": 4}
    sizes = {"B": 2, "H": 2, "N": 18, "M": 33, "D": 5, "E": 3}
    for operation in (SDPA, f"{SDPA}_grad"):
        judge(
            named(backend, operation),
            case_of(Recipe(operation, sizes, {"family": "spread", "seed": 1}, mask), "float32"),
        )


FAR = """
import torch
from attnverify.torch_impl.triton.attention import scaled_dot_product_attention_triton as attention

shown = torch.tensor([[True, False, True], [True, True, False]])
far = torch.empty(2_400_000_004, dtype=torch.bool).as_strided((2, 3), (1, 1_200_000_001))
far.copy_(shown)
query, key, value = torch.randn(1, 1, 2, 16), torch.randn(1, 1, 3, 16), torch.randn(1, 1, 3, 16)
for near, same in ({"mask": shown}, {"mask": far}), ({"keep": shown}, {"keep": far}):
    p = {"p": 0.5} if "keep" in near else {}
    one, other = (attention(query, key, value, **x, **p) for x in (near, same))
    assert torch.equal(one, other)
"""


def test_a_mask_may_reach_further_than_32_bits_count() -> None:
    """In a process of its own: where an address is cut off, it ends with a segmentation fault."""
    done = subprocess.run([sys.executable, "-c", FAR], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


SHAPES = [(19,), (5, 1), (1, 1), (2, 1, 5, 1), (2, 3, 1, 1)]
"""Masks of fewer than two axes, and those that are one number for a whole head, are not drawn."""


def check_mask(shape: tuple[int, ...]) -> None:
    """A mask acts as it does written out, and has the gradient of that, summed."""
    query, key, value = qkv()
    mask = normal(*shape).requires_grad_()
    wide = mask.detach().expand(2, 3, 5, 19).clone().requires_grad_()
    outputs = [
        triton_attention.scaled_dot_product_attention_triton(query, key, value, x)
        for x in (mask, wide)
    ]
    torch.testing.assert_close(*outputs)
    grads = [
        torch.autograd.grad((output * normal(2, 3, 5, 3)).sum(), x)[0]
        for output, x in zip(outputs, (mask, wide), strict=True)
    ]
    assert count_roundings(grads[0], grads[1].sum_to_size(shape), terms=grads[1]) < 64


@pytest.mark.parametrize("shape", SHAPES)
def test_a_mask_has_the_gradient_of_the_mask_written_out(shape: tuple[int, ...]) -> None:
    check_mask(shape)


@pytest.mark.parametrize("old", ["dm_n += total(ds, 1)", "dm_m += total(ds, 0)"])
def test_a_gradient_of_the_last_block_alone_is_not(
    old: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(planted(attention, old, old.replace("+=", "="), tmp_path), operators, monkeypatch)
    monkeypatch.setattr(block_sizes, "INTERPRETED", (4, 4))
    with pytest.raises(AssertionError):
        check_mask((5, 1) if "dm_n" in old else (19,))


# Faults planted in the kernels are caught by the draws of the differential suite

FAULTS = {
    "band offset by one": (
        attention,
        XL,
        "low = first - i_n - (BLOCK_N - 1)\n",
        "low = first - i_n - BLOCK_N\n",
    ),
    "stale carry": (attention, LEARNED, "before = after", "before = before"),
    "tail mask dropped": (
        attention,
        SDPA,
        "visible = (at_n < N) & (at_m < M)",
        "visible = (at_n < N) & (at_m >= 0)",
    ),
    "double scale": (attention, ALIBI, "s * scale, at_n", "s * scale * scale, at_n"),
    "scale forgotten in whole blocks": (attention, SDPA, "s = s * scale  #", "s = s  #"),
    "a whole block too many": (
        attention,
        ALIBI,
        "tl.minimum(stop, i_n + (M - N) + 1)",
        "tl.minimum(stop, i_n + (M - N) + BLOCK_M)",
    ),
    "a whole block beyond the last key": (
        attention,
        SDPA,
        "return tl.maximum(stop, 0) // BLOCK_M * BLOCK_M",
        "return (tl.maximum(stop, 0) + BLOCK_M - 1) // BLOCK_M * BLOCK_M",
    ),
    "first block hidden": (
        attention,
        SDPA,
        "for i_m in range(0, whole(full)",
        "for i_m in range(BLOCK_M, whole(full)",
    ),
    "output not rescaled": (
        attention,
        SDPA,
        "add_product(out * fade[:, None], ",
        "add_product(out, ",
    ),
    "norm not rescaled": (attention, ALIBI, "norm = norm * fade +", "norm = norm +"),
    "causal from the start": (
        attention,
        ALIBI,
        "tl.minimum(M, at_n + (M - N) + 1)",
        "tl.minimum(M, at_n + 1)",
    ),
    "u for v": (attention, XL, "joined(q, W,", "joined(q, U,"),
    "hidden values": (
        attention,
        SDPA,
        "    if HIDING and not FULL:\n        v = tl.where",
        "    if False:\n        v = tl.where",
    ),
    "wrong row of dR": (
        attention,
        f"{XL}_grad",
        "db, after = rows_of_pairs(ds, before, BLOCK)",
        "db, after = rows_of_pairs(ds, before, BLOCK)\n"
        "    db = tl.gather(db, (at[None, :] + 0 * at[:, None] + 1) % BLOCK, 1)",
    ),
    "last band lost": (attention, f"{LEARNED}_grad", "none, ds_before, qw", "none, none, qw"),
    "delta forgotten": (attention, f"{SDPA}_grad", "p * (dp - delta[:, None])", "p * dp"),
    "first queries skipped": (
        attention,
        f"{ALIBI}_grad",
        "tl.maximum(0, i_m - (M - N))",
        "tl.maximum(0, i_m + BLOCK_N - (M - N))",
    ),
    "dropout in the forward pass alone": (
        attention,
        f"{SDPA}_grad",
        "dp, dropped = tl.where(keep, dp, 0.0),",
        "dp, dropped = dp,",
    ),
    "hidden keys": (attention, f"{SDPA}_grad", "            k = finite(k)", "            k = k"),
    "unread rows": (attention, f"{LEARNED}_grad", "finite(tile(R, at_r", "(tile(R, at_r"),
    "mask's gradient not summed over queries": (
        attention,
        f"{SDPA}_grad",
        "dm_m += total(ds, 0)",
        "dm_m = total(ds, 0)",
    ),
    "mask's gradient of one head": (
        attention,
        f"{SDPA}_grad",
        "add_to(\n                DM + at_n",
        "tl.store(\n                DM + at_n",
    ),
    "one weight for two features": (additive, ADDITIVE, "(-2.0 * w2) * x1", "(-2.0 * w1) * x1"),
    "tangent's slope": (additive, f"{ADDITIVE}_grad", "1.0 - t1 * t1", "1.0 - t1"),
    "tangents swapped": (
        additive,
        f"{ADDITIVE}_grad",
        "t1, t2 = 1.0 - x2 * shared, 1.0 - x1 * shared",
        "t2, t1 = 1.0 - x2 * shared, 1.0 - x1 * shared",
    ),
    "scores of large projections": (additive, ADDITIVE, "    if anew:", "    if anew and False:"),
    "tangents of large projections": (
        additive,
        f"{ADDITIVE}_grad",
        "    if SLOW:",
        "    if SLOW and False:",
    ),
    "positions of whole blocks": (
        attention,
        ALIBI,
        "LOG2E * (at_m[None, :] - (at_n[:, None] + (M - N)))",
        "LOG2E * (at_m[None, :] - at_n[:, None])",
    ),
    "log-sum-exp in base e": (
        attention,
        f"{SDPA}_grad",
        "top + tl.log2(norm), mask=in_n",
        "(top + tl.log2(norm)) / LOG2E, mask=in_n",
    ),
    "weights of rows that see no key": (
        attention,
        f"{SDPA}_grad",
        "p = tl.where(visible, tl.exp2(s - lse[:, None]), 0.0)",
        "p = tl.exp2(s - lse[:, None])",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_caught(
    fault: str, backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, operation, old, new = FAULTS[fault]
    changed, place = (
        planted(module, old, new, tmp_path),
        operators if module is attention else additive_operators,
    )
    put(changed, place, monkeypatch)
    count = caught(named(backend, operation))
    print(f"{fault}: caught after {count} cases")
    assert count


@pytest.mark.parametrize("operation", JUDGED)
def test_a_copy_without_a_fault_is_accepted(
    operation: str, backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, place = (
        (additive, additive_operators) if operation.startswith(ADDITIVE) else (attention, operators)
    )
    put(planted(module, "tl.", "tl.", tmp_path), place, monkeypatch)
    assert caught(named(backend, operation), 16) == 0


def test_a_key_without_numbers_leaves_the_gradients_of_queries_that_do_not_see_it_alone() -> None:
    query, key, value = (x[:, 0] for x in qkv())
    key[:, 3] = float("nan")
    mask = torch.ones(5, 19, dtype=torch.bool)
    mask[:4, 3] = False
    weights = normal(6, 7, seed=4), normal(6, 7, seed=5), normal(6, seed=6)
    query.requires_grad_()
    output = triton_additive.additive_attention_triton(query, key, value, *weights, mask)
    (grad,) = torch.autograd.grad(output.sum(), query)
    assert grad[:, :4].isfinite().all() and grad[:, :4].any()
    assert output[:, 4].isnan().all()


# The interpreter

RUNS = {
    SDPA: lambda q, k, v: triton_attention.scaled_dot_product_attention_triton(
        q, k, v, normal(5, 19, seed=9)
    ),
    ALIBI: triton_attention.alibi_attention_triton,
    XL: lambda q, k, v: triton_attention.transformer_xl_attention_triton(
        q, k, v, normal(3, 19, 7), normal(3, 7), normal(3, 7)
    ),
}


def one_by_one(
    kernel: launch.Kernel, grid: tuple[int, ...], *args: Any, aligned: bool, **constants: Any
) -> None:
    constants = {name: value for name, value in constants.items() if name not in launch.OPTIONS}
    for i in range(grid[0]):
        with interpreter.interpreting(range(i, i + 1)):
            kernel.interpreted[(1, *grid[1:])](*args, **constants)


@pytest.mark.parametrize("operation", RUNS)
def test_programs_side_by_side_and_one_by_one_give_the_same_bits(
    operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [x.requires_grad_() for x in qkv()]
    abreast = RUNS[operation](*given)
    grads = torch.autograd.grad(abreast.sum(), given)
    monkeypatch.setattr(operators, "launch", one_by_one)
    alone = RUNS[operation](*given)
    assert torch.equal(abreast, alone)
    assert all(
        torch.equal(x, y)
        for x, y in zip(grads, torch.autograd.grad(alone.sum(), given), strict=True)
    )


def test_triton_is_left_as_it_was() -> None:
    core, builder = triton.language.core, interpreter.BUILDER
    triton_attention.alibi_attention_triton(*qkv())
    assert (
        core.block_type.__init__ is interpreter.BLOCK_TYPE
        and core.tensor.__init__ is not interpreter.tensor
    )
    assert interpreter.interpreter._get_np_dtype is interpreter.NUMPY_DTYPE
    assert builder.options.sanitize_overflow and not set(vars(builder)) & set(
        interpreter.SIDE_BY_SIDE
    )
    assert "TRITON_INTERPRET" not in os.environ and isinstance(
        triton.jit(normal), triton.runtime.jit.JITFunction
    )


def test_triton_is_left_as_it_was_by_a_kernel_that_fails() -> None:
    with pytest.raises(RuntimeError), interpreter.interpreting(range(1)):
        raise RuntimeError
    assert triton.language.core.block_type.__init__ is interpreter.BLOCK_TYPE


def test_an_environment_that_interprets_everything_changes_nothing() -> None:
    code = (
        "import torch, attnverify.torch_impl.triton.attention as t; x = torch.ones(1, 1, 17, 4); "
        "print(t.alibi_attention_triton(x, x, x).sum().item())"
    )
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert ran.stdout.strip() == "68.0", ran.stderr


def test_triton_is_not_imported_before_it_is_needed() -> None:
    code = "import sys, attnverify.torch_impl.triton; sys.exit('triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=ROOT).returncode == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_keep_their_subnormal_numbers(dtype: torch.dtype) -> None:
    value = torch.tensor([0, 1, 2, 3, 127, 128, 129, 5 - 2**15], dtype=torch.int16).view(dtype)[
        None, None, None
    ]
    query = torch.zeros(1, 1, 1, 8, dtype=dtype)
    assert torch.equal(
        triton_attention.scaled_dot_product_attention_triton(query, query, value), value
    )


@pytest.mark.parametrize("wrong", ["float64", "mixed", "wide"])
def test_what_is_not_supported_says_so(wrong: str) -> None:
    query, key, value = qkv(
        D=257 if wrong == "wide" else 4,
        dtype=torch.float64 if wrong == "float64" else torch.float32,
    )
    value = value.half() if wrong == "mixed" else value
    with pytest.raises(NotImplementedError, match=r"float64|dtypes|wider"):
        triton_attention.alibi_attention_triton(query, key, value)


@pytest.mark.parametrize("long", ["query", "key"])
def test_more_rows_than_a_grid_has_room_for_are_refused_before_anything_runs(
    long: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in (triton_attention, triton_additive):
        monkeypatch.setattr(place, "operators", None)
    many, one = torch.zeros(1, 65535 * 16 + 1, 1), torch.zeros(1, 1, 1)
    query, key = (many, one) if long == "query" else (one, many)
    for call in (
        lambda: triton_attention.scaled_dot_product_attention_triton(
            query[None], key[None], key[None]
        ),
        lambda: triton_additive.additive_attention_triton(
            query, key, key, one[0], one[0], one[0, 0]
        ),
    ):
        with pytest.raises(
            NotImplementedError, match="more than 1048560 queries, keys or positions"
        ):
            call()
