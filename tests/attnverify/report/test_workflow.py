"""A report in a workflow: annotations, the summary, and the steps of the action as they stand."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from attnverify import ROOT, __version__
from attnverify.backends.loader import load
from attnverify.backends.modules import NOT_COMPILED, line_of
from attnverify.report import workflow
from tests.packaging.wheel_environment import copy_sources
from tests.support import synthetic_reports
from tests.support.run_attnverify import searched

yaml = pytest.importorskip("yaml", reason="the extra test brings it")

RIGHT = """
from attnverify import spec


def get_slopes(n_heads):
    return spec.get_slopes(n_heads)
"""
WRONG = """
import numpy as np


def get_slopes(n_heads):
    return 2.0 ** (-8 * np.arange(1, n_heads + 1) / n_heads)
"""


def report(source: str = "kernel.py") -> dict:
    made = synthetic_reports.large(12)
    made["backends"][0] |= {"name": made["tallies"][0]["backend"], "source": source}
    return made


def test_each_failed_cell_is_one_line_with_its_level():
    made = report()
    lines = list(workflow.annotate(made, "answer"))
    assert len(lines) == len(workflow.failures(made)) > 0
    assert all(re.match(r"::(error|warning) file=kernel\.py,line=1,title=", line) for line in lines)
    required = [tally["aspect"] in ("values", "gradients") for tally in workflow.failures(made)]
    assert [line.startswith("::error") for line in lines] == required


def test_words_of_a_report_end_no_command_and_open_no_tag():
    made = synthetic_reports.hostile()
    for line in workflow.annotate(made):
        assert re.fullmatch(r"::(error|warning) (file=[^:,]*,line=1,)?title=[^:,]*::.*", line), line
    assert "<script>" not in "\n".join(workflow.summarise(made))
    assert workflow.escape("50%\n, a:b", ":,") == "50%25%0A%2C a%3Ab"


def test_a_cell_that_a_change_makes_right_is_annotated_at_that_line() -> None:
    mend = {"file": "mine.py", "line": 7, "change": "with `a` instead of `b`"}
    assert workflow.find_mend({"findings": [{}, {"mend": mend}]}) == ("mine.py", 7)
    assert workflow.find_mend({"findings": [{"mend": None}]}) is None
    made = report()
    workflow.failures(made)[0]["findings"] = [{"mend": mend}]
    assert "file=mine.py,line=7," in next(workflow.annotate(made, "answer"))


def test_the_line_of_the_function_is_found(tmp_path: Path):
    (tmp_path / "kernel.py").write_text(WRONG)
    tally = {
        "implementation": "get_slopes",
        "operation": "get_slopes",
        "how": "",
        "aspect": "values",
    }
    for name, line in (("kernel.py", 5), ("none.py", 1)):
        path = (tmp_path / name).as_posix()
        assert workflow.find_place(path, tally) == (path, line)


BY_HAND = """class Own(Function):
    @staticmethod
    def backward(ctx, d_output):
        return d_output


def softmax(score):
    return Own.apply(score)
