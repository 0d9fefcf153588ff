"""
What a file may mean by today's options and results: found out where it does not say so, right where
it does, and wrong where what it says is not true.
"""

import re
from pathlib import Path

import numpy as np
import pytest

from attnverify.backends.loader import load
from attnverify.inputs.real.calls import everyday_calls
from attnverify.judge.case import case_of
from attnverify.judge.judging import judge
from attnverify.plugin.closing import describe_unseen
from attnverify.verdicts.columns import unjudged_gradient
from tests.attnverify.verdicts.test_found_out import cell_of, judge_file
from tests.support.nightly import covering

ATTENTION = """
import torch
from attnverify import torch_impl
{declared}

def grouped_attention(query, key, value, mask=None, soft_cap=None, sink=None, scale=None,
                      causal=False, window=None, lengths=None):
    if window is not None and {with_itself}:
        window = (None if window[0] is None else max(window[0] - 1, 0), window[1])
    options = dict(causal=causal, window=window, lengths=lengths)
    given = dict(mask=mask, soft_cap=soft_cap, scale=scale)
    if {behind}:
        query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    output, lse = torch_impl.grouped_attention(query, key, value, sink=sink, **given, **options)
    {change}
    return (output.transpose(1, 2) if {behind} else output), lse
"""
"""An attention that is right but for what it means by its options and results."""

WITHOUT_SINK = (
    "lse = torch_impl.grouped_attention(query, key, value, **given, **options)[1]",
    'LSE = "without sink"',
)
BASE = "lse = lse / 0.6931471805599453", "LSE_BASE = 2"
EMPTY = "lse = lse.masked_fill(lse == -torch.inf, {})"
MEANT: dict[str, tuple[str, str]] = {
    "base 2": BASE,
    "plus infinity": (EMPTY.format("torch.inf"), 'EMPTY_LSE = float("inf")'),
    "a finite number": (EMPTY.format("-5e4"), "EMPTY_LSE = -50000.0"),
    "without the sink": WITHOUT_SINK,
    "positions first": ("lse = lse.transpose(1, 2)", 'LSE_LAYOUT = "BNH"'),
}
"""What changes an lse, with the line that says so."""


def attention(change: str = "pass", declared: str = "", window: bool = False, behind: bool = False):  # type: ignore[no-untyped-def]
    return ATTENTION.format(change=change, declared=declared, with_itself=window, behind=behind)


def told(folder: Path, text: str, aspect: str = "values", dtype: str = "float32") -> list[str]:
    """The lines that a failing file is told to add."""
    result = judge_file(folder, text, dtype, aspect)
    assert result.verdict == "failed"
    notes = [note for finding in result.findings for note in finding.notes]
    return [line for note in notes for line in re.findall(r"[A-Z_]+ = [^;]*", note)]


def passes(folder: Path, text: str, aspect: str = "values") -> bool:
    result = judge_file(folder, text, "float32", aspect)
    return (result.verdict, result.cases >= 20) == ("passed", True)


@pytest.mark.parametrize(("meant", "aspect"), covering(MEANT, ["values", "gradients"]))
def test_what_is_meant_by_an_lse_is_found_out_and_holds_when_said(
    meant: str, aspect: str, tmp_path: Path
) -> None:
    change, line = MEANT[meant]
    if (meant, aspect) not in UNSEEN:
        assert told(tmp_path, attention(change), aspect) == [line]
    assert passes(tmp_path, attention(change, line), aspect)


UNSEEN = {("plus infinity", "gradients"), ("a finite number", "gradients")}
"""A constant has no gradient."""


@pytest.mark.usefixtures("causes_are_not_sought")
@pytest.mark.parametrize("line", [line for _, line in MEANT.values()])
def test_what_is_said_of_an_lse_and_is_not_true_is_wrong(line: str, tmp_path: Path) -> None:
    assert judge_file(tmp_path, attention("pass", line), "float32").verdict == "failed"


def test_a_window_that_counts_the_own_key_is_found_out(tmp_path: Path) -> None:
    line = 'WINDOW = "with itself"'
    assert told(tmp_path, attention(window=True)) == [line]
    assert passes(tmp_path, attention(declared=line, window=True))
    assert judge_file(tmp_path, attention(declared=line), "float32").verdict == "failed"


