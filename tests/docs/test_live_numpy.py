"""
The little NumPy of the live cells: the specification's own source, run on it, gives NumPy's
numbers, for every operation of the catalogue.
"""

import json
import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from attnverify import ROOT, spec
from attnverify.catalogue.operation import CATALOGUE
from attnverify.inputs.expand import expand
from attnverify.inputs.fixed_cases import fixed_cases
from attnverify.inputs.recipe import Recipe
from attnverify.inputs.sampling import draw_recipes

sys.path.insert(0, str(ROOT / "docs" / "_ext"))

from book import pages
from book.live_cells import CELLS, unpacked

CASES, AREA = 3, 60
"""As many cases of each operation, of about that many numbers."""

PROGRAM = """
import json, sys, traceback
import numpy as np
from attnverify.spec import {chapters}

def as_json(x):
    if isinstance(x, np.ndarray):
        return {{"shape": list(x.shape), "kind": x.dtype.kind, "data": x.data}}
    if isinstance(x, dict):
        return {{"mapping": {{name: as_json(part) for name, part in x.items()}}}}
    return [as_json(part) for part in x] if isinstance(x, (list, tuple)) else x

def from_json(x):
    if isinstance(x, list):
        return [from_json(part) for part in x]
    if not isinstance(x, dict):
        return x
    if "mapping" in x:
        return {{name: from_json(part) for name, part in x["mapping"].items()}}
    kind = {{"b": bool, "i": int, "f": float}}[x["kind"]]
    kind = np.int8 if x["dtype"] == "int8" else kind
    return np.array(x["data"], kind).reshape(tuple(x["shape"]))

def answer(chapter, operation, arguments):
    function = getattr(globals()[chapter], operation)
    try:
        return as_json(function(**from_json({{"mapping": arguments}})))
    except ValueError as error:
        return {{"refused": str(error)}}
    except Exception as error:
        return {{"raised": traceback.format_exc()}}

print(json.dumps([answer(*call) for call in json.load(sys.stdin)]))
"""


def packed(x: Any) -> Any:
    """Inputs and answers as JSON: arrays, mappings, lists, and plain numbers and words."""
    if isinstance(x, np.ndarray):
        kind = {"kind": x.dtype.kind, "dtype": x.dtype.name}
        return {"shape": list(x.shape), "data": x.ravel().tolist()} | kind
    if isinstance(x, dict):
        return {"mapping": {name: packed(part) for name, part in x.items()}}
    return [packed(part) for part in x] if isinstance(x, (list, tuple)) else x


def calls_of(name: str) -> list[dict[str, Any]]:
    """Arguments of the suite's own cases that are neither trivial nor large."""
    recipes = {*draw_recipes(name, "any", 40, 0), *fixed_cases(name)}
    chosen = sorted(recipes, key=lambda recipe: (abs(math.log(area(recipe) / AREA)), recipe.text))
    dtype = "float64" if "float64" in CATALOGUE[name].dtypes else "bool"
    return [expand(recipe, dtype) for recipe in chosen[:CASES]]


def area(recipe: Recipe) -> int:
    return math.prod(max(size, 1) for size in recipe.sizes.values())


REFUSED = [
    ("rel_shift", {"x": np.arange(3)}),
    ("causal_mask", {"N": 0, "M": 1}),
    ("softmax", {"score": np.zeros((2, 2)), "mask": np.zeros((3, 3))}),
    ("get_alibi_biases", {"n_heads": 2, "visible": np.ones((2, 2))}),
]


@pytest.fixture(scope="module")
def calls() -> list[tuple[str, dict[str, Any]]]:
    return [(name, arguments) for name in CATALOGUE for arguments in calls_of(name)]


