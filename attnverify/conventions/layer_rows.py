"""
Conventions of whole layers: the reference with other arguments. A scale of 1 is a query projection
multiplied by sqrt(D).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from attnverify.conventions.references import reference_of

Row = tuple[str, str, str, Callable[..., Any]]
Options = dict[str, Any]
"""What a call is given, by its name."""


def opposite(mask: Any) -> Any:
    return ~mask if mask is not None and mask.dtype == bool else mask


@dataclass(frozen=True, eq=False)
class WithArguments:
    """A function with other arguments, each made from all that are given."""

    function: Callable[..., Any]
    new: dict[str, Callable[[dict[str, Any]], Any]]

    def __call__(self, **inputs: Any) -> Any:
        return self.over(self.function, inputs)

    def over(self, function: Callable[..., Any], inputs: dict[str, Any]) -> Any:
        """What another function returns of these arguments."""
        return function(**inputs | {name: make(inputs) for name, make in self.new.items()})


def with_arguments(
    function: Callable[..., Any], **new: Callable[[dict[str, Any]], Any]
) -> Callable[..., Any]:
    """Return the function with other arguments, each made from all that are given."""
    return WithArguments(function, new)


def rescaled(
    names: tuple[str, ...], factor: Callable[[int, int], float], inputs: dict[str, Any]
) -> Any:
    """
    Return the parameters with those of the query multiplied by a factor of H and D, which
    multiplies the scores.
    """
    H, own = inputs["num_heads"], inputs["parameters"]
    by = factor(H, inputs[next(iter(inputs))].shape[-1] // H)
    return {name: x * by if name in names else x for name, x in own.items()}


def layer_rows(function: Callable[..., Any], query: tuple[str, ...], mask: str) -> tuple[Row, ...]:
    """What can be otherwise in every layer with heads."""
    return (
        (
            "scale",
            "1",
            "scores that are not scaled",
            with_arguments(function, parameters=partial(rescaled, query, lambda H, D: D**0.5)),
        ),
        (
            "scale",
            "1/D",
            "scores scaled by 1/D",
            with_arguments(function, parameters=partial(rescaled, query, lambda H, D: D**-0.5)),
        ),
        (
            "scale",
            "sqrt(D)",
            "scores multiplied by sqrt(D)",
            with_arguments(function, parameters=partial(rescaled, query, lambda H, D: float(D))),
        ),
        (
            "scale",
            "1/sqrt(H D)",
            "scores scaled by 1/sqrt(H D)",
            with_arguments(function, parameters=partial(rescaled, query, lambda H, D: H**-0.5)),
        ),
        (
            "mask polarity",
            MEANS[mask],
            f"{mask} of the opposite meaning",
            with_arguments(function, **{mask: lambda x: opposite(x.get(mask))}),
        ),
        (
            "mask polarity",
            "ignored",
            f"{mask} ignored",
            with_arguments(function, **{mask: lambda x: NOTHING[mask](x)}),
        ),
    )


MEANS = {"attn_mask": "True = may attend", "visible": "True = hidden"}
NOTHING: dict[str, Callable[[dict[str, Any]], Any]] = {
    "attn_mask": lambda x: None,
    "visible": lambda x: np.ones((x["query"].shape[1], x["key"].shape[1]), bool),
}
PADDING: tuple[tuple[str, str, Callable[[dict[str, Any]], Any]], ...] = (
    (
        "True = may attend",
        "a key_padding_mask of which True means may attend",
        lambda x: opposite(x.get("key_padding_mask")),
    ),
    ("ignored", "key_padding_mask ignored", lambda x: None),
)
Q_PROJ, LINEAR = ("q_proj.weight", "q_proj.bias"), ("query.linear.weight", "query.linear.bias")
MULTI_HEAD = (
    *layer_rows(reference_of("multi_head_attention"), Q_PROJ, "attn_mask"),
    *(
        (
            "padding polarity",
            said,
            words,
            with_arguments(reference_of("multi_head_attention"), key_padding_mask=new),
        )
        for said, words, new in PADDING
    ),
)


def of_one_head() -> Iterator[Row]:
    """What can be otherwise in self-attention of one head, K columns wide."""
    function = reference_of("self_attention")
    for said, words, factor in (
        ("1", "scores that are not scaled", lambda K: K**0.5),
        ("1/K", "scores scaled by 1/K", lambda K: K**-0.5),
        ("sqrt(K)", "scores multiplied by sqrt(K)", float),
    ):

        def by(x: dict[str, Any], factor: Callable[[int], float] = factor) -> Any:
            own = x["parameters"]
            return own | {"w_query": own["w_query"] * factor(len(own["w_query"]))}

        yield "scale", said, words, with_arguments(function, parameters=by)
    for said, words, mask in (
        ("True = hidden", "mask of the opposite meaning", lambda x: opposite(x.get("mask"))),
        ("ignored", "mask ignored", lambda x: None),
    ):
        yield "mask polarity", said, words, with_arguments(function, mask=mask)


def as_self_attention(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, **others: function(query=x, key=x, value=x, **others)
