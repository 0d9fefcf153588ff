"""The record of Triton's language tests, the book that counts it, and the plugin that makes it."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.ptx.public.language import exactly, sampled, summary

ROOT = Path(__file__).parents[3]
ROWS = json.loads(Path(__file__).with_name("language.json").read_text())
SUITE = """
import numpy as np, pytest, torch, triton, triton.language as tl

@triton.jit
def double(x, y):
    tl.store(y + tl.arange(0, 4), tl.load(x + tl.arange(0, 4)) * 2)

@pytest.mark.parametrize("n", range(9))
def test_many(n): np.testing.assert_allclose(np.ones(2), np.ones(2))
def test_close(): np.testing.assert_allclose(np.ones(2), np.nextafter(np.ones(2), 2))
def test_other(): torch.testing.assert_close(torch.ones(2), torch.ones(2) * (1 + 2**-22))
def test_wrong(): np.testing.assert_allclose(np.ones(2), np.zeros(2))
def test_skipped(): pytest.skip("not here")
def test_unwritten(): double[(1,)](*torch.empty(2, 4, device="cuda"))
"""


def test_the_record_is_of_a_sample_and_none_has_wrong_numbers() -> None:
    names = [row["test"] for row in ROWS]
    functions = [name.partition("[")[0] for name in names]
    assert names == sorted(set(names)) and max(map(functions.count, functions)) == 5
    counts = summary(ROWS)
    assert set(counts) == {
        "exact", "close", "unwritten", "race", "skipped", "endless", "refused", "Failed",
    }  # fmt: skip
    failed = [(row["test"], row["words"]) for row in ROWS if row["outcome"] == "Failed"]
    assert failed == [("test_load_store_same_ptr", "Timeout (>1200.0s) from pytest-timeout.")]
    assert list(counts.values()) == sorted(counts.values(), reverse=True)


def test_the_book_has_the_counts() -> None:
    chapter, counts = (ROOT / "docs/chapters/any_kernel.rst").read_text(), summary(ROWS)
    passed = counts["exact"] + counts["close"]
    assert f"{len(ROWS)} in all" in chapter and f"{passed} pass" in chapter
    assert f"{counts['exact']} of these bit for bit" in chapter
    for word, told in (
        ("skipped", "{} were skipped"), ("unwritten", "* {} read what"),
        ("race", "{} are a *race*"), ("endless", "{} are *endless*"),
        ("refused", "{} are refused by name"),
    ):  # fmt: skip
        assert told.format(counts[word]) in chapter


def test_of_each_function_five_at_equal_distances() -> None:
    names = [f"test_a[{i}]" for i in range(9)] + ["test_b", "test_c[0]", "test_c[1]"]
    assert [names[place] for place in sampled(names)] == [
        *(f"test_a[{i}]" for i in (0, 2, 4, 6, 8)), "test_b", "test_c[0]", "test_c[1]",
    ]  # fmt: skip


@pytest.mark.parametrize("make", [np.array, torch.tensor])
def test_arrays_are_held_against_each_other_bit_for_bit(make: type) -> None:
    assert exactly(make([1.0, np.nan]), make([1.0, np.nan]))
    assert exactly(make([0.0]), make([-0.0]))
    assert not exactly(make([1.0]), make([1.0 + 2**-22]))
    assert not exactly(make([1.0, np.nan]), make([1.0, 2.0]))


def test_a_suite_is_noted(tmp_path: Path) -> None:
    """Through the machine's own command, with the tests unchanged."""
    suite, record = tmp_path / "test_small.py", tmp_path / "record.json"
    suite.write_text(SUITE)
    command = [sys.executable, "-m", "attnverify.ptx", "pytest", "-q", str(suite)]
    command += ["-p", "tests.ptx.public.language", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "--record", str(record)], cwd=ROOT, capture_output=True, text=True
    )
    rows = {row["test"]: row for row in json.loads(record.read_text())}
    said = {name: row["outcome"] for name, row in rows.items()}
    assert said == {f"test_many[{n}]": "exact" for n in (0, 2, 4, 6, 8)} | {
        "test_close": "close", "test_other": "close", "test_wrong": "AssertionError",
        "test_skipped": "skipped", "test_unwritten": "unwritten",
    }, done.stdout  # fmt: skip
    assert rows["test_unwritten"]["words"].startswith("unwritten: a read of x where")
    assert str(tmp_path) not in record.read_text()
