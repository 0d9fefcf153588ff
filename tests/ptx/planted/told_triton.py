"""
Bugs in Triton that public histories tell of, planted in programs written anew.

Each program runs as it stands wherever Triton does: on "cuda", or on the device that the
environment names. The list was written before any of them ran on the machine.
"""

from tests.ptx.planted.table import Bug, Program

__all__ = ["HEAD", "TOLD_TRITON"]

HEAD = """
import os
import torch
import triton
import triton.language as tl
device = os.environ.get("DEVICE", "cuda")
torch.manual_seed(38)
"""

TTSEM = "alepot55/ttsem"
MASK = "triton-lang/triton, tutorial 02"
WIDE = "state-spaces/mamba#988"

ADD = Program(
    "a sum of vectors",
    """
@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(x + at, mask=at < n)
    b = tl.load(y + at, mask=at < n)
    tl.store(out + at, a + b, mask=at < n)

x, y, out = (torch.randn(1000, device=device) for _ in range(3))
add[(4,)](x, y, out, 1000, BLOCK=256)
assert torch.equal(out.cpu(), x.cpu() + y.cpu())
""",
    (
        Bug("a load without a mask", "tl.load(y + at, mask=at < n)", "tl.load(y + at)",
            "out of bounds", told="tinygrad/tinygrad#512"),
        Bug("a store without a mask", "tl.store(out + at, a + b, mask=at < n)",
            "tl.store(out + at, a + b)", "out of bounds", told=TTSEM),
        Bug("one too many", "tl.load(x + at, mask=at < n)", "tl.load(x + at, mask=at <= n)",
            "out of bounds", told=TTSEM),
        Bug("blocks that overlap", "tl.program_id(0) * BLOCK +", "tl.program_id(0) * BLOCK // 2 +",
            "race", told=TTSEM),
        Bug("a tensor of the CPU", "add[(4,)](x, y,", "add[(4,)](x, y.cpu() + 0,", "cpu tensor",
            told="triton-lang/triton, its own error"),
    ),
)  # fmt: skip

SOFTMAX = Program(
    "a softmax of rows of a view",
    """
@triton.jit
def softmax(x, out, stride, n, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    v = tl.load(x + row * stride + at, mask=at < n, other=-float("inf"))
    e = tl.exp(v - tl.max(v, 0))
    tl.store(out + row * n + at, e / tl.sum(e, 0), mask=at < n)

x = torch.randn(9, 64, device=device)[:8, :60]
out = torch.zeros(8, 60, device=device)
softmax[(8,)](x, out, x.stride(0), 60, BLOCK=64)
assert torch.allclose(out.cpu(), torch.softmax(x.cpu(), 1), rtol=1e-5)
""",
    (
        Bug("rows as wide as a block are stored", "tl.sum(e, 0), mask=at < n)", "tl.sum(e, 0))",
            "out of bounds", told=MASK),
        Bug("columns behind the view are loaded", 'mask=at < n, other=-float("inf")',
            "mask=at < 64", "out of bounds", told=TTSEM),
        Bug("a row too many", "softmax[(8,)]", "softmax[(9,)]", "out of bounds", told=MASK),
    ),
)  # fmt: skip

TOTAL = Program(
    "a sum of all programs",
    """
@triton.jit
def total(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    s = tl.sum(tl.load(x + at, mask=at < n, other=0), 0)
    tl.atomic_add(out, s)

x, out = torch.arange(1000, device=device), torch.zeros(1, dtype=torch.int64, device=device)
total[(8,)](x, out, 1000, BLOCK=128)
assert out.item() == 499500
""",
    (
        Bug("no atomic", "tl.atomic_add(out, s)", "tl.store(out, tl.load(out) + s)", "race",
            told="triton-lang/triton, tl.atomic_add"),
        Bug("into what was only allocated", "torch.zeros(1", "torch.empty(1", "unwritten",
            told=TTSEM),
    ),
)  # fmt: skip

