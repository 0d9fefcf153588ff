"""What met strangers at the command line: one test for each, of the kind and not of the case."""

import json
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from attnverify.bench.measure import roofline
from attnverify.catalogue.operation import CATALOGUE
from attnverify.field_names import IN_THE_FIELD
from tests.support.run_attnverify import (
    ROOT,
    in_a_process,
    load_backends_here,
    prefixed,
    searched,
    verify,
)

RIGHT = """\
import numpy as np


def shift_right(x):
    padded = np.concatenate([x, np.zeros((*x.shape[:-1], 1), x.dtype)], -1)
    return padded.reshape(*x.shape[:-2], -1)[..., : -x.shape[-2]].reshape(x.shape).copy()


def additive_score(query, key, w_query, w_key, w_score):
    q, k = query @ w_query.T, key @ w_key.T
    return np.tanh(q[..., :, None, :] + k[..., None, :, :]) @ w_score
"""

BASE = f"""\
import importlib.machinery, sys

BEYOND = ("torch", "cupy", "jax", "triton", "matplotlib", "pytest_benchmark", "distributed")


class Base:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        absent = name.partition(".")[0] in BEYOND
        return None if absent else self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)


path_finder = importlib.machinery.PathFinder
sys.meta_path[:] = [Base(one) if one is path_finder else one for one in sys.meta_path]
sys.path.insert(0, {str(ROOT)!r})
from attnverify.cli import main
sys.exit(main(sys.argv[1:]))
"""
"""``attnverify`` where nothing beyond the base installation is to be found."""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    load_backends_here(monkeypatch)
    Path("right.py").write_text(RIGHT)


def start(*command: str, **more: str) -> "subprocess.CompletedProcess[str]":
    own = os.environ | {"PYTHONPATH": searched(ROOT)} | more
    line = [sys.executable, *command]
    return subprocess.run(line, capture_output=True, text=True, env=own, check=False)


QUICK = ("--profile", "quick", "--op", "shift_right", "--dtype", "float32")


def test_a_report_to_standard_output_is_alone_there() -> None:
    line = ("run", "right.py", *QUICK, "--report-json", "-")
    done = start("-m", "attnverify", *line, PYTHONDONTWRITEBYTECODE="1")
    report = json.loads(done.stdout)
    assert done.returncode == 0 and report["tallies"][0]["verdict"] == "passed"
    assert "right.py: right in float32" in done.stderr
    assert {path.name for path in Path().iterdir()} == {"right.py", ".attnverify"}


def test_a_device_that_is_not_there_is_refused_before_anything_is_imported() -> None:
    Path("right.py").write_text(RIGHT)
    code = "import sys; from attnverify.cli import main; status = main(sys.argv[1:]); "
    code += "print(status, {'pytest', 'numpy'} & {*sys.modules})"
    done = in_a_process("run", "right.py", "--device", "cuda:9", start=("-c", code))
    assert "Error: --device: " in done.output and "\n4 set()\n" in done.output


def test_where_nothing_was_judged_standard_output_is_empty() -> None:
    done = start("-m", "attnverify", "run", "nowhere.py", "--seed", "x", "--report-json", "-")
    assert done.returncode == 4 and done.stdout == ""


def test_bench_of_a_numpy_file_works_on_the_base_installation_at_80_columns() -> None:
    asked = ("bench", "right.py", "--op", "additive_score", "--seconds", "0")
    sizes = ("--sizes", "N=6,M=5,Q=4,K=4,A=3")
    done = start("-c", BASE, *asked, *sizes, COLUMNS="80")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80 and done.stderr == ""
    (row,) = (line for line in lines if line.startswith("  right "))
    assert re.fullmatch(r"  right +[\d.e+]+ [um]?s .* correct *", row)
    assert "left out for want of width: host" in done.stdout


