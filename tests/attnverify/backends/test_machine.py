"""
Triton kernels and CUDA C++ of a user's own where there is no GPU: compiled for one, executed by the
PTX machine and judged.
"""

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from triton import Config, autotune, heuristics, jit

from attnverify.backends import modules
from attnverify.backends.implementation import Backend
from attnverify.backends.loader import load
from attnverify.backends.machine import Machine, find_machine
from attnverify.backends.modules import machine_of, place_of_code
from attnverify.device_assignment import MACHINE, show_device
from attnverify.inputs.recipe import Recipe
from attnverify.isolation.worker import describe_loaded
from attnverify.judge.case import case_of
from attnverify.judge.errors import Disagreement, Unsupported
from attnverify.judge.judging import judge
from attnverify.session import Verification
from attnverify.verdicts.tally import Options

SAMPLES = Path(__file__).parents[2] / "sample_backends" / "gpu"
CUDA, TRITON = SAMPLES / "cuda_softmax.py", SAMPLES / "triton_softmax.py"
RECIPE = Recipe(
    "softmax",
    {"N": 3, "M": 70},
    {"family": "normal", "seed": 1},
    {"pattern": "random", "axes": "N M", "form": "bool", "seed": 1},
)


@pytest.fixture(autouse=True)
def without_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    monkeypatch.setenv("ATTNVERIFY_CACHE_DIR", str(tmp_path / "nvrtc"))
    monkeypatch.setenv(MACHINE, "")
    monkeypatch.setenv("TRITON_INTERPRET", "0")


def changed(folder: Path, file: Path, old: str, new: str) -> Backend:
    """The sample with a fault in it."""
    text = file.read_text()
    assert old in text
    (folder / file.name).write_text(text.replace(old, new, 1))
    return load(str(folder / file.name))


def budget(backend: Backend, dtype: str, name: str = "softmax") -> float:
    (implementation,) = (each for each in backend.implementations if each.name == name)
    return judge(implementation, case_of(RECIPE, dtype)).budget


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_triton_kernel_is_judged(dtype: str) -> None:
    backend = load(str(TRITON))
    assert backend.device == "PTX sm_90a, machine"
    assert 0 < budget(backend, dtype) <= 1


def test_what_the_machine_cannot_see_is_told_beside_the_verdict() -> None:
    described = describe_loaded(load(str(TRITON)), [])
    (note,) = [note for note in described["notes"] if "does not see" in note]
    assert all(word in note for word in ("ptxas", "timing", "TMA", "syncwarp"))
    assert not any("does not see" in note for note in load("numpy_ref").notes)


def test_the_last_configuration_of_an_autotuned_kernel_is_an_implementation_of_its_own() -> None:
    assert 0 < budget(load(str(TRITON)), "float32", "softmax_last_config") <= 1


def test_a_fault_of_the_last_configuration_alone_is_seen_there(tmp_path: Path) -> None:
    backend = changed(tmp_path, TRITON, "found = e /", "found = (LANES < 8 or 1.01) * e /")
    assert budget(backend, "float32") <= 1
    with pytest.raises(Disagreement, match="bound"):
        budget(backend, "float32", "softmax_last_config")


def with_three_configurations(folder: Path) -> Backend:
    """The sample with one configuration more, between its two, and a fault in that one alone."""
    text = TRITON.read_text()
    for old, new in (
        ("num_warps=1), ", 'num_warps=1), triton.Config({"LANES": 2}, num_warps=1), '),
        ("found = e /", "found = (LANES != 2 or 1.01) * e /"),
    ):
        assert text.count(old) == 1
        text = text.replace(old, new)
    (folder / TRITON.name).write_text(text)
    return load(str(folder / TRITON.name))


def test_the_first_and_last_configurations_are_judged_in_quick_and_all_in_thorough(
    tmp_path: Path,
) -> None:
    backend = with_three_configurations(tmp_path)
    judged = {
        profile: {
            cell.implementation.name
            for cell in Verification([backend], (), (), Options(profile), []).cells(None)
        }
        for profile in ("quick", "thorough")
    }
    assert judged["quick"] == {"softmax", "softmax_last_config"}
    assert judged["thorough"] == judged["quick"] | {"softmax_config_2"}
    assert ("softmax", "config_2", True) in describe_loaded(backend, [])["implementations"]
    assert all(budget(backend, "float32", name) <= 1 for name in judged["quick"])
    with pytest.raises(Disagreement, match="bound"):
        budget(backend, "float32", "softmax_config_2")


