"""
The answer of a red run: the verdict in a sentence, each mistake in three lines, fifteen lines in
all for a kernel with one mistake at 80 columns.
"""

import re
import sys
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE, Popen
from types import SimpleNamespace
from typing import Any

import pytest

from attnverify.diagnosis.cause import Cause, Explanation
from attnverify.failures.finding import NOT_RECORDED, Finding, Mend
from attnverify.options import FAILURES
from attnverify.report.answer import ROWS, answer, right_in_words, rows_in_words
from attnverify.report.next_steps import describe_right, listed_by_number
from attnverify.verdicts.tally import CellResult
from tests.attnverify.report.test_root_causes import failed, recorded, replay_of
from tests.reports.grade import text_of
from tests.reports.test_causes import REPORTS
from tests.support.run_attnverify import Run, in_a_process, load_backends_here, verify
from tests.support.sample_backends import HERE

MOST = {80: 15, 60: 19}
"""
Lines of a whole run, by the columns; what --resume says, to save time, is not counted, nor how long
the path is.
"""

PROGRESS = re.compile(r"(?m)^(\d+/\d+ cells, .*|(loading|looking for) .* \.\.\.)\n")
"""What a busy machine alone is told."""

KERNELS = {
    **{
        f"{slug}.py": REPORTS[slug]["run"]
        for slug in (
            "causal_from_the_next_key",
            "distances_of_the_other_sign",
            "dropped_coefficients_in_softmax",
            "frequencies_by_one_less",
            "memory_in_the_graph",
            "oldest_lost_when_full",
        )
    },
    "last_key_forgotten.py": ["--dtype", "float32"],
    "mixed_verdicts.py": ["--op", "causal_mask", "--dtype", "float32"],
}
"""Wrong kernels of one mistake each, with what a run of each is asked for."""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    load_backends_here(monkeypatch)


def run_at(columns: int, name: str, *options: str) -> Run:
    slug = Path(name).stem
    of_a_report = slug in REPORTS and text_of(slug, REPORTS[slug], repaired=False)
    Path(name).write_text(of_a_report or (HERE / name).read_text())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(columns))
        return verify("run", name, "--profile", "quick", *KERNELS[name], *options)


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_with_one_mistake_is_told_on_half_a_page(name: str) -> None:
    answers = ("-k", "values or gradients") if "--op" in KERNELS[name] else ()
    for columns, most in MOST.items():
        done = run_at(columns, name, "--resume", *answers)
        counted = re.sub(r"(?m)^(nothing to resume|resumed).*\n(  .*\n)*", "", done.output)
        counted = re.sub(r"\A(attnverify .*\n)(  .*\n)+", r"\1", counted)  # where it is installed
        counted = PROGRESS.sub("", counted)
        lines = counted.splitlines()
        assert done.status == 1 and len(lines) <= most, done.output
        lines = [line for line in lines if line]
        verdict = next(i for i, x in enumerate(lines) if x.startswith(f"{name} is wrong: "))
        first = next(i for i, x in enumerate(lines) if x.startswith("1. "))
        told_at_once = lines[1:verdict]
        assert told_at_once[0].startswith("failed ") and first <= verdict + 2
        assert all(line.startswith(("failed ", "  ")) for line in told_at_once)
        assert max(map(len, told_at_once)) <= columns and "..." not in " ".join(told_at_once)
        assert re.search(rf"attnverify replay [0-9a-f]{{12}} --backend {name}$", done.output, re.M)
        (last,) = [at for at, line in enumerate(lines) if line.startswith(f"{name}: wrong in ")]
        assert all(line.startswith("  ") for line in lines[last + 1 :])
        assert not re.search("recipe:|larger:|known failures:|triage:", done.output)


RIGHT = """\
import numpy as np


def shift_right(x):
    padded = np.concatenate([x, np.zeros((*x.shape[:-1], 1), x.dtype)], -1)
    return padded.reshape(*x.shape[:-2], -1)[..., : -x.shape[-2]].reshape(x.shape).copy()
"""


