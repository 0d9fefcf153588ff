"""
Summarise reports for the book: what was measured, when and on what, an entry for each operation.

    attnverify run numpy_ref torch_impl --report-json run.json
    pytest -m faults --attn-score-json score.json
    python docs/data/summarise.py verdicts "two CPU cores; not run on a GPU" run.json
    [more.json ...] python docs/data/summarise.py kills default score.json
    python docs/data/summarise.py noticed COMMIT score-of-commit.json score.json
"""

import json
import subprocess
import sys
from collections import defaultdict
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT))


def verdicts(device: str, reports: list[dict[str, Any]]) -> dict[str, Any]:
    """
    Columns passed of those judged and the worst budget, for each operation with its gradient,
    implementation and dtype.
    """
    cells: dict[tuple[str, str, str], list[dict[str, Any]]] = defaultdict(list)
    for tally in (tally for report in reports for tally in report["tallies"]):
        name = f"{tally['backend']}:{tally['how']}" if tally["how"] else tally["backend"]
        cells[tally["operation"].removesuffix("_grad"), name, tally["dtype"]].append(tally)
    operations: dict[str, Any] = defaultdict(lambda: defaultdict(dict))
    for (operation, name, dtype), tallies in cells.items():
        operations[operation][name][dtype] = cell(tallies)
    versions = ", ".join(
        sorted(
            {
                backend["versions"]
                for report in reports
                for backend in report["backends"]
                if backend["versions"]
            }
        )
    )
    head = stamp(reports[0]["options"]["profile"], f"{reports[0]['installed']}; {versions}")
    return head | {"device": f"On {device}.", "operations": operations}


def cell(tallies: list[dict[str, Any]]) -> dict[str, Any]:
    judged = [tally for tally in tallies if tally["verdict"] != "unsupported"]
    passed = sum(tally["verdict"] == "passed" for tally in judged)
    others = sorted({tally["verdict"] for tally in tallies} - {"passed"})
    return {
        "passed": passed,
        "judged": len(judged),
        "others": others,
        "budget": float(f"{max((t['budget'] for t in judged), default=0):.3g}"),
    }


def kills(profile: str, entries: list[dict[str, Any]]) -> dict[str, Any]:
    """
    Faults noticed, the median of the cases that took, and the hardest; gradients count for what
    they are the gradient of.
    """
    scores: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for entry in entries:
        if entry["wanted"] == "killed":
            scores[entry["operation"].removesuffix("_grad")].append(entry)
    return stamp(profile, "seed 0") | {
        "operations": {operation: score(found) for operation, found in scores.items()}
    }


def noticed(
    commit: str, before: list[dict[str, Any]], since: list[dict[str, Any]]
) -> dict[str, Any]:
    """By kind: how many of the faults scored at an earlier commit were noticed then, and since."""
    earlier = {(entry["fault"], entry["dtype"]): entry["killed"] for entry in before}
    kinds: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for entry in since:
        if (entry["fault"], entry["dtype"]) in earlier:
            kinds[entry["kind"]].append(entry)
    return stamp("default", "seed 0") | {
        "before": commit,
        "kinds": {
            kind: {
                "faults": len({entry["fault"] for entry in found}),
                "entries": len(found),
                "noticed_before": sum(earlier[e["fault"], e["dtype"]] for e in found),
                "noticed_since": sum(entry["killed"] for entry in found),
            }
            for kind, found in sorted(kinds.items())
        },
    }


def score(found: list[dict[str, Any]]) -> dict[str, Any]:
    killed = [entry for entry in found if entry["killed"]]
    hardest = max(found, key=lambda entry: (not entry["killed"], entry["cases"]))
    return {
        "faults": len({entry["fault"] for entry in found}),
        "entries": len(found),
        "killed": len(killed),
        "median": median(entry["cases"] for entry in killed) if killed else None,
        "hardest": hardest["fault"],
        "worst": hardest["cases"],
    }


def stamp(profile: str, installed: str) -> dict[str, Any]:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    return {
        "date": date.today().isoformat(),
        "commit": commit,
        "profile": profile,
        "installed": installed,
    }


def main() -> None:
    kind, said, *paths = sys.argv[1:]
    read = [json.loads(Path(path).read_text()) for path in paths]
    made = {
        "verdicts": lambda: verdicts(said, read),
        "kills": lambda: kills(said, [entry for entries in read for entry in entries]),
        "noticed": lambda: noticed(said, *read),
    }
    found = made[kind]()
    (HERE / f"{kind}.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
