"""
What modules hold, by name: whether a function of others, or of the judge itself, still is what it
was, and how it is put back.
"""

import ctypes
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, lru_cache, partial
from itertools import chain
from types import FunctionType, ModuleType
from typing import Any

Values = dict[str, Any]
MISSING = object()


class ModuleContents(dict[str, Values]):
    """
    Objects by module and name. They are compared by identity, since the ``__eq__`` of other
    people's objects is not trusted; names that are added are ignored.
    """

    def differs(self, now: "ModuleContents") -> list[str]:
        return [
            name
            for place, then in self.items()
            if self.identities[place] != identities(now.get(place, {}))
            for name in find_replaced(place, then, now.get(place, {}))
        ]

    @cached_property
    def identities(self) -> dict[str, bytes]:
        """Those of each module, which a copy keeps: it is compared after every call."""
        return {place: identities(things) for place, things in self.items()}

    def copy(self) -> "ModuleContents":
        """As they are now: what :func:`functions` reads are the modules' own dictionaries."""
        return ModuleContents({place: things.copy() for place, things in self.items()})


def find_replaced(place: str, then: Values, now: Values) -> Iterator[str]:
    """Find the names that no longer mean the same: of others the public ones, classes apart."""
    ours = place.startswith(OURS)
    for name, thing in then.items():
        is_shown = name[0] != "_" and (place == "torch.cuda" or not isinstance(thing, type))
        if now.get(name, MISSING) is not thing and (ours or is_shown):
            yield f"{place}.{name}".lstrip(".")


def identities(things: Values) -> bytes:
    """
    Read which objects these are, in their order: the pointers that a tuple of them is made of.
    Thousands are copied and compared at once, where ``is`` takes a step for each.
    """
    return pointers(tuple(things.values()))


def pointers(whole: tuple[Any, ...]) -> bytes:
    return ctypes.string_at(id(whole) + tuple.__basicsize__, POINTER * len(whole))


POINTER = ctypes.sizeof(ctypes.c_void_p)


WELL_KNOWN = (
    "builtins",
    "sys",
    "os",
    "math",
    "random",
    "warnings",
    "numpy",
    "numpy.random",
    "torch",
    "torch.nn.functional",
    "cupy",
    "jax",
)


def well_known_modules() -> ModuleContents:
    return ModuleContents(
        {"": {name: sys.modules[name] for name in WELL_KNOWN if name in sys.modules}}
    )


def functions(*places: str) -> ModuleContents:
    """Read the contents of modules that everybody uses, not copied."""
    loaded = ((place, sys.modules.get(place)) for place in places)
    return ModuleContents(
        {place: vars(module) for place, module in loaded if isinstance(module, ModuleType)}
    )


def set_functions(then: ModuleContents) -> None:
    for path in then.differs(functions(*then)):
        place, _, name = path.rpartition(".")
        setattr(sys.modules[place], name, then[place][name])


def set_methods(owner: type, then: Values) -> None:
    """Give a class its methods again, and take those that it had not."""
    for name in vars(owner).keys() - then.keys():
        delattr(owner, name)
    for name, thing in then.items():
        if vars(owner).get(name, MISSING) is not thing:
            setattr(owner, name, thing)


OF_TORCH = ("torch", "torch.nn.functional", "torch.cuda")
"""Modules of PyTorch that functions are called of."""


def planted(prefix: str) -> list[str]:
    """
    Name what stands in PyTorch and comes from a module whose name begins with ``prefix``: a file
    may be the first to import what it changes.
    """
    loaded = [(place, sys.modules[place]) for place in OF_TORCH if place in sys.modules]
    loaded += [("torch.Tensor", things.Tensor) for _, things in loaded if hasattr(things, "Tensor")]
    return [
        f"{place}.{name}"
        for place, holder in loaded
        for name, thing in list(vars(holder).items())
        if str(getattr(thing, "__module__", "")).startswith(prefix)
    ]


OURS = "attnverify."
JUDGE = (
    "judge.case",
    "judge.comparison",
    "judge.invoke",
    "judge.judging",
    "verdicts.columns",
    "verdicts.one_case",
    "verdicts.search",
    "isolation.second_look",
    "verdicts.tally",
    "reference.oracle",
    "isolation.worker",
    "bench.measure.clock",
    "bench.measure.race",
    "bench.measure.validation",
)
"""Modules that decide a verdict or take a time, whichever of them are loaded."""

Put = Callable[[str, Any], object]


def judge_modules() -> tuple[ModuleType, ...]:
    loaded = (sys.modules.get(OURS + name) for name in JUDGE)
    return tuple(module for module in loaded if isinstance(module, ModuleType))


@lru_cache(maxsize=4)
def judge_places(modules: tuple[ModuleType, ...]) -> dict[str, tuple[Mapping[str, Any], Put]]:
    """
    Where the judge keeps what it calls, and how a thing is put back there: its modules, their
    classes, their tables.
    """
    found: dict[str, tuple[Mapping[str, Any], Put]] = {}
    for module in modules:
        place, things = module.__name__, vars(module)
        found[place] = things, partial(setattr, module)
        for name, thing in things.items():
            if isinstance(thing, type) and thing.__module__ == place:
                found[f"{place}.{name}"] = vars(thing), partial(setattr, thing)
            elif isinstance(thing, dict) and name.isupper():
                found[f"{place}.{name}"] = thing, thing.__setitem__
    return found


@lru_cache(maxsize=4)
def judge_code(modules: tuple[ModuleType, ...]) -> dict[str, FunctionType]:
    """The functions of the judge: each has code, which can be exchanged inside it."""
    return {
        f"{module.__name__}.{name}": thing
        for module in modules
        for name, thing in vars(module).items()
        if isinstance(thing, FunctionType) and thing.__module__ == module.__name__
    }


CODE = OURS + "the code of "


class Kept(ModuleContents):
    """What the judge calls, as it was read once: it is compared after every call."""

    def differs(self, now: ModuleContents) -> list[str]:
        return [] if now is self else super().differs(now)

    def copy(self) -> ModuleContents:
        return self


LAST: list[tuple[bytes, Kept]] = []
"""What was read last, by its pointers; what they lead to lives as long as it stands here."""


def functions_of_judge() -> ModuleContents:
    """Read what decides a verdict or takes a time: the same object while nothing has changed."""
    modules = judge_modules()
    places, code = judge_places(modules), judge_code(modules)
    things = chain.from_iterable(holder.values() for holder, _ in places.values())
    whole = (*things, *[function.__code__ for function in code.values()])
    read = pointers(whole)
    if not LAST or LAST[0][0] != read:
        kept = Kept({place: dict(holder) for place, (holder, _) in places.items()})
        kept[CODE] = {name: function.__code__ for name, function in code.items()}
        LAST[:] = [(read, kept)]
    return LAST[0][1]


def set_functions_of_judge(then: ModuleContents) -> None:
    modules, code = judge_modules(), then[CODE]
    for place, (things, put) in judge_places(modules).items():
        for name, thing in then.get(place, {}).items():
            if things.get(name, MISSING) is not thing:
                put(name, thing)
    for name, function in judge_code(modules).items():
        if (was := code.get(name, function.__code__)) is not function.__code__:
            function.__code__ = was
