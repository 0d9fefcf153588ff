"""Memory: the specification is :mod:`spec.memory`."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from attnverify.contract.arguments import check_integer
from attnverify.contract.layers import check_init_mems, check_update_mems
from attnverify.contract.shapes import check, pattern

from .arrays import TENSORS

__all__ = ["init_mems", "update_mems"]

SLIDING = pattern("mem [B S F], hid [B N F]")
Mems = list[Float[Tensor, "B S F"]] | None


def init_mems(
    n_layers: int,
    mem_len: int,
    batch: int,
    width: int,
    dtype: torch.dtype = torch.float32,
    device: Any = None,
) -> Mems:
    """As :func:`spec.memory.init_mems`, on PyTorch's default device unless told."""
    check_init_mems(TENSORS, n_layers, mem_len, batch, width)
    if mem_len == 0:
        return None
    return [torch.zeros(batch, mem_len, width, dtype=dtype, device=device) for _ in range(n_layers)]


def update_mems(hids: Sequence[Float[Tensor, "B N F"]], mems: Mems, mem_len: int) -> Mems:
    """As :func:`spec.memory.update_mems`. Only what stays is copied."""
    check_update_mems(TENSORS, hids, mems, mem_len)
    if mems is None:
        return None
    return [last(mem.detach(), hid.detach(), mem_len) for mem, hid in zip(mems, hids, strict=True)]


def last(mem: Tensor, hid: Tensor, mem_len: int) -> Tensor:
    """The last mem_len positions of mem followed by hid, in memory of their own."""
    S, N = mem.shape[1], hid.shape[1]
    if torch.compiler.is_compiling():  # whose lengths are not known yet: no branch may ask them
        return torch.cat([mem, hid], dim=1)[:, torch.sym_max(0, S + N - mem_len) :]
    if mem_len <= N:
        return hid[:, N - mem_len :].to(torch.promote_types(mem.dtype, hid.dtype), copy=True)
    return torch.cat([mem[:, max(0, S - (mem_len - N)) :], hid], dim=1)


class SlidingMemory:
    """
    The memory of one layer for whom an alias does no harm: what stays is not copied.

    A buffer twice as long as the memory. A segment is written behind what is remembered, and the
    memory is a view of its last mem_len positions; when the buffer is full, they move to its front:
    less than two positions are copied for each that comes, where :func:`update_mems`, whose results
    share no memory with anything, copies mem_len. A view is good until the next move. Numbers are
    written in place: PyTorch refuses the gradient of a graph that has kept a view of them.
    """

    def __init__(self, mem: Float[Tensor, "B S F"], mem_len: int) -> None:
        """Begin with a memory, of which the last mem_len positions are copied."""
        check_integer(TENSORS, "mem_len", mem_len)
        check(TENSORS, SLIDING[:1], mem)
        B, S, F = mem.shape
        self.mem_len, self.end = mem_len, min(S, mem_len)
        self.buffer = mem.new_empty(B, 2 * mem_len, F)
        self.buffer[:, : self.end] = mem.detach()[:, S - self.end :]

    @property
    def mem(self) -> Float[Tensor, "B S F"]:
        """The last mem_len positions, or as many as there were: a view."""
        return self.buffer[:, max(0, self.end - self.mem_len) : self.end]

    def update(self, hid: Float[Tensor, "B N F"]) -> Float[Tensor, "B S F"]:
        """The memory after this segment."""
        check(TENSORS, SLIDING, self.buffer, hid)
        hid = hid.detach()[:, -self.mem_len :]
        if self.end + hid.shape[1] > 2 * self.mem_len:
            stays = self.mem[:, hid.shape[1] :]
            self.end = stays.shape[1]
            self.buffer[:, : self.end] = stays
        self.buffer[:, self.end : self.end + hid.shape[1]] = hid
        self.end += hid.shape[1]
        return self.mem
