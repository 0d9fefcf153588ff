"""What a file may be besides functions: each is judged, or told with what to type instead."""

import sys
from pathlib import Path

import numpy as np
import pytest

from attnverify.backends.loader import load
from attnverify.cli import main
from attnverify.cli.first_look import only_function
from attnverify.report.next_steps import for_backend
from tests.support.run_attnverify import judged, load_backends_here, verify

RIGHT = """
import numpy as np

def shift_right(x):
    padded = np.concatenate([x, np.zeros((*x.shape[:-1], 1), x.dtype)], -1)
    flat = padded.reshape(*x.shape[:-2], -1)[..., : -x.shape[-2]]
    return flat.reshape(x.shape).copy()
"""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    load_backends_here(monkeypatch)


def write(text: str, name: str = "mine.py") -> str:
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_text(text)
    return name


def test_a_function_of_another_name_is_judged_as_the_operation_that_op_names() -> None:
    write(RIGHT.replace("shift_right", "moved"))
    line = ("mine.py:moved", "--op", "shift_right", "-k", "values")
    assert list(judged(*line).verdicts().values()) == ["passed"]


def test_a_function_of_another_name_is_told_how_to_say_which_operation_it_is() -> None:
    output = verify("run", f"{write(RIGHT.replace('shift_right', 'moved'))}:moved").output
    assert "say which operation it is: attnverify run mine.py:moved=OPERATION" in output


def test_one_function_is_one_operation() -> None:
    line = ("run", f"{write(RIGHT)}:moved", "--op", "shift_right", "--op", "softmax")
    done = verify(*line)
    assert done.status == 4
    assert "mine.py:moved: wanted one --op for it, got 2" in done.output


def test_a_misspelt_function_is_told_with_the_nearest() -> None:
    reason = load(f"{write(RIGHT)}:shift_rihgt").broken
    assert reason == "mine.py has no shift_rihgt; did you mean shift_right?"


@pytest.mark.parametrize(
    ("named", "words"),
    [("shift_rihgt", "; did you mean shift_right?"), ("OPERATION", "; attnverify list names them")],
)
def test_what_a_function_is_said_to_be_must_be_an_operation(named: str, words: str) -> None:
    """It was judged as what its arguments fit, and told by the name that was no operation's."""
    reason = load(f"{write(ATTENTION)}:flash={named}").broken
    assert reason is not None and f"{named} is no operation of the catalogue{words}" in reason


def test_a_folder_that_is_no_package_is_called_a_folder() -> None:
    write(RIGHT, "kernels/mine.py")
    assert "kernels is a folder without __init__.py" in (load("kernels").broken or "")


def test_an_async_function_is_told_to_be_one() -> None:
    write("async def softmax(score, mask=None):\n    return score\n")
    assert "softmax is async" in (load("mine.py").broken or "")


def test_a_class_is_told_how_it_is_judged() -> None:
    write("class Soft:\n    def __call__(self, score, mask=None):\n        return score\n")
    assert "softmax = Soft()" in (load("mine.py").broken or "")


def test_of_a_file_without_an_operation_nothing_is_said_of_its_precision() -> None:
    assert load(write("")).notes == []


def test_a_file_that_leaves_the_library_to_its_neighbour_is_given_its_arrays() -> None:
    write("", "pack/__init__.py")
    write("import torch\n\ndef norm(x):\n    return torch.softmax(x, -1)\n", "pack/inner.py")
    write("from .inner import norm\n\ndef softmax(x):\n    return norm(x)\n", "pack/kern.py")
    sys.path.append(str(Path.cwd()))
    try:
        library = load("pack.kern").library
    finally:
        for name in ("pack", "pack.inner", "pack.kern"):
            sys.modules.pop(name, None)
    assert library is not None and library.name == "torch"


def test_a_part_of_a_package_is_told_as_what_it_is_judged() -> None:
    write("", "pack/__init__.py")
    write("from .inner import norm\n", "pack/kern.py")
    (told,) = for_backend(load("pack/kern.py"))
    assert told.endswith("judge it as one: attnverify run pack.kern")


def test_a_module_of_the_folder_is_found_by_the_console_script(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one not in ("", str(Path.cwd()))])
    monkeypatch.setattr(sys, "argv", ["attnverify", "--version"])
    assert main() == 0
    assert sys.path[-1] == str(Path.cwd())
    assert "attnverify" in capsys.readouterr().out


def test_a_file_in_place_of_a_command_is_told_the_command() -> None:
    done = verify(write(RIGHT))
    assert done.status == 4
    assert "Did you mean 'attnverify run mine.py'?" in done.output


def test_no_far_word_is_suggested() -> None:
    output = verify("run", write(RIGHT), "--profile", "fast").output
    assert "wanted quick, default, thorough, got fast" in output
    assert "did you mean" not in output


