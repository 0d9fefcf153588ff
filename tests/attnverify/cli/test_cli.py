"""The command line: ``attnverify run`` is the pytest line, ``attnverify list`` the catalogue."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from attnverify import __version__, describe_installation
from attnverify.catalogue.operation import CATALOGUE
from attnverify.cli import main, operations
from attnverify.options import operation_names, parse_dtype
from tests.support.run_attnverify import ROOT, in_a_process, in_pytest, judged, report_in, verify
from tests.support.sample_backends import HERE

FIRST = str(HERE / "mixed_verdicts.py")
CHAPTERS = "from attnverify.differential import *\n"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def in_any_order(report: dict[str, Any]) -> list[str]:
    return sorted(json.dumps(tally, sort_keys=True) for tally in report["tallies"])


def test_verify_run_equals_the_pytest_line() -> None:
    Path("test_all.py").write_text(CHAPTERS)
    options = ("--backend", FIRST, "--profile", "quick", "--dtype", "float32")
    line = in_pytest(
        "test_all.py",
        "-m",
        "differential",
        *options,
        "--report-json",
        "line.json",
        "--failures",
        "line",
    )
    done = judged("--backend", FIRST, "--failures", "run")
    assert line.status == done.status == 1
    assert in_any_order(report_in("line.json")) == in_any_order(done.report or {})


def test_an_option_that_may_be_repeated_takes_several_values_at_once() -> None:
    both = ("--dtype", "f32,float16", "--op", "softmax,shift_right", "--collect-only")
    named = judged(FIRST, *both).output
    apart = ("--dtype", "f32", "--dtype", "f16", "--op", "softmax", "--op", "shift_right")
    assert named == judged(FIRST, *apart, "--collect-only").output and "float16" in named
    refused = verify("run", FIRST, "--dtype", "float32,float17")
    assert refused.status == 4 and "got float17" in refused.output
    assert "got float32,float16" in verify("identify", FIRST, "--dtype", "float32,float16").output


def test_verify_list_names_every_operation_and_its_parameters() -> None:
    done = verify("list")
    assert done.status == 0
    named, said = done.output.splitlines()[::2], done.output.splitlines()[1::2]
    assert [line.partition("(")[0] for line in named] == list(CATALOGUE)
    assert "alibi_attention(query, key, value, visible)" in named
    assert "  Weights that are positive and sum to one over the keys that a row sees." in said
    assert all(re.fullmatch(r"  \S.*[^.:]\.", line) for line in said)


def test_attention_alone_is_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both were refused, though what is meant is clear."""
    monkeypatch.chdir(tmp_path)
    done = verify("list", "attention")
    named = [line.partition("(")[0] for line in done.output.splitlines()[::2]]
    assert done.status == 0 and {"alibi_attention", "self_attention"} < {*named} < {*CATALOGUE}
    assert not any(name.endswith("_grad") for name in named)
    done = verify("new", "attention")
    assert done.status == 0 and "scaled_dot_product_attention.py: write the function" in done.output


