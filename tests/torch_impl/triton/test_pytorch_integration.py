"""
The Triton column as PyTorch wants its operators: checked, compiled, autocast, in modules, and never
waiting for a device.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch._dynamo.testing
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from attnverify.torch_impl.alibi import alibi_attention
from attnverify.torch_impl.triton import additive_operators, operators
from attnverify.torch_impl.triton.additive import additive_attention_triton
from attnverify.torch_impl.triton.attention import (
    alibi_attention_triton,
    learned_relative_attention_triton,
    scaled_dot_product_attention_triton,
    transformer_xl_attention_triton,
)

B, H, N, M, D, E = 2, 2, 3, 5, 4, 6

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

Call = Callable[..., Any]


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(DEVICE, dtype)


def visible(*shape: int) -> Tensor:
    return normal(*shape).gt(-0.5)


def qkv(length: int = N, more: int = M - N, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    shapes = (B, H, length, D), (B, H, length + more, D), (B, H, length + more, E)
    return [normal(*shape, dtype=dtype).requires_grad_() for shape in shapes]


def of_positions(
    length: int = N, more: int = M - N, dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    shapes = (H, length + more, D), (H, D), (H, D)
    return qkv(length, more, dtype) + [
        normal(*shape, dtype=dtype).requires_grad_() for shape in shapes
    ]


def of_tables(
    length: int = N, more: int = M - N, dtype: torch.dtype = torch.float32, P: int = 8
) -> list[Any]:
    shapes = (2 * P, H, D), (2 * P, H), (H, D)
    return [
        *qkv(length, more, dtype),
        *(normal(*shape, dtype=dtype).requires_grad_() for shape in shapes),
        "end",
    ]


def of_features(
    length: int = N, more: int = M - N, dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    shapes = (B, length, 3), (B, length + more, 2), (B, length + more, E), (4, 3), (4, 2), (4,)
    return [normal(*shape, dtype=dtype).requires_grad_() for shape in shapes]


GIVEN: dict[Call, Call] = {
    scaled_dot_product_attention_triton: qkv,
    alibi_attention_triton: qkv,
    transformer_xl_attention_triton: of_positions,
    learned_relative_attention_triton: of_tables,
    additive_attention_triton: of_features,
}
OPTIONS: dict[Call, tuple[dict[str, Any], ...]] = {
    scaled_dot_product_attention_triton: (
        {"mask": visible(N, M), "keep": visible(B, H, N, M), "p": 0.25},
        {"mask": normal(B, 1, 1, M).requires_grad_()},
    ),
    alibi_attention_triton: ({"visible": visible(B, 1, 1, M)},),
    transformer_xl_attention_triton: ({}, {"visible": visible(N, M)}),
    learned_relative_attention_triton: ({},),
    additive_attention_triton: (
        {},
        {"mask": normal(N, M).requires_grad_(), "keep": visible(B, N, M), "p": 0.25},
    ),
}
EVERY = [(attend, options) for attend, several in OPTIONS.items() for options in several]
NAMES = [f"{attend.__name__} {' '.join(options) or 'alone'}" for attend, options in EVERY]
each_attention = pytest.mark.parametrize("attend", GIVEN, ids=lambda attend: attend.__name__)
each_call = pytest.mark.parametrize(("attend", "options"), EVERY, ids=NAMES)


def inputs(given: list[Any], options: dict[str, Any]) -> list[Tensor]:
    """What has a gradient."""
    return [x for x in (*given, *options.values()) if isinstance(x, Tensor) and x.requires_grad]


class Called(TorchDispatchMode):
    """
    The operations that are called, with their arguments, and which of them move numbers between
    devices or to Python.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...]]] = []
        self.waits: list[str] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.calls.append((function, args))
        name = function.name()
        if name.removeprefix("aten::") in WAITING:
            self.waits.append(name)
        result = function(*args, **(kwargs or {}))
        devices = {x.device.type for x in (*args, result) if isinstance(x, Tensor)}
        if len(devices) > 1:
            self.waits.append(f"{name} between {' and '.join(sorted(devices))}")
        return result

    def ours(self) -> list[tuple[Any, tuple[Any, ...]]]:
        return [call for call in self.calls if call[0].namespace == "torch_impl"]


WAITING = {
    "_local_scalar_dense",
    "item",
    "is_nonzero",
    "nonzero",
    "equal",
    "masked_select",
    "_assert_async",
    "unique_dim",
}
"""What makes the CPU wait for a number on the device, or for how many there are."""


