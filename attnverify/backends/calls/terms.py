"""
Terms: what a file may mean by an option or a result of today's attention where the specification
means something else, and says so beside LAYOUT (``LSE_BASE = 2``).

Between the two every call and every result is translated, in the file's own arrays, so that a
gradient by its library goes through the translation.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf, isfinite, log, nan
from typing import Any

from attnverify.backends.calls.headless import by_layout, has_heads, layouts_of, library_of
from attnverify.catalogue.operation import Operation, result_axes_of

LN2 = log(2.0)
Given = dict[str, Any]
Results = Sequence[Any]


@dataclass(frozen=True)
class Term:
    """
    One thing that a file may say.

    wanted    what it may be, in words; allows: whether a value is one of these
    tried     the values that are asked about where a file says nothing
    words     what goes wrong where a file should have said so and does not
    concerns  whether an operation has what it is about
    given     the arguments that a call is given for the specification's
    returned  the specification's results for those that are returned
    """

    wanted: str
    allows: Callable[[Any], bool]
    tried: tuple[Any, ...]
    words: str
    concerns: Callable[[Operation], bool]
    given: Callable[[Any, Operation, Given], Given] = lambda said, operation, inputs: inputs
    returned: Callable[[Any, Operation, Given, Results], Results] = (
        lambda said, operation, inputs, results: results
    )


def has_lse(operation: Operation) -> bool:
    """Tell whether it returns a log-sum-exp beside its output, or is the gradient of what does."""
    return operation.forward.second_result == "lse"


def lse_given(said: Any, operation: Operation, inputs: Given) -> Given:
    """
    The log-sum-exps that arrive with their last two axes exchanged: of heads and positions where
    rows lie in a batch, of tokens and heads where they lie end to end.
    """
    if (said == "HT") != operation.is_packed:
        return inputs
    return {n: turned_lse(x, operation.axes.get(n, "")) for n, x in inputs.items()}


def lse_returned(said: Any, operation: Operation, inputs: Given, results: Results) -> Results:
    if (said == "HT") != operation.is_packed:
        return results
    axes = [*result_axes_of(operation, inputs), *[""] * len(results)]
    pairs = zip(results, axes, strict=False)
    return [x if x is None else turned_lse(x, own) for x, own in pairs]


def turned_lse(x: Any, axes: str) -> Any:
    return x.swapaxes(-2, -1) if axes == "T H" else exchange_axes(x, axes, width=False)


def exchange_axes(x: Any, axes: str, width: bool) -> Any:
    """
    Return an array of these axes with heads and positions exchanged, where it has them; what lay in
    one piece does so again.
    """
    if not has_heads(axes, width):
        return x
    other = x.swapaxes(-3, -2) if width else x.swapaxes(-2, -1)
    if hasattr(x, "is_contiguous"):
        return other.contiguous() if x.is_contiguous() else other
    flags = getattr(x, "flags", None)
    return other.copy() if flags is not None and flags.c_contiguous else other


def exchange_given(said: Any, operation: Operation, inputs: Given) -> Given:
    if said != "BNHD":
        return inputs
    axes = operation.axes | operation.integer_axes
    return {n: exchange_axes(x, axes.get(n, ""), width=True) for n, x in inputs.items()}


def exchange_returned(said: Any, operation: Operation, inputs: Given, results: Results) -> Results:
    if said != "BNHD":
        return results
    axes = [*result_axes_of(operation, inputs), *[""] * len(results)]
    pairs = zip(results, axes, strict=False)
    return [x if x is None else exchange_axes(x, own, width=True) for x, own in pairs]


def base_given(said: Any, operation: Operation, inputs: Given) -> Given:
    """Logarithms to base 2 for natural ones; what arrives at one grows as the one shrinks."""
    factors = {"lses": 1 / LN2, "d_lse": LN2}
    return {name: x * factors[name] if name in factors else x for name, x in inputs.items()}


def base_returned(said: Any, operation: Operation, inputs: Given, results: Results) -> Results:
    if operation.is_gradient:
        names = [name for name in operation.arguments if not name.startswith("d_")]
        pairs = zip(results, [*names, *[""] * len(results)], strict=False)
        return [x / LN2 if name == "lses" else x for x, name in pairs]
    return with_lse(operation, results, lambda lse: lse * LN2)


def with_lse(operation: Operation, results: Results, change: Callable[[Any], Any]) -> Results:
    """The results with another log-sum-exp, where one is among them."""
    if operation.is_gradient or len(results) < 2 or results[1] is None:
        return results
    return [results[0], change(results[1]), *results[2:]]


def empty_returned(said: Any, operation: Operation, inputs: Given, results: Results) -> Results:
    """Minus infinity where a row is said to have seen nothing; NaN where it is found unsaid."""

    def change(lse: Any) -> Any:
        where = library_of(lse).where
        return where(lse == said, -inf, where(lse == -inf, nan, lse))

    return with_lse(operation, results, change)


def sink_returned(said: Any, operation: Operation, inputs: Given, results: Results) -> Results:
    sink = inputs.get("sink")
    if sink is None:
        return results
    if operation.is_gradient:
        raise NotImplementedError("LSE: what arrives at an lse without its sink is not known")

    def change(lse: Any) -> Any:
        xp, rest = library_of(lse), sink[:, None]
        none = (lse == -inf) & (rest == -inf)
        return xp.where(none, -inf, xp.logaddexp(xp.where(none, 0.0, lse), rest))

    return with_lse(operation, results, change)


def window_given(said: Any, operation: Operation, inputs: Given) -> Given:
    """A window that counts the row's own key has one more on its left."""
    window = inputs.get("window")
    if not isinstance(window, tuple) or window[0] is None:
        return inputs
    return inputs | {"window": (window[0] + 1, *window[1:])}


