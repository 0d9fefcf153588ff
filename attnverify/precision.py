"""
What a backend says of its own arithmetic: number formats, the Precision record, and how a
declaration is read.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any


@dataclass(frozen=True)
class Format:
    """
    A binary floating-point format: p significant bits, smallest normal exponent emin, largest
    finite number max.
    """

    name: str
    p: int
    emin: int
    max: float
    ftz: bool = False
    truncates: bool = False

    @cached_property
    def u(self) -> float:
        """The unit roundoff: 2^-p to nearest, twice that where the format cuts off."""
        return 2.0 ** (-self.p + self.truncates)

    @cached_property
    def tiny(self) -> float:
        """The smallest normal number."""
        return float(2.0**self.emin)

    @cached_property
    def eta(self) -> float:
        """
        The absolute error of one rounding below `tiny`: half the smallest subnormal, or `tiny`
        itself where it flushes.
        """
        half_subnormal = 2.0 ** max(
            self.emin - self.p, -1074
        )  # float64 has no half of its smallest subnormal
        return self.tiny if self.ftz else half_subnormal * (1 + self.truncates)


FLOAT64 = Format("float64", 53, -1022, float.fromhex("0x1.fffffffffffffp1023"))
FLOAT32 = Format("float32", 24, -126, float.fromhex("0x1.fffffep127"))
FLOAT16 = Format("float16", 11, -14, 65504.0)
BFLOAT16 = Format("bfloat16", 8, -126, float.fromhex("0x1.fep127"))
TF32 = Format("tf32", 11, -126, float.fromhex("0x1.ffcp127"), truncates=True)
FLOAT8_E4M3 = Format("float8_e4m3", 4, -6, 448.0)
FLOAT8_E5M2 = Format("float8_e5m2", 3, -14, 57344.0)

_PLAIN = (FLOAT64, FLOAT32, FLOAT16, BFLOAT16, TF32, FLOAT8_E4M3, FLOAT8_E5M2)
FORMATS = {f.name: f for f in _PLAIN} | {f"{f.name}_ftz": replace(f, ftz=True) for f in _PLAIN}
DTYPES = ("float64", "float32", "float16", "bfloat16")


def at_least_float32(storage: Format) -> Format:
    """What a log-sum-exp is stored in beside outputs of this format."""
    return storage if storage.p >= FLOAT32.p else FLOAT32


@dataclass(frozen=True)
class Precision:
    """
    The arithmetic that a bound assumes, stage by stage. A format answers: what is this intermediate
    rounded to?

    storage      inputs (exact) and outputs
    acc          dot products and sums; acc_unit: error of one accumulation step where it is coarser
                 than acc.u; lanes: partial sums that are guaranteed to run side by side; partial:
                 what split-K partials are kept in
    score        q.k, and the score after its scale and after each bias
    softmax      maximum, exp and normaliser; exp_ulps, tanh_ulps, sin_ulps: ulps of this format
                 those functions may err; tanh_form "exponential": tanh is 1 - 2/(1 + exp(2z)) or
                 2 sigmoid(2z) - 1, whose error is one of the size of 1 near zero too, and expm1
                 is exp(z) - 1, log1p is log(1 + z)
    prob         weights before the product with the values, and the score's gradient before its
                 products
    bias         ALiBi slopes and biases; bias_form "absolute": slope*j is added instead of
                 slope*(j - i)
    joined       sums formed before a product: q + u, k + a (the contract's u_form)
    stage        what a layer keeps between projection, attention, projection, residual
    prescale     scaled queries and keys, where the scale comes before the product; None: they are
                 never stored, and what scales them on their way in (alpha of a BLAS) is acc
    scale_const  1/sqrt(D) and 1/(1-p) themselves; None: acc
    operand      operands on their way into a matrix product (TF32)
    step         what each step of a specification is stored in, and each part of a sum that is
                 added in memory, as by a library that is called step by step; None: what the fields
                 above say. Bounds written by hand read it for the steps of a softmax alone
    block        smallest key block of an online softmax; lse_merge: partial results merge through
                 exp(lse_b - lse): nothing is divided by their sum as it came out, and an error of
                 lse is one of the whole row
    weights      "quotient", or "lse": they are exp(s - lse), where that holds as well
    grad_partial gradients kept in this between blocks of grad_block_q queries and grad_block_k keys
    maximum      "detached", or "differentiated": the gradient goes through the maximum that is
                 subtracted from the scores too, to the keys that have it, where it cancels but for
                 what was rounded
    variance     "stable" (two-pass, Welford, Chan) or "one_pass" (mean of squares minus square of
                 the mean)
    slack        a factor on the bound, visible in the report; 1 means the derived bound
    """

    storage: Format
    acc: Format = FLOAT32
    score: Format = FLOAT32
    softmax: Format = FLOAT32
    prob: Format = FLOAT32
    bias: Format = FLOAT32
    joined: Format = FLOAT32
    stage: Format = FLOAT32
    prescale: Format | None = None
    scale_const: Format | None = None
    operand: Format | None = None
    partial: Format | None = None
    step: Format | None = None
    grad_partial: Format | None = None
    acc_unit: float | None = None
    lanes: int = 1
    block: int = 16
    grad_block_q: int = 32
    grad_block_k: int = 512
    lse_merge: bool = False
    exp_ulps: float = 4.0
    tanh_ulps: float = 4.0
    sin_ulps: float = 4.0
    weights: str = "quotient"
    maximum: str = "detached"
    variance: str = "stable"
    tanh_form: str = "relative"
    bias_form: str = "relative"
    slack: float = 1.0

    @property
    def by_lse(self) -> bool:
        """Whether something is multiplied by exp(... - lse), and not divided by a sum."""
        return self.lse_merge or self.weights == "lse"

    @property
    def unit_of_steps(self) -> float:
        """What storing a step of a softmax loses where that is more than `softmax` does, else 0."""
        return self.step.u if self.step and self.step.u > self.softmax.u else 0.0

    @property
    def eta_of_steps(self) -> float:
        """The same below the smallest normal number."""
        return self.step.eta if self.step and self.unit_of_steps else 0.0


def _widest_format(storage: Format) -> Format:
    return replace(FLOAT64, ftz=False) if storage.p == FLOAT64.p else FLOAT32


def eager(storage: Format) -> Precision:
    """
    Unfused framework code: what is written to memory is in storage, what stays in a kernel is wide.
    """
    acc = _widest_format(storage)
    return Precision(storage, acc, storage, acc, storage, acc, joined=storage, stage=storage)


def fused(storage: Format) -> Precision:
    """
    A flash-style kernel: scores and softmax wide, weights in storage on their way into the product.
    """
    acc = _widest_format(storage)
    return Precision(
        storage, acc, acc, replace(acc, ftz=True), storage, acc, joined=storage, stage=storage
    )


def wide(storage: Format) -> Precision:
    """Compute in the wide format throughout, round once at the end."""
    acc = _widest_format(storage)
    return Precision(storage, acc, acc, acc, acc, acc, joined=acc, stage=acc, prescale=acc)


def sloppy(storage: Format) -> Precision:
    """
    Every stage in storage but the accumulators: nothing we ship, the last resort for users'
    backends.
    """
    acc = _widest_format(storage)
    return Precision(
        storage,
        acc,
        storage,
        storage,
        storage,
        storage,
        joined=storage,
        stage=storage,
        prescale=storage,
        scale_const=storage,
    )


def stepwise(storage: Format) -> Precision:
    """
    Every step of a specification written to memory in storage, whatever it computes: what a library
    answers that is called step by step.
    """
    return replace(sloppy(storage), step=storage)


PRESETS = {
    "eager": eager,
    "fused": fused,
    "wide": wide,
    "sloppy": sloppy,
    "stepwise": stepwise,
}
UNDECLARED = "eager"
REFERENCE = wide(FLOAT64)

WORDS = {
    "kept": ("prob", "joined", "stage"),
    "interior": ("score", "softmax", "bias"),
    "accumulate": ("acc",),
}
"""
An arithmetic in four words, for operations that have no scores or weights: what is written between
steps, what is computed within one, what sums are made in, and ``operand``. They stand for fields of
the record: "wide" is all of them wide, "fused" has kept in storage, "eager" its scores as well,
"sloppy" the interior too, "stepwise" every single step.
"""

_KINDS: dict[str, Any] = {f.name: f.type for f in fields(Precision)}
_LEAST = {
    "acc_unit": 0.0,
    "lanes": 1,
    "block": 1,
    "grad_block_q": 1,
    "grad_block_k": 1,
    "slack": 1.0,
}
_CHOICES = {
    "weights": ("quotient", "lse"),
    "maximum": ("detached", "differentiated"),
    "variance": ("stable", "one_pass"),
    "tanh_form": ("relative", "exponential"),
    "bias_form": ("relative", "absolute"),
}


def _flush(precision: Precision) -> Precision:
    """
    Give every format of an arithmetic its flushing twin; of float16 subnormal numbers are computed
    in float32, where they are normal.
    """
    formats = {name: x for name, x in vars(precision).items() if isinstance(x, Format)}
    flushed: dict[str, Any] = {
        name: FORMATS[f"{x.name.removesuffix('_ftz')}_ftz"]
        for name, x in formats.items()
        if not x.name.startswith("float16")
    }
    return replace(precision, **flushed)


def resolve(
    declared: object,
    operation: str,
    implementation: str,
    dtype: str,
    flushes: bool = False,
    undeclared: str = UNDECLARED,
) -> Precision:
    """
    Find the Precision that a backend's PRECISION declares for one operation, implementation and
    dtype.

    A declaration is None (judged as ``undeclared``), a preset's name, a mapping of Precision fields
    with an optional "preset", or a mapping from operations, implementations, dtypes and "*" to
    declarations. The most specific key that leads to an answer wins: implementation, operation,
    dtype, "*"; `<op>_grad_how` takes what is declared for `<op>_how` where it has no key of its
    own.

    ``flushes``: the library counts subnormal numbers of the dtype as 0. A preset says how often is
    rounded, and nothing of that; a format that is named stays as it is.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype: wanted one of {', '.join(DTYPES)}, got {dtype!r}")
    found = find_fields(declared, operation, implementation, dtype) or {"preset": undeclared}
    return _build_precision(found, dtype, flushes)


def find_fields(
    declared: object, operation: str, implementation: str, dtype: str
) -> dict[str, Any]:
    """Find the fields that a backend's PRECISION declares, none where it does not."""
    leaf = _find_leaf(declared, _list_selectors(operation, implementation, dtype))
    return {"preset": leaf} if isinstance(leaf, str) else dict(leaf or {})


def _list_selectors(operation: str, implementation: str, dtype: str) -> list[str]:
    names = [implementation, operation]
    if operation.endswith("_grad"):
        names += [name.replace(operation, operation.removesuffix("_grad"), 1) for name in names]
    return list(dict.fromkeys([*names, dtype, "*"]))


def _find_leaf(declared: object, selectors: list[str]) -> str | Mapping[str, Any] | None:
    """
    Follow the selectors down to a preset's name or a mapping of fields; None where no key applies.
    """
    if declared is None:
        return None
    if isinstance(declared, str):
        if declared not in PRESETS:
            raise ValueError(f"PRECISION: wanted a preset ({', '.join(PRESETS)}), got {declared!r}")
        return declared
    if not isinstance(declared, Mapping):
        raise ValueError(
            f"PRECISION: wanted a preset's name or a mapping, got {type(declared).__name__}"
        )
    if names_fields(declared):
        return declared
    for key, value in declared.items():
        _check_selector(key, value)
    found = (_find_leaf(declared[name], selectors) for name in selectors if name in declared)
    return next((leaf for leaf in found if leaf is not None), None)


def names_fields(declared: Mapping[Any, Any]) -> bool:
    """Tell whether a mapping is one of fields, and not of dtypes, operations or functions."""
    return all(_is_field(key, value) for key, value in declared.items())


def _is_field(key: object, value: object) -> bool:
    # softmax is a field and an operation: it is a field where a format stands behind it
    return (
        key == "preset"
        or key in WORDS
        or (
            key in _KINDS
            and not (key == "softmax" and not (isinstance(value, str) and value in FORMATS))
        )
    )


def _check_selector(key: object, value: object) -> None:
    from attnverify.catalogue import CATALOGUE

    known = isinstance(key, str) and (
        key == "*"
        or key in DTYPES
        or any(key == name or key.startswith(f"{name}_") for name in CATALOGUE)
    )
    if not known or _is_field(key, value):
        wanted = (
            f"only fields ({', '.join(['preset', *WORDS, *_KINDS])}) or only operations, "
            "implementations, dtypes and '*'"
        )
        raise ValueError(f"PRECISION: wanted {wanted}, got {key!r}")


def _build_precision(declared: dict[str, Any], dtype: str, flushes: bool) -> Precision:
    preset = declared.pop("preset", UNDECLARED)
    if preset not in PRESETS:
        raise ValueError(f"PRECISION preset: wanted one of {', '.join(PRESETS)}, got {preset!r}")
    words = {word: declared.pop(word) for word in WORDS if word in declared}
    declared = {field: words[word] for word in words for field in WORDS[word]} | declared
    given: dict[str, Any] = {
        name: _parse_storage(value, dtype) if name == "storage" else _parse_value(name, value)
        for name, value in declared.items()
    }
    storage = given.get("storage", FORMATS[dtype])
    if storage.p == FLOAT64.p and given.get("operand") is TF32:
        del given["operand"]  # TF32 is a mode of float32 products; float64 ones never take it
    made = PRESETS[preset](storage)
    return replace(_flush(made) if flushes else made, **given)


def changed(precision: Precision, said: Mapping[str, str]) -> Precision:
    """The same arithmetic but for some fields, as PRECISION says them."""
    fields: dict[str, Any] = {name: _parse_value(name, value) for name, value in said.items()}
    return replace(precision, **fields)


def _parse_storage(name: object, dtype: str) -> Format:
    if name not in (dtype, f"{dtype}_ftz"):
        raise ValueError(f"PRECISION storage: wanted {dtype} or {dtype}_ftz, got {name!r}")
    return FORMATS[str(name)]


def _parse_value(name: str, value: object) -> object:
    if name in _CHOICES:
        wanted, fits = " or ".join(_CHOICES[name]), value in _CHOICES[name]
    elif "Format" in str(_KINDS[name]):
        optional = value is None and "None" in str(_KINDS[name])
        wanted, fits = (
            f"a format ({', '.join(FORMATS)})",
            optional or (isinstance(value, str) and value in FORMATS),
        )
        value = FORMATS.get(value) if fits and isinstance(value, str) else value
    elif name == "lse_merge":
        wanted, fits = "True or False", isinstance(value, bool)
    else:
        least = _LEAST.get(name, 0.0)
        kind = int if isinstance(least, int) else (int, float)
        wanted = f"{'an integer' if kind is int else 'a number'} >= {least}"
        fits = (
            isinstance(value, kind)
            and not isinstance(value, bool)
            and least <= value < float("inf")
        )
    if not fits:
        raise ValueError(f"PRECISION {name}: wanted {wanted}, got {value!r}")
    return value
