"""
The grammar of legal orders of evaluation: what a correct implementation chooses, the alternatives
of each choice, and the choices that an operation has.

An implementation is derived by taking one alternative of every choice of its operation, and one of
the ARITHMETICS; what the derivation needs to have declared (blocks, merged parts, the form of tanh)
is declared with it. The right implementations of the bounds' tests are all generated from here.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

Choose = Callable[[Sequence[Any]], Any]


def choice(*alternatives: str) -> Any:
    return field(default=alternatives[0], metadata={"alternatives": alternatives})


@dataclass(frozen=True)
class Order:
    """
    One alternative of each choice; the first is what unfused framework code does.

    sums         the order of a sum, of products too: as the library has it, one by one, from the
                 end, in pairs of pairs, in blocks of four, in four lanes
    multiply     a product is rounded before it is added, or is not
    addend       what is added to a sum of products (a bias, a mask, a residual, another sum) comes
                 last, or is what the sum begins with
    tree         in which order several sums are added
    scale        after the product, as a division, on the query, by its root on both sides, by the
                 library as it multiplies, on each of several parts
    factors      sums of vectors come before their product, the other way, or are multiplied apart
    projection   of additive attention: two products, one of the joined vectors, one on top of the
                 other
    tangent      tanh of the library, by one exponential (two forms), by one for each side
    exponential  base e; base 2 with both exponents rounded; with one fused multiply-add
    functions    as good as the library's, or as bad as declared
    softmax      a row at once; online over blocks; parts that are merged by their maxima, or by
                 their log-sum-exp
    block        keys of a block; parts: how many; keys: in which direction
    division     by the normaliser: a quotient or a product with its reciprocal, before or after the
                 values; or its logarithm subtracted in the exponent
    dropout      its factor on the weights, as a division, on the values, last
    saved        the backward pass takes the weights from the forward one, or from the log-sum-exp
    mean         of a row's gradients: from the weights, or from the output
    difference   subtracted and then weighted, or weighted and then subtracted
    maximum      is a constant to the gradient, or every step is differentiated, it too
    d_scale      the gradients' scale on those of the scores, on the products, on the other factor
    square       1 - t^2 as it stands, or as (1 - t)(1 + t); w: before or after it
    linear       the bias added to what was stored, or before that
    norm         centred and divided, times the reciprocal root, or z a - mu a; folded with the gain
    slopes       running product, power, base 2, exponential of a logarithm
    frequency    exponential, power, reciprocal power
    """

    sums: str = choice("library", "forward", "backward", "pairwise", "blocked", "lanes")
    multiply: str = choice("rounded", "fused")
    addend: str = choice("last", "first")
    tree: str = choice("left", "right", "pairs", "crossed")
    scale: str = choice("after", "divided", "query", "halves", "library", "parts")
    factors: str = choice("query", "key", "apart")
    projection: str = choice("apart", "joined", "on top")
    tangent: str = choice("library", "one minus", "sigmoid", "each side")
    exponential: str = choice("e", "two", "two fused")
    functions: str = choice("library", "worst")
    softmax: str = choice("row", "online", "maxima", "merged")
    block: str = choice("16", "1", "2", "3")
    parts: str = choice("2", "3")
    keys: str = choice("forward", "backward")
    division: str = choice("before", "after", "reciprocal before", "reciprocal after", "exponent")
    dropout: str = choice("weights", "divided", "values", "last")
    saved: str = choice("weights", "lse")
    mean: str = choice("weights", "output")
    difference: str = choice("subtracted", "weighted")
    maximum: str = choice("detached", "differentiated")
    d_scale: str = choice("scores", "products", "factor")
    square: str = choice("square", "factors", "square last", "factors last")
    linear: str = choice("apart", "fused")
    norm: str = choice("quotient", "root", "shifted", "folded")
    slopes: str = choice("running product", "power", "base 2", "exponential")
    frequency: str = choice("exponential", "power", "reciprocal")

    def __str__(self) -> str:
        usual = asdict(Order())
        said = [f"{name}={value}" for name, value in asdict(self).items() if value != usual[name]]
        return ", ".join(said) or "as the library does"


ALTERNATIVES: dict[str, tuple[str, ...]] = {
    each.name: each.metadata["alternatives"] for each in fields(Order)
}


def alternatives(operation: str, name: str) -> tuple[str, ...]:
    """What an operation can choose from: a score of one product has no parts to scale apart."""
    absent = set()
    if "tree" not in CHOICES[operation]:
        absent.add("parts")
    if operation.startswith("transformer_xl"):
        absent.add("key")  # its two products have no factor in common but the query
    return tuple(each for each in ALTERNATIVES[name] if each not in absent)


SUMS = ("sums", "multiply")
ADDED = (*SUMS, "addend")
PRODUCTS = (*ADDED, "scale")
PARTS = (*PRODUCTS, "tree", "factors")
ADDITIVE = (*ADDED, "projection", "tangent", "functions")
ROWS = ("exponential", "functions", "softmax", "block", "parts", "keys", "division", *SUMS)
MIXED = (*ROWS, "dropout")
BACK = ("saved", "mean", "difference", "maximum")
BACK_SCALED = (*BACK, "d_scale")

CHOICES: dict[str, tuple[str, ...]] = {
    "scaled_dot_product_score": PRODUCTS,
    "additive_score": ADDITIVE,
    "transformer_xl_score": PARTS,
    "learned_relative_score": PARTS,
    "softmax": ROWS,
    "dropout": ("dropout",),
    "scaled_dot_product_attention": (*PRODUCTS, *MIXED),
    "additive_attention": (*ADDITIVE, *MIXED),
    "alibi_attention": (*PRODUCTS, *ROWS, "slopes"),
    "transformer_xl_attention": (*PARTS, *ROWS),
    "learned_relative_attention": (*PARTS, *ROWS),
    "sinusoidal_positions": ("frequency", "functions"),
    "merge_attention": (*ROWS, "saved"),
    "dequantize": ("multiply",),
    "rotary_embedding": ("frequency", "functions", "multiply"),
    "get_slopes": ("slopes", "functions"),
    "get_alibi_biases": ("slopes", "functions"),
    "self_attention": (*PRODUCTS, *MIXED),
    "multi_head_attention": (*PRODUCTS, *MIXED, "linear"),
    "multi_head_self_attention": (*PRODUCTS, *MIXED, "linear"),
    "relative_multi_head_attention": (*PARTS, *MIXED, "linear"),
    "alibi_multi_head_attention": (*PRODUCTS, *MIXED, "linear", "slopes"),
    "transformer_xl_layer": (*PARTS, *MIXED, "linear", "norm"),
    "transformer_xl": (*PARTS, *MIXED, "linear", "norm", "frequency"),
}
CHOICES |= {
    "softmax_grad": (*CHOICES["softmax"], "difference", "maximum"),
    "dropout_grad": CHOICES["dropout"],
    "merge_attention_grad": (*ROWS, *BACK),
    "rotary_embedding_grad": ("frequency", "functions", "mean", *SUMS),
    **{
        f"{layer}_grad": (*CHOICES[layer], *BACK_SCALED)
        for layer in CHOICES
        if "linear" in CHOICES[layer] or layer == "self_attention"
    },
    "scaled_dot_product_score_grad": (*ADDED, "d_scale"),
    "additive_score_grad": (*CHOICES["additive_score"], "square"),
    "transformer_xl_score_grad": (*ADDED, "factors", "d_scale"),
    "learned_relative_score_grad": (*ADDED, "factors", "d_scale"),
    "scaled_dot_product_attention_grad": (*CHOICES["scaled_dot_product_attention"], *BACK_SCALED),
    "additive_attention_grad": (*CHOICES["additive_attention"], *BACK, "square"),
    "alibi_attention_grad": (*CHOICES["alibi_attention"], *BACK_SCALED),
    "transformer_xl_attention_grad": (*CHOICES["transformer_xl_attention"], *BACK_SCALED),
    "learned_relative_attention_grad": (*CHOICES["learned_relative_attention"], *BACK_SCALED),
}
CHOICES = {operation: tuple(dict.fromkeys(named)) for operation, named in CHOICES.items()}

Declaration = dict[str, Any]


@dataclass(frozen=True)
class Arithmetic:
    """What is declared, given the dtype, and what it asks of the order."""

    declared: Callable[[str], Declaration]
    asks: dict[str, str] = field(default_factory=dict)


def preset(name: str, **more: Any) -> Arithmetic:
    return Arithmetic(lambda dtype: {"preset": name, **more})


ARITHMETICS: dict[str, Arithmetic] = {
    "eager": preset("eager"),
    "fused": preset("fused"),
    "wide": preset("wide"),
    "sloppy": preset("sloppy"),
    "stored steps": Arithmetic(
        lambda dtype: {"preset": "eager", "step": dtype},
        {"softmax": "row", "exponential": "e", "saved": "weights"},
    ),
    "tf32": preset("fused", operand="tf32"),
    "narrow sums": Arithmetic(lambda dtype: {"preset": "eager", "acc": dtype}),
    "narrow parts": Arithmetic(
        lambda dtype: {"preset": "fused", "partial": dtype}, {"sums": "blocked"}
    ),
    "narrow blocks": Arithmetic(
        lambda dtype: {
            "preset": "fused", "grad_partial": dtype, "grad_block_q": 4, "grad_block_k": 4,
        }
    ),
    "lanes": Arithmetic(lambda dtype: {"preset": "wide", "lanes": 4}, {"sums": "lanes"}),
    "cut sums": preset("fused", acc_unit=2.0**-22),
    "one pass": preset("wide", variance="one_pass"),
    "absolute bias": preset("eager", bias_form="absolute"),
}  # fmt: skip
"""
Narrow partial results, accumulators that cut off, variances in one pass are legal where they are
declared, and nowhere else.
"""


def arithmetics_of(operation: str, dtype: str) -> tuple[str, ...]:
    """The arithmetics in which the operation can be computed."""
    absent = set()
    if "norm" not in CHOICES[operation]:
        absent.add("one pass")
    if not operation.startswith("alibi_attention"):
        absent.add("absolute bias")
    if not operation.endswith("_grad"):
        absent.add("narrow blocks")
    if dtype == "float64":
        absent |= {"tf32", "cut sums"}
    return tuple(name for name in ARITHMETICS if name not in absent)


@dataclass(frozen=True)
class Derivation:
    """One implementation: an operation, what it declares, an order."""

    operation: str
    arithmetic: str
    order: Order

    def declaration(self, dtype: str) -> Declaration:
        """The arithmetic's own, and what the order needs to have declared."""
        declared = dict(ARITHMETICS[self.arithmetic].declared(dtype))
        named = CHOICES[self.operation]
        if "softmax" in named and self.order.softmax != "row":
            declared |= {"block": int(self.order.block)}
            declared |= {"lse_merge": True} if self.order.softmax == "merged" else {}
        if "division" in named and (self.order.softmax, self.order.division) == ("row", "exponent"):
            declared |= {"weights": "lse"}
        if "maximum" in named:
            declared["maximum"] = self.order.maximum
        if "tangent" in named and self.order.tangent != "library":
            declared["tanh_form"] = "exponential"
        return declared

    def __str__(self) -> str:
        return f"{self.operation}, {self.arithmetic}: {self.order}"


def derive(operation: str, arithmetic: str, **chosen: str) -> Derivation:
    """The implementation that makes these choices, as far as the operation has them."""
    asked = {**chosen, **ARITHMETICS[arithmetic].asks}
    named = {name: value for name, value in asked.items() if name in CHOICES[operation]}
    return Derivation(operation, arithmetic, Order(**named))


def draw_derivation(choose: Choose, operation: str, dtype: str) -> Derivation:
    """Any implementation of the operation."""
    arithmetic = choose(arithmetics_of(operation, dtype))
    return derive(
        operation,
        arithmetic,
        **{name: choose(alternatives(operation, name)) for name in CHOICES[operation]},
    )


def mutate(choose: Choose, derived: Derivation, dtype: str) -> Derivation:
    """The same with one choice made anew."""
    name = choose((*CHOICES[derived.operation], "arithmetic"))
    if name == "arithmetic":
        arithmetic = choose(arithmetics_of(derived.operation, dtype))
        return derive(derived.operation, arithmetic, **asdict(derived.order))
    asks = ARITHMETICS[derived.arithmetic].asks
    made = asks.get(name) or choose(alternatives(derived.operation, name))
    order = replace(derived.order, **{name: made})
    return replace(derived, order=order)