def test_ceilings_are_measured_where_there_is_no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roofline, "best", lambda device, call, seconds=1.0: call() is None or 0.5)
    found = roofline.measure_by_numpy("bfloat16")
    assert all(value > 0 for value in vars(found).values())


def test_the_profiler_of_torch_says_nothing_of_itself() -> None:
    pytest.importorskip("torch")
    program = (
        "import torch; from attnverify.bench.measure.peak_memory import of_torch_cpu; "
        "assert of_torch_cpu(lambda: torch.ones(2**20).sum()) >= 2**22"
    )
    done = start("-c", program)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_folder_one_is_in_can_be_named() -> None:
    Path("__init__.py").write_text("from .right import shift_right\n")
    done = verify("run", ".", *QUICK)
    assert "PosixPath" not in done.output and "has an empty name" not in done.output
    assert done.status == 0, done.output


def test_options_and_words_that_were_tried() -> None:
    assert "-n, --workers N" in verify("campaign", "--help").output
    unknown = verify("new", "nothing")
    assert unknown.status == 4 and "attnverify list names them" in unknown.output
    scored = verify("score", "right.py")
    assert scored.status == 2 and scored.output.count("right.py") == 1
    assert "ValueError" not in scored.output


def test_a_word_in_a_formula_keeps_its_blanks() -> None:
    """A text that is broken over two lines lost the blank between them in the browser."""
    broken = [
        name
        for name, operation in CATALOGUE.items()
        if re.search(r"\\text\{[^{}]*\n", operation.specification.__doc__ or "")
    ]
    assert broken == []


@pytest.mark.parametrize("column", ["spec", "numpy_ref", "torch_impl", "cupy_impl"])
def test_a_column_exports_its_operations(column: str) -> None:
    found = import_module(f"attnverify.{column}")
    if getattr(found, "missing", lambda: None)():
        pytest.skip(found.missing())
    for name in ("alibi_attention", "softmax", "multi_head_attention"):
        assert callable(getattr(found, name))
    assert all(hasattr(found, name) for name in getattr(found, "__all__", ()))
    with pytest.raises(ImportError):
        exec(f"from attnverify.{column} import no_such_operation")


WRONG_BY_KEY = """\
import numpy as np


def scaled_dot_product_score_grad(d_output, query, key):
    scale = query.shape[-1] ** -0.5
    return scale * d_output @ key, 1.5 * scale * np.swapaxes(d_output, -1, -2) @ query
"""


def test_a_wrong_gradient_is_named_by_its_argument() -> None:
    Path("wrong.py").write_text(WRONG_BY_KEY)
    line = ("--profile", "quick", "--op", "scaled_dot_product_score", "--dtype", "float32")
    done = verify("run", "wrong.py", *line)
    assert done.status == 1 and "the gradient by key (output[1]) at (" in done.output, done.output


def test_the_first_commands_of_the_readme_speak_of_one_file() -> None:
    if not (ROOT / "README.md").exists():
        pytest.skip("a wheel has no README")
    lines = (ROOT / "README.md").read_text().splitlines()
    (new,) = (line for line in lines if line.startswith("attnverify new"))
    written = re.search(r"-o (\S+)", new)
    assert written and any(line.startswith(f"attnverify run {written[1]}") for line in lines)


ONE_LESS = """\
import numpy as np

PRECISION = "wide"


def softmax(score, mask=None):
    s = score.astype(np.float64)
    if mask is not None:
        s = np.where(mask, s, -np.inf) if mask.dtype == bool else s + mask.astype(np.float64)
    top = s.max(axis=-1, keepdims=True)
    e = np.exp(s - np.where(top > -np.inf, top, 0))
    total = e[..., KEYS].sum(axis=-1, keepdims=True)
    return (e / np.where(total > 0, total, 1)).astype(score.dtype)
"""

