"""
The kernels as citizens of PyTorch on a device: CUDA graphs, no waiting, no compiling for each
length, memory of O(N + M).
"""

import sys
from collections.abc import Callable
from importlib import import_module
from math import log
from typing import Any

from attnverify.backends.implementation import Implementation
from attnverify.inputs.fixed_cases import fixed_recipe
from attnverify.inputs.recipe import Inputs
from attnverify.judge.case import case_of
from benchmarks.gpu_report.context import (
    Figures,
    NotRun,
    StepContext,
    check_against_spec,
    fused_kernels,
    kernels_and_dtypes,
    ordinary_case,
    random,
    to_device,
)


def check_cuda_graphs(here: StepContext) -> Figures:
    """
    Captured as a CUDA graph and replayed with other numbers, which are held to the specification.
    """
    budgets = {}
    for implementation, dtype in kernels_and_dtypes(here, source="torch_impl"):
        one, two = (
            ordinary_case(here, implementation, dtype, family) for family in ("normal", "spread")
        )
        static = to_device(implementation, one)
        replay, outputs = capture_graph(implementation, static) if here.gpu else (None, None)
        for name, x in to_device(implementation, two).items():
            if hasattr(x, "copy_"):
                static[name].copy_(x)
        if replay is None:
            outputs = implementation.function(**static)
        else:
            replay()
        budgets[f"{implementation.name} {dtype}"] = round(
            check_against_spec(implementation, two, outputs), 3
        )
    if not here.gpu:
        raise NotRun(
            "no GPU, no graph: the calls that would be captured were made, with tensors that are "
            "filled anew",
            {"calls": budgets},
        )
    return {"share of the bound after a replay": budgets}


def capture_graph(implementation: Implementation, static: Inputs) -> tuple[Callable[[], None], Any]:
    """Record a graph of the call, after three calls on another stream, and what it fills."""
    torch = import_module("torch")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            implementation.function(**static)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = implementation.function(**static)
    return graph.replay, outputs


def check_no_synchronization(here: StepContext) -> Figures:
    """
    Nothing in the Python code waits for the device: PyTorch raises where it would; without a GPU
    there are no numbers to wait for.
    """
    torch, done = import_module("torch"), list[str]()
    for implementation, dtype in kernels_and_dtypes(here, source="torch_impl"):
        given = to_device(implementation, ordinary_case(here, implementation, dtype))
        if here.gpu:
            implementation.function(**given)
            torch.cuda.synchronize()
            torch.cuda.set_sync_debug_mode("error")
            try:
                implementation.function(**given)
            finally:
                torch.cuda.set_sync_debug_mode("default")
        else:
            implementation.function(
                **{name: x.to("meta") if hasattr(x, "to") else x for name, x in given.items()}
            )
        done.append(f"{implementation.name} {dtype}")
    return {"never waits": done}


def recompilations(here: StepContext) -> Figures:
    """
    Compiled once for a kind of length, not once for each: by torch.compile, and (on a GPU) by
    Triton.
    """
    found: Figures = {"torch.compile": {}, "triton": {}}
    for implementation in fused_kernels(here, gradients=False, source="torch_impl"):
        name = implementation.name
        if here.gpu:
            found["triton"][name] = variants = by_triton(here, implementation)
            assert sum(variants) > 0, f"{name}: nothing was seen to be compiled"
            assert sum(variants[12:]) <= 4, (
                f"{name}: Triton still compiles after twelve lengths: {variants}"
            )
        found["torch.compile"][name] = frames = by_compiler(here, implementation)
        assert frames[-1] <= 2, (
            f"{name}: torch.compile has compiled {frames} times at as many lengths"
        )
    if not here.gpu:
        raise NotRun("no GPU: Triton compiled nothing; torch.compile did, and passed", found)
    return found


def at_length(here: StepContext, implementation: Implementation, length: int) -> Inputs:
    sizes = here.sizes | {"N": length, "M": length}
    recipe = fixed_recipe(implementation.operation, sizes, "normal")
    given = to_device(implementation, case_of(recipe, here.dtypes[0]))
    if "key_pos_bias" not in given:
        return given
    rows = {
        name: given[name].new_zeros(1024, *given[name].shape[1:])
        for name in ("key_pos_embeddings", "key_pos_bias")
    }
    return given | rows  # a model's tables do not change with the length


def by_compiler(here: StepContext, implementation: Implementation) -> list[int]:
    torch = import_module("torch")
    testing = import_module("torch._dynamo.testing")
    torch._dynamo.reset()
    counter, frames = testing.CompileCounterWithBackend("aot_eager"), list[int]()
    function = torch.compile(implementation.function, backend=counter, fullgraph=True)
    for length in (18, 21, 27, 35, 46):
        function(**at_length(here, implementation, length))
        frames.append(counter.frame_count)
    return frames


def by_triton(here: StepContext, implementation: Implementation) -> list[int]:
    """
    Count how many kernels each of 24 lengths has made Triton compile, forwards. The last twelve may
    begin another class of blocks.
    """
    counts = []
    for length in (*KINDS, *range(131, 500, 31)):
        already = sum(len(variants) for variants in compiled())
        implementation.function(**at_length(here, implementation, length))
        counts.append(sum(len(variants) for variants in compiled()) - already)
    return counts


def compiled() -> list[Any]:
    """Read what Triton keeps of each kernel of torch_impl on each device."""
    modules = [
        module
        for name, module in sys.modules.items()
        if name.startswith("attnverify.torch_impl.triton.kernels.")
    ]
    kernels = {
        id(thing): thing
        for module in modules
        for thing in vars(module).values()
        if hasattr(thing, "device_caches")
    }
    return [caches[0] for kernel in kernels.values() for caches in kernel.device_caches.values()]


KINDS = (32, 33, 40, 48, 49, 55, 64, 65, 71, 80, 81, 97)
"""
Triton compiles for multiples of 16, and so for lengths that are one, and one more: all are among
these.
"""


def memory(here: StepContext) -> Figures:
    """
    Peak extra memory on the device, forwards and backwards: its logarithm grows no faster than 1.05
    times that of the length.
    """
    torch, found = import_module("torch"), {}
    if not here.gpu:
        raise NotRun(
            "asks the allocator of a GPU; on a CPU tests/torch_impl/triton/test_peak_memory.py "
            "counts"
        )
    for implementation in fused_kernels(here, source="torch_impl"):
        bytes_of = [measure_peak_memory(torch, here, implementation, length) for length in LENGTHS]
        found[implementation.name] = bytes_of
        slope = log(bytes_of[-1] / bytes_of[0]) / log(LENGTHS[-1] / LENGTHS[0])
        assert slope <= 1.05, (
            f"{implementation.name}: {bytes_of} bytes at {LENGTHS}: slope {slope:.3f}"
        )
    return {"lengths": LENGTHS, "bytes": found}


LENGTHS = (4096, 16384, 65536)


def measure_peak_memory(
    torch: Any, here: StepContext, implementation: Implementation, length: int
) -> int:
    sizes = {letter: 4 for letter in "QKA"} | {
        "B": 1,
        "H": 2,
        "N": length,
        "M": length,
        "D": 64,
        "E": 64,
        "P": length,
    }
    given = random(implementation.operation, sizes, here.device)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    implementation.function(**given)
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated() - before)
