"""
Calling a user's function: by the specification's names, or by those that the common libraries give
the same arguments. Nothing is ever bound by its position alone.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from attnverify.backends.calls.arguments import Binding, _takes_any_name, bind, parameters_of
from attnverify.backends.calls.headless import by_layout, has_heads
from attnverify.backends.calls.layer_modules import as_function, is_module
from attnverify.backends.calls.option_forms import from_shapes, is_one_count, left_count, own_form
from attnverify.backends.calls.terms import (
    concerning,
    exchange_axes,
    is_causal_call,
    translate_given,
    translate_returned,
    turn_mask,
)
from attnverify.backends.declarations import TAKES_NO, Declarations
from attnverify.catalogue.operation import Operation, result_axes_of


def adapt_signature(
    function: Callable[..., Any], operation: Operation, declared: Declarations | None = None
) -> Callable[..., Any]:
    """
    Return the function as one that takes the specification's arguments by name, and ``dtype`` if it
    knows that keyword. Raises ValueError where its arguments cannot be told.
    """
    declared, own = declared or Declarations(), function
    if is_module(function):
        function = as_function(function, operation, declared.arguments)
    defaults = {name: parameter.default for name, parameter in operation.parameters.items()}
    takes_any = _takes_any_name(function)
    if takes_any and _has_names_of(function, operation) and not says_more(declared, operation):
        return function_of_names(function, operation)
    binding, parameters = bind(function, operation, declared), parameters_of(function, operation)
    window = binding.given.get("window", "") if operation.outside is None else ""
    counted = bool(window) and is_one_count(parameters[window])
    has_usual_scale = "scale" in binding.given and not operation.requires("scale")

    def own_arguments(**inputs: Any) -> dict[str, Any]:
        """What the function is given, by its own names, heads in front of positions."""
        extra = {"dtype": inputs.pop("dtype")} if "dtype" in inputs else {}
        given = dict(binding.fixed) | extra
        masked = bool(binding.causal) and inputs.get("mask") is not None
        own_sense = inputs if "MASK" not in said else turn_mask("", operation, inputs)
        if masked and is_causal_call(operation, own_sense, binding.align):
            inputs["mask"], given[binding.causal] = None, True
        if binding.scale:
            given[binding.scale] = inputs["query"].shape[-1] ** -0.5
        given |= from_shapes(inputs, binding.forms)
        for own, value in inputs.items():
            name = _parameter_of(own, value, binding, operation)
            if own == "window" and counted:
                given[name] = left_count(value, parameters[name].default)
                continue
            form = own_form(own, value, name, parameters, defaults[own])
            if form is not None:
                given |= form
            elif name:
                given[name] = value
            elif takes_any:
                given[own] = value
            elif not _is_default(value, defaults[own]):
                raise NotImplementedError(f"{TAKES_NO}{own}")
        if counted and window not in given:
            given[window] = left_count(None, parameters[window].default)
        if inputs.get("scale") is None and has_usual_scale:
            given |= _usual_scale(binding.given["scale"], inputs, parameters)
        for name, default in binding.needed.items():
            if default is None and name not in given:
                raise NotImplementedError(f"needs {name}")
            given.setdefault(name, default)
        return given

    said = concerning(declared.terms, operation)
    exchanged = _exchanged(binding, operation, said)
    arrays = operation.axes | operation.integer_axes
    axes = {binding.given.get(own, own): its for own, its in arrays.items() if exchanged}
    others = {name: value for name, value in said.items() if name != "LAYOUT"}
    alone = declared.features.get(operation.second_result) is False

    def once(**inputs: Any) -> Any:
        given = own_arguments(**translate_given(others, operation, inputs)).items()
        laid_out = {n: exchange_axes(x, axes.get(n, ""), width=True) for n, x in given}
        output = beside_none(_call(function, laid_out, parameters), operation)
        return translate_returned(said, operation, inputs, output)

    def adapted(**inputs: Any) -> Any:
        return by_layout(said.get("LAYOUT"), once, operation, inputs)

    adapted.own = own  # type: ignore[attr-defined]
    adapted.own_arguments = own_arguments  # type: ignore[attr-defined]
    adapted.exchanged = exchanged  # type: ignore[attr-defined]
    unwritten = exchanged and "lses" in operation.arguments
    fewer = said.get("LAYOUT") in ("BND", "ND")
    adapted.is_translated = bool(others or alone or unwritten or fewer)  # type: ignore[attr-defined]
    adapted.places = _by_place_alone(parameters)  # type: ignore[attr-defined]
    adapted.takes_dtype = "dtype" in parameters  # type: ignore[attr-defined]
    adapted.mapping = binding.describe()  # type: ignore[attr-defined]
    adapted.causal = "CAUSAL" if "CAUSAL" in said else binding.causal  # type: ignore[attr-defined]
    by_flag = "start" if binding.causal and binding.align == "start" else True
    adapted.aligned = said.get("CAUSAL", by_flag)  # type: ignore[attr-defined]
    adapted.unjudged = binding.unjudged  # type: ignore[attr-defined]
    adapted.unjudged_words = binding.describe_unjudged()  # type: ignore[attr-defined]
    return adapted


def _usual_scale(
    name: str, inputs: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter]
) -> dict[str, Any]:
    """1/sqrt(D) for a parameter whose default says nothing of it."""
    return {} if parameters[name].default is None else {name: inputs["query"].shape[-1] ** -0.5}


def says_more(declared: Declarations, operation: Operation) -> bool:
    """Tell whether a file says of an operation how its calls or results are to be translated."""
    alone = declared.features.get(operation.second_result) is False
    return alone or bool(concerning(declared.terms, operation))


def _has_names_of(function: Callable[..., Any], operation: Operation) -> bool:
    """Tell whether the parameters that are named are the specification's arguments."""
    return {*parameters_of(function, operation)} <= {*operation.arguments, "dtype"}


def beside_none(output: Any, operation: Operation) -> Any:
    """Return an output that came alone, where the operation has a second result, with none."""
    lacks = bool(operation.second_result) and not isinstance(output, (list, tuple))
    return (output, None) if lacks else output


def function_of_names(function: Callable[..., Any], operation: Operation) -> Callable[..., Any]:
    """Return a function that takes every name, as one that says whether it knows ``dtype``."""

    def adapted(**inputs: Any) -> Any:
        return beside_none(function(**inputs), operation)

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


def _exchanged(binding: Binding, operation: Operation, said: Mapping[str, Any]) -> list[str]:
    """
    Name the parameters, and "return", whose arrays have heads behind positions in this layout.
    """
    if said.get("LAYOUT") != "BNHD":
        return []
    given = operation.axes | operation.integer_axes
    headed = [own for own, axes in given.items() if has_heads(axes, width=True)]
    names = [binding.given.get(own, own) for own in headed]
    arrays = {name: axes for name, axes in operation.axes.items() if not name.startswith("d_")}
    results = arrays.values() if operation.is_gradient else result_axes_of(operation, {})
    return [*names, *["return"] * any(has_heads(axes, width=True) for axes in results)]
