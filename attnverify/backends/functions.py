"""
The functions of a backend's modules, and which operation each of them is: by its name, or, of a
file's only one, by its arguments.
"""

import ast
import difflib
import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

from attnverify.backends.array_libraries import Array, Library, by_autograd
from attnverify.backends.calls.arguments import CAUSAL, Binding, UnknownArgument, bind
from attnverify.backends.calls.call_adapter import adapt_signature
from attnverify.backends.calls.layer_modules import as_function, in_small_letters, is_module
from attnverify.backends.calls.terms import may_be_causal
from attnverify.backends.declarations import Declarations
from attnverify.backends.implementation import Backend, Implementation
from attnverify.backends.modules import NotThere, parse_module
from attnverify.backends.source import Source, parse_source
from attnverify.catalogue.operation import CATALOGUE, Operation, parse_name
from attnverify.catalogue.outside import answers_of
from attnverify.catalogue.pytrees import leaves
from attnverify.field_names import IN_THE_FIELD

BACKEND_FUNCTIONS = ("from_numpy", "to_numpy", "synchronize", "missing")


def functions_of(asked: Source, modules: list[ModuleType]) -> dict[str, Callable[..., Any]]:
    """Find the functions of the modules by name; where one alone was asked for, that one."""
    if not asked.function:
        return exported_functions(modules)
    if asked.operation and parse_name(asked.operation) is None:
        near = "".join(suggest_operation(asked.operation)) or f"{asked.operation}{NO_OPERATION}"
        raise NotThere(f"{near}; attnverify list names them")
    found: Any = modules[0]
    for name in asked.function.split("."):
        if not hasattr(found, name):
            close = difflib.get_close_matches(name, exported_functions(modules), n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise NotThere(f"{asked.place} has no {asked.function}{hint}")
        found = getattr(found, name)
    if isinstance(found, type) and not is_module(found):
        made = f"{asked.name.lower()}_made"
        raise NotThere(
            f"{asked.function} is a class, and an instance of it is judged: write "
            f"{made} = {asked.name}() in the file, then: "
            f"attnverify run {asked.place}:{made}={asked.operation or 'OPERATION'}"
        )
    return {asked.operation or asked.name: found}


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
    layers = [name for name in classes if is_module(getattr(root, name, None))]
    given = f"multi_head_self_attention = {layers[-1]}" if layers else f"softmax = {classes[0]}()"
    return (
        f": it has no function, but classes ({', '.join(classes)}); what can be called is judged "
        f"under the name of an operation, as in {given}"
    )


def exported_functions(modules: list[ModuleType]) -> dict[str, Callable[..., Any]]:
    """Every function that the modules export and that may be an operation."""
    functions = {}
    for module in modules:
        for name in getattr(module, "__all__", None) or public_functions(module):
            thing = getattr(module, name, None)
            if (
                name.islower()
                and callable(thing)
                and (not isinstance(thing, type) or is_module(thing))
                and not is_device_kernel(thing)
                and name not in BACKEND_FUNCTIONS
            ):
                functions[name] = thing
        functions |= dict(answers_of(module))
    return functions or only_layer(modules[0])


def only_layer(module: ModuleType) -> dict[str, Callable[..., Any]]:
    """Find the one class of a file without functions that is a module of torch."""
    own = [name for name in public_functions(module) if is_module(getattr(module, name))]
    return {own[0]: getattr(module, own[0])} if len(own) == 1 else {}


def is_device_kernel(thing: Any) -> bool:
    """
    Tell whether this is a kernel, which a function launches and nobody calls: of Triton, autotuned
    perhaps, or of CuPy.
    """
    return type(thing).__module__.startswith("triton.") or type(thing).__name__ == "RawKernel"


def refused_of(backend: Backend, operations: tuple[str, ...]) -> list[str]:
    """
    Say which functions of a backend are not judged, and why, of the operations that are asked for;
    of all where none is.
    """
    refused = getattr(backend, "refused", ())
    return [words for words in refused if not operations or words.startswith(operations)]


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
        if unjudged := getattr(adapted, "unjudged", []):
            backend.notes.append(f"{name}: {getattr(adapted, 'unjudged_words', '')}")
            backend.unjudged.setdefault(operation.name, []).extend(unjudged)
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


NO_OPERATION = " is no operation of the catalogue"


def suggest_operation(name: str) -> list[str]:
    """
    A word about a function that is nearly an operation; helpers beside the operations are nobody's
    business.
    """
    close = difflib.get_close_matches(name, CATALOGUE, n=1, cutoff=0.8)
    return [f"{name}{NO_OPERATION}; did you mean {close[0]}?"] if close else []


def gradient_by_autograd(
    backend: Backend, operation: Operation, how: str, function: Any, functions: dict[str, Any]
) -> Iterator[Implementation]:
    grad = operation.gradient
    exported = f"{operation.name}_grad_{how}" if how else f"{operation.name}_grad"
    if grad is not None and exported not in functions and backend.library is not None:
        by_library = by_autograd(function, backend.library.name)
        if by_library is not None:
            for name in ("causal", "aligned"):
                setattr(by_library, name, getattr(function, name, ""))
            by_library.forward = function  # type: ignore[attr-defined]
            yield Implementation(backend, grad, how, by_library)


def device(library: Library) -> str:
    x: Array = library.from_numpy(np.zeros(1), "float32")
    return str(getattr(x, "device", "cpu"))


GUESSED = "is taken for"


PLAIN = "scaled_dot_product_attention"
"""What a function of query, key and value is taken for."""
SHARED = "grouped_attention"
"""The same where several heads of queries share one of keys."""


def guess_operation(
    functions: Mapping[str, Callable[..., Any]], backend: Backend
) -> tuple[str, Callable[..., Any], str, dict[str, Any]] | None:
    """
    Name the operation that the one function of a file may be that takes arguments of one and is no
    helper of another, and say so: that whose name, or the field's name for it, its own or the
    file's holds, else the plain attention, or that of shared heads where it answers fewer heads of
    keys; else the only one that is called with such arguments. What the names declare besides comes
    last: that it is causal. None where nothing is plain.
    """
    declared, source = backend.declared, backend.source
    if any(map(parse_name, functions)):
        return None
    taken = {name: bindings_of(functions[name], declared) for name in names_uncalled(functions)}
    able = [name for name in taken if taken[name]]
    if len(able) != 1:
        return None
    name, found = able[0], taken[able[0]]
    words = in_small_letters(f"_{name}_{parse_source(source).name}_")
    means = {one for word, one in IN_THE_FIELD.items() if f"_{word}_" in words} - {PLAIN}
    named = [one for one in found if one in words or one in means]
    whole = [one for one, binding in found.items() if None not in binding.needed.values()]
    plain = [one for one in whole if one == PLAIN]
    for chosen in (named, plain, whole):
        if len(chosen) == 1:
            may_share = chosen[0] == PLAIN and SHARED in found
            shares = shares_heads(functions[name], backend) if may_share else False
            one = SHARED if shares else chosen[0]
            place = source if parse_source(source).function else f"{source}:{name}"
            is_causal = "_causal_" in words and lacks_causality(one, found[one])
            by = "by its arguments" + ", and as it takes fewer heads of keys" * bool(shares)
            by += ", and for causal, by its name or its file's" * is_causal
            told = (
                f"{name} {GUESSED} {one}, {by}; if it is another: attnverify run {place}=OPERATION"
            )
            if shares is None:
                told += f"; as {SHARED} where keys have fewer heads than queries: not judged here"
            return one, functions[name], told, {"CAUSAL": True} if is_causal else {}
    return None


def shares_heads(function: Callable[..., Any], backend: Backend) -> bool | None:
    """
    Tell whether an attention answers four heads of queries and two of keys, where it answers as
    many; None where it does not, or has kernels, which read memory by their own addresses.
    """
    if backend.has_kernels or backend.machine:
        return None
    own = CATALOGUE[PLAIN]
    made: Any = backend.library and backend.library.from_numpy
    ask = adapt_signature(function, own, backend.declared)
    options = {name: x.default for name, x in own.parameters.items() if x.default is not x.empty}

    def answers(heads: int, N: int, M: int, D: int) -> bool:
        sizes = {"query": (1, 4, N, D), "key": (1, heads, M, D), "value": (1, heads, M, D)}
        try:
            arrays = {name: made(np.ones(size), "float32") for name, size in sizes.items()}
            return bool(next(leaves(ask(**options | arrays))).shape == sizes["query"])
        except Exception:  # who knows of no such heads may do anything
            return False

    asked = next((size for size in ASKED if answers(4, *size)), None)
    return None if asked is None else answers(2, *asked)


ASKED = ((3, 5, 8), (64, 128, 64))
"""Sizes N, M and D that no other order of the axes allows; kernels may be written for the last."""


def lacks_causality(operation: str, binding: Binding) -> bool:
    """Tell whether calls may be causal and the function has no argument that would say so."""
    own = CATALOGUE[operation]
    asked = own.mask in binding.given or binding.bias or {*CAUSAL} & {*binding.fixed}
    return may_be_causal(own) and not asked and "causal" not in binding.given


def names_uncalled(functions: Mapping[str, Callable[..., Any]]) -> list[str]:
    """List the functions of a file that no other one of them names: the others are helpers."""
    named = {
        own: getattr(getattr(function, "__code__", None), "co_names", ())
        for own, function in functions.items()
    }
    return [
        name
        for name in functions
        if not any(name in names for own, names in named.items() if own != name)
    ]


def bindings_of(function: Callable[..., Any], declared: Declarations) -> dict[str, Binding]:
    """Find the operations by whose arguments a function can be called, and how each is."""
    bindings = {one: bound_arguments(function, one, declared) for one in CATALOGUE}
    return {one: binding for one, binding in bindings.items() if binding and binding.given}


def bound_arguments(
    function: Callable[..., Any], operation: str, declared: Declarations
) -> Binding | None:
    """Return how a function is called with the arguments of an operation; None where it cannot."""
    own = CATALOGUE[operation]
    try:
        return bind(
            as_function(function, own, declared.arguments) if is_module(function) else function,
            own,
            declared,
        )
    except ValueError:
        return None


def name_beyond(functions: Mapping[str, Callable[..., Any]], declared: Declarations) -> str:
    """
    Name the arguments of a file's one function that keep it from being the plain attention, ""
    where it lacks some besides.
    """
    beyond: list[str] = []
    for function in functions.values() if len(functions) == 1 else ():
        try:
            bind(function, CATALOGUE[PLAIN], declared)
        except UnknownArgument as error:
            beyond = error.beyond
        except ValueError:
            pass
    return f" ({PLAIN} has no {' and no '.join(beyond)})" if beyond else ""


def why_no_layer(module: Any, declared: Declarations) -> str:
    """
    Say which names of a class keep it from being an attention of one sequence, or of several: ""
    where it is none of torch's.
    """
    if not is_module(module):
        return ""
    takes = [*inspect.signature(module.forward).parameters.values()][1:]
    needed = [one for one in takes if one.default is one.empty]
    operation = "multi_head_self_attention" if len(needed) == 1 else "multi_head_attention"
    own = CATALOGUE[operation]
    try:
        bind(as_function(module, own, declared.arguments), own, declared)
    except ValueError as error:
        name = getattr(module, "__name__", type(module).__name__)
        return f"{TAKEN_FOR_LAYER}{operation}{AS_MUCH_AS}{name}, and not judged: {error}"
    return ""


TAKEN_FOR_LAYER, AS_MUCH_AS = "taken for ", ", which takes as much as "
"""How the reason begins why a class of torch that has a name of its own cannot be called."""
