"""A user's own kernel in a race: it is judged first, and a wrong one is timed only when asked."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
from click.testing import CliRunner, Result

from attnverify import bounds
from attnverify.backends.loader import load
from attnverify.bench import own_kernel
from attnverify.bench.measure import race
from attnverify.bench.measure.summary import summarise
from attnverify.bench.report import results
from attnverify.bench.report.tables import show
from attnverify.catalogue.operation import CATALOGUE
from attnverify.cli import benching, main
from attnverify.cli.commands import attnverify
from attnverify.report.waiting import Waiting
from attnverify.specified.registering import VARIABLE
from attnverify.verdicts.found_out import loaded
from tests.support.cheats import CHEATS, HONEST

RIGHT = """
import numpy as np

PRECISION = "wide"


def additive_score(query, key, w_query, w_key, w_score):
    q, k = (x.astype(np.float64) @ w.astype(np.float64).T
            for x, w in ((query, w_query), (key, w_key)))
    score = np.tanh(q[..., :, None, :] + k[..., None, :, :]) @ w_score.astype(np.float64)
    return score.astype(query.dtype)
"""
WRONG = RIGHT.replace("np.tanh(", "0.9 * np.tanh(")
SMALL = ("--sizes", "N=6,M=5,Q=4,K=4,A=3", "--seconds", "0")


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No peers: what they take is no matter here. Failures are recorded in a folder of the test."""
    monkeypatch.setattr(own_kernel, "contestants", lambda case: [])
    monkeypatch.chdir(tmp_path)


def bench(folder: Path, code: str, *more: str) -> Result:
    (folder / "my_score.py").write_text(code)
    asked = ["bench", str(folder / "my_score.py"), *SMALL, *more]
    return CliRunner().invoke(attnverify, asked, standalone_mode=False)


def test_a_right_kernel_is_timed_and_its_record_kept(tmp_path: Path) -> None:
    done = bench(tmp_path, RIGHT, "--results", str(tmp_path / "results"))
    assert done.return_value == 0, done.output
    assert "own sizes, N=6" in done.output and "correct" in done.output
    (path,) = results.files(tmp_path / "results")
    (record,) = results.read(path)
    assert record["label"] == "my_score" and record["sizes"]["N"] == 6 and record["seconds"]


def test_a_wrong_kernel_is_not_timed_unless_asked_and_then_marked(tmp_path: Path) -> None:
    done = bench(tmp_path, WRONG)
    assert done.return_value == 1 and "wrong, not timed" in done.output
    (tmp_path / "again").mkdir()
    asked = bench(tmp_path / "again", WRONG, "--wrong")
    assert asked.return_value == 1 and "wrong:" in asked.output and " us " in asked.output


def test_what_is_wrong_is_told_by_its_cause(tmp_path: Path) -> None:
    (tmp_path / "my_score.py").write_text(WRONG)
    (implementation,) = load(str(tmp_path / "my_score.py")).implementations
    told = own_kernel.first_wrong(implementation, "float32").splitlines()
    assert told[0] == "the scale is 10.00% low" and "wrong number" in told[1]


@pytest.mark.parametrize("name", ["slow_clock", "slow_clock_later", "patched_bench"])
def test_who_exchanges_the_clock_is_told_and_its_time_refused(tmp_path: Path, name: str) -> None:
    (cheat,) = (cheat for cheat in CHEATS if cheat.name == name)
    clock, timed = time.perf_counter, race.timed
    done = bench(tmp_path, HONEST + cheat.code)
    words = cheat.words.removeprefix("its import ")
    told = " ".join(done.output.split())
    assert f"refused: {words.split(' (')[0]}" in told and done.return_value == 1
    assert (f"note: its import {words}" in told) == (name != "slow_clock_later")
    assert (time.perf_counter, race.timed) == (clock, timed)


def test_a_backend_without_the_operation_says_so(tmp_path: Path) -> None:
    done = bench(tmp_path, RIGHT, "--op", "softmax")
    assert "none of the operations" in str(done.exception)


