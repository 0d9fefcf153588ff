"""The pytest plugin: its options, what it prints and reports, and the status that it ends with."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from attnverify.device_assignment import show_device
from attnverify.inputs.sampling import CASES
from attnverify.report.html import report_page
from attnverify.session import Verification
from attnverify.verdicts.tally import Options
from tests.support.run_attnverify import (
    ROOT,
    Run,
    in_a_process,
    in_pytest,
    judged,
    load_backends_here,
    report_in,
    verify,
)
from tests.support.sample_backends import HERE

FIRST, FAULTS, ALONE = (
    str(HERE / f"{name}.py") for name in ("mixed_verdicts", "one_fault_each", "last_key_forgotten")
)


@pytest.fixture(autouse=True)
def elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Every run starts in an empty directory of its own."""
    monkeypatch.chdir(tmp_path)
    if "two_workers" not in request.fixturenames:
        load_backends_here(monkeypatch)


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Run:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("run"))
        return judged("--backend", FIRST)


def test_each_verdict_has_its_word(everything: Run) -> None:
    verdicts = everything.verdicts()
    assert {
        aspect: verdicts["shift_right", aspect] for aspect in ("values", "refusals", "side effects")
    } == dict.fromkeys(("values", "refusals", "side effects"), "passed")
    assert (
        verdicts["rel_shift", "values"] == "passed"
        and verdicts["rel_shift", "refusals"] == "failed"
    )
    assert (
        verdicts["causal_mask", "values"] == "failed"
        and verdicts["causal_mask", "refusals"] == "passed"
    )
    assert {
        verdicts["get_slopes", aspect] for aspect in ("values", "refusals", "side effects")
    } == {"unsupported"}


def test_the_header_says_who_is_judged_and_how(everything: Run) -> None:
    for words in (
        "profile quick (20 cases a cell at least), seed 0",
        "numpy ",
        "hypothesis ",
        "mixed_verdicts.py: 4 implementations on cpu, numpy ",
    ):
        assert words in everything.output


def test_the_closing_table_says_everything_once(everything: Run) -> None:
    lines = {
        line.split()[0]: line.split() for line in everything.output.splitlines() if line.strip()
    }
    assert lines["shift_right"][1:4] == ["mixed_verdicts", "f32", "passed"]
    assert (
        "FAILED" in lines["rel_shift"]
        and "FAILED" in lines["causal_mask"]
        and "unsupported" in lines["get_slopes"]
    )
    closing = next(line for line in everything.output.splitlines() if " cells: " in line)
    assert (
        "2 failed" in closing
        and "3 unsupported" in closing
        and re.search(r"; \d+ cases, \d+ discriminating; \d+ checks$", closing)
    )


def test_the_report_is_for_machines(everything: Run) -> None:
    report: dict[str, Any] = everything.report or {}
    assert report["options"] == {"profile": "quick", "seed": 0, "cases": 20}
    assert [backend["source"] for backend in report["backends"]] == [FIRST]
    tally = next(
        t
        for t in report["tallies"]
        if (t["implementation"], t["aspect"]) == ("shift_right", "values")
    )
    assert (
        tally["cases"] >= 20
        and 0 < tally["strong"] <= tally["cases"]
        and tally["budget"] == 0
        and tally["dtype"] == "float32"
    )


def test_a_failure_prints_what_design_asks_for(everything: Run) -> None:
    text = next(
        t
        for t in (everything.report or {})["tallies"]
        if (t["implementation"], t["aspect"]) == ("causal_mask", "values")
    )["reason"]
    for words in (
        "causal_mask of mixed_verdicts",
        "worst at (",
        "got 1, expected 0",
        "recipe: causal_mask:",
        "replay: attnverify replay ",
    ):
        assert words in text and words in everything.output


def test_a_failure_ends_with_status_1(everything: Run) -> None:
    assert everything.status == 1


def test_of_a_file_the_answer_is_required_and_the_rest_is_told() -> None:
    done = judged(FIRST, "--op", "rel_shift", "--require", "answer")
    assert done.status == 0 and done.verdicts()["rel_shift", "refusals"] == "failed"
    page = str(report_page(done.report or {}))
    assert (
        "not required, and not met: refusals of invalid calls (--require contract asks for it)"
        in done.output
    )
    assert "not required, and no failure of this run: 1 cells of refusals not met" in page
    assert re.search(r">\s*not met\s*<", page)
    others = len(done.verdicts()) - 1
    assert f"Verification: no failure in {others} cells, 1 failed that need not hold" in page