@pytest.mark.parametrize("columns", [60, 80])
def test_a_right_kernel_reads_as_right_at_a_glance(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    Path("right.py").write_text(RIGHT)
    done = verify("run", "right.py", "--profile", "quick", "--dtype", "float32")
    told = PROGRESS.sub("", re.sub(r"(?m)^  \(.*\n", "", done.output)).split("attnverify 0", 1)[1]
    lines = [line for line in told.splitlines() if line]
    assert done.status == 0 and len(lines) <= {60: 13, 80: 10}[columns], done.output
    assert max(map(len, done.output.splitlines())) <= columns
    assert not re.search("FAILED|verification|triage|root cause|in drawing", done.output)
    (at,) = [at for at, line in enumerate(lines) if line.startswith("right.py: right in float32 (")]
    assert all(line.startswith("  ") for line in lines[at + 1 :])
    more = verify("run", "right.py", "--profile", "quick", "--dtype", "float32", "-v").output
    assert (
        "= verification =" in more
        and "discrimi" in more
        and "in drawing, comparing" in " ".join(more.split())
    )


def test_many_operations_that_say_the_same_share_a_sentence() -> None:
    run, tallies = SimpleNamespace(is_red=lambda tally: False), []
    for name in [*OPERATIONS[: ROWS + 1], OPERATIONS[0]]:
        aspect = "values" if len(tallies) <= ROWS else "refusals"
        result = CellResult(
            operation=name, implementation=name, backend="mine", how="", dtype="float32",
            aspect=aspect, verdict="passed", cases=3, strong=2,
        )  # fmt: skip
        tallies.append(result.as_dict())
    told = [*right_in_words(run, tallies)]  # type: ignore[arg-type]
    assert sorted(told, key=len)[::-1] == [
        "8 cells: 8 passed; 24 cases, 16 discriminating; 0 checks",
        f"{OPERATIONS[0]} of mine, f32: values, refusals passed",
        f"{ROWS} operations of mine, f32: values passed",
    ]


OPERATIONS = ["softmax", "causal_mask", "merge_masks", "shift_right", "rel_shift", "get_slopes"]
OPERATIONS += ["softmax_grad"]


def test_with_more_words_the_case_and_the_table_are_told_too() -> None:
    done = run_at(80, "mixed_verdicts.py", "-v")
    for words in ("  recipe: ", "  cause: ", "triage: 1 root cause", "worst budget used"):
        assert words in done.output
    assert " is wrong: " not in done.output


def test_what_failed_is_told_the_moment_it_is_found_through_a_pipe_too() -> None:
    Path("mine.py").write_text((HERE / "mixed_verdicts.py").read_text() + SLOW)
    line = [sys.executable, "-m", "attnverify", "run", "mine.py", "--op", "causal_mask"]
    with Popen(
        [*line, "--op", "shift_right", "--profile", "quick"], stdout=PIPE, text=True
    ) as process:
        assert process.stdout is not None
        while not (told := process.stdout.readline()).startswith("failed"):
            assert told, "nothing was told"
        is_running = process.poll() is None and not Path("slow").exists()
        process.communicate(timeout=120)
    assert " causal_mask: " in told and is_running and Path("slow").exists()


SLOW = """

there = shift_right


def shift_right(x):
    open("slow", "w").close()
    return there(x)
"""


def test_a_process_says_the_same_in_a_pipe() -> None:
    Path("mine.py").write_text((HERE / "mixed_verdicts.py").read_text())
    done = in_a_process("run", "mine.py", *KERNELS["mixed_verdicts.py"], "--profile", "quick")
    lines = PROGRESS.sub("", done.output).splitlines()
    assert done.status == 1 and len(lines) <= MOST[80]
    assert lines[1] == "failed values bool causal_mask: not exactly 0"
    explained = "mine.py is wrong: 1 failed cell, and no known mistake explains it"
    assert lines[2] == "" and lines[3].startswith(explained)


# The sentence and the three lines


def answered(*tallies: dict[str, Any], width: int = 80) -> list[str]:
    run: Any = SimpleNamespace(
        options=SimpleNamespace(failures=FAILURES),
        backends=[SimpleNamespace(name="mine", source="mine.py")],
        is_red=lambda tally: True,
    )
    return [*answer(run, [*tallies], width)]


def with_findings(cell: dict[str, Any], *findings: Finding) -> dict[str, Any]:
    return cell | {"findings": [finding.as_dict() for finding in findings]}


NAMED = Finding(
    "wrong number",
    share="3 of 20 cases",
    message="output: 1 of 2 elements differ",
    condition=("H != 1",),
    cause=Cause("equals the specification with a slip", (Explanation("slip", "a slip"),)),
)


def test_the_sentence_counts_the_cells_that_the_mistakes_explain() -> None:
    slip = with_findings(failed("softmax"), NAMED)
    other = with_findings(failed("softmax", aspect="gradients"), replace(NAMED, cause=None))
    assert answered(slip)[0] == "mine.py is wrong: 1 mistake explains 1 of 1 failed cell"
    assert answered(slip, other)[0] == (
        "mine.py is wrong: 1 mistake explains 1 of 2 failed cells; 1 fails because of it"
    )
    elsewhere = with_findings(failed("get_slopes"), replace(NAMED, cause=None))
    assert answered(slip, elsewhere)[0].endswith("1 mistake explains 1 of 2 failed cells")
    another = replace(NAMED, kind="NaN", condition=("M != 1",), cause=None)
    assert answered(slip, with_findings(failed("get_slopes"), another), width=99)[0].endswith(
        "2 mistakes, 1 of them known, which explains 1 of 2 failed cells"
    )
    both = with_findings(failed("softmax", aspect="gradients"), NAMED)
    assert answered(slip, both)[0].endswith("1 mistake explains 2 of 2 failed cells")
    in_half = with_findings(failed("softmax", dtype="float16"), NAMED, replace(NAMED, cause=None))
    assert answered(slip, other, in_half, width=150)[0].endswith(
        "1 mistake explains 1 of 3 failed cells; 1 fails because of it; 1 is not explained in full"
    )
    assert answered(other)[0] == (
        "mine.py is wrong: 1 failed cell, and no known mistake explains it"
    )


def test_what_tells_itself_needs_no_cause() -> None:
    crash = Finding("raised KeyError", message="KeyError: 'mems'", share="20 of 20 cases")
    lines = answered(with_findings(failed("softmax"), crash))
    assert lines[0].endswith("1 mistake explains 1 of 1 failed cell")
    assert lines[1] == "1. raised KeyError: KeyError: 'mems'"
    crash = replace(crash, message="raised KeyError: 'mems'")
    assert answered(with_findings(failed("softmax"), crash))[1].startswith("1. raised KeyError: 'm")


def test_what_raises_beside_wrong_numbers_is_told_too() -> None:
    """A backward pass that raised was in the progress alone where the values were wrong."""
    slip = with_findings(failed("softmax"), NAMED)
    crash = Finding("raised RuntimeError", message="raised RuntimeError: no backward")
    raised = with_findings(failed("softmax", aspect="gradients"), crash)
    for wrong in (slip, with_findings(failed("softmax"), replace(NAMED, cause=None))):
        lines = " ".join(answered(wrong, raised))
        assert "2 mistakes" in lines or "1 of them known" in lines
        assert "2. raised RuntimeError: no backward" in lines


def test_the_last_line_names_the_mistakes_by_their_numbers() -> None:
    assert listed_by_number(["a slip"]) == "a slip"
    assert listed_by_number(["a slip", "b"]) == "1. a slip; 2. b"
    assert listed_by_number([*"abcde"]) == "1. a; 2. b; 3. c; and 2 more"
    assert listed_by_number([*"aba"]) == "1. a; 2. b" and listed_by_number([*"aa"]) == "a"


def test_a_mistake_says_what_in_which_cases_and_where() -> None:
    Path("mine.py").write_text("import numpy\n\n\ndef softmax(score):\n    return score\n")
    assert answered(with_findings(failed("softmax"), NAMED), width=90)[1:] == [
        "1. equals the specification with a slip; 3 of 20 cases, only when H != 1; in softmax",
        "   (mine.py:4), values float32; wrong number: output: 1 of 2 elements differ",
    ]


def test_the_numbers_of_a_mistake_without_a_name_are_all_of_one_case() -> None:
    found = replace(
        recorded("wrong number", (), 1),
        cause=Cause("wrong: the gradient by x (seen with C=33 N=13)"),
        message="the gradient by x: 2 of 2 elements differ from the specification; "
        "worst at (0, 1): got 1, expected 2, bound 0.1, 10x of it (rms 9x)",
        share="3 of 20 cases",
    )
    told = answered(with_findings(failed("softmax"), found), width=300)[1]
    assert told.startswith("1. wrong: the gradient by x; ") and "seen with" not in told
    assert "got 1, expected 2, bound 0.1, 10x of it" in told and "rms" not in told


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("the gradient by x, 0: from row 1 of 3 on", "the gradient by x, 0: from row 1 on"),
        ("the output: up to key 3 of 9", "the output: up to key 3"),
        ("the weights: in the last head (2) alone", "the weights: in the last head alone"),
        ("the output: from axis 1, index 4 of 8 on", "the output: from axis 1, index 4 on"),
        ("the output: rows 1, 3 of every 4", "the output: rows 1, 3 of every 4"),
    ],
)
def test_no_size_of_another_case_stands_beside_a_case(words: str, told: str) -> None:
    """``from row 1 of 3`` stood beside N=2."""
    found = replace(
        recorded("wrong number", (), 1),
        cause=Cause(f"wrong: {words} (seen with N=3)"),
        message="output: 2 of 2 elements differ; worst at (0, 1): got 1, expected 2, bound 0.1",
    )
    line = answered(with_findings(failed("softmax"), found), width=300)[1]
    assert line.startswith(f"1. wrong: {told}; ") and " got 1, expected 2" in line


