"""
The book's text: every part of every formula has its statement, every page its sections, every
executed line its output.
"""

import inspect
import json
import re
import sys
import textwrap

import pytest

from attnverify import ROOT
from attnverify.bench.measure.summary import summarise
from attnverify.catalogue.operation import CATALOGUE

sys.path.insert(0, str(ROOT / "docs"))
sys.path.insert(0, str(ROOT / "docs" / "_ext"))

from book import conventions, docstrings, pages, pitfalls, source_lines, versions
from book.formula_lines import ANCHORS
from pictures import overview

OPERATIONS = [operation.name for operation in pages.pages_of_the_book()]
SECTIONS = (
    "The formula and its code",
    "A worked example",
    "Traps",
    "Numerics",
    "Where it stands",
    "Conventions elsewhere",
    "Versions of its meaning",
    "The line to run",
)

each_operation = pytest.mark.parametrize("name", OPERATIONS)


def test_there_is_a_page_for_every_operation():
    gradients = {f"{name}_grad" for name in OPERATIONS} & set(CATALOGUE)
    assert set(OPERATIONS) | gradients == set(CATALOGUE)


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_part_of_a_formula_has_statements_that_implement_it(name):
    formulas = docstrings.formulas(CATALOGUE[name].specification)
    assert len(ANCHORS[name]) == len(formulas) and all(ANCHORS[name])
    for anchor in (anchor for anchors in ANCHORS[name] for anchor in anchors):
        passage = source_lines.find(anchor)
        assert anchor.partition(": ")[2] in passage.text


def test_a_passage_is_the_literal_source():
    passage = source_lines.find("shift_right: if column")
    path, _, lines = passage.place.partition(":")
    first, _, last = lines.partition("-")
    source = (ROOT / path).read_text().splitlines()[int(first) - 1 : int(last)]
    assert [line.strip() for line in source] == [line.strip() for line in passage.text.splitlines()]


@pytest.mark.parametrize(
    "anchor", ["shift_right: no such words", "shift_right: i", "no_such_function: x"]
)
def test_an_anchor_that_names_no_one_statement_is_refused(anchor):
    with pytest.raises(ValueError, match="anchor: wanted"):
        source_lines.find(anchor)


@each_operation
def test_a_page_has_all_its_sections(name):
    assert [
        section
        for section in SECTIONS
        if f"\n{section}\n----" not in "\n" + pages.page(CATALOGUE[name])
    ] == []


@each_operation
def test_a_worked_example_is_executed_and_has_a_picture_with_a_text_in_its_place(name):
    worked = (ROOT / "docs" / "worked_examples" / f"{name}.rst").read_text()
    assert ".. run::" in worked and ".. picture::" in worked and ">>>" not in worked
    assert worked.count(".. picture::") == worked.count(":alt:")


def test_there_is_no_worked_example_of_nothing():
    assert {path.stem for path in (ROOT / "docs" / "worked_examples").glob("*.rst")} == set(
        OPERATIONS
    )


def test_errata_go_from_the_specification_to_the_traps():
    specification = CATALOGUE["rel_shift"].specification
    lines = docstrings.without_errata(inspect.getdoc(specification).splitlines())
    assert "Errat" not in "\n".join(lines) and "Source:" in "\n".join(lines)
    assert "a tutorial for TensorFlow 2 pads [N M]" in "\n".join(
        pitfalls.section(CATALOGUE["rel_shift"])
    )


@each_operation
def test_every_seeded_fault_stands_on_its_page(name):
    text = "\n".join(pitfalls.section(CATALOGUE[name]))
    faults = pitfalls.faults_of(CATALOGUE[name])
    assert faults and all(pitfalls.literal_free(fault.words) in text for fault in faults)


def test_a_trap_is_drawn_for_nearly_every_operation():
    drawn = [
        name
        for name in OPERATIONS
        if ".. picture:: pitfalls.beside" in "\n".join(pitfalls.section(CATALOGUE[name]))
    ]
    assert {
        "shift_right",
        "rel_shift",
        "softmax",
        "causal_mask",
        "merge_masks",
        "get_alibi_biases",
        "alibi_attention",
    } <= set(drawn)
    assert len(drawn) >= 24


def test_the_faults_that_are_chosen_for_a_picture_are_drawn():
    for name, fault in pitfalls.PICTURED.items():
        assert f'"{fault}"' in "\n".join(pitfalls.section(CATALOGUE[name]))


def test_the_framed_elements_are_those_that_differ():
    case = pitfalls.small_case("softmax_average_of_empty_rows")
    expected, fault, marked = pitfalls.wrong(case)
    assert (
        marked.any()
        and (expected[marked] != fault[marked]).all()
        and (abs(expected - fault)[~marked] < 1e-12).all()
    )


PEERS = [
    pytest.param(peer, id=f"{peer.package}-{peer.call}") for peer in conventions.PEERS if peer.ask
]


@pytest.mark.parametrize("peer", PEERS)
def test_a_convention_is_what_the_library_does(peer):
    said = conventions.executed(peer)
    assert said.startswith("executed with") or peer.package != "torch"


