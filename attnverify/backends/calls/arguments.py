"""
Which argument of a user's function is which of the specification: by its name, or by those that the
common libraries give the same arguments. Nothing is ever bound by its position alone.
"""

import ast
import difflib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from attnverify.backends.calls.option_forms import forms_of, has_own_form
from attnverify.backends.declarations import MASKS, Declarations
from attnverify.catalogue.operation import Operation

SYNONYMS: dict[str, tuple[str, ...]] = {
    "query": ("q", "Q", "queries", "query_states", "xq", "q_nope"),
    "key": ("k", "K", "keys", "key_states", "xk"),
    "value": ("v", "V", "values", "value_states", "xv"),
    "query_rope": ("q_pe", "q_rope", "query_pe"),
    "latent": ("ckv", "c_kv", "compressed_kv", "kv_c"),
    "key_rope": ("kpe", "k_pe", "k_rope", "key_pe"),
    "mask": ("attn_mask", "attention_mask"),
    "visible": ("attn_mask", "attention_mask", "mask"),
    "p": ("dropout_p", "dropout_rate"),
    "score": ("scores", "s", "logits", "input", "x"),
    "d_output": ("grad_output", "d_out", "dout", "do", "dO"),
    "d_lse": ("grad_lse", "d_logsumexp", "dlse"),
    "outputs": ("out_partial", "partial_outputs", "outs"),
    "lses": ("lse_partial", "partial_lses", "logsumexps", "lse"),
    "soft_cap": ("softcap", "logits_soft_cap", "logit_cap", "attn_logits_soft_cap"),
    "sink": ("sinks", "learnable_sink", "attn_sink", "s_aux", "sink_bias", "sink_token"),
    "window": ("window_size", "local_window_size"),
    "scale": ("softmax_scale", "sm_scale", "scaling", "scales", "descale", "x_scale"),
    "chunk": ("attention_chunk",),
    "pinned": ("sink_token_length",),
    "causal": ("is_causal",),
    "lengths": (
        *("seqused_k", "seq_lens", "cache_seqlens", "context_lens", "nonpad_kv_seqlen"),
        "key_value_seq_lengths",
    ),
    "query_starts": ("cu_seqlens_q", "qo_indptr", "cu_seq_q", "query_start_loc"),
    "key_pages": ("k_cache", "key_cache", "k_pages", "k_buffer", "paged_k_cache"),
    "value_pages": ("v_cache", "value_cache", "v_pages", "v_buffer", "paged_v_cache"),
    "page_table": ("block_table", "block_tables", "page_indices"),
    "selection": (
        *("block_indices", "topk_indices", "indices", "selected_blocks", "block_index"),
        *("topk_idx", "selected_indices", "top_k_indices"),
    ),
    "block": ("block_size",),
    "key_starts": ("cu_seqlens_k", "kv_indptr", "cu_seq_k"),
    "query_lengths": ("seqused_q", "query_seq_lengths"),
    "stored": ("x", "x_q", "q", "cache", "quantized"),
    "stored_as": ("kv_cache_dtype",),
    "x": (
        *("input", "t", "inputs", "tokens", "hidden_states", "embeddings", "src", "sequence"),
        *("seq", "hidden", "emb"),
    ),
    "positions": ("position_ids", "pos_ids"),
    "base": ("rope_theta", "theta", "rotary_base", "rope_base"),
    "rotary_dim": ("rotary_ndims", "rotary_embedding_dim", "rope_dim"),
    "frequencies": ("inv_freq", "freqs"),
}
"""
What SDPA, flash-attn, FlashInfer, xformers, vLLM, cuDNN, JAX, ONNX, transformers, FlashMLA and
flash-linear-attention call the specification's arguments. What is off by another default, as a cap
of 0, keeps it where nothing is asked, and a window whose default is -1 is given -1 for no limit.
"""


BIASES = ("attn_bias", "bias")
"""A mask to add, of libraries whose boolean mask has another name or is not there."""


CAUSAL = ("is_causal", "causal")


NEVER_GIVEN, NOT_JUDGED = "the operation has no argument for ", "not judged; "