def test_configurations_of_kernels_that_a_file_imports_count() -> None:
    def kernel(SIZE):  # type: ignore[no-untyped-def]
        pass

    file, imported = ModuleType("file"), ModuleType("imported")
    configs = [Config({"SIZE": size}) for size in (1, 2)]
    imported.__dict__["kernel"] = autotune(configs, key=[])(jit(kernel))
    file.__dict__["imported"] = imported
    assert list(Machine(90, "torch").variants([file])) == ["last_config"]


def test_a_file_that_names_a_gpu_gets_one_for_kernels_from_elsewhere(tmp_path: Path) -> None:
    file = tmp_path / "adapter.py"
    file.write_text("import torch\n")
    assert find_machine(file) is None
    file.write_text('import torch\nTARGET = "sm_80"\n')
    assert find_machine(file) == Machine(80, "torch")
    file.write_text('from kernels import attention\nTARGET = "sm_80"\n')
    assert find_machine(file) == Machine(80, "torch")
    file.write_text('import cupy\nTARGET = "sm_80"\n')
    assert find_machine(file) == Machine(80, "cupy")


def test_as_many_configurations_are_judged_as_the_longest_list_has() -> None:
    def tuned(*sizes: int) -> Any:
        return autotune([Config({"SIZE": size}) for size in sizes], key=[])(jit(kernel))

    def kernel(SIZE):  # type: ignore[no-untyped-def]
        pass

    module = ModuleType("kernels")
    module.__dict__.update(one=tuned(1), few=heuristics({})(tuned(1, 2, 3, 4)), two=tuned(1, 2))
    found = Machine(90, "torch").variants([module])
    assert {name: machine.tuning for name, machine in found.items()} == {
        "config_2": 1,
        "config_3": 2,
        "last_config": "last",
    }


def test_cuda_source_of_a_user_is_judged() -> None:
    assert 0 < budget(load(str(CUDA)), "float32") <= 1


BARRIER = "most = shared[0];\n    __syncthreads();"


def test_a_race_is_told_with_the_line_of_the_user(tmp_path: Path) -> None:
    backend = changed(tmp_path, CUDA, BARRIER, "most = shared[0];")
    text = (tmp_path / CUDA.name).read_text()
    line = text[: text.index("shared[threadIdx.x] = sum")].count("\n") + 1
    with pytest.raises(Disagreement, match="race") as told:
        budget(backend, "float32")
    assert f"{CUDA.name}:{line};" in str(told.value)
    assert told.value.kind == "race on the PTX machine"


def test_memory_that_is_not_there_is_told(tmp_path: Path) -> None:
    backend = changed(tmp_path, TRITON, "(row < rows) & (column < M)", "row < rows + column * 0")
    with pytest.raises(Disagreement, match=rf"out of bounds.*{TRITON.name}:"):
        budget(backend, "float32")


def test_what_the_machine_does_not_understand_is_unsupported(tmp_path: Path) -> None:
    assembly = 'most = shared[0];\n    asm volatile("brkpt;");'
    backend = changed(tmp_path, CUDA, "most = shared[0];", assembly)
    with pytest.raises(Unsupported, match=r"the PTX machine does not know.*brkpt"):
        budget(backend, "float32")


def test_a_compiler_that_gives_up_is_quoted_with_its_reason(tmp_path: Path) -> None:
    backend = changed(tmp_path, TRITON, "tl.max(x, 1)", "tl.max(x, 7)")
    with pytest.raises(Disagreement, match=r"CompilationError.*from \w+: .*7"):
        budget(backend, "float32")


def test_a_file_chooses_its_gpu(tmp_path: Path) -> None:
    backend = changed(tmp_path, CUDA, "PRECISION", 'TARGET = "sm_80"\nPRECISION')
    assert backend.device == "PTX sm_80, machine" and budget(backend, "float32") <= 1
    wrong = changed(tmp_path, CUDA, "PRECISION", 'TARGET = "sm_1"\nPRECISION')
    assert wrong.broken is not None and "TARGET: wanted one of sm_80" in wrong.broken


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("import triton.language as tl\n\n\ndef f(x):\n    tl.make_tensor_descriptor(x)", 80),
        ("import triton.tools as t\nTARGET = 'sm_90a'\nt.tensor_descriptor.TensorDescriptor", 90),
        ("import triton\nwords = 'make_tensor_descriptor'", 90),
    ],
)
def test_tensor_descriptors_are_judged_for_a_gpu_without_tma(
    text: str, target: int, tmp_path: Path
) -> None:
    (file := tmp_path / "kernels.py").write_text(text)
    assert find_machine(file) == Machine(target, "torch")


def test_the_device_is_chosen_for_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    show_device("sm_80")
    assert load(str(TRITON)).device == "PTX sm_80, machine"


