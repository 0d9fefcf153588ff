"""How a backend's PRECISION is read, and what the presets promise."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from attnverify.catalogue.dtypes import numpy_dtype
from attnverify.precision import (
    BFLOAT16,
    DTYPES,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    FORMATS,
    PRESETS,
    TF32,
    Format,
    Precision,
    resolve,
)

SDPA = "scaled_dot_product_attention"


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_format_knows_its_dtype(dtype: str) -> None:
    info, fmt = ml_dtypes.finfo(numpy_dtype(dtype)), FORMATS[dtype]
    assert fmt.u == float(info.eps) / 2
    assert fmt.max == float(info.max)
    assert fmt.tiny == float(info.tiny)
    assert fmt.eta == max(float(info.smallest_subnormal) / 2, 5e-324)


def test_a_truncating_format_errs_by_a_whole_unit() -> None:
    assert TF32.u == 2.0**-10
    assert replace(TF32, truncates=False).u == 2.0**-11


def test_a_flushing_format_loses_up_to_the_smallest_normal_number() -> None:
    assert FORMATS["float32_ftz"].eta == FLOAT32.tiny


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_preset_is_named(preset: str, dtype: str) -> None:
    assert resolve(preset, SDPA, SDPA, dtype) == PRESETS[preset](FORMATS[dtype])


def test_nothing_declared_is_judged_as_eager() -> None:
    assert resolve(None, SDPA, SDPA, "float16") == PRESETS["eager"](FLOAT16)


def test_float64_is_float64_throughout() -> None:
    for preset in PRESETS:
        P = resolve(preset, SDPA, SDPA, "float64")
        assert {
            each.p for each in (P.acc, P.score, P.softmax, P.prob, P.bias, P.stage, P.joined)
        } == {FLOAT64.p}


def test_float64_may_declare_less() -> None:
    assert resolve({"softmax": "float32"}, SDPA, SDPA, "float64").softmax == FLOAT32


def test_float64_products_never_take_tf32() -> None:
    declared = {"preset": "fused", "operand": "tf32"}
    assert resolve(declared, SDPA, SDPA, "float64").operand is None
    assert resolve(declared, SDPA, SDPA, "float32").operand is TF32


def test_fields_change_a_preset() -> None:
    P = resolve(
        {"preset": "fused", "exp_ulps": 20, "softmax": "bfloat16", "lse_merge": True},
        SDPA,
        SDPA,
        "float16",
    )
    assert replace(PRESETS["fused"](FLOAT16), exp_ulps=20, softmax=BFLOAT16, lse_merge=True) == P


def test_four_words_stand_for_fields_and_a_field_is_taken_before_them() -> None:
    words = {"kept": "float16", "interior": "bfloat16", "accumulate": "float32", "score": "float32"}
    found = resolve(words, SDPA, SDPA, "float16")
    assert {found.prob, found.joined, found.stage} == {FLOAT16}
    assert (found.softmax, found.score, found.acc) == (BFLOAT16, FLOAT32, FLOAT32)
    wide = {"preset": "wide", "kept": "float16"}
    assert resolve(wide, SDPA, SDPA, "float16").stage == FLOAT16


def test_storage_may_flush() -> None:
    assert (
        resolve({"storage": "bfloat16_ftz"}, SDPA, SDPA, "bfloat16").storage
        == FORMATS["bfloat16_ftz"]
    )


def test_fields_without_a_preset_change_eager() -> None:
    assert resolve({"block": 8}, SDPA, SDPA, "float16") == replace(
        PRESETS["eager"](FLOAT16), block=8
    )


NESTED = {
    f"{SDPA}_flash": {"float16": "fused", "*": "wide"},
    SDPA: {"preset": "eager", "prob": "float32"},
    "softmax": "wide",
    "float16": {"alibi_attention": "fused", "*": "sloppy"},
    "*": "wide",
}


@pytest.mark.parametrize(
    ("operation", "implementation", "dtype", "wanted"),
    [
        (SDPA, f"{SDPA}_flash", "float16", PRESETS["fused"](FLOAT16)),
        (SDPA, f"{SDPA}_flash", "float32", PRESETS["wide"](FLOAT32)),
        (SDPA, f"{SDPA}_other", "float16", replace(PRESETS["eager"](FLOAT16), prob=FLOAT32)),
        (
            f"{SDPA}_grad",
            f"{SDPA}_grad",
            "float16",
            replace(PRESETS["eager"](FLOAT16), prob=FLOAT32),
        ),
        (f"{SDPA}_grad", f"{SDPA}_grad_flash", "float16", PRESETS["fused"](FLOAT16)),
        ("softmax", "softmax", "float16", PRESETS["wide"](FLOAT16)),
        ("alibi_attention", "alibi_attention", "float16", PRESETS["fused"](FLOAT16)),
        ("dropout", "dropout", "float16", PRESETS["sloppy"](FLOAT16)),
        ("dropout", "dropout", "bfloat16", PRESETS["wide"](BFLOAT16)),
    ],
)
def test_the_most_specific_declaration_wins(
    operation: str, implementation: str, dtype: str, wanted: Precision
) -> None:
    assert resolve(NESTED, operation, implementation, dtype) == wanted


def test_what_no_key_covers_is_undeclared() -> None:
    assert resolve({"float16": "wide"}, SDPA, SDPA, "float32") == PRESETS["eager"](FLOAT32)
    assert resolve({SDPA: {"float16": "wide"}, "*": "fused"}, SDPA, SDPA, "float32") == PRESETS[
        "fused"
    ](FLOAT32)


@pytest.mark.parametrize(
    ("declared", "named", "came"),
    [
        ("eagre", "preset", "eagre"),
        ({"preset": "flash"}, "preset", "flash"),
        ({"accumulator": "float32"}, "acc", "accumulator"),
        ({"acc": "float33"}, "acc", "float33"),
        ({"acc": None}, "acc", "None"),
        ({"storage": "float32"}, "storage", "float32"),
        ({"block": 0}, "block", "0"),
        ({"block": 1.5}, "block", "1.5"),
        ({"slack": 0.5}, "slack", "0.5"),
        ({"exp_ulps": float("nan")}, "exp_ulps", "nan"),
        ({"lse_merge": 1}, "lse_merge", "1"),
        ({"variance": "welford"}, "variance", "welford"),
        ({"bias_form": True}, "bias_form", "True"),
        ({"sofmax": "wide"}, "PRECISION", "sofmax"),
        ({"softmax": "wide", "block": 4}, "PRECISION", "block"),
        ({SDPA: {"float16": 3}}, "PRECISION", "int"),
        (7, "PRECISION", "int"),
    ],
)
def test_a_wrong_declaration_is_refused_by_name(declared: object, named: str, came: str) -> None:
    with pytest.raises(ValueError, match="wanted") as refusal:
        resolve(declared, SDPA, SDPA, "float16")
    assert (
        named in str(refusal.value)
        and came in str(refusal.value)
        and "\n" not in str(refusal.value)
    )


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(ValueError, match=r"dtype: wanted one of float64.*got 'int8'"):
        resolve("eager", SDPA, SDPA, "int8")


def test_optional_formats_may_be_taken_back() -> None:
    assert resolve({"preset": "wide", "prescale": None}, SDPA, SDPA, "float16").prescale is None


def test_a_precision_can_be_a_key() -> None:
    assert (
        len(
            {resolve("eager", SDPA, SDPA, dtype) for dtype in DTYPES}
            | {resolve(None, SDPA, SDPA, "float64")}
        )
        == 4
    )


def test_rounding_to_a_format_errs_by_at_most_u() -> None:
    x = np.random.default_rng(0).standard_normal(1000)
    for dtype in ("float16", "bfloat16", "float32"):
        fmt: Format = FORMATS[dtype]
        assert (
            np.abs(x.astype(numpy_dtype(dtype)).astype(float) - x) <= fmt.u * np.abs(x) + fmt.eta
        ).all()
