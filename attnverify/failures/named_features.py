"""What a case must have to show a mistake, by the words of the mistake."""

from collections.abc import Callable, Sequence
from functools import partial

from attnverify.diagnosis.cause import Cause
from attnverify.inputs.conditions import Condition, parse_condition
from attnverify.judge.case import Case

Holds = Callable[[Case], bool]

FEATURES = {
    "no padding mask is given": "no padding mask is given",
    "no mask is given": "no mask is given",
    "last tile": "",
    "causal mask": "",
    "dropout": "dropout is given",
    "kept weights": "dropout is given",
    "keep mask": "dropout is given",
    "padding": "a padding mask is given",
    "float mask": "a float mask is given",
    "see no key": "a row sees no key",
    "boolean mask": "mask.form=bool",
    "a mask of which": "mask.form=bool",
    "hidden": "a pair is hidden",
    "mask": "a mask is given",
}
"""Words of a mistake, the first that stand in it, and the condition they name; "" for none."""


def feature_of(mistake: str) -> Condition | None:
    """Find the condition that the words of a mistake name."""
    named = next((text for words, text in FEATURES.items() if words in mistake), "")
    return parse_condition(named) if named else None


def showing(cause: Cause | None, case: Case, failing: Sequence[Case]) -> list[Holds]:
    """
    List what a case must hold to show a cause, where this one does not, though others that fail do:
    all that the cause names, of several mistakes that each explain it the first; what all together
    explain is shown by no smaller sizes than these.
    """
    told = cause.explanations if cause else ()
    told = told if cause and cause.together else told[:1]
    named = [feature for one in told if (feature := feature_of(one.words))]
    if all(holds(case) for holds in named):
        return []
    must: list[Holds] = [
        *named,
        *([partial(is_as_large, than=case)] if cause and cause.together else []),
    ]
    return must if any(all(holds(one) for holds in must) for one in failing) else [*named]


def is_as_large(case: Case, than: Case) -> bool:
    """Tell whether a case has every size of another at least."""
    return all(case.recipe.sizes[letter] >= size for letter, size in than.recipe.sizes.items())
