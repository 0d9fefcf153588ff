"""
Backends: a package, a module or one file by path becomes a list of implementations. No class, no
registry.

What cannot be imported, is empty or names no operation is *broken* with its reason; what cannot run
here is *missing* with its own sentence. Neither is ever silent.
"""

import ast
import difflib
import hashlib
import importlib
import importlib.util
import inspect
import pkgutil
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from attnverify.backends.array_libraries import (
    LIBRARIES,
    Array,
    Library,
    array_library,
    by_autograd,
)
from attnverify.backends.call_adapter import UnknownArgument, adapt_signature, bind
from attnverify.backends.declarations import STRICT, Declarations, read_declarations
from attnverify.backends.machine import UNSEEN, Machine, find_machine, imported_names
from attnverify.backends.source import PROJECT_BACKENDS, Source, parse_source
from attnverify.backends.triton_interpreter import (
    INTERPRETED,
    has_interpreted,
    has_kernels,
    mend_interpreter,
)
from attnverify.catalogue.operation import CATALOGUE, Operation, parse_name
from attnverify.catalogue.outside import answers_of
from attnverify.catalogue.traits import CHAPTERS
from attnverify.device_assignment import chosen_machine, show_device
from attnverify.precision import DTYPES, UNDECLARED, Precision, resolve

BACKEND_FUNCTIONS = ("from_numpy", "to_numpy", "synchronize", "missing")


@dataclass(eq=False)
class Backend:
    """
    What a name or path on the command line turned out to be.

    name     as it is reported; source: as it was given, to load it again; by_name: whether that is
             a module's name
    library  the four functions, its own or an adapter's
    broken   why it cannot be used at all, or None; missing: why it cannot run here, or None;
             missing_package: the one that is not installed, where that is why; line: of its file,
             where that is what cannot be read or compiled
    notes    what its author should know: names that are no operation, no PRECISION declared
    machine  what stands for the GPU that its kernels are written for, where there is none
    sampled  whether shorter profiles judge few cases of it: a column of ours on the machine
    is_compiled_too  whether the same run judges its kernels compiled, on the machine
    interpreted  whether Triton's interpreter executes the kernels of a user's file
    has_kernels  whether a user's file has kernels of Triton
    declared what it says of the dtypes and features that it is judged in
    flushing the dtypes in which its library counts subnormal numbers as 0
    compiled_for  the implementation and dtype whose shapes its library keeps compiled
    left_out  why the values of an implementation are not judged in a dtype, "" where they are
    copy     the same file, loaded once more, whose calls were all as wrong as here
    refused  of each function that cannot be called why
    """

    name: str
    source: str
    by_name: bool = False
    library: Library | None = None
    precision: Any = None
    flushing: tuple[str, ...] = ()
    implementations: list["Implementation"] = field(default_factory=list)
    broken: str | None = None
    line: int = 1
    missing: str | None = None
    missing_package: str | None = None
    notes: list[str] = field(default_factory=list)
    versions: str = ""
    device: str = ""
    deterministic: bool = False
    machine: Machine | None = None
    sampled: bool = False
    is_compiled_too: bool = False
    interpreted: bool = False
    has_kernels: bool = False
    declared: Declarations = STRICT
    compiled_for: tuple[str, str] | None = None
    left_out: dict[tuple[str, str], str] = field(default_factory=dict)
    copy: "Backend | None" = None
    refused: list[str] = field(default_factory=list)


