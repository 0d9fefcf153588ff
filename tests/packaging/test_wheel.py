"""
What an installation adds to an environment: one package, one command, and a pytest plugin that
minds its own business.
"""

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from attnverify import COLUMNS, ROOT
from tests.docs.test_chapters import go_the_ways_into_ones_own_tests
from tests.packaging.wheel_environment import Environment, build_wheel, create_environment

pytestmark = pytest.mark.xdist_group("wheel")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return create_environment(tmp_path_factory.mktemp("environment"), wheel)


def contents(wheel: Path) -> list[str]:
    return zipfile.ZipFile(wheel).namelist()


def test_a_wheel_adds_one_package(wheel: Path) -> None:
    assert {name.partition("/")[0] for name in contents(wheel) if ".dist-info/" not in name} == {
        "attnverify"
    }


def files_of_the_checkout() -> set[str]:
    """Every file of the package and of the columns below it, as the wheel names them."""
    folders = {"attnverify": ROOT / "attnverify"} | {
        f"attnverify/{column}": ROOT / column for column in COLUMNS
    }
    return {
        f"{name}/{path.relative_to(folder).as_posix()}"
        for name, folder in folders.items()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_a_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    held = {name for name in contents(wheel) if ".dist-info/" not in name}
    assert held == files_of_the_checkout()


def packages_of_the_checkout() -> set[str]:
    return {
        str(Path(name).parent).replace("/", ".")
        for name in files_of_the_checkout()
        if name.endswith(".py") or ".kernels/" in name
    }


def test_the_packages_listed_are_the_folders() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    assert sorted(listed) == listed and {*listed} == packages_of_the_checkout()


# Beside a project of somebody else


THEIRS = {
    "spec.py": "MINE = 1\n",
    "verify/__init__.py": "",
    "verify/cli.py": "MINE = 2\n",
    "numpy_ref.py": "MINE = 3\n",
    "pytest.ini": "[pytest]\naddopts = --strict-markers --strict-config\nfilterwarnings = error\n"
    "markers =\n    docs: theirs\n    faults: theirs\n    thorough: theirs\n    browser: theirs\n",
    "conftest.py": """
def pytest_addoption(parser):
    for name in ("backend", "seed", "dtype", "profile", "op", "report", "memory"):
        parser.addoption(f"--{name}", default="theirs")
""",
    "tests/__init__.py": "",
    "tests/support.py": "MINE = 4\n",
    "tests/test_theirs.py": """
import sys
import pytest
import numpy_ref, spec, verify.cli
from tests import support

@pytest.mark.docs
def test_docs(): pass

@pytest.mark.faults
def test_faults(): pass

@pytest.mark.thorough
def test_thorough(): pass

@pytest.mark.browser
def test_browser(): pass

@pytest.mark.parametrize("cell", [1, 2])
def test_values(cell): pass

def test_modules():
    assert (spec.MINE, verify.cli.MINE, numpy_ref.MINE, support.MINE) == (1, 2, 3, 4)

@pytest.mark.parametrize("name", ["backend", "seed", "dtype", "profile", "op"])
def test_options(name, pytestconfig):
    assert pytestconfig.getoption(name) == ("mine" if name == "backend" else "theirs")

def test_the_plugin_is_there_and_light(pytestconfig):
    assert pytestconfig.pluginmanager.has_plugin("attnverify.plugin")
    heavy = {"numpy", "hypothesis", "attnverify.spec", "attnverify.plugin.run", "click", "rich"}
    assert not heavy & {*sys.modules}
""",
}
"""A project with names, options and markers of its own, some of which were ours once."""

LIGHT = ("-p", "no:cacheprovider", "-p", "no:benchmark", "-p", "no:jaxtyping")
"""Other plugins of the environment: two leave files behind, and jaxtyping's imports NumPy."""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in THEIRS.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_the_tests_of_a_project_run_as_if_we_were_not_there(
    installed: Environment, project: Path
) -> None:
    done = installed.run("-m", "pytest", "-q", *LIGHT, "--backend", "mine", folder=project)
    assert "13 passed" in done.stdout and "deselected" not in done.stdout
    assert {path.name for path in project.iterdir()} <= {
        "__pycache__",
        *(Path(name).parts[0] for name in THEIRS),
    }


KERNEL = """
import numpy as np

PRECISION = "wide"


def shift_right(x):
    N, M = x.shape[-2:]
    y = np.concatenate([x, np.zeros((*x.shape[:-1], 1), x.dtype)], axis=-1)
    return y.reshape(*x.shape[:-2], (M + 1) * N)[..., : N * M].reshape(x.shape).copy()
"""


def test_a_project_takes_the_differential_tests(installed: Environment, project: Path) -> None:
    (project / "kernel.py").write_text(KERNEL)
    (project / "tests" / "test_attention.py").write_text(
        "from attnverify.differential import test_side_effects, test_values\n"
    )
    line = ("--attn-backend=kernel.py", "--attn-profile=quick", "--attn-dtype=float32")
    test = "tests/test_attention.py"
    done = installed.run("-m", "pytest", test, "-p", "no:cacheprovider", *line, folder=project)
    assert "2 cells: 2 passed" in done.stdout


def test_an_installation_says_that_it_runs(installed: Environment, tmp_path: Path) -> None:
    done = installed.run("-m", "attnverify", "--version", folder=tmp_path)
    assert f"(installed: {installed.packages / 'attnverify'})" in done.stdout


def test_an_installation_judges_a_file(installed: Environment, tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text(KERNEL)
    line = ("run", "kernel.py", "--profile", "quick", "--dtype", "fp32", "-k", "values")
    done = installed.run("-m", "attnverify", *line, folder=tmp_path)
    assert "1 cell: 1 passed" in done.stdout and str(installed.packages) in done.stdout


USERS_FILE = """
import attnverify as av
from attnverify.spec import softmax

reveal_type(softmax)
reveal_type(av.check)
av.check(len, 3)
"""


def test_a_users_file_is_checked_against_the_types_of_the_wheel(
    installed: Environment, tmp_path: Path
) -> None:
    (tmp_path / "user.py").write_text(USERS_FILE)
    line = ["--python-executable", installed.python, "--cache-dir", "cache", "user.py"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *line],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stdout.splitlines()
    assert "def (score: " in said[0] and "-> attnverify.interface.Report" in said[1], done.stdout
    assert 'Argument 2 to "check" has incompatible type "int"' in said[2] and len(said) == 4


def test_the_ways_into_ones_own_tests_work_from_the_wheel(
    installed: Environment, tmp_path: Path
) -> None:
    go_the_ways_into_ones_own_tests(tmp_path, installed.python)