def test_several_are_found_out_at_once(tmp_path: Path) -> None:
    lines = ['LAYOUT = "BNHD"', "LSE_BASE = 2", 'WINDOW = "with itself"']
    assert told(tmp_path, attention(BASE[0], window=True, behind=True)) == lines
    assert passes(tmp_path, attention(BASE[0], "\n".join(lines), window=True, behind=True))


@pytest.mark.usefixtures("causes_are_not_sought")
def test_a_wrong_attention_is_told_nothing(tmp_path: Path) -> None:
    assert told(tmp_path, attention("lse = lse * 1.5")) == []


MERGE = """
import torch
from attnverify import torch_impl
{declared}

def merge_attention(outputs, lses):
    output, lse = torch_impl.merge_attention(outputs, lses * 0.6931471805599453)
    return output, lse / 0.6931471805599453
"""


@pytest.mark.parametrize("aspect", ["values", "gradients"])
def test_parts_of_base_two_are_merged_as_such(aspect: str, tmp_path: Path) -> None:
    assert told(tmp_path, MERGE.format(declared=""), aspect) == ["LSE_BASE = 2"]
    assert passes(tmp_path, MERGE.format(declared="LSE_BASE = 2"), aspect)


ALONE = """
from torch.nn.functional import scaled_dot_product_attention
{declared}

def grouped_attention(query, key, value, attn_mask=None, scale=None):
    return scaled_dot_product_attention(query, key, value, attn_mask, scale=scale, enable_gqa=True)
"""


@pytest.mark.parametrize("aspect", ["values", "gradients"])
def test_an_output_is_judged_without_its_lse_where_the_file_says_so(
    aspect: str, tmp_path: Path
) -> None:
    line = 'FEATURES = {"lse": False}'
    assert passes(tmp_path, ALONE.format(declared=line), aspect)
    assert judge_file(tmp_path, ALONE.format(declared=""), "float32", aspect).verdict == "failed"


HOLDS = {
    "base 2": attention(*BASE),
    "output alone": ALONE.format(declared='FEATURES = {"lse": False}'),
}


@pytest.mark.parametrize(("meant", "aspect"), covering(HOLDS, ["values", "gradients"]))
def test_what_is_said_holds_in_a_call_of_the_size_that_models_make(
    meant: str, aspect: str, tmp_path: Path
) -> None:
    cell = cell_of(tmp_path, HOLDS[meant], "float32", aspect)
    own = cell.gradient if aspect == "gradients" else cell.implementation
    assert own is not None
    case = case_of(everyday_calls(own.operation.name, "quick", 0)[0], "float32")
    assert case.recipe.is_large and judge(own, case).judged


def test_what_is_wrong_without_an_lse_is_explained(tmp_path: Path) -> None:
    """The search for its cause broke off: candidates have an lse, the file returns none."""
    text = ALONE.format(declared='FEATURES = {"lse": False}').replace("scale=scale", "scale=0.5")
    (finding, *_) = judge_file(tmp_path, text, "float32").findings
    assert str(finding.cause).startswith("the weights are wrong, and right where query is 0")


WINDOWED = """
import torch

FEATURES = {"lse": False}


def grouped_attention(query, key, value, *, window=None):
    key, value = (x.repeat_interleave(query.shape[1] // key.shape[1], 1) for x in (key, value))
    scores = query @ key.mT * query.shape[-1] ** -0.5
    N, M = scores.shape[-2:]
    apart = torch.arange(M) - torch.arange(N)[:, None] - (M - N)
    left, right = window or (None, None)
    hidden = torch.zeros(N, M, dtype=torch.bool)
    hidden |= (apart < -left - 1) if left is not None else hidden
    hidden |= (apart > right) if right is not None else hidden
    return torch.softmax(scores.masked_fill(hidden, -torch.inf), -1).nan_to_num(0.0) @ value
"""


