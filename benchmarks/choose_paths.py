"""
From how many pairs of a query and a key on the blocked attentions are faster on a CPU than what a
plain name computes otherwise: the table of ``torch_impl/paths/fastest.py``, measured anew.

    OMP_NUM_THREADS=1 python -m benchmarks.choose_paths

CPU seconds of calls in one process, the two in turn; medians of seven rounds. Of the sizes that are
tried (queries = keys, a power of two, width 64) the answer is the first from which on blocks win at
every larger one; ``NEVER`` where they do not at the largest.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from attnverify.torch_impl import alibi, attention, blocked, relative
from attnverify.torch_impl.paths import fastest

SIZES = (16, 32, 64, 128, 256, 512, 1024)
HEADS, WIDTH, ROUNDS, SECONDS = 8, 64, 7, 0.01
PLAIN: dict[str, Callable[..., Tensor]] = {
    "additive_attention": attention.additive_attention,
    "alibi_attention": alibi.alibi_attention,
    "learned_relative_attention": relative.learned_relative_attention,
    "transformer_xl_attention": relative.transformer_xl_attention,
}


def inputs_of(operation: str, N: int, dtype: torch.dtype) -> list[Any]:
    """The arguments of an operation, at one size."""
    H, D = HEADS, WIDTH

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape).to(dtype)

    if operation == "additive_attention":
        return [*(normal(1, N, D) for _ in range(3)), normal(D, D), normal(D, D), normal(D)]
    heads = [normal(1, H, N, D) for _ in range(3)]
    further = {
        "transformer_xl_attention": [normal(H, N, D), normal(H, D), normal(H, D)],
        "learned_relative_attention": [normal(2 * N, H, D), normal(2 * N, H), normal(H, D), "end"],
    }
    return heads + further.get(operation, [])


def seconds_of_a_call(call: Callable[..., Tensor], given: list[Any], gradient: bool) -> float:
    """CPU seconds of a call, of as many as a clock can see."""
    calls, start = 0, time.process_time()
    while (taken := time.process_time() - start) < SECONDS or not calls:
        some = [
            x.clone().requires_grad_() if gradient and isinstance(x, Tensor) else x for x in given
        ]
        output = call(*some)
        if gradient:
            output.sum().backward()
        calls += 1
    return taken / calls


def ratio_at(operation: str, N: int, dtype: torch.dtype, gradient: bool) -> float:
    """How many times faster blocks are."""
    other = getattr(blocked, f"{operation}_blocked")
    given, taken = inputs_of(operation, N, dtype), ([], [])  # type: ignore[var-annotated]
    with patch.object(fastest, "which_answers", lambda *_, **__: "torch"):
        for _ in range(ROUNDS):
            for samples, call in zip(taken, (PLAIN[operation], other), strict=True):
                samples.append(seconds_of_a_call(call, given, gradient))
    plain, in_blocks = map(statistics.median, taken)
    return plain / in_blocks


def first_size(ratios: dict[int, float]) -> str:
    """The size from which on blocks win, as the table has it."""
    won = None
    for N, ratio in sorted(ratios.items(), reverse=True):
        if ratio < 1:
            break
        won = N
    return f"{won}**2" if won else "NEVER"


def lines(operation: str, most: int) -> Iterator[str]:
    """The lines of an operation, with the ratios they come from."""
    yield f'    "{operation}": {{'
    sizes = [N for N in SIZES if (min(most, 256) if operation[:2] == "ad" else most) >= N]
    for name in ("float64", "float32", "bfloat16", "float16"):
        found = [
            {N: ratio_at(operation, N, getattr(torch, name), gradient) for N in sizes}
            for gradient in (False, True)
        ]
        told = "; ".join(" ".join(f"{ratio:.2f}" for ratio in each.values()) for each in found)
        yield f'        "{name}": ({first_size(found[0])}, {first_size(found[1])}),  # {told}'
    yield "    },"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().splitlines()[0])
    parser.add_argument("--most", type=int, default=512, help="the largest size that is tried")
    parser.add_argument("operations", nargs="*", default=[*PLAIN])
    asked = parser.parse_args()
    torch.manual_seed(0)
    for operation in asked.operations:
        for line in lines(operation, asked.most):
            print(line, flush=True)


if __name__ == "__main__":
    main()
