"""
Autocast: every function and module of torch_impl takes what it multiplies in the dtype of the
region, forwards and backwards, and rounds nothing else.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from numpy import ndarray
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map

from attnverify.backends.loader import load
from attnverify.catalogue.operation import CATALOGUE
from attnverify.checks.invalid_calls import valid_call
from attnverify.torch_impl import scores
from attnverify.torch_impl.attention import scaled_dot_product_attention
from attnverify.torch_impl.isolation import reaches_neighbours
from attnverify.torch_impl.modules import as_operations
from attnverify.torch_impl.modules.as_operations import PATHS as COLUMN
from attnverify.torch_impl.modules.transformer_xl import TransformerXL
from attnverify.torch_impl.relative import transformer_xl_attention
from tests.support.roundings import count_roundings
from tests.support.torch_functions import (
    PATHS,
    differentiable,
    forward_and_gradients,
    inputs_of,
    masks_of,
    normal,
    split,
    visible,
)
from tests.support.torch_modules import BUILD, built, of_module
from tests.support.torch_modules import inputs_of as inputs_of_module

pytestmark = pytest.mark.filterwarnings("error")
IMPLEMENTATIONS = ("torch", "eager", "blocked", "triton")

each_path = pytest.mark.parametrize("path", PATHS)
each_layer = pytest.mark.parametrize("name", BUILD)
each_dtype = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)


def rounded(given: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """The same with its floats rounded."""
    return {
        name: x.detach().to(dtype).requires_grad_()
        if isinstance(x, Tensor) and x.is_floating_point()
        else x
        for name, x in given.items()
    }


def as_rounded(path: Callable[..., Tensor], given: dict[str, Any], dtype: torch.dtype) -> bool:
    """Whether the path in a region is itself on rounded inputs, bit for bit."""
    with torch.autocast("cpu", dtype):
        output = path(**given)
    return output.dtype == dtype and torch.equal(output, path(**rounded(given, dtype)))


@each_dtype
@each_path
def test_a_function_in_a_region_is_itself_on_rounded_inputs(path: str, dtype: torch.dtype) -> None:
    with torch.no_grad():
        assert as_rounded(PATHS[path], inputs_of(path), dtype)
        assert as_rounded(PATHS[path], inputs_of(path) | masks_of(path), dtype)


@each_dtype
@each_path
def test_its_gradients_are_those_on_rounded_inputs(path: str, dtype: torch.dtype) -> None:
    if split(path)[1] == "flex":
        return  # which has no gradient on a CPU
    given = inputs_of(path)
    with torch.autocast("cpu", dtype):
        output = PATHS[path](**given)
    weights = normal(*output.shape).to(dtype)
    grads = torch.autograd.grad((output * weights).sum(), differentiable(given))
    expected = forward_and_gradients(PATHS[path], rounded(given, dtype))[1:]
    assert all(
        x.dtype == torch.float32 and torch.equal(x, y.float())
        for x, y in zip(grads, expected, strict=True)
    )


FUNCTIONS = {each.name: each.function for each in load("torch_impl").implementations}
MODULES = {name.removesuffix("_autocast") for name in COLUMN if name.endswith("_autocast")}
LAYERS = sorted(MODULES - {split(path)[0] for path in PATHS})
GROUPED = tuple(
    f"{kind}_attention" for kind in ("grouped", "latent", "selected", "packed", "paged")
)
"""Multiply, and are rounded by a region."""
OTHERS = [
    name for name in CATALOGUE
    if not name.endswith("_grad") and name not in GROUPED
    and name not in (*LAYERS, *(split(path)[0] for path in PATHS))
]  # fmt: skip
"""Functions that multiply nothing: a region rounds nothing in them."""


def arguments_of(name: str, dtype: torch.dtype) -> dict[str, Any]:
    """A right call with its floats in this dtype."""
    return tree_map(
        lambda x: as_operations.cast(torch.tensor(x), dtype) if isinstance(x, ndarray) else x,
        dict(valid_call(name)),
    )


def same_bits(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Equal, and NaN where the other is NaN."""
    bits = (each.contiguous().reshape(-1).view(torch.uint8) for each in (x, y))
    return x.shape == y.shape and torch.equal(*bits)


@each_dtype
@pytest.mark.parametrize("name", OTHERS)
def test_a_function_that_multiplies_nothing_takes_no_notice_of_a_region(
    name: str, dtype: torch.dtype
) -> None:
    function = FUNCTIONS[name]
    outside = tree_leaves(function(**arguments_of(name, torch.float32)))
    with torch.autocast("cpu", dtype):
        inside = tree_leaves(function(**arguments_of(name, torch.float32)))
    assert all(x.dtype == y.dtype and same_bits(x, y) for x, y in zip(inside, outside, strict=True))