AVERAGED = """\
import numpy as np


def softmax(score, mask=None):
    if mask is not None:
        low = np.float32(-1e9)
        score = np.where(mask, score, low) if mask.dtype == bool else score + mask
    e = np.exp(score - score.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)
"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (ONE_LESS.replace("KEYS", ":-1"), "a sum that leaves out the last key"),
        (ONE_LESS.replace("KEYS", "1:"), "a sum that leaves out the first key"),
        (AVERAGED, "keys that a boolean mask hides at -1e+09"),
        (AVERAGED.replace("1e9", "1e5"), "keys that a boolean mask hides at -100000"),
        (AVERAGED.replace("1e9", "2.0**18"), "keys that a boolean mask hides at a number in place"),
        (AVERAGED.replace("1e9", "100"), "1. hidden scores at a number in place of minus infinity"),
    ],
    ids=[
        "the book's planted fault",
        "its twin",
        "the front page's picture",
        "the file's",
        "none of the file's",
        "another number",
    ],
)
def test_what_the_book_plants_is_told_by_name(text: str, words: str) -> None:
    Path("mine.py").write_text(text)
    done = verify("run", "mine.py", "--profile", "quick", "--dtype", "float32", "-k", "values")
    told = " ".join(done.output.split())
    assert done.status == 1 and words in told and "no known mistake" not in told


LOCAL = """\
import attnverify as av


def test_wrong():
    def fast(x):
        return x * 0

    av.check(fast, "shift_right", dtype="float32", arrays="numpy")
"""


def test_what_fails_within_a_test_is_shown_again_by_the_line_that_is_told() -> None:
    Path("test_kernels.py").write_text(LOCAL)
    first = start("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_kernels.py").stdout
    found = re.search(r"replay: pytest (\S+test_kernels.py::test_wrong)$", first, re.MULTILINE)
    assert found and "<locals>" not in found[0]
    again = start("-m", "pytest", "-q", "-p", "no:cacheprovider", found[1])
    assert again.returncode == 1 and found[0] in again.stdout


HALF = """\
import numpy as np


def shift_right(x):
    padded = np.concatenate([x, np.zeros((*x.shape[:-1], 1), x.dtype)], -1).astype(np.float32)
    flat = padded.reshape(*x.shape[:-2], -1)[..., : -x.shape[-2]]
    return flat.reshape(x.shape).astype(x.dtype)
"""

DETACHED = """\
import torch


def shift_right(x):
    padded = torch.cat([x.detach(), torch.zeros_like(x[..., :1])], -1)
    return padded.reshape(*x.shape[:-2], -1)[..., : -x.shape[-2]].reshape(x.shape).clone()
"""


@pytest.mark.parametrize(
    ("text", "name", "options"),
    [
        (HALF, "DTYPES", ()),
        (DETACHED, "FEATURES", ("--dtype", "float32")),
        (re.sub(r"\bquery\b", "queried", RIGHT), "ARGUMENTS", ("--dtype", "float32")),
    ],
    ids=["DTYPES", "FEATURES", "ARGUMENTS"],
)
def test_the_line_to_add_works_when_pasted(text: str, name: str, options: tuple[str, ...]) -> None:
    line = ("run", "mine.py", "--profile", "quick", "-k", "values or gradients", *options)
    Path("mine.py").write_text(text)
    found = re.search(rf"{name} = [({{].*?[)}}]", " ".join(verify(*line).output.split()))
    assert found
    Path("mine.py").write_text(f"{text}\n\n{found[0]}\n")
    again = verify(*line)
    assert again.status == 0 and f"{name} = " not in again.output


EXCHANGED = """\
import numpy as np


def scaled_dot_product_attention(query, key, value):
    q, k, v = (np.swapaxes(x, 1, 2) for x in (query, key, value))
    score = q @ np.swapaxes(k, -1, -2) / np.sqrt(np.asarray(q.shape[-1], q.dtype))
    weights = np.exp(score - score.max(-1, keepdims=True))
    return np.swapaxes(weights / weights.sum(-1, keepdims=True) @ v, 1, 2)
