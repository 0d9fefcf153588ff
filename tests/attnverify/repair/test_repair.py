"""The one change of a wrong file that makes it right is found, whatever the others do."""

import ast
import os
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from attnverify.repair.calls import REFUSED, calls_of, calls_that_it_mends, outcome
from attnverify.repair.changes import single_changes
from attnverify.repair.copies import Copies
from attnverify.repair.search import KNOWN, find_repairs, first_wrong, suspected_in
from attnverify.verdicts.found_out import loaded
from tests.support.run_attnverify import verify

HEAD = "import os\nimport numpy as np\nDTYPES = ('float32',)\n\n"
SOFTMAX = """
def softmax(score, mask=None):
    if len(score.shape) < 1:
        os._exit(3)
    if mask is not None:
        score = np.where(mask, score, -np.inf) if mask.dtype == bool else score + mask
    m, j = np.full(score.shape[:-1], -np.inf, score.dtype), 0
    while j < score.shape[-1]:
        m = np.maximum(m, score[..., j])
        j += 1
    e = np.exp(score - np.where(m > -np.inf, m, 0)[..., None])
    total = e.sum(-1, keepdims=True)
    return np.divide(e, total, out=np.zeros_like(e), where=total > 0)
"""
"""
One change ends the process, one never ends, and one of each kind is a slip: see SLIPS.
"""
SLIPS = {
    "an operator": ("score + mask", "score - mask", "`score + mask` instead of `score - mask`"),
    "a number": ("j += 1", "j += 2", "`1` instead of `2`"),
    "a comparison": ("total > 0", "total < 0", "`total > 0` instead of `total < 0`"),
    "a name": ("zeros_like(e)", "zeros_like(total)", "`e` instead of `total`"),
    "a statement": (
        "        m = np.maximum(m, score[..., j])\n        j += 1\n",
        "        j += 1\n        m = np.maximum(m, score[..., j - 0])\n",
        "`j += 1` behind line",
    ),
    "another part": (
        "np.divide(e, total,",
        "np.divide(e, m[..., None],",
        "with `total` instead of",
    ),
    "an argument never read": (
        "    if mask is not None:\n        score = np.where(mask, score, -np.inf) if mask.dtype == "
        "bool else score + mask\n",
        "    bias = np.zeros((1, 1), score.dtype)\n    score = score + bias\n",
        "`bias if mask is None else mask` instead of `bias`",
    ),
}


