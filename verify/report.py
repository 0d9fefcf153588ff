"""What a run says at its head and at its end: who was judged on what, and the table of verdicts."""

from collections import defaultdict
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from verify.catalogue import ASPECTS

if TYPE_CHECKING:
    from verify.plugin import Verification

SHORT = {"float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16", "bool": "bool"}


def header(run: "Verification") -> list[str]:
    """Backends with their device and library versions, profile and seed."""
    lines = [f"verify: profile {run.options.profile} ({run.options.cases} cases), seed {run.options.seed}, {installed()}"]
    for backend in run.backends:
        state = f"broken ({backend.broken})" if backend.broken else f"missing ({backend.missing})" if backend.missing else ""
        found = f"{len(backend.implementations)} implementations on {backend.device}, {backend.versions}"
        lines.append(f"  {backend.source}: {state or found}")
        lines += [f"    note: {note}" for note in backend.notes]
    return lines


def installed() -> str:
    found = []
    for package in ("numpy", "hypothesis", "ml_dtypes"):
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


def table(tallies: list[dict[str, Any]]) -> list[str]:
    """
    One line for each operation and implementation; dtypes of the same verdicts share it, the worst budget is given for each.

    A budget is the worst error as a share of the derived bound. Strong cases are those that no cheap impostor passes.
    """
    rows = grouped(tallies)
    lines = [
        f"{'operation':<31}{'implementation':<24}{'dtypes':<18}"
        + "".join(f"{aspect:<13}" for aspect in ASPECTS)
        + "cases/strong  worst budget used"
    ]
    previous = ""
    for operation, implementation, dtypes, verdicts, cases, strong, budgets in rows:
        name = operation if operation != previous else ""
        previous = operation
        words = "".join(f"{verdicts.get(aspect, '-'):<13}" for aspect in ASPECTS)
        lines.append(f"{name:<31}{implementation:<24}{' '.join(dtypes):<18}{words}{f'{cases}/{strong}':<14}{' '.join(budgets)}")
    return [*lines, "", closing(tallies)]


Row = tuple[str, str, list[str], dict[str, str], int, int, list[str]]


def grouped(tallies: list[dict[str, Any]]) -> list[Row]:
    cells: dict[tuple[str, str, str], dict[str, dict[str, Any]]] = defaultdict(dict)
    for tally in tallies:
        label = f"{tally['backend']}:{tally['how']}" if tally["how"] else tally["backend"]
        cells[tally["operation"], label, tally["dtype"]][tally["aspect"]] = tally
    rows: list[Row] = []
    for (operation, label, dtype), aspects in cells.items():
        verdicts = {aspect: WORDS[tally["verdict"]] for aspect, tally in aspects.items()}
        cases, strong = (sum(tally[key] for tally in aspects.values()) for key in ("cases", "strong"))
        budget = f"{max(tally['budget'] for tally in aspects.values()):.2g}x"
        budget += f"(slack {tally['slack']:g})" if (tally := next(iter(aspects.values())))["slack"] > 1 else ""
        same = next((row for row in rows if row[:2] == (operation, label) and row[3] == verdicts), None)
        if same is None:
            rows.append((operation, label, [SHORT[dtype]], verdicts, cases, strong, [budget]))
        else:
            same[2].append(SHORT[dtype])
            same[6].append(budget)
            rows[rows.index(same)] = (*same[:4], same[4] + cases, same[5] + strong, same[6])
    return sorted(rows, key=lambda row: (order(row[0]), row[1]))


WORDS = {"passed": "passed", "failed": "FAILED", "known failure": "known", "unsupported": "unsupported"}


def order(operation: str) -> int:
    from verify.catalogue import CATALOGUE

    return list(CATALOGUE).index(operation)


def closing(tallies: list[dict[str, Any]]) -> str:
    """``412 cells: 400 passed, 2 failed, 8 known failures, 2 unsupported; 51234 cases, 49876 strong``"""
    count = {word: sum(tally["verdict"] == word for tally in tallies) for word in WORDS}
    words = ", ".join(f"{number} {word}" for word, number in count.items() if number)
    cases, strong = (sum(tally[key] for tally in tallies) for key in ("cases", "strong"))
    return f"{len(tallies)} cells: {words}; {cases} cases, {strong} strong"


def as_json(run: "Verification", tallies: list[dict[str, Any]]) -> dict[str, Any]:
    """The whole run for a machine: options, backends, every tally."""
    backends = [
        {key: getattr(backend, key) for key in ("name", "source", "broken", "missing", "notes", "versions", "device")}
        for backend in run.backends
    ]
    options = {"profile": run.options.profile, "seed": run.options.seed, "cases": run.options.cases}
    return {"options": options, "installed": installed(), "backends": backends, "tallies": tallies}


def matrix(tallies: list[dict[str, Any]]) -> list[str]:
    """The README's matrix, in Markdown: operations by implementations, ``20/20 0.98x`` for columns passed / judged and the worst budget."""
    cells: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for tally in tallies:
        cells[tally["operation"], tally["backend"]].append(tally)
    backends = sorted({backend for _, backend in cells})
    lines = [f"| operation | {' | '.join(backends)} |", "|---" * (len(backends) + 1) + "|"]
    for operation in sorted({operation for operation, _ in cells}, key=order):
        lines.append(f"| `{operation}` | {' | '.join(entry(cells.get((operation, backend), [])) for backend in backends)} |")
    return lines


def entry(tallies: list[dict[str, Any]]) -> str:
    """One entry of the matrix; the implementations that a backend has beside the plain one are named."""
    if not tallies:
        return "-"
    judged = [tally for tally in tallies if tally["verdict"] != "unsupported"]
    passed = sum(tally["verdict"] == "passed" for tally in judged)
    budget = max((tally["budget"] for tally in judged), default=0.0)
    others = sorted({tally["how"] for tally in tallies} - {""})
    return f"{passed}/{len(judged)} {budget:.2g}x" + (f" (also {', '.join(others)})" if others else "")
