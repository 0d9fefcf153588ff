"""Calls of what is not in the text: ``printf``, and the end of an ``assert``."""

import re
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from attnverify.ptx.decode import Form, Step, instruction
from attnverify.ptx.kinds import Array
from attnverify.ptx.storage.access import load, store
from attnverify.ptx.text.operands import Symbol, Vector

if TYPE_CHECKING:
    from attnverify.ptx.execution.machine import Machine

__all__: list[str] = []

CONVERSION = re.compile(
    r"%(?P<flags>[-+ #0]*)(?P<width>\*|\d*)(?P<digits>(?:\.(?:\*|\d*))?)"
    r"(?P<size>hh|h|ll|l|j|z|t)?(?P<kind>[diouxXcsfFeEgGaAp%])"
)
LONG = ("l", "ll", "j", "z", "t")
SHORT = {"h": 2, "hh": 1}
LONGEST = 4096
"""So many bytes of a text are read at most."""


@instruction("call")
def call(form: Form) -> Step:
    form.flag("uni")
    names = [each for each in form.operands if isinstance(each, Symbol)]
    lists = [each.items for each in form.operands if isinstance(each, Vector)]
    name = names[0].name if names else ""
    if name not in ("vprintf", "__assertfail"):
        raise form.refuse(f"a call of {name}, which is not in the text")
    places = [item for item in lists[-1] if isinstance(item, Symbol)]
    if name == "__assertfail":
        return partial(assertion, places)
    if len(lists) != 2 or len(places) != 2 or not isinstance(lists[0][0], Symbol):
        raise form.refuse("wanted the two parameters and the result of vprintf")
    return partial(printing, places[0], places[1], lists[0][0])


def parameter(m: "Machine", place: Symbol, lanes: Array, size: int) -> Array:
    """What lanes hand over to a call, in memory of their own."""
    return load(m, "local", np.full(len(lanes), m.variables[place.name]), lanes, size)


def printing(text: Symbol, values: Symbol, result: Symbol, m: "Machine") -> None:
    """Each thread prints, in the order of their numbers; the result is how many values it gave."""
    lanes = m.active()
    texts, given = (parameter(m, place, lanes, 8) for place in (text, values))
    counts = np.zeros(len(lanes), np.uint32)
    known: dict[int, str] = {}
    for at, lane in enumerate(lanes):
        start = int(texts[at])
        known[start] = known.get(start) or text_at(m, start, lane)
        printed, counts[at] = formatted(m, known[start], int(given[at]), lane)
        sys.stdout.write(printed)
    store(m, "local", np.full(len(lanes), m.variables[result.name]), lanes, 4, counts)


def assertion(places: list[Symbol], m: "Machine") -> None:
    lanes = m.active()[:1]
    start = int(parameter(m, places[0], lanes, 8)[0])
    m.fail("trap", f"an assertion does not hold: {text_at(m, start, lanes[0])}", int(lanes[0]))


def value_at(m: "Machine", address: int, lane: int, size: int) -> Array:
    """[1] the bytes at a generic address."""
    return load(m, "generic", np.array([address]), np.array([lane]), size)


def text_at(m: "Machine", address: int, lane: int) -> str:
    letters = bytearray()
    while len(letters) < LONGEST and (letter := int(value_at(m, address, lane, 1)[0])):
        letters.append(letter)
        address += 1
    return letters.decode(errors="replace")


class Values:
    """The values behind a text, one behind the other, each at a multiple of its size."""

    def __init__(self, m: "Machine", address: int, lane: int) -> None:
        self.m, self.address, self.lane, self.count = m, address, lane, 0

    def next(self, dtype: str) -> Any:
        size = np.dtype(dtype).itemsize
        self.address, self.count = -(-self.address // size) * size, self.count + 1
        found = value_at(self.m, self.address, self.lane, size).view(dtype)[0]
        self.address += size
        return found.item()


def formatted(m: "Machine", text: str, address: int, lane: int) -> tuple[str, int]:
    """A text with its values, as C formats them; how many values it took."""
    values = Values(m, address, lane)
    return CONVERSION.sub(lambda found: one_value(found, values), text), values.count


def one_value(found: re.Match[str], values: Values) -> str:
    kind = found["kind"]
    if kind == "%":
        return "%"
    form = found["flags"] + "".join(
        str(values.next("i4")) if part == "*" else part
        for part in re.split(r"(\*)", found["width"] + found["digits"])
    )
    if kind == "s":
        return f"%{form}s" % text_at(values.m, values.next("u8"), values.lane)
    if kind in "fFeEgG":
        return f"%{form}{kind}" % values.next("f8")
    if kind in "aA":
        return values.next("f8").hex()
    if kind == "p":
        return f"%{form}s" % hex(values.next("u8"))
    number = values.next(("i" if kind in "di" else "u") + ("8" if found["size"] in LONG else "4"))
    if found["size"] in SHORT:
        low = number % (1 << 8 * SHORT[found["size"]])
        number = low - (2 * low & 1 << 8 * SHORT[found["size"]] if kind in "di" else 0)
    if kind == "c":
        return f"%{form}s" % chr(number & 255)
    return f"%{form}{'d' if kind == 'u' else kind}" % number
