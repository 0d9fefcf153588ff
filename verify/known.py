"""
Known failures: one line each in a file of the stranger's own, with a reason. They are strict: an unexpected pass is an error.

    # implementation  dtype    aspect                              : reason                             [replay <hash>]
    alibi_attention   float16  values                              : slopes are rounded before the product
    softmax_*         *        refusals                            : raises TypeError, PyTorch's convention
    alibi_attention   *        values when a row sees no key       : gives NaN there                    [replay 1f0c2d3e4a5b]
    alibi_attention   *        values when N > M and mask.form=bool: ...

Without ``when`` a line speaks of the whole cell. With it, it speaks of a region of the cases: whatever fails there is known,
and the rest stays judged. Conditions are joined by "and": a sentence (``a row sees no key``, see SENTENCES); a comparison of sizes
and numbers (``N > M``, ``H != 8``); or a field of the recipe (``poison=finite``, ``mask.form=lowest``, ``options.align=end``).
"""

import operator
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray

from verify.catalogue import ASPECTS, CATALOGUE
from verify.dtypes import largest
from verify.recipes import Recipe, expand
from verify.visibility import seen

LINE = re.compile(rf"(?P<name>\S+)\s+(?P<dtype>\S+)\s+(?P<aspect>{'|'.join(ASPECTS)})(?:\s+when\s+(?P<when>[^:]+?))?\s*:\s*(?P<reason>.+)")
COMPARISON = re.compile(r"([A-Z]|\d+)\s*(<=|>=|==|!=|<|>)\s*([A-Z]|\d+)")
FIELD = re.compile(r"([\w.]+)=(\S+)")
OPERATORS = {"<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge, "==": operator.eq, "!=": operator.ne}

Condition = Callable[[Recipe, str], bool]


@dataclass(frozen=True)
class Known:
    """One line of the file."""

    name: str
    dtype: str
    aspect: str
    when: str | None
    reason: str
    source: str

    def speaks_of(self, implementation: str, dtype: str, aspect: str) -> bool:
        return fnmatchcase(implementation, self.name) and fnmatchcase(dtype, self.dtype) and self.aspect == aspect

    @cached_property
    def conditions(self) -> list[Condition]:
        return [condition(text.strip()) for text in re.split(r"\band\b", self.when or "")] if self.when else []

    def covers(self, recipe: Recipe, dtype: str) -> bool:
        """Whether the case lies in the line's region; never, for a line that speaks of the whole cell."""
        return bool(self.when) and all(holds(recipe, dtype) for holds in self.conditions)


def condition(text: str) -> Condition:
    """One condition of a region."""
    if text in SENTENCES:
        return SENTENCES[text]
    if match := COMPARISON.fullmatch(text):
        left, sign, right = match.groups()
        return lambda recipe, dtype: sizes_compare(recipe, left, OPERATORS[sign], right)
    if match := FIELD.fullmatch(text):
        path, wanted = match.groups()
        return lambda recipe, dtype: str(field_of(recipe, path)) == wanted
    sentences = ", ".join(map(repr, SENTENCES))
    raise ValueError(f"when: wanted {sentences}, a comparison like 'N > M' or a field like 'poison=finite', got {text!r}")


def visible_pairs(recipe: Recipe, dtype: str) -> ndarray:
    """Which pairs see each other; one pair that does, for operations without pairs."""
    visible = seen(CATALOGUE[recipe.operation], expand(recipe, dtype))
    return np.ones((1, 1), bool) if visible is None else visible


def blind_row(recipe: Recipe, dtype: str) -> bool:
    return not bool(visible_pairs(recipe, dtype).any(axis=-1).all())


def unseen_key(recipe: Recipe, dtype: str) -> bool:
    return not bool(visible_pairs(recipe, dtype).any(axis=-2).all())


def gap(recipe: Recipe, dtype: str) -> bool:
    visible = visible_pairs(recipe, dtype)
    before, after = np.logical_or.accumulate(visible, -1), np.logical_or.accumulate(visible[..., ::-1], -1)[..., ::-1]
    return bool((before & after & ~visible).any())


def poisoned(recipe: Recipe, dtype: str) -> bool:
    arrays = [x for name, x in expand(recipe, dtype).items() if isinstance(x, ndarray) and name not in ("mask", "attn_mask")]
    return not all(np.isfinite(x).all() for x in arrays)


def hidden_overflow(recipe: Recipe, dtype: str) -> bool:
    inputs, hidden = expand(recipe, dtype), ~visible_pairs(recipe, dtype)
    query, key = inputs.get("query"), inputs.get("key")
    if query is None or key is None or query.shape[-1] != key.shape[-1] or dtype == "bool":
        return False
    with np.errstate(all="ignore"):
        return bool((hidden & (np.abs(query @ key.swapaxes(-1, -2)) > largest(dtype))).any())


SENTENCES: dict[str, Condition] = {
    "a row sees no key": blind_row,
    "a key is hidden from every row": unseen_key,
    "a hidden key stands between visible ones": gap,
    "a hidden slot holds NaN or infinity": poisoned,
    "a hidden score overflows": hidden_overflow,
}
"""What a case shows, in words; where a key is hidden from every row of its head, poison may stand in it."""


def sizes_compare(recipe: Recipe, left: str, compare: Callable[[int, int], bool], right: str) -> bool:
    numbers = [int(side) if side.isdigit() else recipe.sizes.get(side) for side in (left, right)]
    return None not in numbers and compare(*numbers)  # type: ignore[arg-type]


def field_of(recipe: Recipe, path: str) -> Any:
    place: Any = asdict(recipe)
    for name in path.split("."):
        place = place.get(name) if isinstance(place, dict) else None
    return place


def read_known(path: Path) -> list[Known]:
    """The lines of a file; a line that cannot be read is an error, not a comment."""
    found = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            found.append(read_line(line.strip(), f"{path.name}:{number}"))
    return found


def read_line(line: str, source: str) -> Known:
    match = LINE.fullmatch(line)
    if match is None:
        wanted = f"'<implementation> <dtype> <aspect> [when <conditions>] : <reason>' with an aspect of {', '.join(ASPECTS)}"
        raise ValueError(f"{source}: wanted {wanted}, got {line!r}")
    known = Known(**match.groupdict(), source=source)
    try:
        _ = known.conditions
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None
    return known


def beside(source: str) -> Path | None:
    """The known failures that lie beside a backend's file, ``my_kernels.known-failures.txt``."""
    path = Path(source)
    file = path.with_name(f"{path.stem}.known-failures.txt")
    return file if (path.suffix == ".py" or path.is_dir()) and file.exists() else None
