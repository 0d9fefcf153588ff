"""
Calling a user's function: by the specification's names, or by those that the common libraries give
the same arguments. Nothing is ever bound by its position alone.
"""

import ast
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from attnverify.backends.declarations import Declarations
from attnverify.catalogue.operation import Operation

SYNONYMS: dict[str, tuple[str, ...]] = {
    "query": ("q", "Q", "queries", "query_states", "xq"),
    "key": ("k", "K", "keys", "key_states", "xk"),
    "value": ("v", "V", "values", "value_states", "xv"),
    "mask": ("attn_mask", "attention_mask"),
    "visible": ("attn_mask", "attention_mask", "mask"),
    "p": ("dropout_p", "dropout_rate"),
    "score": ("scores", "s", "logits", "input", "x"),
    "d_output": ("grad_output", "d_out", "dout", "do", "dO"),
}
"""What SDPA, flash-attn, xformers, JAX and ONNX call the specification's arguments."""

BIASES = ("attn_bias", "bias")
"""A mask to add, of libraries whose boolean mask has another name or is not there."""

CAUSAL = ("is_causal", "causal")
CAUSAL_MASK = "causal mask"
"""What ARGUMENTS says of a flag that is to be given True where the mask is the causal one."""

SCALES = ("scale", "softmax_scale", "sm_scale")


@dataclass(frozen=True)
class Binding:
    """
    Which parameter of a function is given what.

    given    parameters by the specification's arguments; bias: the parameter of a float mask
    fixed    parameters whose value follows from the operation: is_causal=False
    causal   the parameter that is given True in place of a mask that is the causal one
    scale    the parameter that is given 1/sqrt(D); unused: those that keep their defaults
    """

    given: Mapping[str, str]
    bias: str
    fixed: Mapping[str, Any]
    causal: str
    scale: str
    unused: tuple[str, ...]

    def describe(self) -> str:
        """Describe the mapping in words; "" where it is that of the specification."""
        words = [f"{name}={own}" for own, name in self.given.items() if name != own]
        words += [f"{self.bias}=float mask"] if self.bias else []
        words += [f"{name}={value}" for name, value in self.fixed.items() if name != self.causal]
        words += [f"{self.causal}=True for the causal mask, aligned at the end"] * bool(self.causal)
        words += [f"{self.scale}=1/sqrt(D)"] if self.scale else []
        left = f"; left at their defaults: {', '.join(self.unused)}" if self.unused else ""
        return ", ".join(words) + left if words else ""

    def describe_unjudged(self) -> str:
        """Name the flag whose other value is never given, with the line that has it judged."""
        flags = [n for n, v in self.fixed.items() if v is False and n != self.causal]
        return "".join(
            f"{name}=True is not judged; to have it judged where the mask is causal: "
            f'ARGUMENTS = {{"{name}": "{CAUSAL_MASK}"}}'
            for name in flags
        )


def bind(function: Callable[..., Any], operation: Operation, declared: Declarations) -> Binding:
    """
    Return the binding of a function's parameters. Raises ValueError that names the parameter which
    is known by no name, or the argument which no parameter takes.
    """
    parameters = parameters_of(function, operation)
    named = _named(parameters, operation, declared.arguments)
    taken = set(named.values()) | {n for n, own in declared.arguments.items() if own is None}
    free = {name: p for name, p in parameters.items() if name not in taken and name != "dtype"}
    bias = next((n for n in BIASES if n in free and operation.mask in ("mask", "visible")), "")
    scale = next((n for n in SCALES if n in free and "query" in operation.arguments), "")
    if scale and free[scale].default is None:
        scale = ""  # None is what they all call 1/sqrt(D)
    flags = [n for n in parameters if declared.arguments.get(n) == CAUSAL_MASK]
    fixed = {n: operation.traits.causal for n in (*CAUSAL, *flags) if n in free}
    causal = flags[0] if flags and operation.mask == "mask" else ""
    rest = [name for name in free if name not in (bias, *SCALES, *fixed)]
    for name in rest:
        if free[name].default is inspect.Parameter.empty:
            raise ValueError(
                f"argument {name!r} of {operation.name}: wanted one of "
                f"{', '.join(operation.arguments)} or a name that a common library gives it; "
                f'say what it is given: ARGUMENTS = {{"{name}": "{operation.arguments[0]}"}}'
            )
    for own in operation.arguments:
        if own not in named and operation.requires(own) and not _takes_any_name(function):
            raise ValueError(f"{operation.name}: no argument takes {own}")
    return Binding(named, bias, fixed, causal, scale, tuple(rest))