ATTENTION = """\
import numpy as np


def flash(q, k, v):
    score = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]).astype(q.dtype)
    e = np.exp(score - score.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True) @ v
"""


@pytest.mark.parametrize(
    ("text", "name", "operation"),
    [
        (ATTENTION, "flash", "scaled_dot_product_attention"),
        (
            RIGHT.replace("shift_right", "my_shift_right_kernel"),
            "my_shift_right_kernel",
            "shift_right",
        ),
    ],
    ids=["by arguments", "by a part of the name"],
)
def test_the_one_function_of_a_file_is_judged_whatever_its_name(
    text: str, name: str, operation: str
) -> None:
    file = write(text)
    done = verify("run", file, "--profile", "quick", "--dtype", "float32", "-k", "values")
    told = " ".join(done.output.split())
    assert done.status == 0 and f"{name} is taken for {operation}, by its arguments" in told
    assert f"if it is another: attnverify run {file}:{name}=OPERATION" in told


IN_TURN = ATTENTION.replace(
    "    score",
    "    k, v = (np.tile(x, (1, q.shape[1] // x.shape[1], 1, 1)) for x in (k, v))\n    score",
)


@pytest.mark.parametrize(
    "name", ["flash", "gqa", "fast_gqa", "grouped_query_attention", "my_mqa_kernel"]
)
def test_a_file_named_for_shared_heads_is_judged_with_shared_heads(name: str) -> None:
    """
    It passed as a plain attention, which has as many heads of keys as of queries; one that is not
    named for it is asked whether it takes fewer.
    """
    file = write(IN_TURN.replace("flash", name) + '\n\nFEATURES = {"lse": False}\n')
    done = verify("run", file, "--profile", "quick", "--dtype", "float32", "-k", "values")
    told = " ".join(done.output.split())
    assert done.status == 1 and f"{name} is taken for grouped_attention" in told
    assert "query heads that read the heads of keys in turn" in told


TILES = "    assert q.shape[2] % 64 == k.shape[2] % 64 == 0\n"
KERNEL = "import triton\n\n\n@triton.jit\ndef kernel(x):\n    pass\n\n\n"


@pytest.mark.parametrize(
    ("text", "operation", "is_asked"),
    [
        (ATTENTION, "scaled_dot_product_attention", True),
        (IN_TURN, "grouped_attention", True),
        (IN_TURN.replace("(q, k, v)", "(q, k, v, mask)"), "grouped_attention", True),
        (IN_TURN.replace("    k, v =", f"{TILES}    k, v ="), "grouped_attention", True),
        (IN_TURN.replace("    k, v =", "    assert q.shape[2] == k.shape[2]\n    k, v ="),
         "scaled_dot_product_attention", False),
        (KERNEL + IN_TURN, "scaled_dot_product_attention", False),
    ],
    ids=["as many heads", "fewer", "with a mask", "in tiles", "of one length alone", "a kernel"],
)  # fmt: skip
def test_whether_fewer_heads_are_taken_is_asked_or_said_not_to_be(
    text: str, operation: str, is_asked: bool
) -> None:
    """What reads memory by its own addresses is not asked."""
    told = " ".join(load(write(text)).notes)
    assert f"flash is taken for {operation}, by its arguments" in told
    unasked = "as grouped_attention where keys have fewer heads than queries: not judged here"
    assert (unasked not in told) == is_asked


@pytest.mark.parametrize("function", ["moved(x)", "flash(a, b, c)", "load(path)"])
def test_where_arguments_fit_several_operations_or_none_nothing_is_guessed(function: str) -> None:
    done = verify("run", write(f"import numpy as np\n\n\ndef {function}:\n    return 0\n"))
    assert done.status == 2 and "names no operation of the catalogue" in done.output


@pytest.mark.parametrize(("more", "named"), [("seq_lens", "seq_lens"), ("a, b", "a and no b")])
def test_a_file_that_must_be_given_what_no_operation_has_is_not_judged(
    more: str, named: str
) -> None:
    """It was wrong for being called without it: ``missing 1 required positional argument``."""
    done = verify("run", write(ATTENTION.replace("v)", f"v, {more})")))
    told = f"(scaled_dot_product_attention has no {named})"
    assert done.status == 2 and told in " ".join(done.output.split())


def test_calls_without_what_a_function_must_be_given_are_not_made() -> None:
    text = RIGHT.replace("shift_right(x)", "scaled_dot_product_attention(q, k, v, dropout_p)")
    implementation = load(write(text.replace("padded =", "return dropout_p\n    padded =")))
    (one,) = implementation.implementations
    assert one.function(query=1, key=2, value=3, mask=None) == 0
    write(IN_TURN.replace("flash(q, k, v)", "gqa(q, k, v, lengths)"), "other.py")
    (one,) = load("other.py").implementations
    with pytest.raises(NotImplementedError, match="needs lengths"):
        one.function(query=1, key=2, value=3)