def test_sizes_that_were_alike_stay_alike() -> None:
    square = {"B": 1, "N": 8, "M": 8, "D": 4, "E": 4}
    assert own_kernel.with_sizes(square, {"N": 3}) == square | {"N": 3, "M": 3}
    assert own_kernel.with_sizes(square, {"N": 3, "M": 5}) == square | {"N": 3, "M": 5}


def test_what_the_ptx_machine_executes_is_not_timed(tmp_path: Path) -> None:
    (tmp_path / "my_score.py").write_text(RIGHT)
    (implementation,) = load(str(tmp_path / "my_score.py")).implementations
    implementation.backend.device = "PTX sm_90a, machine"
    case = own_kernel.choose_case(implementation, {}, 0.0)
    entry = own_kernel.enter_own(implementation, case, own_kernel.Contestant("x", "x"), wrong=True)
    assert entry.judgement.verdict == "not timed" and not entry.runs


def test_nobody_is_timed_beside_what_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = own_kernel.Contestant("a peer", "numpy_ref")
    monkeypatch.setattr(own_kernel, "contestants", lambda case: [peer])
    assert "a peer" not in bench(tmp_path, WRONG).output
    (tmp_path / "right").mkdir()
    assert "a peer" in bench(tmp_path / "right", RIGHT).output


def raced(label: str, seconds: float, rounds: int = 18, load: float = 0.4) -> results.Record:
    """What is kept of somebody who took so long."""
    facts = {name: own_kernel.not_raced(NOBODY, "")[name] for name in KEPT}
    return facts | {
        "label": label, "verdict": "correct", "budget": 0.1, "host": {},
        "seconds": {"median": seconds, "quantile_20": seconds, "quantile_80": seconds,
                    "rounds": rounds},
        "ratios": {"alike": (1.02, 0.9, 1.2), "behind": (2.0, 1.8, 2.3)},
        "clocks": {"before": {"load": load, "cores": 2}},
    }  # fmt: skip


KEPT = ("case", "operation", "dtype", "mode", "device", "sizes", "ours", "reason", "refused")
NOBODY = SimpleNamespace(
    operation=SimpleNamespace(name="softmax"), backend=SimpleNamespace(name="x"), how=""
)


def test_an_order_that_is_noise_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    three = [raced("first", 1.0), raced("alike", 1.02), raced("behind", 2.0)]
    show("bench", three, [])
    told = " ".join(capsys.readouterr().out.split())
    assert "in 18 rounds not told apart from first: alike; their order is noise" in told
    assert "busy" not in told
    show("bench", [raced("first", 1.0), raced("behind", 2.0)], [])
    assert "noise" not in capsys.readouterr().out


def test_few_rounds_and_a_busy_machine_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    show("bench", [raced("first", 1.0, 5, load=6.2), raced("behind", 2.0, 5)], [])
    told = " ".join(capsys.readouterr().out.split())
    assert "each was timed 5 times: the order may be noise" in told
    assert "the machine was busy: load 6.2 on 2 cores" in told


def test_a_race_says_what_answers_inside(tmp_path: Path) -> None:
    wraps = "from attnverify.numpy_ref import additive_score as theirs\n\nPRECISION = 'wide'\n\n\n"
    called = "def additive_score(query, key, w_query, w_key, w_score):\n    return theirs("
    given = "query, key, w_query, w_key, w_score)\n"
    done = bench(tmp_path, f"{wraps}{called}{given}")
    assert "my_score calls attnverify.numpy_ref inside" in done.output
    (tmp_path / "right").mkdir()
    assert "inside" not in bench(tmp_path / "right", RIGHT).output


SPECIFICATION = """
import numpy as np
from jaxtyping import Float


def halved(x: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "N D"]:
    return x * 0.5
"""
HALVED = "import numpy as np\n\ndef halved(x):\n    return x * np.float32({factor})\n"


