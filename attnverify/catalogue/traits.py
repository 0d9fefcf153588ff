"""
What is known of each operation beyond its signature: one table, a row an operation.

Whatever an annotation of the specification says already (axes, masks, options, whether an argument
may be left out) is read off it by :class:`attnverify.catalogue.Operation` and does not stand here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from attnverify import spec
from attnverify.contract import layers

CHAPTERS = (
    "scores",
    "masks",
    "attention",
    "shifts",
    "relative",
    "alibi",
    "memory",
    "layers",
    "grouped",
    "latent",
    "selected",
    "packed",
    "paged",
    "quantized",
    "rotary",
)
DTYPES = ("float64", "float32", "float16", "bfloat16")
ASPECTS = ("values", "gradients", "refusals", "side effects", "hidden NaN", "isolation")
"""The columns of a verdict."""

CHECKS = ("long sequences", "relations", "systematic errors", "conventions", "benchmarks")
"""What is done with an operation unless its row says why not; the rest is done with every one."""


@dataclass(frozen=True)
class Traits:
    """
    One row of the table.

    families    of numbers that its inputs are drawn from
    exact       it moves numbers and computes none: it must agree bit for bit
    causal      no query sees a key behind its own place
    square      it has as many keys as queries
    positional  exchanging two keys with their values changes the output
    slopes      it adds ALiBi's bias, another one for each head
    staged      it consists of the stages of :mod:`attnverify.reference.staged_attention`
    even_width  its sines and cosines share the model width
    parameters  the arrays in its mapping ``parameters``, as a pattern of the specification
    option      more of them, which are there together or not at all
    wide        arguments that have at least float32 whatever the dtype, and the places of such
                outputs (of its gradient those of the arguments)
    mask_axes   the documented shapes of its mask (or of its draw, where it has no mask)
    skipped     the checks that do not apply to it, each with the reason
    """

    families: tuple[str, ...] = ("normal",)
    exact: bool = False
    causal: bool = False
    square: bool = False
    positional: bool = False
    slopes: bool = False
    staged: bool = False
    even_width: bool = False
    parameters: str = ""
    option: str = ""
    wide: tuple[str, ...] = ()
    wide_outputs: tuple[int, ...] = ()
    mask_axes: tuple[str, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)


_SCORE_FAMILIES = (
    *("normal", "spread", "lattice", "ties", "uniform", "small", "large", "zero_sum", "brink"),
)
_ATTENTION_FAMILIES = (
    *("normal", "needles", "identity", "spread", "peaked", "correlated", "large", "brink", "ties"),
    *("lattice", "zero_sum", "uniform", "small", "offset_values", "one_signed", "huge_values"),
    "subnormal",
)
_LAYER_FAMILIES = (
    *("normal", "spread", "lattice", "ties", "uniform", "small", "large", "offset_values"),
)
SATURATING = ("large", "offset_values")
"""Families in which a layer's softmax has one weight and no derivative; its bound says nothing."""

_WITHOUT_HEADS = ("N M", "B N M", "B 1 M", "B N 1")
_WITH_HEADS = ("N M", "B H N M", "B 1 N M", "B 1 1 M", "1 H N M", "B 1 N 1")
_PER_HEAD = ("N M", "B*H N M")

_PART = {
    "relations": "no keys are summed",
}
_MOVED = {
    "relations": "it is judged bit for bit",
    "systematic errors": "it computes nothing",
}
_TABLE = {
    "relations": "it has no keys",
    "systematic errors": "a factor that is off shows in every element",
}
_LAYER = {
    "relations": "it is made of an attention that is judged so",
    "systematic errors": "it is made of an attention that is judged so",
}
_GROUPED = {
    "relations": "its two outputs are related in its own chapter's tests",
    "systematic errors": "its factors are options, which the bound sees one by one",
    "long sequences": "its bound is derived of all pairs at once, at most two thousand",
}
_SHORT = {"long sequences": "it has no keys"}
_ONE_WAY = {"conventions": "nothing in it is met otherwise in public code"}
GRADIENT_SKIPS = {
    "relations": "those of its operation are judged on the outputs",
    "systematic errors": "those of its operation are measured on the outputs",
}
"""Of every gradient, beside what its operation skips."""

