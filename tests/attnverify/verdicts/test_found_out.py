"""What a file says of itself, and what is found out where it says nothing."""

from dataclasses import replace
from pathlib import Path

import pytest

from attnverify.backends.declarations import Declarations
from attnverify.backends.loader import load
from attnverify.catalogue.operation import CATALOGUE
from attnverify.failures.finding import Finding
from attnverify.inputs.sampling import draw_recipes
from attnverify.judge.case import case_of
from attnverify.report.next_steps import lines_to_add
from attnverify.verdicts import search
from attnverify.verdicts.cell import cells
from attnverify.verdicts.columns import judge_cell
from attnverify.verdicts.found_out import has_heads_of_any_width, supported_variants
from attnverify.verdicts.tally import CellResult, Options
from tests.support.nightly import covering
from tests.support.quick_search import cell_of


@pytest.fixture(autouse=True)
def failures_are_not_diagnosed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is looked at here is the verdict; to shrink and explain a failure takes longer."""
    monkeypatch.setattr(search, "describe_found", lambda found, *_: [*map(Finding, found.failing)])


RIGHT = """
import torch
{declared}

def scaled_dot_product_attention(query, key, value):
    q, k, v = (x.{arithmetic} for x in (query, key, value))
    out = torch.softmax(q @ k.transpose(-1, -2) / query.shape[-1] ** 0.5, -1) @ v
    return (out{change}).to(query.dtype)
"""
"""Of which ``arithmetic`` says in which dtype, and ``change`` what is done to the output."""


def judge_file(
    folder: Path, text: str, dtype: str = "float64", aspect: str = "values"
) -> CellResult:
    cell = cell_of(folder, text, dtype, aspect)
    return judge_cell(cell, Options("quick", failures=str(folder / "failures")))


def says(result: CellResult) -> str:
    """The reason without the element that shows it."""
    return result.reason.partition(": ")[0]


def attention(arithmetic: str = "float()", change: str = "", declared: str = "") -> str:
    return RIGHT.format(arithmetic=arithmetic, change=change, declared=declared)


@pytest.mark.parametrize("aspect", ["values", "gradients"])
def test_arithmetic_in_float32_is_found_out(aspect: str, tmp_path: Path) -> None:
    result = judge_file(tmp_path, attention(), aspect=aspect)
    assert (result.verdict, says(result)) == ("unsupported", "computes in float32")


def test_half_precision_in_float32_is_found_out(tmp_path: Path) -> None:
    result = judge_file(tmp_path, attention("half()"), "float32")
    assert (result.verdict, says(result)) == ("unsupported", "computes in float16")


@pytest.mark.parametrize(
    ("arithmetic", "change", "dtype"),
    [
        ("float()", " * (1 + 1e-4)", "float64"),  # more than float32 explains
        ("double()", " * (1 + 1e-4)", "float32"),  # within half precision, which nothing else says
        ("float()", " + (key.shape[-2] > 16)", "float64"),  # float32, and wrong besides
    ],
)
def test_an_error_that_narrower_arithmetic_does_not_explain_stays_one(
    arithmetic: str, change: str, dtype: str, tmp_path: Path
) -> None:
    assert judge_file(tmp_path, attention(arithmetic, change), dtype).verdict == "failed"


def test_a_dtype_that_is_named_is_required(tmp_path: Path) -> None:
    declared = 'DTYPES = ("float64", "float32")'
    assert judge_file(tmp_path, attention(declared=declared)).verdict == "failed"


def test_a_dtype_that_is_not_named_is_not_judged(tmp_path: Path) -> None:
    result = judge_file(tmp_path, attention(declared='DTYPES = ("float32",)'))
    assert (result.verdict, result.reason) == ("unsupported", "DTYPES does not name float64")


@pytest.mark.parametrize(
    ("declared", "change", "verdict"),
    [
        ("", "", "unsupported"),
        ('DTYPES = ("float64",)', "", "failed"),
        ("", " + (key.shape[-2] > 16)", "failed"),
    ],
    ids=["found out", "promised", "wrong besides"],
)
def test_a_dtype_that_the_values_leave_out_is_left_out_of_the_other_columns(
    declared: str, change: str, verdict: str, tmp_path: Path
) -> None:
    """Wrong calls raise RuntimeError there, which is a failure where the dtype is judged."""
    result = judge_file(tmp_path, attention("float()", change, declared), aspect="refusals")
    assert result.verdict == verdict
    assert verdict == "failed" or says(result) == "computes in float32"


DETACHED = ".detach()"


@pytest.mark.parametrize(
    ("declared", "change", "verdict"),
    [
        ("", DETACHED, "unsupported"),
        ('FEATURES = {"gradient": True}', DETACHED, "failed"),
        ('FEATURES = {"gradient": False}', " + 1", "unsupported"),
        ("", "if key.shape[-2] > 4 else score.detach()", "failed"),
    ],
    ids=["no gradient", "promised", "declared", "in some calls alone"],
)
def test_a_function_without_a_gradient(
    declared: str, change: str, verdict: str, tmp_path: Path
) -> None:
    text = attention("float()", change if change[0] in ". " else f" {change}", declared)
    assert judge_file(tmp_path, text, "float32", "gradients").verdict == verdict


def test_each_finding_comes_with_the_line_to_add(tmp_path: Path) -> None:
    narrow = judge_file(tmp_path, attention()).as_dict()
    without = judge_file(tmp_path, attention(change=DETACHED), "float32", "gradients").as_dict()
    declared = {"mine": Declarations(features={"float mask": False})}
    lines = list(lines_to_add([narrow, without], declared))
    assert lines.pop(2).startswith("  seen: got ")  # the sentence and its line stay together
    assert lines == [
        "mine computes in float32 (float64); if meant so, add",
        '  DTYPES = ("float32", "float16", "bfloat16")',
        "mine has no gradient (float32); if meant so, add",
        '  FEATURES = {"float mask": False, "gradient": False}',
    ]
    assert list(lines_to_add([without], {}))[1] == '  FEATURES = {"gradient": False}'


MASKED = """
import numpy as np
{declared}

