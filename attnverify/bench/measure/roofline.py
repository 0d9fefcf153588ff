"""
What a case must cost at least: operations and bytes, and the ceilings of this machine measured in
the same run.

Two conventions for operations: the attention convention of the field counts the two products of
plain attention, half of them where the mask is causal, 2.5 times that backwards; the true count has
the pairs that are visible and the product with the positions too.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify import ROOT
from attnverify.bench.measure.cases import Case
from attnverify.bench.measure.clock import event_clock
from attnverify.bench.measure.sampling import flush
from attnverify.catalogue.operation import CATALOGUE
from attnverify.catalogue.pytrees import leaves
from attnverify.inputs.masks import visible_pairs
from attnverify.inputs.recipe import Inputs

BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
SHARE = {"forward": 1.0, "backward": 2.5, "both": 3.5}
"""Operations of a pass against the forward's."""


@dataclass(frozen=True)
class Cost:
    """
    Operations by the attention convention, true operations, and the fewest bytes: each input read
    once, each output written once.
    """

    convention: float
    true: float
    bytes: float


@dataclass(frozen=True)
class Ceilings:
    """
    What the machine reached in this run: operations a second in a large matrix product, bytes a
    second in a copy, tanh a second.
    """

    flops: float
    bandwidth: float
    tanh: float

    def floor(self, cost: Cost) -> float:
        """Compute the seconds that no version can undercut."""
        return max(cost.true / self.flops, cost.bytes / self.bandwidth)


def cost(case: Case, inputs: Inputs, outputs: Any) -> Cost:
    moved = sum(count_bytes(x, case.dtype) for x in leaves(inputs) if hasattr(x, "nbytes"))
    moved += sum(int(x.nbytes) for x in leaves(outputs) if hasattr(x, "nbytes"))
    pairs = count_visible_pairs(case, inputs)
    if pairs is None:
        return Cost(0.0, 0.0, moved)
    sizes, share = case.sizes, SHARE[case.mode]
    heads, all_pairs = sizes.get("B", 1) * sizes.get("H", 1), sizes.get("N", 1) * sizes.get("M", 1)
    if case.operation == "additive_attention":
        true = 2.0 * pairs * (sizes["A"] + sizes["E"])
        return Cost(true * share, true * share, moved)
    causal = CATALOGUE[case.operation].traits.causal or (case.mask or {}).get("pattern") == "causal"
    products = 3 if "position" in inputs or "key_pos_embeddings" in inputs else 2
    convention = 2.0 * heads * all_pairs * (sizes["D"] + sizes["E"]) * (0.5 if causal else 1.0)
    true = 2.0 * pairs * ((products - 1) * sizes["D"] + sizes["E"])
    return Cost(convention * share, true * share, moved)


def count_bytes(x: Any, dtype: str) -> int:
    """The bytes of an input as a contestant is given it."""
    if isinstance(x, ndarray) and x.dtype.kind == "f":
        return x.size * BYTES[dtype]
    return int(x.nbytes)


def count_visible_pairs(case: Case, inputs: Inputs) -> float | None:
    """
    Count how many pairs of all batches and heads see each other, from one batch and head of each;
    None where there are none, and of a layer, whose projections do most of its work.
    """
    operation = CATALOGUE[case.operation]
    if "query" not in inputs or "value" not in inputs or operation.traits.parameters:
        return None
    if operation.is_packed or operation.is_selected:
        whole = visible_pairs(operation, inputs)
        return None if whole is None else float(whole.sum())
    lead = inputs["query"].shape[:-2]
    one = {name: inputs[name][(slice(0, 1),) * len(lead)] for name in ("query", "key")}
    one |= {
        name: inputs[name]
        for name in ("mask", "visible")
        if inputs.get(name) is not None and inputs[name].ndim == 2
    }
    visible = visible_pairs(operation, one)
    return None if visible is None else float(visible.sum()) * float(np.prod(lead))


@cache
def ceilings(device: str, dtype: str) -> Ceilings:
    """
    Measured once in a run and dtype; the best of many, for a ceiling that neighbours have lowered
    would refuse honest times.
    """
    if find_spec("torch") is None:
        return measure_by_numpy(dtype)
    return Ceilings(matrix_product(device, dtype), measure_copy(device), tanh(device, dtype))


def measure_by_numpy(dtype: str) -> Ceilings:
    """The same where there is no PyTorch; NumPy computes in float32 what is narrower."""
    own = np.float64 if dtype == "float64" else np.float32
    n, rng = 1024, np.random.default_rng(0)
    a, b, out = (rng.standard_normal((n, n)).astype(own) for _ in range(3))
    return Ceilings(
        2.0 * n**3 / best("cpu", partial(np.matmul, a, b, out=out)),
        2.0 * a.nbytes / best("cpu", partial(np.copyto, out, a), 0.3),
        a.size / best("cpu", partial(np.tanh, a, out=out), 0.3),
    )


def best(device: str, call: Callable[[], Any], seconds: float = 1.0) -> float:
    """Time as many calls as fit into a second; the shortest of them."""
    shortest, start = float("inf"), time.perf_counter()
    while time.perf_counter() - start < seconds:
        if device == "cuda":
            flush(device)
            took = event_clock("torch").time(call).seconds
        else:
            begin = time.perf_counter()
            call()
            took = time.perf_counter() - begin
        shortest = min(shortest, took)
    return shortest


def matrix_product(device: str, dtype: str) -> float:
    torch = import_module("torch")
    sizes = (512, 1024, 2048) if device == "cpu" else (4096, 8192)
    rates = []
    for n in sizes:
        a, b = (torch.randn(n, n, device=device).to(getattr(torch, dtype)) for _ in range(2))
        out = torch.empty_like(a)
        rates.append(2.0 * n**3 / best(device, partial(torch.mm, a, b, out=out)))
    return max(rates)


def measure_copy(device: str) -> float:
    """On a CPU small copies too: what lies in a cache is read faster than memory."""
    torch = import_module("torch")
    sizes = (2**18, 2**20, 2**23, 2**26) if device == "cpu" else (2**28, 2**30)
    rates = []
    for size in sizes:
        x, y = (torch.randn(size // 4, device=device) for _ in range(2))
        rates.append(2.0 * size / best(device, partial(y.copy_, x), 0.3))
    return max(rates)


def tanh(device: str, dtype: str) -> float:
    """
    Tanh of numbers that stay in a register or a cache: on a GPU by a kernel that does nothing else.
    """
    torch = import_module("torch")
    if device == "cuda" and find_spec("triton"):
        return tanh_alone()
    x = torch.randn(2**17, device=device).to(getattr(torch, dtype))
    out = torch.empty_like(x)
    return x.numel() / best(device, lambda: torch.tanh(x, out=out), 0.3)


def tanh_alone() -> float:

    from attnverify.backends.modules import from_path

    kernel = from_path(ROOT / "benchmarks" / "peers" / "tanh_alone.py")[0]
    count, call = kernel.prepared()
    return float(count) / best("cuda", call, 0.3)