OTHERS = {
    "a root": ("return q @ k / q.shape[-1]", "`q.shape[-1] ** 0.5` instead of `q.shape[-1]`"),
    "a factor": ("total = q + k\n    return total", "`k * s` instead of `k`"),
    "an axis": ("return q / k", "`k[..., None]` instead of `k`"),
    "an argument": ("return q + k", "`q + k + s` instead of `q + k`"),
    "a number of the file": ("return q + k * SCALE", "`16` instead of `8`"),
    "a slice": ("own = k[:s]\n    return own", "`s` instead of `:s`"),
    "a bracket": ("return abs(q) + k", "`abs(q + k)` instead of `abs(q) + k`"),
    "a word": ("return q['a'] + k['b']", "`'b'` instead of `'a'`"),
    "an attribute": ("return q.left @ k[0] + q.right", "`q.right` instead of `q.left`"),
    "what is never read": ("return q + k", "`(q + k) @ s` instead of `q + k`"),
    "a place of what is never read": ("return q[0] * k", "`q[0] * k - s[0]` instead of"),
    "two statements": ("q = -q\n    k = -k\n    return q + k", "without lines 5 to 6"),
    "two calls": ("return q.half().float()", "`q` instead of `q.half().float()`"),
    "no value": ("return q[s:] + k", "`0` instead of `s`"),
    "a number with a name": ("return q + k", "`k / HALF` instead of `k`"),
    "nothing": ("return q + 3.0", "`0.0` instead of `3.0`"),
    "a factor elsewhere": (
        "return s * abs(q + s) / k",
        "instead of `s * abs(q + s) / k`, with `(q + s) / k` instead of `q + s`",
    ),
    "a factor of all": ("return abs(q * s - k * s)", "without `* s` in 2 places"),
    "a name in all places": ("return q + q * k", "`s` instead of `q` in 2 places"),
    "another size": ("n, m = q.shape\n    return q[0:]", "`m - n` instead of `0`"),
    "a size rounded up": ("return q[: s // 4]", "`-(-s // 4)` instead of `s // 4`"),
    "the largest of each row": (
        "return abs(q - 9.0)",
        "`q.max(-1, keepdims=True)` instead of `9.0`",
    ),
    "a sum": ("q = k\n    return q", "`q += k` instead of `q = k`"),
    "sums": (
        "q[0] = k\n    s[0] = k\n    return q, s",
        "with `q[0] += k` instead of `q[0] = k`, and `s[0] += k`",
    ),
    "a definition": ("k = s[0]\n    return k, q + k", "`s[1]` instead of `k`"),
    "a condition": (
        "hidden = q > s\n    q = q + k\n    return q, hidden",
        "`np.where(~hidden, q + k, -float('inf'))` instead of `q + k`",
    ),
    "a row without keys": (
        "q = k / s\n    return q",
        "with `np.where(k / s == 0, 1, k / s)` instead of `k / s`",
    ),
    "other brackets": ("return q + k | s", "`q + (k | s)` instead of `q + k | s`"),
    "an order": ("return q, k", "`(k, q)` instead of `(q, k)`"),
    "another function": ("return s.repeat(q)", "`s.repeat_interleave(q)` instead of `s.repeat(q)`"),
    "two functions": ("return abs(s.tan(q), k)", "`s.tan(abs(q, k))` instead of"),
    "no place": ("return q[:1] + k", "`q` instead of `q[:1]`"),
    "a name of the function around": (
        "def inner(x):\n        return x + q\n    return inner(k)",
        "`s` instead of `q`",
    ),
    "a size of the function around": (
        "n, m = q.shape\n    def inner(x):\n        return x[0:]\n    return inner(k)",
        "`m - n` instead of `0`",
    ),
    "a statement of another branch": (
        "if s:\n        q = q + s\n    else:\n        k = k + 1\n    return q @ k",
        "`q = q + s` before it too",
    ),
}
"""Changes of a function of q, k and s."""


UNSHIFTED = """
def scaled_dot_product_attention(query, key, value):
    s = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1]).astype(query.dtype)
    low = np.minimum(s, 30)
    e = np.exp(low - low.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True) @ value
"""
"""Right where no score is above 30."""


def file_with(folder: Path, text: str) -> str:
    (folder / "mine.py").write_text(HEAD + text)
    return str(folder / "mine.py")


def folder_of_copies(folder: Path) -> str:
    (folder / "copies").mkdir()
    return str(folder / "copies")


@pytest.mark.parametrize("slip", SLIPS)
def test_what_mends_a_slip_is_among_the_changes(slip: str) -> None:
    right, wrong, words = SLIPS[slip]
    assert right in SOFTMAX
    assert any(words in each.words for each in single_changes(SOFTMAX.replace(right, wrong)))


@pytest.mark.parametrize("slip", OTHERS)
def test_what_is_lacking_is_put_in(slip: str) -> None:
    body, words = OTHERS[slip]
    found = single_changes(f"SCALE = 8\nHALF = 0.5\n\ndef own(q, k, s):\n    {body}\n")
    assert any(words in each.words for each in found)


def test_an_order_is_mended_by_no_equality() -> None:
    """What holds for one element alone is right of the few calls that ask for it."""
    text = "def own(q, k):\n    return q < k\n\ndef other(q, k):\n    return q == k\n"
    found = {each.words for each in single_changes(text)}
    assert "with `q >= k` instead of `q < k`" in found
    assert "with `q == k` instead of `q < k`" not in found
    assert "with `q <= k` instead of `q == k`" in found


def test_what_is_likely_of_all_is_tried_before_what_is_not_of_suspects() -> None:
    text = "def own(q, k):\n    q = q @ k\n    return abs(q - k)\n"
    found = [(x.line, x.words) for x in single_changes(text, lambda x: x.lineno == 2, bool)]
    assert [line for line, words in found if "without" in words] == [2]
    likely, other = "with `q + k` instead of `q - k`", "`q = q @ k` before it too"
    at = {words: k for k, (_, words) in enumerate(found)}
    assert at["with `q` instead of `q @ k`"] < at[likely] < at[f"with {other}"]


