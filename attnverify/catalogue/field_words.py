"""
Words for the fields of a recipe: what a condition says of one in plain English, and which field a
sentence speaks of.

No sentence has the word "and", which joins the conditions of a line, or a colon, which ends them.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from attnverify.catalogue.annotations import is_word
from attnverify.catalogue.operation import CATALOGUE

HIDDEN = {
    "random": "keys at random",
    "sparse": "most keys at random",
    "given": "what it was given to hide",
    "right_padding": "the last keys of some entries",
    "left_padding": "the first keys of some entries",
    "causal": "what comes later",
    "window": "all but a window",
    "first_block": "the first half of the keys",
    "last_block": "the last half of the keys",
    "empty_rows": "whole rows",
    "one_key": "all keys but one",
    "nothing": "everything",
}
"""What a mask of each pattern hides."""

MASKS = {
    "bool": "boolean mask",
    "infinite": "mask of 0 or minus infinity",
    "noisy": "mask of numbers or minus infinity",
    "finite": "mask of finite numbers alone",
    "lowest": "mask of 0 or the lowest number",
    "-1e4": "mask of 0 or -1e4",
}
"""What a mask of each form consists of."""

NUMBERS = {
    "normal": "ordinary numbers",
    "needles": "queries that each point to one key",
    "identity": "unit vectors as values",
    "spread": "scores far apart",
    "peaked": "one key that dominates",
    "cliff": "scores that rise or fall by far at the last keys",
    "correlated": "keys that repeat the queries",
    "large": "scores around 88",
    "brink": "products as large as float16 holds",
    "ties": "small integers",
    "lattice": "multiples of an eighth",
    "zero_sum": "products that cancel",
    "uniform": "numbers from 0 to 1",
    "small": "small numbers",
    "offset_values": "values around 100",
    "one_signed": "values of one sign",
    "huge_values": "very large values",
    "near_overflow": "values near the largest float16",
    "columns": "values of which each key has one column",
    "far_below": "scores far below 0",
    "farthest_below": "scores as far below 0 as the dtype allows",
    "subnormal": "subnormal values",
    "one_hot": "a gradient that arrives at one output a row",
    "special": "NaN or infinity to be moved",
    "minus_infinity": "scores of minus infinity",
    "absent_parts": "parts that saw no key",
    "far_lses": "log-sum-exps far from 0",
    "spotlight": "one key at an edge with half of its row's weight",
    "quiet": "scores close to each other",
    "given": "what --inputs gave",
}
"""What the inputs of each family hold that is particular."""

LAYOUT = {
    "contiguous": "contiguous",
    "transposed": "transposed",
    "packed": "sliced from wider rows",
    "offset": "offset",
    "expanded": "expanded",
    "reversed": "reversed",
    "width_first": "stored width first",
    "shared": "shared",
    "mixed": "mixed",
}
"""How an array lies in memory."""

POISON = {
    "nan": "NaN",
    "inf": "infinity",
    "finite": "large numbers",
    "nan for some": "NaN, which other rows see",
    "inf for some": "infinity, which other rows see",
    "-inf for some": "minus infinity, which other rows see",
}


TRUTHS = {
    "options.mems": {"True": "a memory is given", "False": "no memory is given"},
    "options.biases": {"True": "the layer has biases", "False": "the layer has no biases"},
}
"""What is one thing or the other."""


@dataclass(frozen=True)
class Words:
    """
    The sentences that a field is of a value and that it is not; ``{}`` is the place of the value,
    in the words that it has in ``values``, or as it is.
    """

    equals: str
    differs: str
    values: dict[str, str] | None = None

    def patterns(self) -> Iterator[tuple[str, str, str]]:
        """Yield a pattern of each sentence, the sign of the condition, and the value."""
        values = {key: re.escape(said) for key, said in (self.values or {}).items()}
        for sign, template in (("!=", self.differs), ("=", self.equals)):
            before, _, after = map(re.escape, template.partition("{}"))
            for value, said in (values or {"": "(.+)"}).items():
                yield f"{before}{said}{after}", sign, value


def options_of_words() -> list[str]:
    """List the options that are one word of a few, by name."""
    domains = (each for op in CATALOGUE.values() for each in op.domains.items())
    return sorted({name for name, domain in domains if is_word(domain)})


FIELDS = {
    "poison": Words("hidden slots hold {}", "hidden slots do not hold {}", POISON),
    "mask.form": Words("a {} is given", "no {} is given", MASKS),
    "mask.axes": Words("the axes of the mask are {}", "the axes of the mask are not {}"),
    "mask.pattern": Words("a mask hides {}", "no mask hides {}", HIDDEN),
    "padding.pattern": Words("padding hides {}", "no padding hides {}", HIDDEN),
    "layout.kind": Words("the inputs are all {}", "the inputs are not all {}", LAYOUT),
    "values.family": Words("the inputs hold {}", "the inputs do not hold {}", NUMBERS),
    "dropout.p": Words("the dropout is {}", "the dropout is not {}"),
    "options.lead": Words("the leading axes are {}", "the leading axes are not {}"),
    **{
        f"options.{name}": Words(f"{name} is {{}}", f"{name} is not {{}}")
        for name in ("mem_len", *options_of_words())
    },
}


def say_field(path: str, sign: str, value: str) -> str:
    """Say in words that a field of the recipe is of a value ("="), or is not ("!=")."""
    if path in TRUTHS:
        return TRUTHS[path][value if sign == "=" else str(value == "False")]
    words = FIELDS[path]
    template = words.equals if sign == "=" else words.differs
    return template.format(words.values[value] if words.values else value)


def parse_sentence(text: str) -> tuple[str, str, str] | None:
    """Return the field, the sign and the value that a sentence speaks of; None of any other."""
    for path, truths in TRUTHS.items():
        for value, said in truths.items():
            if said == text:
                return path, "=", value
    for path, words in FIELDS.items():
        for pattern, sign, value in words.patterns():
            if match := re.fullmatch(pattern, text):
                return path, sign, value or match[1]
    return None