@each_dtype
@pytest.mark.parametrize("name", GROUPED)
def test_grouped_attention_in_a_region_is_that_of_rounded_inputs(
    name: str, dtype: torch.dtype
) -> None:
    outside = tree_leaves(FUNCTIONS[name](**arguments_of(name, dtype)))
    with torch.autocast("cpu", dtype):
        inside = tree_leaves(FUNCTIONS[name](**arguments_of(name, torch.float32)))
    assert all(torch.equal(x, y) for x, y in zip(inside, outside, strict=True))


def test_no_function_is_left_out() -> None:
    told = {*(split(path)[0] for path in PATHS), *LAYERS, *OTHERS, *GROUPED}
    assert told == {name for name in CATALOGUE if not name.endswith("_grad")}
    assert len(OTHERS) >= 8 and len(LAYERS) >= 6


def test_a_function_that_forgets_the_region_would_be_noticed() -> None:
    name = "scaled_dot_product_attention_eager"
    forgetful = PATHS[name].__wrapped__
    assert not as_rounded(forgetful, inputs_of(name), torch.bfloat16)


@each_path
def test_float64_is_left_alone(path: str) -> None:
    given = inputs_of(path, dtype=torch.float64)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        if split(path)[1] == "triton":
            with pytest.raises(NotImplementedError, match="no float64"):
                PATHS[path](**given)
        else:
            assert PATHS[path](**given).dtype == torch.float64


# A region of a GPU, by tensors without numbers

ON_A_GPU = [
    path
    for path in PATHS
    if split(path)[1] == "triton" or split(path)[0].startswith(("additive", "scaled_dot_product"))
]
"""Those that PyTorch can follow on tensors of a GPU that is not there."""


def dtype_on_a_gpu(path: str, given: torch.dtype = torch.float32) -> torch.dtype:
    """The dtype of what a path makes of fake tensors of a GPU."""
    tensors = {
        name: torch.empty(x.shape, dtype=given, device="cuda") if isinstance(x, Tensor) else x
        for name, x in inputs_of(path).items()
    }
    return PATHS[path](**tensors).dtype


@pytest.fixture
def region_of_a_gpu() -> Iterator[None]:
    """As ``torch.autocast("cuda", torch.bfloat16)``, which asks for a GPU, sets it."""
    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    with torch.no_grad(), FakeTensorMode():
        yield
    torch.set_autocast_enabled("cuda", before[0])
    torch.set_autocast_dtype("cuda", before[1])


@pytest.mark.parametrize("path", ON_A_GPU)
def test_a_region_of_a_gpu_has_the_same_rules(path: str, region_of_a_gpu: None) -> None:
    assert dtype_on_a_gpu(path) == torch.bfloat16
    assert PATHS[path](**inputs_of(path)).dtype == torch.float32  # on the CPU, of another region
    if split(path)[1] != "triton":  # which has no float64
        assert dtype_on_a_gpu(path, torch.float64) == torch.float64


@pytest.mark.parametrize("path", ON_A_GPU)
def test_a_region_of_the_cpu_is_none_of_a_gpu(path: str) -> None:
    with torch.no_grad(), FakeTensorMode(), torch.autocast("cpu", torch.bfloat16):
        assert dtype_on_a_gpu(path) == torch.float32


# Masks


@each_path
def test_a_mask_that_would_overflow_hides_nothing(path: str) -> None:
    """-1e9 is minus infinity in float16."""
    if "mask" not in masks_of(path):
        return
    mask = visible(5, 5)[:3].where(torch.tensor(False), -1e9)
    with torch.autocast("cpu", torch.float16):
        assert PATHS[path](**inputs_of(path), mask=mask).abs().sum() > 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_a_float_mask_may_have_another_dtype_than_the_query(dtype: torch.dtype) -> None:
    given, mask = inputs_of("scaled_dot_product_attention"), normal(3, 5).to(dtype)
    wide = [x.double() for x in given.values()]
    expected = F.scaled_dot_product_attention(*wide, attn_mask=mask.double())
    found = scaled_dot_product_attention(**given, mask=mask)
    assert count_roundings(found, expected.float()) < 16


def test_what_would_overflow_in_a_narrower_dtype_hides_nothing() -> None:
    given = rounded(inputs_of("scaled_dot_product_attention"), torch.float16)
    mask = torch.full((3, 5), -1e30, dtype=torch.float64)
    assert scaled_dot_product_attention(**given, mask=mask).abs().sum() > 0


# Modules


