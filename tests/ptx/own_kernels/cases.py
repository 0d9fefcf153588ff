"""Cases for the kernels of the project's own columns, and what numpy_ref answers to them."""

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from attnverify.catalogue import CATALOGUE

DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32}
B, H, D, E = 1, 2, 64, 64
A = 40
"""Features: more than a kernel takes at once."""
FEW, MANY = (70, 133), (165, 357)
"""
Queries and keys: a few tiles, and so many that each place of a ring is used again, with even and
with odd counts of whole tiles.
"""


@dataclass(frozen=True)
class Case:
    """An operation with drawn inputs."""

    operation: str
    shapes: tuple[tuple[int, ...], ...]
    options: tuple[str, ...] = ()

    def inputs(self, dtype: str, seed: int = 0) -> list[np.ndarray]:
        random = np.random.default_rng(seed)
        return [random.standard_normal(shape).astype(DTYPES[dtype]) for shape in self.shapes]

    def extra(self, dtype: str) -> dict[str, Any]:
        """Masks, dropout and alignment."""
        random, found = np.random.default_rng(1), {}
        pairs, heads = (self.shapes[0][-2], self.shapes[1][-2]), self.shapes[0][:-2]
        if "visible" in self.options:
            found["mask"] = random.random(pairs) < 0.8
        if "added" in self.options:
            found["mask"] = random.standard_normal((*heads, *pairs)).astype(DTYPES[dtype])
        if "dropout" in self.options:
            found |= {"keep": random.random((*heads, *pairs)) < 0.75, "p": 0.25}
        return found | ({"align": "end"} if "end" in self.options else {})


def cases_of(n: int, m: int, H: int = H) -> dict[str, Case]:
    """A case of each kind of kernel with so many queries, keys and heads."""
    heads = ((B, H, n, D), (B, H, m, D), (B, H, m, E))
    learned = (*heads, (2 * m, H, D), (2 * m, H), (H, D))
    keys = m // 2 + 4  # the kernels of additive attention take many instructions for each
    additive = ((B, n, 24), (B, keys, 24), (B, keys, 32), (A, 24), (A, 24), (A,))
    return {
        "plain": Case("scaled_dot_product_attention", heads),
        "visible": Case("scaled_dot_product_attention", heads, ("visible",)),
        "added mask, dropout": Case("scaled_dot_product_attention", heads, ("added", "dropout")),
        "ALiBi": Case("alibi_attention", heads),
        "Transformer-XL": Case("transformer_xl_attention", (*heads, (H, m, D), (H, D), (H, D))),
        "learned": Case("learned_relative_attention", learned, ("end",)),
        "additive": Case("additive_attention", additive),
    }


CASES, LONGER = cases_of(*FEW), cases_of(*MANY)


def run_reference(case: Case, dtype: str) -> list[np.ndarray]:
    """The output and the gradients of the inputs, in float64."""
    wide = [x.astype(np.float64) for x in case.inputs(dtype)]
    extra = {
        name: x.astype(np.float64) if name == "mask" and x.dtype != bool else x
        for name, x in case.extra(dtype).items()
    }
    output = CATALOGUE[case.operation].reference(*wide, **extra)
    d_output = gradient_of_output(output.shape, dtype).astype(np.float64)
    return [output, *CATALOGUE[f"{case.operation}_grad"].reference(d_output, *wide, **extra)]


def gradient_of_output(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return np.random.default_rng(2).standard_normal(shape).astype(DTYPES[dtype])