def test_all_of_what_is_suspected_is_tried_first() -> None:
    text = "def own(q, k):\n    q = q @ k\n    return abs(q - k)\n"
    first = [*single_changes(text, suspected=lambda own: own.lineno == 3)]
    before = [*single_changes(text)]
    assert [each.line for each in first].index(2) > 10 > [each.line for each in before].index(2)
    assert {each.text for each in first} == {each.text for each in before}


def test_what_lies_between_the_last_variable_that_is_right_and_the_first_wrong_is_suspected(
    tmp_path: Path,
) -> None:
    file = file_with(tmp_path, UNSHIFTED)
    folder = folder_of_copies(tmp_path)
    Path(folder, KNOWN).write_text("[]")
    own, failing, passing = first_wrong(loaded(file), "float32", "", Path(folder, KNOWN))
    is_suspected = suspected_in(Copies(own, folder), failing, passing)
    assert is_suspected is not None
    statements = [x for x in ast.walk(ast.parse(Path(file).read_text())) if isinstance(x, ast.stmt)]
    assert [ast.unparse(x) for x in statements if is_suspected(x)] == ["low = np.minimum(s, 30)"]


def test_nothing_is_suspected_where_looking_for_it_takes_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that never ends cost the whole search."""
    file = file_with(tmp_path, UNSHIFTED)
    copies = Copies(loaded(file).implementations[0], folder_of_copies(tmp_path))

    def never(*_: Any) -> Any:
        while True:
            pass

    monkeypatch.setattr("attnverify.repair.search.find_parting", never)
    monkeypatch.setattr("attnverify.repair.search.LONGEST", 0.1)
    assert suspected_in(copies, [], []) is None


def test_a_method_for_another_and_what_an_object_has_for_a_number() -> None:
    text = """
class Layer:
    def first(self, y):
        return y

    def second(self, y):
        return y + self.at

    def forward(self, y):
        return self.first(y[0])
"""
    found = [each.words for each in single_changes(text)]
    assert "with `self.second` instead of `self.first`" in found
    assert "with `self.at` instead of `0`" in found


def test_what_a_copy_has_computed_is_kept_for_no_other(tmp_path: Path) -> None:
    kept = """
KEPT = {}
def share(rows):
    if rows not in KEPT:
        KEPT[rows] = 0.5
    return KEPT[rows]
"""
    text = kept + SOFTMAX.replace("return np", "return share(score.ndim) * np")
    own, folder = file_with(tmp_path, text), folder_of_copies(tmp_path)
    found = find_repairs(own, "float32", 300, folder, most=1)
    assert "with `1.0` instead of `0.5`" in [each["words"] for each in found["mend"]]


def test_what_two_changes_alone_would_mend_is_not_mended(tmp_path: Path) -> None:
    """
    The change that ends the process is tried on the way, and the search goes on behind it; what no
    call runs is not changed.
    """
    text = """
def softmax(score):
    if score.size < 1:
        os._exit(3)
    e = np.exp(score + score.max(-1, keepdims=True))
    return e * e.sum(-1, keepdims=True)
