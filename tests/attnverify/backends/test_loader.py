"""
Backends: whatever is named on the command line becomes a list of implementations, or one clear line
that says why not.
"""

import importlib
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from attnverify import ROOT
from attnverify.backends import loader as backends_module
from attnverify.backends.array_libraries import LIBRARIES, array_library
from attnverify.backends.functions import BACKEND_FUNCTIONS
from attnverify.backends.implementation import Backend, Implementation
from attnverify.backends.loader import describe_undeclared, load
from attnverify.catalogue.operation import CATALOGUE
from attnverify.inputs.fixed_cases import fixed_recipe
from attnverify.inputs.recipe import Recipe
from attnverify.judge.case import case_of
from attnverify.judge.errors import Disagreement, Unsupported
from attnverify.judge.judging import judge
from attnverify.precision import DTYPES, PRESETS, UNDECLARED
from attnverify.specified.form import Form

SOFTMAX = """
PRECISION = "wide"
import numpy as np
from attnverify import numpy_ref

def softmax(score, mask=None):
    return numpy_ref.softmax(score, mask)
"""
RECIPE = Recipe("softmax", {"N": 3, "M": 5}, {"family": "normal", "seed": 1})
MASKED = Recipe(
    "softmax",
    {"N": 3, "M": 5},
    {"family": "normal", "seed": 1},
    {"pattern": "random", "axes": "N M", "form": "bool", "seed": 1},
)


def written(folder: Path, text: str, name: str = "mine.py") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def loaded(folder: Path, text: str, name: str = "mine.py") -> Backend:
    return load(str(written(folder, text, name)))


def only(backend: Backend) -> Implementation:
    """Its one function; what torch derives from it follows."""
    implementation, *derived = backend.implementations
    assert {each.name for each in derived} <= {f"{implementation.name}_grad"}
    return implementation


def passes(implementation: Implementation, recipe: Recipe = RECIPE) -> bool:
    return judge(implementation, case_of(recipe, "float32")).budget <= 1


# Four ways to name a backend


def test_a_file_is_a_backend(tmp_path: Path) -> None:
    backend = loaded(tmp_path, SOFTMAX)
    assert (backend.name, backend.broken, backend.missing) == ("mine", None, None)
    assert only(backend).name == "softmax" and passes(only(backend))


def test_a_package_by_path_is_a_backend_with_its_chapters(tmp_path: Path) -> None:
    written(tmp_path, "PRECISION = 'wide'\n", "kernels/__init__.py")
    written(tmp_path, SOFTMAX, "kernels/attention.py")
    written(
        tmp_path,
        "from attnverify import numpy_ref\ndef rel_shift(x):\n    return numpy_ref.rel_shift(x)\n",
        "kernels/anywhere.py",
    )
    backend = load(str(tmp_path / "kernels"))
    assert {i.name for i in backend.implementations} == {"softmax", "rel_shift"}
    assert all(i.backend is backend for i in backend.implementations)


def test_the_modules_of_a_package_import_each_other(tmp_path: Path) -> None:
    written(tmp_path, "PRECISION = 'wide'\n", "kernels/__init__.py")
    written(tmp_path, "from .tiles import softmax\n__all__ = ['softmax']\n", "kernels/attention.py")
    written(tmp_path, SOFTMAX, "kernels/tiles.py")
    assert passes(load(str(tmp_path / "kernels")).implementations[0])


