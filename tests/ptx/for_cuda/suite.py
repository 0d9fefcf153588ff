"""Written for device="cuda"."""

import cupy
import pytest
import torch
import triton
import triton.language as tl

DEVICE = torch.device("cuda")


@triton.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside), mask=inside)


@triton.jit
def softmax_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.load(x + tl.program_id(0) * n + at, mask=at < n, other=-float("inf"))
    row = tl.exp(row - tl.max(row, 0))
    tl.store(out + tl.program_id(0) * n + at, row / tl.sum(row, 0), mask=at < n)


@triton.jit
def wrong_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at) * 2.0, mask=at < n)


def add(x, y):
    out = torch.empty_like(x)
    add_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](
        x, y, out, x.numel(), BLOCK=64
    )
    return out


@pytest.mark.parametrize("size", [1, 63, 64, 1000])
def test_add(size):
    x, y = torch.rand(size, device="cuda"), torch.rand(size, device=DEVICE)
    torch.testing.assert_close(add(x, y), x + y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_softmax(dtype):
    x = torch.randn(7, 100).to("cuda", dtype)
    out = torch.empty_like(x)
    softmax_kernel[(7,)](x, out, 100, BLOCK=128)
    # each term is off by the rounding of its exponent and by 3 units more, the sum by 7 more
    wanted, unit = torch.softmax(x.double(), -1), 2.0**-24
    terms = 3 + 2 * (x.double().max(-1, keepdim=True).values - x.double())
    rounding = torch.finfo(dtype).eps / 2 * (wanted + torch.finfo(dtype).smallest_normal)
    assert (
        (out.double() - wanted).abs() <= wanted * (terms + terms.max() + 8) * unit + rounding
    ).all()


def test_where_things_are():
    x = torch.ones(3).cuda()
    assert x.is_cuda and x.device.type == "cuda" and x.get_device() == 0
    assert torch.cuda.is_available() and torch.cuda.mem_get_info()[0] > 0
    assert x.cpu().numpy().sum() == 3


def test_raw_kernel():
    source = r"""
    extern "C" __global__ void square(const float *x, float *y, int n) {
      int i = blockIdx.x * blockDim.x + threadIdx.x;
      if (i < n) y[i] = x[i] * x[i];
    }"""
    x = cupy.arange(100, dtype=cupy.float32)
    y = cupy.zeros_like(x)
    cupy.RawKernel(source, "square")((4,), (32,), (x, y, cupy.int32(100)))
    assert (y.get() == x.get() ** 2).all()


@triton.jit
def matmul_kernel(a, b, c, m, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    rows = tl.program_id(0) * M + tl.arange(0, M)
    columns = tl.program_id(1) * N + tl.arange(0, N)
    inner = tl.arange(0, K)
    total = tl.zeros((M, N), tl.float32)
    for start in range(0, k, K):
        at = start + inner
        left = tl.load(a + rows[:, None] * k + at, mask=(rows[:, None] < m) & (at < k), other=0.0)
        right = tl.load(
            b + at[:, None] * n + columns, mask=(at[:, None] < k) & (columns < n), other=0.0
        )
        total = tl.dot(left, right, total)
    inside = (rows[:, None] < m) & (columns < n)
    tl.store(c + rows[:, None] * n + columns, total, mask=inside)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_matmul(dtype):
    a, b = (torch.randint(-8, 8, shape, device="cuda").to(dtype) for shape in [(40, 70), (70, 50)])
    c = torch.empty(40, 50, device="cuda")
    grid = (triton.cdiv(40, 32), triton.cdiv(50, 32))
    matmul_kernel[grid](a, b, c, 40, 50, 70, 32, 32, 32)
    assert torch.equal(c, a.float() @ b.float())


@triton.jit
def count_kernel(x, bins, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(bins + tl.load(x + at, mask=at < n, other=0), 1, mask=at < n)


def test_histogram():
    x = torch.randint(0, 9, (500,), device="cuda")
    bins = torch.zeros(9, dtype=torch.int32, device="cuda")
    count_kernel[(4,)](x, bins, 500, BLOCK=128)
    assert torch.equal(bins, torch.bincount(x, minlength=9).int())


@triton.jit
def show_kernel(x):
    tl.device_print("seen", tl.load(x))


def test_printing(capsys):
    show_kernel[(1,)](torch.full((1,), 7, device="cuda"), num_warps=1)
    assert "seen: 7" in capsys.readouterr().out


def test_generator():
    made = [
        torch.rand(5, device="cuda", generator=torch.Generator(device="cuda").manual_seed(3))
        for _ in range(2)
    ]
    assert torch.equal(*made)


def test_autocast():
    layer, x = torch.nn.Linear(4, 4).cuda(), torch.ones(2, 4, device="cuda")
    with torch.autocast("cuda"):
        assert layer(x).dtype is torch.float16
    with torch.autocast(device_type="cuda", dtype=torch.bfloat16):
        assert layer(x).dtype is torch.bfloat16
    assert layer(x).dtype is torch.float32


def test_pinned_memory():
    x = torch.ones(3)
    assert not x.is_pinned() and x.pin_memory().is_pinned()
    assert torch.empty(3, pin_memory=True).to("cuda", non_blocking=True).is_cuda


def test_array_interface():
    x = torch.arange(6.0, device="cuda").reshape(2, 3)
    told = x.__cuda_array_interface__
    assert told["shape"] == (2, 3) and told["typestr"] == "<f4" and told["strides"] is None
    assert told["data"] == (x.data_ptr(), False)
    assert x.T.__cuda_array_interface__["strides"] == (4, 12)


def test_raw_module():
    source = r"""
    __device__ __noinline__ int twice(int x) { return 2 * x; }
    template <typename T> __global__ void fill(T *y, T value, int n) {
      for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = value + twice(i);
    }"""
    module = cupy.RawModule(code=source, name_expressions=["fill<int>"])
    y = cupy.zeros(100, dtype=cupy.int32)
    module.get_function("fill<int>")((1,), (32,), (y, cupy.int32(5), 100))
    assert (y.get() == 5 + 2 * cupy.arange(100).get()).all()


def test_streams_and_events():
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    x = torch.ones(5, device="cuda") * 2
    end.record()
    torch.cuda.synchronize()
    assert begin.elapsed_time(end) >= 0 and x.sum().item() == 10


def test_wrong_one():
    x = torch.rand(100, device="cuda")
    out = torch.empty_like(x)
    wrong_kernel[(2,)](x, out, 100, BLOCK=64)