def outputs_of(name: str, module: nn.Module, dtype: torch.dtype) -> Tensor:
    inputs = {
        key: x.astype("float32") if x.dtype == float else x
        for key, x in inputs_of_module(name).items()
    }
    with torch.autocast("cpu", dtype):
        return of_module(module, inputs)


def single(name: str, **options: Any) -> nn.Module:
    return built(BUILD[name], **options).float()


@each_dtype
@each_layer
def test_a_layer_computes_in_the_dtype_of_the_region(name: str, dtype: torch.dtype) -> None:
    module, seen = single(name), set()
    for child in module.modules():
        if isinstance(child, nn.Linear):
            child.register_forward_hook(lambda _, args, output: seen.add(output.dtype))
    output = outputs_of(name, module, dtype)
    widths = [n for weight in module.parameters() if weight.ndim == 2 for n in weight.shape]
    odd = reaches_neighbours(torch.empty(1, dtype=dtype), *widths)
    assert seen <= ({torch.float32} if odd else {dtype})
    assert output.dtype == (torch.float32 if name == "transformer_xl_layer" else dtype)


@each_dtype
@each_layer
def test_its_parameters_have_gradients_of_their_own_dtype(name: str, dtype: torch.dtype) -> None:
    module = single(name)
    outputs_of(name, module, dtype).float().square().sum().backward()
    assert all(x.grad.dtype == torch.float32 for x in module.parameters())
    assert all(x.grad.isfinite().all() for x in module.parameters())


@each_dtype
@pytest.mark.parametrize("name", [name for name in BUILD if name != "transformer_xl_layer"])
def test_a_layer_without_a_norm_is_the_layer_in_that_dtype(name: str, dtype: torch.dtype) -> None:
    module = single(name)
    there = {
        key: torch.from_numpy(x).to(
            torch.bool if x.dtype == bool else torch.float32 if key == "mask" else dtype
        )
        for key, x in inputs_of_module(name).items()
    }
    in_region = outputs_of(name, module, dtype)
    assert torch.equal(in_region, of_module(module.to(dtype), there))


@each_dtype
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_stack_trains_in_a_region_by_every_path(implementation: str, dtype: torch.dtype) -> None:
    module = TransformerXL(2, 2, 6, 4, dropout=0.2, implementation=implementation)
    mems = module.init_mems(2)
    for _ in range(2):
        with torch.autocast("cpu", dtype):
            hidden, mems = module(normal(3, 2, 6), mems)
        hidden.square().sum().backward()
    assert {mem.dtype for mem in mems} == {torch.float32} == {hidden.dtype}
    assert all(x.grad.isfinite().all() for x in module.parameters())


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_the_biases_of_alibi_keep_their_distances(implementation: str) -> None:
    """Beyond 256 bfloat16 has no odd numbers: rounded, a bias would be off by half a slope."""
    name, length = "alibi_multi_head_attention", 600
    module = BUILD[name](implementation=implementation, batch_first=True).eval()
    x = normal(1, length, 33)
    mask = torch.ones(length, length, dtype=torch.bool).tril()
    with torch.no_grad():
        whole = module(query=x, key=x, value=x, mask=mask)
        with torch.autocast("cpu", torch.bfloat16):
            lowered = module(query=x, key=x, value=x, mask=mask)
    assert (lowered - whole).abs().max() < 0.02 * whole.abs().max()


# Products of PyTorch's own, whose rows are read on past their end on some CPUs


def behind(x: Tensor) -> Tensor:
    """What stands in memory behind the rows of x."""
    width, size = x.shape[-1], x.stride(-2)
    return x.as_strided((*x.shape[:-1], size - width), x.stride(), x.storage_offset() + width)


def test_rows_on_their_way_into_a_bfloat16_product_are_followed_by_zeros() -> None:
    x = torch.full((2, 3, 33), torch.nan)
    for given, region in ((x.bfloat16(), False), (x, True)):
        with torch.autocast("cpu", torch.bfloat16, enabled=region):
            y = scores.spaced(given)
        assert y.dtype == torch.bfloat16 and y.shape == x.shape and y.isnan().all()
        assert behind(y).shape[-1] == 31 and not behind(y).any()


def test_other_rows_stay_where_they_are() -> None:
    for x in (torch.ones(2, 33), torch.ones(2, 64, dtype=torch.bfloat16)):
        assert scores.spaced(x) is x


def test_autocast_is_left_as_soon_as_the_function_is() -> None:
    given = inputs_of("transformer_xl_attention")
    with torch.autocast("cpu", torch.bfloat16):
        transformer_xl_attention(**given)
        assert torch.is_autocast_enabled("cpu")
    assert transformer_xl_attention(**given).dtype == torch.float32
