"""
Triton, NVRTC, CuPy and PyTorch with the machine behind them: parameters as they are launched,
findings with source lines, nothing left.
"""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend
from triton.tools.tensor_descriptor import TensorDescriptor

from attnverify import ptx
from attnverify.ptx.launchers import cuda, nvrtc
from attnverify.ptx.launchers.cupy import RawModule, as_cupy
from attnverify.ptx.launchers.torch_cuda import pretended_cuda
from attnverify.ptx.launchers.triton import flatten_descriptor, name_own_file, on_machine
from tests.support.roundings import count_roundings

HERE = Path(__file__)


@pytest.fixture(autouse=True)
def caches(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """One folder for all tests of a run: what is compiled once is not compiled again."""
    folder = tmp_path_factory.getbasetemp() / "compiled"
    monkeypatch.setenv("TRITON_CACHE_DIR", str(folder / "triton"))
    monkeypatch.setenv("ATTNVERIFY_CACHE_DIR", str(folder / "nvrtc"))


# Triton


@triton.jit
def add(X, Y, Z, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(Z + at, tl.load(X + at, mask=inside) + tl.load(Y + at, mask=inside), mask=inside)


@triton.jit
def add_everywhere(X, Y, Z, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(Z + at, tl.load(X + at) + tl.load(Y + at), mask=at < n)


@triton.jit
def count(X, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(X + at, at + tl.load(X + at))


@triton.jit
def matmul(A, B, C, strides, SIZE: tl.constexpr):
    i, j = tl.arange(0, SIZE)[:, None], tl.arange(0, SIZE)[None, :]
    a, b = tl.load(A + i * strides[0] + j), tl.load(B + i * strides[0] + j)
    tl.store(C + i * strides[0] + j, tl.dot(a, b, input_precision="ieee"))


@triton.jit
def scaled(X, factor, half, flag, Z, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(X + at) * factor + half
    tl.store(Z + at, tl.where(flag, x, -x))


@pytest.mark.parametrize("target", [80, 90])
def test_a_kernel_is_compiled_and_executed(target: int) -> None:
    x, y, z = torch.randn(1000), torch.randn(1000), torch.full((1000,), torch.nan)
    with on_machine(target) as machine:
        add[(8,)](x, y, z, 1000, BLOCK=128)
    assert torch.equal(z, x + y)
    (launch,) = machine.launches
    assert (
        (launch.kernel, launch.grid) == ("add", (8, 1, 1))
        and launch.steps > 10
        and launch.seconds > 0
    )


@pytest.mark.parametrize(
    ("target", "dtype"),
    [(80, torch.float16), (90, torch.bfloat16), (90, torch.float32), (90, torch.float16)],
)
def test_products_of_matrices_take_tensor_cores(target: int, dtype: torch.dtype) -> None:
    a, b, c = torch.randn(64, 64).to(dtype), torch.randn(64, 64).to(dtype), torch.empty(64, 64)
    with on_machine(target):
        matmul[(1,)](a, b, c, (64, 1), SIZE=64)
    assert (c.double() - a.double() @ b.double()).abs().max() < 2e-5


def test_arguments_arrive_as_they_are_typed() -> None:
    x, z = torch.randn(32), torch.empty(32)
    with on_machine(90):
        scaled[(1,)](x, 2.5, 3, True, z, BLOCK=32)
    assert count_roundings(z, x * 2.5 + 3) <= 2


def test_a_finding_names_the_line_of_the_source() -> None:
    x, y, z = torch.randn(1000), torch.randn(1000), torch.empty(1000)
    with on_machine(90), pytest.raises(ptx.Finding) as raised:
        add_everywhere[(8,)](x, y, z, 1000, BLOCK=128)
    assert raised.value.kind == "out of bounds" and raised.value.place.source is not None
    line = next(
        n
        for n, text in enumerate(HERE.read_text().splitlines(), 1)
        if "tl.load(X + at) + tl.load(Y + at), mask" in text
    )
    assert (Path(raised.value.place.source.file).name, raised.value.place.source.line) == (
        HERE.name,
        line,
    )


def test_programs_that_write_one_place_race() -> None:
    x = torch.zeros(64, dtype=torch.int32)
    with on_machine(90):
        count[(1,)](x, 64, BLOCK=64)
        with pytest.raises(ptx.Finding, match="race"):
            count[(2,)](x, 64, BLOCK=64)
    with on_machine(90, races=False):
        count[(2,)](x, 64, BLOCK=64)


def test_views_of_one_storage_share_its_memory() -> None:
    x = torch.arange(200, dtype=torch.float32)
    expected = x.clone()
    expected[100:] += expected[:100]
    with on_machine(90):
        add[(1,)](x[:100], x[100:], x[100:], 100, BLOCK=128)
    assert torch.equal(x, expected)


def test_nothing_stays_behind() -> None:
    config, tuner = triton.runtime.driver, triton.runtime.autotuner.Autotuner.run
    before = config._active
    with pytest.raises(RuntimeError, match="inside"), on_machine(90):
        assert config._active is not before
        raise RuntimeError("inside")
    assert config._active is before and triton.runtime.autotuner.Autotuner.run is tuner
    assert all(device >= 10_000 for device in add.device_caches)


TRIED: list[int] = []


INLINE = """.version 8.0
.target sm_80
.file 1 "kernel.py"
.visible .entry k() {
.reg .b32 %r;
.loc 1 7 2
// begin inline asm
.loc 1 7 2
mov.u32 %r, 0;
.loc 1 8 2, function_name $L, inlined_at 1 5 3
mov.u32 %r, 1;
// end inline asm
.loc 1 9 2
ret;
}"""


def test_inline_assembly_has_the_line_of_its_statement() -> None:
    """Triton 3.9 counts its lines as lines of the file."""
    sources = [each.source for each in ptx.load(INLINE)["k"].program.instructions]
    assert [source.line for source in sources if source] == [7, 7, 9]


@pytest.mark.parametrize(("more", "count"), [({}, 10), ({"round_f32_to_tf32": True}, 11)])
def test_a_descriptor_is_handed_over_as_triton_3_6_and_3_9_do(
    more: dict[str, bool], count: int
) -> None:
    given = SimpleNamespace(base=None, shape=[4, 8], strides=[8, 1], padding="zero", **more)
    parts = list(flatten_descriptor(given, "tensordesc<fp16[16, 32]>", "x"))
    assert [kind for _, kind, _ in parts].count("i1") == count - 9 and len(parts) == count


def with_configs(*sizes: int, **given: Any) -> Any:
    configs = [triton.Config({"BLOCK": size}, num_warps=4) for size in sizes]
    return triton.autotune(configs=configs, key=["n"], **given)(add)


@pytest.mark.parametrize(("policy", "block"), [("first", 64), ("last", 256), (1, 128), (4, 128)])
def test_a_policy_picks_a_configuration_and_nothing_is_timed(policy: str | int, block: int) -> None:
    x, y, z = torch.randn(300), torch.randn(300), torch.empty(300)
    tuned = with_configs(64, 128, 256)
    with on_machine(90, autotune=policy) as machine:
        tuned[lambda meta: (triton.cdiv(300, meta["BLOCK"]),)](x, y, z, 300)
    assert torch.equal(z, x + y) and [launch.grid[0] for launch in machine.launches] == [
        -(-300 // block)
    ]
    assert tuned.best_config.kwargs == {"BLOCK": block}


@triton.jit
def transposed(X, Z, SIZE: tl.constexpr):
    i, j = tl.arange(0, SIZE)[:, None], tl.arange(0, SIZE)[None, :]
    x = tl.load(X + i * SIZE + j)
    tl.store(Z + i * SIZE + j, tl.dot(x, tl.trans(x)).to(tl.float16))


def test_configurations_that_do_not_fit_are_passed_over() -> None:
    configs = [triton.Config({"SIZE": 256}, num_warps=8), triton.Config({"SIZE": 32}, num_warps=4)]
    tuned = triton.autotune(configs=configs, key=[])(transposed)
    x, z = torch.ones(256, 256, dtype=torch.float16), torch.zeros(256, 256, dtype=torch.float16)
    with on_machine(86):  # 99 KiB of shared memory
        tuned[(1,)](x, z)
    assert tuned.best_config.kwargs == {"SIZE": 32} and z.flatten()[0] == 32


def test_heuristics_are_asked() -> None:
    x, y, z = torch.randn(70), torch.randn(70), torch.empty(70)
    chosen = triton.heuristics({"BLOCK": lambda given: 128 if given["n"] > 64 else 64})(add)
    with on_machine(90) as machine:
        chosen[(1,)](x, y, z, 70)
    assert torch.equal(z, x + y) and len(machine.launches) == 1


@triton.jit
def doubled_by_descriptors(X, Z, N, M, BLOCK: tl.constexpr):
    x = tl.make_tensor_descriptor(X, [N, M], [M, 1], [BLOCK, 32])
    z = tl.make_tensor_descriptor(Z, [N, M], [M, 1], [BLOCK, 32])
    at = tl.program_id(0) * BLOCK
    z.store([at, 0], x.load([at, 0]) * 2)


@triton.jit
def doubled_by_given_descriptors(x, z, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK
    z.store([at, 0], x.load([at, 0]) * 2)


def described(x: torch.Tensor) -> TensorDescriptor:
    return TensorDescriptor(x, [40, 32], [32, 1], [16, 32])


@pytest.mark.parametrize("target", [80, 90])
def test_tensor_descriptors_are_executed_with_and_without_tma(target: int) -> None:
    x, y, z = torch.randn(40, 32), *(torch.full((40, 32), torch.nan) for _ in range(2))
    with on_machine(target):
        doubled_by_descriptors[(3,)](x, y, 40, 32, BLOCK=16)
        doubled_by_given_descriptors[(3,)](described(x), described(z), BLOCK=16)
    assert torch.equal(y, 2 * x) and torch.equal(z, 2 * x)


def test_bad_settings_are_named() -> None:
    with (
        pytest.raises(ValueError, match="target: wanted one of 80, 86, 89, 90, got 75"),
        on_machine(75),
    ):
        pass
    with pytest.raises(ValueError, match="autotune: wanted"), on_machine(90, autotune="best"):
        pass


def test_a_benchmark_runs_its_kernel_once() -> None:
    with on_machine(90) as machine:
        ran = []
        assert machine.get_benchmarker()(lambda: ran.append(1), quantiles=(0.5, 0.2)) == [0.0, 0.0]
        properties = triton.runtime.driver.active.utils.get_device_properties(0)
    assert ran == [1] and properties["max_shared_mem"] == 232448


# CUDA C++

SOURCE = r"""
#ifndef SCALE
#define SCALE 2
#endif
extern "C" __global__ void scale(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = SCALE * x[i];
}
struct Pair { const float* x; float* y; int n; };
extern "C" __global__ void by_struct(Pair p) {
    int i = threadIdx.x;
    if (i < p.n) p.y[i] = p.x[i] + 1;
}
extern "C" __global__ void reversed(float* x) {
    __shared__ float kept[128];
    kept[threadIdx.x] = x[threadIdx.x];
#ifdef CAREFUL
    __syncthreads();
#endif
    x[threadIdx.x] = kept[127 - threadIdx.x];
}
template <typename T, int N> __global__ void fill(T* x) {
    if (threadIdx.x < N) x[threadIdx.x] = T(N);
    }
extern "C" __global__ void tiny(float* x) { x[0] = x[1] * 0.5f; }
"""


@pytest.mark.parametrize(("target", "options", "factor"), [(80, (), 2), (90, ("-DSCALE=3",), 3)])
def test_a_source_is_compiled_with_its_options(
    target: int, options: tuple[str, ...], factor: int
) -> None:
    x, y = np.arange(100, dtype=np.float32), np.zeros(100, np.float32)
    nvrtc.compile_source(SOURCE, options, target)["scale"].launch(1, 128, [x, y, 100])
    assert np.array_equal(y, factor * x)


def test_pointers_inside_of_structs_are_those_of_the_device() -> None:
    x, y = np.arange(50, dtype=np.float32), np.zeros((2, 50), np.float32)
    struct = np.array([x.ctypes.data, y[1].ctypes.data, 50], np.int64).tobytes()
    cuda.launch(nvrtc.compile_source(SOURCE)["by_struct"], 1, 64, [struct], arrays=[x, y])
    assert np.array_equal(y, [np.zeros(50), x + 1])


def test_a_race_in_cuda_names_its_line() -> None:
    x = np.arange(128, dtype=np.float32)
    nvrtc.compile_source(SOURCE, ("-DCAREFUL",))["reversed"].launch(1, 128, [x])
    assert np.array_equal(x, np.arange(128)[::-1])
    with pytest.raises(ptx.Finding, match="race") as raised:
        nvrtc.compile_source(SOURCE)["reversed"].launch(1, 128, [x])
    line = next(n for n, text in enumerate(SOURCE.splitlines(), 1) if "kept[127" in text)
    assert raised.value.place.source is not None and raised.value.place.source.line == line


def test_errors_of_the_compiler_are_told() -> None:
    with pytest.raises(ValueError, match=r"source: NVRTC does not compile it:(.|\n)*undefined"):
        nvrtc.compile_source("__global__ void k() { undefined(); }")


def test_what_was_compiled_once_is_read_from_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    nvrtc.compile_source(SOURCE, names=("fill<int, 3>",))
    nvrtc.compile_text.cache_clear()
    monkeypatch.setattr(nvrtc, "compile_now", lambda *given: pytest.fail("compiled again"))
    x = np.zeros(4, np.int32)
    nvrtc.compile_source(SOURCE, names=("fill<int, 3>",))["fill<int, 3>"].launch(1, 4, [x])
    assert list(x) == [3, 3, 3, 0]


# CuPy

CUPY_FILE = '''
import cupy as cp
import numpy as np

CODE = r"""{code}"""
module = cp.RawModule(code=CODE, options=("-std=c++17",), name_expressions=["fill<float, 5>"])
scale = cp.RawKernel(CODE, "scale")


def doubled(x):
    x = cp.asarray(x)
    y = cp.empty_like(x)
    scale(((x.size + 63) // 64,), (64,), (x, y, np.int32(x.size)))
    return y


def halved(x):
    x = cp.array(x)
    module.get_function("tiny")((1,), (1,), (x.data.ptr,))
    cp.cuda.Stream.null.synchronize()
    return cp.asnumpy(x)


def filled():
    x = cp.zeros(8, dtype=cp.float32)
    module.get_function("fill<float, 5>")((1,), (8,), (x,))
    return x.get()
'''


@pytest.fixture
def cupy_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "strange_cupy_kernels.py").write_text(CUPY_FILE.replace("{code}", SOURCE))
    monkeypatch.syspath_prepend(tmp_path)
    with as_cupy(90) as machine:
        import strange_cupy_kernels  # type: ignore[import-not-found]

        yield machine, strange_cupy_kernels
    del sys.modules["strange_cupy_kernels"]


def test_a_file_that_uses_cupy_runs_on_the_machine(cupy_file: Any) -> None:
    machine, kernels = cupy_file
    x = np.arange(100, dtype=np.float32)
    y = kernels.doubled(x)
    assert np.array_equal(y.get(), 2 * x) and type(y.get()) is np.ndarray
    assert list(kernels.filled()) == [5] * 5 + [0] * 3
    assert [name for name, _ in machine.launches] == ["scale", "fill<float, 5>"]


def compile_half(path: Path, by: str) -> Any:
    """A kernel as a file compiles it that chooses the options itself."""
    import cupy
    from cupy.cuda import nvrtc

    source = f'extern "C" __global__ void half(float *x, float by) {{ x[threadIdx.x] *= {by}; }}'
    program = nvrtc.createProgram(source, "half.cu", [], [])
    nvrtc.compileProgram(program, ["-arch=sm_90"])
    path.write_bytes(nvrtc.getCUBIN(program))
    return cupy.RawModule(path=str(path)).get_function("half")


def test_a_file_that_compiles_for_itself_has_its_own_options(tmp_path: Path) -> None:
    """No -ftz=true of CuPy's: a subnormal number stays. A number of the host goes by value."""
    with as_cupy(90):
        import cupy

        x = cupy.array([2.0**-130, 8], "float32")
        half = compile_half(tmp_path / "half.bin", "by")
        half((1,), (2,), (x, np.array([0.5], "float32")))
    assert x.tolist() == [2.0**-131, 4]


def test_a_file_that_compiles_for_itself_is_told_what_is_wrong(tmp_path: Path) -> None:
    with as_cupy(90), pytest.raises(RuntimeError, match="bye"):
        compile_half(tmp_path / "half.bin", "bye")


def test_a_real_binary_cannot_be_executed(tmp_path: Path) -> None:
    (path := tmp_path / "real.cubin").write_bytes(b"\x7fELF")
    with as_cupy(90) as machine, pytest.raises(NotImplementedError, match="compiled binary"):
        RawModule(machine, path=str(path))


def test_subnormal_numbers_are_flushed_as_cupy_compiles(cupy_file: Any) -> None:
    assert cupy_file[1].halved(np.array([0, 1e-38], np.float32))[0] == 0
    x = np.array([0, 1e-38], np.float32)
    nvrtc.compile_source(SOURCE)["tiny"].launch(1, 1, [x])
    assert x[0] > 0


def test_cupy_answers_what_files_ask_and_refuses_the_rest(tmp_path: Path) -> None:
    binary = tmp_path / "kernel.cubin"
    binary.write_bytes(b"\x7fELF")
    with as_cupy(80):
        import cupy as cp

        assert cp.get_array_module(cp.ones(3)) is cp and cp.get_array_module(np.ones(3)) is np
        assert (
            cp.cuda.runtime.getDeviceProperties(0)["major"] == 8
            and cp.cuda.Device().compute_capability == "80"
        )
        assert isinstance(cp.random.standard_normal(3) + 1, cp.ndarray) and isinstance(
            cp.ones((3, 2)).sum(0), cp.ndarray
        )
        with pytest.raises(NotImplementedError, match="ElementwiseKernel"):
            cp.ElementwiseKernel("T x", "T y", "y = x", "copy")
        with pytest.raises(NotImplementedError, match="give code="):
            cp.RawModule(path=str(binary))


def test_cupy_is_afterwards_what_it_was() -> None:
    before = sys.modules.get("cupy")
    with as_cupy():
        assert sys.modules["cupy"] is not before
    assert sys.modules.get("cupy") is before and sys.modules.get("cupy.cuda") is getattr(
        before, "cuda", None
    )


# PyTorch


def test_a_file_that_wants_a_gpu_of_pytorch_gets_the_machine() -> None:
    with pretended_cuda(90), on_machine(90):
        assert torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
        x = torch.randn(100, device="cuda")
        y = torch.ones(100).cuda().to("cuda:0")
        z = torch.empty_like(x, device=x.device)
        assert x.is_cuda and x.device.type == "cuda" and z.device == x.device
        with torch.cuda.device(x.device):
            add[(1,)](x, y, z, 100, BLOCK=128)
        torch.cuda.synchronize()
    assert z.device.type == "cpu" and torch.equal(z, x + 1) and not z.is_cuda


def test_the_body_of_an_operator_finds_the_gpu_too() -> None:
    with pretended_cuda(90):

        @torch.library.custom_op("attnverify_tests::where", mutates_args=())
        def where(x: torch.Tensor) -> torch.Tensor:
            inside.append((x.is_cuda, torch.zeros(1, device=x.device).device.type))
            return x.clone()

        inside: list[tuple[bool, str]] = []
        where(torch.ones(2))
    where(torch.ones(2))
    assert inside == [(True, "cuda"), (False, "cpu")]


class Doubled(torch.autograd.Function):
    """Asks for a GPU on the way back too, as flash-attention does."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, d: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        assert d.is_cuda and torch.empty(1, device="cuda").is_cuda
        return 2 * d


def test_a_backward_pass_finds_the_gpu() -> None:
    x = torch.ones(3, requires_grad=True)
    with pretended_cuda(90):
        (gradient,) = torch.autograd.grad(Doubled.apply(x).sum(), x)
    assert gradient.tolist() == [2, 2, 2]
    with pytest.raises(AssertionError):
        Doubled.apply(x).sum().backward()


def test_pytorch_is_afterwards_what_it_was() -> None:
    before = {name: getattr(torch.cuda, name) for name in dir(torch.cuda)}
    with pytest.raises(RuntimeError, match="inside"), pretended_cuda(90):
        raise RuntimeError("inside")
    assert all(
        getattr(torch.cuda, name) is x for name, x in before.items() if not name.startswith("__")
    )


def test_the_machine_needs_numpy_alone() -> None:
    code = (
        "import sys; import attnverify.ptx; "
        "print([m for m in ('torch', 'triton', 'cupy', 'scipy', "
        "'hypothesis') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=HERE.parents[2],
    )
    assert done.stdout.strip() == "[]"


def test_what_the_machine_compiled_is_never_given_to_a_gpu() -> None:
    """Its binaries are none: Triton's cache keeps them under keys of their own."""
    backend = CUDABackend(GPUTarget("cuda", 90, 32))
    before = CUDABackend.hash, CUDABackend.make_cubin
    with on_machine(90):
        assert backend.hash() == "attnverify's machine-90"
    assert (CUDABackend.hash, CUDABackend.make_cubin) == before


def test_a_kernel_that_was_compiled_elsewhere_names_the_file_it_is_called_from() -> None:
    """Triton's cache keeps the PTX of a copy of the file that may be gone."""
    text = f'.file 1 "/gone/{HERE.name}"\n.file\t2 "/gone/other.py"\n.file 3 "{HERE}"\n'
    own = str(HERE)
    assert name_own_file(text, own) == text.replace(f"/gone/{HERE.name}", own)
