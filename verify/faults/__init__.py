"""
Faults: the catalogue's operations with one thing wrong, as public projects shipped it, and controls, which are only unusual.

Each is a NumPy function with the law's parameters. It computes in float64 and rounds its result to the dtype of its inputs, so that
"wide" is what its arithmetic claims; what is wrong with it is said in a few words that a diagnosis can repeat.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from verify.catalogue import CATALOGUE, Operation, parse_name

Function = Callable[..., Any]

CLASSES = ("scale", "softmax", "masks", "causal", "blocks", "layout", "dropout", "shifts", "relative", "memory", "alibi", "additive",
           "backward", "numerics", "state", "side effects")  # fmt: skip


@dataclass(frozen=True)
class Fault:
    """
    One wrong (or, as a control, unusual) implementation.

    name      the operation and what is wrong, as a backend would export it: ``alibi_attention_plain_series``
    kind      one of CLASSES
    words     what is wrong, as a diagnosis says it: "equals the law with ..."
    source    the project and its issue, commit or file, or "this project"
    clause    the clause of the law that it violates
    reveals   the condition on the inputs that shows it
    wrong_in  the dtypes in which it is wrong beyond the rounding that they allow
    precision what its arithmetic claims
    """

    name: str
    kind: str
    words: str
    source: str
    clause: str
    reveals: str
    function: Function
    wrong_in: tuple[str, ...] = ("float64", "float32", "float16", "bfloat16")
    precision: Any = "wide"

    @property
    def operation(self) -> Operation:
        parsed = parse_name(self.name)
        assert parsed is not None, self.name
        return parsed[0]


FAULTS: dict[str, Fault] = {}
CONTROLS: dict[str, Fault] = {}


def fault(
    kind: str, words: str, *, source: str, clause: str, reveals: str, **more: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated function, whose name is the fault's, among the faults."""
    return register(FAULTS, kind=kind, words=words, source=source, clause=clause, reveals=reveals, **more)


def control(kind: str, words: str, **more: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated function among the controls: right, in an unusual way that ``words`` names."""
    return register(
        CONTROLS, **{"source": "this project", "clause": "", "reveals": "", "wrong_in": ()} | {"kind": kind, "words": words} | more
    )


def register(among: dict[str, Fault], **said: Any) -> Callable[[Function], Function]:
    if said["kind"] not in CLASSES:
        raise ValueError(f"kind: wanted one of {', '.join(CLASSES)}, got {said['kind']}")

    def add(function: Function) -> Function:
        name = function.__name__
        if parse_name(name) is None or name in CATALOGUE or name in FAULTS or name in CONTROLS:
            raise ValueError(f"name: wanted <operation>_<what is wrong>, each once, got {name}")
        among[name] = Fault(name=name, function=function, **said)
        return function

    return add