@dataclass(eq=False)
class Implementation:
    """
    One function of a backend: an operation, and how (``""`` for the plain name). ``thorough`` is
    one that no shorter profile judges, ``quick`` one that the default profile judges as the quick
    one does.
    """

    backend: Backend
    operation: Operation
    how: str
    function: Callable[..., Any]
    thorough: bool = False
    quick: bool = False
    precisions: dict[str, Precision] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        return f"{self.operation.name}_{self.how}" if self.how else self.operation.name

    @property
    def label(self) -> str:
        """Who answered: ``torch_impl``, or ``torch_impl:flex``."""
        return f"{self.backend.name}:{self.how}" if self.how else self.backend.name

    @property
    def is_emulated(self) -> bool:
        """
        Whether real calls would take minutes: kernels for a GPU that is not there, those that
        Triton's interpreter executes, and the ways of our own columns that call functions which are
        judged beside them.
        """
        return self.quick or self.backend.interpreted or self.backend.machine is not None

    def precision(self, dtype: str) -> Precision:
        """
        Return the arithmetic that it declares in a dtype; where no float is judged, in the widest.
        """
        dtype = "float64" if dtype == "bool" else dtype
        if dtype not in self.precisions:  # asked for in every case
            backend = self.backend
            flushes = dtype in backend.flushing
            self.precisions[dtype] = resolve(
                backend.precision,
                self.operation.name,
                self.name,
                dtype,
                flushes,
                undeclared_of(self.operation),
            )
        return self.precisions[dtype]


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


def machine_of(path: Path | None) -> Machine | None:
    """What stands for a GPU; None where the file is not there or no Python, as its import says."""
    try:
        return find_machine(path) if path else None
    except (OSError, SyntaxError):
        return None


def place_of_code(place: str, by_name: bool) -> Path | None:
    """
    Where the kernels of a backend are written: a path, or the file of a module; None for our own
    columns, which look for a GPU themselves unless ``--device`` names the PTX machine, and for what
    is no Python.
    """
    if not by_name:
        return Path(place)
    if place in PROJECT_BACKENDS and chosen_machine() is not None:
        place = f"attnverify.{place}"
    elif place.partition(".")[0] in (*PROJECT_BACKENDS, "attnverify"):
        return None
    try:
        found = importlib.util.find_spec(place.partition(":")[0])
    except (ImportError, ValueError):
        return None
    origin = Path(found.origin) if found and found.origin else None
    if origin is None or origin.suffix != ".py":
        return None
    is_own_package = origin.name == "__init__.py" and "site-packages" not in origin.parts
    return origin.parent if is_own_package else origin


IMPORTED_ON: dict[str, Machine] = {}
"""Our own columns that were imported with the machine for a GPU, and which one that was."""


def check_not_imported(column: str, machine: Machine) -> None:
    """A column looks for its GPU as it is imported: what it found before it would keep."""
    if f"attnverify.{column}" in sys.modules and IMPORTED_ON.get(column) != machine:
        raise RuntimeError(f"{column} was imported before --device put the machine in place")
    IMPORTED_ON[column] = machine


