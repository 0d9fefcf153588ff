"""Numbers of eight bits: every backend against the specification, and against PyTorch's float8."""

import numpy as np
import torch

from attnverify import spec
from attnverify.differential import *

CHAPTER = "quantized"


def test_float8_is_pytorchs():
    stored = torch.arange(-128, 128, dtype=torch.int8)[None]
    expected = stored.view(torch.float8_e4m3fn).double().numpy()
    found = spec.dequantize(stored.numpy(), np.ones(1), "float8_e4m3fn")
    np.testing.assert_array_equal(found, expected)


def test_scales_of_a_cache_are_views_of_those_of_its_rows():
    rng = np.random.default_rng(1)
    pages = rng.integers(-128, 128, (3, 4, 2, 8)).astype(np.int8)
    of_head = rng.standard_normal(2)
    found = spec.dequantize(pages, np.broadcast_to(of_head, (3, 4, 2)), "int8")
    np.testing.assert_array_equal(found, pages * of_head[:, None])


def test_runs_of_channels_with_scales_of_their_own_are_rows():
    rng = np.random.default_rng(2)
    stored = rng.integers(-128, 128, (3, 8)).astype(np.int8)
    scale = rng.standard_normal((3, 2))
    found = spec.dequantize(stored.reshape(3, 2, 4), scale, "int8").reshape(3, 8)
    np.testing.assert_array_equal(found, stored * np.repeat(scale, 4, axis=1))
