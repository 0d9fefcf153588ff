"""
Run each bug of the gallery under a usual test and under this suite, and keep what both said.

    python docs/data/measure_gallery.py   writes docs/data/gallery.json and gallery_reports.json
"""

import json
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent.parent), str(HERE)]

import attnverify as av  # noqa: E402
from attnverify.catalogue.pytrees import leaves  # noqa: E402
from attnverify.faults.registry import Fault, read_faults  # noqa: E402
from attnverify.inputs.fixed_cases import fitting_sizes  # noqa: E402
from attnverify.inputs.recipe import Recipe  # noqa: E402
from attnverify.judge.case import case_of  # noqa: E402
from attnverify.report.causes.root_causes import triage  # noqa: E402
from attnverify.report.json_report import describe_what_was_violated, json_text  # noqa: E402
from attnverify.verdicts.cell import cells  # noqa: E402
from attnverify.verdicts.columns import judge_cell  # noqa: E402
from attnverify.verdicts.tally import Options  # noqa: E402
from tests.attnverify.faults.first_failure import first_failure, implementation_of  # noqa: E402

USUAL = {"B": 2, "H": 4, "N": 32, "M": 32, "D": 32, "E": 32, "Q": 32, "K": 32, "A": 32, "F": 32,
"P": 32, "S": 32, "L": 2}  # fmt: skip
TOLERANCE = 1e-3


def bugs() -> list[dict[str, Any]]:
    """The gallery's bugs, in its order."""
    return list(tomllib.loads((HERE / "gallery.toml").read_text(encoding="utf-8"))["bugs"])


def usual_test(fault: Fault) -> str:
    """
    What ``allclose`` says on one batch: normal numbers, float32, as many queries as keys, nothing
    hidden that need not be, sizes that are powers of two.
    """
    operation = fault.operation
    recipe = Recipe(operation.name, fitting_sizes(operation, USUAL), usual_values(), **usual(fault))
    case = case_of(recipe, "float32")
    try:
        answers = list(leaves(fault.fresh()(**case.inputs)))
    except Exception as error:
        return f"raises {type(error).__name__}"
    expected = list(leaves(case.expected))
    alike = len(answers) == len(expected) and all(
        np.shape(own) == np.shape(right)
        and np.allclose(np.float64(own), np.float64(right), rtol=TOLERANCE, atol=TOLERANCE)
        for own, right in zip(answers, expected, strict=False)
    )
    return "passes" if alike else "fails"


def usual_values() -> dict[str, Any]:
    return {"family": "normal", "seed": 0}


def usual(fault: Fault) -> dict[str, Any]:
    """What else the operation must be given: masks to merge, a draw, a memory."""
    given: dict[str, Any] = {}
    if fault.operation.name == "merge_masks":
        given["mask"] = {"pattern": "causal", "axes": "N M", "form": "bool", "seed": 0}
    if fault.operation.name == "dropout":
        given["dropout"] = {"p": 0.5, "seed": 0}
    if "mem_len" in fault.operation.arguments:
        given["options"] = {"mem_len": USUAL["S"]}
    return given


def suite_says(fault: Fault) -> list[str]:
    """
    The first lines of what ``av.check`` raises, without what only this machine can replay; of a
    gradient, which it judges with its function alone, what the kill score says.
    """
    if fault.operation.is_gradient:
        found = first_failure(implementation_of(fault), "float32", Options("quick", 0))
        return shown(found.words)
    with tempfile.TemporaryDirectory() as folder:
        try:
            av.check(
                fault.fresh(),
                fault.operation.name,
                dtype="float32",
                precision=fault.precision,
                arrays="numpy",
                require="isolation",
                failures=folder,
            )
        except av.CheckFailed as failed:
            return shown(str(failed))
    return []


def shown(message: str) -> list[str]:
    """The finding: its headline, its worst element and its cause."""
    lines = [line.rstrip() for line in message.splitlines()]
    firsts = (next((line for line in lines[1:] if line.startswith(word)), "") for word in SHOWN)
    return [lines[0], *filter(None, firsts)]


SHOWN = ("  output", "  cause")


def measure(name: str) -> dict[str, Any]:
    """Both tests of one bug."""
    fault = read_faults()[name]
    return {"usual": usual_test(fault), "suite": suite_says(fault)}


def report_of(fault: Fault) -> dict[str, Any]:
    """The report of the first cell, as a run judges them, in which the suite finds it."""
    failed: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for cell in cells([implementation_of(fault).backend], dtypes=("float32",)):
            result = judge_cell(cell, Options("quick", 0, folder))
            if result.verdict == "failed":
                failed = [result.as_dict()]
                break
    for tally in failed:
        tally["findings"], tally["seconds"] = tally["findings"][:1], {}
        for finding in tally["findings"]:
            finding["record"] |= {"machine": {}, "replay": f"pytest -m faults -k {fault.name}"}
    causes = [cause.as_dict() for cause in triage(failed)]
    return {"tallies": failed, "root_causes": causes} | describe_what_was_violated(failed)


def write_reports(names: list[str]) -> None:
    """Write the reports of the bugs, from which the book makes their pages."""
    from summarise import stamp

    reports = {name: report_of(read_faults()[name]) for name in names}
    found = stamp("quick", f"numpy {np.__version__}") | {"operations": reports}
    (HERE / "gallery_reports.json").write_text(json_text(found))


def main() -> None:
    from summarise import stamp

    write_reports([bug["fault"] for bug in bugs()])
    found: dict[str, Any] = {}
    for bug in bugs():
        fault = read_faults()[bug["fault"]]
        found.setdefault(fault.operation.name, {})[fault.name] = measure(fault.name)
    text = json.dumps(stamp("quick", f"numpy {np.__version__}") | {"operations": found}, indent=1)
    (HERE / "gallery.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