def scaled_dot_product_attention(query, key, value, mask=None):
    if mask is not None:
        {masked}
    score = query @ np.swapaxes(key, -1, -2) / np.sqrt(query.shape[-1])
    e = np.exp(score - score.max(-1, keepdims=True))
    return e @ value / e.sum(-1, keepdims=True)
"""


@pytest.mark.parametrize(
    ("features", "masked", "verdict"),
    [
        ({"mask": False}, "raise AssertionError", "passed"),
        ({"mask": True}, "raise NotImplementedError('a mask')", "failed"),
        ({}, "raise NotImplementedError('a mask')", "passed"),
        ({}, "raise AssertionError", "failed"),
    ],
    ids=["declared", "promised", "said", "neither"],
)
def test_a_feature_is_judged_as_it_is_declared(
    features: dict[str, bool], masked: str, verdict: str, tmp_path: Path
) -> None:
    text = MASKED.format(declared=f"FEATURES = {features}", masked=masked)
    assert judge_file(tmp_path, text).verdict == verdict


KERNEL = """
import numpy as np

def scaled_dot_product_attention(query, key, value):
    D, M = query.shape[-1], key.shape[-2]
    if D not in (16, 32) or value.shape[-1] != D:
        raise NotImplementedError("D is 16 or 32, and E is D")
    score = query @ np.swapaxes(key, -1, -2) / np.sqrt(D)
    e = np.exp(score - score.max(-1, keepdims=True))
    return e @ value / e.sum(-1, keepdims=True) {tail}
"""


@pytest.mark.parametrize(
    ("tail", "verdict"), [("", "passed"), ("* (1 + (M % 16) / 100)", "failed")]
)
def test_a_kernel_for_a_few_widths_is_judged_in_these(
    tail: str, verdict: str, tmp_path: Path
) -> None:
    result = judge_file(tmp_path, KERNEL.format(tail=tail))
    assert result.verdict == verdict
    assert result.cases >= 15


def test_a_dtype_that_the_library_has_not_is_unsupported(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(MASKED.format(declared="", masked="raise NotImplementedError"))
    backend = load(str(file))
    assert backend.library is not None
    backend.library = replace(
        backend.library,
        unsupported=lambda dtype: "x64 is off" if dtype == "float64" else "",
    )
    found = {
        cell.dtype: judge_cell(cell, Options("quick", failures=str(tmp_path / "failures")))
        for cell in cells([backend], (), ("float64", "float32"), aspects=("refusals",))
    }
    assert (found["float64"].verdict, found["float64"].reason) == ("unsupported", "x64 is off")
    assert found["float32"].verdict != "unsupported"


@pytest.mark.parametrize(
    "declared",
    [
        'DTYPES = "float32"',
        'DTYPES = ("fp33",)',
        'FEATURES = ["mask"]',
        'FEATURES = {"masks": True}',
        'FEATURES = {"mask": "no"}',
    ],
)
def test_a_declaration_that_cannot_be_read_breaks_the_file(declared: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(attention(declared=declared))
    assert declared.partition(" ")[0] in str(load(str(file)).broken)


FLAG = """
import torch
{declared}

