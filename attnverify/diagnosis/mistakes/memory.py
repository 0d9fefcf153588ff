"""
Mistakes of a memory: one that is not there taken as one that is empty.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from attnverify.catalogue.operation import Operation
from attnverify.inputs.recipe import Inputs


def memory_mistakes(
    operation: Operation,
) -> Iterator[tuple[str, Callable[[Operation, Inputs], Any]]]:
    """Words and function of each mistake, of an operation that carries a memory on."""
    if {"hids", "mems", "mem_len"} <= set(operation.arguments):
        for words, least in EMPTY_MEMORIES.items():
            yield words, partial(with_empty_memory, least=least)


EMPTY_MEMORIES = {
    "no memory taken as an empty one": 0,
    "no memory taken as an empty one, and everything kept at mem_len 0": 1,
}


def with_empty_memory(operation: Operation, inputs: Inputs, least: int) -> Any:
    """A memory without positions in place of none; a mem_len below the least keeps everything."""
    hids = inputs["hids"]
    mems = [hid[:, :0] for hid in hids] if inputs["mems"] is None else inputs["mems"]
    whole = max(
        (mem.shape[1] + hid.shape[1] for mem, hid in zip(mems, hids, strict=True)), default=0
    )
    mem_len = inputs["mem_len"] if inputs["mem_len"] >= least else whole
    return operation.reference(**inputs | {"mems": mems, "mem_len": mem_len})