def test_a_page_counts_what_is_required_as_failed() -> None:
    report = judged(FIRST, "--op", "rel_shift", "--require", "contract").report or {}
    page = str(report_page(report))
    assert f"Verification: 1 of {len(report['tallies'])} cells failed<" in page
    assert "not required" not in page


def test_without_a_word_of_a_file_the_answer_is_required() -> None:
    line = (FIRST, "--op", "rel_shift", "--profile", "quick", "--dtype", "float32")
    assert verify("run", *line).status == 0
    assert verify("run", *line, "--require", "contract").status == 1


def test_of_our_own_columns_everything_is_required() -> None:
    run = Verification([], (), (), Options(), [])
    assert run.is_red(tally("numpy_ref", "hidden NaN")) and run.is_red(tally("mine", "values"))
    assert not run.is_red(tally("mine", "hidden NaN"))


def test_a_weak_cell_is_red_unless_that_is_allowed() -> None:
    weak = tally("mine", "values", "weak")
    assert Verification([], (), (), Options(), []).is_red(weak)
    assert not Verification([], (), (), Options(), [], allow_weak=True).is_red(weak)


def tally(backend: str, aspect: str, verdict: str = "failed") -> dict[str, Any]:
    return {"backend": backend, "aspect": aspect, "verdict": verdict, "findings": []}


def test_a_green_run_ends_with_status_0() -> None:
    assert judged("--backend", FIRST, "--op", "shift_right").status == 0


def test_a_run_in_which_nothing_is_supported_ends_with_status_2() -> None:
    done = judged("--backend", FIRST, "--op", "get_slopes")
    assert done.status == 2 and "slopes live on the device" in done.output + str(done.report)


def test_a_run_without_a_cell_ends_with_status_2() -> None:
    assert judged("--backend", FIRST, "--op", "softmax").status == 2


def test_backend_is_repeatable() -> None:
    done = judged("--backend", FIRST, "--backend", "numpy_ref", "--op", "shift_right")
    assert {tally["backend"] for tally in (done.report or {})["tallies"]} == {
        "mixed_verdicts",
        "numpy_ref",
    }
    assert done.status == 0


def test_op_is_repeatable() -> None:
    done = judged("--backend", FIRST, "--op", "shift_right", "--op", "rel_shift")
    assert {tally["operation"] for tally in (done.report or {})["tallies"]} == {
        "shift_right",
        "rel_shift",
    }


def test_dtype_is_repeatable() -> None:
    done = judged("--backend", FIRST, "--op", "shift_right", "--dtype", "bfloat16")
    assert {tally["dtype"] for tally in (done.report or {})["tallies"]} == {"float32", "bfloat16"}


def test_without_dtype_all_are_judged() -> None:
    done = in_a_process(
        "run",
        "--backend",
        FIRST,
        "--op",
        "shift_right",
        "--profile",
        "quick",
        "--report-json",
        "all.json",
    )
    dtypes = {tally["dtype"] for tally in json.loads(Path("all.json").read_text())["tallies"]}
    assert done.status == 0 and dtypes == {"float64", "float32", "float16", "bfloat16"}


@pytest.mark.parametrize("profile", ["quick", "default"])
def test_a_profile_says_how_many_cases(profile: str) -> None:
    done = judged("--backend", FIRST, "--op", "shift_right", profile=profile)
    values = next(t for t in (done.report or {})["tallies"] if t["aspect"] == "values")
    assert values["cases"] >= CASES[profile]


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (("--op", "sofmax"), "wanted an operation of the catalogue, got sofmax"),
        (("--dtype", "int8"), "wanted float64, float32, float16, bfloat16, got int8"),
        (("--profile", "x"), "wanted quick, default, thorough, got x"),
    ],
)
def test_a_wrong_option_is_a_usage_error(option: tuple[str, str], words: str) -> None:
    done = judged("--backend", FIRST, *option)
    assert done.status == 4 and words in done.output