PRODUCT = Program(
    "a product of matrices",
    """
@triton.jit
def matmul(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for first in range(0, K, BK):
        p = tl.load(a + (m % M)[:, None] * K + (first + k)[None, :],
                    mask=(first + k)[None, :] < K, other=0)
        q = tl.load(b + (first + k)[:, None] * N + (n % N)[None, :],
                    mask=(first + k)[:, None] < K, other=0)
        acc += tl.dot(p, q)
    tl.store(c + m[:, None] * N + n[None, :], acc, mask=(m[:, None] < M) & (n[None, :] < N))

a = torch.randint(-4, 4, (40, 50), device=device).half()
b = torch.randint(-4, 4, (50, 36), device=device).half()
c = torch.zeros(40, 36, device=device)
matmul[(2, 2)](a, b, c, 40, 36, 50, BM=32, BN=32, BK=32)
assert torch.equal(c.cpu(), a.cpu().float() @ b.cpu().float())
""",
    (
        Bug("the last step is whole", "mask=(first + k)[:, None] < K, other=0", "",
            "out of bounds", told="triton-lang/triton, tutorial 03"),
        Bug("no remainder of the rows", "(m % M)[:, None]", "m[:, None]", "out of bounds",
            told="triton-lang/triton, tutorial 03"),
        Bug("columns beyond the last are stored", "& (n[None, :] < N)", "", "race",
            told="meta-pytorch/tritonbench#872"),
        Bug("rows beyond the last are stored", "(m[:, None] < M) &", "", "out of bounds",
            told="meta-pytorch/tritonbench#872"),
    ),
)  # fmt: skip

LOCKED = Program(
    "rows added up under a lock",
    """
@triton.jit
def locked(x, out, lock, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    v = tl.load(x + tl.program_id(0) * n + at, mask=at < n)
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    v += tl.load(out + at, mask=at < n)
    tl.store(out + at, v, mask=at < n)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)

x = torch.randint(-9, 9, (12, 100), device=device).float()
out, lock = torch.zeros(100, device=device), torch.zeros(1, dtype=torch.int32, device=device)
locked[(12,)](x, out, lock, 100, BLOCK=128)
assert torch.equal(out.cpu(), x.cpu().sum(0))
""",
    (
        Bug("opened by one warp while others still store", "    tl.debug_barrier()\n", "", "race",
            told="triton-lang/triton, tutorial 05"),
        Bug("no lock", "    while tl.atomic_cas(lock, 0, 1) == 1:\n        pass\n", "", "race",
            told="triton-lang/triton, tutorial 05"),
        Bug("not opened", "    tl.atomic_xchg(lock, 0)\n", "", "deadlock",
            told="triton-lang/triton, tutorial 05"),
        Bug("taken without order", "tl.atomic_cas(lock, 0, 1)",
            'tl.atomic_cas(lock, 0, 1, sem="relaxed")', "race",
            told="triton-lang/triton, tl.atomic_add"),
    ),
)  # fmt: skip

FAR = Program(
    "rows far from one another",
    """
@triton.jit
def far(out, stride, n):
    at = tl.program_id(0).to(tl.int64) * stride
    tl.store(out + at, 7, mask=at < n)

out = torch.zeros(64, dtype=torch.int32, device=device)
far[(64,)](out, 70_000_000, 64)
assert out.tolist() == [7] + [0] * 63
""",
    (
        Bug("the product stays in 32 bits", "tl.program_id(0).to(tl.int64)", "tl.program_id(0)",
            "overflow", told=WIDE),
    ),
)  # fmt: skip

POINTERS = Program(
    "tensors whose addresses lie in a tensor",
    """
@triton.jit
def scale(pointers, sizes, BLOCK: tl.constexpr):
    x = tl.load(pointers + tl.program_id(0)).to(tl.pointer_type(tl.float32))
    at = tl.arange(0, BLOCK)
    inside = at < tl.load(sizes + tl.program_id(0))
    tl.store(x + at, tl.load(x + at, mask=inside) * 2, mask=inside)

each = [torch.ones(n, device=device) for n in (50, 60, 70)]
pointers = torch.tensor([x.data_ptr() for x in each], device=device)
sizes = torch.tensor([len(x) for x in each], device=device)
scale[(3,)](pointers, sizes, BLOCK=128)
assert all((x == 2).all() for x in each)
""",
    (
        Bug("sizes of another group", "len(x) for x in each]", "70 for x in each]",
            "out of bounds", told="triton-lang/triton, tutorial 08"),
        Bug("a program without an address", "scale[(3,)]", "scale[(4,)]", "out of bounds",
            told="triton-lang/triton, tutorial 08"),
        Bug("one tensor twice", "data_ptr() for x in each]", "data_ptr() for x in each[:1] * 3]",
            "out of bounds", told="triton-lang/triton, tutorial 08"),
    ),
)  # fmt: skip

SHIFT = Program(
    "a shift by one",
    """
@triton.jit
def shift(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n - 1)
    tl.store(out + at + 1, v, mask=at < n - 1)

x = torch.randn(500, device=device)
out = x.clone()
shift[(4,)](x, out, 500, BLOCK=128)
assert torch.equal(out.cpu()[1:], x.cpu()[:-1])
""",
    (
        Bug("the copy is left out", "out = x.clone()", "out = x", "race",
            told="pytorch/pytorch#197829"),
        Bug("to the end of both", "    tl.store(out + at + 1, v, mask=at < n - 1)",
            "    tl.store(out + at + 1, v, mask=at < n)", "out of bounds", told=TTSEM),
    ),
)  # fmt: skip