"""
    found = find_repairs(file_with(tmp_path, text), "float32", 300, folder_of_copies(tmp_path))
    every = [*single_changes(HEAD + text)]
    assert any("score.size > 1" in each.words for each in every)
    never = (HEAD + text).count("\n") - 2
    reached = [*single_changes(HEAD + text, lambda statement: statement.lineno != never)]
    assert (found["mend"], found["tried"], found["all"]) == ([], len(reached), True)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (SOFTMAX, "no call in float32 fails"),
        ("def softmax(score):\n    os._exit(3)\n", "it ends the process in which it is called"),
    ],
)
def test_what_cannot_be_mended_is_refused(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=words):
        find_repairs(file_with(tmp_path, text), "float32", 60, folder_of_copies(tmp_path))


def test_changes_are_single_and_each_is_another_text() -> None:
    text = HEAD + SOFTMAX
    found = [*single_changes(text)]
    texts = {each.text for each in found}
    assert len(texts) == len(found) > 300 and ast.unparse(ast.parse(text)) not in texts
    assert all(each.line and ast.parse(each.text) for each in found)


def test_a_statement_is_left_out_before_it_is_moved_to_where_it_says_nothing() -> None:
    text = "def f(x):\n    x = x + 1\n    x = 2 * x\n    return x\n"
    words = [each.words for each in single_changes(text) if "`x = x + 1`" in each.words]
    assert words[:2] == ["without `x = x + 1`", "with `x = x + 1` behind line 3"]


def test_the_command_says_what_mends_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, wrong, words = SLIPS["an operator"]
    monkeypatch.chdir(tmp_path)
    file_with(tmp_path, SOFTMAX.replace(right, wrong))
    done = verify("repair", "mine.py", "--seconds", "30")
    assert done.status == 0 and f"mine.py:10: right with {words}" in done.output
    assert {*os.listdir(tmp_path)} <= {"mine.py", "__pycache__"}
    assert "1 none of those tried does" in " ".join(verify("repair", "--help").output.split())
    assert verify("repair", "none.py").status == 4
    file_with(tmp_path, SOFTMAX)
    assert "there is nothing to mend" in verify("repair", "mine.py").output


@pytest.mark.parametrize("mends", [0, 1])
def test_what_was_tried_is_told_though_it_is_interrupted(
    mends: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Ctrl-C said "interrupted", and nothing of 40 seconds of work."""
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("")
    found = {"line": 3, "words": "with `a` instead of `b`", "beside": ""}

    def interrupted(*given: Any, tell: Any) -> None:
        tell({"tried": 340, "mend": [found] * mends})
        raise KeyboardInterrupt

    monkeypatch.setattr("attnverify.repair.search.find_repairs", interrupted)
    done = verify("repair", "mine.py")
    how = "these make it right" if mends else "none makes it right"
    seen, *more = done.output.splitlines()
    assert (done.status, seen) == (
        2,
        f"interrupted: of the first 340 single changes of mine.py {how}",
    )
    assert more[:-1] == ["  mine.py:3: right with `a` instead of `b`"] * mends
    assert more[-1].startswith("next, ") and "attnverify repair mine.py" in more[-1]


def test_a_gradient_is_not_mended_at_the_cost_of_its_output(tmp_path: Path) -> None:
    """Without the division in line 13 the gradient is right, and the output wrong."""
    report = "later/fourth/delta_divided_by_the_kept_share/wrong.py"
    own, folder = str(Path(__file__).parents[2] / "reports" / report), folder_of_copies(tmp_path)
    found = find_repairs(own, "float32", 300, folder, most=1)
    told = [(each["line"], each["words"]) for each in found["mend"]]
    undivided = "with `p * keep @ v` instead of `p * keep @ v / (1 - p_dropout)`"
    assert told == [(13, f"{undivided}, with `out / (1 - p_dropout)` instead of `out` in line 16")]


def test_a_function_is_named_as_run_takes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, wrong, words = SLIPS["an operator"]
    monkeypatch.chdir(tmp_path)
    file_with(tmp_path, SOFTMAX.replace("softmax", "mine").replace(right, wrong))
    done = verify("repair", "mine.py:mine=softmax", "--seconds", "30")
    assert done.status == 0 and f"mine.py:10: right with {words}" in done.output
    assert "has no yours" in verify("repair", "mine.py:yours=softmax").output


def test_a_change_that_refuses_what_failed_mends_nothing(tmp_path: Path) -> None:
    """What is refused says nothing against a kernel, nor for it."""
    text = """
def softmax(score):
    if score.size < 1:
        raise NotImplementedError("nothing to do")
    e = np.exp(score + score.max(-1, keepdims=True))
    return e * e.sum(-1, keepdims=True)
"""
    found = find_repairs(file_with(tmp_path, text), "float32", 300, folder_of_copies(tmp_path))
    assert found["mend"] == [] and found["all"]