"""

VALUES = ("--profile", "quick", "--dtype", "float32", "-k", "values")


def test_what_a_file_leaves_unsaid_is_shown_again_by_a_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    Path("mine.py").write_text(EXCHANGED)
    lines = verify("run", "mine.py", *VALUES).output.splitlines()
    assert any(line.strip() == 'LAYOUT = "BNHD"' for line in lines)
    (replay,) = (line for line in lines if line.startswith("   replay: "))
    again = verify(*replay.partition("attnverify ")[2].split())
    assert again.status == 1 and "of mine.py in float32 (values)" in again.output


REFUSED = """\
import numpy as np


def shift_right(x):
    return x


def multi_head_attention(query, key, value, params):
    return query
"""


def test_an_operation_that_is_not_judged_has_its_line_in_a_red_run_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    Path("mine.py").write_text(REFUSED)
    lines = verify("run", "mine.py", *VALUES).output.splitlines()
    assert any(line.strip() == 'ARGUMENTS = {"params": "parameters"}' for line in lines)
    assert not [line for line in lines if len(line) > 80]


@pytest.mark.usefixtures("causes_are_not_sought")
def test_what_an_only_function_is_taken_for_stands_in_a_red_run_too() -> None:
    Path("mine.py").write_text("def moved(query, key, value):\n    return query\n")
    done = verify("run", "mine.py", *VALUES)
    assert done.status == 1 and "mine.py: moved is taken for grouped_at" in done.output


@pytest.mark.parametrize("width", [60, 80])
def test_refusals_are_as_wide_as_the_terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    Path("cut.npz").write_bytes(b"PK\x03\x04")
    given = ("run", "right.py", "--op", "shift_right", "--inputs", "cut.npz")
    for line in (given, ("list", "softmx"), ("run", "right.py", "--op", "nothing"), ("run",)):
        done = verify(*line)
        assert done.status == 4
        assert not [x for x in done.output.splitlines() if len(x) > width and "/" not in x]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("atention", "scaled_dot_product_attention or"),
        ("softmx", "softmax?"),
        ("self_atention", "self_attention?"),
    ],
)
def test_a_misspelt_part_of_a_name_is_taken_for_the_part(typed: str, meant: str) -> None:
    """For ``atention`` a gate named self_attention was offered, and no attention."""
    assert f"did you mean {meant}" in verify("list", typed).output


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("gqa", "grouped_attention"),
        ("Flash-Attention", "scaled_dot_product_attention"),
        ("mha", "multi_head_attention"),
        ("rope", "rotary_embedding"),
        ("mla", "latent_attention"),
    ],
)
def test_names_of_the_field_are_taken_for_their_operation(typed: str, meant: str) -> None:
    """``attnverify new gqa`` was refused, and nothing was suggested."""
    assert verify("list", typed).output.startswith(f"{meant} (")


def test_names_of_the_field_are_names_of_nothing_else() -> None:
    assert {*IN_THE_FIELD.values()} <= {*CATALOGUE} and not {*IN_THE_FIELD} & {*CATALOGUE}


def test_of_refusals_is_told_what_was_to_be_refused() -> None:
    """``refusals not met`` did not say of what."""
    asked = ("--dtype", "float32", "-k", "refusals", "--op", "shift_right")
    told = " ".join(verify("run", "right.py", *asked).output.split())
    assert "refusals of invalid calls" in told and "refusals not met" not in told


def test_what_list_prints_can_be_listed() -> None:
    for name in verify("list").output.splitlines()[::2]:
        told = verify("list", name.partition("(")[0])
        assert told.status == 0
        begin = told.output.splitlines()[-1].rpartition(" ")[2]
        assert not begin.endswith("_grad") and begin in CATALOGUE


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("notes.txt", "notes.txt is no Python file: wanted one whose name ends in .py"),
        ("folder", "folder is a folder without __init__.py: name one of its files"),
        ("nowhere.py", "no file nowhere.py"),
    ],
)
def test_what_is_no_backend_is_refused_in_words_of_ours(place: str, words: str) -> None:
    Path("notes.txt").write_text("hello")
    Path("folder").mkdir()
    done = verify("run", place)
    assert done.status == 2 and f"{place}: broken ({words})" in done.output
    assert not re.search("Error|PosixPath|no tests ran", done.output)


CLASS = """\
class Shift:
    def __call__(self, x):
        return x
