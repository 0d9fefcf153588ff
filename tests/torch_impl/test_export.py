"""
torch.export of every module with a batch and lengths that it does not know, ONNX in another
runtime, and a package that is compiled ahead of time.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from attnverify.torch_impl.modules import MultiHeadAttention
from tests.support.module_calls import MODULES, arguments, drawn, first, sizes
from tests.support.roundings import count_roundings

onnxruntime = pytest.importorskip("onnxruntime", reason="the extra test brings it")

pytestmark = pytest.mark.filterwarnings("ignore")
OTHERS = ((3, 2, 2), (7, 4, 3), (12, 5, 1))
"""Queries, keys besides, batch entries, beside those of which a program is made."""
MADE_OF = (5, 3, 4)
each_module = pytest.mark.parametrize("name", MODULES)


def exported(name: str, module: nn.Module, strict: bool = False) -> ExportedProgram:
    """The module for every batch and every length."""
    given = arguments(name, *MADE_OF)
    axes = sizes(name, lambda _: Dim.AUTO)
    return torch.export.export(module, (), given, dynamic_shapes=axes, strict=strict)


def agree_everywhere(name: str, program: Callable[..., Any], module: nn.Module) -> bool:
    """Whether the program computes what the module does, at sizes that it was not made of."""
    return all(
        count_roundings(first(program(**given)), first(module(**given))) < 64
        for given in (arguments(name, *others) for others in OTHERS)
    )


@each_module
def test_an_exported_module_takes_every_batch_and_length(name: str) -> None:
    module = drawn(name).eval()
    assert agree_everywhere(name, exported(name, module).module(), module)


def test_a_program_for_one_batch_alone_would_be_noticed() -> None:
    class OfOneBatch(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * int(x.shape[0])

    module = OfOneBatch()
    program = torch.export.export(
        module, (), {"x": arguments("SelfAttention", *MADE_OF)["x"]}, strict=False
    ).module()
    with pytest.raises((AssertionError, RuntimeError)):
        agree_everywhere("SelfAttention", program, module)


def test_an_exported_stack_carries_its_memory_on() -> None:
    module = drawn("TransformerXL").eval()
    program = exported("TransformerXL", module).module()
    mems = arguments("TransformerXL", *OTHERS[0])["mems"]
    ours, theirs = mems, mems
    for step in range(3):
        x = arguments("TransformerXL", *OTHERS[0])["x"] + step
        (hidden, ours), (expected, theirs) = program(x=x, mems=ours), module(x=x, mems=theirs)
        torch.testing.assert_close(hidden, expected)
    torch.testing.assert_close(ours, theirs)


def test_a_program_survives_a_file(tmp_path: Path) -> None:
    name, file = "MultiHeadAttention", tmp_path / "program.pt2"
    module = drawn(name).eval()
    torch.export.save(exported(name, module), file)
    assert agree_everywhere(name, torch.export.load(file).module(), module)


# A trace, which PyTorch deprecates and tensorboard's ``add_graph`` takes


def in_order(given: dict[str, Any]) -> tuple[Any, ...]:
    """Arguments as a tracer takes them: by position, and tuples for lists."""
    return tuple(tuple(x) if isinstance(x, list) else x for x in given.values())


@each_module
def test_a_traced_module_takes_every_batch_and_length(name: str) -> None:
    module, given = drawn(name).eval(), arguments(name, *MADE_OF)

    class ByPosition(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, *args: Any) -> Tensor:
            return first(self.module(**dict(zip(given, args, strict=True))))

    traced = torch.jit.trace(ByPosition(), in_order(given), check_trace=False)
    assert agree_everywhere(name, lambda **given: traced(*in_order(given)), module)


# ONNX, computed by onnxruntime


def in_onnxruntime(file: Path) -> Callable[..., Tensor]:
    """The first output of a model in a file."""
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])

    def run(**given: Tensor) -> Tensor:
        feeds = {name: x.numpy() for name, x in given.items()}
        return torch.from_numpy(session.run(None, feeds)[0])

    return run


def test_multi_head_attention_is_the_same_in_onnxruntime(tmp_path: Path) -> None:
    name, file = "MultiHeadAttention", tmp_path / "model.onnx"
    module, given = drawn(name).eval(), arguments("MultiHeadAttention", *MADE_OF)
    axes = sizes(name, lambda _: Dim.DYNAMIC)
    torch.onnx.export(module, (), file, kwargs=given, dynamic_shapes=axes, verbose=False)
    assert agree_everywhere(name, in_onnxruntime(file), module)
    other = MultiHeadAttention(6, 2, batch_first=True).eval()
    assert not agree_everywhere(name, in_onnxruntime(file), other)


# Compiled ahead of time


@pytest.mark.thorough
def test_a_package_compiled_ahead_of_time_is_the_module(tmp_path: Path) -> None:
    name = "TransformerXL"
    module = drawn(name).eval()
    with torch.no_grad():
        package = torch._inductor.aoti_compile_and_package(
            exported(name, module), package_path=str(tmp_path / "package.pt2")
        )
        assert agree_everywhere(name, torch._inductor.aoti_load_package(package), module)
