"""Which verdicts are as the table expects, and which reasons."""

import re
from collections.abc import Mapping
from typing import Any

from tests.outside.implementations.table import TABLE


def grade(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """
    How many verdicts are as expected, of how many; of the wrong ones that are expected to be wrong
    and are, how many first causes match the reason; and the names of the others.
    """
    surprises = [name for name, row in rows.items() if row["verdict"] != TABLE[name].verdict]
    red = [name for name in rows if TABLE[name].reason and name not in surprises]
    others = [name for name in red if not re.search(TABLE[name].reason, first(rows[name]))]
    return {
        "judged": len(rows),
        "not_judged": [name for name in TABLE if name not in rows],
        "verdicts_as_expected": len(rows) - len(surprises),
        "other_verdicts": surprises,
        "reasons_expected": sum(bool(TABLE[name].reason) for name in rows),
        "reasons_right": len(red) - len(others),
        "other_reasons": others,
    }


def first(row: Mapping[str, Any]) -> str:
    """The cause that stands first in the answer."""
    return str(next(iter(row["causes"]), ""))
