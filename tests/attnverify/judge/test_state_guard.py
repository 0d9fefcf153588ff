"""The surroundings of a call: every change is told, and put back where that can be done."""

import builtins
import gc
import locale
import math
import os
import random
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch

from attnverify.judge import state_guard
from attnverify.judge.process_state import random_numbers, set_random_numbers, state_items
from attnverify.judge.state_guard import (
    Change,
    advance_random_states,
    diff_and_restore,
    lasting_changes,
    snapshot,
)

CHANGES: dict[str, tuple[Callable[[], object], str]] = {
    "error state": (lambda: np.seterr(over="raise"), "NumPy's error state (over: "),
    "print options": (
        lambda: np.set_printoptions(linewidth=33),
        "NumPy's print options (linewidth: ",
    ),
    "NumPy's seed": (lambda: np.random.seed(1), "NumPy's random numbers"),
    "Python's seed": (lambda: random.seed(1), "Python's random numbers"),
    "torch's seed": (lambda: torch.manual_seed(1), "torch's random numbers"),
    "environment": (lambda: os.environ.update(VERIFY_TEST="1"), "the environment (VERIFY_TEST)"),
    "directory": (lambda: os.chdir("/"), "the working directory ("),
    "filters": (lambda: warnings.simplefilter("always"), "the warnings filters"),
    "handlers": (
        lambda: signal.signal(signal.SIGUSR1, signal.SIG_IGN),
        "the signal handlers (SIGUSR1)",
    ),
    "locale": (lambda: locale.setlocale(locale.LC_NUMERIC, "C.UTF-8"), "the locale ("),
    "path": (lambda: sys.path.append("/nowhere"), "sys.path"),
    "modules": (lambda: sys.modules.pop("math"), "sys.modules (math)"),
    "functions": (lambda: setattr(np, "exp", np.exp2), "functions of others (numpy.exp)"),
    "builtins": (lambda: setattr(builtins, "print", repr), "functions of others (builtins.print)"),
    "torch's functions": (
        lambda: setattr(torch, "exp", torch.exp2),
        "torch's functions (torch.exp)",
    ),
    "recursion": (lambda: sys.setrecursionlimit(4321), "the recursion limit ("),
    "collector": (gc.disable, "the garbage collector (on -> off)"),
    "displayhook": (
        lambda: setattr(sys, "displayhook", print),
        "Python's standard streams (displayhook)",
    ),
    "subnormals": (
        lambda: torch.set_flush_denormal(True),
        "subnormal numbers (kept -> flushed to 0)",
    ),
    "default dtype": (
        lambda: torch.set_default_dtype(torch.float64),
        "torch's default dtype (torch.float32 -> torch.float64)",
    ),
    "default device": (
        lambda: torch.set_default_device("meta"),
        "torch's default device (cpu -> meta)",
    ),
    "grad mode": (lambda: torch.set_grad_enabled(False), "torch's grad mode (True -> False)"),
    "deterministic": (
        lambda: torch.use_deterministic_algorithms(True),
        "torch's deterministic algorithms (False -> True)",
    ),
    "threads": (lambda: torch.set_num_threads(torch.get_num_threads() + 1), "torch's threads ("),
    "products": (
        lambda: torch.set_float32_matmul_precision("medium"),
        "torch's float32 products (highest -> medium)",
    ),
    "flag": (
        lambda: setattr(torch.backends.cudnn, "benchmark", True),
        "cudnn.benchmark (False -> True)",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_told_and_put_back(name: str) -> None:
    change, words = CHANGES[name]
    before = snapshot()
    change()
    told = diff_and_restore(before)
    assert any(words in str(one) for one in told)
    assert not any(words in str(one) for one in diff_and_restore(before))


def test_nothing_changes_by_looking() -> None:
    before = snapshot()
    assert diff_and_restore(before) == diff_and_restore(snapshot()) == [] and set(before) == {
        part.words for part in state_items()
    }


def test_what_the_judge_needs_is_looked_at_alone() -> None:
    before = snapshot(vital=True)
    np.seterr(over="raise")
    np.exp = np.exp2
    assert [change.words for change in diff_and_restore(before)] == [
        "functions of others (numpy.exp)"
    ]
    np.seterr(over="warn")


def test_an_import_may_be_left_as_it_is_but_for_what_the_judge_needs() -> None:
    before, again, exp = snapshot(), snapshot(), np.exp
    sys.setrecursionlimit(4321)
    np.exp = np.exp2
    assert (
        len(diff_and_restore(before, keep=True)) == 2
        and sys.getrecursionlimit() == 4321
        and np.exp is exp
    )
    diff_and_restore(again)


def test_a_thread_that_is_left_is_told_though_it_cannot_be_ended() -> None:
    before, end = snapshot(), threading.Event()
    thread = threading.Thread(target=end.wait, name="left behind")
    thread.start()
    running = snapshot()
    assert [
        "(<Thread(left behind, started" in change.words for change in diff_and_restore(before)
    ] == [True]
    end.set()
    thread.join()
    assert diff_and_restore(running) == []  # one that has ended is nobody's business


def test_a_thread_that_is_about_to_end_is_not_left() -> None:
    before = snapshot()
    threading.Thread(target=time.sleep, args=(0.2,)).start()
    assert diff_and_restore(before) == []


def once(words: str) -> Change:
    return Change(words, once=True)


def test_what_an_import_inside_the_first_call_changes_is_no_finding() -> None:
    assert lasting_changes([once("sys.path")], []) == [] and lasting_changes(
        [once("sys.path")], [once("sys.path")]
    ) == ["changes sys.path"]
    assert lasting_changes([Change("the locale", once=False)], []) == ["changes the locale"]


def two_calls(call: Callable[[], object]) -> list[str]:
    before, changes = snapshot(), []
    for _ in range(2):
        call()
        changes.append(diff_and_restore(before))
        advance_random_states(before)
    return lasting_changes(*changes)


def test_who_draws_is_not_who_seeds() -> None:
    assert two_calls(lambda: (random.random(), np.random.random(), torch.rand(3))) == []
    assert two_calls(lambda: (random.seed(3), np.random.seed(3), torch.manual_seed(3))) == [
        f"seeds {whose} random numbers" for whose in ("NumPy's", "Python's", "torch's")
    ]


def test_a_second_call_is_held_to_what_the_first_left() -> None:
    before, end = snapshot(), threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    os.environ["LEFT"] = "1"
    assert len(diff_and_restore(before)) == 2 and "LEFT" not in os.environ
    assert diff_and_restore(before) == []
    end.set()
    thread.join()


def test_what_is_read_of_numpys_random_numbers_is_their_state() -> None:
    np.random.seed(7)
    then, drawn = random_numbers(), np.random.random(3)
    assert then[0] == np.random.get_state()[0] and random_numbers() != then
    set_random_numbers(then)
    assert then[1:] == (np.asarray(np.random.get_state()[1]).tobytes(), np.random.get_state()[2])
    assert np.random.random(3).tolist() == drawn.tolist()


def test_a_generator_that_was_replaced_is_told_and_put_back() -> None:
    before, own = snapshot(), np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64())
    assert [change.words for change in diff_and_restore(before)] == ["NumPy's random numbers"]
    assert type(np.random.get_bit_generator()) is type(own) and diff_and_restore(before) == []


def test_a_value_that_is_long_is_cut() -> None:
    assert state_guard.abbreviate("x" * 100) == "x" * 37 + "..." and math.isfinite(1.0)
