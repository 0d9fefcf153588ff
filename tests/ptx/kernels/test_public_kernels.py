"""
The files that judge public kernels: each says what it wants where there is no checkout, and what
has to be changed in a public file is changed, or refused.
"""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from attnverify.backends.loader import load

FOLDER = Path(__file__).parents[3] / "examples" / "public_kernels"
BESIDE = ("checkouts", "planted_bugs", "specifications")
ADAPTERS = sorted(path for path in FOLDER.glob("*.py") if path.stem not in BESIDE)


def checkouts() -> ModuleType:
    spec = spec_from_file_location("checkouts_under_test", FOLDER / "checkouts.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", ADAPTERS, ids=lambda path: path.stem)
def test_each_says_what_it_wants(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PUBLIC_KERNELS", raising=False)
    assert "PUBLIC_KERNELS: wanted the folder that holds " in str(load(str(path)).broken)


@pytest.mark.parametrize("path", ADAPTERS, ids=lambda path: path.stem)
def test_each_says_where_its_kernel_comes_from(path: Path) -> None:
    told = path.read_text().split('"""')[1]
    assert all(word in told for word in ("seen", "git clone https://github.com/", "Adapted:"))
    assert any(
        licence in told for licence in ("(MIT", "(Apache-2.0)", "(BSD-2-Clause)", "(BSD-3-Clause)")
    )


def test_replacements_are_made_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUBLIC_KERNELS", str(tmp_path))
    with pytest.raises(RuntimeError, match="wanted a folder that holds theirs"):
        checkouts().load("theirs", "kernel.py")
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "kernel.py").write_text("x = 1\n")
    assert checkouts().load("theirs", "kernel.py", ("1", "2")).x == 2
    with pytest.raises(RuntimeError, match="wanted a file that holds 'y'"):
        checkouts().load("theirs", "kernel.py", ("y", "2"))


def test_a_passage_is_cut_out_or_refused() -> None:
    assert checkouts().between("a { b } c", "{", "}") == "{ b "
    with pytest.raises(RuntimeError, match="wanted a file with '<'"):
        checkouts().between("a { b } c", "<", "}")


def test_slopes_are_those_of_alibi() -> None:
    assert checkouts().alibi_slopes(8) == [2.0**-i for i in range(1, 9)]
    assert checkouts().alibi_slopes(3) == [2.0**-4, 2.0**-8, 2.0**-2]
