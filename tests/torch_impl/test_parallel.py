"""
PyTorch's parallel wrappers in their form of one process: what they gather, shard and reduce happens
in hooks of the submodules, which must be called.
"""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from tests.support.module_calls import arguments, drawn, first

pytestmark = pytest.mark.filterwarnings("ignore")
SOME = ("MultiHeadAttention", "RelativeMultiHeadAttention", "TransformerXL")
"""Those that differ in what they own: projections alone, tables, and layers with biases."""
each_module = pytest.mark.parametrize("name", SOME)


@pytest.fixture(scope="module", autouse=True)
def one_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    store = dist.FileStore(str(tmp_path_factory.mktemp("store") / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def gradients(call: Callable[..., Any], module: nn.Module, name: str) -> list[Tensor]:
    """The output of a call, and the gradients that it leaves at the parameters of the module."""
    output = first(call(**arguments(name)))
    output.square().sum().backward()
    grads = [x.grad for x in module.parameters()]
    return [output, *(x.full_tensor() if isinstance(x, DTensor) else x for x in grads)]


@each_module
def test_ddp_trains_as_the_module_itself(name: str) -> None:
    module = drawn(name)
    expected = gradients(module, module, name)
    parallel = DistributedDataParallel(copy.deepcopy(module))
    parallel.zero_grad()
    torch.testing.assert_close(gradients(parallel, parallel, name), expected)


def shard(module: nn.Module) -> nn.Module:
    """FSDP2 over every projection, every layer and the whole, each a group of its own."""
    mesh = init_device_mesh("cpu", (1,))
    for child in module.modules():
        if isinstance(child, nn.Linear) and child is not module:
            fully_shard(child, mesh=mesh)
    return fully_shard(module, mesh=mesh)


@each_module
def test_fsdp_over_every_projection_trains_as_the_module_itself(name: str) -> None:
    module = drawn(name)
    sharded = shard(copy.deepcopy(module))
    assert all(isinstance(x, DTensor) for x in sharded.parameters())
    expected = gradients(module, module, name)
    torch.testing.assert_close(gradients(sharded, sharded, name), expected)


def test_a_projection_that_is_bypassed_would_be_noticed() -> None:
    class Bypassing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.projection = nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.linear(x, self.projection.weight)

    with pytest.raises(RuntimeError, match="DTensor"):
        shard(Bypassing())(torch.ones(2, 6))