@pytest.fixture
def specified() -> Iterator[None]:
    """A specification of one's own, which the catalogue forgets again."""
    before = os.environ.get(VARIABLE)
    Path("my_spec.py").write_text(SPECIFICATION)
    yield
    for name in ("halved", "halved_grad"):
        CATALOGUE.pop(name, None)
        bounds.BOUNDS.pop(name, None)
    os.environ.pop(VARIABLE, None)
    os.environ.update({VARIABLE: before} if before else {})


def start(*line: str) -> Result:
    return CliRunner().invoke(attnverify, ["bench", *line], standalone_mode=False)


@pytest.mark.usefixtures("specified")
def test_a_kernel_is_timed_beside_its_own_specification() -> None:
    Path("mine.py").write_text(HALVED.format(factor=0.5))
    done = start("mine.py", "--spec", "my_spec.py", "--sizes", "N=90", "--seconds", "0")
    told = " ".join(done.output.split())
    assert done.return_value == 0 and "own sizes, N=90: halved" in told
    assert "the specification" in told and told.count(" correct") == 2


@pytest.mark.usefixtures("specified")
def test_a_kernel_that_its_own_specification_refutes_is_not_timed() -> None:
    Path("mine.py").write_text(HALVED.format(factor=0.51))
    done = start("mine.py", "--spec", "my_spec.py", "--seconds", "0")
    assert done.return_value == 1 and "wrong, not timed" in " ".join(done.output.split())


@pytest.mark.parametrize("more", [("--spec", "none.py"), ("--sizes", "Z=3")])
def test_what_a_race_cannot_take_is_refused(more: tuple[str, ...]) -> None:
    Path("mine.py").write_text(RIGHT)
    assert isinstance(start("mine.py", *more).exception, click.UsageError)


def test_each_step_is_told_as_it_begins(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A race was silent for minutes on a busy machine."""
    monkeypatch.setattr(benching, "Waiting", AtOnce)
    Path("my_score.py").write_text(RIGHT)
    assert main(["bench", "my_score.py", *SMALL]) == 0
    told = capfd.readouterr().out
    steps = [
        "asking",
        "judging my_score, additive_score",
        "loading who else",
        "warming up my_score",
    ]
    places = [told.index(step) for step in [*steps, "timing 1 in turn", "budget"]]
    assert places == sorted(places)


class AtOnce(Waiting):
    """Tells each step though it is over before a thread could."""

    def say(self, words: str) -> None:
        print(words)


CAUSAL_ALONE = """
import torch

CAUSAL = True
FEATURES = {{"lse": False}}

def {name}(query, key, value):
    N, M = query.shape[-2], key.shape[-2]
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    hidden = torch.arange(M) > torch.arange(N)[:, None] + M - N
    score = query @ key.mT * query.shape[-1] ** -0.5
    return torch.nan_to_num(torch.softmax(score.masked_fill(hidden, -torch.inf), -1)) @ value
"""


@pytest.mark.parametrize("name", ["scaled_dot_product_attention", "grouped_attention"])
def test_a_kernel_is_timed_by_what_it_takes(name: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(CAUSAL_ALONE.format(name=name))
    implementation, *_ = loaded(str(tmp_path / "mine.py")).implementations
    case = own_kernel.choose_case(implementation, {"N": 16, "M": 16}, 0.0)
    assert case is not None and "causal" in case.name
    assert "window" not in case.options and (case.mask or case.options.get("causal"))
    records = list(
        own_kernel.race_backend(implementation.backend, (), {"N": 16, "M": 16}, False, 0.0)
    )
    assert records[0][0]["verdict"] == "correct", records[0][0]["reason"]


@pytest.mark.parametrize("seconds", [[0.5, 3.0], [1.0, 1.0, 9.0]])
def test_quantiles_lie_among_what_was_measured(seconds: list[float]) -> None:
    found = summarise(seconds)
    assert min(seconds) <= found["quantile_20"] <= found["median"] <= found["quantile_80"]
    assert found["quantile_80"] <= max(seconds)
