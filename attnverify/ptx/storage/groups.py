"""
Products of warp groups under way: which registers and which places of shared memory they use until
they are waited for.

``wgmma.fence`` stands between every access of a thread to a register and a product that uses it,
but for accumulators from one product to the next of the same shape; before ``wgmma.wait_group``
nobody may touch what a product writes, nor write what it reads. A move from register to register
is a renaming: compilers leave such moves between a fence and its product, and assemblers take them
out. Triton leaves them before the wait too, where it takes halves of an accumulator in float16
apart: what they are moved to is a part of the product until it is waited for.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attnverify.ptx.kinds import Array

__all__ = ["Groups", "Product"]


@dataclass
class Product:
    """
    One product of some warps: its accumulator, its left factor if that is in registers, the places
    it reads, and the registers to which its accumulator was moved meanwhile.
    """

    warps: Array
    accumulator: tuple[int, ...]
    left: tuple[int, ...]
    shape: str
    places: Array
    groups: Array
    index: int
    renamed: set[int] = field(default_factory=set)


def cells(rows: Array, warps: Array | slice) -> Any:
    """Find the places of some registers of some warps, or of all, in a table of both."""
    return rows if isinstance(warps, slice) else np.ix_(rows, warps)


class Groups:
    """The products of all warps; registers by their index, those alone that a product uses."""

    def __init__(self, registers: frozenset[int], warps: int) -> None:
        self.registers = sorted(registers)
        self.rows = {index: row for row, index in enumerate(self.registers)}
        self.unfenced = np.ones((len(registers), warps), bool)
        self.written = np.zeros((len(registers), warps), bool)
        self.read = np.zeros((len(registers), warps), bool)
        self.committed = np.zeros(warps, np.int64)
        self.products: list[Product] = []

    def rows_of(self, registers: Iterable[int]) -> Array:
        return np.array([self.rows[index] for index in registers], np.int64)

    def touched(self, reads: Array, writes: Array, warps: Array | slice) -> str | None:
        """
        An ordinary instruction of these warps reads and writes rows of registers: what is wrong
        with that, if anything.
        """
        wrong = self.collides(reads, writes, warps)
        self.unfenced[cells(reads, warps)] = True
        self.unfenced[cells(writes, warps)] = True
        return wrong

    def copied(
        self, source: Array, target: Array, warps: Array | slice, strict: bool
    ) -> str | None:
        """As :meth:`touched`, for a move: it renames a register, which is as fenced as it was."""
        wrong = self.collides(source[:0] if not strict else source, target, warps)
        self.unfenced[cells(target, warps)] = self.unfenced[cells(source, warps)]
        for product in self.products if not strict else ():
            if np.isin(source, self.rows_of([*product.accumulator, *product.renamed])).any():
                product.renamed |= {self.registers[row] for row in target}
                self.mark(product, product.warps)
        return wrong

    def collides(self, reads: Array, writes: Array, warps: Array | slice) -> str | None:
        """Tell whether an access hits a product that is under way."""
        if not self.products:
            return None
        if self.written[cells(reads, warps)].any():
            return "reads an accumulator of a wgmma that was not waited for"
        if self.written[cells(writes, warps)].any():
            return "writes an accumulator of a wgmma that was not waited for"
        if self.read[cells(writes, warps)].any():
            return "writes a register that a wgmma still reads"
        return None

    def start(self, product: Product, strict: bool) -> tuple[str, str] | None:
        """A product begins: the kind and the words of what is wrong with that, if anything."""
        accumulator, left = self.rows_of(product.accumulator), self.rows_of(product.left)
        warps = np.flatnonzero(product.warps)
        used = np.concatenate([accumulator, left])
        if strict and self.unfenced[cells(used, warps)].any():
            return (
                "missing fence",
                "no wgmma.fence since the registers of this product were last touched",
            )
        if self.written[cells(left, warps)].any():
            return (
                "not waited for",
                "the left factor is the accumulator of a wgmma that was not waited for",
            )
        if self.read[cells(accumulator, warps)].any():
            return "not waited for", "the accumulator is a left factor that a wgmma still reads"
        if self.written[cells(accumulator, warps)].any() and not self.continues(product):
            return (
                "not waited for",
                "the accumulator is part of another product that was not waited for",
            )
        self.products.append(product)
        self.mark(product, product.warps)
        return None

    def continues(self, product: Product) -> bool:
        """
        Tell whether whatever is under way with these registers is a product of the same shape into
        the same ones.
        """
        same = [
            p
            for p in self.products
            if set(p.accumulator) & set(product.accumulator) and (p.warps & product.warps).any()
        ]
        return all(p.accumulator == product.accumulator and p.shape == product.shape for p in same)

    def mark(self, product: Product, warps: Array) -> None:
        written = self.rows_of([*product.accumulator, *product.renamed])
        self.written[cells(written, np.flatnonzero(warps))] = True
        self.read[cells(self.rows_of(product.left), np.flatnonzero(warps))] = True

    def fence(self, warps: Array) -> bool:
        """Whether there was a register to fence."""
        useful = bool(self.unfenced[:, warps].any())
        self.unfenced[:, warps] = False
        return useful

    def finished(self, warps: Array, pending: int) -> list[tuple[Product, Array]]:
        """
        Products that these warps have waited for, and which of them each is of; all groups but the
        last ``pending``.
        """
        finished, kept = [], []
        for product in self.products:
            done = product.warps & warps & (product.groups < self.committed - pending)
            rest = product.warps & ~done
            if done.any():
                finished.append((product, done))
            if rest.any():
                product.warps = rest
                kept.append(product)
        self.products = kept
        self.written[:, warps] = False
        self.read[:, warps] = False
        for product in kept:
            self.mark(product, product.warps)
        return finished