def mask_given(name: str, said: Any, operation: Operation, inputs: Given) -> Given:
    """A boolean mask in which True means the other of a key that is seen and one that is hidden."""
    mask: Any = inputs.get(name)
    return inputs | {name: ~mask} if "bool" in str(getattr(mask, "dtype", "")) else inputs


def shown_by_true(name: str) -> Term:
    """Say that True in this boolean mask shows a key, which the specification hides."""
    return Term(
        "'True shows'",
        lambda said: said == "True shows",
        ("True shows",),
        f"{name}: True is taken for a key that is seen",
        lambda operation: name in operation.arguments,
        partial(mask_given, name),
    )


def mask_of(operation: Operation) -> str:
    """Name the mask of an attention of which True shows a key, "" where it has none such."""
    name = operation.forward.mask
    return name if name in ("mask", "visible") and "query" in operation.arguments else ""


def turn_mask(said: Any, operation: Operation, inputs: Given) -> Given:
    """A boolean mask of which True hides a key, where it shows one by the specification."""
    return mask_given(mask_of(operation), said, operation, inputs)


def has_causal_option(operation: Operation) -> bool:
    """Tell whether the calls of an attention say by an option that they are causal."""
    return "query" in operation.arguments and "causal" in operation.domains


def is_causal_call(operation: Operation, inputs: Given, align: str = "end") -> bool:
    """
    Tell whether each row of a call sees its own position and those before it, aligned at the end or
    at the start: by the option, where there is one, which aligns at the end; else by a boolean mask
    [... N M], or since it hides nothing.
    """
    queries = inputs["query"] if "query" in inputs else inputs["x"]
    keys: Any = inputs.get("key", queries)
    if has_causal_option(operation):
        as_many = queries.shape[-2] == keys.shape[-2] or operation.is_packed
        return bool(inputs.get("causal")) and (align == "end" or as_many)
    mask = inputs.get(operation.mask or "")
    N, M = queries.shape[-2], keys.shape[-2]
    offset = M - N if align == "end" else 0
    if mask is None:
        return bool(N == 1 and 1 + offset == M)
    if "bool" not in str(mask.dtype):
        return False
    hides = operation.mask == "attn_mask"
    rows = [[(j <= offset + i) != hides for j in range(M)] for i in range(N)]
    if tuple(mask.shape[-2:]) != (N, M):
        return False
    return all(one == rows for one in mask.reshape(-1, N, M).tolist())


def without_causality(said: Any, operation: Operation, inputs: Given) -> Given:
    """Leave the causality out of a call that has it, for what is causal without being told."""
    by_option, align = has_causal_option(operation), "start" if said == "start" else "end"
    if not is_causal_call(operation, inputs, align):
        wanted = "causal=True" if by_option else f"the causal mask, aligned at the {align}"
        raise NotImplementedError(f"CAUSAL: takes no call without {wanted}")
    name = "causal" if by_option else operation.mask or ""
    return {own: value for own, value in inputs.items() if own != name}


def may_be_causal(operation: Operation) -> bool:
    """Tell whether a call of an attention may be causal, and need not be."""
    attends = operation.is_attention or bool(operation.traits.parameters)
    masked = attends and operation.mask in ("mask", "visible", "attn_mask")
    return (masked or has_causal_option(operation)) and not operation.traits.causal


