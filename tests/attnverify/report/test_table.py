"""The table of verdicts: one line a row where there is room, two where there is not."""

import re
from typing import Any

import pytest

from attnverify.catalogue.operation import CATALOGUE
from attnverify.report.table import describe_words, format_table
from tests.support.synthetic_reports import large


def tallies(number: int) -> list[dict[str, Any]]:
    counts = {"slack": 1, "unsupported": 0, "outside": 0}
    return [tally | counts for tally in large(number)["tallies"]]


def alike(number: int, verdict: str = "passed") -> list[dict[str, Any]]:
    return [tally | {"verdict": verdict} for tally in tallies(number)]


def test_dtypes_of_the_same_verdicts_share_a_line() -> None:
    head, line, *_ = format_table(alike(20))
    assert head.split()[:3] == ["operation", "implementation", "dtypes"]
    assert line.split()[:6] == ["additive_score", "kernels_0", "f64", "f32", "f16", "bf16"]
    assert line.endswith("0.01x 0.062x 0.11x 0.16x")


def test_the_budget_of_a_row_is_that_of_its_answer() -> None:
    hidden, values = "hidden NaN", "values"
    for aspect, told in ((hidden, "0.01x"), (values, " infinite")):
        some = alike(5)
        for tally in some:
            tally["budget"] = float("inf") if tally["aspect"] == aspect else 0.01
        assert format_table(some)[1].endswith(told)


def test_what_was_not_judged_has_no_budget() -> None:
    nothing = [tally | {"cases": 0, "strong": 0, "known": 0} for tally in alike(5)]
    assert format_table(nothing)[1].endswith(" -")


@pytest.mark.parametrize(("strong", "told"), [(0, " -"), (3, " 0x")])
def test_where_every_call_raised_no_budget_was_used(strong: int, told: str) -> None:
    raised = {"verdict": "failed", "budget": 0.0, "strong": strong}
    assert format_table([tally | raised for tally in alike(5)])[1].endswith(told)


def test_contract_cells_lend_no_budget_to_an_answer_that_was_left_out() -> None:
    some = alike(5)
    for tally in some:
        if tally["aspect"] in ("values", "gradients"):
            tally |= {"verdict": "unsupported", "cases": 0, "strong": 0, "known": 0}
    assert format_table(some)[1].endswith(" -")


def test_an_operation_is_named_once() -> None:
    lines = format_table(tallies(60))
    named = [line.split()[0] for line in lines[1:-2] if not line.startswith(" ")]
    assert named == [*CATALOGUE][:3]


def test_a_column_in_which_nothing_stands_is_left_out() -> None:
    some = [tally for tally in alike(20) if tally["aspect"] != "gradients"]
    assert "gradients" in format_table(alike(20))[0]
    assert "gradients" not in format_table(some)[0] and "left out" not in format_table(some)[0]
    some[0]["outside"] = 3
    assert "left out" in format_table(some)[0] and " 3 " in format_table(some)[1]


@pytest.mark.parametrize("width", [80, 100, 120])
def test_no_line_is_longer_than_the_terminal(width: int) -> None:
    lines = format_table(tallies(400), width)
    assert max(map(len, lines)) <= width
    assert sum(line.startswith("causal_mask of kernels_0: ") for line in lines) == 4


def test_a_wide_terminal_has_the_lines_of_a_pipe() -> None:
    assert format_table(tallies(60), 200) == format_table(tallies(60))


def test_numbers_are_never_cut() -> None:
    text = " ".join(" ".join(format_table(tallies(60), 60)).split())
    assert text.count("cases 100; discriminating 90; checks 15") == 12


@pytest.mark.parametrize("width", [50, 60, 80, 100, 140])
def test_verdicts_stand_in_full_at_every_width(width: int) -> None:
    lines = format_table(tallies(60), width)
    text = "\n".join(lines)
    assert "…" not in text and max(map(len, lines)) <= width
    whole = "\n".join(format_table(tallies(60)))
    for word in ("passed", "FAILED", "unsupported"):
        assert len(re.findall(rf"\b{word}\b", text)) >= whole.count(word)


def test_what_need_not_hold_has_another_word() -> None:
    failed = [one for one in tallies(60) if one["verdict"] == "failed"]
    text = "\n".join(format_table(failed, requires=lambda tally: False))
    assert "FAILED" not in text and "not met" in text
    assert f"{len(failed)} not met (not required)" in text


def test_what_the_words_of_a_table_mean_is_said_of_those_that_stand_in_it() -> None:
    """A newcomer met "discriminating", "not met" and "isolation", and no word of them."""
    one = next(tally for tally in tallies(60) if tally["verdict"] == "failed")
    told = describe_words([one | {"aspect": "isolation", "cases": 3}], lambda tally: False)
    words = [line.strip().partition(":")[0] for line in told]
    assert words == ["discriminating", "not met", "isolation"]
    assert describe_words([one | {"aspect": "values", "cases": 0}], lambda tally: True) == []
    (left,) = describe_words([one | {"aspect": "values", "cases": 0, "outside": 2}], bool)
    assert left.startswith("  left out: ")


@pytest.mark.parametrize("width", [None, 80])
def test_colours_change_no_word(width: int | None) -> None:
    plain, coloured = (format_table(tallies(60), width, colour) for colour in (False, True))
    assert "\x1b[1;31mFAILED\x1b[0m" in "\n".join(coloured) and "\x1b" not in "\n".join(plain)
    assert [re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip() for line in coloured] == plain


def test_where_nothing_was_judged_there_is_no_table() -> None:
    assert format_table([]) == ["0 cells: nothing was judged; 0 cases, 0 discriminating; 0 checks"]