def scaled_dot_product_attention(query, key, value, attn_mask=None, is_causal=False):
    score = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
    N, M = score.shape[-2:]
    visible = torch.ones(N, M, dtype=torch.bool)
    if is_causal:
        visible = visible.tril({diagonal})
    if attn_mask is not None:
        if attn_mask.dtype != torch.bool:
            raise NotImplementedError("float mask")
        visible = visible & attn_mask
    weights = torch.softmax(score.masked_fill(~visible, float("-inf")), -1)
    return torch.where(visible, weights, 0) @ value
"""
DECLARED = 'ARGUMENTS = {"is_causal": "causal mask"}'
FROM_START = 'ARGUMENTS = {"is_causal": "causal mask from the start"}'


@pytest.mark.parametrize(
    ("declared", "diagonal", "verdict"),
    [
        (DECLARED, "M - N", "passed"),
        (DECLARED, "", "failed"),
        (FROM_START, "", "passed"),
        (FROM_START, "M - N", "failed"),
        ("", "", "passed"),
    ],
    ids=["right", "aligned at the start", "and said so", "said and not so", "not declared"],
)
def test_a_flag_for_the_causal_mask_is_judged_where_it_is_declared(
    declared: str, diagonal: str, verdict: str, tmp_path: Path
) -> None:
    text = FLAG.format(declared=declared, diagonal=diagonal)
    assert judge_file(tmp_path, text, "float32").verdict == verdict


def test_a_flag_that_is_not_judged_is_told_with_the_line_to_add(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FLAG.format(declared="", diagonal=""))
    (note,) = [note for note in load(str(tmp_path / "mine.py")).notes if "not judged" in note]
    assert "is_causal=True is not judged" in note and DECLARED in note


def test_what_is_never_given_is_told_with_one_line_that_has_all_of_it_judged(
    tmp_path: Path,
) -> None:
    """Two lines of ARGUMENTS would overwrite each other."""
    text = FLAG.replace("is_causal=False", "is_causal=False, keep_mask=None, tile=16")
    file = tmp_path / "mine.py"
    file.write_text(text.format(declared="", diagonal=""))
    (note,) = [note for note in load(str(file)).notes if "not judged" in note]
    line = 'ARGUMENTS = {"is_causal": "causal mask", "keep_mask": "keep"}'
    assert note.endswith(f"where the mask is causal and as keep (True keeps a weight): {line}")
    assert load(str(file)).unjudged == {
        "scaled_dot_product_attention": ["is_causal=True", "keep_mask", "tile"]
    }
    file.write_text(text.format(declared=line, diagonal="M - N"))
    assert load(str(file)).unjudged == {"scaled_dot_product_attention": ["tile"]}


def test_where_a_flag_cannot_be_judged_the_line_says_that_it_is_not_to_be(tmp_path: Path) -> None:
    """Of a layer whose mask is an ``attn_mask``, a causal mask is not recognised."""
    file = tmp_path / "mine.py"
    layer = "def multi_head_self_attention(x, parameters, num_heads, is_causal=False): pass\n"
    file.write_text(f"import torch\n{layer}")
    (note,) = [note for note in load(str(file)).notes if "not judged" in note]
    line = 'ARGUMENTS = {"is_causal": None}'
    assert note.endswith(f"is_causal=True is not judged; if that is meant: {line}")
    file.write_text(f"import torch\n{line}\n{layer}")
    assert not load(str(file)).unjudged


PROMOTES = """
import numpy as np
{declared}

