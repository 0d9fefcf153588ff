"""
Users' backends: small backends, most of them wrong, that are judged from here.

They stand for the files that people bring; the tests load them by path, as ``--backend`` does.
"""

from functools import lru_cache

from attnverify import ROOT
from attnverify.backends.implementation import Backend, Implementation
from attnverify.backends.loader import load
from attnverify.catalogue.operation import CATALOGUE
from attnverify.verdicts.cell import Cell, cells
from attnverify.verdicts.columns import judge_cell
from attnverify.verdicts.tally import CellResult, Options

HERE = ROOT / "tests" / "sample_backends"


@lru_cache
def load_sample(name: str) -> Backend:
    """One of the files or folders of sample backends, loaded as ``--backend`` loads it."""
    return load(str(HERE / name if (HERE / name).is_dir() else HERE / f"{name}.py"))


def implementation(name: str, backend: str = "one_fault_each") -> Implementation:
    return next(i for i in load_sample(backend).implementations if i.name == name)


def cells_of(name: str, backend: str = "one_fault_each", dtype: str = "float32") -> list[Cell]:
    """The cells of one implementation, by its name."""
    found = cells([load_sample(backend)], (), (dtype,))
    return [
        cell
        for cell in found
        if name in (cell.implementation.name, cell.gradient and cell.gradient.name)
    ]


@lru_cache
def tallies(name: str, backend: str = "one_fault_each", folder: str = "") -> dict[str, CellResult]:
    """What the quick profile says of an implementation, by aspect."""
    return {
        cell.aspect: judge_cell(cell, Options("quick", failures=folder))
        for cell in cells_of(name, backend)
    }


__all__ = ["CATALOGUE", "HERE", "cells_of", "implementation", "load_sample", "tallies"]
