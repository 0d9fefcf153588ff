"""What PyTorch shows of the steps of a function, and what watching them costs."""

import sys

import pytest

from attnverify.backends.torch_steps import steps_of

torch = pytest.importorskip("torch")


def test_steps_are_listed_with_what_they_stored() -> None:
    x = torch.zeros(2)
    seen = steps_of(lambda: torch.exp(x).half())
    assert {("exp", "float32"), ("_to_copy", "float16")} <= seen


def test_watching_steps_imports_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """It took more than a second of every run in which an answer of PyTorch's was wrong."""
    for name in [name for name in sys.modules if name.startswith("torch._dynamo")]:
        monkeypatch.delitem(sys.modules, name)
    steps_of(lambda: torch.zeros(2).exp())
    assert "torch._dynamo" not in sys.modules
