"""
Rows that are computed again, since a value reached them that they do not see, are as exact as the
others: their weights do not take over how the log-sum-exp of large scores is rounded.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from attnverify.backends.loader import load
from tests.ptx.own_kernels.cuda import cuda_on_machine
from tests.ptx.own_kernels.triton import triton_on_machine

QUERIES = KEYS = 5


def attend(name: str, *inputs: np.ndarray) -> np.ndarray:
    """Plain attention by the kernel of this name, wherever it runs."""
    column = "torch_impl" if name.endswith("triton") else "cupy_impl"
    backend = load(column)
    (found,) = [each for each in backend.implementations if each.name == name]
    assert backend.library is not None
    names = "query", "key", "value", "mask"
    x = (backend.library.from_numpy(each, "float32") for each in inputs)
    given = dict(zip(names, x, strict=True))
    return np.asarray(backend.library.to_numpy(found.function(**given)))


CUDA, TRITON = (f"scaled_dot_product_attention_{how}" for how in ("cuda", "triton"))
WHERE: dict[str, tuple[str, Callable[[], Any]]] = {
    "host machine": (CUDA, nullcontext),
    "interpreter": (TRITON, nullcontext),
    "CUDA C++ as PTX": (CUDA, lambda: cuda_on_machine(90)),
    "Triton as PTX": (TRITON, lambda: triton_on_machine(90)),
}


@pytest.mark.parametrize(("name", "machine"), WHERE.values(), ids=WHERE)
def test_repaired_rows_are_as_exact_as_others(name: str, machine: Callable[[], Any]) -> None:
    """All scores are the same, so that the weights are; the last key is seen by the last row."""
    rng = np.random.default_rng(0)
    query, key = (np.full((1, 1, n, 1), x, np.float32) for n, x in ((QUERIES, 17.3), (KEYS, 57.7)))
    value = rng.uniform(1, 2, (1, 1, KEYS, 1)).astype(np.float32)
    visible = np.tri(QUERIES, KEYS, dtype=bool)
    value[..., -1, :] = np.inf
    with np.errstate(invalid="ignore"), machine():
        found = attend(name, query, key, value, visible)[0, 0, :, 0]
    wanted = [value[0, 0, : row + 1, 0].astype(np.float64).mean() for row in range(QUERIES)]
    assert np.isinf(found[-1])
    assert (np.abs(found[:-1] / wanted[:-1] - 1) <= 4 * np.finfo(np.float32).eps).all()