def scaled_dot_product_attention(query, key, value):
    score = np.einsum("bhnd,bhmd->bhnm", query, key).astype({dtype}) / np.sqrt(query.shape[-1])
    e = np.exp(score - score.max(-1, keepdims=True)).astype({dtype})
    return np.einsum("bhnm,bhme->bhne", e / e.sum(-1, keepdims=True), value){change}
"""


@pytest.mark.parametrize(
    ("dtype", "words"),
    [
        ("float16", "does not take float16: output: wanted dtype float16, got float32"),
        ("bfloat16", "does not take bfloat16: raised TypeError: invalid data type for einsum"),
    ],
)
def test_half_precision_that_numpy_does_not_take_is_found_out(
    dtype: str, words: str, tmp_path: Path
) -> None:
    text = PROMOTES.format(declared="", dtype="np.float32", change="")
    result = judge_file(tmp_path, text, dtype)
    assert (result.verdict, result.reason) == ("unsupported", words)


@pytest.mark.parametrize(
    ("row", "judged"),
    covering(
        [
            ('DTYPES = ("float32", "float16", "bfloat16")', "np.float32", ""),  # it says it does
            ("", "np.float64", ""),  # in float32 the dtype is wrong as well
            ("", "np.float32", " * (1 + 1e-3)"),  # in float32 the numbers are
            ("", "np.float32", " @ None"),  # what raises does so in every dtype
        ],
        ["float16", "bfloat16"],
    ),
)
def test_what_fails_in_float32_too_is_no_matter_of_the_dtype(
    row: tuple[str, str, str], judged: str, tmp_path: Path
) -> None:
    declared, dtype, change = row
    text = PROMOTES.format(declared=declared, dtype=dtype, change=change)
    assert judge_file(tmp_path, text, judged).verdict == "failed"


def test_dtypes_that_are_left_out_for_several_reasons_make_one_line(tmp_path: Path) -> None:
    text = PROMOTES.format(declared="", dtype="np.float32", change="")
    found = [judge_file(tmp_path, text, dtype).as_dict() for dtype in ("float16", "bfloat16")]
    assert [*lines_to_add(found, {})][1:] == ['  DTYPES = ("float64", "float32")']


COMPILED = """
import numpy as np
{declared}


class CompilationError(Exception):
    pass


CompilationError.__module__ = "triton.compiler.errors"


def scaled_dot_product_attention(query, key, value):
    D = query.shape[-1]
    if {refused}:
        raise CompilationError("at 13:12:\\n    s = tl.dot(q, k)\\nInput shapes: K >= 16")
    score = query @ np.swapaxes(key, -1, -2) / np.sqrt(D)
    e = np.exp(score - score.max(-1, keepdims=True))
    return e @ value / e.sum(-1, keepdims=True){change}
"""
"""A function that raises as Triton does where it cannot compile a kernel."""

REASON = "does not compile: Input shapes: K >= 16"


def compiled(refused: str, change: str = "", declared: str = "") -> str:
    return COMPILED.format(refused=refused, change=change, declared=declared)


NARROW = "D % 16 or value.shape[-1] != D"


@pytest.mark.parametrize(
    ("change", "verdict"), [("", "passed"), (" * (1 + (key.shape[-2] % 16) / 100)", "failed")]
)
def test_a_kernel_is_judged_in_the_widths_that_it_compiles_for(
    change: str, verdict: str, tmp_path: Path
) -> None:
    result = judge_file(tmp_path, compiled(NARROW, change))
    assert result.verdict == verdict and result.cases >= 15
    (line,) = lines_to_add([result.as_dict()], {})
    assert line == f"mine {REASON}: {result.reasons[REASON]} calls were left out"


def test_a_compiler_that_gives_up_refuses_no_invalid_call(tmp_path: Path) -> None:
    result = judge_file(tmp_path, compiled("query.dtype.kind == 'i'"), aspect="refusals")
    assert result.verdict == "failed"
    assert "query of integers: raised CompilationError" in result.reason


def test_what_does_not_compile_has_no_side_effects(tmp_path: Path) -> None:
    result = judge_file(tmp_path, compiled("True"), aspect="side effects")
    assert result.verdict == "unsupported"


def test_a_kernel_that_never_compiles_is_failed(tmp_path: Path) -> None:
    result = judge_file(tmp_path, compiled("True"), "float32")
    assert (result.verdict, [f.kind for f in result.findings]) == ("failed", ["does not compile"])
    assert REASON in result.reason


@pytest.mark.parametrize(
    ("declared", "verdict"), [("", "unsupported"), ('DTYPES = ("float64",)', "failed")]
)
def test_a_kernel_that_does_not_compile_in_a_dtype(
    declared: str, verdict: str, tmp_path: Path
) -> None:
    result = judge_file(tmp_path, compiled("query.dtype == np.float64", declared=declared))
    assert result.verdict == verdict
    assert verdict == "failed" or result.reason == f"does not take float64: {REASON}"


def test_of_a_dtype_that_does_not_compile_the_reason_is_told_that_float32_has_not(
    tmp_path: Path,
) -> None:
    text = compiled("D % 16 or query.dtype == np.float64").replace(
        'K >= 16")', 'K >= 16" if D % 16 else "at 13:12:\\n    s = 1\\nLoop-carried: acc")'
    )
    result = judge_file(tmp_path, text)
    assert result.reason == "does not take float64: does not compile: Loop-carried: acc"


BOOLEAN = """
import numpy as np
{declared}

