"""
Reports that no run has made: as large as wanted, or with hostile words wherever a user's words
may stand.
"""

import json
from typing import Any

import numpy as np

from attnverify.catalogue.operation import CATALOGUE
from attnverify.catalogue.traits import ASPECTS
from attnverify.failures.evidence import Evidence, picture
from attnverify.failures.finding import Finding
from attnverify.failures.record import FailureRecord
from attnverify.inputs.recipe import Recipe
from attnverify.judge.comparison import compare

HOSTILE = (
    "<script>window.broken = 1</script>"
    """<img src=x onerror="window.broken = 2">'"--></style></script>&amp;"""
)
VERDICTS = ("passed", "passed", "passed", "known failure", "unsupported", "failed")


def large(cells: int) -> dict[str, Any]:
    """A report of so many cells: one in six failed, each with a picture."""
    found = [tally(number, f"kernels_{number // 500}") for number in range(cells)]
    failed = [t for t in found if t["verdict"] == "failed"]
    causes = [cause(t) for t in failed[:9]]
    backends = [backend(f"kernels_{number}") for number in range((cells + 499) // 500)]
    return {
        "date": "2026-01-02T03:04:05+00:00",
        "seconds": 61.0,
        "commit": "0123456789abcdef0123456789abcdef01234567",
        "options": {"profile": "quick", "seed": 0, "cases": 20},
        "backends": backends,
        "tallies": found,
        "root_causes": causes,
        "specification": {"softmax": SPECIFICATION},
        "violated": {"softmax_average_of_empty_rows": "softmax, clause 3"},
    }


SPECIFICATION = {
    "function": "attnverify.spec.attention.softmax",
    "page": "operations/softmax.html",
    "sentence": "Weights that sum to one.",
    "clauses": {"1": "The first.", "3": "The third."},
}


def hostile() -> dict[str, Any]:
    """A report in which every word that comes from a user would like to be a script."""
    report = large(60)
    for t in report["tallies"]:
        t |= {
            "backend": HOSTILE,
            "implementation": f"softmax_{HOSTILE}",
            "how": HOSTILE,
            "reason": HOSTILE,
            "kind": HOSTILE,
        }
        for found in t["findings"]:
            found |= {name: HOSTILE for name in ("kind", "headline", "share", "message")}
            found |= {"condition": [HOSTILE], "notes": [HOSTILE]}
            found["cause"] = {"words": HOSTILE, "explanations": []}
            found["offer"] = {"line": HOSTILE, "evidence": HOSTILE}
            found["record"] |= {"words": HOSTILE, "replay": f"attnverify replay '{HOSTILE}'"}
            shown = found["evidence"]["picture"] | {"path": HOSTILE, "axes": [HOSTILE, HOSTILE]}
            argument = {"name": HOSTILE, "kind": HOSTILE, "shape": [], "checksum": HOSTILE}
            found["evidence"] = {
                "picture": shown,
                "drawn": {"recipe": HOSTILE, "picture": shown},
                "inputs": [argument | {"values": HOSTILE}, argument | {"values": ""}],
            }
    words = {
        "name": HOSTILE,
        "source": HOSTILE,
        "notes": [HOSTILE],
        "versions": HOSTILE,
        "device": HOSTILE,
        "commit": HOSTILE,
    }
    report["backends"] = [
        words | {"broken": HOSTILE, "missing": None},
        words | {"broken": None, "missing": HOSTILE},
    ]
    report["root_causes"] = [
        {
            "cause": HOSTILE,
            "backend": HOSTILE,
            "rung": HOSTILE,
            "cells": [HOSTILE],
            "blocked": [HOSTILE],
            "representative": HOSTILE,
        }
    ]
    said = SPECIFICATION | {"function": HOSTILE, "sentence": HOSTILE, "clauses": {"1": HOSTILE}}
    report |= {"specification": {"softmax": said}, "violated": {HOSTILE: HOSTILE}}
    report |= {"date": HOSTILE, "attnverify": HOSTILE, "commit": HOSTILE}
    return report | {"failures": HOSTILE, "installed": HOSTILE, "environment": {HOSTILE: HOSTILE}}


def cause(t: dict[str, Any]) -> dict[str, Any]:
    return {
        "cause": "a plain series",
        "backend": t["backend"],
        "rung": "attention",
        "cells": [name(t)],
        "blocked": [],
        "representative": name(t),
    }


def backend(source: str) -> dict[str, Any]:
    return {
        "name": source,
        "source": source,
        "broken": None,
        "missing": None,
        "notes": [],
        "versions": "numpy 2",
        "device": "cpu",
        "commit": "none: no git repository holds it",
    }


def tally(number: int, source: str) -> dict[str, Any]:
    """One cell; its verdict goes around with its number."""
    operation = list(CATALOGUE)[number // 20 % len(CATALOGUE)]
    dtype, aspect = (
        ("float64", "float32", "float16", "bfloat16")[number // 5 % 4],
        ASPECTS[number % 5],
    )
    verdict = VERDICTS[number * 7 % len(VERDICTS)]
    how = "" if number // 540 == 0 else f"how{number // 540}"
    found: dict[str, Any] = {
        "operation": operation,
        "implementation": operation + (how and f"_{how}"),
        "backend": source,
        "how": how,
    }
    found |= {
        "dtype": dtype,
        "aspect": aspect,
        "verdict": verdict,
        "kind": "",
        "cases": 20,
        "strong": 18,
        "checks": 3,
        "budget": number % 97 / 97,
    }
    found |= {
        "reason": "" if verdict == "passed" else f"because of {number % 7}",
        "findings": [finding(number)] if verdict == "failed" else [],
    }
    return found


def finding(number: int) -> dict[str, Any]:
    found = Finding("wrong number", share="9 of 20 cases", record=RECORD, evidence=evidence(number))
    plain = found.as_dict()
    plain["record"]["replay"] = "attnverify replay 0123456789ab"
    return plain


def evidence(number: int) -> Evidence:
    rng = np.random.default_rng(number)
    expected = rng.standard_normal((2, 24, 24))
    actual = expected + (rng.random(expected.shape) > 0.9)
    comparison = compare(actual, expected, np.full(expected.shape, 1e-6))
    return Evidence(picture("output", comparison, ("B", "N", "M")))


RECORD = FailureRecord(
    "softmax",
    "float32",
    "values",
    json.loads(Recipe("softmax", {"N": 24, "M": 24}, {"family": "normal", "seed": 1}).text),
    "softmax",
    "kernels_0",
)


def name(t: dict[str, Any]) -> str:
    return f"{t['implementation']} {t['dtype']} {t['aspect']}"
