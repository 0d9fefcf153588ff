"""
Replay: a failure is a few hundred bytes and a script; both show it again, and everyone meets it
first.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnverify.backends.loader import load
from attnverify.failures.record import FailureRecord, find_record, read_record, recorded_recipes
from attnverify.failures.replay import describe_small_inputs, replay
from attnverify.failures.scripts import page
from attnverify.failures.store import save
from attnverify.inputs.recipe import Recipe
from attnverify.judge.case import case_of
from attnverify.judge.errors import Disagreement
from attnverify.judge.judging import judge
from attnverify.verdicts import one_case
from tests.support.run_attnverify import Run, in_a_process, judged, verify
from tests.support.sample_backends import HERE, implementation

ALONE = (HERE / "last_key_forgotten.py").read_text()
FIXED = ALONE.replace("    e[..., -1] = 0\n", "")
MASK = {"pattern": "random", "axes": "N M", "form": "bool", "seed": 1}
RECIPE = Recipe("softmax", {"N": 2, "M": 3}, {"family": "normal", "seed": 1}, mask=MASK)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def failing(text: str, op: str = "softmax") -> Run:
    Path("mine.py").write_text(text)
    return judged("--backend", "mine.py", "--op", op)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Path]:
    """One run that fails, and the folder in which it was."""
    folder = tmp_path_factory.mktemp("failed")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return failing(ALONE), folder


@pytest.fixture
def failed(kept: tuple[Run, Path], elsewhere: None) -> Run:
    """That run, with a copy of all that it left in the current directory."""
    shutil.copytree(kept[1], ".", dirs_exist_ok=True)
    return kept[0]


def records(folder: str = ".attnverify/failures") -> list[Path]:
    return sorted(Path(folder).glob("*.json"))


def program_of(path: Path) -> Path:
    return path.with_name(read_record(path).program)


def aspect_of(path: Path) -> str:
    return read_record(path).aspect


def test_a_failure_is_written_as_a_small_record_and_a_script(failed: Run) -> None:
    assert failed.status == 1
    assert {aspect_of(path) for path in records()} == {"values", "hidden NaN"}
    for path in records():
        assert path.stat().st_size <= 1000
        assert path.stem == read_record(path).hash and program_of(path).exists()


@pytest.mark.parametrize(
    "inputs, told",
    [
        (
            {"score": np.array([[0.5, -np.inf]]), "mask": np.array([[True, False]]), "p": 0.25},
            "\n    score = [[0.5, -inf]]\n    mask = [[True, False]]\n    p = 0.25",
        ),
        (
            {"x": [np.float32([1 / 3])], "mem": None},
            "\n    x = [[0.333333343]]\n    mem = None",
        ),
        ({"score": np.zeros((7, 7))}, ""),
        ({"N": 3, "M": 4}, ""),
    ],
)
def test_inputs_are_printed_where_they_are_few(inputs: Any, told: str) -> None:
    assert describe_small_inputs(inputs) == told


def test_a_replay_prints_the_numbers_that_went_in() -> None:
    record = FailureRecord.of(implementation("softmax_zeros"), case_of(RECIPE, "float32"), "values")
    with pytest.raises(Disagreement) as told:
        replay(record, implementation("softmax_zeros"))
    score = case_of(RECIPE, "float32").inputs["score"]
    assert f"\n    score = [[{score[0, 0]:.9g}, " in str(told.value)
    assert re.search(r"\n    mask = \[\[(True|False), ", str(told.value))


def test_the_hash_names_what_was_drawn_and_not_who_failed() -> None:
    zeros, case = implementation("softmax_zeros"), case_of(RECIPE, "float32")
    one = FailureRecord.of(zeros, case, "values")
    other = FailureRecord.of(implementation("softmax_nan"), case, "values")
    narrow = FailureRecord.of(zeros, case_of(RECIPE, "float16"), "values")
    assert one.hash == other.hash != narrow.hash
    assert re.fullmatch("[0-9a-f]{12}", one.hash)


def test_a_record_survives_its_file() -> None:
    zeros = implementation("softmax_zeros")
    failure = FailureRecord.of(zeros, case_of(RECIPE, "float32"), "values")
    assert read_record(save(failure, "here", zeros)) == failure
    assert (
        find_record(failure.hash[:5], "here")
        == find_record(f"here/{failure.hash}.json", "elsewhere")
        == failure
    )
    assert Recipe(**failure.recipe) == RECIPE


def test_the_line_that_a_failure_prints_shows_it_again(failed: Run) -> None:
    done = failed
    line = re.findall(r"replay: attnverify (replay [0-9a-f]{12} --backend mine.py)", done.output)[0]
    again = verify(*line.split())
    assert again.status == 1
    for words in (
        "softmax of mine.py in float32 (values)",
        "elements differ from the specification; worst at (",
        "recipe: softmax:",
    ):
        assert words in again.output


def test_the_replay_shows_the_same_elements(failed: Run) -> None:
    output = failed.output
    told = re.findall(r"(worst at \([\d, ]*\): got \S+, expected \S+)", output)[0]
    assert (
        told
        in verify(
            "replay", next(path for path in records() if aspect_of(path) == "values").stem
        ).output
    )


@pytest.mark.usefixtures("failed")
def test_a_corrected_backend_ends_the_replay_with_status_0() -> None:
    Path("mine.py").write_text(FIXED)
    for path in records():
        done = verify("replay", path.stem)
        assert done.status == 0 and "passed" in done.output


@pytest.mark.usefixtures("failed")
def test_a_replay_may_be_asked_of_another_backend() -> None:
    assert verify("replay", records()[0].stem, "--backend", "numpy_ref").status == 0


def test_a_side_effect_is_replayed_as_one() -> None:
    head = (
        "import numpy as np\nfrom attnverify import numpy_ref as right\n\n"
        "ARRAYS, PRECISION = 'numpy', 'wide'\n\n\n"
    )
    done = failing(
        head + "def shift_right(x):\n    y = right.shift_right(x)\n    x *= 2\n    return y\n",
        "shift_right",
    )
    assert "x: the input was changed in place" in done.output
    (path,) = records()
    again = verify("replay", path.stem)
    assert again.status == 1 and "changed in place" in again.output
    Path("mine.py").write_text(head + "def shift_right(x):\n    return right.shift_right(x)\n")
    assert verify("replay", path.stem).status == 0


BEYOND_CASES = {
    "accepts": (
        "softmax",
        "def softmax(score, mask=None):\n    return right.softmax(1.0 * score, mask)\n",
        "accepted",
        "wanted ValueError",
    ),
    "remembers": (
        "softmax",
        "memory = {}\n\n\ndef softmax(score, mask=None):\n    key = score.tobytes(), None if mask "
        "is None else mask.shape\n"
        "    return memory.setdefault(key, right.softmax(score, mask)).copy()\n",
        "the result depends on earlier calls",
        "elements out of bound\n  (",
    ),
}
"""
What is right in every single case; the specification's column, the words of the replay and of the
script.
"""


@pytest.mark.parametrize("name", BEYOND_CASES)
def test_what_fails_beyond_single_cases_is_replayed_too(name: str) -> None:
    operation, body, words, shown = BEYOND_CASES[name]
    head = "from attnverify import numpy_ref as right\n\nARRAYS, PRECISION = 'numpy', 'wide'\n\n\n"
    assert failing(head + body, operation).status == 1
    checks = [path for path in records() if read_record(path).check]
    assert checks and all(
        path.stat().st_size <= 1000 and path.stem == read_record(path).hash for path in checks
    )
    again = verify("replay", checks[0].stem)
    assert again.status == 1 and words in again.output
    assert shown in in_a_process(str(program_of(checks[0])), start=()).output
    assert verify("replay", checks[0].stem, "--backend", "numpy_ref").status == 0


@pytest.mark.usefixtures("failed")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("0123456789ab",),
            "hash: wanted a failure recorded in .attnverify/failures, got 0123456789ab",
        ),
        (("none.json",), "none.json"),
        (("HASH", "--backend", "none.py"), "none.py: no file none.py"),
        (("HASH", "--backend", str(HERE / "mixed_verdicts.py")), "has no softmax"),
        (("HASH", "--backend", str(HERE / "empty_of_everything")), "cannot be imported"),
    ],
)
def test_what_cannot_be_replayed_is_told_in_one_line(
    arguments: tuple[str, ...], words: str
) -> None:
    done = verify(
        "replay", *(records()[0].stem if argument == "HASH" else argument for argument in arguments)
    )
    assert done.status == 2 and words in done.output and len(done.output.strip().splitlines()) == 1


@pytest.mark.usefixtures("failed")
def test_what_is_not_supported_cannot_be_replayed() -> None:
    Path("mine.py").write_text(
        "PRECISION = 'wide'\ndef softmax(score, mask=None):\n    raise "
        "NotImplementedError('gone')\n"
    )
    done = verify("replay", records()[0].stem)
    assert done.status == 2 and "unsupported: gone" in done.output


# Recorded failures come first, for everyone


@pytest.mark.usefixtures("failed")
def test_recorded_failures_are_met_first_by_other_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    met: list[Recipe] = []
    monkeypatch.setattr(
        one_case,
        "judge",
        lambda function, case, known: met.append(case.recipe) or judge(function, case, known),
    )
    assert judged("--backend", "numpy_ref", "--op", "softmax").status == 0
    firsts = {Recipe(**read_record(path).recipe) for path in records()}
    assert len(firsts) == 2 and met[0] in firsts and firsts <= set(met)


@pytest.mark.usefixtures("failed")
def test_recorded_failures_are_read_by_operation_and_aspect() -> None:
    assert len(recorded_recipes("softmax", "values", ".attnverify/failures")) == 1
    assert (
        recorded_recipes("softmax", "values", "elsewhere")
        == recorded_recipes("shift_right", "values", ".attnverify/failures")
        == []
    )


# The stand-alone script


BLOCKED = """
import runpy, sys

