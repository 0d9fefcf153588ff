"""
attnverify doctor: what is missing or broken is told, whatever an import does, and the exit status
says whether the main job can run.
"""

import os
import sys
from pathlib import Path

import pytest

from attnverify import describe_installation, doctor
from attnverify.doctor import Answer, Question, ask_in_subprocess, blocking_problems, verdict
from attnverify.machine import PLATFORMS
from tests.support.run_attnverify import ROOT, in_a_process

SOUND = "words = ['1.0']\nprint(words[0])"
BODIES = {
    "sound": (SOUND, "ok", "1.0"),
    "raising": (
        "raise RuntimeError('the driver is too old')",
        "broken",
        "RuntimeError: the driver is too old",
    ),
    "crashing": (
        "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)",
        "broken",
        "signal 11 (SIGSEGV)",
    ),
    "leaving": ("import os\nos._exit(0)", "broken", "it ends the process before it has answered"),
    "absent": (
        "import surely_not_installed",
        "missing",
        "the package surely_not_installed is not installed",
    ),
    "hanging": ("import time\ntime.sleep(60)", "broken", "no answer in 1 s"),
    "unspeakable": ("import sys\nsys.stdout.buffer.write(bytes(range(128, 256)))", "ok", ""),
}
"""What a library may do when it is asked: the state that it is in then, and the words."""

HEAVY = (
    "torch",
    "triton",
    "cupy",
    "distributed",
    "transformers",
    "x_transformers",
    "labml_nn",
    "sphinx",
    "xdist",
)


@pytest.mark.parametrize("name", BODIES)
def test_whatever_a_library_does_is_told_in_words(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, state, words = BODIES[name]
    monkeypatch.setattr(doctor, "SECONDS", 1.0 if name == "hanging" else 60.0)
    answer = ask_in_subprocess(Question(name, ask, "everything", "pip install it"))
    assert answer.state == state and words in answer.words


def test_a_program_that_is_not_there_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    answer = ask_in_subprocess(
        doctor.program("chromium", "looking at pages", "apt-get install chromium")
    )
    assert list(answer.lines())[1:] == [
        f"{'':29}would enable looking at pages",
        f"{'':29}get it: apt-get install chromium",
    ]


def test_a_program_that_cannot_be_started_is_broken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "chromium").write_text("#!/no/such/interpreter\n")
    (tmp_path / "chromium").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert ask_in_subprocess(doctor.program("chromium", "", "")).state == "broken"


def answers(**states: str) -> list[Answer]:
    """What is needed and the backends of the project, all there but for those named."""
    needed = [question for question in doctor.QUESTIONS if question.needed]
    questions = [*needed, *map(doctor.backend, doctor.OURS)]
    return [
        Answer(question, states.get(question.name.replace("backend ", ""), "ok"), "so it is")
        for question in questions
    ]


def test_the_job_can_run_without_what_is_merely_missing() -> None:
    assert blocking_problems(answers(torch_impl="missing", cupy_impl="missing")) == []
    assert "can run here, on numpy_ref." in next(
        verdict(answers(torch_impl="missing", cupy_impl="missing"))
    )


@pytest.mark.parametrize(
    "states",
    [
        {"numpy": "missing"},
        {"pytest": "broken"},
        {"torch_impl": "broken"},
        dict.fromkeys(doctor.OURS, "missing"),
    ],
)
def test_the_job_cannot_run_without_what_it_needs(states: dict[str, str]) -> None:
    assert len(blocking_problems(answers(**states))) == 1 and next(
        verdict(answers(**states))
    ).startswith("FAILED: ")


def planted(folder: Path, **bodies: str) -> None:
    for name in HEAVY:
        (folder / f"{name}.py").write_text(
            f"raise ModuleNotFoundError({f'No module named {name!r}'!r}, name={name!r})\n"
        )
    for name, body in bodies.items():
        (folder / f"{name}.py").write_text(body + "\n")


def test_a_machine_without_the_heavy_libraries_can_do_the_job(tmp_path: Path) -> None:
    planted(tmp_path)
    done = examined(tmp_path)
    assert done.status == 0 and "can run here, on numpy_ref." in done.output
    assert done.output.startswith(f"{describe_installation()}\n")
    readme = (ROOT / "README.md").read_text()
    for platform, words in PLATFORMS.items():
        assert f"{platform:<20}{words}" in done.output and f"| {platform} | {words} |" in readme
    assert (
        "missing  torch               the package torch is not installed" in done.output
        and "get it: pip install torch" in done.output
    )


def test_a_broken_numpy_and_a_crashing_torch_are_no_traceback(tmp_path: Path) -> None:
    planted(
        tmp_path,
        numpy="raise ImportError('numpy.core.multiarray failed to import')",
        torch=BODIES["crashing"][0],
    )
    done = examined(tmp_path)
    assert done.status == 1 and "Traceback" not in done.output
    assert (
        "broken   numpy               ImportError: numpy.core.multiarray failed to import"
        in done.output
    )
    assert "broken   torch               it ends the process: signal 11 (SIGSEGV)" in done.output
    assert "  numpy is broken: " in done.output and "next: pip install" in done.output


def examined(folder: Path):
    """``attnverify doctor`` where the modules of a folder come before the real ones."""
    program = (
        f"import sys; sys.path[:0] = [{str(folder)!r}, {str(ROOT)!r}]; from attnverify.cli "
        "import main; sys.exit(main())"
    )
    return in_a_process("doctor", start=("-c", program))


def test_other_commands_point_to_the_doctor_where_a_package_is_missing(tmp_path: Path) -> None:
    planted(tmp_path, numpy="raise ModuleNotFoundError(\"No module named 'numpy'\", name='numpy')")
    program = (
        f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]; from attnverify.cli "
        "import main; sys.exit(main())"
    )
    done = in_a_process("list", start=("-c", program))
    assert (
        done.status == 2
        and done.output
        == "attnverify: No module named 'numpy'; attnverify doctor says what is missing on this "
        "machine\n"
    )


def test_the_doctor_imports_nothing_that_may_break() -> None:
    program = (
        "import sys, attnverify.cli, attnverify.doctor; print(*sorted({'numpy', 'pytest', "
        "'hypothesis', 'torch', 'spec'} & {*sys.modules}))"
    )
    assert in_a_process(start=("-c", program)).output == "\n"


def test_the_machine_is_told() -> None:
    told = "\n".join(doctor.machine())
    assert (
        f"{sys.version_info[0]}.{sys.version_info[1]}." in told
        and str(len(os.sched_getaffinity(0))) in told
        and "gpu" in told
    )