def scaled_dot_product_attention(query, key, value, mask=None):
    score = query @ np.swapaxes(key, -1, -2) / np.sqrt(query.shape[-1])
    score = score if mask is None else np.where({shown}, score, -np.inf)
    top = score.max(-1, keepdims=True)
    e = np.exp(score - np.where(np.isinf(top), 0, top))
    total = e.sum(-1, keepdims=True)
    return e @ value / np.where(total == 0, 1, total)
"""
"""An attention for boolean masks; ``shown`` is what it makes of one."""

SAY_SO = 'if this is not supported, say so in the file: FEATURES = {"float mask": False}'


@pytest.mark.parametrize(
    ("declared", "shown", "told"),
    [
        ("", "mask", True),  # takes each number but 0 for True
        ("", "mask > -1", False),  # a wrong number is no refusal
        ('FEATURES = {"float mask": True}', "~~mask", False),
    ],
    ids=["boolean", "wrong", "promised"],
)
def test_a_feature_that_alone_fails_is_told_with_the_line_to_add(
    declared: str, shown: str, told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # the line stands beside the failure as it is described
    result = judge_file(tmp_path, BOOLEAN.format(declared=declared, shown=shown))
    assert result.verdict == "failed" and (SAY_SO in result.reason) == told


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("assert key.shape[-2] < 9", "AssertionError"),
        ("if key.shape[-2] > 8: raise ValueError('at most 8 keys')", "ValueError"),
        ("if key.shape[-2] > 8: raise OSError('at most 8 keys')", ""),
    ],
)
def test_how_to_say_what_is_not_supported_is_told_where_it_is_said_otherwise(
    line: str, error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # the line stands beside the failure as it is described
    text = BOOLEAN.format(declared="", shown="mask").replace(
        "    score =", f"    {line}\n    score =", 1
    )
    reason = judge_file(tmp_path, text).reason
    told = f"if such calls are not supported, raise NotImplementedError in place of {error}"
    assert "raised " in reason and (told in reason) == bool(error)
    assert error or "NotImplementedError" not in reason


@pytest.mark.parametrize(
    ("change", "verdict"), [("", "unsupported"), (".astype(np.float64)", "failed")]
)
def test_hidden_slots_are_not_judged_in_a_dtype_that_is_not_taken(
    change: str, verdict: str, tmp_path: Path
) -> None:
    """0 times NaN is NaN in float32 too; what promotes float32 as well is failed."""
    text = PROMOTES.format(declared="", dtype="np.float32", change=change).replace(
        "key, value):", "key, value, mask=None):"
    )
    masked = "    if mask is not None:\n        score = score + np.where(mask, 0, -np.inf)\n    e ="
    result = judge_file(tmp_path, text.replace("    e =", masked), "float16", "hidden NaN")
    assert result.verdict == verdict


@pytest.mark.parametrize(
    "operation", [name for name, op in CATALOGUE.items() if has_heads_of_any_width(op)]
)
def test_calls_of_the_widths_that_kernels_are_written_for_can_be_made(operation: str) -> None:
    for recipe in draw_recipes(operation, "any", 40, 0):
        for variant in supported_variants(recipe, 64):
            assert case_of(variant, "float32").inputs