class Wall:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ImportError(f"{{name}} is not to be had here")

sys.meta_path.insert(0, Wall())
runpy.run_path({script!r}, run_name="__main__")
"""
OURS = (
    "attnverify",
    "spec",
    "numpy_ref",
    "torch_impl",
    "cupy_impl",
    "hypothesis",
    "pytest",
    "ml_dtypes",
    "jaxtyping",
)


def run_alone(script: Path, *also: str) -> str:
    """
    The output of a script that can import NumPy and the backend's library, and nothing of ours.
    """
    code = BLOCKED.format(blocked=(*OURS, *also), script=str(script))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-I", "-c", code],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    told = done.stdout + done.stderr
    assert not done.stderr or "\nAssertionError: output" in done.stderr, done.stderr
    assert done.returncode == (1 if shows_failure(told) else 0)
    return told


def shows_failure(told: str) -> bool:
    return re.search(r"raised|accepted|changed|shares|wanted|: [1-9]\d* of ", told) is not None


def script_of(aspect: str = "values") -> Path:
    return program_of(next(path for path in records() if aspect_of(path) == aspect))


def test_the_wall_holds(tmp_path: Path) -> None:
    (tmp_path / "climbs.py").write_text("import attnverify\n")
    with pytest.raises(AssertionError, match="is not to be had here"):
        run_alone(tmp_path / "climbs.py")


@pytest.mark.parametrize("aspect", ["values", "hidden NaN"])
def test_the_script_shows_the_same_elements_with_numpy_alone(failed: Run, aspect: str) -> None:
    report = failed.report or {}
    section = next(tally["reason"] for tally in report["tallies"] if tally["aspect"] == aspect)
    wrong, total = re.findall(r"(\d+) of (\d+) elements differ from the spec", section)[0]
    told = run_alone(script_of(aspect), "torch")
    assert f"output: {wrong} of {total} elements out of bound" in told


@pytest.mark.usefixtures("failed")
def test_the_script_of_a_corrected_backend_shows_nothing() -> None:
    Path("mine.py").write_text(FIXED)
    assert "output: 0 of " in run_alone(script_of())


TORCH = """
import torch

