"""Somebody's own arrays are judged, told and replayed like drawn ones."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import attnverify as av
from attnverify import numpy_ref
from attnverify.backends.loader import Backend, implementation_of_function
from attnverify.catalogue.operation import CATALOGUE
from attnverify.failures.record import find_record
from attnverify.failures.replay import replay
from attnverify.inputs.expand import expand
from attnverify.inputs.given import dtype_of_file, recipe_of_file
from attnverify.judge.errors import Disagreement
from tests.support.run_attnverify import verify

RNG = np.random.default_rng(0)
ARRAYS = {
    "query": RNG.standard_normal((1, 2, 5, 4)).astype(np.float32),
    "key": RNG.standard_normal((1, 2, 35, 4)).astype(np.float32),
    "value": RNG.standard_normal((1, 2, 35, 3)).astype(np.float32),
}
ATTENTION = CATALOGUE["scaled_dot_product_attention"]


def right(query: Any, key: Any, value: Any) -> Any:
    return numpy_ref.scaled_dot_product_attention(query, key, value)


def wrong(query: Any, key: Any, value: Any) -> Any:
    """Forgets the keys behind the first tile."""
    return right(query, key[..., :32, :], value[..., :32, :])


def check(function: Any, folder: Path, inputs: dict[str, Any] = ARRAYS) -> av.Report:
    return av.check(function, ATTENTION.name, inputs=inputs, arrays="numpy", failures=str(folder))


def test_a_right_function_passes_on_them(tmp_path: Path) -> None:
    (result,) = check(right, tmp_path).results
    found = result.verdict, result.aspect, result.cases, result.strong
    assert found == ("passed", "values", 1, 1)


def test_a_wrong_function_fails_on_them_and_is_replayed(tmp_path: Path) -> None:
    with pytest.raises(av.CheckFailed, match="elements differ") as caught:
        check(wrong, tmp_path)
    (finding,) = caught.value.report.results[0].findings
    assert "M=35" in str(finding)  # as it was given, not made smaller
    assert finding.record is not None
    backend = Backend("mine", "mine", by_name=True)
    implementation_of_function(backend, wrong, ATTENTION.name, "numpy")
    with pytest.raises(Disagreement):
        replay(find_record(finding.record.hash, str(tmp_path)), backend.implementations[0])


def test_numbers_of_every_dtype_come_back(tmp_path: Path) -> None:
    import torch

    numbers = {name: x.astype(ml_dtypes.bfloat16) for name, x in ARRAYS.items()}
    np.savez(tmp_path / "a.npz", **numbers)  # type: ignore[arg-type]
    torch.save(
        {name: torch.from_numpy(x).bfloat16() for name, x in ARRAYS.items()}, tmp_path / "a.pt"
    )
    found = [
        expand(recipe_of_file(ATTENTION, str(tmp_path / name)), "bfloat16")["query"]
        for name in ("a.npz", "a.pt")
    ]
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], numbers["query"].astype(np.float64))
    assert {dtype_of_file(str(tmp_path / name)) for name in ("a.npz", "a.pt")} == {"bfloat16"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"q": ARRAYS["query"]}, "got q"),
        ({"key": None}, "wants key"),
        ({"key": ARRAYS["key"][0]}, r"key: wanted \[B H M D\]"),
        ({"value": ARRAYS["value"][..., 1:, :]}, "value: wanted M = 35, got 34"),
    ],
    ids=["a name", "a missing one", "axes", "sizes"],
)
def test_what_is_wrong_with_them_is_told(
    change: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=words):
        check(right, tmp_path, ARRAYS | change)


def test_a_file_that_has_changed_is_not_replayed_as_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "case.npz"
    np.savez(path, **ARRAYS)  # type: ignore[arg-type]
    recipe = recipe_of_file(ATTENTION, str(path))
    np.savez(path, **{name: x + 1 for name, x in ARRAYS.items()})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no longer the file that was judged"):
        expand(recipe, "float32")


MINE = """
import numpy as np
DTYPES = ("float32",)

def scaled_dot_product_attention(query, key, value):
    score = query @ np.swapaxes(key, -1, -2) / np.sqrt(query.shape[-1])
    e = np.exp(score - score.max(-1, keepdims=True))
    return (e @ value / e.sum(-1, keepdims=True)).astype(np.float32) {tail}
"""


@pytest.mark.parametrize(("tail", "status"), [("", 0), ("* np.float32(1.1)", 1)])
def test_the_command_judges_them(
    tail: str, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("case.npz", **ARRAYS)  # type: ignore[arg-type]
    Path("mine.py").write_text(MINE.format(tail=tail))
    done = verify("run", "mine.py", "--op", ATTENTION.name, "--inputs", "case.npz")
    assert done.status == status
    assert "1 cell: 1 " in done.output


def test_they_are_judged_as_the_only_operation_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(MINE.format(tail=""))
    np.savez("case.npz", **ARRAYS)  # type: ignore[arg-type]
    done = verify("run", "mine.py", "--inputs", "case.npz")
    assert done.status == 0 and "1 cell: 1 passed" in done.output
