"""The mutation command: what it changes, what it says of a test that notices, where it goes on."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from attnverify import ROOT
from tests.mutation import __main__ as command
from tests.mutation.changes import Mutant, find_mutants
from tests.mutation.first_contact import FIRST_CONTACT
from tests.mutation.sabotages import SABOTAGES, Sabotage
from tests.mutation.targets import choose_tests, target_files
from tests.mutation.trial import Verdict, draw_mutants, try_mutant

SOURCE = b'''"""What it is: 1 + 1."""
from typing import Callable

Call = Callable[[int], int]


def add(a: int = 1, b: float | None = None) -> float:
    """The sum: a + b."""
    if b is None or not a < b:
        raise ValueError(f"b: wanted {a + 1}")
    check(a)
    return max(a, -b) + 2.0 if a else True
'''


def changes(source: bytes) -> list[tuple[str, str]]:
    return [(each.before, each.after) for each in find_mutants("a.py", source)]


def test_every_kind_of_change_is_made_once() -> None:
    assert changes(SOURCE) == [
        ("1", "(2)"),
        ("b is None", "(b is not None)"),
        ("b is None or not a < b", "(b is None and (not a < b))"),
        ("not a < b", "(a < b)"),
        ("a < b", "(a <= b)"),
        ('raise ValueError(f"b: wanted {a + 1}")', "pass"),
        ("check(a)", "pass"),
        ("max(a, -b)", "(min(a, -b))"),
        ("max(a, -b) + 2.0", "(max(a, -b) - 2.0)"),
        ("max(a, -b) + 2.0 if a else True", "(True if a else max(a, -b) + 2.0)"),
        ("-b", "(b)"),
        ("2.0", "(4.0)"),
        ("True", "(False)"),
    ]


@pytest.mark.parametrize("path", [*target_files(ROOT)])
def test_a_mutant_is_a_program_that_differs_in_one_place(path: str) -> None:
    source = (ROOT / path).read_bytes()
    mutants = find_mutants(path, source)
    assert 4 < len(mutants) == len({each.name for each in mutants})
    for mutant in mutants[::29]:
        changed = mutant.applied(source)
        assert changed != source and compile(changed, path, "exec")


@pytest.mark.parametrize("path", [*target_files(ROOT)])
def test_the_tests_that_must_notice_are_there(path: str) -> None:
    files = [word for tests in choose_tests(path) for word in tests if "/" in word]
    assert files and all((ROOT / file).exists() for file in files)


def test_the_seed_fixes_the_order_and_every_file_has_its_turn() -> None:
    files = ["spec/masks.py", "spec/memory.py", "spec/scores.py"]
    drawn = draw_mutants(ROOT, 3, files)
    assert drawn == draw_mutants(ROOT, 3, files) != draw_mutants(ROOT, 4, files)
    assert sorted(mutant.path for mutant in drawn[:3]) == files


@pytest.mark.parametrize("sabotage", (*SABOTAGES, *FIRST_CONTACT), ids=lambda each: each.name)
def test_a_sabotage_changes_a_passage_that_stands_there_once(sabotage: Sabotage) -> None:
    source = (ROOT / sabotage.path).read_bytes()
    assert source.count(sabotage.before.encode()) == 1 and sabotage.before != sabotage.after
    compile(sabotage.mutant(ROOT).applied(source), sabotage.path, "exec")
    assert all((ROOT / word).exists() for word in sabotage.tests if "/" in word)


# A trial


def planted(tree: Path) -> Mutant:
    (tree / "a.py").write_bytes(SOURCE)
    return find_mutants("a.py", SOURCE)[0]


def notices(word: bytes) -> Any:
    """Tests that are red where a word is in the file."""
    return lambda tree, tests, seconds: int(word in (tree / "a.py").read_bytes() and "b" in tests)


@pytest.mark.parametrize(("word", "killed_by"), [(b"a: int = (2)", "b c"), (b"a: int = (3)", "")])
def test_who_is_noticed_is_killed_and_the_file_put_back(
    word: bytes, killed_by: str, tmp_path: Path
) -> None:
    mutant = planted(tmp_path)
    verdict = try_mutant(tmp_path, mutant, {("a",): 1.0, ("b", "c"): 1.0}, notices(word))
    assert verdict.killed_by == killed_by
    assert (tmp_path / "a.py").read_bytes() == SOURCE


def test_tests_of_which_none_was_collected_notice_nothing(tmp_path: Path) -> None:
    mutant = planted(tmp_path)
    assert try_mutant(tmp_path, mutant, {("a",): 0.0}, lambda *asked: 5).killed_by == ""
    assert try_mutant(tmp_path, mutant, {("a",): 1.0}, lambda *asked: 1).killed_by == "a"


@pytest.mark.thorough
def test_pytest_itself_notices_in_a_fork_and_hangs_no_longer_than_it_may(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def f(): return 1\n")
    (tmp_path / "test_a.py").write_text("from a import f\ndef test_f(): assert f() == 1\n")
    (tmp_path / "test_b.py").write_text("def test_b():\n    while True: pass\n")
    said = "\n".join(
        [
            "from pathlib import Path",
            "from tests.mutation.trial import run_tests, try_mutant",
            "from tests.mutation.changes import find_mutants",
            f"tree = Path({str(tmp_path)!r})",
            "one = find_mutants('a.py', (tree / 'a.py').read_bytes())[0]",
            "print(run_tests(tree, ('test_a.py',), 60), run_tests(tree, ('test_b.py',), 5))",
            "print(try_mutant(tree, one, {('test_a.py',): 60.0}).killed_by)",
        ]
    )
    line = [sys.executable, "-c", said]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, env=os.environ | {"LC_ALL": "C"})
    assert done.stdout.decode().split() == ["0", "-1", "test_a.py"], done.stderr.decode()


# The command


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The mutants that were tried, without a test that runs: every third survives."""
    tried: list[str] = []

    def pretended(tree: Path, mutant: Mutant, limits: Any) -> Verdict:
        tried.append(mutant.name)
        return Verdict("" if len(tried) % 3 == 0 else "tests", 0.1)

    monkeypatch.setattr(command, "try_mutant", pretended)
    monkeypatch.setattr(command.Limits, "of", lambda *asked: 1.0)
    return tried


def test_the_command_goes_on_where_its_file_ends(trials: list[str], tmp_path: Path) -> None:
    ask = ["--file", str(tmp_path / "mutants.json"), "--only", "spec/s", "--number"]
    for number in ("2", "2", "5"):
        assert command.main([*ask, number]) == 0
    told = json.loads((tmp_path / "mutants.json").read_text())
    assert [each["mutant"] for each in told] == trials and len({*trials}) == 5
    assert [each["verdict"] for each in told] == ["killed", "killed", "survived"] + ["killed"] * 2


def test_the_table_tells_the_share_and_the_survivors_apart() -> None:
    one = {"file": "spec/masks.py", "verdict": "killed", "mutant": "spec/masks.py:1:2 a -> b"}
    table = command.format_table(
        [
            one,
            one,
            one | {"verdict": "survived"},
            one | {"verdict": "survived", "why": "equivalent: a is b"},
        ]
    )
    assert "| `spec` | 4 | 2 | 1 | 67 % |" in table and "| in all | 4 | 2 | 1 | 67 % |" in table
    assert "`spec/masks.py:1:2 a -> b`: not looked at yet" in table
    assert table.endswith("equivalent: a is b\n")
