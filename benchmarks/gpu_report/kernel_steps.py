"""
The kernels on a device: once each, again and again, at lengths of 131072, with more than 2^31
elements.
"""

import importlib.metadata
import os
import platform
import shutil
import subprocess
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from attnverify.backends.implementation import Implementation
from attnverify.catalogue.operation import Operation
from attnverify.catalogue.rows import sampled_rows
from attnverify.checks.long_sequences import judge_row, long_recipe
from attnverify.inputs.expand import expand
from attnverify.inputs.recipe import Inputs
from attnverify.judge.errors import Unsupported
from attnverify.judge.invoke import call, to_backend_array
from attnverify.ptx.sass import read_version
from benchmarks.gpu_report.context import (
    Figures,
    StepContext,
    check_against_spec,
    fused_kernels,
    kernels_and_dtypes,
    numbers,
    ordinary_case,
    random,
    to_device,
)


def environment(here: StepContext) -> Figures:
    """Device, driver, clocks, versions."""
    torch = import_module("torch")
    assert not here.gpu or torch.cuda.is_available(), "PyTorch sees no CUDA device"
    found: Figures = {
        "cuda": torch.cuda.is_available(),
        "python": platform.python_version(),
        "system": platform.platform(),
    }
    found["device"] = (
        torch.cuda.get_device_name()
        if found["cuda"]
        else platform.processor() or platform.machine()
    )
    found["versions"] = {"torch CUDA": torch.version.cuda}
    if path := os.environ.get("TRITON_PTXAS_PATH"):
        found["versions"]["ptxas for Triton"] = read_version(Path(path))
    for package in (
        "numpy",
        "torch",
        "triton",
        "cupy-cuda12x",
        "cupy-cuda13x",
        "ml_dtypes",
        "hypothesis",
        "pytest",
        "pytest-xdist",
    ):
        try:
            found["versions"][package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    if found["cuda"]:
        found["versions"]["CuPy"] = told_by_cupy()
        found |= {
            "multiprocessors": torch.cuda.get_device_properties(0).multi_processor_count,
            **told_by_driver(),
        }
    return found


def told_by_cupy() -> str:
    try:
        runtime = import_module("cupy").cuda.runtime
        return (
            f"sees {runtime.getDeviceCount()} devices, runtime {runtime.runtimeGetVersion()}, "
            f"driver {runtime.driverGetVersion()}"
        )
    except Exception as error:  # a driver that is too old, or no CuPy: that is what is told
        return f"{type(error).__name__}: {error}"


def told_by_driver() -> Figures:
    asked = (
        "driver_version,memory.total,clocks.current.sm,clocks.max.sm,"
        "clocks.current.memory,clocks.max.memory,power.limit,temperature.gpu"
    )
    program = shutil.which("nvidia-smi")
    if program is None:
        return {"driver": "nvidia-smi is not found"}
    command = [program, f"--query-gpu={asked}", "--format=csv,noheader"]
    answer = (
        subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        .stdout.strip()
        .splitlines()
    )
    return (
        dict(zip(asked.split(","), answer[0].split(", "), strict=False))
        if answer
        else {"driver": "nvidia-smi says nothing"}
    )


def run_each_kernel_once(here: StepContext) -> Figures:
    """
    Run every kernel once, held to the specification: also what compute-sanitizer watches, with
    every array where the driver knows its bounds.
    """
    budgets = {}
    if here.gpu and os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING"):
        with suppress(ImportError):
            import_module("cupy").cuda.set_allocator(None)
    for implementation, dtype in kernels_and_dtypes(here):
        case = ordinary_case(here, implementation, dtype)
        outputs = implementation.function(**to_device(implementation, case))
        budgets[f"{implementation.name} {dtype}"] = round(
            check_against_spec(implementation, case, outputs), 3
        )
    return {"share of the bound": budgets}


def check_repeatability(here: StepContext) -> Figures:
    """
    Require the same bits a hundred times: forwards always, backwards where it is claimed or, in
    PyTorch, asked for.
    """
    times, same = 100 if here.gpu or not here.quick else 3, list[str]()
    os.environ.setdefault(
        "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
    )  # without it PyTorch refuses to promise anything of its products
    import_module("torch").use_deterministic_algorithms(True)
    try:
        for implementation, dtype in kernels_and_dtypes(here):
            if claimed(implementation):
                repeated(implementation, dtype, here, times)
                same.append(f"{implementation.name} {dtype}")
    finally:
        import_module("torch").use_deterministic_algorithms(False)
    return {"repeats": times, "the same bits": same}


def claimed(implementation: Implementation) -> bool:
    backend = implementation.backend
    in_torch = backend.library is not None and backend.library.name == "torch"
    return not implementation.operation.is_gradient or backend.deterministic or in_torch


def repeated(implementation: Implementation, dtype: str, here: StepContext, times: int) -> None:
    given = to_device(implementation, ordinary_case(here, implementation, dtype))
    first = numbers(implementation.function(**given), implementation)
    for time in range(1, times):
        again = numbers(implementation.function(**given), implementation)
        assert again == first, f"{implementation.name} in {dtype}: other bits the {time + 1}th time"


def check_long_sequences(here: StepContext) -> Figures:
    """
    Sequences of 131072, of which sampled rows of the output and of the query's gradient are held to
    the specification.
    """
    shares, left = dict[str, float](), dict[str, str]()
    for implementation in fused_kernels(here):
        for N, M, dtype in long_cases(here):
            name = f"{implementation.name} {dtype} N={N} M={M}"
            try:
                shares[name] = long(implementation, N, M, dtype)
            except Unsupported as reason:
                left[name] = str(reason)
    return {"share of the bound": shares, "unsupported": left}


def long_cases(here: StepContext) -> tuple[tuple[int, int, str], ...]:
    if here.gpu:
        every = (131072, 131072, "bfloat16"), (3, 131072, "float32"), (131072, 3, "float16")
        return every[:1] if here.quick else every
    return (
        ((3, 259, "float32"),)
        if here.quick
        else ((3, 4099, "float32"), (4099, 3, "float32"), (515, 515, "float32"))
    )


def long(implementation: Implementation, N: int, M: int, dtype: str) -> float:
    operation = implementation.operation
    case = replace(long_recipe(operation.forward.name, N, M), operation=operation.name)
    inputs = expand(case, dtype)
    outputs = call(
        implementation,
        {name: to_backend_array(implementation, x, dtype) for name, x in inputs.items()},
    )
    assert implementation.backend.library is not None
    result = implementation.backend.library.to_numpy(
        outputs[0] if operation.is_gradient else outputs
    )
    return max(
        compute_share_of_bound(implementation, inputs, result, i, dtype)
        for i in sample_few_rows(N, M)
    )


def sample_few_rows(N: int, M: int) -> list[int]:
    """Sampled rows; of very many keys three, since the specification takes seconds for each."""
    return sampled_rows(N) if M < 2**15 or N < 4 else [128, N // 2, N - 1]


def compute_share_of_bound(
    implementation: Implementation, inputs: Inputs, result: Any, i: int, dtype: str
) -> float:
    """Compute how much of its bound a row uses; it has to be less than all."""
    comparison = judge_row(implementation, inputs, result, i, dtype)
    assert comparison.passed, (
        f"{implementation.name} in {dtype}: row {i} of {result.shape[-2]}: {comparison}"
    )
    return round(comparison.budget, 3)


def check_large_tensors(here: StepContext) -> Figures:
    """
    Tensors of more than 2^31 elements, many keys or many queries, of which sampled rows are held to
    the specification, the last ones too.
    """
    B, many, D = (512, 2**16 + 1, 64) if here.gpu else (2, 67, 4)
    found = {}
    for implementation in fused_kernels(here, source="torch_impl"):
        for N, M in ((5, many), (many, 5)):
            sizes = {
                "B": B,
                "H": 1,
                "N": N,
                "M": M,
                "D": D,
                "E": D,
                "P": many,
                "Q": D,
                "K": D,
                "A": 8,
            }
            most, worst = many_elements(implementation, sizes, here.device)
            assert not here.gpu or most > 2**31
            found[f"{implementation.name} N={N} M={M}"] = {
                "elements": most,
                "share of the bound": worst,
            }
    return found


def many_elements(
    implementation: Implementation, sizes: dict[str, int], device: str
) -> tuple[int, float]:
    """
    Give the elements of the largest tensor, and the worst share of a bound.

    The numbers are made on the device, where NumPy would take minutes. Rows of the first and the
    last batch entry are judged.
    """
    given, operation = random(implementation.operation, sizes, device), implementation.operation
    outputs = implementation.function(**given)
    output = outputs[0] if operation.is_gradient else outputs
    most = max(x.numel() for x in (output, *given.values()) if hasattr(x, "numel"))
    shares = []
    for b, rows in ((0, [sizes["N"] - 1]), (sizes["B"] - 1, sampled_rows(sizes["N"]))):
        alone = {name: batch_entry(x, operation, name, b) for name, x in given.items()}
        result = output[b : b + 1].double().cpu().numpy()
        shares += [
            compute_share_of_bound(implementation, alone, result, i, "float16") for i in rows
        ]
    return most, max(shares)


def batch_entry(x: Any, operation: Operation, name: str, b: int) -> Any:
    """Take one entry of the batch, widened; what has no batch as it is."""
    if not hasattr(x, "cpu"):
        return x
    return (x[b : b + 1] if operation.axes[name].startswith("B") else x).double().cpu().numpy()