def functions_of(asked: Source, modules: list[ModuleType]) -> dict[str, Callable[..., Any]]:
    """Find the functions of the modules by name; where one alone was asked for, that one."""
    if not asked.function:
        return exported_functions(modules)
    found: Any = modules[0]
    for name in asked.function.split("."):
        if not hasattr(found, name):
            close = difflib.get_close_matches(name, exported_functions(modules), n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise NotThere(f"{asked.place} has no {asked.function}{hint}")
        found = getattr(found, name)
    if isinstance(found, type):
        made = f"{asked.name.lower()}_made"
        raise NotThere(
            f"{asked.function} is a class, and an instance of it is judged: write "
            f"{made} = {asked.name}() in the file, then: "
            f"attnverify run {asked.place}:{made}={asked.operation or 'OPERATION'}"
        )
    return {asked.operation or asked.name: found}


class NotThere(Exception):
    """What was asked for by its name is not there, or no Python."""


def reload(implementation: Implementation) -> Implementation | None:
    """
    The same implementation of the same file, loaded anew; None for what is imported by name. One
    copy serves until it is let go: an import may be slow.
    """
    backend = implementation.backend
    if backend.by_name:
        return None
    backend.copy = backend.copy or load(backend.source)
    return next((i for i in backend.copy.implementations if i.name == implementation.name), None)


NOT_COMPILED = "NVRTC does not compile it"


def line_of(error: BaseException) -> int:
    """Find the line that Python cannot read, or NVRTC compile; 1 where neither is why."""
    if isinstance(error, SyntaxError):
        return error.lineno or 1
    place = str(error).partition(NOT_COMPILED)[2].partition(".py(")[2].partition(")")[0]
    return int(place) if place.isdigit() else 1


def describe(error: BaseException) -> str:
    words, place = str(error), ""
    if NOT_COMPILED in words:
        words = "\n".join(words.splitlines()[:2])  # the first error, with its line
    if isinstance(error, SyntaxError):
        words, place = error.msg, f" (line {error.lineno})"  # str() says the line once more
    return f"{type(error).__name__}: {' '.join(words.split())[:300]}{place}"


def from_name(name: str) -> list[ModuleType]:
    """
    Load a module and, for a package, its submodules; the package is asked first whether it can run
    here.
    """
    ours = name.partition(".")[0] in PROJECT_BACKENDS
    if Path(name).is_file():
        raise NotThere(f"{name} is no Python file: wanted one whose name ends in .py")
    package = importlib.import_module(f"attnverify.{name}" if ours else name)
    return [package, *submodules(package)]


PRIVATE = "_attnverify_"
"""What the names begin with under which files are loaded."""


def from_path(path: Path) -> list[ModuleType]:
    """Load a file or a package by path, under a private name that shadows nothing."""
    file = path / "__init__.py" if path.is_dir() else path
    if not file.exists():
        raise NotThere(
            f"{path} is a folder without __init__.py: name one of its files"
            if path.is_dir()
            else f"no file {path}"
        )
    private = f"{PRIVATE}{path.stem}_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]}"
    for loaded in [
        name for name in sys.modules if name == private or name.startswith(f"{private}.")
    ]:
        del sys.modules[loaded]  # loading again is loading afresh
    places = [str(path)] if path.is_dir() else None
    spec = importlib.util.spec_from_file_location(private, file, submodule_search_locations=places)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[private] = module
    if (folder := str(path.resolve().parent)) not in sys.path and uses_neighbours(file):
        sys.path.append(folder)
    spec.loader.exec_module(module)
    return [module, *submodules(module)]


def uses_neighbours(file: Path) -> bool:
    """
    Tell whether a file imports what lies beside it, as Python finds it where the file is run, and
    what is nowhere else: its folder shadows nothing.
    """
    try:
        names = set(imported_names(ast.parse(file.read_bytes()))) - {file.stem}
    except (SyntaxError, ValueError):
        return False
    beside = [n for n in names if (file.parent / f"{n}.py").exists() or (file.parent / n).is_dir()]
    return any(importlib.util.find_spec(name) is None for name in beside)


def submodules(package: ModuleType) -> list[ModuleType]:
    """
    Return the submodules that can hold operations: the chapters and whatever else lies in the
    package.
    """
    if not hasattr(package, "__path__") or (hasattr(package, "missing") and package.missing()):
        return []
    found = [
        name for _, name, _ in pkgutil.iter_modules(package.__path__) if not name.startswith("_")
    ]
    in_order = [
        *(name for name in CHAPTERS if name in found),
        *(name for name in found if name not in CHAPTERS),
    ]
    return [importlib.import_module(f"{package.__name__}.{name}") for name in in_order]


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
        if backend.declared is not STRICT and (
            guess := guess_operation(functions, backend.declared, backend.source)
        ):
            functions = dict.fromkeys(guess[:1], *functions.values())
            backend.notes.append(guess[1])
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
        backend.broken = (
            f"names no operation of the catalogue{describe_names(root, functions, backend.source)}"
        )
        return backend
    if backend.declared is not STRICT:
        take_subnormals(backend)
    return backend


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


def undeclared_of(operation: Operation) -> str:
    """Return the preset by which an operation is judged where a file declares none."""
    return UNDECLARED if operation.outside is None else operation.outside.undeclared


def describe_undeclared(library: str, flushing: tuple[str, ...], names: list[str]) -> str:
    """By what arithmetic a file is judged that declares none."""
    judged = f"judged as {' and '.join(names)}"
    if not flushing:
        return judged
    where = "" if flushing == DTYPES else f" of {', '.join(flushing)}"
    return f"{judged}, with subnormal numbers{where} as 0, as {library} has them here"


HAS_OTHERS = "its functions are"
"""What is said of a module whose functions have names of their own."""


def describe_names(root: ModuleType, functions: dict[str, Callable[..., Any]], source: str) -> str:
    """What a module without an operation has instead."""
    statements = [n for n in ast.walk(parse_module(root)) if isinstance(n, ast.ImportFrom)]
    for name in (alias.asname or alias.name for node in statements for alias in node.names):
        if parse_name(name):
            return (
                f": {name} is imported there, not defined: list it in __all__, or judge it by: "
                f"attnverify run {source}:{name}"
            )
    if functions:
        return f": {HAS_OTHERS} {', '.join(functions)}"
    classes = [n.name for n in ast.walk(parse_module(root)) if isinstance(n, ast.ClassDef)]
    if not classes:
        return ": it has no function"
    return (
        f": it has no function, but classes ({', '.join(classes)}); what can be called is judged "
        f"under the name of an operation, as in softmax = {classes[0]}()"
    )


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


def imported_library(modules: list[ModuleType]) -> str:
    """Return the library whose arrays a backend's modules handle, judged by what they import."""
    layer, seen = modules, {*modules}
    while layer:
        imported = {name for module in layer for name in imported_names(parse_module(module))}
        if library := next((name for name in LIBRARIES if name in imported), ""):
            return library
        layer = [near for module in layer for near in neighbours(module) if near not in seen]
        seen |= {*layer}
    return "numpy"


def neighbours(module: ModuleType) -> list[ModuleType]:
    """List the modules of its folder that a module has its names from: they may do the work."""
    things = vars(module).values()
    names = [getattr(t, "__module__", None) or getattr(t, "__name__", None) for t in things]
    found = [sys.modules[name] for name in names if isinstance(name, str) and name in sys.modules]
    folder = folder_of(module)
    return [one for one in dict.fromkeys(found) if folder and folder_of(one) == folder]


def folder_of(module: ModuleType) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file).parent if file else None