PRECISION = "eager"


def softmax(score, mask=None):
    if mask is not None and mask.dtype == torch.bool:
        score = score.masked_fill(~mask, float("-inf"))
    elif mask is not None:
        score = score + mask
    return score.softmax(-1)  # NaN where no key is seen
"""


def test_the_script_of_a_torch_file_needs_torch_alone() -> None:
    failing(TORCH)
    assert re.search(r"got \[nan.*, expected \[0\.", run_alone(script_of()))


GRADIENT = """
import torch

PRECISION = "eager"


def additive_score(query, key, w_query, w_key, w_score):
    raise NotImplementedError("elsewhere")


def scaled_dot_product_attention(query, key, value, mask=None, keep=None, p=0.0):
    if mask is not None or keep is not None:
        raise NotImplementedError("masks")
    return (query @ key.detach().mT / query.shape[-1] ** 0.5).softmax(-1) @ value
"""


def test_the_script_of_a_gradient_takes_it_by_autograd() -> None:
    failing(GRADIENT, "scaled_dot_product_attention")
    told = run_alone(script_of("gradients"))
    assert "output[0]: 0 of " in told and "output[1]: 0 of " not in told and "output[1]: " in told


def test_the_script_of_a_package_by_path_finds_its_chapter() -> None:
    Path("kernels").mkdir()
    Path("kernels/__init__.py").write_text("PRECISION = 'wide'\n")
    Path("kernels/attention.py").write_text(ALONE)
    judged("--backend", "./kernels", "--op", "softmax")
    assert re.search("output: [1-9][0-9]* of", run_alone(script_of()))


@pytest.mark.usefixtures("failed")
def test_the_script_of_a_backend_that_cannot_be_loaded_shows_nothing(tmp_path: Path) -> None:
    script = script_of()
    assert str(tmp_path) not in script.read_text()
    Path("mine.py").write_text("import no_such_library\n")
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 125 and "cannot run: ModuleNotFound" in done.stdout


@pytest.mark.usefixtures("failed")
def test_a_script_can_be_printed_for_another_backend() -> None:
    done = verify("replay", records()[0].stem, "--script")
    assert (
        done.status == 0
        and done.output.startswith('"""\nsoftmax of ./mine.py, float32')
        and "import numpy as np" in done.output
    )