def test_a_wider_window_without_an_lse_is_explained(tmp_path: Path) -> None:
    """The search broke off: of a candidate that is far nearer than the law all outputs count."""
    (finding, *_) = judge_file(tmp_path, WINDOWED, "float32").findings
    assert "a window with a key more on the left" in str(finding.cause)


def test_a_missing_lse_that_is_not_declared_is_told_and_nothing_is_searched(tmp_path: Path) -> None:
    """The search broke off: an answer of one array was compared with bounds of two."""
    (finding, *_) = judge_file(tmp_path, ALONE.format(declared=""), "float32").findings
    assert finding.cause is None and finding.message.endswith('FEATURES = {"lse": False}')


PAGED = """
import torch
from attnverify import torch_impl

def paged_attention(query, key_pages, value_pages, page_table, lengths, query_starts):
    return torch_impl.paged_attention(
        query, key_pages, value_pages, page_table, lengths, query_starts
    )
"""


def test_a_gradient_that_the_specification_has_not_is_said_to_be_unjudged(tmp_path: Path) -> None:
    unseen = unjudged_gradient(cell_of(tmp_path, PAGED, "float32").implementation).unseen
    assert unseen == {"gradient": "the specification has none"}
    said = {"implementation": "paged_attention", "backend": "own", "dtype": "float32"}
    lines = describe_unseen([said | {"unseen": unseen}])
    told = ": no gradient was judged of paged_attention: the specification has none"
    assert any(line.endswith(told) for line in lines)
    for text in (attention(declared=""), LATENT.format(wrong="")):
        assert not unjudged_gradient(cell_of(tmp_path, text, "float32").implementation).unseen


LATENT = """
import torch

FEATURES = {{"lse": False}}

class Latent(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, q_pe, c, k_pe, scale):
        score = torch.einsum("bhne,bme->bhnm", q, c) + torch.einsum("bhnd,bmd->bhnm", q_pe, k_pe)
        w = torch.softmax(score * scale, -1)
        ctx.save_for_backward(q, q_pe, c, k_pe, w)
        ctx.scale = scale
        return w @ c[:, None]

    @staticmethod
    def backward(ctx, d):
        q, q_pe, c, k_pe, w = ctx.saved_tensors
        d_w = d @ c[:, None].mT
        d_s = w * (d_w - (w * d_w).sum(-1, keepdim=True)) * ctx.scale
        by_values = torch.einsum("bhnm,bhne->bme", w, d)
        d_c = by_values + torch.einsum("bhnm,bhne->bme", d_s, q)
        d_k_pe = torch.einsum("bhnm,bhnd->bmd", d_s, q_pe)
        {wrong}
        return d_s @ c[:, None], d_s @ k_pe[:, None], d_c, d_k_pe, None

def latent_attention(q_nope, q_pe, ckv, kpe, sm_scale):
    return Latent.apply(q_nope, q_pe, ckv, kpe, sm_scale)
"""


@pytest.mark.parametrize(
    ("wrong", "cause"),
    [
        ("d_c = by_values", "what the latent receives as the keys lost"),
        ("d_k_pe = torch.einsum('bnm,bnd->bmd', d_s[:, -1], q_pe[:, -1])",
         "the gradient by the position from the last head"),
    ],
)  # fmt: skip
def test_a_wrong_backward_of_a_latent_is_told(wrong: str, cause: str, tmp_path: Path) -> None:
    """It was green: the specification had no gradient to hold it to."""
    result = judge_file(tmp_path, LATENT.format(wrong=wrong), "float32", "gradients")
    (finding,) = result.findings
    assert f"equals the specification with {cause}" in str(finding.cause)


def test_so_are_rounded_operands(tmp_path: Path) -> None:
    """The search broke off where a candidate's bounds were held against the output alone."""
    text = ALONE.format(declared='FEATURES = {"lse": False}')
    narrow = "(*(x.bfloat16().float() for x in (query, key, value)), attn_mask, s"
    text = text.replace("(query, key, value, attn_mask, s", narrow)
    (finding, *_) = judge_file(tmp_path, text, "float32").findings
    assert "bfloat16" in str(finding.cause), finding.cause