def test_what_waits_for_a_mistake_is_no_mistake_of_its_own_in_the_table() -> None:
    run = SimpleNamespace(is_red=lambda tally: tally["aspect"] == "values")
    wrong = with_findings(failed("softmax"), NAMED)
    hidden = with_findings(failed("softmax", aspect="hidden NaN"), NAMED)
    (told,) = rows_in_words(run, [wrong, hidden])  # type: ignore[arg-type]
    assert told.endswith(
        ": values FAILED; hidden NaN (no row sees it) not judged until that is mended"
    )
    right = wrong | {"verdict": "passed", "findings": []}
    (told,) = rows_in_words(run, [right, hidden])  # type: ignore[arg-type]
    assert told.endswith(": values passed; hidden NaN (no row sees it) not met")


def test_a_race_and_an_access_out_of_bounds_at_one_line_are_one_mistake() -> None:
    """One missing mask was counted twice."""

    def found(kind: str, line: int) -> Finding:
        return Finding(f"{kind} on the PTX machine", message=f"{kind}: x", at=(f"mine.py:{line}",))

    def mistakes(line: int) -> list[str]:
        both = found("race", 30), found("out of bounds", line)
        return [x for x in answered(with_findings(failed("softmax"), *both)) if x[1:2] == "."]

    assert len(mistakes(30)) == 1 and len(mistakes(23)) == 2