SENSE = {
    **dict.fromkeys(MASKS, " (True shows a key)"),
    **dict.fromkeys(("attn_mask", "key_padding_mask"), " (True hides a key)"),
    "keep": " (True keeps a weight)",
}
"""What a mask means, by its name."""


CAUSAL_MASK = "causal mask"
CAUSAL_MASKS = {CAUSAL_MASK: "end", f"{CAUSAL_MASK} from the start": "start"}
"""
What ARGUMENTS says of a flag that is to be given True where the mask is the causal one, and where
that is aligned.
"""


SCALES = ("scale", "softmax_scale", "sm_scale")


@dataclass(frozen=True)
class Binding:
    """
    Which parameter of a function is given what.

    given    parameters by the specification's arguments; bias: the parameter of a float mask
    fixed    parameters whose value follows from the operation: is_causal=False
    causal   the parameter that is given True in place of a mask that is the causal one; align: the
             end at which that one is aligned
    scale    the parameter that is given 1/sqrt(D); unused: those that keep their defaults
    forms    the parameters that are given something of another form, in words
    needed   the parameters that must be given in every call, of arguments that not every call has,
             with their defaults; None where a call without them cannot be made
    near     of parameters that keep their defaults the argument that each may be
    """

    operation: Operation

    given: Mapping[str, str]
    bias: str
    fixed: Mapping[str, Any]
    causal: str
    scale: str
    unused: tuple[str, ...]
    forms: Mapping[str, str]
    needed: Mapping[str, Any]
    near: Mapping[str, str] = field(default_factory=dict)
    align: str = "end"
    declared: Declarations = field(default_factory=Declarations)

    def describe(self) -> str:
        """Describe the mapping in words; "" where it is that of the specification."""
        words = [f"{name}={own}" for own, name in self.given.items() if name != own]
        words += [f"{self.bias}=float mask"] if self.bias else []
        words += [f"{name}={value}" for name, value in self.fixed.items() if name != self.causal]
        where = f"aligned at the {self.align}"
        words += [f"{self.causal}=True for the causal mask, {where}"] * bool(self.causal)
        words += [f"{self.scale}=1/sqrt(D)"] if self.scale else []
        words += [f"{name}={what}" for name, what in self.forms.items()]
        return ", ".join(words)

    @property
    def flags(self) -> list[str]:
        """The parameters that are False in every call."""
        return [n for n, v in self.fixed.items() if v is False and n != self.causal]

    @property
    def unjudged(self) -> list[str]:
        """What no call shows: the other value of a flag, and what is never given."""
        return [*(f"{name}=True" for name in self.flags), *self.unused]

    def describe_unjudged(self) -> str:
        """
        Name what is never given, and the flag whose other value is not, with the one line that has
        both judged, or says that it is not to be.
        """
        alone = [name for name in self.unused if name not in self.near]
        left = f"{NEVER_GIVEN}{' and '.join(alone)}" if alone else ""
        causal = self.operation.mask == "mask"
        flagged = CAUSAL_MASK if causal else None
        said: dict[str, str | None] = {**dict.fromkeys(self.flags, flagged), **self.near}
        what = [f"{n}=True" for n in self.flags] + [f"{n} (never given)" for n in self.near]
        how = ["where the mask is causal"] * bool(causal and self.flags)
        how += [f"as {own}{SENSE.get(own, '')}" for own in self.near.values()]
        be, it = ("is", "it") if len(what) == 1 else ("are", "them")
        aim = f"to have {it} judged {' and '.join(how)}" if how else "if that is meant"
        line = f"{aim}: {self.declared.line_with(said)}"
        told = f"{' and '.join(what)} {be} {NOT_JUDGED}{line}" if what else ""
        return "; ".join(filter(None, (left, told)))


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
    flags = [n for n in parameters if declared.arguments.get(n) in CAUSAL_MASKS]
    fixed = {n: operation.traits.causal for n in (*CAUSAL, *flags) if n in free}
    causal = flags[0] if flags and operation.mask == "mask" else ""
    align = CAUSAL_MASKS[str(declared.arguments[flags[0]])] if flags else "end"
    forms = forms_of(free, operation)
    rest = [name for name in free if name not in (bias, *SCALES, *fixed, *forms)]
    if unknown := [name for name in rest if free[name].default is EMPTY]:
        without = [own for own in operation.arguments if own not in named]
        left = [own for own in without if operation.requires(own)] or without
        raise UnknownArgument(
            f"argument {unknown[0]!r} of {operation.name}: wanted one of "
            f"{', '.join(operation.arguments)} or a name that a common library gives it"
            f"{_advise_arguments(unknown, left, declared)}",
            [] if any(map(operation.requires, left)) else unknown,
        )
    for own in operation.arguments:
        known = own in named or has_own_form(own, forms) or _takes_any_name(function)
        if operation.requires(own) and not known:
            raise UnknownArgument(f"{operation.name}: no argument takes {own}")
    fixed |= {name: flag for name, flag in forms.items() if flag is True}
    forms = {name: words for name, words in forms.items() if name not in fixed}
    defaults = {
        name: operation.parameters[own].default
        for own, name in named.items()
        if parameters[name].default is EMPTY and not operation.requires(own)
    }
    needed = {
        name: its for name, its in defaults.items() if name != named.get(operation.mask or "")
    }
    left = [own for own in operation.arguments if own not in named]
    near = (not bias and _mask_among(rest, free, left)) or _nearest(rest, left)
    unused = tuple(rest)
    told = (unused, forms, needed, near, align, declared)
    return Binding(operation, named, bias, fixed, causal, scale, *told)