def parse_module(module: ModuleType) -> ast.Module:
    """Parse the syntax of a module; empty for a compiled one, which has no source to read."""
    file = getattr(module, "__file__", None) or ""
    return ast.parse(Path(file).read_bytes() if file.endswith(".py") else "")


def exported_functions(modules: list[ModuleType]) -> dict[str, Callable[..., Any]]:
    """Every function that the modules export and that may be an operation."""
    functions = {}
    for module in modules:
        for name in getattr(module, "__all__", None) or public_functions(module):
            thing = getattr(module, name, None)
            if (
                name.islower()
                and callable(thing)
                and not isinstance(thing, type)
                and not is_device_kernel(thing)
                and name not in BACKEND_FUNCTIONS
            ):
                functions[name] = thing
        functions |= dict(answers_of(module))
    return functions


def is_device_kernel(thing: Any) -> bool:
    """
    Tell whether this is a kernel, which a function launches and nobody calls: of Triton, autotuned
    perhaps, or of CuPy.
    """
    return type(thing).__module__.startswith("triton.") or type(thing).__name__ == "RawKernel"


def implementations(
    backend: Backend, functions: dict[str, Callable[..., Any]]
) -> Iterator[Implementation]:
    """
    Every function whose name begins with an operation; gradients by autograd where none is
    exported.
    """
    for name, function in functions.items():
        parsed = parse_name(name)
        if parsed is None:
            backend.notes += suggest_operation(name)
            continue
        operation, how = parsed
        if inspect.iscoroutinefunction(function):
            raise ValueError(f"{name} is async: wanted a function that returns its output")
        on_device = on_device_of(backend, function, operation)
        try:
            adapted = adapt_signature(on_device, operation, backend.declared)
        except UnknownArgument as error:  # costs this operation alone
            backend.refused.append(f"{name} is not judged: {error}")
            continue
        if mapping := getattr(adapted, "mapping", ""):
            backend.notes.append(f"{name} is called with {mapping}")
        if unjudged := getattr(adapted, "unjudged", ""):
            backend.notes.append(f"{name}: {unjudged}")
        yield Implementation(backend, operation, how, adapted)
        yield from gradient_by_autograd(backend, operation, how, adapted, functions)