WRONG = {
    "no command": ((), "Commands:"),
    "a misspelt command": (("rnu",), "Did you mean 'run'?"),
    "a misspelt first word of a command": (("benhc",), "Did you mean 'bench'?"),
    "an argument too few": (("replay",), "Missing argument 'HASH...'"),
    "a misspelt option": (("run", FIRST, "--bakend", "x"), "Did you mean '--backend'?"),
    "a misspelt operation": (("run", FIRST, "--op", "sotfmax"), "did you mean softmax?"),
    "a part of an operation": (("new", "alibi"), "did you mean alibi_attention or "),
    "what several have in their names": (("new", "head"), "or multi_head_attention or "),
    "an unknown dtype": (("identify", FIRST, "--dtype", "int8"), "wanted float64, float32"),
    "an unknown profile": (("run", FIRST, "--profile", "quik"), "did you mean quick?"),
    "a seed that is no number": (("run", FIRST, "--seed", "abc"), 'or "random", got abc'),
    "a negative time": (("replay", "0", "--case-seconds", "-1"), "wanted a number above 0, got -1"),
    "no backend": (("run",), "attnverify run my_kernel.py"),
    "no backend for hours": (("campaign",), "attnverify run my_kernel.py"),
    "an unknown option of pytest": (("run", FIRST, "--", "--no-such"), "--no-such"),
    "a seed of Hypothesis": (("run", FIRST, "--hypothesis-seed", "3"), "write --seed 3"),
    "two operations for a function": (
        ("run", "--fn", "numpy:fmax", "--op", "softmax", "--op", "dropout"),
        "wanted one --op",
    ),
    "nothing to forget": (("forget",), "wanted the hashes of records, or --all"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_line_ends_with_status_4_and_a_hint(what: str) -> None:
    arguments, words = WRONG[what]
    done = verify(*arguments)
    assert done.status == 4 and words in done.output and "INTERNALERROR" not in done.output


def test_a_dtype_may_be_named_as_the_field_does() -> None:
    assert {parse_dtype(alias) for alias in ("fp16", "f16", "half", "float16")} == {"float16"}
    done = judged(FIRST, "--op", "shift_right", dtype="half")
    assert done.status == 0
    assert {tally["dtype"] for tally in (done.report or {})["tallies"]} == {"float16"}


def test_a_file_may_be_named_without_an_option() -> None:
    done = judged(FIRST, "--op", "shift_right")
    assert {tally["backend"] for tally in (done.report or {})["tallies"]} == {"mixed_verdicts"}


def test_pytest_options_are_passed_on() -> None:
    done = judged(FIRST, "-k", "values and rel_shift", "--junitxml", "out.xml", "-v")
    assert list(done.verdicts()) == [("rel_shift", "values")]
    assert Path("out.xml").read_text().count("<testcase ") == 1


def test_junit_names_each_cell_and_says_its_verdict_in_short_words() -> None:
    judged(FIRST, "--op", "rel_shift", "--junitxml", "out.xml", "-n", "1")
    suite = ElementTree.parse("out.xml").getroot()[0]
    assert suite.get("name") == "attnverify"
    for cell in suite:
        told = {each.get("name"): str(each.get("value")) for each in cell.iter("property")}
        assert cell.get("classname") == "attnverify.rel_shift"
        assert str(cell.get("name")).startswith(f"{told['aspect']} [")
        assert max(map(len, told.values())) < 200 and told["operation"] == "rel_shift"
        assert told["tally"].split()[:2] == [told["verdict"], told["aspect"].split()[0]]


def test_what_follows_two_dashes_is_pytests() -> None:
    done = judged(FIRST, "--op", "shift_right", "--", "--setup-plan")
    assert "SETUP    S attnverify_run" in done.output


def test_the_reader_of_a_pipe_may_leave_early() -> None:
    line = f"{sys.executable} -m attnverify list | true"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", line],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
        check=False,
    )
    assert (done.stderr, done.returncode) == ("", 2)


def test_the_version_says_where_it_lies() -> None:
    assert verify("--version").output == f"attnverify {__version__} (checkout: {ROOT})\n"


def test_the_first_line_needs_no_array_library() -> None:
    program = (
        "import sys, pytest; from attnverify.cli import main; "
        "pytest.main = lambda _: print(*{'numpy', 'torch', 'hypothesis'} & {*sys.modules}) or 0; "
        f"sys.exit(main(['run', {FIRST!r}, '--op', 'softmax']))"
    )
    done = in_a_process(start=("-c", program))
    assert done.output == f"{describe_installation()}: {FIRST}\n\n"


def test_the_names_of_operations_are_those_of_the_catalogue() -> None:
    forward = [name for name, operation in CATALOGUE.items() if not operation.is_gradient]
    assert sorted(operation_names()) == sorted(forward)


def test_list_says_what_an_operation_is() -> None:
    lines = verify("list", "alibi_attention").output.splitlines()
    assert "  query      float [B H N D]" in lines
    assert "  visible    bool [...] or None (True shows a key), by default None" in lines
    assert "  -> output  float [B H N E]" in lines
    assert any(line.startswith("  4. With N > M") for line in lines)
    assert any("M keys and values (columns); D width of a query" in line for line in lines)
    assert any(line.startswith("made of: ") and "get_slopes" in line for line in lines)
    assert any(line.startswith("in NumPy: ") and "alibi.py, line " in line for line in lines)


@pytest.mark.parametrize(
    ("operation", "line"),
    [
        ("scaled_dot_product_attention", "  mask       .* \\(True shows a key\\), by default None"),
        ("multi_head_attention", "  key_padding_mask  .* \\(True hides a key\\), by default None"),
        ("alibi_attention", "  visible    .* \\(True shows a key\\), by default None"),
    ],
)
def test_what_true_means_in_a_mask_is_said(operation: str, line: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    assert verify("new", operation, "-o", str(file)).status == 0
    for text in (verify("list", operation).output, file.read_text()):
        assert re.search(line, text)


@pytest.mark.parametrize("operation", CATALOGUE)
def test_list_shows_no_markup(operation: str) -> None:
    output = verify("list", operation).output
    assert not re.search(r":\w+:`|\\|`", output.partition("in NumPy")[0])


@pytest.mark.parametrize("operation", operation_names())
def test_every_operation_has_shapes_and_a_template_that_is_python(operation: str) -> None:
    specification = CATALOGUE[operation].specification
    lines = "\n".join(operations.shapes(specification))
    assert not {"jaxtyping", "<class", "collections"} & set(re.split(r"[. ]", lines))
    assert operations.sentence(specification).endswith((".", ":"))
    compile(operations.template(specification, "torch", "x.py"), "x.py", "exec")


def test_a_new_file_names_its_operation_and_is_judged_as_unsupported() -> None:
    assert verify("new", "softmax", "--arrays", "numpy").status == 0
    done = judged("softmax.py")
    assert done.status == 2 and "softmax is not written yet" in str(done.report)


def test_a_file_that_is_there_is_not_written_over() -> None:
    Path("softmax.py").write_text("mine")
    assert verify("new", "softmax").status == 2 and Path("softmax.py").read_text() == "mine"


def test_one_function_may_be_judged_as_an_operation() -> None:
    Path("mine.py").write_text(
        "import numpy as np\n\n\ndef moved(x):\n    raise NotImplementedError('not yet')\n"
    )
    done = judged("--fn", "mine.py:moved", "--op", "shift_right")
    assert set(done.verdicts()) == {
        ("shift_right", a) for a in ("values", "refusals", "side effects")
    }


def test_the_folder_of_what_a_run_leaves_behind_ignores_itself() -> None:
    judged(FIRST, "--op", "causal_mask")
    assert Path(".attnverify/.gitignore").read_text() == "*\n"


def recorded() -> list[Path]:
    return sorted(Path(".attnverify/failures").glob("*"))


def test_a_failure_that_is_forgotten_is_gone() -> None:
    judged(FIRST, "--op", "causal_mask")
    first = next(path.stem for path in recorded() if path.suffix == ".json")
    assert verify("forget", first).status == 0 and first not in {path.stem for path in recorded()}
    assert verify("forget", first).status == 2
    assert verify("forget", "--all").status == 0 and recorded() == []


def test_several_failures_are_shown_again_by_one_command() -> None:
    judged(FIRST, "--op", "causal_mask")
    (path,) = [str(path) for path in recorded() if path.suffix == ".json"]
    done = verify("replay", path, path)
    assert done.status == 1 and done.output.count("  recipe: causal_mask") == 2


def test_help_names_the_commands() -> None:
    done = in_a_process("--help")
    assert done.status == 0 and all(
        word in done.output for word in ("run", "replay", "list", "Exit status")
    )


def test_verify_run_says_its_options() -> None:
    done = in_a_process("run", "--help")
    assert done.status == 0 and all(
        word in done.output
        for word in ("--backend", "--known-failures", "--report-json", "--profile")
    )


def test_verify_run_needs_no_directory_of_ours() -> None:
    Path("mine.py").write_text(Path(FIRST).read_text())
    done = in_a_process(
        "run",
        "--backend",
        "mine.py",
        "--op",
        "shift_right",
        "--profile",
        "quick",
        "--dtype",
        "float32",
    )
    assert done.status == 0 and "passed" in done.output
    assert {path.name for path in Path().iterdir()} <= {
        "mine.py",
        ".attnverify",
        "__pycache__",
        ".hypothesis",
        ".benchmarks",
    }


def test_the_tests_of_the_directory_are_not_collected() -> None:
    Path("test_theirs.py").write_text("def test_theirs():\n    assert False\n")
    Path("conftest.py").write_text("raise RuntimeError('somebody else')\n")
    Path("pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    assert judged("--backend", FIRST, "--op", "shift_right").status == 0


def test_a_file_that_is_not_there_is_told_before_anything_is_loaded() -> None:
    Path("kernel.py").write_text("")
    program = "import sys; from attnverify.cli import main; status = main(['run', 'kernle.py']); "
    program += "print(*{'numpy', 'pytest'} & {*sys.modules}); sys.exit(status)"
    done = in_a_process(start=("-c", program))
    lines = done.output.splitlines()[1:]
    assert done.status == 2 and lines[0].endswith("no file kernle.py); did you mean kernel.py?")
    assert lines[1:] == [""]


def test_a_syntax_error_is_shown_with_its_line() -> None:
    Path("broken.py").write_text("def softmax(score):\n    return (score\n")
    lines = verify("run", "broken.py").output.splitlines()
    assert lines[1].endswith("SyntaxError: '(' was never closed (line 2))")
    assert lines[2:] == ["    return (score", "           ^"]


def test_a_neighbour_is_judged_beside_a_file_that_cannot_be_read() -> None:
    done = judged(FIRST, "none.py", "--op", "shift_right")
    assert done.status == 2 and done.verdicts()["shift_right", "values"] == "passed"
    assert done.output.index("no file none.py") < done.output.index("verification")


def test_what_a_file_has_is_told_where_nothing_of_it_was_asked_for() -> None:
    Path("mine.py").write_text("def shift_right(x):\n    return x\n")
    done = verify("run", "mine.py", "--op", "softmax")
    assert (
        done.status == 2 and "mine.py has shift_right, and nothing of --op softmax" in done.output
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def softmax(score): ...\ndef rel_shift(x): ...\n", "got 2 (rel_shift, softmax)"),
        ("def helper(): ...\n", "by --op, got 0"),
    ],
)
def test_the_operation_of_ones_own_arrays_must_be_told(text: str, words: str) -> None:
    Path("mine.py").write_text(text)
    Path("case.npz").write_bytes(b"")
    done = verify("run", "mine.py", "--inputs", "case.npz")
    assert done.status == 4 and words in done.output
    assert "no file other.npz" in verify("run", "mine.py", "--inputs", "other.npz").output


def test_the_only_operation_of_a_file_is_that_of_ones_own_arrays() -> None:
    Path("mine.py").write_text("import numpy as np\ndef softmax_online(score): ...\n")
    Path("empty.npz").write_bytes(b"")
    assert "wanted a file of NumPy" in verify("run", "mine.py", "--inputs", "empty.npz").output


@pytest.mark.parametrize("library", ["torch", "numpy"])
def test_a_new_file_takes_arrays_of_a_library_that_is_installed(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "find_spec", lambda name: name == library or None)
    assert f"for arrays of {library}" in verify("new", "softmax").output
    assert f"import {library}\n" in Path("softmax.py").read_text()


def test_a_mistake_of_ours_is_not_a_verdict(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: list[str]) -> int:
        raise RecursionError("of ours")

    monkeypatch.setattr("attnverify.cli.run_command", fail)
    assert main(["run", "kernel.py"]) == 3
    assert "RecursionError: of ours" in (words := capsys.readouterr().err)
    assert words.splitlines()[-1].startswith("attnverify: an error of attnverify itself")