AGAIN = Program(
    "a tile that is stored and read again upside down",
    """
@triton.jit
def again(x, t, out, N: tl.constexpr):
    i, j = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    tl.store(t + i * N + j, tl.load(x + i * N + j) * 2)
    tl.debug_barrier()
    tl.store(out + i * N + j, tl.load(t + (N - 1 - i) * N + j))

x = torch.randn(32, 32, device=device)
t, out = torch.empty(32, 32, device=device), torch.empty(32, 32, device=device)
again[(1,)](x, t, out, N=32)
assert torch.equal(out.cpu(), 2 * x.cpu().flip(0))
""",
    (
        Bug("no barrier between them", "    tl.debug_barrier()\n", "", "race",
            told="fla-org/flash-linear-attention, hgrn/chunk.py"),
        Bug("half of it is stored", "tl.store(t + i * N + j, tl.load(x + i * N + j) * 2)",
            "tl.store(t + i * N + j, tl.load(x + i * N + j) * 2, mask=i < 16)", "unwritten",
            told="fla-org/flash-linear-attention, gla/chunk.py"),
    ),
)  # fmt: skip

CHAIN = Program(
    "sums handed from program to program",
    """
@triton.jit
def chain(x, sums, flags, out):
    me = tl.program_id(0)
    s = tl.load(x + me)
    if me > 0:
        while tl.atomic_add(flags + me - 1, 0, sem="acquire") == 0:
            pass
        s += tl.load(sums + me - 1)
    tl.store(sums + me, s)
    tl.debug_barrier()
    tl.atomic_xchg(flags + me, 1, sem="release")
    tl.store(out + me, s)

x = torch.arange(1, 17, device=device)
sums, out = torch.empty_like(x), torch.empty_like(x)
flags = torch.zeros(16, dtype=torch.int32, device=device)
chain[(16,)](x, sums, flags, out)
assert out.tolist() == x.cumsum(0).tolist()
""",
    (
        Bug("the flag before the sum",
            "    tl.store(sums + me, s)\n    tl.debug_barrier()\n"
            '    tl.atomic_xchg(flags + me, 1, sem="release")',
            '    tl.atomic_xchg(flags + me, 1, sem="release")\n    tl.debug_barrier()\n'
            "    tl.store(sums + me, s)", "race", told="NVIDIA/cub, decoupled look-back"),
        Bug("the flag without order", 'sem="release"', 'sem="relaxed"', "race",
            told="triton-lang/triton, tl.atomic_add"),
        Bug("waits for its own flag", "flags + me - 1, 0", "flags + me, 0", "deadlock",
            told="NVIDIA/cub, decoupled look-back"),
        Bug("no wait", '        while tl.atomic_add(flags + me - 1, 0, sem="acquire") == 0:\n'
            "            pass\n", "", "unwritten", told="NVIDIA/cub, decoupled look-back"),
    ),
)  # fmt: skip

PAGES = Program(
    "pages found by a table, scattered",
    """
@triton.jit
def gather(pages, table, out, to, P: tl.constexpr):
    at = tl.arange(0, P)
    page = tl.load(table + tl.program_id(0))
    row = tl.load(to + tl.program_id(0))
    tl.store(out + row * P + at, tl.load(pages + page * P + at))

pages, out = torch.randn(5, 32, device=device), torch.zeros(4, 32, device=device)
table, to = torch.tensor([4, 0, 2, 1], device=device), torch.tensor([3, 1, 0, 2], device=device)
gather[(4,)](pages, table, out, to, P=32)
assert torch.equal(out.cpu()[to.cpu()], pages.cpu()[table.cpu()])
""",
    (
        Bug("a page that is not there", "[4, 0, 2, 1]", "[5, 0, 2, 1]", "out of bounds",
            told="ROCm/aiter, unified attention"),
        Bug("the padding of the table", "[4, 0, 2, 1]", "[4, 0, 2, -1]", "out of bounds",
            told="ROCm/aiter, unified attention"),
        Bug("two programs with one place", "[3, 1, 0, 2]", "[3, 1, 0, 1]", "race", told=TTSEM),
    ),
)  # fmt: skip

TOLD_TRITON = (
    ADD, SOFTMAX, TOTAL, PRODUCT, LOCKED, FAR, POINTERS, SHIFT, AGAIN, CHAIN, PAGES,
)  # fmt: skip
