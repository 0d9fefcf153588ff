"""
Calling a user's function: by the specification's names where it has them, by position where its
author chose other names.
"""

import inspect
from collections.abc import Callable
from typing import Any

from attnverify.catalogue.operation import Operation


def adapt_signature(function: Callable[..., Any], operation: Operation) -> Callable[..., Any]:
    """
    The function as one that takes the specification's arguments by name, and ``dtype`` if it knows
    that keyword.
    """
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(operation.specification).parameters.items()
    }
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # a builtin does not say
        return lambda **inputs: function(*inputs.values())
    open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    by_name = open_ended or set(defaults) <= set(parameters)
    places = [
        p
        for p in parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.name != "dtype"
    ]

    def adapted(**inputs: Any) -> Any:
        extra = {"dtype": inputs.pop("dtype")} if "dtype" in inputs else {}
        if by_name:
            return function(**inputs, **extra)
        given = list(inputs.items())
        for name, value in given[len(places) :]:
            if value is not defaults[name] and not (
                isinstance(value, float) and value == defaults[name]
            ):
                raise NotImplementedError(f"takes no {name}")
        return function(*(value for _, value in given[: len(places)]), **extra)

    adapted.takes_dtype = "dtype" in parameters  # type: ignore[attr-defined]
    return adapted