@pytest.fixture(scope="module")
def answers(
    calls: list[tuple[str, dict[str, Any]]], tmp_path_factory: pytest.TempPathFactory
) -> list[Any]:
    """What the specification's files say where `import numpy` finds the one of docs/live_cells."""
    folder = tmp_path_factory.mktemp("live")
    unpacked(folder)
    program = PROGRAM.format(
        chapters=", ".join(sorted({each.chapter for each in CATALOGUE.values()}))
    )
    sent = [
        (CATALOGUE[name].chapter, name, packed(arguments)["mapping"])
        for name, arguments in calls + REFUSED
    ]
    run = [
        sys.executable,
        "-S",
        "-E",
        "-c",
        f"import sys; sys.path.insert(0, {str(folder)!r})\n{program}",
    ]
    done = subprocess.run(run, input=json.dumps(sent), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


def largest(packed: Any) -> float:
    """The largest finite number of an answer: what its sums are rounded beside."""
    if isinstance(packed, list):
        return max(map(largest, packed), default=0.0)
    if not isinstance(packed, dict):
        return 0.0
    if "mapping" in packed:
        return max(map(largest, packed["mapping"].values()), default=0.0)
    return max((abs(x) for x in packed["data"] if math.isfinite(x)), default=0.0)


def same(found: Any, wanted: Any, room: float = 0.0) -> bool:
    """Equal in structure, shape and kind, and in numbers up to the order of sums."""
    if isinstance(wanted, list):
        return len(found) == len(wanted) and all(
            same(*pair, room) for pair in zip(found, wanted, strict=False)
        )
    if not isinstance(wanted, dict):
        return bool(found == wanted)
    if "mapping" in wanted:
        a, b = found["mapping"], wanted["mapping"]
        return list(a) == list(b) and all(same(a[name], b[name], room) for name in b)
    if (found["shape"], found["kind"]) != (wanted["shape"], wanted["kind"]):
        return False
    a, b = np.asarray(found["data"], float), np.asarray(wanted["data"], float)
    finite = np.isfinite(b)
    near = abs(a - b)[finite] <= room
    return bool(near.all()) and np.array_equal(a[~finite], b[~finite], equal_nan=True)


@pytest.mark.parametrize("name", CATALOGUE)
def test_the_specification_gives_the_same_numbers_as_on_numpy(calls, answers, name):
    judged = 0
    with np.errstate(all="ignore"):
        for (operation, arguments), found in zip(calls, answers, strict=False):
            if operation == name:
                wanted = packed(getattr(spec, name)(**arguments))
                assert same(found, wanted, 1e-12 * largest(wanted)), (arguments, found, wanted)
                judged += 1
    assert judged >= 3


def test_a_number_that_differs_is_noticed():
    right = packed([np.ones((2, 2)), np.array([True])])
    assert same(right, packed([np.ones((2, 2)), np.array([True])]))
    for wrong in ([np.ones(4), np.array([True])], [np.ones((2, 2)) + 1e-9, np.array([True])]):
        assert not same(packed(wrong), right)
    assert not same(packed([np.ones((2, 2)), np.array([1])]), right)


def test_it_refuses_what_the_specification_refuses(calls, answers):
    for (name, arguments), found in zip(REFUSED, answers[len(calls) :], strict=True):
        with pytest.raises(ValueError) as refused:
            getattr(spec, name)(**arguments)
        assert found == {"refused": str(refused.value)}


@pytest.mark.parametrize("name", [operation.name for operation in pages.pages_of_the_book()])
def test_every_operation_has_a_cell_whose_code_runs_at_every_end_of_its_sliders(name):
    code, sliders = CELLS[name]["code"], CELLS[name]["sliders"]
    assert all(least <= first <= most for least, first, most in sliders.values())
    for position in range(3):
        names = {"np": np, **vars(spec), **{each: ends[position] for each, ends in sliders.items()}}
        exec(code, names)
        assert name in code and all(np.ndim(x) == 2 for x in names["show"].values())


def test_there_is_no_cell_of_nothing():
    assert set(CELLS) == {operation.name for operation in pages.pages_of_the_book()}
