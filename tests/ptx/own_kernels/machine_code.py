"""
What each ptxas that is here makes of every Triton kernel for Hopper, and whether it overwrites a
register that a product of a warp group still reads. What is known already is not made again.

    python -m tests.ptx.own_kernels.machine_code --record docs/data/sass.json
"""

import argparse
import json
import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from attnverify.ptx import sass
from attnverify.torch_impl.triton.kernels import block_sizes
from benchmarks.machine_code.triton_kernels import KERNELS, compile_kernel
from tests.ptx.own_kernels.published import lines_of, write

Variant = tuple[str, str, int, bool]

VARIANTS: list[Variant] = [
    (name, "bf16" if aligned else "fp16", width, aligned)
    for width in (64, 128)
    for aligned in (True, False)
    for name in KERNELS
]
"""In float32 there are no products of warp groups; the half types differ in a word."""


@lru_cache(maxsize=1)
def compiled(name: str, dtype: str, width: int, aligned: bool) -> str:
    kernel, table, scores, given = KERNELS[name]
    chosen = block_sizes.of_gpu(table, scores, True, width, 90)
    made = compile_kernel(kernel, given, chosen, 90, dtype, width, aligned, HIDING=not aligned)
    return str(made.asm["ptx"])


def machine_code(variant: Variant, ptxas: Path) -> list[sass.Line]:
    (lines,) = sass.disassemble(sass.assemble(compiled(*variant), ptxas)).values()
    return lines


def describe(variant: Variant) -> str:
    name, dtype, width, aligned = variant
    return f"{name}, {dtype}, width {width}, {'aligned' if aligned else 'any strides'}"


def examine(known: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Look at each variant as each ptxas makes it, that was not looked at before."""
    done = {(line["variant"], line["ptxas"]) for line in known}
    for variant in VARIANTS:
        for version, ptxas in sass.assemblers().items():
            if (describe(variant), version) in done:
                continue
            started = time.perf_counter()
            lines = machine_code(variant, ptxas)
            yield {
                "variant": describe(variant),
                "ptxas": version,
                "instructions": len(lines),
                "products from registers": len(sass.products(lines)),
                "overwritten": [str(hazard) for hazard in sass.hazards(lines)],
                "seconds": round(time.perf_counter() - started, 1),
            }


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--record", type=Path, required=True)
    path = parser.parse_args().record
    held = lines_of(path, "kernels")
    for line in examine(held):
        held.append(line)
        write(path, "every variant for sm_90a", "kernels", held)
        print(json.dumps(line), flush=True)