"""


@pytest.mark.parametrize(
    ("text", "aspect", "line"),
    [
        (BY_HAND, "values", 7),
        (BY_HAND, "gradients", 3),
        (
            BY_HAND + "\n\ndef softmax_grad(d_output, score):\n    return d_output\n",
            "gradients",
            11,
        ),
        (
            BY_HAND + "\n\nclass Other(Function):\n    def backward(ctx, x):\n        pass\n",
            "gradients",
            7,
        ),
    ],
)
def test_a_gradient_is_placed_at_the_one_backward_of_a_file(
    text: str, aspect: str, line: int, tmp_path: Path
):
    (tmp_path / "kernel.py").write_text(text)
    tally = {"implementation": "softmax", "operation": "softmax", "how": "", "aspect": aspect}
    path = (tmp_path / "kernel.py").as_posix()
    assert workflow.find_place(path, tally) == (path, line)


MOVED = "import numpy as np\n\n\ndef moved(x):\n    return x\n"


@pytest.mark.parametrize(
    ("source", "place"),
    [
        ("kernel.py", ("kernel.py", 5)),
        ("kernel.py:get_slopes", ("kernel.py", 5)),
        ("kernel:get_slopes", ("kernel.py", 5)),
        ("kernel", ("kernel.py", 5)),
        ("lone.py", ("lone.py", 4)),
        ("lone.py:moved=get_slopes", ("lone.py", 4)),
        ("assigned.py", ("assigned.py", 2)),
        ("assigned.py:made=get_slopes", ("assigned.py", 3)),
        ("package", ("package/slopes.py", 5)),
        ("package.slopes", ("package/slopes.py", 5)),
        ("package:get_slopes", ("package/slopes.py", 5)),
    ],
)
def test_the_place_is_found_however_a_backend_is_named(
    source: str, place: tuple[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    Path("package").mkdir()
    files = {"kernel.py": WRONG, "lone.py": MOVED, "package/slopes.py": WRONG}
    files["package/__init__.py"] = "from .slopes import get_slopes\n"
    files["assigned.py"] = "import kernel\nget_slopes = kernel.get_slopes\nmade = get_slopes\n"
    for name, text in files.items():
        Path(name).write_text(text)
    tally = {
        "implementation": "get_slopes",
        "operation": "get_slopes",
        "how": "",
        "aspect": "values",
    }
    assert workflow.find_place(source, tally) == place


def test_a_file_that_is_no_python_is_annotated_at_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    Path("kernel.py").write_text("\n\ndef softmax(score)\n    return score\n")
    made, backend = report(), load("kernel.py")
    made["backends"][0] |= {"broken": backend.broken, "line": backend.line}
    assert next(workflow.annotate(made)).startswith("::error file=kernel.py,line=3,title=")


def test_the_line_that_nvrtc_does_not_compile_is_that_of_its_first_error():
    words = f"{NOT_COMPILED}\nkernel.py(7): error: x is undefined\nkernel.py(9): error: y"
    assert line_of(RuntimeError(words)) == 7


def test_a_backend_that_cannot_be_judged_is_an_error():
    made = report()
    made["backends"][0]["broken"] = "SyntaxError: invalid syntax"
    first = next(workflow.annotate(made))
    assert first.startswith("::error file=kernel.py,line=1,title=not judged::SyntaxError")


def steps() -> list[dict]:
    return yaml.safe_load((ROOT / "action.yml").read_text())["runs"]["steps"]


def run_steps(
    folder: Path,
    python: str = sys.executable,
    action: Path = ROOT,
    cache: Path | None = None,
    **given: str,
) -> tuple[int, str]:
    """
    Run the action's own lines as a runner does: each in bash -e, its inputs in the environment. The
    artifact stays where it is; what it installs is installed already, but for a Python of its own.
    """
    asked_for = yaml.safe_load((ROOT / "action.yml").read_text())["inputs"]
    inputs = {name: given.get(name, each.get("default")) for name, each in asked_for.items()}
    files = {name: folder / name for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    known = {f"inputs.{name}": str(value) for name, value in inputs.items()}
    known["github.action_path"] = str(action)
    installed = python == sys.executable
    said = ""
    for step in steps()[installed:]:
        if step.get("uses", "").startswith("actions/cache/") and cache:
            restore_or_save(step, folder, cache)
        if "run" not in step:
            continue
        outputs = dict(re.findall("(.*)=(.*)", read(files["GITHUB_OUTPUT"])))
        known |= {f"steps.judge.outputs.{name}": value for name, value in outputs.items()}
        asked = {name: filled(value, known) for name, value in step["env"].items()}
        path = os.pathsep.join((str(Path(python).parent), os.environ["PATH"]))
        environment = os.environ | asked | {name: str(file) for name, file in files.items()}
        environment |= {"PATH": path} | ({"PYTHONPATH": searched(ROOT)} if installed else OFFLINE)
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240
        )
        said += done.stdout
        if done.returncode:
            return done.returncode, said + done.stderr
    return 0, said


OFFLINE = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PYTHONPATH": ""}
"""Nothing is fetched (pip reads the second as a setting that is said without its no)."""


def restore_or_save(step: dict, folder: Path, cache: Path) -> None:
    """What actions/cache does with its path."""
    here = folder / step["with"]["path"]
    source, target = (cache, here) if "restore" in step["uses"] else (here, cache)
    if source.exists():
        shutil.copytree(source, target, dirs_exist_ok=True)


def filled(value: str, known: dict[str, str]) -> str:
    """An expression of a workflow with what it stands for."""
    return re.sub(r"\$\{\{ (.*?) \}\}", lambda found: known[found[1]], value)


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


@pytest.mark.parametrize(("code", "status"), [(RIGHT, 0), (WRONG, 1)], ids=["right", "wrong"])
def test_the_steps_of_the_action_judge_a_kernel(tmp_path: Path, code: str, status: int):
    (tmp_path / "kernel.py").write_text(code)
    ended, said = run_steps(tmp_path, backend="kernel.py", operations="get_slopes")
    assert ended == status, said
    assert ("::error file=kernel.py,line=5,title=get_slopes" in said) == bool(status)
    summary = read(tmp_path / "GITHUB_STEP_SUMMARY")
    assert "| `get_slopes` |" in summary and ("no failure" in summary) == (not status)
    kept = {path.name for path in (tmp_path / "attnverify-report").iterdir()}
    programs = {"reproducers"} if status else set()
    assert kept == {"report.html", "report.json", "junit.xml"} | programs


def test_records_outlive_a_run_and_poison_none(tmp_path: Path):
    cache = tmp_path / "cache"
    for code, status in ((WRONG, 1), (RIGHT, 0)):
        folder = tmp_path / str(len([*tmp_path.iterdir()]))
        folder.mkdir()
        (folder / "kernel.py").write_text(code)
        ended, said = run_steps(folder, cache=cache, backend="kernel.py", operations="get_slopes")
        assert ended == status, said
        records = [*cache.glob("*.json")]
        assert records and ((folder / ".attnverify").exists())
        (cache / "0123456789ab.json").write_text(records[0].read_text()[:50])
        (cache / "ba9876543210.json").write_text('{"format": 99}')


@pytest.mark.thorough
def test_the_action_installs_itself_in_a_fresh_environment(tmp_path: Path):
    python, action = fresh_environment(tmp_path / "fresh"), copy_sources(tmp_path / "action")
    for code, status in ((RIGHT, 0), (WRONG, 1)):
        work = tmp_path / f"work{status}"
        work.mkdir()
        (work / "kernel.py").write_text(code)
        ended, said = run_steps(work, python, action, backend="kernel.py", operations="get_slopes")
        assert ended == status and "1 implementation" in said, said
        assert f"attnverify {__version__} (installed: {tmp_path}/fresh/" in said


def fresh_environment(folder: Path) -> str:
    """An environment with pip alone, which sees what this one has but for attnverify itself."""
    venv.create(folder, with_pip=True, symlinks=True)
    python = str(folder / "bin" / "python")
    subprocess.run([python, "-m", "pip", "-q", "uninstall", "-y", "setuptools"], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    ours = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (packages / "dependencies.pth").write_text("\n".join(sorted(ours)) + "\n")
    return python


def test_the_action_begins_with_its_installation_and_keeps_the_report():
    first, *_ = steps()
    assert first["run"].endswith('install --quiet "$ACTION_PATH"')
    fetched, saved, kept = [step for step in steps() if "uses" in step]
    assert fetched["with"]["path"] == saved["with"]["path"] == ".attnverify/failures"
    assert fetched["with"]["key"] == saved["with"]["key"] and fetched["if"] == saved["if"]
    assert kept["uses"].startswith("actions/upload-artifact@") and "report" in kept["with"]["path"]


@pytest.mark.parametrize("source", ["mine.py", "mine.py:fast=softmax", "mine", "mine:fast=softmax"])
def test_annotations_have_file_and_line_however_a_backend_is_named(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = "fast" if ":" in source else "softmax"
    Path("mine.py").write_text(f"import math\n\n\ndef {name}(score):\n    return score\n")
    tally = {"implementation": "softmax", "operation": "softmax", "how": "", "backend": "mine"}
    tally |= {"dtype": "float32", "aspect": "values", "verdict": "failed", "reason": "it"}
    backend = {"name": "mine", "source": source, "broken": None, "missing": None}
    (line,) = workflow.annotate({"backends": [backend], "tallies": [tally]})
    assert line.startswith("::error file=mine.py,line=4,")
