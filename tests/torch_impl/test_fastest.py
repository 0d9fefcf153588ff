"""Plain names: the fastest path answers that does what is asked, and it alone."""

from typing import Any

import pytest
import torch
from torch import Tensor

from attnverify.ptx.launchers.torch_cuda import pretended_cuda
from attnverify.torch_impl import blocked
from attnverify.torch_impl.modules import RelativeMultiHeadAttention
from attnverify.torch_impl.paths import fastest
from tests.support.torch_functions import (
    PATHS,
    differentiable,
    forward_and_gradients,
    inputs_of,
    taking,
)

DTYPES = ("float64", "float32", "bfloat16", "float16")
CHOOSING = sorted(fastest.LEAST_PAIRS)
each = pytest.mark.parametrize("operation", CHOOSING)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks are faster at any size."""
    anywhere = {name: dict.fromkeys(DTYPES, (0, 0)) for name in CHOOSING}
    monkeypatch.setattr(fastest, "LEAST_PAIRS", anywhere)


def answer_of_blocks(operation: str, given: dict[str, Any]) -> list[Tensor]:
    return forward_and_gradients(getattr(blocked, f"{operation}_blocked"), given)


def test_every_attention_with_blocks_has_a_line_for_each_dtype() -> None:
    named = {path.removesuffix("_blocked") for path in taking("blocked")}
    assert named - {"scaled_dot_product_attention"} == {*CHOOSING}
    assert all(tuple(fastest.LEAST_PAIRS[name]) == DTYPES for name in CHOOSING)


@each
@pytest.mark.usefixtures("always")
def test_blocks_answer_where_they_are_faster(operation: str) -> None:
    found = forward_and_gradients(PATHS[operation], inputs_of(operation))
    expected = answer_of_blocks(operation, inputs_of(operation))
    assert all(map(torch.equal, found, expected))


@each
def test_they_do_not_answer_below(operation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocked, f"{operation}_blocked", None)  # whoever calls it fails
    PATHS[operation](**inputs_of(operation, length=8))


@each
def test_a_size_of_use_takes_blocks(operation: str) -> None:
    heads = [torch.empty(1, 2048, 64, dtype=torch.float32)] * 3
    assert fastest.which_answers(operation, *heads) == "blocked"


@each
@pytest.mark.usefixtures("always")
def test_a_second_derivative_is_that_of_the_other_path(
    operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def second() -> list[Tensor]:
        needing = differentiable(given := inputs_of(operation, dtype=torch.float64))
        first = torch.autograd.grad(
            PATHS[operation](**given).square().sum(), needing, create_graph=True
        )
        length = sum(x.square().sum() for x in first)
        return list(torch.autograd.grad(length, needing))  # type: ignore[arg-type]

    found = second()
    monkeypatch.setattr(fastest, "which_answers", lambda *_, **__: "torch")
    for one, other in zip(found, second(), strict=True):
        assert torch.allclose(one, other, rtol=1e-9)


@each
@pytest.mark.usefixtures("always")
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # by PyTorch itself
def test_what_blocks_cannot_do_is_for_the_other_path(operation: str) -> None:
    given = inputs_of(operation, dtype=torch.float32)
    tensors = {name: x.detach() for name, x in given.items() if isinstance(x, Tensor)}
    rest = {name: x for name, x in given.items() if name not in tensors}
    seen = []

    def attend(tensors: dict[str, Tensor]) -> Tensor:
        seen.append(fastest.which_answers(operation, *tensors.values()))
        return PATHS[operation](**tensors, **rest)

    attend(tensors)
    torch.func.grad(lambda some: attend(some).sum())(tensors)
    torch.func.jvp(attend, (tensors,), (tensors,))
    torch.func.vmap(attend)({name: x[None] for name, x in tensors.items()})
    assert seen == ["blocked", "torch", "torch", "torch"]


@each
@pytest.mark.usefixtures("always")
def test_a_graph_that_is_compiled_holds_no_blocks(operation: str) -> None:
    assert torch.compiler.is_compiling() is False
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.compiler, "is_compiling", lambda: True)
        assert fastest.which_answers(operation, torch.ones(3, 3), torch.ones(3, 3)) == "torch"


@each
def test_kernels_answer_on_a_gpu_in_the_dtypes_that_they_have(operation: str) -> None:
    with pretended_cuda(90):
        narrow, wide = torch.ones(1, 2, 4, 16, device="cuda"), torch.ones(1, 2, 4, 512)
        assert fastest.which_answers(operation, narrow, narrow, narrow) == "triton"
        for other in (narrow.double(), wide.cuda()):
            assert fastest.which_answers(operation, other, other, other) == "torch"


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("path", ["blocked", "torch"])
def test_a_module_may_ask_for_the_fastest(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if path == "torch":
        monkeypatch.setattr(fastest, "LEAST_PAIRS", {name: {} for name in CHOOSING})
    made = {how: module_of(how) for how in (path, "fastest")}
    made["fastest"].load_state_dict(made[path].state_dict())
    x = torch.randn(9, 2, 16)
    assert torch.equal(
        made[path](query=x, key=x, value=x), made["fastest"](query=x, key=x, value=x)
    )
    assert "implementation='fastest'" in repr(made["fastest"])


def module_of(implementation: str) -> torch.nn.Module:
    return RelativeMultiHeadAttention(2, 16, implementation=implementation).eval()
