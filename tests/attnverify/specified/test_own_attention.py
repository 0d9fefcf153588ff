"""Somebody's own attention, which has no weights that a probe could ask for."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from jaxtyping import Float
from numpy import ndarray

import attnverify as av


def thirds_halved(
    query: Float[ndarray, "B H N D"],
    key: Float[ndarray, "B H M D"],
    value: Float[ndarray, "B H M E"],
) -> Float[ndarray, "B H N E"]:
    s = query @ key.swapaxes(-1, -2) / query.shape[-1] ** 0.5
    s = np.where(np.arange(s.shape[-1]) % 3 == 2, s * 0.5, s)
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True) @ value


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    s = q @ k.mT / q.shape[-1] ** 0.5
    return torch.where(torch.arange(s.shape[-1]) % 3 == 2, s * 0.5, s).softmax(-1) @ v


def told(function: Callable[..., Any]) -> str:
    with pytest.raises(av.CheckFailed) as failed:
        av.check(function, spec=thirds_halved, dtype="float32")
    return str(failed.value)


def test_what_nothing_explains_ends_without_an_error_of_ours() -> None:
    """The probe of weights, and a number in place of 0.5, ended in errors."""

    def mine(query, key, value):  # type: ignore[no-untyped-def]
        output = attend(query, key, value)
        return output + 0.3 * torch.tanh(output.flip(-2))

    words = told(mine)
    assert "wrong: the output" in words and "mistake of attnverify" not in words


def test_heads_behind_positions_are_found_out_of_a_specification_too() -> None:
    def behind(query, key, value):  # type: ignore[no-untyped-def]
        swapped = (x.transpose(1, 2) for x in (query, key, value))
        return attend(*swapped).transpose(1, 2)

    assert 'LAYOUT = "BNHD"' in told(behind)
