"""
Backends: a package, a module or one file by path becomes a list of implementations. No class, no
registry.

What cannot be imported, is empty or names no operation is *broken* with its reason; what cannot run
here is *missing* with its own sentence. Neither is ever silent.
"""

import inspect
import sys
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from attnverify.backends.array_libraries import Library, array_library
from attnverify.backends.declarations import STRICT, read_declarations
from attnverify.backends.functions import (
    BACKEND_FUNCTIONS,
    describe_names,
    device,
    functions_of,
    guess_operation,
    implementations,
    name_beyond,
    why_no_layer,
)
from attnverify.backends.implementation import Backend, Implementation, undeclared_of
from attnverify.backends.machine import UNSEEN, Machine
from attnverify.backends.modules import (
    NotThere,
    check_not_imported,
    describe,
    from_name,
    from_path,
    imported_library,
    line_of,
    machine_of,
    place_of_code,
)
from attnverify.backends.source import PROJECT_BACKENDS, parse_source
from attnverify.backends.triton_interpreter import (
    INTERPRETED,
    has_interpreted,
    has_kernels,
    mend_interpreter,
)
from attnverify.catalogue.operation import CATALOGUE
from attnverify.device_assignment import show_device
from attnverify.precision import DTYPES, resolve


def load(source: str) -> Backend:
    """
    Load a backend by dotted name, by entry point of the group ``attnverify.backends``, or by path,
    or one function of any of these (:mod:`attnverify.backends.source`); never raises.
    """
    asked = parse_source(source)
    place = asked.place
    named = {point.name: point.value for point in entry_points(group="attnverify.backends")}
    by_name = place in PROJECT_BACKENDS or place in named or not asked.is_path
    backend = Backend(asked.name, source, by_name, sampled=bool(asked.target))
    if asked.target:
        show_device(asked.target)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what a user's import warns of is not our business
            backend.machine = machine_of(place_of_code(named.get(place, place), by_name))
            if backend.machine is not None and place in PROJECT_BACKENDS:
                check_not_imported(place, backend.machine)
            with backend.machine.entered() if backend.machine else nullcontext():
                modules = from_name(named.get(place, place)) if by_name else from_path(Path(place))
            functions = functions_of(asked, modules)
    except KeyboardInterrupt:
        raise
    except NotThere as error:
        backend.broken = str(error)
        return backend
    except BaseException as error:  # a user's file may do anything while it is imported
        if (
            isinstance(error, ModuleNotFoundError)
            and error.name
            and not named.get(place, place).startswith(error.name)
        ):
            backend.missing_package = error.name.partition(".")[0]
            backend.missing = f"the package {backend.missing_package} is not installed"
        else:
            backend.broken = f"cannot be imported: {describe(error)}"
            backend.line = line_of(error)
        return backend
    return populate(backend, modules, functions)


def reload(implementation: Implementation) -> Implementation | None:
    """
    The same implementation of the same file, loaded anew; None for what is imported by name. One
    copy serves until it is let go: an import may be slow.
    """
    backend = implementation.backend
    if backend.by_name:
        return None
    backend.copy = backend.copy or load(backend.source)
    backend.copy.alone = backend.alone
    return next((i for i in backend.copy.implementations if i.name == implementation.name), None)


def populate(
    backend: Backend, modules: list[ModuleType], functions: dict[str, Callable[..., Any]]
) -> Backend:
    """What the modules say of themselves and the operations that the functions name."""
    root = modules[0]
    backend.precision = getattr(root, "PRECISION", None)
    backend.deterministic = bool(getattr(root, "DETERMINISTIC", False))
    try:
        if not parse_source(backend.source).is_column:
            backend.declared = read_declarations(root)
            backend.has_kernels = has_kernels(modules)
            if mend_interpreter() and has_interpreted(modules):
                backend.interpreted = True
                backend.notes.append(INTERPRETED)
        backend.library = library_of(root, modules, backend.machine)
        backend.missing = backend.library.missing()
        if backend.sampled and backend.machine is not None:
            backend.missing = backend.missing or backend.machine.lacks()
        if backend.missing:
            return backend
        resolve_all(backend)
        if backend.declared is not STRICT and (guess := guess_operation(functions, backend)):
            functions = {guess[0]: guess[1]}
            backend.notes.append(guess[2])
            terms = {**guess[3], **backend.declared.terms}
            backend.declared = replace(backend.declared, terms=terms)
        backend.implementations = list(implementations(backend, functions))
        if backend.sampled:
            backend.implementations = [i for i in backend.implementations if i.how in KERNELS]
        elif parse_source(backend.source).is_column:
            judge_quickly(backend, getattr(root, "QUICK", ()))
        backend.versions, backend.device = versions(backend.library.name), device(backend.library)
        if backend.machine is not None:
            run_on(backend, backend.machine, modules)
    except ImportError as error:
        backend.missing = describe(error)
        return backend
    except Exception as error:
        backend.broken, backend.line = describe(error), line_of(error)
        return backend
    if backend.refused and not backend.implementations:
        backend.broken = "; ".join(backend.refused)
        return backend
    backend.notes += backend.refused
    if not backend.implementations:
        backend.broken = why_nothing(backend, root, functions)
        return backend
    if backend.declared is not STRICT:
        take_subnormals(backend)
    return backend