def _named(
    parameters: Mapping[str, Any], operation: Operation, declared: Mapping[str, str | None]
) -> dict[str, str]:
    """Return the parameter that takes each argument of the specification, where one is known."""
    found: dict[str, str] = {}
    said = {own: name for name, own in declared.items() if own and name in parameters}
    for own in operation.arguments:
        names = [said[own]] if own in said else [own, *SYNONYMS.get(own, ())]
        for name in names:
            if name in parameters and name not in found.values() and declared.get(name, own) == own:
                found[own] = name
                break
    return found


def parameters_of(
    function: Callable[..., Any], operation: Operation
) -> dict[str, inspect.Parameter]:
    """Find the parameters of a function by name; of a builtin those that its docstring names."""
    parameters: Mapping[str, inspect.Parameter]
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # a builtin does not say
        parameters = _documented(function, operation)
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {name: p for name, p in parameters.items() if p.kind not in kinds}


def _documented(function: Any, operation: Operation) -> Mapping[str, inspect.Parameter]:
    """
    Return the signature that begins a docstring: ``softmax(input, dim, *, dtype=None) -> Tensor``.
    """
    name = getattr(function, "__name__", "")
    found = re.match(rf"\s*{re.escape(name)}(\(.*?\))", function.__doc__ or "", re.DOTALL)
    try:
        (made,) = ast.parse(f"def f{found[1] if found else ''}: pass").body
    except SyntaxError:
        raise ValueError(
            f"{operation.name}: the names of its arguments are not known: wrap it in a function "
            f"of your own, def {operation.name}({', '.join(operation.arguments)})"
        ) from None
    assert isinstance(made, ast.FunctionDef)
    return {p.name: p for p in _parameters(made.args)}


def _parameters(arguments: ast.arguments) -> Iterator[inspect.Parameter]:
    """Return the parameters of a signature that was parsed, with their constant defaults."""
    empty = inspect.Parameter.empty
    own = [*arguments.posonlyargs, *arguments.args]
    without = [None] * (len(own) - len(arguments.defaults))
    pairs = [*zip(own, [*without, *arguments.defaults], strict=True)]
    kinds: list[Any] = [inspect.Parameter.POSITIONAL_OR_KEYWORD] * len(own)
    pairs += [*zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    kinds += [inspect.Parameter.KEYWORD_ONLY] * len(arguments.kwonlyargs)
    for (argument, default), kind in zip(pairs, kinds, strict=True):
        value = getattr(default, "value", ...) if default is not None else empty
        yield inspect.Parameter(argument.arg, kind, default=value)


def adapt_signature(
    function: Callable[..., Any], operation: Operation, declared: Declarations | None = None
) -> Callable[..., Any]:
    """
    Return the function as one that takes the specification's arguments by name, and ``dtype`` if it
    knows that keyword. Raises ValueError where its arguments cannot be told.
    """
    declared = declared or Declarations()
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(operation.specification).parameters.items()
    }
    takes_any = _takes_any_name(function)
    if takes_any and _has_names_of(function, operation):
        return function_of_names(function)
    binding, parameters = bind(function, operation, declared), parameters_of(function, operation)

    def own_arguments(**inputs: Any) -> dict[str, Any]:
        """What the function is given, by its own names, heads in front of positions."""
        extra = {"dtype": inputs.pop("dtype")} if "dtype" in inputs else {}
        given = dict(binding.fixed) | extra
        if binding.causal and _is_causal_mask(inputs):
            inputs["mask"], given[binding.causal] = None, True
        if binding.scale:
            given[binding.scale] = inputs["query"].shape[-1] ** -0.5
        for own, value in inputs.items():
            name = _parameter_of(own, value, binding, operation)
            if name:
                given[name] = value
            elif takes_any:
                given[own] = value
            elif not _is_default(value, defaults[own]):
                raise NotImplementedError(f"takes no {own}")
        return given

    exchanged = _exchanged(binding, operation, declared.layout)

    def adapted(**inputs: Any) -> Any:
        given = own_arguments(**inputs).items()
        laid_out = {name: _swapped(x) if name in exchanged else x for name, x in given}
        output = _call(function, laid_out, parameters)
        return _from_layout(output) if "return" in exchanged else output

    adapted.own = function  # type: ignore[attr-defined]
    adapted.own_arguments = own_arguments  # type: ignore[attr-defined]
    adapted.exchanged = exchanged  # type: ignore[attr-defined]
    adapted.places = _by_place_alone(parameters)  # type: ignore[attr-defined]
    adapted.takes_dtype = "dtype" in parameters  # type: ignore[attr-defined]
    adapted.mapping = binding.describe()  # type: ignore[attr-defined]
    adapted.causal = binding.causal  # type: ignore[attr-defined]
    adapted.unjudged = binding.describe_unjudged()  # type: ignore[attr-defined]
    return adapted


