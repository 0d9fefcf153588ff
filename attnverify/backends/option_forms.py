"""
Options of today's attention that libraries give another form than the specification: a window in
two numbers or with -1 for no limit, an option that is off by another default than None, numbers of
heads, a flag that asks for the log-sum-exp.
"""

from collections.abc import Callable, Mapping
from inspect import Parameter
from typing import Any

from attnverify.catalogue.operation import Operation

LEFT = ("window_left", "left_window_size", "sliding_window")
RIGHT = ("window_right", "right_window_size")
"""A window in two numbers, or its left one alone."""

COUNTS: dict[str, Callable[[int, int], Any]] = {
    **dict.fromkeys(("num_heads", "q_num_heads", "num_qo_heads"), lambda H, G: H),
    **dict.fromkeys(("num_kv_heads", "kv_num_heads", "num_key_value_heads"), lambda H, G: G),
    "num_gqa_groups": lambda H, G: G,
    "num_key_value_groups": lambda H, G: H // G,
    "enable_gqa": lambda H, G: H != G,
}
"""What follows from the numbers of heads of queries and of keys."""

RETURNS_LSE = ("return_lse", "return_softmax_lse", "return_residual")
"""Flags that ask for the log-sum-exp beside the output."""


LONGEST = {
    **dict.fromkeys(("max_seqlen_q", "max_q"), "query_starts"),
    **dict.fromkeys(("max_seqlen_k", "max_k"), "key_starts"),
}
"""How long the longest sequence is, and the starts that say so."""

PAIRINGS = {
    **dict.fromkeys(("interleaved", "interleave", "rotary_interleaved"), "interleaved"),
    **dict.fromkeys(("is_neox", "is_neox_style", "neox_style"), "halves"),
}
"""Flags that say how channels are paired, and which pairing True is."""


def forms_of(free: Mapping[str, Parameter], operation: Operation) -> dict[str, Any]:
    """
    Find the parameters of other forms among those that nothing is known of, each with what it is
    given in words, or True for a flag.
    """
    found: dict[str, Any] = {}
    if operation.second_result == "lse":
        found |= {name: True for name in RETURNS_LSE if name in free}
    if operation.shares_keys:
        found |= {name: "a number of heads" for name in COUNTS if name in free}
    if "window" in operation.arguments:
        found |= {name: "window[0]" for name in LEFT if name in free}
        found |= {name: "window[1]" for name in RIGHT if name in free}
    if operation.is_packed:
        found |= {name: "a longest sequence" for name in LONGEST if name in free}
    if "pairing" in operation.arguments:
        found |= {n: f"pairing == {said!r}" for n, said in PAIRINGS.items() if n in free}
    return found


def has_own_form(own: str, forms: Mapping[str, Any]) -> bool:
    """Tell whether an argument is given in another form."""
    return any(isinstance(words, str) and words.startswith(own) for words in forms.values())


def own_form(
    own: str, value: Any, name: str, parameters: Mapping[str, Parameter], usual: Any = None
) -> dict[str, Any] | None:
    """
    What a function is given for an argument of the specification, ``name`` being the parameter that
    is known for it, if any, and ``usual`` what the specification takes where nothing is given; None
    where no form of its own is known.
    """
    default = parameters[name].default if name else None
    if own == "window" and value is not None:
        return own_window(value, name, parameters)
    if own == "pairing" and not name and value in PAIRINGS.values():
        return {n: value == said for n, said in PAIRINGS.items() if n in parameters} or None
    off = usual is None and value is None  # else None is refused, and handed on to be
    if name and off and default is not None and default is not Parameter.empty:
        return {}  # off by another default
    return None


def own_window(
    window: Any, name: str, parameters: Mapping[str, Parameter]
) -> dict[str, Any] | None:
    """A window by a function's own parameters; what is refused is handed on as it is."""
    if not (isinstance(window, tuple) and len(window) == 2):
        return None
    if name:
        return {name: tuple(no_limit(x, parameters[name].default) for x in window)}
    if not any(each in parameters for each in (*LEFT, *RIGHT)):
        return None
    found = {}
    for sides, count in zip((LEFT, RIGHT), window, strict=True):
        side = next((each for each in sides if each in parameters), "")
        if side:
            found[side] = no_limit(count, parameters[side].default)
        elif count is not None:
            raise NotImplementedError(f"takes no window of {window}")
    return found


def no_limit(count: Any, default: Any) -> Any:
    return -1 if count is None and default in (-1, (-1, -1)) else count


def from_shapes(inputs: Mapping[str, Any], names: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of heads, and the lengths of the longest sequences, that are asked for."""
    starts = {name: inputs[LONGEST[name]] for name in names if name in LONGEST}
    longest = {name: int((x[1:] - x[:-1]).max()) for name, x in starts.items()}
    wanted = [name for name in names if name in COUNTS]
    if not wanted:
        return longest
    H, G = inputs["query"].shape[1], inputs["key"].shape[1]
    return longest | {name: COUNTS[name](H, G) for name in wanted}