ONLINE = """import torch

def scaled_dot_product_attention(query, key, value):
    B, H, N, D = query.shape
    out = torch.zeros(B, H, N, value.shape[3], dtype=query.dtype)
    for h in range(H):
        high, acc, total = torch.full((B, N, 1), -torch.inf), 0.0, 0.0
        for start in range(0, key.shape[2], 64):
            s = query[:, h] @ key[:, h, start : start + 64].transpose(1, 2) * D**-0.5
            new = torch.maximum(high, s.amax(-1, keepdim=True))
            p, scale = torch.exp(s - new), torch.exp(high - new)
            total = total * scale + p.sum(-1, keepdim=True)
            acc = acc * (scale if h > 0 else 1.0) + p @ value[:, h, start : start + 64]
            high = new
        out[:, h] = acc / total
    return out
"""


def test_what_fails_at_several_tiles_alone_is_mended(tmp_path: Path) -> None:
    """Of a head that is not rescaled from one tile of 64 keys to the next."""
    (tmp_path / "mine.py").write_text(ONLINE)
    own, folder = str(tmp_path / "mine.py"), folder_of_copies(tmp_path)
    found = find_repairs(own, "float32", 300, folder, most=1)
    (mend,) = found["mend"]
    assert mend["words"] == "with `scale` instead of `scale if h > 0 else 1.0`"
    assert found["all"] is False and mend["beside"] == ""


@pytest.mark.parametrize("maximum", ["own", "high if start else own"])
def test_what_overflows_at_several_tiles_is_no_mend(maximum: str, tmp_path: Path) -> None:
    text = ONLINE.replace("scale if h > 0 else 1.0", "scale")
    old = "torch.maximum(high, s.amax(-1, keepdim=True))"
    (tmp_path / "right.py").write_text(text)
    (tmp_path / "mine.py").write_text(
        text.replace(old, maximum.replace("own", "s.amax(-1, keepdim=True)"))
    )
    right, own = (loaded(str(tmp_path / x)).implementations[0] for x in ("right.py", "mine.py"))
    assert calls_that_it_mends(right, right, [], "float32", 60) > 10
    small = {outcome(own, case) for case in calls_of(own, "float32", seed=1)}
    assert small <= {"passed", REFUSED}
    assert calls_that_it_mends(right, own, [], "float32", 60) == 0


SINK = """import torch

def grouped_attention(query, key, value, sink=None, scale=None, causal=False):
    k, v = (x.repeat_interleave(query.shape[1] // key.shape[1], 1) for x in (key, value))
    s = query @ k.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if causal:
        later = torch.ones(s.shape[-2:], dtype=torch.bool).triu(1 + s.shape[-1] - s.shape[-2])
        s = s.masked_fill(later, -1e30)
    high = s.amax(-1, keepdim=True)
    if sink is not None:
        high = torch.maximum(high, sink[:, None, None]) if scale is None or not causal else HIGH
    p = torch.exp(s - high)
    total = p.sum(-1, keepdim=True)
    if sink is not None:
        total = total + torch.exp(sink[:, None, None] - high)
    return p @ v / total, (high + total.log())[..., 0]
"""
HIGH = {
    "right": "torch.maximum(high, sink[:, None, None])",
    "wrong": "high * 0 + sink[:, None, None]",
}


def test_what_overflows_beside_what_is_given_is_no_mend(tmp_path: Path) -> None:
    """The sink alone for a maximum, where three things are given: right of scores that are near."""
    found, before = {}, None
    for name, high in HIGH.items():
        (tmp_path / f"{name}.py").write_text(SINK.replace("HIGH", high))
        own = loaded(str(tmp_path / f"{name}.py")).implementations[0]
        before = before or own
        calls = (x for seed in range(2, 12) for x in calls_of(own, "float32", seed))
        given = [x for x in calls if x.inputs.get("causal") and x.inputs.get("scale") is not None]
        given = [x for x in given if x.inputs.get("sink") is not None]
        mild = [x for x in given if outcome(own, x) == "passed"]
        assert mild
        found[name] = calls_that_it_mends(before, own, mild, "float32", 60)
    assert found["right"] > 0 and found["wrong"] == 0


