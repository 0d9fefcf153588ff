"""
Shared heads: which head of keys and values each query head read, found in what came out, so that
any rule by which heads are shared is told, also one that nobody has met.
"""

from collections.abc import Callable, Sequence

import numpy as np

from attnverify.diagnosis import sentences as say
from attnverify.diagnosis.cause import Cause, Explanation
from attnverify.diagnosis.whereabouts.outputs import exceeds_bound, output_names
from attnverify.judge.observation import Observation, arrays
from attnverify.reference.oracle import evaluate_spec

HEADS = 1
"""The axis of the heads, of queries, keys and values."""

ERRORS = 4.0
"""So many of a call's largest bounds an answer may err: that of other keys has another bound."""

Rule = Callable[[int, int, int], int]

RULES: dict[str, Rule] = {
    "0": lambda h, H, G: 0,
    "h % G": lambda h, H, G: h % G,
    "h // G": lambda h, H, G: h // G,
    "h": lambda h, H, G: h,
    "G - 1 - h // (H / G)": lambda h, H, G: G - 1 - h // (H // G),
}
"""Rules that are named where they say the same; beyond the last head they stay at it."""


def heads_that_fit(o: Observation) -> list[set[int]]:
    """
    Find which heads of keys and values give what each query head gave, to a few bounds; of a
    gradient, in that by the query.
    """
    H, G = (o.inputs[name].shape[HEADS] for name in ("query", "key"))
    found: list[set[int]] = [set() for _ in range(H)]
    count = 1 if o.case.operation.is_gradient else len(o.actual)
    for g in range(G):
        alone = {name: o.inputs[name].take([g] * G, HEADS) for name in ("key", "value")}
        answers = arrays(evaluate_spec(o.case.operation, o.inputs | alone))
        limits = [ERRORS * np.broadcast_to(x.max(), x.shape) for x in o.bounds if x is not None]
        both = zip(o.actual[:count], answers, limits, strict=False)
        wrong = [np.moveaxis(exceeds_bound(*each), HEADS, 0).reshape(H, -1) for each in both]
        for h in np.flatnonzero(~np.concatenate(wrong, 1).any(1)):
            found[h].add(g)
    return found


def describe_heads(observed: Sequence[Observation]) -> Cause | None:
    """Tell by which rule heads are shared, where every failing call follows another than ours."""
    tables: dict[tuple[int, int], list[set[int]]] = {}
    for o in observed:
        if not o.wrong:
            continue
        if not can_be_read(o):
            return None
        H, G = (o.inputs[name].shape[HEADS] for name in ("query", "key"))
        fits = heads_that_fit(o)
        known = tables.setdefault((H, G), fits)
        tables[H, G] = [one & other for one, other in zip(known, fits, strict=True)]
    read = {sizes: [min(of, default=-1) for of in fits] for sizes, fits in tables.items()}
    if not tables or any(-1 in heads for heads in read.values()) or follow(tables, law):
        return None
    rules = [words for words, rule in RULES.items() if follow(tables, rule)]
    named = rules[0] if len(rules) == 1 else ""  # few calls may fit several
    name = say.HEADS_READ.format(rule=named and f" ({named})")
    H, G = next(s for s in sorted(tables, reverse=True) if not follow({s: tables[s]}, law))
    heads = [rule_at(RULES[named], h, H, G) for h in range(H)] if named else read[H, G]
    wanted = " ".join(str(law(h, H, G)) for h in range(H))
    shown = " ".join(map(str, heads))
    told = say.HEADS_SHOWN.format(name=name, read=shown, wanted=wanted, H=H, G=G)
    return Cause(told, (Explanation.of(name),))


def can_be_read(o: Observation) -> bool:
    """Tell whether the outputs have their shapes and bounds, and a gradient that by the query."""
    shapes = [x.shape for x in o.actual] == [x.shape for x in o.expected]
    by_query = output_names(o)[0] == say.GRADIENT_BY.format(name="query")
    bounded = all(bound is not None for bound in o.bounds)
    return shapes and bounded and (by_query or not o.case.operation.is_gradient)


def law(h: int, H: int, G: int) -> int:
    return h // (H // G)


def rule_at(rule: Rule, h: int, H: int, G: int) -> int:
    return min(rule(h, H, G), G - 1)


def follow(tables: dict[tuple[int, int], list[set[int]]], rule: Rule) -> bool:
    """Tell whether a rule gives each head one that fits."""
    return all(
        rule_at(rule, h, H, G) in of for (H, G), fits in tables.items() for h, of in enumerate(fits)
    )