FORMS = {
    "softmax_none": ("NoneType ()", "(\"<class 'NoneType'>\", ())"),
    "softmax_list": ("list ()", "(\"<class 'list'>\", ())"),
    "softmax_shape": ("float32 (1, 2, 3)", "('float32', (1, 2, 3))"),
    "softmax_dtype": ("float64 (2, 3)", "('float64', (2, 3))"),
    "softmax_float": ("float ()", "(\"<class 'float'>\", ())"),
}
"""What a script says that is written for any failure, and what a page."""


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("is_page", [False, True])
def test_the_script_of_a_wrong_form_says_so(
    name: str, is_page: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failure = FailureRecord.of(implementation(name), case_of(RECIPE, "float32"), "values")
    monkeypatch.setattr(page, "MOST_NUMBERS", 100 * is_page)
    script = program_of(save(failure, str(tmp_path), implementation(name)))
    done = in_a_process(str(script), start=())
    wanted = "('float32', (2, 3))" if is_page else "float32 (2, 3)"
    assert f"output: wanted {wanted}, got {FORMS[name][is_page]}" in done.output


HEAD = "import numpy as np\n\nPRECISION = 'wide'\n\n\n"
RIGHT = (
    "    return np.hstack([x, np.zeros((len(x), 1), x.dtype)]).reshape(-1)[: "
    "x.size].reshape(x.shape)\n"
)


def written(body: str, recipe: Recipe) -> str:
    """What the script of a failure of this file's shift_right says."""
    Path("mine.py").write_text(HEAD + "def shift_right(x):\n" + body)
    function = load("mine.py").implementations[0]
    failure = FailureRecord.of(function, case_of(recipe, "float32"), "values")
    return run_alone(program_of(save(failure, "kept", function)))


LAID_OUT = Recipe(
    "shift_right",
    {"N": 3, "M": 4},
    {"family": "normal", "seed": 1},
    layout={"kind": "packed", "seed": 0},
)


def test_the_script_lays_its_inputs_out_in_memory() -> None:
    body = (
        "    x = x if x.flags.c_contiguous else 2 * x  # as a kernel that takes no strides\n"
        + RIGHT
    )
    assert "output: 0 of 12 " not in written(body, LAID_OUT)
    assert "output: 0 of 12 " in written(
        body, replace(LAID_OUT, layout={"kind": "contiguous", "seed": 0})
    )


def test_the_script_tells_of_a_changed_input() -> None:
    assert "inputs: changed in place" in written(
        "    y = x.copy()\n    x *= 2\n" + RIGHT.replace("x,", "y,"), LAID_OUT
    )
    assert "changed" not in written(RIGHT, LAID_OUT)


CALLED = {
    "own names": ("v, k, q, is_causal=False, attn_mask=None", ""),
    "places": ("k, q, v, attn_mask=None, /", ""),
    "heads behind positions": ("q, k, v, attn_mask=None", 'LAYOUT = "BNHD"'),
}
"""Functions that are not called by the specification's names, in its order and layout."""

SDPA = "scaled_dot_product_attention"
HEADS_BEHIND = "q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))"


def attention_called(how: str, factor: int) -> str:
    """A right attention, or one of too large an output, that wants to be called so."""
    parameters, layout = CALLED[how]
    first, last = (HEADS_BEHIND, ".swapaxes(1, 2)") if layout else ("pass", "")
    return f"""
from attnverify import numpy_ref

PRECISION = "wide"
{layout}


def scaled_dot_product_attention({parameters}):
    {first}
    return {factor} * numpy_ref.scaled_dot_product_attention(q, k, v, attn_mask){last}
"""


@pytest.mark.parametrize("how", CALLED)
@pytest.mark.parametrize("factor, wrong", [(1, r"output: 0 of \d"), (2, r"output: [1-9]\d* of \d")])
def test_the_script_calls_a_function_as_the_judge_does(how: str, factor: int, wrong: str) -> None:
    layout = {"kind": "offset", "seed": 0}
    sizes = {"B": 2, "H": 3, "N": 4, "M": 5, "D": 6, "E": 7}
    recipe = Recipe(SDPA, sizes, {"family": "normal", "seed": 1}, mask=MASK, layout=layout)
    Path("mine.py").write_text(attention_called(how, factor))
    function = load("mine.py").implementations[0]
    failure = FailureRecord.of(function, case_of(recipe, "float32"), "values")
    program = program_of(save(failure, "kept", function))
    assert re.search(wrong, in_a_process(str(program), start=()).output)


def test_the_script_of_a_function_that_takes_other_arguments_by_now_cannot_run() -> None:
    Path("mine.py").write_text(HEAD + "def shift_right(x):\n" + RIGHT)
    function = load("mine.py").implementations[0]
    failure = FailureRecord.of(function, case_of(LAID_OUT, "float32"), "values")
    program = program_of(save(failure, "kept", function))
    Path("mine.py").write_text(HEAD + "def shift_right(x, how):\n" + RIGHT)
    done = in_a_process(str(program), start=())
    assert done.status == 125 and "shift_right takes other arguments: missing" in done.output


@pytest.mark.usefixtures("failed")
def test_a_process_of_its_own_replays_too() -> None:
    done = in_a_process("replay", records()[0].stem)
    assert done.status == 1 and "elements differ from the specification" in done.output


@pytest.mark.usefixtures("failed")
def test_a_record_is_plain_json() -> None:
    record = json.loads(records()[0].read_text())
    about = {"format", "operation", "dtype", "aspect", "recipe", "inputs"}
    assert set(record) == about | {"implementation", "backend", "machine", "draws"}
    assert record["backend"] == "mine.py" and record["operation"] == "softmax"


MERGE = """
from attnverify import numpy_ref

PRECISION = "wide"


def merge_attention(outputs, lses):
    output, lse = numpy_ref.merge_attention(outputs, lses)
    return output, {lse}
"""


@pytest.mark.parametrize(
    "lse, words",
    [
        ("lse", r"output\[1\]: 0 of 20"),
        ("lse / 2", r"output\[1\]: [1-9]\d* of 20"),
        ("lse.astype(output.dtype)", r"output\[1\]: wanted float32 .* got float16"),
    ],
)
def test_the_script_gives_and_wants_a_log_sum_exp_of_float32_beside_halves(
    lse: str, words: str
) -> None:
    sizes = {"C": 3, "B": 1, "H": 2, "N": 10, "E": 3}
    recipe = Recipe("merge_attention", sizes, {"family": "far_lses", "seed": 1})
    Path("mine.py").write_text(MERGE.format(lse=lse))
    function = load("mine.py").implementations[0]
    failure = FailureRecord.of(function, case_of(recipe, "float16"), "values")
    program = program_of(save(failure, "kept", function))
    assert re.search(words, in_a_process(str(program), start=()).output)
