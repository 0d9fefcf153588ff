"""
What a file says of itself beside PRECISION: the dtypes that it is judged in, and what it does and
does not do.

What it says it does not do is *unsupported* with that word; what it says it does is required; what
it does not say is found out (:mod:`attnverify.verdicts.found_out`).
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from attnverify.backends.calls.terms import TERMS
from attnverify.precision import DTYPES

SWITCHES = ("gradient", "mask", "float mask", "dropout", "N != M", "E != D", "weights", "lse")
"""The features that a file has or has not."""

FEATURES = (*SWITCHES, "align", "width")

CAUSAL_ALONE = "causal"
"""What FEATURES says of a kernel that knows no mask but the causal one."""

MASKS = ("mask", "visible", "attn_mask")

NO_GRADIENT = "has no gradient"
"""The reason where no output depends on an input, as the library's autograd sees it."""

TAKES_NO = "takes no "
"""The reason where a file has no argument for what a call is given, before its name."""

FLOAT_MASK = "float mask"
NO_FLOAT_MASK = f"{TAKES_NO}{FLOAT_MASK}: "
"""The reason where a file raises an error for every one of them, before the error."""

TAKES_AXES = "takes arrays of "
"""The reason where a file raises an error for arrays of other numbers of axes, before these."""


@dataclass(frozen=True)
class Declarations:
    """
    What a backend declares.

    dtypes    those that it is judged in; empty where it does not say
    features  "gradient", "mask" ... with True or False, "align" with the words that it knows,
              "width" with the widths of a head; "mask" may be "causal"
    terms     what it means otherwise than the specification, by its names: LAYOUT, LSE_BASE ...
    arguments what its own names mean: {"q": "query"}; None for what is not to be given
    """

    dtypes: tuple[str, ...] = ()
    features: Mapping[str, Any] = field(default_factory=dict)
    terms: Mapping[str, Any] = field(default_factory=dict)
    arguments: Mapping[str, str | None] = field(default_factory=dict)

    def line_without(self, *features: str) -> str:
        """Write the line of a file that lacks these features besides what it says now."""
        return f"FEATURES = {dict(self.features) | dict.fromkeys(features, False)}".replace(
            "'", '"'
        )

    def line_with(self, more: Mapping[str, str | None]) -> str:
        """Write the line of a file that says of these arguments too what they mean."""
        return f"ARGUMENTS = {json.dumps({**self.arguments, **more})}".replace("null", "None")

    @property
    def limits(self) -> dict[str, Any]:
        """What is taken and what is not, as FEATURES says it, causal calls alone among them."""
        said = {CAUSAL_ALONE: self.terms["CAUSAL"]} if "CAUSAL" in self.terms else {}
        return {**self.features, **said}

    def leaves_out(self, dtype: str) -> bool:
        """Whether it says that it is not judged in a dtype."""
        return bool(self.dtypes) and dtype not in (*self.dtypes, "bool")

    def excluded(self, arguments: Mapping[str, Any]) -> str:
        """Return the feature of a call that it says it lacks; "" where there is none."""
        return next(
            (name for name in features_of(arguments) if self.features.get(name) is False),
            self._excluded_word(arguments) or self._excluded_width(arguments),
        )

    def _excluded_width(self, arguments: Mapping[str, Any]) -> str:
        width = getattr(arguments.get("query"), "shape", (0,))[-1]
        known = self.features.get("width")
        return f"width={width}" if width and known and width not in known else ""

    def _excluded_word(self, arguments: Mapping[str, Any]) -> str:
        word, known = arguments.get("align"), self.features.get("align")
        return f"align={word}" if word is not None and known and word not in known else ""

    def promised(self, arguments: Mapping[str, Any]) -> list[str]:
        """Return the features of a call where it says that it has them all; empty otherwise."""
        found = list(features_of(arguments))
        return found if all(self.features.get(name) is True for name in found) else []


STRICT = Declarations(DTYPES, {"gradient": True})
"""Of our own columns: every dtype in its own arithmetic, and every gradient."""


def features_of(arguments: Mapping[str, Any]) -> Iterator[str]:
    """Find the features that a call with these arguments needs."""
    masks = [arguments[name] for name in MASKS if arguments.get(name) is not None]
    if masks:
        yield "mask"
    if any("bool" not in str(getattr(mask, "dtype", "bool")) for mask in masks):
        yield FLOAT_MASK
    if arguments.get("keep") is not None:
        yield "dropout"
    names = ("query", "key", "value", "value_pages", "latent")
    shapes: list[tuple[int, ...]] = [getattr(arguments.get(name), "shape", ()) for name in names]
    query, key, value = shapes[0], shapes[1] or shapes[4], shapes[2] or shapes[3]
    packed = "query_starts" in arguments  # heads stand where positions do elsewhere
    if not packed and len(query) > 1 and len(key) > 1 and query[-2] != key[-2]:
        yield "N != M"
    if query and value and query[-1] != value[-1]:
        yield "E != D"


def read_declarations(module: ModuleType | None, dtypes: tuple[str, ...] = ()) -> Declarations:
    """
    What a module declares, but for the dtypes where they are given. Raises ValueError for what
    cannot be read.
    """
    terms = {name: value for name in TERMS if (value := getattr(module, name, None)) is not None}
    for name, value in terms.items():
        if not TERMS[name].allows(value):
            raise ValueError(f"{name}: wanted {TERMS[name].wanted}, got {value!r}")
    arguments = getattr(module, "ARGUMENTS", None) or {}
    if not isinstance(arguments, Mapping):
        raise ValueError(f'ARGUMENTS: wanted a mapping, as in {{"q": "query"}}, got {arguments!r}')
    return Declarations(
        dtypes or _read_dtypes(getattr(module, "DTYPES", ())),
        _read_features(getattr(module, "FEATURES", {})),
        terms,
        arguments,
    )


def _read_dtypes(said: Any) -> tuple[str, ...]:
    if isinstance(said, str) or not all(name in DTYPES for name in said):
        raise ValueError(f"DTYPES: wanted a tuple of {', '.join(DTYPES)}, got {said!r}")
    return tuple(said)


def _read_features(said: Any) -> dict[str, Any]:
    if not isinstance(said, Mapping):
        raise ValueError(f'FEATURES: wanted a mapping, as in {{"gradient": False}}, got {said!r}')
    for name, value in said.items():
        if name not in FEATURES:
            raise ValueError(f"FEATURES: wanted {', '.join(FEATURES)}, got {name!r}")
        if (name, value) == ("mask", CAUSAL_ALONE):
            continue
        if name in SWITCHES and not isinstance(value, bool):
            raise ValueError(f"FEATURES {name!r}: wanted True or False, got {value!r}")
        if name == "width" and not (
            isinstance(value, tuple | list) and all(isinstance(x, int) for x in value)
        ):
            raise ValueError(f"FEATURES 'width': wanted widths, as in (32, 64), got {value!r}")
    return dict(said)
