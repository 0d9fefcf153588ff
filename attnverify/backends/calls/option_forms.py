"""
Options of today's attention that libraries give another form than the specification: a window in
two numbers or with -1 for no limit, an option that is off by another default than None, numbers of
heads, a flag that asks for the log-sum-exp.
"""

from collections.abc import Callable, Mapping
from inspect import Parameter
from typing import Any

from attnverify.backends.calls.headless import library_of
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


COUNTED = ("kv_indptr", "paged_kv_indptr")
NAMED = ("kv_indices", "paged_kv_indices")
LAST = ("kv_last_page_len", "paged_kv_last_page_len", "last_page_len")

IN_PAGES = ("lengths in pages", "page_table end to end", "lengths behind the last page")
IN_SLOTS = ("lengths in slots", "page_table in slots, end to end", "")
"""What a function is given that names pages end to end; or slots, of pages of one key each."""


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
    if operation.is_paged:
        found |= forms_of_pages(free)
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
    if not name and is_of_pages(own, parameters):
        return {}  # given with the others of its form
    if name and (pool := pool_given(own, value, parameters)) is not None:
        return {name: pool}
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


def is_one_count(parameter: Parameter) -> bool:
    """Tell whether a window is one number, the left one."""
    said = parameter.annotation in (int, "int"), type(parameter.default) is int
    return any(said)


ALL_KEYS = 2**30
"""The left count of a window that hides nothing, where a function has no word for it."""


def left_count(window: Any, default: Any) -> int:
    """The left count alone. Raises NotImplementedError for a window that ends on its right."""
    left, right = window or (None, None)
    if right is not None:
        raise NotImplementedError(f"takes no window of {window}")
    return left if left is not None else {-1: -1, 0: 0}.get(default, ALL_KEYS)


def no_limit(count: Any, default: Any) -> Any:
    return -1 if count is None and default in (-1, (-1, -1)) else count


def from_shapes(inputs: Mapping[str, Any], names: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of heads, and the lengths of the longest sequences, that are asked for."""
    starts = {name: inputs[LONGEST[name]] for name in names if name in LONGEST}
    longest = {name: int((x[1:] - x[:-1]).max()) for name, x in starts.items()}
    longest |= pages_given(inputs, names)
    wanted = [name for name in names if name in COUNTS]
    if not wanted:
        return longest
    keys = inputs["key_pages"][0] if "key_pages" in inputs else inputs["key"]
    H, G = inputs["query"].shape[1], keys.shape[1]
    return longest | {name: COUNTS[name](H, G) for name in wanted}


def forms_of_pages(names: Mapping[str, Any]) -> dict[str, str]:
    """
    What a function that names its pages otherwise is given, in words; nothing where it does not. A
    sequence's count is of pages where the keys of the last are counted too, else of slots.
    """
    each = [next((x for x in form if x in names), "") for form in (COUNTED, NAMED, LAST)]
    if not (each[0] and each[1]):
        return {}
    words = IN_PAGES if each[2] else IN_SLOTS
    return {name: said for name, said in zip(each, words, strict=True) if name}


def pages_given(inputs: Mapping[str, Any], forms: Mapping[str, Any]) -> dict[str, Any]:
    """
    The table and the lengths of a call in such a form; an empty sequence has no page, and W keys on
    its last. Raises NotImplementedError for what no such form can say.
    """
    said = {words: name for name, words in forms.items()}
    if not {IN_PAGES[0], IN_SLOTS[0]} & {*said}:
        return {}
    table, lengths, W = inputs["page_table"], inputs["lengths"], inputs["key_pages"].shape[1]
    if len(table.shape) != 2 or lengths.shape != table.shape[:1]:
        raise NotImplementedError("takes no table of this shape")
    if bool(((lengths < 0) | (lengths > W * table.shape[1])).any()):
        raise NotImplementedError("takes no length that pages do not hold")
    xp = library_of(table)
    counts = (lengths + W - 1) // W
    last = lengths - (counts - 1) * W
    if IN_SLOTS[0] in said:
        at = xp.cumsum(xp.ones_like(xp.concatenate([table[0]] * W)), 0) - 1
        counts, table = lengths, table[:, at // W] * W + at % W
    used = xp.cumsum(xp.ones_like(table), 1) <= counts[:, None]
    starts = xp.concatenate([counts[:1] * 0, xp.cumsum(counts, 0)])
    found = dict(zip((*IN_PAGES, *IN_SLOTS[:2]), (starts, table[used], last) * 2, strict=False))
    return {name: found[words] for words, name in said.items() if words in found}


def is_of_pages(own: str, parameters: Mapping[str, Any]) -> bool:
    """Whether a function takes an argument in one of these forms alone."""
    forms = forms_of_pages(parameters)
    return own in ("page_table", "lengths") and bool(forms)


def pool_given(own: str, value: Any, parameters: Mapping[str, Any]) -> Any:
    """A pool as the slots [Z*W G D] of a function that counts them; None where it takes pages."""
    by_slots = IN_SLOTS[0] in forms_of_pages(parameters).values()
    if own not in ("key_pages", "value_pages") or not by_slots or len(value.shape) != 4:
        return None
    return value.reshape(-1, *value.shape[2:])