# opcheck


@pytest.mark.filterwarnings("ignore")
@each_call
def test_every_operator_passes_every_check(attend: Call, options: dict[str, Any]) -> None:
    """
    Of the forward and the backward operator, on the arguments that the attention calls them with.
    """
    given = GIVEN[attend]()
    with Called() as called:
        output = attend(*given, **options)
        torch.autograd.grad(output.sum(), inputs(given, options))
    assert len(called.ours()) == 2
    (forward, first), (backward, second) = called.ours()
    first = tuple(
        x.detach().requires_grad_(x.is_floating_point()) if isinstance(x, Tensor) else x
        for x in first
    )
    second = tuple(
        x.detach() if isinstance(x, Tensor) else x for x in second
    )  # a gradient of the gradient there is none
    assert set(torch.library.opcheck(forward, first).values()) == {"SUCCESS"}
    assert set(torch.library.opcheck(backward, second).values()) == {"SUCCESS"}


# torch.compile


@pytest.mark.filterwarnings("ignore")
@each_call
def test_the_compiler_follows_without_a_graph_break(attend: Call, options: dict[str, Any]) -> None:
    given = GIVEN[attend]()
    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    with deterministic():
        one, two = compiled(*given, **options), attend(*given, **options)
        needed = inputs(given, options)
        grads, others = (
            torch.autograd.grad(one.sum(), needed),
            torch.autograd.grad(two.sum(), needed),
        )
    assert all(map(torch.equal, (one, *grads), (two, *others)))


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
@each_call
def test_inductor_follows_without_a_graph_break(attend: Call, options: dict[str, Any]) -> None:
    """Inductor may compute what lies around the kernels in another order."""
    given = GIVEN[attend]()
    one, two = torch.compile(attend, fullgraph=True)(*given, **options), attend(*given, **options)
    needed = inputs(given, options)
    pairs = zip(
        torch.autograd.grad(one.sum(), needed), torch.autograd.grad(two.sum(), needed), strict=True
    )
    for x, y in ((one, two), *pairs):
        torch.testing.assert_close(x, y)