def _mask_among(rest: list[str], free: Mapping[str, Any], left: list[str]) -> dict[str, str]:
    """Take the one parameter whose default is None for the mask that no other is."""
    absent = [name for name in rest if free[name].default is None]
    masks = [own for own in left if own in MASKS]
    return dict(zip(absent, masks, strict=True)) if len(absent) == len(masks) == 1 else {}


EMPTY = inspect.Parameter.empty


class UnknownArgument(ValueError):
    """
    A parameter that is known by no name, or an argument that no parameter takes; ``beyond``: the
    parameters that a function has besides all that an operation must be given.
    """

    def __init__(self, words: str, beyond: list[str] | None = None) -> None:
        super().__init__(words)
        self.beyond = beyond or []


def _advise_arguments(unknown: list[str], left: list[str], declared: Declarations) -> str:
    """
    Give the line that says what the parameters are given, beside what is declared: each the
    argument of the nearest name among those that no parameter takes, the others in their order, if
    they are as many, which is a guess; where nobody can know, no line.
    """
    said = _nearest(unknown, left)
    rest = [own for own in left if own not in said.values()]
    last = [name for name in unknown if name not in said]
    if len(rest) == len(last):
        said |= dict(zip(last, rest, strict=True))
    it = "it is" if len(said) == 1 else "they are"
    perhaps = ", perhaps" * (len(last) > 1)
    return f"; say what {it} given{perhaps}: {declared.line_with(said)}" if said else ""


def _nearest(names: list[str], left: list[str]) -> dict[str, str]:
    """Pair parameters with the argument of the nearest name, each with one."""
    said: dict[str, str] = {}
    for name in names:
        free = [own for own in left if own not in said.values()]
        begins = [own for own in free if own.startswith(name[:3])]
        near = difflib.get_close_matches(name, free, n=1) or begins
        if len(near) == 1:
            said[name] = near[0]
    return said


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
    return found | _by_a_word(parameters, operation, found, declared)


def _by_a_word(
    parameters: Mapping[str, Any],
    operation: Operation,
    found: Mapping[str, str],
    declared: Mapping[str, str | None],
) -> dict[str, str]:
    """
    Pair the arguments that must be given with the parameters that must be, by a word of the name
    (``q_states`` takes query) where it is that of one argument and of one parameter alone.
    """
    free = [
        name
        for name, parameter in parameters.items()
        if parameter.default is inspect.Parameter.empty and name not in {*found.values(), *declared}
    ]
    pairs = [
        (own, name)
        for own in operation.arguments
        for name in free
        if {own, *SYNONYMS.get(own, ())} & {*name.split("_")}
    ]
    owns, names = ([*side] for side in zip(*pairs, strict=True)) if pairs else ([], [])
    return {
        own: name
        for own, name in pairs
        if own not in found
        and operation.requires(own)
        and owns.count(own) == names.count(name) == 1
    }


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


def _takes_any_name(function: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
