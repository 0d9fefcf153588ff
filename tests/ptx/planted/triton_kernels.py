"""Kernels in Triton with a switch: the right one, and the same with a bug planted."""

import triton
import triton.language as tl

__all__ = ["add_of_pointers", "locked_sum", "masked_copy", "poll_plainly", "row_maximum"]


@triton.jit  # type: ignore[untyped-decorator]
def locked_sum(x, total, lock, n, BUG: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Programs add their rows to one, under a lock (as in the tutorial's layer norm)."""
    at = tl.arange(0, BLOCK)
    row = tl.load(x + tl.program_id(0) * n + at, at < n, 0.0)
    if BUG != "no lock":
        while tl.atomic_cas(lock, 0, 1) == 1:
            pass
    row += tl.load(total + at, at < n, 0.0)
    tl.store(total + at, row, at < n)
    if BUG == "never opened":
        return
    if BUG == "opened without order":
        tl.debug_barrier()
        tl.atomic_xchg(lock, 0, sem="relaxed")
    else:
        tl.debug_barrier()
        tl.atomic_xchg(lock, 0)


@triton.jit  # type: ignore[untyped-decorator]
def poll_plainly(flag, out, BUG: tl.constexpr):  # type: ignore[no-untyped-def]
    """Each program waits for the one before it."""
    me = tl.program_id(0)
    if me > 0:
        while (
            tl.atomic_add(flag + me - 1, 0, sem="relaxed" if BUG == "no order" else "acquire") == 0
        ):
            pass
    tl.store(out, tl.load(out) + me + 1)
    tl.debug_barrier()
    if BUG != "one is left out" or me != 5:
        tl.atomic_xchg(flag + me, 1, sem="release")


@triton.jit  # type: ignore[untyped-decorator]
def masked_copy(x, y, n, BUG: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Copy n numbers."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n + (BLOCK if BUG == "load too far" else 0)
    value = tl.load(x + at, inside)
    where = at if BUG != "all at once" else at % BLOCK
    tl.store(y + where, value, at < n + (BLOCK if BUG == "store too far" else 0))


@triton.jit  # type: ignore[untyped-decorator]
def row_maximum(x, n, BUG: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Subtract the maximum of each row in place."""
    row = tl.program_id(0) if BUG != "two programs a row" else tl.program_id(0) // 2
    at = tl.arange(0, BLOCK)
    value = tl.load(x + row * n + at, at < n, -float("inf"))
    row += BUG == "in place of another row"
    tl.store(x + row * n + at, value - tl.max(value, 0), at < n)


@triton.jit  # type: ignore[untyped-decorator]
def add_of_pointers(pointers, n, BUG: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Add to each of some arrays, whose addresses lie in a tensor (as in a grouped product)."""
    x = tl.load(pointers + tl.program_id(0)).to(tl.pointer_type(tl.float32))
    at = tl.arange(0, BLOCK)
    inside = at < n + (BUG == "one too many")
    tl.store(x + at, tl.load(x + at, inside) + 1.0, inside)