def _is_causal_mask(inputs: Mapping[str, Any]) -> bool:
    """Tell whether the mask of a call shows each query its own position and those before it."""
    mask = inputs.get("mask")
    if mask is None or "bool" not in str(mask.dtype):
        return False
    N, M = inputs["query"].shape[-2], inputs["key"].shape[-2]
    rows = [[j <= M - N + i for j in range(M)] for i in range(N)]
    if tuple(mask.shape[-2:]) != (N, M):
        return False
    return all(one == rows for one in mask.reshape(-1, N, M).tolist())


def _takes_any_name(function: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


def _has_names_of(function: Callable[..., Any], operation: Operation) -> bool:
    """Tell whether the parameters that are named are the specification's arguments."""
    return {*parameters_of(function, operation)} <= {*operation.arguments, "dtype"}


def function_of_names(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that takes every name, as one that says whether it knows ``dtype``."""

    def adapted(**inputs: Any) -> Any:
        return function(**inputs)

    adapted.own = function  # type: ignore[attr-defined]
    adapted.takes_dtype = "dtype" in inspect.signature(function).parameters  # type: ignore[attr-defined]
    adapted.own_arguments = dict  # type: ignore[attr-defined]
    return adapted


def _parameter_of(own: str, value: Any, binding: Binding, operation: Operation) -> str:
    """Return the parameter that takes an argument of this value; "" where there is none."""
    if own != operation.mask or value is None or not binding.bias:
        return binding.given.get(own, "")
    is_bool = "bool" in str(getattr(value, "dtype", "bool"))
    return binding.given.get(own, "") if is_bool else binding.bias


def _is_default(value: Any, default: Any) -> bool:
    return value is default or (isinstance(value, float) and value == default)


def _call(
    function: Callable[..., Any],
    given: Mapping[str, Any],
    parameters: Mapping[str, inspect.Parameter],
) -> Any:
    """Call by name, and what has a place alone by its place."""
    places = [name for name in _by_place_alone(parameters) if name in given]
    named = {name: value for name, value in given.items() if name not in places}
    return function(*(given[name] for name in places), **named)


def _by_place_alone(parameters: Mapping[str, inspect.Parameter]) -> list[str]:
    """Name the parameters that cannot be named in a call."""
    only = inspect.Parameter.POSITIONAL_ONLY
    return [name for name, parameter in parameters.items() if parameter.kind is only]


def _exchanged(binding: Binding, operation: Operation, layout: str) -> list[str]:
    """
    Name the parameters, and "return", whose arrays have heads behind positions in this layout.
    """
    if layout != "BNHD":
        return []
    headed = [own for own, axes in operation.axes.items() if axes.split()[:2] == ["B", "H"]]
    names = [binding.given[own] for own in headed if own in binding.given]
    return [*names, *["return"] * operation.is_attention]


def _from_layout(output: Any) -> Any:
    if isinstance(output, (list, tuple)):
        return type(output)(_swapped(x) if len(x.shape) == 4 else x for x in output)
    return _swapped(output)


def _swapped(x: Any) -> Any:
    """Return the array with heads behind positions; what lay in one piece does so again."""
    other = x.swapaxes(1, 2)
    if hasattr(x, "is_contiguous"):
        return other.contiguous() if x.is_contiguous() else other
    flags = getattr(x, "flags", None)
    return other.copy() if flags is not None and flags.c_contiguous else other
