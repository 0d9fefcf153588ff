"""
What Triton makes of a function, worked out once for the types of its arguments.

Most of what an interpreted operation costs is Triton's front end: it checks types, promotes them,
unwraps constants and broadcasts, until a few calls of its builder are left. Those depend on types
and constants alone. So later calls with the same ones replay the recorded calls of the builder, on
the new arrays.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import triton.language.core as core
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter
from triton.runtime.interpreter import TensorHandle

__all__ = ["builder", "operation", "recorded", "tied_to_data"]

BUILDER = interpreter.interpreter_builder
IMPURE = ("create_get_program_id", "create_get_num_programs")
"""Calls that take no array, and yet do not give the same one each time."""


class Recording(NamedTuple):
    """
    Calls of the builder, by name, each with the places of its arguments.

    The places are: the arrays that are given, the constants, the results of the calls in turn.
    ``results`` are the places of what the function gives, with their types; ``single`` says that it
    gives one thing, no tuple.
    """

    constants: list[Any]
    calls: list[tuple[str, list[int]]]
    results: list[tuple[int, Any]]
    single: bool

    def repeat(self, given: list[TensorHandle]) -> Any:
        places = given + self.constants
        for name, arguments in self.calls:
            places.append(getattr(BUILDER, name)(*[places[place] for place in arguments]))
        found = [core.tensor(places[place], type) for place, type in self.results]
        return tuple(found) if not self.single else found[0] if found else None


class Recorder:
    """
    The builder, with a record of what it is asked for: arrays made of constants alone are
    constants.
    """

    def __init__(self, given: list[TensorHandle]) -> None:
        self.given = given
        self.known = {id(handle): handle for handle in given}
        self.made: list[tuple[str, tuple[Any, ...], Any]] = []
        self.tied = False

    def __getattr__(self, name: str) -> Any:
        member = getattr(BUILDER, name)
        return (
            (lambda *args: self.call(name, member, args)) if name.startswith("create_") else member
        )

    def call(self, name: str, member: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        result = member(*args)
        if name in IMPURE or any(id(x) in self.known for x in args):
            self.made.append((name, args, object() if result is None else result))
            self.known[id(self.made[-1][2])] = self.made[-1][2]
        return result

    def recording(self, result: Any) -> Recording:
        """The record, of a function that has come to this result."""
        results = list(tensors(result))
        used = [x for _, args, _ in self.made for x in args] + [x.handle for x in results]
        constants = [x for x in used if id(x) not in self.known]
        places: dict[int, int] = {}
        for place, x in enumerate([*self.given, *constants, *(x for _, _, x in self.made)]):
            places.setdefault(id(x), place)
        calls = [(name, [places[id(x)] for x in args]) for name, args, _ in self.made]
        return Recording(
            constants,
            calls,
            [(places[id(x.handle)], x.type) for x in results],
            not isinstance(result, tuple),
        )


RECORDINGS: dict[tuple[Any, ...], Recording | None] = {}
recorders: list[Recorder] = []


def builder() -> Any:
    """What makes the arrays: Triton's, and while a function is worked out the recorder."""
    return recorders[-1] if recorders else BUILDER


def tied_to_data(handle: TensorHandle) -> None:
    """
    Say that the function which is running depends on what is in this array: if it is no constant,
    no recording can repeat it.
    """
    if recorders and id(handle) in recorders[-1].known:
        recorders[-1].tied = True


def recorded(function: Callable[..., Any]) -> Callable[..., Any]:
    """
    The function, worked out once for the types of its arguments; what it calls is a part of it.
    """

    def run(*args: Any, **options: Any) -> Any:
        if recorders:
            return function(*args, **options)
        given = [x.handle for x in tensors((*args, *options.values()))]
        key = function, *map(kind, args), *options, *map(kind, options.values()), alike(given)
        recording = RECORDINGS.get(key)
        return (
            record(function, key, given, args, options)
            if recording is None
            else recording.repeat(given)
        )

    return run


def record(
    function: Callable[..., Any], key: Any, given: list[TensorHandle], args: Any, options: Any
) -> Any:
    if key in RECORDINGS:  # tied to data
        return function(*args, **options)
    recorders.append(Recorder(given))
    try:
        result = function(*args, **options)
        RECORDINGS[key] = None if recorders[-1].tied else recorders[-1].recording(result)
    finally:
        recorders.pop()
    return result


def operation(member: Callable[..., Any]) -> Callable[..., Any]:
    """An operation of Triton's language, as the interpreter runs it."""

    def run(*args: Any, **options: Any) -> Any:
        return member(*args, **{**options, "_semantic": TritonSemantic(builder())})

    return recorded(run)


def tensors(x: Any) -> Iterator[core.tensor]:
    if isinstance(x, core.tensor):
        yield x
    elif isinstance(x, (tuple, list, core.tuple)):
        for y in x:
            yield from tensors(y)


def alike(given: list[TensorHandle]) -> tuple[int, ...]:
    """
    Which arrays are given twice: what was worked out for two places of one array is wrong for two
    arrays.
    """
    first: dict[int, int] = {}
    return tuple(first.setdefault(id(x), place) for place, x in enumerate(given))


def kind(x: Any) -> str:
    """What a function has to know of an argument: the type of an array, else the value."""
    if isinstance(x, core.tensor):
        return str(x.type.name)
    return f"({','.join(map(kind, x))})" if isinstance(x, (tuple, list, core.tuple)) else repr(x)