def why_nothing(
    backend: Backend, root: ModuleType, functions: dict[str, Callable[..., Any]]
) -> str:
    """Say why nothing of a file is judged: of a class alone, what keeps it from being a layer."""
    (alone,) = functions.values() if len(functions) == 1 else (None,)
    if words := why_no_layer(alone, backend.declared):
        backend.notes.clear()  # that its name is no operation's
        return words
    beyond = name_beyond(functions, backend.declared)
    return (
        f"names no operation of the catalogue{beyond}"
        f"{describe_names(root, functions, backend.source)}"
    )


def judge_quickly(backend: Backend, ways: tuple[str, ...]) -> None:
    """Mark the ways that a column names: the default profile judges them as the quick one does."""
    for implementation in backend.implementations:
        implementation.quick = implementation.how in ways


KERNELS = ("triton", "cuda")
"""How the implementations of our columns are called that are kernels of their own."""


def take_subnormals(backend: Backend) -> None:
    """
    Let subnormal numbers count as the library of a user's file has them. That is no arithmetic of
    the file's: a preset that it names is no stricter there than nothing named.
    """
    assert backend.library is not None
    backend.flushing = backend.library.flushes_subnormals()
    if backend.precision is None:
        names = {undeclared_of(one.operation): None for one in backend.implementations}
        judged = describe_undeclared(backend.library.name, backend.flushing, [*names])
        backend.notes.append(f"PRECISION is not declared: {judged}")


def describe_undeclared(library: str, flushing: tuple[str, ...], names: list[str]) -> str:
    """By what arithmetic a file is judged that declares none."""
    judged = "judged as " + " and ".join(name + MEANS.get(name, "") for name in names)
    if not flushing:
        return judged
    where = "" if flushing == DTYPES else f" of {', '.join(flushing)}"
    return f"{judged}{FLUSHED}{where} as 0, as {library} has them here"


MEANS = {"stepwise": " (the result of each step may be stored in the dtype)"}
FLUSHED = ", with subnormal numbers"


def notes_in(backend: Backend, dtypes: tuple[str, ...]) -> list[str]:
    """List the notes on a backend that concern a run in these dtypes, in all if none is named."""
    if not dtypes or {*dtypes} & {*backend.flushing}:
        return backend.notes
    return [note.partition(FLUSHED)[0] for note in backend.notes]


def run_on(backend: Backend, machine: Machine, modules: list[ModuleType]) -> None:
    """
    Return the implementations as they run on the machine, and once more for each further
    configuration of autotuned kernels; those between the first and the last are for the thorough
    profile.
    """
    backend.device = machine.name
    backend.notes.append(f"the machine does not see {UNSEEN}")
    found = list(backend.implementations)
    for implementation in found:
        function = implementation.function
        implementation.function = machine.runs(function)
        for name, other in machine.variants(modules).items():
            how = f"{implementation.how}_{name}" if implementation.how else name
            thorough, runs = other.tuning != "last", other.runs(function)
            backend.implementations.append(
                replace(implementation, how=how, function=runs, thorough=thorough, precisions={})
            )


def resolve_all(backend: Backend) -> None:
    """A PRECISION that cannot be read is the whole backend's fault, and is told at once."""
    for operation in CATALOGUE:
        resolve(backend.precision, operation, operation, "float32")


def library_of(root: ModuleType, modules: list[ModuleType], machine: Machine | None) -> Library:
    """
    Return the four functions of the backend itself, completed by the adapter of the library that it
    uses.
    """
    own = {name: getattr(root, name) for name in BACKEND_FUNCTIONS if hasattr(root, name)}
    name = getattr(root, "ARRAYS", None) or imported_library(modules)
    if machine is not None:  # they may ask for a GPU
        own = {four: machine.runs(function) for four, function in own.items()}
    if len(own) == len(BACKEND_FUNCTIONS):
        library = Library(name, **own)
    else:
        library = replace(machine.adapter(name) if machine else array_library(name), **own)
    return machine.forgetting(library) if machine else library


def versions(library: str) -> str:
    module = sys.modules.get(library)
    return f"{library} {getattr(module, '__version__', '?')}"


def implementation_of_function(
    backend: Backend, function: Callable[..., Any], operation: str, library: str
) -> None:
    """
    Make a function, and its gradient by autograd, the implementations of a backend, on what stands
    for a GPU where its module needs one and there is none.
    """
    module = inspect.getmodule(function)
    file = getattr(module, "__file__", None) or ""
    is_ours = (getattr(module, "__name__", "")).startswith("attnverify.")
    backend.machine = machine_of(Path(file)) if file.endswith(".py") and not is_ours else None
    machine = backend.machine
    backend.library = machine.adapter(library) if machine else array_library(library)
    backend.flushing = backend.library.flushes_subnormals()
    resolve_all(backend)
    backend.implementations = list(implementations(backend, {operation: function}))
    if machine is not None:
        run_on(backend, machine, [module] if module else [])


def by_path(source: str) -> bool:
    asked = parse_source(source)
    return asked.is_path and not asked.is_column
