"""FlexAttention on a GPU, as far as it is decided before anything is compiled."""

from typing import Any

import pytest
import torch

from attnverify.torch_impl import flex_attention


def on_gpu(monkeypatch: pytest.MonkeyPatch, D: int, E: int) -> Any:
    monkeypatch.setattr(flex_attention, "compiled", lambda: lambda *given, score_mod: "compiled")
    query, value = torch.zeros(1, 1, 2, D), torch.zeros(1, 1, 2, E)
    return flex_attention.on_gpu(query, query, value, lambda score, *at: score, None)


@pytest.mark.parametrize(("D", "E"), [(4, 16), (16, 1), (15, 15)])
def test_heads_that_inductor_refuses_are_unsupported(
    monkeypatch: pytest.MonkeyPatch, D: int, E: int
) -> None:
    """Inductor's own refusal arrives as another error, and the cell would be red."""
    with pytest.raises(NotImplementedError, match="no heads below 16 on a GPU"):
        on_gpu(monkeypatch, D, E)


def test_heads_of_sixteen_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    assert on_gpu(monkeypatch, 16, 16) == "compiled"
