"""
Tensor maps: what a box of an array is, for copies that no thread does element by element.

Nobody is told how a GPU writes its 128 bytes down: this is the machine's own form of them, which
the launcher writes for a descriptor of the host, and ``tensormap.replace`` for one of a kernel. The
first dimension is the innermost one, whose elements lie side by side.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from attnverify.ptx.findings import NotUnderstood
from attnverify.ptx.kinds import KINDS, Array

__all__ = ["FIELDS", "SIZE", "TensorMap", "encoded", "fields", "read_map"]

SIZE, MOST = 128, 5

FIELDS = np.dtype({
    "names": ["global_address", "global_stride", "global_dim", "box_dim", "element_stride",
              "rank", "elemtype", "interleave_layout", "swizzle_mode", "fill_mode",
              "swizzle_atomicity"],
    "formats": ["u8", ("u8", 4), ("u4", 5), ("u4", 5), ("u4", 5), *["u4"] * 6],
    "offsets": [0, 8, 40, 60, 80, *range(100, 124, 4)],
    "itemsize": SIZE,
})  # fmt: skip
"""``rank`` is one less than the dimensions; strides are bytes, from the second dimension on."""

TYPES = {
    0: "u8", 1: "u16", 2: "u32", 3: "s32", 4: "u64", 5: "s64", 6: "f16", 7: "f32", 9: "f64",
    10: "bf16",
}  # fmt: skip
"""Numbers of ``tensormap.replace.elemtype``; the others round, flush or pack."""

SWIZZLES = {0: 0, 1: 1, 2: 3, 3: 7}
"""By mode: which of the bits of 128 bytes are joined to those of 16."""


@dataclass(frozen=True)
class TensorMap:
    """An array in memory and a box of it that is copied; the innermost dimension comes first."""

    address: int
    lengths: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    kind: str
    swizzle: int
    nan: bool

    @property
    def element(self) -> int:
        """Bytes of an element."""
        return KINDS[self.kind].size

    @property
    def bytes(self) -> int:
        """Bytes of a box, whether they lie in the array or not."""
        return int(np.prod(self.box)) * self.element

    def elements(self, corners: Array) -> tuple[Array, Array]:
        """
        Find the addresses [corners elements] of boxes [corners dimensions], and which of the
        elements lie in the array.
        """
        at = np.full((len(corners), 1), self.address, np.int64)
        inside = np.ones((len(corners), 1), bool)
        for place in reversed(range(len(self.box))):
            each = corners[:, place, None] + np.arange(self.box[place])
            here = (each >= 0) & (each < self.lengths[place])
            at = (at[:, :, None] + (each * self.strides[place])[:, None, :]).reshape(len(at), -1)
            inside = (inside[:, :, None] & here[:, None, :]).reshape(len(at), -1)
        return at, inside

    def chunks(self, starts: Array) -> Array:
        """[starts chunks] where 16 bytes each of boxes at these shared addresses lie."""
        at = starts[:, None] + np.arange(0, self.bytes, 16)
        return at ^ ((at >> 7 & self.swizzle) << 4)


def fields(of: bytes) -> Any:
    return np.frombuffer(of, FIELDS)[0]


def encoded(**given: Any) -> bytes:
    """Write the fields of a map down; lists may be shorter than five."""
    made = np.zeros(1, FIELDS)
    for name, value in given.items():
        if isinstance(value, list | tuple):
            made[name][0, : len(value)] = value
        else:
            made[name][0] = value
    return made.tobytes()


def read_map(of: bytes) -> "TensorMap | str":
    """Read a map; or what is wrong with it, in words."""
    x = fields(of)
    rank = int(x["rank"]) + 1
    if rank > MOST:
        return f"it has {rank} dimensions, not 1 to {MOST}"
    kind, swizzle = TYPES.get(int(x["elemtype"])), SWIZZLES.get(int(x["swizzle_mode"]))
    if kind is None or swizzle is None or x["interleave_layout"] or x["swizzle_atomicity"]:
        raise NotUnderstood(
            f"a tensor map of element type {x['elemtype']}, interleaving {x['interleave_layout']}, "
            f"swizzling {x['swizzle_mode']} by {x['swizzle_atomicity']}"
        )
    if (x["element_stride"][:rank] > 1).any():
        raise NotUnderstood("a tensor map that leaves elements out (element strides above 1)")
    size = KINDS[kind].size
    made = TensorMap(
        int(x["global_address"]),
        *(tuple(int(n) for n in x["global_dim"][:rank]),
          (size, *(int(n) for n in x["global_stride"][: rank - 1])),
          tuple(int(n) for n in x["box_dim"][:rank])),
        *(kind, swizzle, bool(x["fill_mode"])),
    )  # fmt: skip
    return wrong_with(made, x) or made


def wrong_with(made: TensorMap, x: Any) -> str:
    """What no map may have, in words; empty if all is well."""
    inner = made.box[0] * made.element
    width = 16 << int(x["swizzle_mode"])
    checks = {
        f"its array begins at {made.address:#x}, no multiple of 16": made.address % 16,
        f"its strides {made.strides[1:]} are no multiples of 16": any(
            stride % 16 for stride in made.strides[1:]
        ),
        f"a length of {made.lengths} is 0": 0 in made.lengths,
        f"its box {made.box} has a side outside of 1 to 256": not all(
            1 <= side <= 256 for side in made.box
        ),
        f"a row of its box has {inner} bytes, no multiple of 16": inner % 16,
        f"a row of its box has {inner} bytes, of which {width} are swizzled": made.swizzle
        and inner > width,
        "an element stride is 0": 0 in x["element_stride"][: len(made.box)],
        "NaN fills what lies outside of an array of whole numbers": made.nan
        and not KINDS[made.kind].floating,
    }
    return next((told for told, wrong in checks.items() if wrong), "")
