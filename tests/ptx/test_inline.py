"""CUDA sources that PyTorch's ``load_inline`` compiles: their two sides, and what they launch."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import cpp_extension

from attnverify import ptx
from attnverify.ptx.launchers.nvrtc import compile_source
from attnverify.ptx.launchers.sources.files import read_whole
from attnverify.ptx.launchers.sources.inline import (
    Builder,
    device_options,
    device_source,
    in_compilers_words,
    inline_on_machine,
)
from attnverify.ptx.launchers.tensors.sides import Sides
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
            functions=["add", "reverse", "disorder", "negated"],
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


def test_what_a_launcher_makes_goes_with_tensors_of_the_gpu(built: Any) -> None:
    with Sides():
        a, b = torch.ones(2, 5, device="cuda")
        assert torch.equal(built.add(a, b), a + b)


def test_a_tensor_of_the_host_is_an_illegal_access(built: Any) -> None:
    told = r"out of bounds: an illegal memory access: byte 0 of a tensor \[5\] on the CPU .*py:"
    with Sides():
        a, b = torch.ones(5, device="cuda"), torch.ones(5)
        with pytest.raises(ptx.Finding, match=told):
            built.add(a, b)
        assert torch.equal(built.add(a, b.pin_memory()).cpu(), a.cpu() + b)
        assert torch.equal(built.add(a, b.cuda()).cpu(), a.cpu() + b)


def test_a_launcher_is_told_where_a_tensor_lies(built: Any) -> None:
    with Sides():
        a, b = torch.ones(5, device="cuda"), torch.ones(5)
        for on_host in (b, b.pin_memory(), a.cpu()):
            with pytest.raises(RuntimeError, match="a must be on a GPU"):
                built.add(on_host, a)
        assert torch.equal(built.add(b.cuda(), a), a + a)


@pytest.mark.parametrize(
    ("asked", "written"),
    [
        ("x.is_cuda()", "::machine::on_gpu(x)"),
        ("!a.b[i].is_cpu()", "!::machine::on_host(a.b[i])"),
        ("x.device().is_cuda() && y.type().is_cuda()",
         "::machine::on_gpu(x) && ::machine::on_gpu(y)"),
        ("(x).is_cuda()", "::machine::on_gpu((x))"),
        ("f(x).is_cuda()", "f(x).is_cuda()"),
    ],
)  # fmt: skip
def test_where_a_tensor_lies_is_asked_of_the_machine(asked: str, written: str) -> None:
    source = "void f(torch::Tensor x) { TORCH_CHECK(%s); }"
    assert host_side(source % asked) == source % written


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
        ("static size_t workspace = 32 * 1024 * 1024;", True, False),
        ("extern cudaDeviceProp properties;", True, False),
        ("namespace cg = cooperative_groups;", True, True),
        ("static const float half = 0.5f;", True, True),
        ("extern __shared__ float kept[];", False, True),
        ("__host__ __device__ inline int up(int x) { return x + 1; }", True, True),
        ("int count(std::vector<int> x) { return x.size(); }", True, False),
        ('PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("add", &add); }', True, False),
        ("#include <cuda_fp16.h>", False, True),
        ("#include <cuda_profiler_api.h>", False, False),
        ("#include <helper_cuda.h>", False, False),
        ("#include <math.h>", True, True),
        ("#include <algorithm>", True, False),
        ("#define TILE(x) \\\n  ((x) * 32)", True, True),
        ("__device__ int2 both(int2 x) { return x; }", False, True),
        ("template <int N = 2> int twice(torch::Tensor x) { return N; }", True, False),
        ("template <int N = 2> __device__ int twice(int x) { return N * x; }", False, True),
        ("BIND(float, x)\n", True, False),
    ],
)
def test_a_declaration_stands_where_it_belongs(source: str, host: bool, device: bool) -> None:
    assert bool(host_side(source).strip()) == host
    assert bool(device_side(source).strip()) == device


def test_a_macro_may_stand_for_qualifiers() -> None:
    macros = "#define BOTH __host__ __device__ inline\n#define ONLY __device__ inline\n"
    source = (
        macros + "BOTH int up(int x) { return x + 1; }\nONLY float2 down(float2 x) { return x; }\n"
    )
    assert "int up" in device_side(source) and "float2 down" in device_side(source)
    assert "int up" in host_side(source) and "float2 down" not in host_side(source)


def test_a_template_with_defaults_ends_at_its_brace() -> None:
    """LeetCUDA's hgemm.cu: kernels whose templates have defaults, and launchers behind them."""
    source = """
template <const int M = 16, typename T = float>
__global__ void each(T *x, int n) { if (threadIdx.x < n) x[threadIdx.x] = M; }
void launcher(torch::Tensor x) { each<<<1, 32>>>(x.data_ptr<float>(), 3); }
const int table[] = {1, 2};
"""
    assert "launcher" not in device_side(source) and "table" in device_side(source)
    assert "(::machine::configure(1, 32), each(x.data_ptr<float>(), 3))" in host_side(source)


