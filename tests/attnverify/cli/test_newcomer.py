"""
The first half hour: what a newcomer types, in a fresh environment that has the wheel, and the files
that a newcomer would write. All that the command prints is compared with what must stand in it.
"""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from attnverify import ROOT
from tests.packaging.wheel_environment import build_wheel, create_environment

pytestmark = pytest.mark.xdist_group("newcomer")

FILES = ROOT / "tests" / "sample_newcomers"
README = (ROOT / "README.md").read_text()

VALUES = ("--profile", "quick", "--dtype", "fp32", "-k", "values")
BOTH = ("--profile", "quick", "--dtype", "fp64", "--dtype", "fp32", "-k", "values")
TRITON = ("--profile", "quick", "--dtype", "fp16", "-k", "values or gradients")

CHANGING = (
    (r"^(\d+/\d+ cells, .*|loading .* \.\.\.)\n", ""),
    (r" \(installed: .*?\)", ""),
    (r", with subnormal numbers of bfloat16 as 0, as torch has them here", ""),
    (r"(?s)  processor: .*?\n(?=  \S+\.py: )", ""),
    (r"(?s)  recipe: .*?\n(?=  replay:)", ""),
    (r"^(  known failures: .*?) when .*? :", r"\1 when WHERE :"),
    (r"^(  \d+\. .*) when .*", r"\1 when WHERE"),
    (r"[=_]{3,}", ""),
    (r"\b[0-9a-f]{12}\b", "HASH"),
    (r"[-+]?\b\d+(\.\d+)*(e[-+]?\d+)?", "#"),
    (r" in (# \(#:#:#\)|#s( \(#:#:#\))?)$", ""),
)
"""What no two machines have in common, or hangs on what was drawn."""


def unchanging(output: str) -> list[str]:
    """The lines of an output with ``#`` for each number, without names that a machine chose."""
    for pattern, word in CHANGING:
        output = re.sub(pattern, word, output, flags=re.MULTILINE)
    return [line for line in (" ".join(each.split()) for each in output.splitlines()) if line]


