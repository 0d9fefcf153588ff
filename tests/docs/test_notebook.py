"""The notebook of examples/: every cell runs, and shows what is stored beneath it."""

import json
from pathlib import Path
from typing import Any

import pytest

import attnverify as av
from attnverify import ROOT
from tests.support.notebooks import execute, read_cells, stored

NOTEBOOK = ROOT / "examples" / "first_look.ipynb"


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], dict[str, Any]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("notebook"))
        return execute(read_cells(NOTEBOOK))


def test_every_cell_shows_what_is_stored(executed: tuple[list[str], dict[str, Any]]) -> None:
    assert executed[0] == [stored(cell) for cell in read_cells(NOTEBOOK)]


def test_a_cell_that_shows_something_else_is_noticed(tmp_path: Path) -> None:
    text = {"output_type": "stream", "name": "stdout", "text": ["3\n"]}
    cell = {"cell_type": "code", "source": ["print(1)\n", "1 + 1"], "outputs": [text]}
    (tmp_path / "x.ipynb").write_text(json.dumps({"nbformat": 4, "cells": [cell]}))
    (cell,) = read_cells(tmp_path / "x.ipynb")
    assert execute([cell])[0] == ["1\n2\n"] != [stored(cell)]


def test_the_report_of_the_notebook_draws_its_maps(
    executed: tuple[list[str], dict[str, Any]],
) -> None:
    report = executed[1]["report"]
    assert isinstance(report, av.Report) and report.verdict("softmax", "float32") == "failed"
    assert "&lt;svg" in report._repr_html_()


def test_the_notebook_is_one_that_jupyter_opens() -> None:
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert notebook["nbformat_minor"] >= 5 and notebook["metadata"]["kernelspec"]
    identities = [cell["id"] for cell in notebook["cells"]]
    assert len(set(identities)) == len(identities)