def on_device_of(
    backend: Backend, function: Callable[..., Any], operation: Operation
) -> Callable[..., Any]:
    """
    Return a function of torch that may be given no tensor, told the device of the backend where it
    takes one: PyTorch's own default is the CPU.
    """
    without_arrays = operation.takes_dtype or not operation.is_given_arrays
    if not (without_arrays and backend.library is not None and backend.library.name == "torch"):
        return function
    try:
        takes_device = "device" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # a builtin does not say
        return function
    return partial(function, device=device(backend.library)) if takes_device else function


def public_functions(module: ModuleType) -> list[str]:
    """
    Return the functions of a file without ``__all__`` that are its own, or that it gives the name
    of an operation.
    """
    assigned = {
        target.id
        for node in parse_module(module).body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and parse_name(target.id)
    }
    return [
        name
        for name, thing in vars(module).items()
        if name[0] != "_"
        and (getattr(thing, "__module__", None) == module.__name__ or name in assigned)
    ]


def suggest_operation(name: str) -> list[str]:
    """
    A word about a function that is nearly an operation; helpers beside the operations are nobody's
    business.
    """
    close = difflib.get_close_matches(name, CATALOGUE, n=1, cutoff=0.8)
    return [f"{name} is no operation of the catalogue; did you mean {close[0]}?"] if close else []


def gradient_by_autograd(
    backend: Backend, operation: Operation, how: str, function: Any, functions: dict[str, Any]
) -> Iterator[Implementation]:
    grad = operation.gradient
    exported = f"{operation.name}_grad_{how}" if how else f"{operation.name}_grad"
    if grad is not None and exported not in functions and backend.library is not None:
        by_library = by_autograd(function, backend.library.name)
        if by_library is not None:
            by_library.causal = getattr(function, "causal", "")  # type: ignore[attr-defined]
            by_library.forward = function  # type: ignore[attr-defined]
            yield Implementation(backend, grad, how, by_library)


def versions(library: str) -> str:
    module = sys.modules.get(library)
    return f"{library} {getattr(module, '__version__', '?')}"


def device(library: Library) -> str:
    x: Array = library.from_numpy(np.zeros(1), "float32")
    return str(getattr(x, "device", "cpu"))


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


# What the one function of a file is, where its name says nothing

GUESSED = "is taken for"
PLAIN = "scaled_dot_product_attention"
"""What a function of query, key and value is taken for."""


def guess_operation(
    functions: Mapping[str, Callable[..., Any]], declared: Declarations, source: str
) -> tuple[str, str] | None:
    """
    Name the operation that the one function may be, and say so: that whose name its own or the
    file's holds, else the plain attention, else the only one that is called with such arguments.
    None where nothing is plain.
    """
    if len(functions) != 1 or any(map(parse_name, functions)):
        return None
    ((name, function),) = functions.items()
    found = [one for one in CATALOGUE if takes_arguments(function, one, declared)]
    named = [one for one in found if one in f"{name} {parse_source(source).name}"]
    plain = [one for one in found if one == PLAIN]
    for chosen in (named, plain, found):
        if len(chosen) == 1:
            place = source if parse_source(source).function else f"{source}:{name}"
            return chosen[0], (
                f"{name} {GUESSED} {chosen[0]}, by its arguments; if it is another: "
                f"attnverify run {place}=OPERATION"
            )
    return None


def takes_arguments(function: Callable[..., Any], operation: str, declared: Declarations) -> bool:
    """Tell whether a function can be called with the arguments of an operation."""
    try:
        return bool(bind(function, CATALOGUE[operation], declared).given)
    except (UnknownArgument, ValueError):
        return False