def test_a_narrower_dtype_is_found_without_an_lse(tmp_path: Path) -> None:
    text = ALONE.format(declared='FEATURES = {"lse": False}')
    narrow = "x if x is None or 'bool' in str(x.dtype) else x.float()"
    text = text.replace(
        "(query, key, value, attn_mask, s",
        f"(*({narrow} for x in (query, key, value, attn_mask)), s",
    )
    text = text.replace("gqa=True)", "gqa=True).double()")
    result = judge_file(tmp_path, text, "float64")
    assert result.verdict == "unsupported" and "computes in float32" in str(result.reason)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("LSE_BASE = 10", "LSE_BASE: wanted 2, got 10"),
        ('EMPTY_LSE = "none"', "EMPTY_LSE: wanted a finite number"),
        ('WINDOW = "both"', "WINDOW: wanted 'with itself'"),
    ],
)
def test_what_nobody_means_is_refused(line: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(attention(declared=line))
    assert words in str(load(str(file)).broken)


PADDED = """
import torch
from attnverify import torch_impl
{declared}

def multi_head_attention(query, key, value, parameters, num_heads, attn_mask=None,
                         key_padding_mask=None):
    if {name} is not None and {name}.dtype == torch.bool:
        {name} = ~{name}
    return torch_impl.multi_head_attention(query, key, value, parameters, num_heads,
                                           attn_mask, key_padding_mask)
"""


HIDING = """\
import numpy as np
{declared}


def scaled_dot_product_attention(query, key, value, mask=None{more}):
    if {asked}:
        return "the causal mask"
    score = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1]).astype(query.dtype)
    if mask is not None:
        added = np.where(mask, -np.inf, 0) if mask.dtype == bool else mask
        score = score + added.astype(score.dtype)
    top = score.max(-1, keepdims=True)
    e = np.exp(score - np.where(np.isfinite(top), top, 0))
    total = e.sum(-1, keepdims=True)
    return (e / np.where(total > 0, total, 1) @ value).astype(query.dtype)
"""


def test_a_mask_of_which_true_hides_is_found_out_in_plain_attention(tmp_path: Path) -> None:
    """It was a mistake, and no line said it otherwise."""
    line = 'MASK = "True hides"'
    assert told(tmp_path, HIDING.format(declared="", more="", asked=False)) == [line]
    causal = line + '\nARGUMENTS = {"is_causal": "causal mask"}'
    file = tmp_path / "mine.py"
    file.write_text(HIDING.format(declared=causal, more=", is_causal=False", asked="is_causal"))
    (one,) = load(str(file)).implementations
    given, shown = np.zeros((1, 1, 2, 2)), np.tri(2, dtype=bool)
    assert one.function(query=given, key=given, value=given, mask=shown) == "the causal mask"
    given[0, 0, 1, 1] = 1
    seen = one.function(query=0 * given, key=given, value=given, mask=np.array([[0, 1]]) == 1)
    assert seen[0, 0, :, 1].tolist() == [1, 1]


def test_arithmetic_in_float32_hides_no_other_mistake_from_float64(tmp_path: Path) -> None:
    """What was left was shown by a smaller call, which only its rounding made wrong."""
    given = "(x.astype(np.float32) for x in (query, key, value))"
    narrow = f"    kept, query, key, value = query.dtype, *{given}"
    text = HIDING.format(declared="", more="", asked=False)
    text = text.replace("    score", f"{narrow}\n    score", 1)
    text = text.replace("value).astype(query.dtype)", "value).astype(kept)")
    assert told(tmp_path, text, dtype="float64") == ['MASK = "True hides"']


@pytest.mark.parametrize("name", ["attn_mask", "key_padding_mask"])
def test_what_true_means_in_a_mask_of_several_heads_is_found_out(name: str, tmp_path: Path) -> None:
    """The reverse of PyTorch's sense was a mistake, and no line said it otherwise."""
    line = f'{name.upper()} = "True shows"'
    assert told(tmp_path, PADDED.format(declared="", name=name)) == [line]
    said = PADDED.format(declared=line, name=name)
    assert judge_file(tmp_path, said, "float32", "values").verdict == "passed"