class Newcomer:
    """Somebody in a folder of their own, with the command in an environment of their own."""

    def __init__(self, command: Path, folder: Path) -> None:
        self.command, self.folder, self.columns = command, folder, 400

    def types(self, *words: str) -> tuple[int, str]:
        """The status and all that is printed."""
        done = subprocess.run(
            [str(self.command), *words],
            cwd=self.folder,
            env={
                "PATH": f"{self.command.parent}:/usr/bin:/bin",
                "OMP_NUM_THREADS": "1",
                "COLUMNS": str(self.columns),
                "PYTHONPATH": os.environ.get("PYTHONPATH", ""),  # calls of model size, or none
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Path:
    wheel = build_wheel(tmp_path_factory.mktemp("wheel"))
    environment = create_environment(tmp_path_factory.mktemp("environment"), wheel)
    return Path(environment.python).parent / "attnverify"


@pytest.fixture
def newcomer(command: Path, tmp_path: Path) -> Newcomer:
    return Newcomer(command, tmp_path)


def judged(newcomer: Newcomer, name: str, *options: str) -> tuple[int, str]:
    shutil.copy(FILES / name, newcomer.folder / name.replace("_error.txt", "_error.py"))
    return newcomer.types("run", name.replace("_error.txt", "_error.py"), *options)


@pytest.mark.parametrize(
    ("name", "status", "options"),
    [
        ("alibi_right.py", 0, BOTH),
        ("alibi_tiles.py", 1, VALUES),
        ("numpy_naive.py", 1, VALUES),
        ("renamed.py", 0, VALUES),
        ("syntax_error.txt", 2, ()),
        pytest.param("triton_sdpa.py", 0, TRITON, marks=pytest.mark.thorough),
    ],
    ids=["right", "tiles", "numpy", "renamed", "syntax", "triton"],
)
def test_all_that_is_printed_of_a_newcomers_file(
    name: str, status: int, options: tuple[str, ...], newcomer: Newcomer
) -> None:
    if name == "triton_sdpa.py":
        pytest.importorskip("triton")
    ended, output = judged(newcomer, name, "-v", *options)
    expected = (FILES / "printed" / f"{Path(name).stem}.txt").read_text().splitlines()
    assert unchanging(output) == expected
    assert ended == status


@pytest.mark.thorough
@pytest.mark.usefixtures("real_calls_are_judged")
def test_the_whole_first_run_of_a_right_alibi_is_green(newcomer: Newcomer) -> None:
    status, output = judged(newcomer, "alibi_right.py", "--profile", "quick")
    assert status == 0
    assert "not required, and not met: " in output and len(output.splitlines()) < 16


@pytest.mark.thorough
@pytest.mark.usefixtures("real_calls_are_judged")
def test_a_forgotten_tail_of_an_own_triton_kernel_is_found(newcomer: Newcomer) -> None:
    pytest.importorskip("triton")
    lines = (FILES / "triton_sdpa.py").read_text().splitlines()
    text = "\n".join(line for line in lines if "# TAIL" not in line)
    (newcomer.folder / "mine.py").write_text(text + "\n")
    assert newcomer.types("run", "mine.py", *TRITON)[0] == 1


def test_a_function_of_a_library_is_judged_by_its_name(newcomer: Newcomer) -> None:
    text = "from torch.nn.functional import scaled_dot_product_attention\n"
    (newcomer.folder / "mine.py").write_text(text)
    status, output = newcomer.types("run", "mine.py")
    assert status == 2
    assert "judge it by: attnverify run mine.py:scaled_dot_product_attention" in output


def test_another_word_or_a_missing_line_is_a_difference() -> None:
    printed = "  cause: in tiles of 32 keys\n  replay: attnverify replay 5398a8e40e77\n"
    assert unchanging(printed) == unchanging(printed.replace("32", "64"))
    assert unchanging(printed) != unchanging(printed.replace("tiles", "rows"))
    assert unchanging(printed) != unchanging(printed.partition("  replay")[0])


# The lines of README


def lines_of_readme() -> list[str]:
    """The command lines of README, without what explains them."""
    lines = re.findall(r"^attnverify .*", README, re.MULTILINE)
    return [line.partition("#")[0].strip() for line in lines]


def prepare(folder: Path) -> None:
    """What README's lines speak of."""
    shutil.copy(FILES / "alibi_right.py", folder / "my_kernel.py")
    shutil.copy(FILES / "rms_norm_right.py", folder / "any_kernel.py")
    shutil.copy(FILES / "rms_norm_spec.py", folder / "my_spec.py")
    rng = np.random.default_rng(0)
    shapes = {"query": (1, 2, 5, 4), "key": (1, 2, 9, 4), "value": (1, 2, 9, 3)}
    arrays = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    np.savez(folder / "case.npz", **arrays)  # type: ignore[arg-type]


def test_the_failure_in_readme_is_what_is_printed(newcomer: Newcomer) -> None:
    shown = re.findall(r"(?s)```\n(alibi_attention of my_kernel in .*?)```", README)
    shutil.copy(FILES / "alibi_plain.py", newcomer.folder / "my_kernel.py")
    line = ("run", "my_kernel.py", "-v", "--profile", "quick", "--dtype", "float16", "-k", "values")
    newcomer.columns = 100
    status, output = newcomer.types(*line)
    printed = re.findall(r"(?s)(alibi_attention of my_kernel in .*?)={9}", output)
    assert status == 1
    assert [unchanging(text) for text in printed] == [unchanging(text) for text in shown]


def test_readme_is_short() -> None:
    assert len(README.encode()) <= 6000
    first = re.search(r"(?s)## Judge your own kernel.*?```sh\n(.*?)\n", README)
    assert first and first[1].startswith("git clone ")  # what is installed must be there


SLOW = (
    "attnverify run my_kernel.py",
    "attnverify bench my_kernel.py",
    "attnverify run any_kernel.py --spec my_spec.py",
)


def test_the_quick_lines_of_readme_run_as_they_stand(newcomer: Newcomer) -> None:
    prepare(newcomer.folder)
    line = ("run", "my_kernel.py", "--op", "alibi_attention", "--inputs", "case.npz")
    assert newcomer.types(*line, "--report-json", "before.json")[0] == 0
    shutil.copy(newcomer.folder / "before.json", newcomer.folder / "after.json")
    assert json.loads((newcomer.folder / "after.json").read_text())["tallies"]
    typed = [line for line in lines_of_readme() if line not in SLOW]
    assert len(typed) >= 3
    for line in typed:
        _, *words = line.split()
        if words[0] == "new":  # it overwrites nothing
            (newcomer.folder / "my_kernel.py").unlink()
        assert (line, newcomer.types(*words)[0]) == (line, 0)
        prepare(newcomer.folder)


@pytest.mark.thorough
@pytest.mark.usefixtures("real_calls_are_judged")
@pytest.mark.parametrize("line", SLOW)
def test_the_slow_lines_of_readme_run_as_they_stand(line: str, newcomer: Newcomer) -> None:
    assert line in lines_of_readme()
    prepare(newcomer.folder)
    assert newcomer.types(*line.split()[1:])[0] == 0
