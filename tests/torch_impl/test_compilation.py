"""
torch.compile, without a graph break and for lengths that it does not know: every path and every
module, forwards and backwards.

The backend is the one that only traces: what inductor makes of the same graphs is PyTorch's, and is
run by the thorough tests here and, ahead of time, by those of the export. A graph takes seconds:
one operation by two paths and one module are followed in every run, the others in the thorough.
"""

from collections.abc import Callable, Collection, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo.testing
from torch import Tensor, nn

from tests.support import module_calls
from tests.support.module_calls import (
    MODULES,
    UNSEEN_BIASES,
    WITH_WEIGHTS,
    arguments,
    drawn,
)
from tests.support.roundings import count_roundings
from tests.support.torch_functions import PATHS, forward_and_gradients, inputs_of, split

LENGTHS = ((11, 8, 13), (5, 9, 3), (20, 10, 4))
"""
Queries, keys besides, batch entries. The first are equal to no other size: dynamo takes sizes that
are equal once for the same size for ever.
"""
each_way = pytest.mark.parametrize(
    "implementation",
    [
        "torch",
        *(
            pytest.param(name, marks=pytest.mark.thorough)
            for name in ("eager", "blocked", "triton")
        ),
    ],
)


def some(names: Collection[str], ordinary: Collection[str]) -> list[Any]:
    """All of these names, those that are not ordinary in the thorough tests alone."""
    return [
        name if name in ordinary else pytest.param(name, marks=pytest.mark.thorough)
        for name in names
    ]


each_path = pytest.mark.parametrize(
    "path", some(PATHS, ("transformer_xl_attention", "transformer_xl_attention_blocked"))
)
each_module = pytest.mark.parametrize("name", some(MODULES, ("MultiHeadAttention",)))


@pytest.fixture(autouse=True)
def from_scratch() -> Iterator[None]:
    """Nothing that another test compiled counts towards the limits of this one."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(function: Callable[..., Any]) -> tuple[Callable[..., Any], Any]:
    """The function without breaks and for unknown lengths, and how many graphs it took."""
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    return torch.compile(function, fullgraph=True, dynamic=True, backend=counter), counter


def near(one: list[Tensor | None], other: list[Tensor | None]) -> bool:
    return all(
        x is y is None or count_roundings(x, y) < 64 for x, y in zip(one, other, strict=True)
    )


@pytest.mark.filterwarnings("ignore")
@each_path
def test_a_function_is_one_graph_for_every_length(path: str) -> None:
    fast, counter = compiled(PATHS[path])
    graphs = []
    for sizes in LENGTHS:
        given = inputs_of(path, *sizes)
        if split(path)[1] == "flex":  # which has no gradient on a CPU
            given = {name: x.detach() if name != "align" else x for name, x in given.items()}
            assert near([fast(**given)], [PATHS[path](**given)])
        else:
            both = forward_and_gradients(fast, given), forward_and_gradients(PATHS[path], given)
            assert near(*both)
        graphs.append(counter.frame_count)
    assert graphs[0] == graphs[-1]


@pytest.mark.filterwarnings("ignore")
@each_way
@each_module
def test_a_module_is_one_graph_for_every_length(name: str, implementation: str) -> None:
    module = drawn(name, implementation=implementation)
    fast, counter = compiled(module)
    options, graphs = {"need_weights": False} if name in WITH_WEIGHTS else {}, []
    for sizes in LENGTHS:
        given = arguments(name, *sizes) | options
        both = [module_calls.forward_and_gradients(call, module, given) for call in (fast, module)]
        assert near(*both)
        graphs.append(counter.frame_count)
    assert graphs[0] == graphs[-1]


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
@each_module
def test_a_module_in_train_mode_is_one_graph(name: str) -> None:
    module = drawn(name, dropout=0.5).train()
    fast, counter = compiled(module)
    graphs = []
    for sizes in LENGTHS:
        output = module_calls.first(fast(**arguments(name, *sizes)))
        assert output.isfinite().all()
        graphs.append(counter.frame_count)
    assert graphs[0] == graphs[-1]


@pytest.mark.filterwarnings("ignore")
@each_module
def test_a_module_in_an_autocast_region_is_one_graph(name: str) -> None:
    module = drawn(name)

    def in_region(**given: Any) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return module_calls.first(module(**given))

    fast, _ = compiled(in_region)
    given = arguments(name)
    torch.testing.assert_close(fast(**given), in_region(**given))


def test_a_break_would_be_noticed() -> None:
    def breaking(x: Tensor) -> Tensor:
        return x + 1 if x.sum().item() > 0 else x

    fast, _ = compiled(breaking)
    with pytest.raises((torch._dynamo.exc.Unsupported, torch._dynamo.exc.UserError)):
        fast(torch.ones(3))


def test_a_graph_for_one_length_alone_would_be_noticed() -> None:
    fast, counter = compiled(lambda x: x * int(x.shape[0] > 4))
    graphs = []
    for length in (3, 5):
        fast(torch.ones(length))
        graphs.append(counter.frame_count)
    assert graphs[0] < graphs[1]


def near_by_their_terms(
    module: nn.Module, one: list[Tensor | None], other: list[Tensor | None]
) -> bool:
    """
    The same for another order of additions: the gradient of a bias that the softmax does not see is
    nothing but the rounding of its terms, whose size that of the weight before it has.
    """
    names = ["output", *(name for name, _ in module.named_parameters())]
    terms = [
        before if name.endswith(UNSEEN_BIASES) else y
        for name, before, y in zip(names, [None, *other], other, strict=False)
    ]
    return all(
        x is y is None or count_roundings(x, y, sizes) < 64
        for x, y, sizes in zip(one, other, terms, strict=True)
    )


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
@each_module
def test_inductor_computes_the_same(name: str) -> None:
    module = drawn(name)
    fast = torch.compile(module, fullgraph=True, dynamic=True)
    for sizes in LENGTHS:
        given = arguments(name, *sizes)
        both = [module_calls.forward_and_gradients(call, module, given) for call in (fast, module)]
        assert near_by_their_terms(module, *both)