@contextmanager
def deterministic() -> Iterator[None]:
    """Gradients without atomic additions, whose order is another every time on a GPU."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.filterwarnings("ignore")
@each_attention
def test_a_new_length_is_not_compiled_anew(attend: Call) -> None:
    """The first length is compiled for itself, the second for all lengths."""
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(attend, fullgraph=True, backend=counter)
    frames = []
    for length in (5, 6, 9, 13, 17):
        options = {"P": 32} if attend is learned_relative_attention_triton else {}
        compiled(*GIVEN[attend](length, 3, **options))
        frames.append(counter.frame_count)
    assert frames == [1, 2, 2, 2, 2]


# Autocast, as F.scaled_dot_product_attention has it


@contextmanager
def region(kind: str, dtype: torch.dtype) -> Iterator[None]:
    """
    An autocast region of a device that may not be there: ``torch.autocast`` would switch itself
    off.
    """
    before = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
    try:
        torch.set_autocast_enabled(kind, True)
        torch.set_autocast_dtype(kind, dtype)
        yield
    finally:
        torch.set_autocast_enabled(kind, before[0])
        torch.set_autocast_dtype(kind, before[1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@each_call
def test_autocast_rounds_what_comes_in_and_nothing_else(
    attend: Call, options: dict[str, Any], dtype: torch.dtype
) -> None:
    given = GIVEN[attend]()
    with torch.autocast(DEVICE, dtype):
        output = attend(*given, **options)
    rounded = [x.to(dtype) if isinstance(x, Tensor) else x for x in given]
    assert output.dtype == dtype
    assert torch.equal(output, attend(*rounded, **options))
    grads = torch.autograd.grad(output.float().square().sum(), inputs(given, options))
    assert all(grad.dtype == torch.float32 and grad.isfinite().all() for grad in grads)


def test_autocast_is_that_of_sdpa() -> None:
    """
    Its dtypes: of float32, of a mixture, of a mask; and float64 is left alone, which the kernels
    refuse.
    """
    query, key, value = qkv()
    with torch.autocast(DEVICE, torch.bfloat16):
        for given in ((query, key, value), (query.half(), key, value)):
            assert (
                attended(*given).dtype
                == F.scaled_dot_product_attention(*given, attn_mask=normal(N, M)).dtype
                == torch.bfloat16
            )
        double = [x.double() for x in (query, key, value)]
        assert F.scaled_dot_product_attention(*double).dtype == torch.float64
        with pytest.raises(NotImplementedError, match="no float64"):
            attended(*double)


def attended(*given: Tensor) -> Tensor:
    return scaled_dot_product_attention_triton(*given, mask=normal(N, M))


def test_autocast_counts_for_inputs_by_name_and_only_inside() -> None:
    query, key, value = qkv()
    with torch.autocast(DEVICE, torch.bfloat16):
        assert alibi_attention_triton(query=query, key=key, value=value).dtype == torch.bfloat16
        with torch.autocast(DEVICE, enabled=False):
            assert alibi_attention_triton(query, key, value).dtype == torch.float32
    assert alibi_attention_triton(query, key, value).dtype == torch.float32


@pytest.mark.filterwarnings("ignore")
@each_attention
def test_autocast_on_a_gpu_is_the_same(attend: Call) -> None:
    with FakeTensorMode(), torch.no_grad(), region("cuda", torch.float16):
        assert attend(*on_a_gpu(GIVEN[attend]())).dtype == torch.float16
    with FakeTensorMode(), torch.no_grad(), region("cpu", torch.bfloat16):
        assert (
            attend(*on_a_gpu(GIVEN[attend]())).dtype == torch.float32
        )  # a region of the CPU is none of the GPU's


def on_a_gpu(given: Any) -> Any:
    """The same without numbers, on a GPU that need not be there: inside FakeTensorMode."""
    return [
        torch.empty(x.shape, dtype=x.dtype, device="cuda") if isinstance(x, Tensor) else x
        for x in given
    ]


# No wait for the device


def elsewhere(given: Any) -> Any:
    """
    The same on a device that has no numbers to give: a GPU's place is taken by the one that is
    always there.
    """
    return [x.detach().to("meta") if isinstance(x, Tensor) else x for x in given]


@pytest.mark.filterwarnings("ignore")
@each_call
def test_no_attention_waits_for_the_device(attend: Call, options: dict[str, Any]) -> None:
    """
    Neither the functions nor the operators that they call, forwards and backwards, with what
    launches the kernels left out.
    """
    given, options = (
        elsewhere(GIVEN[attend]()),
        dict(zip(options, elsewhere(options.values()), strict=True)),
    )
    with torch.no_grad(), Called() as called:
        attend(*given, **options)
    assert called.ours() and not called.waits


@pytest.mark.filterwarnings("ignore")
@each_call
def test_no_operator_waits_for_the_device(
    attend: Call, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same bodies are what a CUDA graph captures: nothing in them depends on a number."""
    given = GIVEN[attend]()
    with Called() as called:
        torch.autograd.grad(attend(*given, **options).sum(), inputs(given, options))
    launched: list[Any] = []
    for place in (operators, additive_operators):
        monkeypatch.setattr(place, "launch", lambda kernel, *args, **sizes: launched.append(kernel))
    for operator, args in called.ours():
        there = elsewhere(args)
        with torch.no_grad(), Called() as inside:
            body(operator)(*there)
        assert inside.calls and not inside.waits
    assert len(launched) >= 2


def body(operator: Any) -> Call:
    """The Python function behind an operator of ours."""
    name = operator.name().partition("::")[2].partition(".")[0]
    return next(
        getattr(place, name) for place in (operators, additive_operators) if name in place.__all__
    )._init_fn


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "wait",
    [lambda x: x.cpu(), lambda x: x[x > 0], lambda x: x.sum().item(), lambda x: bool(x.any())],
)
def test_a_wait_for_the_device_is_noticed(wait: Call) -> None:
    """A device without numbers raises whatever asks it for one."""
    with pytest.raises((NotImplementedError, RuntimeError), match=r"[Mm]eta"):
        wait(torch.empty(3, device="meta"))


@pytest.mark.parametrize(
    "wait", [lambda x: x.sum().item(), lambda x: bool(x.any()), lambda x: x.nonzero()]
)
def test_a_wait_is_recorded_where_there_are_numbers(wait: Call) -> None:
    with Called() as called:
        wait(torch.ones(3))
    assert called.waits


def test_an_attention_takes_the_operator_that_it_is_named_for() -> None:
    query, key, value = qkv()
    with Called() as called:
        alibi_attention(query, key, value)
    assert not called.ours()
    with Called() as called:
        alibi_attention_triton(query, key, value)
    assert called.ours()