@pytest.mark.parametrize("width", [60, 80])
@pytest.mark.parametrize("words", [5, 30, 60])
def test_a_mistake_has_three_lines_however_long_its_cause_is(words: int, width: int) -> None:
    long = Cause(" ".join(["slipped"] * words), (Explanation("slip", "a slip"),))
    cell = with_findings(failed("softmax"), replace(NAMED, cause=long))
    lines = answered(cell, width=width)[1:]
    assert len(lines) <= 3 and max(map(len, lines)) <= width
    assert "3 of 20 cases, only when H != 1" in " ".join(" ".join(lines).split())
    assert (" ... (-v)" in lines[1]) == (words > 5)


def test_the_replay_is_of_the_finding_that_is_told() -> None:
    unnamed, named = recorded("NaN", (), 1), recorded("NaN", ("slip",), 2)
    lines = answered(with_findings(failed("softmax"), unnamed, named))
    assert lines[-1] == f"   replay: {replay_of(named)}"


def test_the_replay_says_which_mistake_it_shows_where_the_first_was_not_recorded() -> None:
    tiles, top = recorded("wrong number", ("tiles",), 1), recorded("infinity", ("top",), 2)
    unkept = replace(tiles, notes=(f"{NOT_RECORDED}no room",))
    lines = answered(with_findings(failed("softmax"), unkept, top), width=100)
    assert lines[-1] == f"   replay (mistake 2): {replay_of(top)}"


def test_what_is_known_to_fail_uses_no_share_of_the_bound() -> None:
    cell = {"aspect": "values", "dtype": "float32", "cases": 9, "reason": ""}
    right = cell | {"verdict": "passed", "budget": 0.5}
    known = cell | {"verdict": "known failure", "budget": float("inf")}
    told = describe_right([right, known], [right, known])
    assert told.startswith(
        "right in float32 (values: 18 cases, at most 0.5x of the bound), but for 1"
    )


def test_a_mend_of_one_of_two_failures_mends_a_part() -> None:
    """Each has its own kind, and none a cause."""
    mend = Mend("mine.py", 3, "with `a` instead of `b`", "in 9 calls")
    one = Finding("wrong number", message="output: wrong", mend=mend)
    other = Finding("NaN", message="output: NaN")
    softmax, scores = failed("softmax"), failed("shift_right")
    both = " ".join(answered(with_findings(softmax, one), with_findings(scores, other)))
    assert "a change of the file mends a part" in " ".join(both.split())
    alone = " ".join(answered(with_findings(softmax, one)))
    assert "mends it" in alone and "mine.py:3: right with `a` instead of `b` in 9 calls" in alone
