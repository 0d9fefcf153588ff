"""What the annotations of the specification say of axes and domains."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from attnverify.spec.domains import Choices, Integers, Refused


@dataclass(frozen=True)
class Domain:
    """
    What an option may be: ``choices``, or an array of ``integers`` of these ``axes`` (or several
    such arrays), which is ``required`` or may be left out; and what else is ``refused``.
    """

    choices: tuple[Any, ...] = ()
    refused: tuple[Any, ...] = ()
    integers: Integers | None = None
    axes: tuple[str, ...] = ()
    required: bool = False


def is_word(domain: Domain) -> bool:
    """Tell whether an option is always one word of a few."""
    return bool(domain.choices) and all(isinstance(each, str) for each in domain.choices)


def at_least_float32(dtype: str) -> str:
    return "float32" if dtype in ("float16", "bfloat16") else dtype


def domain_of(annotation: Any) -> Domain | None:
    """Read what stands beside the type of an option; None where nothing does."""
    beside = annotation.__metadata__ if get_origin(annotation) is Annotated else ()
    found = {type(each): each for each in beside}
    if not found:
        return None
    choices, refused = (getattr(found.get(kind), "values", ()) for kind in (Choices, Refused))
    axes = tuple(part.dim_str for part in nested_array_types(without_domain(annotation)))
    integers = found.get(Integers)
    required = integers is not None and type(None) not in get_args(without_domain(annotation))
    return Domain(choices, refused, integers, axes, required)


def single_parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """List the parameters of a function; those of a record of options one by one, by name alone."""
    found = []
    for each in inspect.signature(function).parameters.values():
        if each.kind is not each.VAR_KEYWORD:
            found.append(each)
            continue
        (record,) = get_args(each.annotation)
        for name, annotation in get_type_hints(record, include_extras=True).items():
            domain = domain_of(annotation)
            default = domain.choices[0] if domain and domain.choices else None
            found.append(
                inspect.Parameter(name, each.KEYWORD_ONLY, default=default, annotation=annotation)
            )
    return found


def without_domain(annotation: Any) -> Any:
    """The type of an option, without what it may be."""
    return annotation.__origin__ if get_origin(annotation) is Annotated else annotation


def nested_array_types(annotation: Any) -> list[Any]:
    """List the array types of an annotation, however deep they stand."""
    if hasattr(annotation, "dim_str"):
        return [annotation]
    return [found for part in get_args(annotation) for found in nested_array_types(part)]


def array_types(annotation: Any) -> list[Any]:
    """List the array types of an annotation, also inside a list and ``... | None``."""
    if get_origin(annotation) is Annotated:
        return nested_array_types(without_domain(annotation))
    return [part for part in (annotation, *get_args(annotation)) if hasattr(part, "dim_str")]


def float_axes(annotation: Any) -> str | None:
    """
    Read the axes of ``Float[ndarray, "B H N D"]``, also inside ``... | None``; None for masks and
    for anything else.
    """
    parts = array_types(annotation)
    if len(parts) != 1 or "float64" not in parts[0].dtypes:
        return None
    return "... N M" if parts[0].dim_str == "..." else str(parts[0].dim_str)
