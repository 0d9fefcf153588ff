"""
Models that learn, with the example that the book tells of: what only a memory knows, and what lies
so many places back; and the first steps by every path, which differ by no more than rounding.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from attnverify.torch_impl.modules import TransformerXLLayer
from examples.training import characters, copy_task
from examples.training.copy_task import CHANCE, PATHS, Copier, begin, settled, train

STEPS, RUNS = 20, 8


def test_a_stack_learns_what_its_memory_alone_can_tell() -> None:
    assert settled(train(begin(), 100)) < 0.1


def test_it_learns_so_in_blocks() -> None:
    assert settled(train(begin(path="blocked"), 100)) < 0.1


def test_without_a_memory_it_stays_at_chance() -> None:
    assert abs(settled(train(begin(mem_len=0), 100)) - CHANCE) < 0.1


def test_a_memory_that_is_too_short_leaves_it_near_chance_where_it_does_not_reach() -> None:
    """Half a segment of memory tells half of the tokens."""
    assert CHANCE / 4 < settled(train(begin(copy_task.SEGMENT // 2), 200)) < 0.9 * CHANCE


@pytest.mark.parametrize("path", ["torch", "blocked"])
def test_the_relative_attention_learns_a_distance(path: str) -> None:
    torch.manual_seed(0)
    losses = copy_task.train_to_look_back(copy_task.relative(path), copy_task.SEGMENT, 100)
    assert settled(losses) < 0.1


@pytest.mark.parametrize("path", ["torch", "blocked"])
def test_alibi_learns_what_lies_just_behind(path: str) -> None:
    torch.manual_seed(0)
    losses = copy_task.train_to_look_back(copy_task.alibi(path), 1, 150)
    assert settled(losses) < CHANCE / 2


# A text that Python ships


def test_a_reader_learns_more_than_the_frequencies_of_characters() -> None:
    told: list[tuple[int, float]] = []
    losses = characters.train(characters.begin(), 80, lambda *at: told.append(at))
    assert characters.smoothed(losses)[-1] < characters.letters_alone(characters.read_text()) - 0.3
    assert told == [*enumerate(losses, 1)]


def test_a_reader_that_reads_nonsense_learns_no_more_than_frequencies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same characters in another order: nothing that came before tells what comes next."""
    text = characters.read_text()
    shuffled = text[torch.randperm(len(text), generator=torch.Generator().manual_seed(0))]
    monkeypatch.setattr(characters, "read_text", lambda: shuffled)
    losses = characters.train(characters.begin(), 80)
    assert characters.smoothed(losses)[-1] > characters.letters_alone(text) - 0.1


def test_the_example_draws_its_losses(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    file = tmp_path / "curves.svg"
    characters.plot([3.0, 2.5, 2.0], 3.2, str(file))
    assert file.read_text().count("<path") > 2


# Training is chaotic: what rounds differently drifts apart, and no faster than one unit does


def moved(model: Copier, seed: int) -> Copier:
    """The model with every parameter moved by one unit in its last place, up or down."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for x in model.parameters():
            up = torch.rand(x.shape, generator=draw) < 0.5
            x.copy_(torch.nextafter(x, torch.where(up, torch.inf, -torch.inf)))
    return model


def first_losses(model: Copier) -> Tensor:
    return torch.tensor(train(model, STEPS), dtype=torch.float64)


def distance(losses: Tensor, others: Tensor) -> Tensor:
    """The root mean square of the differences of two runs."""
    return (losses - others).square().mean(-1).sqrt()


@pytest.fixture(scope="module")
def eager() -> Tensor:
    return first_losses(begin(path="eager"))


@pytest.fixture(scope="module")
def spread(eager: Tensor) -> Tensor:
    """How far the farthest of eight eager runs goes whose parameters were moved."""
    runs = [first_losses(moved(begin(path="eager"), seed)) for seed in range(1, RUNS + 1)]
    return distance(torch.stack(runs), eager).max()


@pytest.mark.parametrize("path", PATHS)
def test_the_first_steps_of_a_path_lie_within_the_spread(
    path: str, eager: Tensor, spread: Tensor
) -> None:
    assert distance(first_losses(begin(path=path)), eager) <= spread


CHANGES: dict[str, Callable[[Copier], object]] = {
    "a position score that is off by a hundred-thousandth": lambda model: model.stack.layers[
        0
    ].r_net.register_forward_hook(lambda *call: call[-1] * (1 + 1e-5)),
    "a gradient of the positions that is off by its sign": lambda model: model.stack.layers[
        0
    ].r_net.weight.register_hook(lambda grad: -grad),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_path_that_is_off_leaves_the_spread(change: str, eager: Tensor, spread: Tensor) -> None:
    model = begin(path="eager")
    CHANGES[change](model)
    assert distance(first_losses(model), eager) > 2 * spread


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_gradient_of_a_norms_bias_is_a_sum_in_float32(dtype: torch.dtype) -> None:
    """3000 ones; nn.LayerNorm's kernel for half types on a CPU finds 2048 and 256 (torch 2.13)."""
    layer = TransformerXLLayer(2, 4, dtype=dtype)
    x = torch.randn(3000, 4, generator=torch.Generator().manual_seed(0)).to(dtype)
    layer.layer_norm(x).sum().backward()
    assert (layer.layer_norm.bias.grad == torch.tensor(3000.0).to(dtype)).all()