# The seed


def test_two_runs_of_one_seed_give_the_same_tallies() -> None:
    line = (
        "--backend",
        FAULTS,
        "--op",
        "rel_shift",
        "--op",
        "update_mems",
        "--seed",
        "7",
        "--failures",
    )
    one, two = (judged(*line, folder).report or {} for folder in ("here", "there"))
    assert one["tallies"] == two["tallies"] and one["options"]["seed"] == 7


def test_another_process_gives_the_same_tallies(everything: Run) -> None:
    in_a_process(
        "run",
        "--backend",
        FIRST,
        "--profile",
        "quick",
        "--dtype",
        "float32",
        "--report-json",
        "other.json",
    )
    assert report_in("other.json")["tallies"] == (everything.report or {})["tallies"]


def test_a_random_seed_is_told_and_can_be_asked_for_again() -> None:
    one = judged("--backend", FIRST, "--op", "rel_shift", "--seed", "random").report or {}
    seed = one["options"]["seed"]
    assert judged("--backend", FIRST, "--op", "rel_shift", "--seed", str(seed)).report == one


# The device


def test_a_device_may_be_chosen_among_those_that_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    show_device("cuda")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "3,5"
    show_device("cuda:1")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "5"
    show_device("cpu")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""


@pytest.mark.parametrize(
    ("device", "words"),
    [("tpu", "wanted cpu, cuda, cuda:N or sm_80"), ("cuda:9", "there is no CUDA device here")],
)
def test_a_device_that_is_not_there_is_a_usage_error(
    device: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    done = judged(FIRST, "--device", device)
    assert done.status == 4 and words in done.output


# Known failures


KNOWN = """# implementation  dtype  aspect : reason
rel_shift     *  refusals : takes integers and calls them floats
causal_mask   *  values   : transposed where it is square
"""


def with_known(text: str, *options: str) -> Run:
    Path("known.txt").write_text(text)
    return judged("--backend", FIRST, "--known-failures", "known.txt", *options)


def test_known_failures_are_neither_green_nor_red() -> None:
    done = with_known(KNOWN)
    assert done.status == 0
    assert (
        done.verdicts()["rel_shift", "refusals"]
        == done.verdicts()["causal_mask", "values"]
        == "known failure"
    )
    assert "2 known failure" in done.output


def test_a_known_failure_that_passes_is_an_error() -> None:
    done = with_known("shift_right  *  values : wrong, they say\n", "--op", "shift_right")
    assert done.status == 1 and "wrong, they say" in done.output and "known.txt:1" in done.output


def test_a_known_region_covers_its_cases_and_nothing_else() -> None:
    assert (
        with_known(
            "causal_mask  *  values when N == M : transposed\n", "--op", "causal_mask"
        ).status
        == 0
    )
    assert (
        with_known("causal_mask  *  values when N > M : transposed\n", "--op", "causal_mask").status
        == 1
    )


def test_a_failure_that_is_not_known_stays_one() -> None:
    assert with_known(KNOWN.splitlines()[1] + "\n").status == 1


@pytest.mark.parametrize(
    "text",
    ["rel_shift refusals : no dtype\n", "nonsense\n", "rel_shift * refusals when always : x\n"],
)
def test_a_line_that_cannot_be_read_is_a_usage_error(text: str) -> None:
    done = with_known(text)
    assert done.status == 4 and "--known-failures: known.txt:1: " in done.output


def test_a_file_that_is_not_there_is_a_usage_error() -> None:
    assert judged("--backend", FIRST, "--known-failures", "none.txt").status == 4


def test_the_file_beside_the_backend_is_read() -> None:
    Path("mine.py").write_text(Path(FIRST).read_text())
    Path("mine.known-failures.txt").write_text(KNOWN)
    assert judged("--backend", "mine.py").status == 0


def test_a_line_that_speaks_of_nothing_is_told() -> None:
    Path("mine.py").write_text(
        "from attnverify import numpy_ref as right\n\nARRAYS, PRECISION = 'numpy', 'wide'\n\n\n"
        "def shift_right(x):\n    return right.shift_right(x)\n"
    )
    Path("known.txt").write_text("# one\nsoftmax  *  values : who?\n")
    line = ("--backend", "mine.py", "--profile", "quick", "--known-failures", "known.txt")
    assert (
        "known.txt:2: speaks of no cell of this run: softmax * values"
        in verify("run", *line).output
    )


# Broken and missing: one line, status 2, never green


TROUBLE = {
    "a syntax error": ("def softmax(score:\n", "broken (cannot be imported: SyntaxError"),
    "an error at import": (
        "raise RuntimeError('no licence')\n",
        "broken (cannot be imported: RuntimeError: no licence)",
    ),
    "an exit at import": (
        "import sys\nsys.exit(0)\n",
        "broken (cannot be imported: SystemExit: 0)",
    ),
    "a hard exit through pytest": (
        "import pytest\npytest.exit('bye', 0)\n",
        "broken (cannot be imported: Exit",
    ),
    "a skip through pytest": (
        "import pytest\npytest.skip('not today', allow_module_level=True)\n",
        "broken (cannot be imported: Skipped",
    ),
    "an empty file": ("", "broken (names no operation of the catalogue"),
    "no operation": (
        "def my_kernel(x):\n    return x\n",
        "broken (names no operation of the catalogue",
    ),
    "a wrong precision": (
        "PRECISION = 'exact'\ndef softmax(score, mask=None):\n    return score\n",
        "broken (ValueError: PRECISION: wanted",
    ),
    "no package": (
        "import surely_not_installed\n",
        "missing (the package surely_not_installed is not installed)",
    ),
    "a device that is not here": (
        "def missing():\n    return 'needs sm_90'\n\n\ndef softmax(score, mask=None):\n    return "
        "score\n",
        "missing (needs sm_90)",
    ),
}


@pytest.mark.parametrize("words", TROUBLE)
def test_what_cannot_be_judged_is_told_in_one_line_and_never_green(words: str) -> None:
    text, line = TROUBLE[words]
    Path("mine.py").write_text(text)
    done = judged("--backend", "mine.py")
    assert done.status == 2
    assert any(one.strip().startswith(f"mine.py: {line}") for one in done.output.splitlines())
    assert "Traceback" not in done.output and "INTERNALERROR" not in done.output


@pytest.mark.parametrize("words", TROUBLE)
def test_a_green_neighbour_does_not_hide_it(words: str) -> None:
    text, line = TROUBLE[words]
    Path("mine.py").write_text(text)
    done = judged("--backend", FIRST, "--backend", "mine.py", "--op", "shift_right")
    assert done.status == 2 and f"mine.py: {line}" in done.output
    assert done.verdicts()["shift_right", "values"] == "passed"


def test_a_neighbour_that_supports_nothing_is_not_hidden_either() -> None:
    Path("mine.py").write_text(
        "PRECISION = 'wide'\ndef shift_right(x):\n    raise NotImplementedError('not yet')\n"
    )
    assert judged("--backend", FIRST, "--backend", "mine.py", "--op", "shift_right").status == 2


def test_a_file_that_is_not_there_is_broken() -> None:
    done = judged("--backend", "none.py")
    assert done.status == 2 and "none.py: broken (no file none.py)" in done.output


def test_a_misspelt_operation_is_a_note() -> None:
    Path("mine.py").write_text(
        Path(FIRST).read_text() + "\n\ndef get_slope(n_heads):\n    return None\n"
    )
    done = judged("--backend", "mine.py", "--op", "shift_right")
    assert (
        "note: get_slope is no operation of the catalogue; did you mean get_slopes?" in done.output
    )


# pytest itself, and pytest-xdist


BODY = "from attnverify.differential import *\nCHAPTER = 'shifts'\n"


def test_the_body_may_be_imported_by_a_chapter() -> None:
    Path("test_a_chapter.py").write_text(BODY)
    line = (
        "-m",
        "differential",
        "--backend",
        FIRST,
        "--profile",
        "quick",
        "--dtype",
        "float32",
        "--require",
        "contract",
        "--report-json",
        "out.json",
    )
    done = in_pytest("test_a_chapter.py", *line)
    tallies = json.loads(Path("out.json").read_text())["tallies"]
    assert done.status == 1
    assert {tally["operation"] for tally in tallies} == {"shift_right", "rel_shift"}


def test_tests_without_a_backend_are_a_usage_error() -> None:
    Path("test_none_named.py").write_text(BODY)
    done = in_pytest("test_none_named.py")
    assert done.status == 4 and "name one by --attn-backend=FILE" in done.output


def test_workers_say_too_that_no_backend_is_named() -> None:
    Path("test_none_for_workers.py").write_text(BODY)
    done = in_pytest("test_none_for_workers.py", "-n", "2")
    assert done.status == 4 and "name one by --attn-backend=FILE" in done.output


def test_a_project_names_its_backends_in_its_configuration() -> None:
    Path("pytest.ini").write_text(f"[pytest]\nattn_backends = {FIRST}\n")
    Path("test_configured.py").write_text(BODY)
    Path("test_beside.py").write_text("def test_theirs():\n    pass\n")
    line = ("-c", "pytest.ini", "--profile", "quick", "--dtype", "float32")
    assert "5 cells: 5 passed" not in in_pytest("test_beside.py", *line).output
    assert (
        "6 cells: 5 passed, 1 not met (not required)"
        in in_pytest("test_configured.py", *line).output
    )


def test_a_backend_that_no_test_takes_is_not_green() -> None:
    Path("test_untaken.py").write_text("def test_theirs():\n    pass\n")
    done = in_pytest("test_untaken.py", "--backend", FIRST)
    assert done.status == 2 and "nothing was judged" in done.output


def test_other_tests_may_be_chosen_where_a_configuration_names_a_backend() -> None:
    Path("pytest.ini").write_text(f"[pytest]\nattn_backends = {FIRST}\n")
    Path("test_chosen.py").write_text(BODY + "def test_theirs():\n    pass\n")
    done = in_pytest("-c", "pytest.ini", "test_chosen.py", "-k", "theirs")
    assert done.status == 0 and "verification" not in done.output


def test_an_unknown_chapter_is_a_usage_error() -> None:
    Path("test_shafts.py").write_text(BODY.replace("shifts", "shafts"))
    done = in_pytest("test_shafts.py", "--backend", FIRST)
    assert done.status == 4 and "CHAPTER: wanted one of" in done.output


def test_other_tests_of_the_session_are_left_alone() -> None:
    Path("test_other.py").write_text(
        "import pytest\n\n@pytest.mark.parametrize('cell', [1, 2])\ndef test_values(cell):\n    "
        "assert cell\n"
    )
    assert in_pytest("test_other.py").status == 0


def without_order(report: dict[str, Any]) -> list[str]:
    return sorted(json.dumps(tally, sort_keys=True) for tally in report["tallies"])


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run by two workers of a sound backend and of one that cannot be imported."""
    folder = tmp_path_factory.mktemp("workers")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path("mine.py").write_text("def softmax(score:\n")
        line = ("--backend", FIRST, "--backend", "mine.py", "--profile", "quick")
        Path("known.txt").write_text(KNOWN)
        line += ("--dtype", "float32", "--seed", "random", "--known-failures", "known.txt")
        done = in_a_process("run", "-n", "2", *line, "--report-json", "workers.json")
        return Run(done.status, done.output, report_in("workers.json"))


def test_workers_draw_from_one_random_seed_and_agree(two_workers: Run) -> None:
    report = two_workers.report or {}
    alone = with_known(KNOWN, "--seed", str(report["options"]["seed"]))
    assert alone.status == 0 and without_order(report) == without_order(alone.report or {})


def test_workers_do_not_hide_a_broken_backend(two_workers: Run) -> None:
    assert two_workers.status == 2
    assert "mine.py: broken (cannot be imported: SyntaxError" in two_workers.output


def test_a_checkout_that_is_not_installed_knows_the_options_whatever_stands_beside_them() -> None:
    line = (
        sys.executable,
        "-m",
        "pytest",
        "--attn-backend",
        "numpy_ref",
        "--help",
        "-p",
        "pytest_benchmark.plugin",
    )
    known = subprocess.run(
        line,
        cwd=ROOT,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
    )
    assert known.returncode == 0 and "--attn-backend=NAME_OR_PATH" in known.stdout, known.stderr
