"""
The import arrows: who may know of whom. Independence is what makes the agreement of two columns
evidence.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from attnverify import ROOT

COLUMNS = {"numpy_ref", "torch_impl", "cupy_impl"}
BELOW = {"spec", *COLUMNS}
"""What is written ``attnverify.<name>`` everywhere; its bare name would import it a second time."""

CONTRACT = "contract"
"""What a call must look like: of the judge's rooms the one that a column may import."""

EVERYWHERE = {"jaxtyping", ".", *sys.stdlib_module_names}

ARROWS = {
    CONTRACT: {CONTRACT},
    "spec": {"spec", CONTRACT, "numpy"},
    "numpy_ref": {"numpy_ref", CONTRACT, "numpy"},
    "torch_impl": {"torch_impl", CONTRACT, "torch", "triton"},
    "cupy_impl": {"cupy_impl", CONTRACT, "cupy"},
    "attnverify": {
        *("attnverify", CONTRACT, "spec", "numpy", "hypothesis", "pytest", "_pytest", "ml_dtypes"),
        *("jinja2", "markupsafe", "rich", "threadpoolctl"),
    },
}
INSIDE_A_FUNCTION = {
    "numpy_ref": {"ml_dtypes"},
    "cupy_impl": {"ml_dtypes"},
}
"""What is needed for one format or one question alone, and imported there."""

BY_NAME = {
    "attnverify": {
        *("numpy_ref", "torch", "cupy", "jax", "dask", "distributed", "matplotlib"),
    }
}
"""
The engine of a campaign, what draws the results of benchmarks, the libraries whose arrays a backend
handles, and the reference of an operation, by the operation's public name: ``import_module`` inside
a function, when asked for.
"""

LAUNCHERS = "attnverify/ptx/launchers"
AT_THE_DOOR = {
    "torch_impl/__init__.py": {"numpy"},
    f"{LAUNCHERS}/autotune.py": {"triton"},
    f"{LAUNCHERS}/triton.py": {"torch", "triton"},
    f"{LAUNCHERS}/torch_cuda.py": {"torch"},
    f"{LAUNCHERS}/tensors/allocations.py": {"torch"},
    f"{LAUNCHERS}/tensors/sides.py": {"torch"},
    f"{LAUNCHERS}/sources/inline.py": {"torch"},
    "attnverify/campaign/files_plugin.py": {"distributed"},
    **{
        path.relative_to(ROOT).as_posix(): {package}
        for folder, package in (("cli", "click"), ("specified/pytorch", "torch"))
        for path in (ROOT / "attnverify" / folder).iterdir()
    },
}
"""
Where a backend takes NumPy arrays in and hands them out; what stands in for a GPU of these
libraries; what the workers of a campaign load; what the command line is made of; what reads a
specification that is PyTorch's.
"""

FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def imported(source: str) -> Iterator[tuple[str, str]]:
    """
    The package of every import ("." for a relative one) and how it is imported: at once, lazily or
    by name.
    """
    tree = ast.parse(source)
    inside = {
        id(node)
        for outer in ast.walk(tree)
        if isinstance(outer, FUNCTION)
        for node in ast.walk(outer)
    }
    for node in ast.walk(tree):
        lazy = id(node) in inside
        how = "lazily" if lazy else "at once"
        if isinstance(node, ast.Import):
            yield from ((package_of(alias.name), how) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level:
            yield ".", how
        elif isinstance(node, ast.ImportFrom):
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from ((package, how) for package in dict.fromkeys(map(package_of, names)))
        elif isinstance(node, ast.Call) and (name := named_by_a_string(node)):
            yield name, "by name" if lazy else "at once"


def package_of(name: str) -> str:
    """ "torch" of "torch.nn", "spec" of "attnverify.spec.alibi", "bare spec" of "spec.alibi"."""
    top, _, rest = name.partition(".")
    below = rest.partition(".")[0]
    if top == "attnverify" and below in {*BELOW, CONTRACT}:
        return below
    return f"bare {top}" if top in BELOW else top


def named_by_a_string(call: ast.Call) -> str | None:
    """The package in import_module("torch.nn") and in __import__("torch")."""
    function = (
        call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", None)
    )
    if function in ("import_module", "__import__") and call.args:
        argument = (
            call.args[0].values[0] if isinstance(call.args[0], ast.JoinedStr) else call.args[0]
        )
        if isinstance(argument, ast.Constant):
            return package_of(str(argument.value))
    return None


def broken_arrows(
    package: str, source: str, also: set[str] | frozenset[str] = frozenset()
) -> list[str]:
    """The imports of a source text that its package may not have."""
    at_once = ARROWS[package] | EVERYWHERE | also
    lazily = at_once | INSIDE_A_FUNCTION.get(package, set())
    allowed = {
        "at once": at_once,
        "lazily": lazily,
        "by name": lazily | BY_NAME.get(package, set()),
    }
    return [name for name, how in imported(source) if name not in allowed[how]]


def columns_of(source: str) -> set[str]:
    """The columns that a source imports, or may import: only where two are named it is parsed."""
    named = {column for column in COLUMNS if column in source}
    return named if len(named) < 2 else named & {name for name, _ in imported(source)}


def sources(folder: str) -> list[Path]:
    folder = "attnverify/contract" if folder == CONTRACT else folder
    return sorted(path for path in (ROOT / folder).rglob("*.py") if "__pycache__" not in path.parts)


def place(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("package", ARROWS)
def test_a_module_imports_what_its_package_may(package):
    found = {
        place(path): broken_arrows(package, path.read_text(), AT_THE_DOOR.get(place(path), set()))
        for path in sources(package)
    }
    assert len(found) > 6 and {name: broken for name, broken in found.items() if broken} == {}


def test_a_test_knows_one_column_at_most():
    found = {place(path): columns_of(path.read_text()) for path in sources("tests")}
    assert len(found) > 500 and [name for name, known in found.items() if len(known) > 1] == []


# sabotage: what these tests must notice

BREACHES = [
    (CONTRACT, "import numpy as np"),
    (CONTRACT, "def f():\n    from attnverify.spec.domains import Choices"),
    (CONTRACT, "import attnverify.precision"),
    ("torch_impl", "from attnverify.catalogue import operation"),
    ("spec", "import torch"),
    ("spec", "from attnverify.numpy_ref.alibi import get_slopes"),
    ("spec", "import attnverify.bounds as bounds"),
    ("spec", "from scipy import special"),
    ("numpy_ref", "from attnverify.spec import softmax"),
    ("numpy_ref", "import ml_dtypes"),
    ("torch_impl", "import numpy as np"),
    ("torch_impl", "def f():\n    from attnverify.numpy_ref import softmax"),
    ("torch_impl", "if True:\n    import attnverify.cupy_impl.alibi"),
    ("torch_impl", "import importlib\nlaw = importlib.import_module('attnverify.spec.alibi')"),
    ("cupy_impl", "from attnverify.torch_impl import softmax"),
    ("cupy_impl", "try:\n    import torch\nexcept ImportError:\n    pass"),
    ("cupy_impl", "def f():\n    return __import__('attnverify.spec')"),
    ("attnverify", "import spec"),
    ("torch_impl", "from torch_impl.alibi import alibi_attention"),
    ("attnverify", "import torch"),
    ("attnverify", "def f():\n    import torch"),
    ("attnverify", "from importlib import import_module\ntorch = import_module('torch')"),
    ("attnverify", "import attnverify.numpy_ref"),
    ("attnverify", "def f():\n    from attnverify.numpy_ref.hidden_keys import sum_seen"),
    ("attnverify", "import importlib\nimportlib.import_module('attnverify.numpy_ref.alibi')"),
    ("attnverify", "def f():\n    return import_module('attnverify.torch_impl.alibi')"),
    ("attnverify", "def f(chapter):\n    return import_module(f'attnverify.torch_impl.{chapter}')"),
]


@pytest.mark.parametrize(("package", "source"), BREACHES)
def test_an_arrow_that_is_broken_is_noticed(package, source):
    assert len(broken_arrows(package, source)) == 1


@pytest.mark.parametrize(
    "second",
    [
        "import attnverify.torch_impl.alibi",
        "def f():\n    from attnverify.cupy_impl import softmax",
    ],
)
def test_a_test_that_knows_two_columns_is_noticed(second):
    assert len(columns_of(f"import attnverify.numpy_ref\n{second}")) == 2


def test_what_is_allowed_breaks_no_arrow():
    lazily = (
        "def f():\n    import_module('attnverify.numpy_ref.alibi')\n    import_module('torch')\n"
        "from . import draws\nimport json, attnverify.spec.alibi\n"
        "from attnverify.contract.shapes import check"
    )
    assert broken_arrows("attnverify", lazily) == []
    assert (
        broken_arrows(
            "torch_impl",
            "from torch.nn import functional\nimport triton.language as tl\nfrom jaxtyping import "
            "Float",
        )
        == []
    )
    assert broken_arrows("numpy_ref", "def f():\n    import ml_dtypes") == []


def test_a_module_that_breaks_an_arrow_is_found_among_the_files(tmp_path, monkeypatch):
    (tmp_path / "spec" / "deeper").mkdir(parents=True)
    (tmp_path / "spec" / "deeper" / "alibi.py").write_text("from torch import softmax\n")
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    assert [broken_arrows("spec", path.read_text()) for path in sources("spec")] == [["torch"]]
