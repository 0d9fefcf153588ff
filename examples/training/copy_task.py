"""
A tiny Transformer-XL learns to repeat what it read one segment ago, which only its memory can tell.

    python examples/training/copy_task.py                     # with the memory and without it
    python examples/training/copy_task.py --path blocked      # by another path, see --help
    python examples/training/copy_task.py --plot curves.svg   # needs matplotlib

A stream of random tokens comes in segments. At each position the token at the same place of the
segment before is asked for. Without a memory nothing is known of it, and the best loss is chance,
the logarithm of the number of tokens. The relative and the ALiBi attention learn to look back
within one sequence: by exactly so many places, or just behind them.
"""

import argparse
import sys
from collections.abc import Iterator
from math import log
from typing import Any

import torch
from torch import Tensor, nn

from attnverify.torch_impl.modules import (
    AlibiMultiHeadAttention,
    RelativeMultiHeadAttention,
    TransformerXL,
)

TOKENS, SEGMENT, BATCH, WIDTH = 16, 6, 16, 32
CHANCE = log(TOKENS)
PATHS = ("torch", "eager", "blocked", "triton")


class Copier(nn.Module):
    """One layer of Transformer-XL between an embedding and a projection to the tokens."""

    def __init__(self, mem_len: int = SEGMENT, path: str = "torch") -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, WIDTH)
        self.stack = TransformerXL(1, 2, WIDTH, mem_len, batch_first=True, implementation=path)
        self.head = nn.Linear(WIDTH, TOKENS)

    def forward(self, tokens: Tensor, mems: Any) -> tuple[Tensor, Any]:
        hidden, mems = self.stack(self.embedding(tokens), mems)
        return self.head(hidden), mems


class LookingBack(nn.Module):
    """One causal attention, residual and norm between an embedding and a projection."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.embedding, self.attention = nn.Embedding(TOKENS, WIDTH), attention
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, TOKENS)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        visible = torch.ones(2 * (tokens.shape[1],), dtype=torch.bool).tril()
        return self.head(self.norm(x + self.attention(query=x, key=x, value=x, mask=visible)))


def relative(path: str = "torch") -> LookingBack:
    options = {"dropout_prob": 0.0, "P": 2 * SEGMENT, "batch_first": True, "implementation": path}
    return LookingBack(RelativeMultiHeadAttention(4, WIDTH, **options))


def alibi(path: str = "torch") -> LookingBack:
    options = {"dropout_prob": 0.0, "batch_first": True, "implementation": path}
    return LookingBack(AlibiMultiHeadAttention(4, WIDTH, **options))


def train_to_look_back(
    model: LookingBack, places: int, steps: int, seed: int = 0, rate: float = 1e-2
) -> list[float]:
    """The loss of every step, where the token so many places before is asked for."""
    optimiser, losses = torch.optim.Adam(model.parameters(), rate), []
    for tokens in draw_segments(steps, seed, 2 * SEGMENT):
        logits, asked = model(tokens)[:, places:], tokens[:, :-places]
        loss = nn.functional.cross_entropy(logits.flatten(0, 1).double(), asked.flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


def draw_segments(steps: int, seed: int, length: int = SEGMENT) -> Iterator[Tensor]:
    """Segments [BATCH length] of one stream, one after the other."""
    draw = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        yield torch.randint(TOKENS, (BATCH, length), generator=draw)


def train(model: Copier, steps: int, seed: int = 0, rate: float = 1e-2) -> list[float]:
    """The loss of every step but the first, which has nothing to repeat."""
    optimiser = torch.optim.Adam(model.parameters(), rate)
    losses, before, mems = [], None, model.stack.init_mems(BATCH)
    for segment in draw_segments(steps + 1, seed):
        logits, mems = model(segment, mems)
        if before is not None:
            loss = nn.functional.cross_entropy(logits.flatten(0, 1).double(), before.flatten())
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
        before = segment
    return losses


def begin(mem_len: int = SEGMENT, path: str = "torch", seed: int = 0) -> Copier:
    """A model whose parameters are those of the seed, whatever computes it."""
    torch.manual_seed(seed)
    return Copier(mem_len, path)


def settled(losses: list[float]) -> float:
    """The mean loss of the last ten steps."""
    return sum(losses[-10:]) / 10


def plot(curves: dict[str, list[float]], file: str) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
    for name, losses in curves.items():
        axes.plot(range(1, len(losses) + 1), losses, label=name)
    axes.axhline(CHANCE, color="grey", linestyle=":", label="chance")
    axes.set(xlabel="step", ylabel="loss", ylim=(0, None))
    axes.legend()
    figure.savefig(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--path", choices=PATHS, default="torch", help="what computes attention")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--plot", metavar="FILE", help="draw the losses")
    asked = parser.parse_args()
    curves = {}
    for name, mem_len in (("with its memory", SEGMENT), ("without a memory", 0)):
        curves[name] = train(begin(mem_len, asked.path), asked.steps)
        print(f"{name}: loss {settled(curves[name]):.2f} (chance {CHANCE:.2f})")
        sys.stdout.flush()
    if asked.plot:
        plot(curves, asked.plot)


if __name__ == "__main__":
    main()