def test_a_launch_may_stand_in_a_macro() -> None:
    """As LeetCUDA binds its kernels: their names are put together."""
    source = """
#define BIND(type, name)                                \\
  void name##_##type(torch::Tensor x) {                 \\
    name##_##type##_kernel<<<2, 32>>>(x.data_ptr<type>()); \\
  }
__global__ void set_float_kernel(float *x) { x[0] = 1; }
BIND(float, set)
__global__ void set_int_kernel(int *x) { x[0] = 1; }
BIND(int, set)
"""
    launched = "(::machine::configure(2, 32), name##_##type##_kernel(x.data_ptr<type>()))"
    assert launched in host_side(source) and "<<<" not in host_side(source)
    side = device_side(source)
    assert side.count("__global__") == 2 and "BIND(int" not in side
    assert side.count("\n") == host_side(source).count("\n") == source.count("\n")


# files


def test_files_are_built_as_sources_in_python_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``load`` hands over texts with what they include, and the options of both compilers."""
    (tmp_path / "common").mkdir()
    (tmp_path / "common" / "up.cuh").write_text("#pragma once\n__device__ int up(int x);\n")
    (tmp_path / "k.cu").write_text('#include "up.cuh"\n__global__ void k(int *x) { *x = up(1); }\n')
    (tmp_path / "bind.cpp").write_text("void k_of(torch::Tensor x);\n")
    built: list[tuple[str, list[str], str, dict[str, Any]]] = []
    monkeypatch.setattr(Builder, "build", lambda self, *given: built.append(given))
    folder = str(tmp_path / "common")
    with inline_on_machine():
        names = [str(tmp_path / name) for name in ("k.cu", "bind.cpp")]
        cpp_extension.load("k", names, ["-O1"], ["--use_fast_math"], extra_include_paths=[folder])
    ((name, cpp, cuda, options),) = built
    assert name == "k" and "k_of" in cpp[0] and "int up(int x);" in cuda
    assert f'#line 2 "{tmp_path / "k.cu"}"\n__global__' in cuda
    assert options["extra_cflags"] == ["-O1"] and options["extra_include_paths"][0] == folder
    assert device_options(options)[:2] == ("-std=c++17", "--use_fast_math")
    assert f"-I{tmp_path}" in device_options(options)


def test_a_file_includes_what_lies_beside_it(tmp_path: Path) -> None:
    texts = {
        "a.cu": '#include <cuda_fp16.h>\n#include "b.cuh"\n  #include "b.cuh"\nint a;\n',
        "b.cuh": '#pragma once\n#include "c.cuh"\nint b;\n',
        "c.cuh": '#include "b.cuh"\n#include "nowhere.h"\nint c;\n',
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    whole = read_whole(tmp_path / "a.cu")
    assert "#pragma" not in whole and whole.count("#ifndef ONCE_") == 2
    assert "#include <cuda_fp16.h>" in whole and '#include "nowhere.h"' in whole
    line = 0
    seen = {}
    for text in whole.splitlines():
        line = int(text.split()[1]) if text.startswith("#line") else line + 1
        if text.startswith("int"):
            seen[text] = line - 1
    assert seen == {"int a;": 4, "int b;": 3, "int c;": 3}


def test_names_of_whole_numbers_that_the_host_has_are_known() -> None:
    """SGEMM_CUDA counts in ``uint``, which glibc defines for nvcc."""
    source = device_source("__global__ void k(uint *x) { ulong y = 7; x[0] = (ushort)y; }")
    x = np.zeros(1, np.uint32)
    compile_source(source, names=("k",))["k"].launch(1, 1, [x])
    assert x[0] == 7


def test_a_bracket_that_is_never_closed_is_told() -> None:
    with pytest.raises(ValueError, match=r"cuda_sources: wanted a '}' for each '{', got none"):
        host_side("void f() { if (x) {")
