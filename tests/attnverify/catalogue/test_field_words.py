"""Conditions on a recipe are told in words, and a line of known failures may say them so."""

import pytest

from attnverify.catalogue.field_words import FIELDS, TRUTHS, parse_sentence, say_field
from attnverify.inputs.conditions import parse_condition
from attnverify.inputs.given import GIVEN
from attnverify.inputs.masks import PATTERNS
from attnverify.inputs.memory_layouts import LAYOUTS
from attnverify.inputs.strategies import MASK_FORMS
from attnverify.inputs.value_families import FAMILIES

VALUES = {
    "poison": ("nan", "inf", "finite"),
    "mask.form": MASK_FORMS,
    "mask.axes": ("N M", "B 1 1 M"),
    "mask.pattern": (*PATTERNS, GIVEN),
    "padding.pattern": tuple(PATTERNS),
    "layout.kind": ("contiguous", "mixed", *LAYOUTS),
    "values.family": (*FAMILIES, GIVEN),
    "dropout.p": ("0.5",),
    "options.align": ("end", "start"),
    "options.pairing": ("halves", "interleaved"),
    "options.stored_as": ("float8_e4m3fn", "int8"),
    "options.mem_len": ("0", "3"),
    "options.lead": ("()", "(2, 3)"),
    "options.mems": ("True", "False"),
    "options.biases": ("True", "False"),
}


SAID = [
    (path, sign, value)
    for path, values in VALUES.items()
    for sign in ("=", "!=")
    for value in dict.fromkeys(values)
]


def test_every_field_that_a_condition_speaks_of_has_words() -> None:
    assert VALUES.keys() == FIELDS.keys() | TRUTHS.keys()


@pytest.mark.parametrize(("path", "sign", "value"), SAID)
def test_words_and_name_are_one_condition(path: str, sign: str, value: str) -> None:
    words, name = say_field(path, sign, value), f"{path}{sign}{value}"
    one, other = parse_condition(words), parse_condition(name)
    assert not set("=:") & set(words) and " and " not in words
    assert (one.subjects, one.topic) == (other.subjects, other.topic)
    if path not in TRUTHS:
        assert parse_sentence(words) == (path, sign, value) and one.excludes == other.excludes


def test_what_is_one_thing_or_the_other_is_never_denied() -> None:
    assert say_field("options.mems", "!=", "True") == "no memory is given"
    assert parse_sentence("no memory is given") == ("options.mems", "=", "False")


def test_other_words_are_no_field() -> None:
    assert parse_sentence("hidden slots hold water") is None
    with pytest.raises(ValueError, match="wanted"):
        parse_condition("hidden slots hold water")
