"""
A small Transformer-XL reads English, character by character, and says which comes next.

    python examples/training/characters.py                      # prints its progress
    python examples/training/characters.py --plot curves.svg    # needs matplotlib

The text is one that Python ships: the topics of its ``help()``. Each of BATCH readers follows a
part of it, segment by segment, with what it read before in its memory.
"""

import argparse
from collections.abc import Callable, Iterator
from math import log
from pydoc_data.topics import topics

import torch
from torch import Tensor, nn

from attnverify.torch_impl.modules import TransformerXL

SEGMENT, BATCH, WIDTH = 24, 16, 48
CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))

Report = Callable[[int, float], object]


class Reader(nn.Module):
    """Layers of Transformer-XL between an embedding of characters and a projection to them."""

    def __init__(self, mem_len: int = SEGMENT, layers: int = 2, path: str = "torch") -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(CHARACTERS), WIDTH)
        self.stack = TransformerXL(layers, 4, WIDTH, mem_len, batch_first=True, implementation=path)
        self.head = nn.Linear(WIDTH, len(CHARACTERS))

    def forward(
        self, tokens: Tensor, mems: list[Tensor] | None
    ) -> tuple[Tensor, list[Tensor] | None]:
        hidden, mems = self.stack(self.embedding(tokens), mems)
        return self.head(hidden), mems


def read_text() -> Tensor:
    """The text as numbers of characters; what is not ASCII is left out."""
    place = {character: number for number, character in enumerate(CHARACTERS)}
    whole = "\n".join(topics[name] for name in sorted(topics))
    return torch.tensor([place[character] for character in whole if character in place])


def segments(text: Tensor, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Segments [BATCH SEGMENT] and the characters that follow, each reader in its own part."""
    parts = text[: len(text) // BATCH * BATCH].view(BATCH, -1)
    for step in range(steps):
        start = step * SEGMENT % (parts.shape[1] - SEGMENT - 1)
        yield parts[:, start : start + SEGMENT], parts[:, start + 1 : start + SEGMENT + 1]


def letters_alone(text: Tensor) -> float:
    """The loss of who knows how frequent each character is, and nothing else."""
    share = torch.bincount(text).double() / len(text)
    return -sum(p * log(p) for p in share.tolist() if p)


def train(
    model: Reader, steps: int, report: Report = lambda step, loss: None, rate: float = 5e-3
) -> list[float]:
    """The loss of every step; each is reported as it comes."""
    optimiser, losses = torch.optim.Adam(model.parameters(), rate), []
    mems = model.stack.init_mems(BATCH)
    for step, (segment, following) in enumerate(segments(read_text(), steps), 1):
        logits, mems = model(segment, mems)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), following.flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
        report(step, losses[-1])
    return losses


def begin(mem_len: int = SEGMENT, path: str = "torch", seed: int = 0) -> Reader:
    """A model whose parameters are those of the seed."""
    torch.manual_seed(seed)
    return Reader(mem_len, path=path)


def smoothed(losses: list[float], over: int = 25) -> list[float]:
    """The mean of so many steps before each."""
    return [sum(losses[max(0, i - over) : i]) / min(i, over) for i in range(1, len(losses) + 1)]


def tell(step: int, loss: float) -> None:
    if step % 50 == 0:
        print(f"step {step}: loss {loss:.2f}", flush=True)


def plot(losses: list[float], floor: float, file: str) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
    axes.plot(range(1, len(losses) + 1), smoothed(losses))
    axes.axhline(floor, color="grey", linestyle=":", label="frequencies of characters")
    axes.set(xlabel="step", ylabel="loss", ylim=(0, None))
    axes.legend()
    figure.savefig(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--plot", metavar="FILE", help="draw the losses")
    asked = parser.parse_args()
    floor = letters_alone(read_text())
    losses = train(begin(), asked.steps, tell)
    print(f"last {smoothed(losses)[-1]:.2f}; from frequencies alone {floor:.2f}")
    if asked.plot:
        plot(losses, floor, asked.plot)


if __name__ == "__main__":
    main()
