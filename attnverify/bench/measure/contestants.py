"""
Who takes part: our implementations and their peers, each an implementation of a backend like any
that ``attnverify run`` judges.

What is not installed is missing with its reason and listed; it never just disappears.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from attnverify import ROOT
from attnverify.backends.implementation import Backend, Implementation
from attnverify.backends.loader import load
from attnverify.bench.measure.cases import ALIBI, LEARNED, PLAIN, XL, Case
from attnverify.bench.measure.inputs import to_library
from attnverify.catalogue.pytrees import map_leaves
from attnverify.inputs.recipe import Inputs
from attnverify.judge.errors import Unsupported
from attnverify.judge.invoke import call, dtype_keyword

PEERS = ROOT / "benchmarks" / "peers"


@dataclass(frozen=True)
class Contestant:
    """
    An implementation under the name that tables give it.

    source   the backend, by name or by its path in this repository; how: which of its
             implementations
    memory   the order of the axes in which it wants its arrays in memory, where that is not B H N D
    devices  where it is asked at all: an interpreted kernel on a CPU says nothing of its speed
    known    operations that it is known for: listed as missing where it cannot be loaded or does
             not have them
    """

    label: str
    source: str
    how: str = ""
    memory: str = "BHND"
    devices: tuple[str, ...] = ("cpu", "cuda")
    known: tuple[str, ...] = ()

    @property
    def ours(self) -> bool:
        return self.source in ("torch_impl", "cupy_impl", OWN_CAUSAL)


CPU, GPU = ("cpu",), ("cuda",)
FUSED = (LEARNED, XL, ALIBI, "additive_attention")
DOCUMENTS = "benchmarks/peers/documents.py"
OWN_CAUSAL = "benchmarks/peers/own_causal.py"
SDPA = "benchmarks/peers/sdpa.py"

CONTESTANTS = (
    Contestant("torch_impl", "torch_impl"),
    Contestant("torch_impl:blocked", "torch_impl", "blocked", devices=CPU, known=FUSED),
    Contestant("torch_impl:eager", "torch_impl", "eager"),
    Contestant("torch_impl:triton", "torch_impl", "triton", devices=GPU, known=FUSED),
    Contestant("torch_impl:causal", OWN_CAUSAL, "causal", devices=GPU),
    Contestant("cupy_impl", "cupy_impl"),
    Contestant("cupy_impl:cuda", "cupy_impl", "cuda", devices=GPU, known=(LEARNED, XL, ALIBI)),
    Contestant("labml-nn", "examples/labml_backend.py", memory="NBHD", known=(LEARNED, ALIBI)),
    Contestant("documents", DOCUMENTS, memory="NBHD"),
    Contestant("SDPA", SDPA),
    Contestant("SDPA flash", SDPA, "flash"),
    Contestant("SDPA cuDNN", SDPA, "cudnn", devices=GPU),
    Contestant("SDPA efficient", SDPA, "efficient", devices=GPU),
    Contestant("flex, compiled", "benchmarks/peers/compiled_flex.py"),
    Contestant(
        "flex of FlashAttention 4",
        "benchmarks/peers/compiled_flex.py",
        "flash",
        devices=GPU,
        known=(LEARNED, XL, ALIBI),
    ),
    Contestant("torch.compile", "benchmarks/peers/compiled.py"),
    Contestant("xformers", "benchmarks/peers/xformers_peer.py", devices=GPU, known=(PLAIN, ALIBI)),
    Contestant(
        "flash-attn",
        "benchmarks/peers/flash_attn_peer.py",
        memory="BNHD",
        devices=GPU,
        known=(PLAIN, ALIBI),
    ),
    Contestant(
        "disentangled-flash",
        "benchmarks/peers/disentangled_flash_peer.py",
        devices=GPU,
        known=(LEARNED,),
    ),
)


@cache
def backend(source: str) -> Backend:
    return load(str(ROOT / source) if source.endswith(".py") else source)


def implementation_of(contestant: Contestant, case: Case) -> Implementation | str:
    """Find the implementation that answers this case, or the reason why none does."""
    found = backend(contestant.source)
    if found.broken or found.missing:
        return found.broken or found.missing or ""
    there = {(i.operation.name, i.how): i for i in found.implementations[::-1]}
    how = f"_{contestant.how}" if contestant.how else ""
    if (case.operation, contestant.how) not in there:
        return f"{found.name} has no {case.operation}{how}"
    no_gradient = f"{found.name} has no gradient of {case.operation}{how}"
    return there.get((case.timed, contestant.how), no_gradient)


def contestants(case: Case) -> list[Contestant]:
    """List who is asked: everyone on this device that has the operation or is known for it."""
    asked = [
        one for one in CONTESTANTS if case.device in one.devices and one.label not in case.without
    ]
    return [
        one
        for one in asked
        if case.operation in one.known or not isinstance(implementation_of(one, case), str)
    ]


def given(
    contestant: Contestant, implementation: Implementation, inputs: Inputs, dtype: str
) -> Inputs:
    """
    Convert the inputs to arrays of the contestant's library, in the memory order that it likes
    best.
    """
    library, order = implementation.library, contestant.memory
    arrays = {
        name: in_order(map_leaves(lambda x: to_library(library, x, dtype), value), order)
        for name, value in inputs.items()
    }
    return arrays | dtype_keyword(implementation, dtype)


def in_order(x: Any, order: str) -> Any:
    """Lay an array of four axes B H N D out in memory in another order."""
    if order == "BHND" or getattr(x, "ndim", 0) != 4:
        return x
    axes = tuple("BHND".index(letter) for letter in order)
    back = tuple(int(axis) for axis in np.argsort(axes))
    if hasattr(x, "permute"):
        return x.permute(axes).contiguous().permute(back)
    return x.transpose(axes).copy().transpose(back)


def prepared(case: Case, implementation: Implementation, arrays: Inputs) -> Callable[[], Any]:
    """
    Prepare what is timed: the bare call, or for ``backward`` the gradient of a graph that stands
    already.
    """
    if case.mode == "backward":
        return backward(implementation, arrays)
    return lambda: implementation.function(**arrays)


def backward(implementation: Implementation, arrays: Inputs) -> Callable[[], Any]:
    from importlib import import_module

    if implementation.library.name != "torch":
        raise Unsupported("a graph of its own is what PyTorch has")
    torch = import_module("torch")
    forward = next(
        i
        for i in implementation.backend.implementations
        if (i.operation, i.how) == (implementation.operation.forward, implementation.how)
    )
    tensors = {name: x for name, x in arrays.items() if name != "d_output"}
    leaves = {
        name: x.detach().requires_grad_()
        for name, x in tensors.items()
        if torch.is_tensor(x) and x.is_floating_point()
    }
    output = call(forward, tensors | leaves)
    return lambda: torch.autograd.grad(output, list(leaves.values()), arrays["d_output"])
