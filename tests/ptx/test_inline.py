"""CUDA sources that PyTorch's ``load_inline`` compiles: their two sides, and what they launch."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import cpp_extension

from attnverify import ptx
from attnverify.ptx.launchers.sources.inline import in_compilers_words, inline_on_machine
from attnverify.ptx.launchers.torch_cuda import pretended_cuda
from attnverify.ptx.text.two_sides import device_side, host_side

CUDA = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>
#include <c10/cuda/CUDAGuard.h>
#include <ATen/cuda/CUDAContext.h>
#include <vector>
#define CHECK_INPUT(x) TORCH_CHECK(x.is_cuda(), #x " must be on a GPU")
constexpr int THREADS = 128;  // of both sides
/* __global__ void nothing() {} */
namespace kernels {
template <typename scalar_t, int EACH>
__global__ void __launch_bounds__(THREADS)
add(const scalar_t* __restrict__ a, const scalar_t* __restrict__ b, scalar_t* out, int64_t n) {
    for (int k = 0; k < EACH; k++) {
        int64_t i = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) * EACH + k;
        if (i < n) out[i] = a[i] + b[i];
    }
}
}  // namespace kernels

__device__ __forceinline__ float twice(float x) { return 2.f * x; }

__global__ void reversed(float* x, float by) {
    __shared__ float row[THREADS];
    extern __shared__ float unused[];
    row[threadIdx.x] = twice(x[blockIdx.x * THREADS + threadIdx.x]);
    __syncthreads();
    x[blockIdx.x * THREADS + threadIdx.x] = row[THREADS - 1 - threadIdx.x] * by;
}

__global__ void unordered(float* x) {
    __shared__ float row[THREADS];
    row[threadIdx.x] = x[threadIdx.x];
    x[threadIdx.x] = row[THREADS - 1 - threadIdx.x];  // no barrier
}

__global__ void negate(const torch::PackedTensorAccessor32<float, 2, torch::RestrictPtrTraits> x,
                       torch::PackedTensorAccessor32<float, 2> out) {
    int row = blockIdx.x, column = threadIdx.x;
    if (column < x.size(1)) out[row][column] = -x[row][column];
}
torch::Tensor negated(torch::Tensor x) {
    auto out = torch::empty({x.size(0), x.size(1)}, x.options());
    negate<<<x.size(0), THREADS>>>(x.packed_accessor32<float, 2, torch::RestrictPtrTraits>(),
                                   out.packed_accessor32<float, 2>());
    return out;
}

static inline int blocks_of(int64_t n, int each) { return (n + each - 1) / each; }

torch::Tensor add(torch::Tensor a, torch::Tensor b) {
    CHECK_INPUT(a);
    const at::cuda::OptionalCUDAGuard guard(a.device());
    cudaStream_t stream = at::cuda::getCurrentCUDAStream();
    auto out = torch::empty({a.numel()}, a.options().device(torch::kCUDA)).view_as(a);
    AT_DISPATCH_FLOATING_TYPES_AND_HALF(a.scalar_type(), "add, <<<", ([&] {
        kernels::add<scalar_t, 2><<<blocks_of(a.numel(), 2 * THREADS), THREADS, 0, stream>>>(
            a.data_ptr<scalar_t>(), b.data_ptr<scalar_t>(), out.data_ptr<scalar_t>(), a.numel());
    }));
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}
torch::Tensor reverse(torch::Tensor x) {
    auto out = x.clone();
    dim3 grid(x.numel() / THREADS);
    reversed<<<grid, THREADS, 512>>>(out.data_ptr<float>(), 0.5);
    return out;
}
void disorder(torch::Tensor x) { unordered<<<1, THREADS>>>(x.data_ptr<float>()); }
"""
CPP = (
    "torch::Tensor add(torch::Tensor a, torch::Tensor b); torch::Tensor reverse(torch::Tensor x); "
    "void disorder(torch::Tensor x); torch::Tensor negated(torch::Tensor x);"
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The extension, on the machine as long as its tests last: to build it takes half a minute."""
    folder = tmp_path_factory.mktemp("built")
    with pretended_cuda(), inline_on_machine():
        yield cpp_extension.load_inline(
            "inline_on_machine_tests",
            CPP,
            CUDA,
            ["add", "reverse", "disorder", "negated"],
            build_directory=str(folder),
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_a_template_is_launched_with_the_type_of_its_tensors(
    built: Any, dtype: torch.dtype
) -> None:
    a, b = torch.randn(2, 3, 333, device="cuda").to(dtype)
    assert torch.equal(built.add(a, b), a + b)


def test_shared_memory_and_numbers_arrive(built: Any) -> None:
    x = torch.randn(256)
    assert torch.equal(built.reverse(x), x.view(2, 128).flip(1).flatten())


def test_accessors_of_a_tensor_have_its_strides(built: Any) -> None:
    x = torch.randn(9, 5).T
    assert torch.equal(built.negated(x), -x)


def test_a_finding_names_the_line_in_the_python_file(built: Any) -> None:
    with pytest.raises(ptx.Finding, match="race") as told:
        built.disorder(torch.randn(128))
    assert told.value.place is not None and told.value.place.source is not None
    lines = Path(told.value.place.source.file).read_text().splitlines()
    assert "// no barrier" in lines[told.value.place.source.line - 1]


def test_a_type_that_the_launcher_does_not_take_is_refused_by_name(built: Any) -> None:
    with pytest.raises(NotImplementedError, match="expected scalar type Float but found Double"):
        built.reverse(torch.randn(256, dtype=torch.float64))


def test_a_launch_that_a_gpu_would_not_begin_is_told(built: Any) -> None:
    with pytest.raises(ValueError, match="grid: wanted one to three positive whole numbers"):
        built.add(torch.randn(0), torch.randn(0))


def test_nothing_stays_behind(built: Any) -> None:
    own = cpp_extension.load_inline
    with inline_on_machine():
        assert cpp_extension.load_inline is not own
    assert cpp_extension.load_inline is own


def test_an_error_of_the_compiler_is_told_in_its_words() -> None:
    told = RuntimeError(
        "Error building extension 'add'\n[1/2] c++ ...\nadd.py:7:3: error: no dim3\n"
    )
    assert str(in_compilers_words(told)) == (
        "cuda_sources: C++ does not compile it: add.py:7:3: error: no dim3"
    )
    assert str(in_compilers_words(RuntimeError("Ninja is required"))) == "Ninja is required"


# the two sides


def test_each_side_keeps_its_lines_where_they_were() -> None:
    for side in (host_side(CUDA), device_side(CUDA)):
        assert side.count("\n") == CUDA.count("\n")


def test_the_device_is_given_kernels_and_what_they_use() -> None:
    side = device_side(CUDA)
    kept = (
        "namespace kernels {",
        "void __launch_bounds__(THREADS)",
        "float twice",
        "THREADS = 128",
    )
    assert [x for x in kept if x not in side] == []
    left_out = ("torch/extension.h", "blocks_of", "torch::Tensor ", "<vector>", "<<<", "nothing()")
    assert [x for x in left_out if x in side] == []


def test_the_host_is_given_launchers_and_kernels_by_name() -> None:
    side = host_side(CUDA)
    asked = 'launch("kernels::add", {::machine::spelled<scalar_t>(), ::machine::spelled<EACH>()}'
    kept = (
        asked,
        "(::machine::configure(grid, THREADS, 512), reversed(out.data_ptr<float>(), 0.5))",
    )
    assert [x for x in kept if x not in side] == []
    assert [
        x for x in ("__shared__", "float twice", "cuda_runtime", "nothing()") if x in side
    ] == []


@pytest.mark.parametrize(
    ("source", "host", "device"),
    [
        ("struct Pair { float x, y; };", True, True),
        (
            "template <class T> struct Row { T x[4]; __device__ T sum() { return x[0]; } };",
            True,
            True,
        ),
        ("using vector = std::vector<int>;", True, False),
        ("__constant__ float table[2] = {1.f, 2.f};", False, True),
        ("__host__ __device__ inline int up(int x) { return x + 1; }", True, True),
        ("int count(std::vector<int> x) { return x.size(); }", True, False),
        ('PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("add", &add); }', True, False),
        ("#include <cuda_fp16.h>", False, True),
        ("#include <math.h>", True, True),
        ("#include <algorithm>", True, False),
        ("#define TILE(x) \\\n  ((x) * 32)", True, True),
        ("__device__ int2 both(int2 x) { return x; }", False, True),
    ],
)
def test_a_declaration_stands_where_it_belongs(source: str, host: bool, device: bool) -> None:
    assert bool(host_side(source).strip()) == host
    assert bool(device_side(source).strip()) == device


def test_a_bracket_that_is_never_closed_is_told() -> None:
    with pytest.raises(ValueError, match=r"cuda_sources: wanted a '}' for each '{', got none"):
        host_side("void f() { if (x) {")
