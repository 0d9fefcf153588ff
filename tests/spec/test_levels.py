"""
The rooms of the judge: every arrow points downwards, no circle, and no room is overfull.

ARCHITECTURE.md describes the levels; this test holds them.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from attnverify import ROOT

LEVELS = (
    ("contract",),
    ("catalogue", "precision", "timing", "device_assignment", "field_names", "machine", "ptx"),
    ("bounds", "backends", "options"),
    ("inputs", "derived"),
    ("reference", "specified"),
    ("conventions",),
    ("faults",),
    ("judge",),
    ("checks", "diagnosis"),
    ("failures",),
    ("verdicts",),
    ("isolation", "differential", "repair"),
    ("report", "session"),
    ("plugin", "campaign", "bench", "doctor", "interface"),
    ("cli",),
    ("__main__",),
)
"""The rooms and modules of attnverify/, from the ground up."""

BEFORE_ITS_TIME = {("precision", "catalogue")}
"""Imported inside a function that is called when everything is there."""

LEVEL = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}

COLUMNS = ("spec", "numpy_ref", "torch_impl", "cupy_impl")
MOST = {"attnverify": 12, "tests": 32} | dict.fromkeys(COLUMNS, 21)
"""
Modules in a folder, __init__ included; each of fifteen chapters has two tests of its own, and a
module in each column.
"""

SAMPLES = ("adapters", "misbehaving_backends", "reports", "sample_backends", "sample_user_tests")
"""Folders of backends that tests bring: one small file each."""


def modules(folder: str) -> dict[str, Path]:
    """The modules below a folder of the checkout, by dotted name."""
    paths = [path for path in (ROOT / folder).rglob("*.py") if "__pycache__" not in path.parts]
    names = (".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths)
    return {name.removesuffix(".__init__"): path for name, path in zip(names, paths, strict=True)}


JUDGE = modules("attnverify")


def imports(source: str) -> Iterator[str]:
    """The modules of the judge that a source imports, but for those for type checking alone."""
    tree = ast.parse(source)
    typing = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in typing:
            continue
        if isinstance(node, ast.Import):
            yield from (known(alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from (known(f"{node.module}.{alias.name}") for alias in node.names)


def known(name: str) -> str:
    """The longest beginning of a dotted name that is a module of the judge; "" if there is none."""
    while name and name not in JUDGE:
        name = name.rpartition(".")[0]
    return name


def room(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def climbing(module: str, source: str) -> list[str]:
    """The imports that do not point downwards: to the same level in another room, or above."""
    here = room(module)
    return [
        there
        for there in imports(source)
        if room(there) not in ("", here)
        and (here, room(there)) not in BEFORE_ITS_TIME
        and LEVEL[room(there)] >= LEVEL[here]
    ]


def test_every_arrow_points_downwards() -> None:
    sources = {name: path.read_text() for name, path in JUDGE.items() if "." in name}
    found = {name: climbing(name, source) for name, source in sources.items()}
    assert len(found) > 300 and {name: up for name, up in found.items() if up} == {}


def circle_of(graph: dict[str, set[str]]) -> list[str]:
    """Modules that import each other in a circle, or none: what cannot be put in any order."""
    left = dict(graph)
    while ready := [name for name, others in left.items() if not others & left.keys()]:
        for name in ready:
            del left[name]
    return sorted(left)


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = {
        name: {other for other in imports(path.read_text()) if not name.startswith(f"{other}.")}
        for name, path in JUDGE.items()
    }
    assert circle_of({name: others - {name, ""} for name, others in graph.items()}) == []


def test_every_room_has_a_level() -> None:
    assert {room(name) for name in JUDGE} - {""} == LEVEL.keys()


@pytest.mark.parametrize("folder", MOST)
def test_no_folder_holds_too_many_modules(folder: str) -> None:
    counts = Counter(path.parent for path in modules(folder).values())
    over = {
        str(path.relative_to(ROOT)): count
        for path, count in counts.items()
        if count > MOST[folder] and path.name not in SAMPLES
    }
    assert over == {}


# sabotage: what these tests must notice


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("attnverify.bounds.alibi", "from attnverify.inputs.recipe import Recipe"),
        ("attnverify.checks.registry", "def f():\n    from attnverify.diagnosis import diagnose"),
        ("attnverify.catalogue.traits", "import attnverify.bounds"),
        ("attnverify.judge.case", "if True:\n    from attnverify.verdicts.cell import Cell"),
    ],
)
def test_an_arrow_upwards_is_noticed(module: str, source: str) -> None:
    assert len(climbing(module, source)) == 1


def test_what_is_imported_for_types_alone_is_no_arrow() -> None:
    source = "if TYPE_CHECKING:\n    from attnverify.verdicts.cell import Cell"
    assert climbing("attnverify.judge.case", source) == []


def test_a_circle_is_noticed() -> None:
    assert circle_of({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}, "e": set()}) == [*"abcd"]
