"""What the adapters showed to have no name, and has one since; in NumPy, without their packages."""

import numpy as np
import pytest

import attnverify as av


def of_the_original_transformer(M, F):
    """As labml-nn's get_positional_encoding has it."""
    angle = np.arange(M)[:, None] * 10000.0 ** (-np.arange(0, F, 2) / F)
    return np.stack([np.sin(angle), np.cos(angle)], -1).reshape(M, F).astype(np.float32)


def test_the_table_of_the_original_transformer_is_named(tmp_path) -> None:
    with pytest.raises(AssertionError, match="distances rising from 0, sines and cosines in turn"):
        av.check(
            of_the_original_transformer,
            "sinusoidal_positions",
            dtype="float32",
            failures=str(tmp_path),
        )