def test_a_convention_that_is_not_true_is_noticed():
    peer = conventions.Peer(
        ("softmax",), "numpy", "softmax", "N M", {"a row": "0"}, ask=lambda: {"a row": "NaN"}
    )
    with pytest.raises(ValueError, match=r"wanted .*'0'.*, got .*NaN"):
        conventions.executed(peer)


def test_the_speed_that_nobody_measured_is_said_to_be_missing(monkeypatch, tmp_path):
    monkeypatch.setattr(pages.status, "read", lambda name: None)
    for root in ("RESULTS", "PARTS"):
        monkeypatch.setattr(pages.status, root, tmp_path)
    text = "\n".join(pages.status.section(CATALOGUE["softmax"]))
    assert text.count("not measured yet") == 3


def test_the_newest_results_of_a_device_are_shown(monkeypatch, tmp_path):
    for root in ("RESULTS", "PARTS"):
        monkeypatch.setattr(pages.status, root, tmp_path)
    for name, seconds in ("120000.json", 3.0), ("130000.json", 2.0):
        timed = {
            "case": "a case",
            "operation": "softmax",
            "dtype": "float32",
            "mode": "forward",
            "label": "ours",
            "verdict": "correct",
            "seconds": summarise([seconds]),
        }
        machine = {"load": seconds, "cpu": {"count": 2}}
        told = {"benchmarks": [{"extra_info": timed | {"refused": ""}}], "machine_info": machine}
        path = tmp_path / "a-device" / "2026-01-01" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(told))
    text = "\n".join(pages.status.speed(CATALOGUE["softmax"]))
    assert "busy (load 3 on 2 cores)" in pages.status.how_busy(path.with_name("120000.json"))
    assert (
        "a case: softmax, float32, forward, on a-device, 2026-01-01:" in text
        and "2 s" in text
        and "3 s" not in text
    )


def test_changes_stand_on_the_pages_of_the_operations_that_they_name():
    told = "\n".join(versions.section(CATALOGUE["update_mems"]))
    assert "Specified since 0.1.0" in told and "- 0.2.0: The gradients of the parts" in told
    assert "its common dtype" not in told and "their common dtype" in told
    unchanged = "\n".join(versions.section(CATALOGUE["get_slopes"]))
    assert "has not changed" in unchanged


def test_an_entry_of_the_changelog_is_read_whole():
    body = "\nText.\n\n- one `a`\n  and more\n- two\n\nText.\n"
    assert versions.entries(body) == ["one `a` and more", "two"]
    assert versions.to_rst("one `a`") == "one ``a``"


def test_the_picture_of_the_readme_is_drawn_by_the_code_of_today():
    drawn = (ROOT / "docs" / "_static" / "suite.svg").read_text()
    assert f"made from {overview.made_from()}" in drawn, (
        "PYTHONPATH=.:docs python -m pictures.overview docs/_static/suite.svg"
    )
    assert "docs/_static/suite.svg" in (ROOT / "README.md").read_text()


def test_the_code_under_a_picture_is_what_draws_it():
    pytest.importorskip("sphinx", reason="the extra docs brings it")
    from book import directives

    fold, code, end = directives.source_of("shifts", "moved")
    assert "docs/pictures/shifts.py" in fold.astext() and end.astext() == "</details>"
    assert code.astext().startswith("def moved(shift") and "stagger(middle" in code.astext()


BLOCK = re.compile(r"^\.\. run::\n(?:   :raises: (\w+)\n)?\n((?:   .*\n|\n)+)", re.MULTILINE)


@pytest.mark.docs
def test_kernels_of_models_are_rewarded_where_they_compute() -> None:
    from book import directives  # needs Sphinx, which the extra docs brings

    blocks = BLOCK.findall((ROOT / "docs" / "chapters" / "models.rst").read_text())
    names = directives.fresh()
    shown = [
        "\n".join(directives.played(textwrap.dedent(source).strip("\n"), names)).splitlines()
        for _, source in blocks
    ]
    first, second, third = (text[-2:] for text in shown[-3:])
    assert first[-1] == "{'reward': 1.0, 'why': [], 'notes': ()}"
    assert "the judge's own functions (attnverify.judge.judging.compare_outputs)" in second[-1]
    assert third[-1].startswith("{'reward': 1.0") and "calls attnverify.spec inside" in third[-1]


@pytest.mark.docs
def test_each_part_of_the_public_interface_has_an_executed_example():
    from book import directives  # needs Sphinx, which the extra docs brings

    blocks = BLOCK.findall((ROOT / "docs" / "chapters" / "from_python.rst").read_text())
    names = directives.fresh()
    shown = [
        "\n".join(directives.played(textwrap.dedent(source).strip(), names, raises))
        for raises, source in blocks
    ]
    source = "\n".join(source for _, source in blocks)
    for part in ("av.spec.", "av.check(", "av.bound(", "av.Report."):
        assert part in source
    assert any("CheckFailed: softmax of softmax in float32 is not" in text for text in shown)
    assert any("(True, 'passed')" in text for text in shown)