def is_empty_lse(value: Any) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and (isfinite(value) or value == inf)


EXCHANGED = "heads and positions are exchanged"
LAYOUTS = {
    "BHND": (EXCHANGED, "in the order B H N D"),
    "BNHD": (EXCHANGED, "in the order B N H D"),
    "BND": ("it takes no axis of heads", "without an axis of heads"),
    "ND": ("it takes one matrix at a time", "one matrix at a time"),
}
"""What goes wrong where a file should have said so, and how the same calls are right."""

TERMS: dict[str, Term] = {
    "CAUSAL": Term(
        "True or 'start'", lambda x: x is True or x == "start", (),
        "a causal mask that no call asked for", may_be_causal, without_causality,
    ),
    "LAYOUT": Term(
        ", ".join(LAYOUTS), lambda x: x in LAYOUTS, (), EXCHANGED, lambda op: bool(layouts_of(op)),
        exchange_given, exchange_returned,
    ),
    "LSE_LAYOUT": Term(
        "BHN or BNH, of packed tokens HT or TH", lambda x: x in ("BHN", "BNH", "HT", "TH"),
        ("BNH", "HT"), "heads and positions of the lse are exchanged", has_lse,
        lse_given, lse_returned,
    ),
    "EMPTY_LSE": Term(
        'a finite number or float("inf")', is_empty_lse, (inf, -5e4, -1e30, 0.0),
        "another lse than minus infinity where a row sees no key", has_lse,
        returned=empty_returned,
    ),
    "LSE_BASE": Term(
        "2", lambda x: x == 2, (2,), "an lse to base 2", has_lse, base_given, base_returned
    ),
    "LSE": Term(
        "'without sink'", lambda x: x == "without sink", ("without sink",),
        "an lse without the sink", lambda op: has_lse(op) and "sink" in op.arguments,
        returned=sink_returned,
    ),
    "WINDOW": Term(
        "'with itself'", lambda x: x == "with itself", ("with itself",),
        "a window that counts the row's own key", lambda op: "window" in op.arguments,
        window_given,
    ),
    "ATTN_MASK": shown_by_true("attn_mask"),
    "MASK": Term(
        "'True hides'", lambda x: x == "True hides", ("True hides",),
        "True in a mask is taken for a key that is hidden", lambda op: bool(mask_of(op)), turn_mask,
    ),
    "KEY_PADDING_MASK": shown_by_true("key_padding_mask"),
}  # fmt: skip
"""By the name that a file gives them. Results are translated in this order, arguments likewise."""

USUAL = {"LAYOUT": "BHND", "LSE_LAYOUT": "BHN"}
"""What is said with no effect."""


def concerning(said: Mapping[str, Any], operation: Operation) -> dict[str, Any]:
    """What a file says that an operation is translated by, in the order of the table."""
    return {
        name: said[name]
        for name, term in TERMS.items()
        if name in said
        and said[name] != USUAL.get(name)
        and term.concerns(operation)
        and (name != "LAYOUT" or said[name] in layouts_of(operation))
    }


def translate_given(said: Mapping[str, Any], operation: Operation, inputs: Given) -> Given:
    for name in TERMS:
        if name in said:
            inputs = TERMS[name].given(said[name], operation, inputs)
    return inputs


def translate_returned(
    said: Mapping[str, Any], operation: Operation, inputs: Given, output: Any
) -> Any:
    """The specification's results; an array alone stays one."""
    several = isinstance(output, (list, tuple))
    results: Results = list(output) if several else [output]
    for name, value in said.items():
        results = TERMS[name].returned(value, operation, inputs, results)
    return type(output)(results) if several else results[0]


def translated(
    function: Callable[..., Any], operation: Operation, said: Mapping[str, Any]
) -> Callable[..., Any]:
    """Return the function of the specification's arguments as it is where a file says this too."""

    def once(**inputs: Any) -> Any:
        output = function(**translate_given(said, operation, inputs))
        return translate_returned(said, operation, inputs, output)

    return lambda **inputs: by_layout(said.get("LAYOUT"), once, operation, inputs)


def words_of(name: str, value: Any) -> str:
    """Say what goes wrong where a file should have said this."""
    return LAYOUTS[value][0] if name == "LAYOUT" else TERMS[name].words


def line_of(name: str, value: Any) -> str:
    """Write the line of a file that says so."""
    if value == inf:
        return f'{name} = float("inf")'
    return f'{name} = "{value}"' if isinstance(value, str) else f"{name} = {value}"