def test_a_dotted_name_is_a_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, "", "dotted/__init__.py")
    written(tmp_path, SOFTMAX, "dotted/kernels.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    backend = load("dotted.kernels")
    assert backend.name == "dotted.kernels" and passes(only(backend))


def test_an_entry_point_is_a_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, SOFTMAX, "installed_kernels.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    points = {"attnverify.backends": [SimpleNamespace(name="theirs", value="installed_kernels")]}
    monkeypatch.setattr(backends_module, "entry_points", lambda group: points[group])
    backend = load("theirs")
    assert (backend.name, backend.source) == ("theirs", "theirs") and passes(only(backend))


@pytest.mark.parametrize("column", backends_module.PROJECT_BACKENDS)
def test_a_column_is_loaded_by_name_wherever_the_run_starts(
    column: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in (tmp_path, Path(backends_module.__file__).parent.parent):
        monkeypatch.chdir(place)
        backend = load(column)
        assert backend.broken is None
        assert all(
            i.function.__module__ == "attnverify.backends.calls.call_adapter"
            for i in backend.implementations
            if not i.operation.is_gradient
        )
    assert not [name for name in sys.modules if name.startswith(f"_verify_{column}")]


@pytest.mark.parametrize("name", ["numpy.py", "torch.py", "attnverify.py", "hypothesis.py"])
def test_a_file_shadows_nothing(name: str, tmp_path: Path) -> None:
    stem = name.removesuffix(".py")
    before = sys.modules.get(stem)
    backend = loaded(tmp_path, SOFTMAX, name)
    assert backend.name == stem and passes(only(backend))
    assert sys.modules.get(stem) is before
    assert str(tmp_path) not in sys.path and importlib.import_module("numpy") is np


def test_two_files_of_one_name_are_two_backends(tmp_path: Path) -> None:
    one = loaded(tmp_path, SOFTMAX, "a/mine.py")
    two = loaded(
        tmp_path, SOFTMAX.replace("softmax(score, mask)", "softmax(score, mask) / 2"), "b/mine.py"
    )
    assert passes(only(one))
    with pytest.raises(Disagreement):
        passes(only(two))


def test_a_changed_file_is_loaded_as_it_is_now(tmp_path: Path) -> None:
    loaded(tmp_path, "def softmax(score, mask=None):\n    return score\n")
    assert passes(only(loaded(tmp_path, SOFTMAX)))


# What a file may hold


def test_a_name_may_say_how(tmp_path: Path) -> None:
    backend = loaded(tmp_path, SOFTMAX.replace("def softmax", "def softmax_two_passes"))
    assert (only(backend).operation.name, only(backend).how, only(backend).label) == (
        "softmax",
        "two_passes",
        "mine:two_passes",
    )


def test_the_longest_operation_is_meant(tmp_path: Path) -> None:
    text = (
        "def alibi_attention_grad_split(d_output, query, key, value, visible=None):\n    "
        "return None\n"
    )
    assert only(loaded(tmp_path, text)).operation.name == "alibi_attention_grad"


def test_helpers_beside_the_operations_are_nobodys_business(tmp_path: Path) -> None:
    backend = loaded(
        tmp_path, SOFTMAX + "\ndef tile(x):\n    return x\n\ndef _softmax(x):\n    return x\n"
    )
    assert only(backend).name == "softmax" and not backend.notes


def test_what_is_imported_is_not_exported(tmp_path: Path) -> None:
    text = "from attnverify.numpy_ref import rel_shift, shift_right\n" + SOFTMAX
    assert only(loaded(tmp_path, text)).name == "softmax"
    assert {
        i.name
        for i in loaded(tmp_path, text + "\n__all__ = ['softmax', 'rel_shift']\n").implementations
    } == {"softmax", "rel_shift"}


def test_a_misspelt_operation_is_told(tmp_path: Path) -> None:
    backend = loaded(
        tmp_path, SOFTMAX + "\ndef alibi_atention(query, key, value):\n    return query\n"
    )
    assert backend.notes == [
        "alibi_atention is no operation of the catalogue; did you mean alibi_attention?"
    ]


def test_the_laws_names_are_called_by_name_in_any_order(tmp_path: Path) -> None:
    body = (
        "\nPRECISION = 'wide'\nfrom attnverify import numpy_ref\n"
        "def softmax(mask=None, *, score):\n    return "
        "numpy_ref.softmax(score, mask)\n"
    )
    assert passes(only(loaded(tmp_path, body)), MASKED)


def test_a_function_without_an_optional_parameter_supports_only_what_it_has(tmp_path: Path) -> None:
    implementation = only(
        loaded(
            tmp_path,
            "\nPRECISION = 'wide'\nfrom attnverify import numpy_ref\n"
            "def softmax(score):\n    return "
            "numpy_ref.softmax(score)\n",
        )
    )
    assert passes(implementation)
    with pytest.raises(Unsupported, match="takes no mask"):
        passes(implementation, MASKED)


def test_a_results_dtype_is_asked_for_where_the_function_takes_one(tmp_path: Path) -> None:
    recipe = Recipe("get_slopes", {"H": 6}, {"family": "normal", "seed": 0})
    body = (
        "\nPRECISION = 'wide'\nfrom attnverify import numpy_ref\n"
        "def get_slopes(n_heads{0}):\n    return "
        "numpy_ref.get_slopes(n_heads{1})\n"
    )
    assert passes(only(loaded(tmp_path, body.format(", dtype='float64'", ", dtype"))), recipe)
    with pytest.raises(Unsupported, match="takes no dtype: returns float64"):
        passes(only(loaded(tmp_path, body.format("", ""))), recipe)
    plain = only(loaded(tmp_path, body.format("", "")))
    assert judge(plain, case_of(recipe, "float64")).budget <= 1


def test_a_function_that_may_be_given_no_tensor_is_told_the_backends_device(tmp_path: Path) -> None:
    text = """
PRECISION = "wide"
import torch
def causal_mask(N, M, device=None):
    return device
"""
    assert only(loaded(tmp_path, text)).function(N=3, M=5) == str(torch.zeros(1).device)
    assert only(loaded(tmp_path, text.replace("device", "place"))).function(N=3, M=5) is None


# Whose arrays


@pytest.mark.parametrize(
    "statement", ["import torch", "import torch.nn.functional as F", "from torch import nn"]
)
def test_the_library_is_told_by_the_imports(statement: str, tmp_path: Path) -> None:
    backend = loaded(
        tmp_path,
        f"{statement}\nPRECISION = 'eager'\ndef softmax(score, mask=None):\n    return "
        "score.softmax(-1)\n",
    )
    assert backend.library is not None and backend.library.name == "torch"
    assert torch.__version__ in backend.versions and passes(only(backend))


def test_a_cupy_file_is_judged_on_a_device_or_missing(tmp_path: Path) -> None:
    backend = loaded(
        tmp_path,
        "import cupy\nPRECISION = 'eager'\ndef softmax(score, mask=None):\n    return score\n",
    )
    assert backend.broken is None and (
        backend.missing in ("no CUDA device", "the package cupy is not installed") or backend.device
    )
    assert backend.library is None or backend.library.name == "cupy"


def test_arrays_may_be_declared(tmp_path: Path) -> None:
    backend = loaded(
        tmp_path,
        "ARRAYS = 'torch'\nPRECISION = 'eager'\ndef softmax(score, mask=None):\n    return "
        "score.softmax(-1)\n",
    )
    assert backend.library is not None and backend.library.name == "torch" and passes(only(backend))


def test_the_library_is_that_of_a_package_that_does_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of a few lines, beside what is installed, imports nothing else."""
    kernels = tmp_path / "installed" / "kernels_of_others.py"
    kernels.parent.mkdir()
    kernels.write_text("import torch\n\ndef rows(score):\n    return torch.softmax(score, -1)\n")
    monkeypatch.syspath_prepend(str(kernels.parent))
    body = "PRECISION = 'eager'\ndef softmax(score, mask=None):\n    return "
    for text in (
        f"import kernels_of_others\n{body}kernels_of_others.rows(score)\n",
        f"from kernels_of_others import rows\n{body}rows(score)\n",
    ):
        (tmp_path / "own").mkdir(exist_ok=True)
        backend = loaded(tmp_path / "own", text)
        assert backend.library is not None and backend.library.name == "torch"
        assert passes(only(backend))


def test_a_file_without_imports_handles_numpy(tmp_path: Path) -> None:
    backend = loaded(tmp_path, "PRECISION = 'eager'\ndef shift_right(x):\n    return x\n")
    assert backend.library is not None and backend.library.name == "numpy"


FOUR_OF_ITS_OWN = """
import numpy as np

class Boxed:
    def __init__(self, x):
        self.x, self.shape, self.dtype = x, x.shape, x.dtype

def from_numpy(x, dtype):
    return Boxed(np.asarray(x, dtype if x.dtype.kind == "f" else x.dtype))

def to_numpy(x):
    return x.x if x.x.dtype == bool else x.x.astype(np.float64)

CALLS = []

def synchronize():
    CALLS.append(1)

def missing():
    return None

from attnverify import numpy_ref
PRECISION = "wide"
def softmax(score, mask=None):
    return Boxed(numpy_ref.softmax(score.x, None if mask is None else mask.x))
"""


def test_a_backend_may_bring_its_four_functions(tmp_path: Path) -> None:
    backend = loaded(tmp_path, FOUR_OF_ITS_OWN)
    assert passes(only(backend), MASKED)
    assert backend.library is not None and {
        name: getattr(backend.library, name).__name__ for name in BACKEND_FUNCTIONS
    } == {name: name for name in BACKEND_FUNCTIONS}


def test_the_device_is_waited_for(tmp_path: Path) -> None:
    backend = loaded(tmp_path, FOUR_OF_ITS_OWN)
    assert backend.library is not None
    waits = backend.library.synchronize.__globals__["CALLS"]
    passes(only(backend))
    assert len(waits) == 1


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_an_adapter_brings_numbers_there_and_back(library: str, dtype: str) -> None:
    there = array_library(library)
    x, mask = np.array([[1.5, -0.0], [np.inf, 2.0**-9]]), np.array([True, False])
    assert np.array_equal(there.to_numpy(there.from_numpy(x, dtype)), x)
    assert there.to_numpy(there.from_numpy(mask, dtype)).dtype == bool


def test_an_unknown_library_is_refused() -> None:
    with pytest.raises(
        ValueError, match=f"ARRAYS: wanted one of {', '.join(LIBRARIES)}, got 'tensorflow'"
    ):
        array_library("tensorflow")


# PRECISION


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_is_a_precision(preset: str, tmp_path: Path) -> None:
    backend = loaded(tmp_path, SOFTMAX.replace('"wide"', repr(preset)))
    assert backend.broken is None and not backend.notes
    assert only(backend).precision("float32") == PRESETS[preset](
        only(backend).precision("float32").storage
    )


def test_a_precision_that_is_not_declared_is_told(tmp_path: Path) -> None:
    assert loaded(tmp_path, SOFTMAX.replace('PRECISION = "wide"', "")).notes == [
        "PRECISION is not declared: judged as eager"
    ]


def test_the_readme_says_what_a_run_prints_of_an_undeclared_precision() -> None:
    own = f'Undeclared, `PRECISION` is `"{UNDECLARED}"`, here `"{Form.undeclared}"`'
    assert own in (ROOT / "README.md").read_text()


@pytest.mark.parametrize(
    "declared", ["'careless'", "{'accumulate': 'float99'}", "{'nonsense': 'float32'}", "17"]
)
def test_a_precision_that_cannot_be_read_breaks_the_backend(declared: str, tmp_path: Path) -> None:
    backend = loaded(tmp_path, SOFTMAX.replace('"wide"', declared))
    assert (
        backend.broken is not None and "PRECISION" in backend.broken and "\n" not in backend.broken
    )


# Broken and missing, in one line


def test_a_name_that_a_file_imports_is_judged_by_what_is_told(tmp_path: Path) -> None:
    (tmp_path / "lies_beside.py").write_text(SOFTMAX)
    told = loaded(tmp_path, "from lies_beside import softmax\n").broken
    assert told is not None
    backend = load(told.partition("attnverify run ")[2])
    assert backend.broken is None
    assert [each.name for each in backend.implementations] == ["softmax"]


BROKEN = {
    "a syntax error": ("def softmax(score:\n", "SyntaxError"),
    "a name that is not there": ("import numpy as np\nx = np.no_such_thing\n", "AttributeError"),
    "an error at import": (
        "raise RuntimeError('no\\nlicence')\n",
        "cannot be imported: RuntimeError: no licence",
    ),
    "an exit at import": ("import sys\nsys.exit(0)\n", "SystemExit"),
    "an empty file": ("", "names no operation of the catalogue"),
    "no operation": ("def my_kernel(x):\n    return x\n", "names no operation of the catalogue"),
    "an operation of others": (
        "from attnverify.numpy_ref.attention import softmax\n",
        "softmax is imported there, not defined: list it in __all__, or judge it by: attnverify ",
    ),
    "no operation, but a name close to one": (
        "def sofmax(x):\n    return x\n",
        "names no operation of the catalogue",
    ),
    "arrays of nobody": (
        "ARRAYS = 'tensorflow'\ndef softmax(score, mask=None):\n    return score\n",
        "ARRAYS: wanted one of",
    ),
    "an __all__ that lies": ("__all__ = ['softmax']\n", "names no operation of the catalogue"),
    "a missing that raises": (
        "def missing():\n    raise OSError('driver')\ndef softmax(s):\n    return s\n",
        "OSError: driver",
    ),
}


@pytest.mark.parametrize("words", BROKEN)
def test_what_cannot_be_used_is_broken_and_says_why(words: str, tmp_path: Path) -> None:
    text, reason = BROKEN[words]
    backend = loaded(tmp_path, text)
    assert backend.broken is not None and reason in backend.broken and "\n" not in backend.broken
    assert not backend.implementations


def test_a_syntax_error_names_its_line(tmp_path: Path) -> None:
    assert str(loaded(tmp_path, "x = 1\n\ndef softmax(score:\n").broken).count("line 3") == 1


@pytest.mark.parametrize("source", ["no_such_file.py", "no/such/file.py"])
def test_a_file_that_is_not_there_is_broken(source: str) -> None:
    assert f"no file {source}" in str(load(source).broken)


def test_a_name_that_is_not_there_is_broken() -> None:
    assert "No module named 'no_such_module'" in str(load("no_such_module").broken)


def test_a_directory_that_is_no_package_is_broken(tmp_path: Path) -> None:
    assert load(str(tmp_path)).broken


def test_a_broken_chapter_breaks_its_package(tmp_path: Path) -> None:
    written(tmp_path, SOFTMAX, "kernels/__init__.py")
    written(tmp_path, "def rel_shift(x:\n", "kernels/shifts.py")
    assert "SyntaxError" in str(load(str(tmp_path / "kernels")).broken)


def test_a_package_that_is_not_installed_is_missing(tmp_path: Path) -> None:
    backend = loaded(tmp_path, "import surely_not_installed.ops\n" + SOFTMAX)
    assert (backend.broken, backend.missing) == (
        None,
        "the package surely_not_installed is not installed",
    )


def test_what_says_that_it_cannot_run_here_is_missing(tmp_path: Path) -> None:
    backend = loaded(tmp_path, SOFTMAX + "\ndef missing():\n    return 'needs sm_90'\n")
    assert backend.missing == "needs sm_90" and not backend.implementations


def test_a_missing_package_is_asked_before_its_chapters_are_imported(tmp_path: Path) -> None:
    written(tmp_path, "def missing():\n    return 'needs a driver'\n", "kernels/__init__.py")
    written(tmp_path, "import ctypes\nctypes.CDLL('libsurely_not.so')\n", "kernels/attention.py")
    assert load(str(tmp_path / "kernels")).missing == "needs a driver"


def test_an_interrupt_is_not_swallowed(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        loaded(tmp_path, "raise KeyboardInterrupt\n")


TRITON = """
import triton

@triton.jit
def softmax_kernel(score, out):
    pass

def softmax(score, mask=None):
    return score
"""


def test_a_kernel_of_triton_is_no_function_to_call(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    backend = loaded(tmp_path, TRITON)
    assert {one.name for one in backend.implementations} == {"softmax"}


@pytest.mark.parametrize(
    ("flushing", "told"),
    [
        (DTYPES, ", with subnormal numbers as 0, as numpy has them here"),
        (("bfloat16",), ", with subnormal numbers of bfloat16 as 0, as numpy has them here"),
        ((), ""),
    ],
)
def test_a_library_that_flushes_subnormals_is_judged_so(
    flushing: tuple[str, ...], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = replace(array_library("numpy"), flushes_subnormals=lambda: flushing)
    monkeypatch.setattr(backends_module, "library_of", lambda *_: library)
    backend = loaded(tmp_path, "def shift_right(x):\n    return x\n")
    for dtype in ("float32", "bfloat16"):
        assert only(backend).precision(dtype).acc.ftz == (dtype in flushing)
    assert backend.notes == [f"PRECISION is not declared: judged as eager{told}"]


def test_what_is_declared_of_a_dtype_says_nothing_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = replace(array_library("numpy"), flushes_subnormals=lambda: DTYPES)
    monkeypatch.setattr(backends_module, "library_of", lambda *_: library)
    text = 'PRECISION = {"float32": {"acc": "float32"}}\ndef shift_right(x):\n    return x\n'
    made = only(loaded(tmp_path, text))
    assert [made.precision(dtype).acc.ftz for dtype in ("float32", "bfloat16")] == [False, True]


def test_a_right_attention_of_torch_in_bfloat16_is_right_on_every_processor(
    tmp_path: Path,
) -> None:
    """Instructions for bfloat16 (VDPBF16PS, AMX) take subnormal numbers for 0."""
    backend = loaded(
        tmp_path,
        "from torch.nn.functional import scaled_dot_product_attention as fused\n"
        "def scaled_dot_product_attention(query, key, value):\n"
        "    return fused(query, key, value)\n",
    )
    op, sizes = CATALOGUE["scaled_dot_product_attention"], {"M": 1, "D": 4, "E": 4}
    judge(only(backend), case_of(fixed_recipe(op, sizes, "subnormal"), "bfloat16"))


@pytest.mark.parametrize("declared", ['"wide"', '"eager"', '{"preset": "fused", "block": 32}'])
def test_a_preset_says_nothing_of_subnormal_numbers(
    declared: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is named is no stricter there than nothing named: it is the library that flushes."""
    library = replace(array_library("numpy"), flushes_subnormals=lambda: ("bfloat16",))
    monkeypatch.setattr(backends_module, "library_of", lambda *_: library)
    made = only(loaded(tmp_path, SOFTMAX.replace('"wide"', declared)))
    assert [made.precision(dtype).acc.ftz for dtype in ("float32", "bfloat16")] == [False, True]
    assert not made.precision("float16").storage.ftz


def test_a_format_that_a_file_names_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = replace(array_library("numpy"), flushes_subnormals=lambda: DTYPES)
    monkeypatch.setattr(backends_module, "library_of", lambda *_: library)
    named = '{"preset": "wide", "acc": "float32", "storage": "float32"}'
    made = only(loaded(tmp_path, SOFTMAX.replace('"wide"', named))).precision("float32")
    assert (made.storage.ftz, made.acc.ftz, made.softmax.ftz) == (False, False, True)


@pytest.mark.parametrize("declared", ["", 'PRECISION = "eager"'])
def test_a_right_attention_of_torch_is_right_whatever_preset_it_names(
    declared: str, tmp_path: Path
) -> None:
    """q @ k.mT of sizes for which there are instructions (VDPBF16PS, AMX) that flush."""
    backend = loaded(tmp_path, EAGER.format(declared=declared))
    op, sizes = CATALOGUE["scaled_dot_product_attention"], {"N": 64, "M": 64, "D": 64, "E": 64}
    judge(only(backend), case_of(fixed_recipe(op, sizes, "subnormal"), "bfloat16"))


EAGER = """
import torch
{declared}

def scaled_dot_product_attention(query, key, value):
    score = query @ key.mT * query.shape[-1] ** -0.5
    return torch.softmax(score, -1) @ value
"""


def folder_of(folder: Path, **files: str) -> str:
    """Files of a folder by their stems; the path of the last."""
    for stem, text in files.items():
        (folder / f"{stem}.py").write_text(text)
    return str(folder / f"{stem}.py")


def test_what_lies_beside_a_file_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    beside = "def shift_right(x):\n    return x\n"
    mine = "from beside_1 import shift_right as f\n\ndef shift_right(x):\n    return f(x)\n"
    found = load(folder_of(tmp_path, beside_1=beside, mine=mine))
    assert (found.broken, found.missing) == (None, None)
    assert [one.name for one in found.implementations if not one.operation.is_gradient] == [
        "shift_right"
    ]


def test_a_name_of_the_catalogue_that_is_assigned_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    mine = "import beside_2\n\nshift_right = beside_2.move\n"
    found = load(folder_of(tmp_path, beside_2="def move(x):\n    return x\n", mine=mine))
    assert "shift_right" in [one.name for one in found.implementations]


MANY = """
def shift_right(x):
    return x

def self_attention(x, params, mask=None):
    return x
"""


def test_an_unknown_argument_costs_its_operation_alone(tmp_path: Path) -> None:
    found = load(folder_of(tmp_path, mine=MANY))
    assert found.broken is None
    assert {one.operation.forward.name for one in found.implementations} == {"shift_right"}
    (words,) = found.refused
    assert words.startswith("self_attention is not judged: argument 'params'")
    assert words.endswith('ARGUMENTS = {"params": "parameters"}') and words in found.notes


def test_where_nobody_knows_what_an_argument_is_no_line_is_offered(tmp_path: Path) -> None:
    mine = "def scaled_dot_product_attention(strange, other):\n    return strange\n"
    words = load(folder_of(tmp_path, mine=mine)).broken or ""
    assert "argument 'strange'" in words and "ARGUMENTS" not in words


def test_an_arithmetic_that_nobody_knows_by_its_name_is_explained() -> None:
    told = describe_undeclared("numpy", (), ["eager", "stepwise"])
    assert told == (
        "judged as eager and stepwise (the result of each step may be stored in the dtype)"
    )