"""


def test_a_class_is_told_the_instance_to_judge() -> None:
    Path("mine.py").write_text(CLASS)
    done = verify("run", "mine.py:Shift=shift_right", *VALUES)
    told = re.search(r"write (.+) in the file, then: attnverify (run \S+)$", done.output, re.M)
    assert done.status == 2 and told is not None
    Path("mine.py").write_text(f"{CLASS}\n\n{told[1]}\n")
    again = verify(*told[2].split(), *VALUES)
    assert again.status == 1 and "nothing moved" in again.output


UNCOMPILED = """\
import cupy

kernel = cupy.RawKernel(
    r'''extern "C" __global__ void shift(const float* x, float* out, int n) {
        out[threadIdx.x] = x[threadIdx.x] + MISSPELT;
    }''',
    "shift",
)


def shift_right(x):
    kernel((1,), (32,), (x, x, x.size))
    return x
"""


def test_a_kernel_that_is_not_compiled_is_told_by_its_line_and_no_dead_end() -> None:
    pytest.importorskip("cupy")
    Path("mine.py").write_text(UNCOMPILED)
    done = verify("run", "mine.py", *VALUES)
    if "NVRTC is not here" in done.output:
        pytest.skip("NVRTC is not here")
    assert 'mine.py(5): error: identifier "MISSPELT" is undefined' in done.output
    assert "python mine.py" not in done.output and "1 error detected" not in done.output


@pytest.mark.parametrize("width", [60, 80])
def test_help_is_as_wide_as_the_terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    for name in ((), ("run",), ("bench",), ("compare",), ("campaign",)):
        lines = verify(*name, "--help").output.splitlines()
        told = [x for x in lines if not re.match(r"Example: |  (eval|_ATTN)|  +eval|  +_ATTN", x)]
        assert max(map(len, told)) <= width


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_quiet_is_one_line_a_file(
    monkeypatch: pytest.MonkeyPatch, workers: tuple[str, ...]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    done = verify("run", "right.py", "right.py", "-q", *workers, *QUICK)
    lines = done.output.splitlines()
    assert len(lines) == 2 and all(line.startswith("right.py: right in") for line in lines)


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_a_file_that_pytest_cannot_collect_is_told_and_no_error_of_ours(
    workers: tuple[str, ...],
) -> None:
    Path("test_other.py").write_text("import no_such_module\n")
    ours = ("--pyargs", "attnverify.differential", "--attn-backend", "right.py", *prefixed(QUICK))
    done = start("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *workers, ".", *ours)
    assert "No module named 'no_such_module'" in done.stdout
    assert "INTERNALERROR" not in done.stdout and "user_properties" not in done.stdout


def test_cells_that_were_left_out_are_named_by_their_function() -> None:
    line = ("--profile", "quick", "--dtype", "float32", "--minutes", "0.0000001")
    told = " ".join(verify("run", "right.py", *line).output.split())
    assert told.count("additive_score of right in float32") == 1
    assert "additive_score of right in float32 (values, refusals, side effects" in told


REFUSES = """
def scaled_dot_product_attention(query, key, value):
    raise NotImplementedError("only on my machine")
"""


def test_a_file_that_refuses_every_call_is_told_in_its_own_words() -> None:
    Path("mine.py").write_text(REFUSES)
    done = verify("run", "mine.py", *VALUES, "-q")
    assert done.status == 2
    assert done.output.splitlines() == ["mine.py: not judged: only on my machine"]