UNTIMED_GRADIENT = {"benchmarks": "the gradients of the attentions are timed"}
"""Of a gradient that is not an attention's."""

UNSTAGED_GRADIENT = {"conventions": "those of its operation are met in its outputs"}
"""Of a gradient whose operation is not made of stages."""

TRAITS: dict[str, Traits] = {
    "additive_score": Traits(_SCORE_FAMILIES, staged=True, skipped=_PART | _ONE_WAY),
    "scaled_dot_product_score": Traits(_SCORE_FAMILIES, staged=True, skipped=_PART),
    "causal_mask": Traits(exact=True, skipped=_MOVED),
    "merge_masks": Traits(exact=True, mask_axes=_PER_HEAD, skipped=_MOVED),
    "visible_keys": Traits(exact=True, skipped=_MOVED),
    "softmax": Traits(
        ("normal", "spread", "large", "minus_infinity", "ties", "small", "uniform", "brink"),
        staged=True,
        mask_axes=("N M", "1 M", "N 1"),
        skipped={"systematic errors": "it has no factor of its own"},
    ),
    "dropout": Traits(
        ("normal", "uniform", "lattice", "small", "huge_values", "subnormal"),
        mask_axes=("1 M", "N 1"),
        skipped=_PART | {"systematic errors": _TABLE["systematic errors"]},
    ),
    "additive_attention": Traits(_ATTENTION_FAMILIES, staged=True, mask_axes=_WITHOUT_HEADS),
    "scaled_dot_product_attention": Traits(_ATTENTION_FAMILIES, staged=True, mask_axes=_WITH_HEADS),
    "shift_right": Traits(("normal", "special", "lattice"), exact=True, skipped=_MOVED),
    "rel_shift": Traits(("normal", "special", "lattice"), exact=True, skipped=_MOVED),
    "sinusoidal_positions": Traits(even_width=True, skipped=_TABLE),
    "transformer_xl_score": Traits(_SCORE_FAMILIES, positional=True, staged=True, skipped=_PART),
    "transformer_xl_attention": Traits(
        _ATTENTION_FAMILIES, causal=True, positional=True, staged=True, mask_axes=_WITH_HEADS
    ),
    "learned_relative_score": Traits(_SCORE_FAMILIES, positional=True, staged=True, skipped=_PART),
    "learned_relative_attention": Traits(
        _ATTENTION_FAMILIES, positional=True, staged=True, mask_axes=_WITH_HEADS
    ),
    "get_slopes": Traits(skipped=_TABLE | _SHORT),
    "get_alibi_biases": Traits(mask_axes=("N M",), skipped={"relations": _TABLE["relations"]}),
    "alibi_attention": Traits(
        _ATTENTION_FAMILIES,
        causal=True,
        positional=True,
        slopes=True,
        staged=True,
        mask_axes=_WITH_HEADS,
    ),
    "init_mems": Traits(exact=True, skipped=_MOVED | _ONE_WAY | _SHORT),
    "update_mems": Traits(("normal", "special"), exact=True, skipped=_MOVED),
    "merge_attention": Traits(
        ("normal", "spread", "absent_parts", "far_lses", "ties", "lattice", "large", "huge_values"),
        wide=("lses", "d_lse"),
        wide_outputs=(1,),
        skipped=_TABLE | _SHORT,
    ),
    "grouped_attention": Traits(
        (*_ATTENTION_FAMILIES, "spotlight"),
        wide=("d_lse",),
        wide_outputs=(1,),
        mask_axes=_WITH_HEADS,
        skipped=_GROUPED,
    ),
    "latent_attention": Traits(
        (*_ATTENTION_FAMILIES, "spotlight"),
        wide=("d_lse",),
        wide_outputs=(1,),
        skipped=_GROUPED,
    ),
    "selected_attention": Traits(
        (*_ATTENTION_FAMILIES, "spotlight"),
        wide=("d_lse",),
        wide_outputs=(1,),
        skipped=_GROUPED,
    ),
    "packed_attention": Traits(
        (*_ATTENTION_FAMILIES, "spotlight"),
        wide=("d_lse",),
        wide_outputs=(1,),
        skipped=_GROUPED,
    ),
    "paged_attention": Traits(
        (*_ATTENTION_FAMILIES, "spotlight"), wide_outputs=(1,), skipped=_GROUPED
    ),
    "dequantize": Traits(
        ("normal", "spread", "lattice", "ties", "one_signed", "small", "large", "huge_values"),
        skipped=_TABLE | _SHORT,
    ),
    "rotary_embedding": Traits(
        (
            *("normal", "spread", "lattice", "ties", "uniform", "one_signed", "small", "large"),
            "huge_values",
        ),
        wide=("frequencies",),
        skipped=_TABLE | _SHORT,
    ),
    "self_attention": Traits(
        _LAYER_FAMILIES,
        square=True,
        parameters=layers.SELF_ATTENTION,
        mask_axes=_WITHOUT_HEADS,
        skipped=_LAYER,
    ),
    "multi_head_attention": Traits(
        _LAYER_FAMILIES,
        parameters=layers.MULTI_HEAD,
        mask_axes=_PER_HEAD,
        skipped=_LAYER,
    ),
    "multi_head_self_attention": Traits(
        _LAYER_FAMILIES,
        square=True,
        parameters=layers.MULTI_HEAD,
        mask_axes=_PER_HEAD,
        skipped=_LAYER,
    ),
    "relative_multi_head_attention": Traits(
        _LAYER_FAMILIES,
        positional=True,
        parameters=layers.RELATIVE,
        mask_axes=_WITH_HEADS,
        skipped=_LAYER,
    ),
    "alibi_multi_head_attention": Traits(
        _LAYER_FAMILIES,
        square=True,
        positional=True,
        slopes=True,
        parameters=layers.ALIBI,
        mask_axes=("N M",),
        skipped=_LAYER,
    ),
    "transformer_xl_layer": Traits(
        _LAYER_FAMILIES,
        causal=True,
        positional=True,
        parameters=layers.TRANSFORMER_XL,
        option=layers.FEED_FORWARD,
        mask_axes=_WITH_HEADS,
        skipped=_LAYER | _ONE_WAY,
    ),
    "transformer_xl": Traits(
        _LAYER_FAMILIES,
        causal=True,
        positional=True,
        even_width=True,
        parameters=layers.TRANSFORMER_XL,
        option=layers.FEED_FORWARD,
        skipped=_ONE_WAY | {"systematic errors": _LAYER["systematic errors"]},
    ),
}

EXACT = frozenset(
    name for name in spec.__all__ if (row := TRAITS[name.removesuffix("_grad")]) and row.exact
)
"""Operations without a bound."""

LETTERS = {
    "B": "entries of the batch",
    "H": "heads",
    "N": "queries (rows)",
    "M": "keys and values (columns)",
    "D": "width of a query and a key, in one head",
    "E": "width of a value",
    "Q": "width of a query before its projection",
    "K": "width of a key before its projection",
    "F": "width of the model",
    "A": "hidden width of the additive score",
    "P": "offsets on each side of a learned table, which has 2P rows",
    "S": "positions of memory",
    "L": "layers",
    "C": "parts that are merged",
    "G": "heads of keys and values, each shared by as many heads of queries",
    "I": "inner width of a feed-forward",
    "J": "blocks that a row may choose",
    "R": "pairs of channels that are turned",
    "T": "queries of all sequences, end to end",
    "U": "keys and values of all sequences, end to end",
    "W": "slots of a page",
    "Y": "pages that a sequence may have",
    "Z": "pages of the pool",
}
"""The sizes in the shapes of arguments, in words."""
