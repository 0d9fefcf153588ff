"""
Faults: the catalogue's operations with one thing wrong, as public projects shipped it, and
controls, which are only unusual.

Each is a NumPy function with the specification's parameters. It holds its arguments to the
specification, computes in float64 and rounds its result to the dtype of its inputs, so that "wide"
is what its arithmetic claims; what is wrong with it is said in a few words that a diagnosis can
repeat.
"""

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attnverify.catalogue.operation import CATALOGUE, Operation, parse_name
from attnverify.faults.adapter import with_spec_contract

Function = Callable[..., Any]

FAULT_KINDS = ("scale", "softmax", "masks", "causal", "blocks", "layout", "dropout", "shifts",
"relative", "memory", "alibi", "additive",
           "layers", "backward", "numerics", "state", "side effects", "refusals")  # fmt: skip

ALL = ("float64", "float32", "float16", "bfloat16")


@dataclass(frozen=True)
class Fault:
    """
    One wrong (or, as a control, unusual) implementation.

    name      the operation and what is wrong, as a backend would export it:
              ``alibi_attention_plain_series``
    kind      one of CLASSES
    words     what is wrong, as a diagnosis says it: "equals the specification with ..."
    source    the project and its issue, commit or file, or "this project"
    clause    the clause of the specification that it violates
    reveals   the condition on the inputs that shows it
    wrong_in  the dtypes in which it is wrong beyond the rounding that they allow
    precision what its arithmetic claims
    make      the function anew, with nothing remembered of earlier calls
    """

    name: str
    kind: str
    words: str
    source: str
    clause: str
    reveals: str
    function: Function
    wrong_in: tuple[str, ...] = ALL
    precision: Any = "wide"
    make: Callable[[], Function] | None = None

    @property
    def operation(self) -> Operation:
        parsed = parse_name(self.name)
        assert parsed is not None, self.name
        return parsed[0]

    def fresh(self) -> Function:
        """The function as it is before its first call."""
        return self.make() if self.make else self.function


FAULTS: dict[str, Fault] = {}
CONTROLS: dict[str, Fault] = {}


def read_faults() -> tuple[dict[str, Fault], dict[str, Fault]]:
    """All faults and all controls, once the packages beside this module are imported."""
    for name in ("arithmetic", "contract", "controls", "positions", "real_sizes", "visibility"):
        package = importlib.import_module(f"attnverify.faults.{name}")
        for _, module, _ in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{package.__name__}.{module}")
    return FAULTS, CONTROLS


def fault(
    kind: str, words: str, *, source: str, clause: str, reveals: str, **more: Any
) -> Callable[[Function], Function]:
    """
    Register the decorated function, whose name is the fault's, among the faults.

    It gets the specification's arguments by name, widened to float64. With ``raw`` it gets the
    arrays as they came, with ``unchecked`` also those that the specification refuses, and with
    ``stateful`` a keyword ``memory``, a dictionary that outlives the calls.
    """
    return register(
        FAULTS, kind=kind, words=words, source=source, clause=clause, reveals=reveals, **more
    )


def control(kind: str, words: str, **more: Any) -> Callable[[Function], Function]:
    """
    Register the decorated function among the controls: right, in an unusual way that ``words``
    names.
    """
    return register(
        CONTROLS,
        **{"source": "this project", "clause": "", "reveals": "", "wrong_in": ()}
        | {"kind": kind, "words": words}
        | more,
    )


def register(
    among: dict[str, Fault],
    raw: bool = False,
    unchecked: bool = False,
    stateful: bool = False,
    **said: Any,
) -> Callable[[Function], Function]:
    if said["kind"] not in FAULT_KINDS:
        raise ValueError(f"kind: wanted one of {', '.join(FAULT_KINDS)}, got {said['kind']}")

    def add(function: Function) -> Function:
        name = function.__name__
        parsed = parse_name(name)
        if parsed is None or name in CATALOGUE or name in FAULTS or name in CONTROLS:
            raise ValueError(f"name: wanted <operation>_<what is wrong>, each once, got {name}")
        operation = parsed[0]

        def make() -> Function:
            return with_spec_contract(
                function,
                operation,
                raw=raw or unchecked,
                checked=not unchecked,
                memory={} if stateful else None,
            )

        among[name] = Fault(name=name, function=make(), make=make, **said)
        return among[name].function

    return add
