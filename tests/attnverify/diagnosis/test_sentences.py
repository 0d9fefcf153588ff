"""
Every sentence of a diagnosis has a test with its text, and none is made anywhere else.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from string import Formatter
from typing import Any

import pytest

from attnverify import diagnosis
from attnverify.catalogue.operation import CATALOGUE
from attnverify.diagnosis import sentences
from attnverify.diagnosis.candidates import candidates
from attnverify.faults.visibility.finite_sentinels import AT_A_NUMBER

UNSCALED = "scores that are not scaled"
Filled = tuple[dict[str, Any], str]

TEXTS: dict[str, Filled] = {
    "EQUALS": (
        {"mistakes": UNSCALED, "share": "0.058x of the bound"},
        "equals the specification with scores that are not scaled (0.058x of the bound)",
    ),
    "EXACTLY": ({}, "exactly"),
    "OF_THE_BOUND": ({"share": 0.0583}, "0.058x of the bound"),
    "AS_IN": (
        {"mistake": "NaN in rows that see no key", "packages": "labml-nn"},
        "NaN in rows that see no key, as in labml-nn",
    ),
    "EITHER": ({}, " or with "),
    "BOTH": (
        {"one": UNSCALED, "other": "a top-left causal mask"},
        "scores that are not scaled and with a top-left causal mask",
    ),
    "OUTPUT_WITH": (
        {"names": "the gradient by query", "mistake": "no delta"},
        "the gradient by query as of the specification with no delta",
    ),
    "WHEN": (
        {"cause": "every output is 0.36% low", "where": "M > 64"},
        "every output is 0.36% low, when M > 64",
    ),
    "PART": (
        {"cause": "every output is low", "where": "M > 64", "explained": 3, "cases": 8},
        "every output is low, when M > 64: 3 of 8 failing cases; the others are unexplained",
    ),
    "TWO_PARTS": (
        {"cause": "equals no mask", "where": "a mask is given", "other": UNSCALED},
        "equals no mask, when a mask is given; else with scores that are not scaled",
    ),
    "BESIDES_ZERO_TIMES_NAN": (
        {"cause": "every output is 0.36% low"},
        "every output is 0.36% low; besides, a weight of 0 times NaN is NaN",
    ),
    "ZERO_TIMES_NAN": (
        {},
        "a weight of 0 times NaN is NaN: with ordinary numbers in the hidden slots the answer is "
        "right",
    ),
    "ZERO_TIMES_NAN_IN_SOME": (
        {"right": 2, "cases": 3},
        "a weight of 0 times NaN is NaN: with ordinary numbers in the hidden slots the answer is "
        "right in 2 of 3 cases",
    ),
    "WRONG_WITHOUT_NAN": ({}, "wrong with ordinary numbers in the hidden slots too"),
    "CAUSE_WITHOUT_NAN": (
        {"cause": "every output is 0.36% low"},
        "every output is 0.36% low, with ordinary numbers in the hidden slots too",
    ),
    "STAGE_ROUNDED": ({"stage": "inputs", "name": "TF32"}, "inputs rounded to TF32"),
    "ALLOWED": (
        {"stage": "scores rounded to float16", "field": "score", "declared": "float16"},
        'scores rounded to float16, which "score": "float16" in PRECISION allows',
    ),
    "ARITHMETIC": ({"dtype": "float16"}, "float16 arithmetic"),
    "STORED_IN": (
        {"dtype": "float16"},
        "every element of the output is a float16 number: computed or stored in it",
    ),
    "FLUSHED": ({}, "subnormal numbers count as 0"),
    "FLUSHED_DECLARED": (
        {"declared": '{"acc": "float32_ftz"}'},
        "subnormal numbers count as 0, as with -ftz=true or in atomic sums in float32; "
        'declare PRECISION = {"acc": "float32_ftz"}, under which these cases pass',
    ),
    "FREEDOM_DECLARED": (
        {"what": "a tanh of few digits", "declared": '{"tanh_ulps": 4096.0}'},
        "as near as a tanh of few digits; if the kernel does so, "
        'declare PRECISION = {"tanh_ulps": 4096.0}, under which these cases pass',
    ),
    "NARROW_STEP": ({}, "something is computed in float32"),
    "NARROW_STEP_SEEN": (
        {},
        "something is computed in float32: it is right to the digits of float32; make each "
        "constant, table and step in float64, or leave float64 out of DTYPES",
    ),
    "OPERANDS": ({"name": "TF32"}, "operands in TF32"),
    "OPERANDS_DECLARED": (
        {"name": "TF32", "argument": "value", "declared": '{"operand": "tf32"}'},
        "operands in TF32: the answer is the same, bit for bit, when value is rounded to it; "
        'declare PRECISION = {"operand": "tf32"}, under which these cases pass',
    ),
    "PARTIALS": ({"dtype": "float16"}, "sums kept in float16 between blocks"),
    "PARTIALS_DECLARED": (
        {"dtype": "float16", "declared": '{"float16": {"grad_partial": "float16"}}'},
        "as near as sums that are kept in float16 between blocks of rows; if the kernel keeps them "
        'so, declare PRECISION = {"float16": {"grad_partial": "float16"}}, under which this case '
        "passes",
    ),
    "TABLE_WRONG": (
        {"name": "sines", "other": "cosines"},
        "the sines by which pairs turn are wrong, the cosines are right",
    ),
    "TABLE_SHIFTED": (
        {"name": "sines"},
        "the sines of pairs read at other places of their table",
    ),
    "TABLE_SHIFTED_BY": (
        {
            "moved": "the sines of pairs read at other places of their table",
            "shifts": "+8 where 24 pairs turn, +32 where 96 pairs turn",
            "other": "cosines",
        },
        "the sines of pairs read at other places of their table: +8 where 24 pairs turn, +32 where "
        "96 pairs turn; the cosines are right",
    ),
    "PAIRS_ON": ({"by": 8, "pairs": 24}, "+8 where 24 pairs turn"),
    "THERE_AT": ({"what": "0", "where": ": from row 1 of 3 on"}, ", 0: from row 1 of 3 on"),
    "END": (
        {"name": "column", "since": "from column 4 of 6 on", "count": 3},
        ", whose last columns are left 0 wherever it is wrong (in one case from column 4 of 6 on; "
        "3 cases)",
    ),
    "AGAIN": (
        {"name": "key", "count": 2, "size": 8, "cases": 3},
        ", that of the first keys again and again wherever it is wrong (in one of 3 cases that of "
        "the first 2 of 8)",
    ),
    "PLACE_OF_AXIS": ({"axis": 2}, "axis 2 place"),
    "HEADS_READ": (
        {"rule": " (h % G)"},
        "query heads read other heads of keys and values (h % G)",
    ),
    "HEADS_SHOWN": (
        {
            "name": "query heads read other heads of keys and values (h % G)",
            "read": "0 1 0 1",
            "wanted": "0 0 1 1",
            "H": 4,
            "G": 2,
        },
        "query heads read other heads of keys and values (h % G): 0 1 0 1 where 0 0 1 1 are shared "
        "(H=4, G=2)",
    ),
    "HAS_FACTOR": ({"what": "the scale is", "factor": "0.36% low"}, "the scale is 0.36% low"),
    "CONSTANT_SCALE": (
        {"scale": 0.5},
        "scores scaled by 0.5 whatever D is, in place of 1/sqrt(D)",
    ),
    "SCALE_OF_SIZE": (
        {"letter": "H", "exponent": -0.5},
        "scores scaled by H^-0.5 in place of 1/sqrt(D)",
    ),
    "SCALE_IS": (
        {"law": "1/sqrt(D +1)"},
        "scores scaled by 1/sqrt(D +1) in place of 1/sqrt(D)",
    ),
    "WIDTH_OF_TILES": ({"tile": 64}, "1/sqrt(D rounded up to a multiple of 64)"),
    "WIDTH_OF_POWER": ({}, "1/sqrt(D rounded up to a power of two)"),
    "CAPPED": (
        {"number": 30.0},
        "scores capped by 30, c tanh(score / c), where no cap is given",
    ),
    "CLIPPED": ({"number": 10.0}, "scores clipped to -10 and 10"),
    "CLIPPED_ABOVE": ({"number": 10.0}, "scores above 10 taken for 10"),
    "NEGATIVE_TIMES": ({"number": 0.2}, "scores below 0 multiplied by 0.2"),
    "SMALL_WEIGHTS": ({"number": 0.01}, "weights below 0.01 taken for 0"),
    "CLIPPED_GRADIENT": (
        {"number": 1.0},
        "the gradient of the scores clipped to -1 and 1",
    ),
    "ADDED_TO_SHIFTED": (
        {"number": 1e-6},
        "1e-06 added to the sum of the softmax, after its maximum was subtracted",
    ),
    "ADDED_TO_SUM": (
        {"number": 1.0},
        "1 added to the sum of the exponentials, as of a further key without a value",
    ),
    "ADDED_TO_WEIGHTS": (
        {"number": 0.01},
        "0.01 added to each weight, to those of hidden keys too",
    ),
    "ADDED_TO_SEEN": ({"number": 0.01}, "0.01 added to each weight of a visible key"),
    "HIDDEN_AT": (
        {"number": -1.0},
        "hidden scores at -1, which is a number and not minus infinity",
    ),
    "HIDDEN_AT_BUT": (
        {"number": -1.0},
        "hidden scores at -1, which is a number and not minus infinity, but for rows that see no "
        "key",
    ),
    "HIDDEN_AT_SOME_BUT": (
        {},
        "hidden scores at a number in place of minus infinity, but for rows that see no key",
    ),
    "BOOLEAN_HIDDEN_AT": (
        {"number": -1e9},
        "keys that a boolean mask hides at -1e+09, which is a number",
    ),
    "BOOLEAN_HIDDEN_AT_SOME": (
        {},
        "keys that a boolean mask hides at a number in place of minus infinity",
    ),
    "HIDDEN_AT_SOME": ({}, "hidden scores at a number in place of minus infinity"),
    "ADDED_TO_HIDDEN": (
        {"number": -5.0},
        "-5 added to hidden scores in place of minus infinity",
    ),
    "NEARNESS": ({}, "as near as "),
    "EVERY_OUTPUT": ({"factor": "3.00% high"}, "every output is 3.00% high"),
    "OUTPUT_HAS_FACTOR": (
        {"name": "the gradient by key", "factor": "off by a factor of 3"},
        "the gradient by key is off by a factor of 3",
    ),
    "OTHERS_RIGHT": (
        {"told": "the gradient by key is 3.00% high"},
        "the gradient by key is 3.00% high; the others are right",
    ),
    "GRADIENTS_OF": (
        {"mistakes": "a softmax over the heads", "cases": 5},
        "the gradients are those of the specification with a softmax over the heads (5 cases)",
    ),
    "NO_GRADIENT": ({"names": "query and key"}, "no gradient reaches query and key: 0 everywhere"),
    "ALL_ZEROS": ({"names": "the weights"}, "nothing but zeros in the weights"),
    "OFF": ({}, "off by a factor"),
    "TIMES_ZERO": ({}, "multiplied by 0"),
    "OFF_BY": ({"factor": 0.33331}, "off by a factor of 0.3333"),
    "OFF_BY_POWER_OF_TWO": (
        {"factor": -0.70711, "sign": "-", "exponent": -0.5},
        "off by a factor of -0.7071 (-2^-0.5)",
    ),
    "OFF_BY_POWER_OF_SIZE": ({"letter": "D", "exponent": 0.5}, "off by a factor of D^0.5"),
    "OFF_BY_SHARE": (
        {"share": "p (1 - p)"},
        "off by a factor of p (1 - p), p the share that dropout drops",
    ),
    "LOW": ({}, "low"),
    "HIGH": ({}, "high"),
    "PER_CENT": ({"share": 0.0036, "side": "low"}, "0.36% low"),
    "SLOPES": ({}, "slopes of some heads"),
    "SLOPES_OF_HEADS": (
        {"told": "head 1 off by a factor of 2 (2^1)", "heads": 4},
        "slope of head 1 off by a factor of 2 (2^1) (of 4 heads)",
    ),
    "SLOPES_OF_MORE_HEADS": (
        {"told": "head 1 3.00% high, head 2 3.00% high", "more": 5, "heads": 12},
        "slope of head 1 3.00% high, head 2 3.00% high and 5 more (of 12 heads)",
    ),
    "HEAD_HAS_FACTOR": ({"head": 1, "factor": "3.00% high"}, "head 1 3.00% high"),
    "WEIGHTS_RIGHT": (
        {"outputs": "the output: from row 3 on"},
        "the weights are right, and what is wrong is the output: from row 3 on",
    ),
    "HIDDEN_KEY_WEIGHED": (
        {"hides": ", which causal alone hides", "where": ": from key 64 on"},
        "a hidden key has weight, which causal alone hides: from key 64 on",
    ),
    "HIDDEN_BY": ({"name": "window"}, ", which window alone hides"),
    "EMPTY_ROWS_WEIGHED": ({"hides": "", "where": ""}, "rows that see no key have weights"),
    "VISIBLE_KEY_LOST": (
        {"where": ": key 3 alone"},
        "a visible key has no weight: key 3 alone",
    ),
    "ROW_FACTOR": (
        {"least": 0.50001, "most": 2.0, "sinks": "", "where": ": from row 2 on"},
        "the weights of a row are right but for a factor: rows sum to 0.5 .. 2: from row 2 on",
    ),
    "SINKS_COUNTED": ({"times": 2.0001}, ", as if a sink counted 2 times"),
    "NAN_WEIGHTS": ({"where": ": in row 3 alone"}, "the weights are NaN: in row 3 alone"),
    "WEIGHTS_WRONG": ({"where": ": in head 3 alone"}, "the weights are wrong: in head 3 alone"),
    "WRONG_BY_SCORES": (
        {"zero": "query", "where": ""},
        "the weights are wrong, and right where query is 0",
    ),
    "WRONG_WITHOUT_SCORES": (
        {"alike": "all scores are equal", "where": ": up to key 3"},
        "the weights are wrong even where all scores are equal: up to key 3",
    ),
    "ALL_ALIKE": (
        {"where": ""},
        "every visible key of a row has the same weight, as if all scores were the same",
    ),
    "FIRST_STAGE": (
        {"stage": "the mask", "words": "where nothing is dropped", "right": ", right with one key"},
        "the mask: wrong where nothing is dropped, right with one key",
    ),
    "RIGHT_BEFORE": ({"words": "with one key"}, ", right with one key"),
    "WRONG_STAGE": (
        {"stage": "the dropout", "right": "where nothing is dropped"},
        "the dropout: right where nothing is dropped",
    ),
    "RIGHT_WITH_ONE_HEAD": ({}, "; the same is right with one head"),
    "RIGHT_WITH_ONE_ENTRY": ({}, "; the same is right with one batch entry"),
    "AND_STAGE": (
        {"outputs": "wrong: the output", "stage": "the dropout: right where nothing is dropped"},
        "wrong: the output; what is wrong first: the dropout: right where nothing is dropped",
    ),
    "AGREES": (
        {"name": "`s`", "line": 9, "law": "`score`"},
        "`s` (line 9) is `score` of the specification, but ",
    ),
    "FIRST_LINE": (
        {
            "before": "`s` (line 9) is `score` of the specification, but ",
            "name": "`p`",
            "line": 12,
            "law": "`weights`",
        },
        "; `s` (line 9) is `score` of the specification, but `p` (line 12) is not `weights`, as "
        "it is in calls that pass",
    ),
    "FIRST_LINE_ALONE": (
        {"name": "what `scores` returns", "line": 9, "law": "`score`"},
        "; what `scores` returns (line 9) is not `score` of the specification, as it is in calls "
        "that pass",
    ),
    "LAST_LINE": (
        {"name": "`s`", "line": 9, "law": "`score`"},
        "; the last variable that is right in calls that fail is `s` (line 9), `score` of the "
        "specification",
    ),
    "VARIABLE": ({"name": "s"}, "`s`"),
    "RESULT": ({"function": "attention", "place": 2}, "result 2 of `attention`"),
    "RETURNED": ({"function": "scores"}, "what `scores` returns"),
    "BIASES_ALONE": ({}, "the scores are their biases alone"),
    "ALL_EQUAL": ({}, "all scores are equal"),
    "LIST": ({"most": "query, key", "last": "mask"}, "query, key and mask"),
    "WRONG": ({"outputs": "the output: from row 3 on"}, "wrong: the output: from row 3 on"),
    "OUTPUT": ({}, "the output"),
    "WEIGHTS": ({}, "the weights"),
    "NUMBERED_OUTPUT": ({"number": 1}, "output 1"),
    "NUMBERED_GRADIENT": ({"number": 7}, "gradient 7"),
    "GRADIENT_BY": ({"name": "key"}, "the gradient by key"),
    "PLACE": ({"places": "from key 64 on, in head 3 alone"}, ": from key 64 on, in head 3 alone"),
    "IN_ONE": ({"name": "head", "index": 3}, "in head 3 alone"),
    "ONE_KEY": ({"index": 3}, "key 3 alone"),
    "FROM": ({"name": "key", "index": 64, "size": 96}, "from key 64 of 96 on"),
    "UP_TO": ({"name": "row", "index": 7, "size": 9}, "up to row 7 of 9"),
    "SOME": ({"name": "row", "indices": "2, 4"}, "row 2, 4"),
    "OF_EVERY": ({"name": "row", "indices": "2, 3", "period": 4}, "row 2, 3 of every 4"),
    "SOME_AND_MORE": ({"name": "row", "indices": "2, 4, 5, 6"}, "row 2, 4, 5, 6 ..."),
    "IN_LAST": ({"name": "head", "index": 7}, "in the last head (7) alone"),
    "LAST_KEY": ({"index": 7}, "the last key (7) alone"),
    "THERE": ({"what": "3.00% high"}, ", 3.00% high where it is wrong"),
    "ZERO": ({}, "0"),
    "NAN": ({}, "NaN"),
    "OTHER_SIGN": ({}, "with the other sign"),
    "INDEX_OF_AXIS": ({"axis": 2}, "axis 2, index"),
    "OF": ({"inside": 44, "all": 46}, "44 of 46"),
    "TRIED": (
        {"passed": "M = 16", "failed": "M = 17"},
        "M = 16 passed, M = 17 failed",
    ),
    "TRIED_APART": (
        {"passed": "M = 16", "failed": "M = 64"},
        "M = 16 passed, M = 64 failed, and what lies between was not tried",
    ),
    "HOLDS": (
        {"failures": "14 of 14", "passes": "0 of 37"},
        "that holds in 14 of 14 calls that fail, 0 of 37 that pass",
    ),
    "NOT_TRIED": (
        {"failures": "14 of 14", "passes": "0 of 37", "tried": "; M = 48 passed, M = 49 failed"},
        "(covers 14 of 14 failures, 0 of 37 passes; tried on no fresh draw; M = 48 passed, M = 49 "
        "failed)",
    ),
    "COVERS": (
        {
            "failures": "44 of 44",
            "passes": "3 of 88",
            "fresh_failures": "9 of 9",
            "fresh_passes": "0 of 4",
        },
        "(covers 44 of 44 failures, 3 of 88 passes; on fresh draws 9 of 9 and 0 of 4)",
    ),
    "NONE_FAILED": (
        {
            "failures": "24 of 24",
            "passes": "2 of 71",
            "fresh_passes": "0 of 6",
            "tried": "; M = 48 passed, M = 49 failed",
        },
        "(covers 24 of 24 failures, 2 of 71 passes; no fresh draw failed, of those that passed it "
        "holds in 0 of 6; M = 48 passed, M = 49 failed)",
    ),
}


def templates() -> dict[str, str]:
    return {name: text for name, text in vars(sentences).items() if name.isupper()}


@pytest.mark.parametrize("name", templates())
def test_each_template_says_what_its_text_is(name: str) -> None:
    template, (given, text) = templates()[name], TEXTS[name]
    assert template.format(**given) == text
    assert {place for _, place, *_ in Formatter().parse(template) if place} <= set(given)
    assert len(text) <= LINE * 2 and "#" not in text


LINE = 100
"""A sentence is at most two lines."""


def test_no_text_is_kept_of_a_template_that_is_gone() -> None:
    assert set(TEXTS) == set(templates())


def test_each_template_is_told_by_some_module() -> None:
    used = {name for path in MODULES for name in re.findall(r"\bsay\.([A-Z_]+)", path.read_text())}
    within = re.findall(r"^[A-Z_]+ = ([A-Z_]+) ", Path(sentences.__file__).read_text(), re.M)
    assert used | set(within) == set(templates())


def texts_made_in(source: str) -> Iterator[str]:
    """Texts with a word in them that a module which tells causes makes on its own."""
    tree = ast.parse(source)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    if not any(getattr(c.func, "id", "") in ("Cause", "Explanation") for c in calls):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr) and re.search("[a-z]{2}", ast.unparse(parts_of(node))):
            yield ast.unparse(node)
    for call in calls:
        if getattr(call.func, "id", "") in ("Cause", "Explanation"):
            literals = (arg for arg in call.args if isinstance(arg, ast.Constant))
            yield from (str(literal.value) for literal in literals if literal.value)


def parts_of(text: ast.JoinedStr) -> ast.JoinedStr:
    """An f-string without its places."""
    return ast.JoinedStr([part for part in text.values if isinstance(part, ast.Constant)])


MODULES = sorted(Path(diagnosis.__path__[0]).rglob("*.py"))


def test_no_module_makes_a_sentence_of_its_own() -> None:
    assert len(MODULES) > 15
    assert {
        path.name: made for path in MODULES if (made := [*texts_made_in(path.read_text())])
    } == {}


def test_a_sentence_of_a_modules_own_is_seen() -> None:
    assert [*texts_made_in("Cause(f'{a} of {b}')")] and [*texts_made_in("Cause('wrong')")]
    assert not [*texts_made_in("Cause(say.OF.format(a=f'{a}'), (b,))")]


@pytest.mark.parametrize("operation", CATALOGUE)
def test_what_a_candidate_is_called_fits_into_its_sentence(operation: str) -> None:
    for words in (candidate.words for candidate in candidates(operation)):
        told = sentences.EQUALS.format(mistakes=words, share=0.5)
        assert len(told) <= LINE * 2 and words == words.strip() and words[-1] != ".", words
        assert not re.search(r"[#{}\n]|\bNone\b", words), words


def test_a_fault_at_a_number_and_its_candidates_are_told_alike() -> None:
    assert sentences.HIDDEN_AT_BUT == AT_A_NUMBER