@pytest.mark.parametrize("file", [TRITON, CUDA], ids=["Triton", "CUDA"])
def test_one_function_of_a_file_runs_on_the_machine_too(file: Path) -> None:
    backend = load(f"{file}:softmax")
    assert backend.device == "PTX sm_90a, machine" and 0 < budget(backend, "float32") <= 1


def test_one_function_of_a_module_runs_on_the_machine_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SAMPLES))
    backend = load(f"{CUDA.stem}:softmax=softmax")
    assert backend.device == "PTX sm_90a, machine" and 0 < budget(backend, "float32") <= 1


def test_the_interpreter_is_left_to_who_asks_for_it(tmp_path: Path) -> None:
    asked = 'import os\n\nos.environ["TRITON_INTERPRET"] = "1"\nimport torch\n'
    assert changed(tmp_path, TRITON, "import torch\n", asked).machine is None


def test_a_file_without_kernels_of_its_own_needs_no_machine(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text("import torch\n\n\ndef softmax(score, mask=None): ...\n")
    assert load(str(tmp_path / "plain.py")).machine is None


def test_where_there_is_a_gpu_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert find_machine(TRITON) is None
    show_device("sm_80")
    assert find_machine(TRITON) == Machine(80, "torch")


def test_a_file_that_compiles_cuda_by_pytorch_gets_the_machine(tmp_path: Path) -> None:
    file = tmp_path / "answer.py"
    file.write_text(
        "from torch.utils import cpp_extension\nadd = cpp_extension.load_inline('add', '')\n"
    )
    assert find_machine(file) == Machine(90, "torch")
    file.write_text("import torch\n# load_inline\n")
    assert find_machine(file) is None


OWN = """

def from_numpy(x, dtype):
    x = torch.from_numpy(x.copy())
    return x.cuda().to(getattr(torch, dtype) if x.is_floating_point() else x.dtype)


def missing():
    return None if torch.cuda.is_available() else "no GPU"
"""


def test_functions_of_a_backend_find_the_gpu_too(tmp_path: Path) -> None:
    backend = changed(tmp_path, TRITON, "\n\n\n@triton.autotune", f"\n{OWN}\n\n@triton.autotune")
    assert backend.missing is None and budget(backend, "float32") <= 1


def test_arrays_that_a_file_declares_are_those_that_it_gets(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import cupy\n\nARRAYS = 'numpy'\n\n\ndef softmax(score, mask=None):\n"
        "    raise NotImplementedError(type(score).__name__)\n"
    )
    with pytest.raises(Unsupported, match=r"^ndarray$"):
        budget(load(str(tmp_path / "mine.py")), "float32")


def test_a_file_of_another_encoding_is_read(tmp_path: Path) -> None:
    latin = "# -*- coding: latin-1 -*-\n# \xe9\n" + TRITON.read_text()
    (tmp_path / "latin.py").write_bytes(latin.encode("latin-1"))
    assert load(str(tmp_path / "latin.py")).machine == Machine(90, "torch")


def test_our_own_columns_run_on_the_machine_where_device_asks_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert place_of_code("torch_impl", True) is None
    monkeypatch.setenv(MACHINE, "80")
    found = {name: machine_of(place_of_code(name, True)) for name in ("torch_impl", "cupy_impl")}
    assert found == {"torch_impl": Machine(80, "torch"), "cupy_impl": Machine(80, "cupy")}


def test_a_column_that_was_imported_before_is_not_said_to_run_on_the_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import attnverify.cupy_impl

    monkeypatch.setenv(MACHINE, "90")
    monkeypatch.setattr(modules, "IMPORTED_ON", {})
    assert "was imported before --device put the machine in place" in str(load("cupy_impl").broken)
    assert attnverify.cupy_impl.missing() is None


def test_words_about_the_interpreter_do_not_ask_for_it(tmp_path: Path) -> None:
    (file := tmp_path / "kernels.py").write_text('"""No TRITON_INTERPRET."""\nimport triton\n')
    assert find_machine(file) == Machine(90, "torch")
    file.write_text('import os, triton\nos.environ["TRITON_INTERPRET"] = "1"\n')
    assert find_machine(file) is None


def test_subnormal_numbers_count_as_cupy_has_them_compiled(tmp_path: Path) -> None:
    """It compiles with -ftz=true: a kernel that names no arithmetic is not accused of that."""
    file = tmp_path / "mine.py"
    file.write_text("import cupy\n\n\ndef softmax(score):\n    return score\n")
    backend = load(str(file))
    assert backend.flushing == ("float32", "bfloat16")
    assert describe_loaded(backend, [])["flushing"] == backend.flushing  # it is judged elsewhere
