"""
Faults: the catalogue's operations with one thing wrong, as public projects shipped it. What is only
unusual, and right, are the controls of the tests.

Each is a NumPy function with the specification's parameters. It holds its arguments to the
specification, computes in float64 and rounds its result to the dtype of its inputs, so that "wide"
is what its arithmetic claims; what is wrong with it is said in a few words that a diagnosis can
repeat.
"""

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from attnverify.catalogue.operation import CATALOGUE, Operation, parse_name
from attnverify.conventions.convention import Convention, conventions
from attnverify.faults.adapter import with_spec_contract
from attnverify.reference import attention, gradients, layers

Function = Callable[..., Any]

FAULT_KINDS = ("scale", "softmax", "masks", "causal", "blocks", "layout", "dropout", "shifts",
"relative", "memory", "alibi", "additive",
           "layers", "backward", "numerics", "state", "side effects", "refusals")  # fmt: skip

ALL = ("float64", "float32", "float16", "bfloat16")
OURS = "this project"


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


def read_faults() -> dict[str, Fault]:
    """All faults, once the packages beside this module are imported."""
    importlib.import_module("attnverify.faults.conventional")
    for _, name, is_folder in pkgutil.iter_modules([str(Path(__file__).parent)]):
        package = importlib.import_module(f"attnverify.faults.{name}") if is_folder else None
        for _, module, _ in pkgutil.iter_modules(package.__path__ if package else []):
            importlib.import_module(f"attnverify.faults.{name}.{module}")
    return FAULTS


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


def add_faults(kind: str, rows: Iterable[tuple[Any, ...]]) -> None:
    """
    Register faults that take one expression each: rows of name, words, source, clause, reveals, and
    what is wrong (stages of the reference that are replaced, or the function), with what
    :func:`fault` takes besides.
    """
    for name, words, source, clause, reveals, wrong, *more in rows:
        said = {"source": source, "clause": clause, "reveals": reveals}
        fault(kind, words, **said, **(more[0] if more else {}))(named(name, wrong))


def add_conventional(kind: str, rows: Iterable[tuple[Any, ...]]) -> None:
    """Register conventions as faults: rows of name, question, answer, source, clause, reveals."""
    for name, question, answer, source, clause, reveals, *more in rows:
        parsed = parse_name(name)
        assert parsed is not None, name
        (other,) = (
            c for c in conventions(parsed[0].name) if (c.question, c.answer) == (question, answer)
        )
        said = {"source": source, "clause": clause, "reveals": reveals}
        wrong = named(name, partial(answer_by, other, parsed[0]))
        fault(kind, other.words, **said, **(more[0] if more else {}))(wrong)


def answer_by(convention: Convention, operation: Operation, **given: Any) -> Any:
    return convention(operation, given, "float64")


def named(name: str, what: Function | dict[str, Any]) -> Function:
    """Make the function of a fault: of stages, the reference with these in place of its own."""
    if isinstance(what, dict):
        parsed = parse_name(name)
        assert parsed is not None, name
        what = partial(reference_of(parsed[0].name), **what)

    def wrong(*given: Any, **named: Any) -> Any:
        return what(*given, **named)

    wrong.__name__ = wrong.__qualname__ = name
    return wrong


def reference_of(operation: str) -> Function:
    """The operation in stages."""
    modules = (attention, gradients, layers)
    return next(vars(module)[operation] for module in modules if operation in vars(module))


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
        if parsed is None or name in CATALOGUE or name in FAULTS or name in among:
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