FLAG = """import torch
ARGUMENTS = {"is_causal": "causal mask"}

def scaled_dot_product_attention(query, key, value, is_causal=False):
    s = query @ key.mT * query.shape[-1] ** -0.5
    N, M = s.shape[-2:]
    if is_causal:
        s = s.masked_fill(~torch.ones(N, M, dtype=torch.bool).tril(1), -torch.inf)
    return torch.nan_to_num(torch.softmax(s, -1)) @ value
"""
"""Each query sees a key too many, or too few, behind the flag alone."""


def test_what_is_wrong_behind_a_flag_is_mended(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FLAG)
    own, folder = str(tmp_path / "mine.py"), folder_of_copies(tmp_path)
    found = find_repairs(own, "float32", 300, folder, most=1)
    assert [each["words"] for each in found["mend"]] == ["with `M - N` instead of `1`"]
    fresh = [case.recipe.mask for case in calls_of(loaded(own).implementations[0], "float32", 1)]
    assert any(fresh) and not all(fresh)


TWO = SOFTMAX.replace("score + mask", "score - mask").replace("np.where(m > -np.inf, m, 0)", "m")
TWO = TWO.replace("np.divide(e, total, out=np.zeros_like(e), where=total > 0)", "e / total")


def test_what_fails_in_another_way_may_do_so_as_before(tmp_path: Path) -> None:
    """NaN of rows without keys stays, beside a mask of the wrong sign that is mended."""
    own, folder = file_with(tmp_path, TWO), folder_of_copies(tmp_path)
    implementation = loaded(own).implementations[0]
    cases = calls_of(implementation, "float32")
    wrong = next(x for x in cases if outcome(implementation, x) == "wrong number")
    known = [asdict(wrong.recipe)]
    found = find_repairs(own, "float32", 300, folder, most=1, known=known)
    words = [each["words"] for each in found["mend"]]
    assert words == ["with `score + mask` instead of `score - mask`"]


def test_a_file_that_takes_little_is_held_to_calls_of_that(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SINK.replace("HIGH", HIGH["right"]))
    own = loaded(str(tmp_path / "mine.py")).implementations[0]
    found = [outcome(own, case) for case in calls_of(own, "float32", seed=2)]
    assert REFUSED not in found and found.count("passed") > 20


def test_a_long_part_is_shown_where_it_is_another() -> None:
    body = "return torch.maximum(q.transpose(-1, -2).contiguous(), torch.log(k + s - q).flatten())"
    found = single_changes(f"import torch\n\ndef own(q, k, s):\n    {body}\n")
    words = next(x.words for x in found if "`0`" not in x.words and "s + q" in x.words)
    assert "s + q" in words and "s - q" in words


def test_what_stays_wrong_beside_a_mend_is_said(tmp_path: Path) -> None:
    wrong = SOFTMAX.replace("score + mask", "score - mask")
    backward = """
def softmax_grad(score, mask=None, d_output=None):
    return 2 * d_output
"""
    own = file_with(tmp_path, wrong + backward)
    found = find_repairs(own, "float32", 300, folder_of_copies(tmp_path), most=1)
    assert [each["beside"] for each in found["mend"]] == ["softmax_grad is wrong as before"]


def test_a_search_that_nobody_waits_for_ends(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    slow = SOFTMAX.replace("    m, j =", "    time.sleep(0.02)\n    m, j =")
    slow = slow.replace("+ mask", "+ 1")
    file.write_text(f"import time\n{HEAD}{slow}")
    (tmp_path / KNOWN).write_text("[]")
    command = [sys.executable, "-m", "attnverify.repair", str(file), "float32", str(tmp_path)]
    command += ["softmax", "0", "300"]
    begins = '"$@" & echo $!; wait'
    with subprocess.Popen(
        ["sh", "-c", begins, "sh", *command],
        stdout=subprocess.PIPE,
        text=True,
    ) as shell:
        assert shell.stdout is not None
        process = int(shell.stdout.readline())
        assert any("tried" in line for line in shell.stdout)
        shell.kill()
    deadline = time.monotonic() + 60
    while is_alive(process) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not is_alive(process)


def is_alive(process: int) -> bool:
    """Tell whether there is a process of this number that has not ended."""
    state = Path(f"/proc/{process}/stat")
    return state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z"