@pytest.mark.parametrize("quiet", [(), ("-q",)])
def test_the_last_line_names_the_operation_that_was_guessed(quiet: tuple[str, ...]) -> None:
    line = ("run", write(ATTENTION), "--profile", "quick", "--dtype", "float32", "-k", "values")
    last = verify(*line, *quiet).output.splitlines()[-1]
    assert last.startswith("mine.py as scaled_dot_product_attention: right in float32")


def test_ones_own_tensors_are_judged_as_op_says_whatever_the_only_function_is_called() -> None:
    """--op was asked for, and then there was nothing of it."""
    x = np.random.default_rng(0).normal(size=(1, 4, 3, 4)).astype("float32")
    np.savez("own.npz", query=x, key=x, value=x)
    write(IN_TURN.replace("flash", "mine") + '\n\nFEATURES = {"lse": False}\n')
    done = verify("run", "mine.py", "--op", "grouped_attention", "--inputs", "own.npz")
    assert "nothing of --op" not in done.output
    assert "right in float32 (values: 1 case" in done.output.splitlines()[-1]
    np.savez("fewer.npz", query=x, key=x[:, :2], value=x[:, :2])
    plain = write(ATTENTION, "plain.py")
    told = " ".join(verify("run", plain, "--inputs", "fewer.npz").output.split())
    assert "keys of fewer heads than queries are those of --op grouped_attention" in told
    write("import helper\n\nsoftmax = helper.f\n\n\ndef make(x):\n    return x\n")
    assert only_function("mine.py") == ""


def test_what_a_function_takes_beyond_its_operation_is_told_in_a_red_run_too() -> None:
    text = RIGHT.replace("shift_right(x)", "shift_right(x, blocks=2)").replace(".copy()", " + 1")
    done = verify("run", write(text), "--profile", "quick", "--dtype", "float32", "-k", "values")
    told = "shift_right: the operation has no argument for blocks"
    assert done.status == 1 and told in " ".join(done.output.split())


def test_the_last_line_of_a_green_run_names_what_no_call_was_given() -> None:
    """What stands behind ``if is_causal`` may be wrong, and nobody has looked."""
    text = ATTENTION.replace("flash(q, k, v)", "flash(q, k, v, is_causal=False, tile=16)")
    line = ("run", write(text), "--profile", "quick", "--dtype", "float32", "-k", "values")
    for more in ((), ("-q",), ("-v",)):
        told = " ".join(verify(*line, *more).output.split())
        assert told.endswith("; not judged: is_causal=True, tile"), more


REFUSES_NUMBERS = ATTENTION.replace("flash(q, k, v)", "flash(q, k, v, mask=None)").replace(
    "    e =",
    "    if mask is not None:\n        score = np.where(~mask, -np.inf, score)\n    e =",
)


def test_a_mistake_is_counted_in_the_cases_that_it_explains() -> None:
    """A float mask that is refused was counted under NaN in rows without keys."""
    line = ("--profile", "quick", "--dtype", "float32", "-k", "values")
    lines = verify("run", write(REFUSES_NUMBERS), *line).output
    nan, _, refused = lines.partition("1. ")[2].partition("takes no float mask: ")
    assert "NaN in rows that see no key" in nan and refused.startswith("raised TypeError")
    assert 'FEATURES = {"float mask": False}' in refused and "FEATURES" not in nan
    assert "when a row sees no key" in " ".join(nan.split())


def test_what_is_imported_under_the_name_of_an_operation_is_told_by_that_name() -> None:
    write(RIGHT.replace("shift_right", "moved"), "helper.py")
    write("from helper import moved as shift_right\n")
    output = verify("run", "mine.py").output
    assert "judge it by: attnverify run mine.py:shift_right" in " ".join(output.split())


@pytest.mark.parametrize("called", [True, False])
def test_helpers_beside_the_one_function_keep_it_from_nothing(called: bool, tmp_path: Path) -> None:
    use = "repeat_kv(k, q.shape[1] // k.shape[1])" if called else "k"
    (tmp_path / "mine.py").write_text(
        "def repeat_kv(x, n_rep):\n    return x.repeat(n_rep, 1)\n"
        f"def gqa_attention(q, k, v, causal=False):\n    return {use}\n"
    )
    backend = load(str(tmp_path / "mine.py"))
    assert [one.operation.name for one in backend.implementations] == ["grouped_attention"]
    assert "gqa_attention is taken for grouped_attention" in backend.notes[0]
