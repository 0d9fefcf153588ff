"""
Rows that are computed again, since a value reached them that they do not see, are as exact as the
others: their weights do not take over how the log-sum-exp of large scores is rounded.
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from attnverify.cupy_impl.cuda.attention import scaled_dot_product_attention_cuda as by_cuda
from attnverify.torch_impl.triton.attention import (
    scaled_dot_product_attention_triton as by_triton,
)
from tests.ptx.own_kernels.cuda import cuda_on_machine
from tests.ptx.own_kernels.triton import triton_on_machine

QUERIES = KEYS = 5


def on_host(*inputs: np.ndarray) -> np.ndarray:
    return by_cuda(*inputs)


def interpreted(*inputs: np.ndarray) -> np.ndarray:
    return by_triton(*map(torch.from_numpy, inputs)).numpy()


def cuda_as_ptx(*inputs: np.ndarray) -> np.ndarray:
    with cuda_on_machine(90):
        return by_cuda(*inputs)


def triton_as_ptx(*inputs: np.ndarray) -> np.ndarray:
    with triton_on_machine(90):
        return interpreted(*inputs)


@pytest.mark.parametrize("attend", [on_host, interpreted, cuda_as_ptx, triton_as_ptx])
def test_repaired_rows_are_as_exact_as_others(attend: Callable[..., np.ndarray]) -> None:
    """All scores are the same, so that the weights are; the last key is seen by the last row."""
    rng = np.random.default_rng(0)
    query, key = (np.full((1, 1, n, 1), x, np.float32) for n, x in ((QUERIES, 17.3), (KEYS, 57.7)))
    value = rng.uniform(1, 2, (1, 1, KEYS, 1)).astype(np.float32)
    visible = np.tri(QUERIES, KEYS, dtype=bool)
    value[..., -1, :] = np.inf
    with np.errstate(invalid="ignore"):
        found = attend(query, key, value, visible)[0, 0, :, 0]
    wanted = [value[0, 0, : row + 1, 0].astype(np.float64).mean() for row in range(QUERIES)]
    assert np.isinf(found[-1])
    assert (np.abs(found[:-1] / wanted[:-1] - 1) <= 4 * np.finfo(np.float32).eps).all()
