"""
Instances of the kernels: the constants that a source is compiled with, and what a block of them
needs.

A block owns ``own`` rows, 16 for each warp (of attention's forward kernel ``groups`` times as
many), and walks over the other side in steps of ``step`` columns; ``width`` is the widest head that
it takes. One table to read and to change: what a GPU is given are the largest blocks that spill
nothing forwards (tests/cupy_impl/test_cuda_compilation.py prints them).
Nothing was timed yet.
"""

from dataclasses import dataclass

__all__ = ["Instance", "instance"]

ELEMENTS = {"float32": "float", "float16": "half", "bfloat16": "bfloat16"}
WIDEST = 256


@dataclass(frozen=True)
class Instance:
    """One compilation of one source."""

    source: str
    element: str
    own: int
    step: int
    width: int
    relative: bool = False
    masked: bool = True

    @property
    def groups(self) -> int:
        """
        Groups of 16 queries that a warp of attention's forward kernel has: two where a thread has
        room for the sums of both.
        """
        full = self.relative or self.masked or self.element == "float" or self.width > 128
        return 1 if full else 2

    def rows(self, kernel: str) -> int:
        """What a block of a kernel owns."""
        return self.own * self.groups if kernel == "forward" else self.own

    @property
    def threads(self) -> int:
        return self.own // 16 * 32

    @property
    def defines(self) -> tuple[str, ...]:
        given = {"ELEMENT": self.element, "OWN": self.own, "STEP": self.step, "WIDTH": self.width}
        given |= {"RELATIVE": int(self.relative), "MASKED": int(self.masked)}
        given |= {"GROUPS": self.groups}
        return tuple(f"-D{name}={value}" for name, value in given.items())

    def shared_bytes(self, kernel: str) -> int:
        """What the kernel's Arena hands out, tile by tile."""
        if kernel.endswith("repair"):
            return 0
        own, step, ring, size = (
            self.own,
            self.step,
            self.own + self.step,
            4 if self.element == "float" else 2,
        )
        row, strip = (self.width + 16 // size) * size, own * (step + 24) * 4
        strip_of_scores, rows = strip if size == 4 else 0, 2 * step * 4
        features, gradients = (
            (own + step) * 36 * 4 + 32 * 4,
            own * (step + 4) * 4,
        )
        if self.relative:
            return {
                "forward": (2 * own + 4 * step + ring + step) * row + strip,
                "backward_query": (3 * own + 3 * step + ring) * row
                + strip
                + own * (ring * size + 16),
                "backward_key": (2 * own + 5 * step + ring + 2) * row
                + step * (own + 4) * 4
                + strip_of_scores
                + 2 * rows,
            }[kernel]
        return {
            "forward": (self.rows(kernel) + 4 * step) * row + strip_of_scores,
            "backward_query": (2 * own + 4 * step) * row + strip_of_scores,
            "backward_key": (2 * own + 4 * step) * row + strip_of_scores + 2 * rows,
            "additive_forward": step * row + strip_of_scores + features,
            "additive_backward_query": (own + step) * row + gradients + features,
            "additive_backward_key": (own + step) * row
            + strip_of_scores
            + gradients
            + features
            + rows,
        }[kernel]


HOST = (32, 16, (128, 256))
"""
Small blocks, so that small cases have several of them, of two warps; a narrow head costs little in
a wide block.
"""

DEVICE = {
    # half types, relative: blocks of (own, step) at widths of 64, 128 and 256; all fit into the 163
    # KiB of an sm_80
    (True, False): ((64, 64), (64, 32), (64, 32)),
    (True, True): ((64, 64), (64, 32), (32, 32)),
    (False, False): ((64, 32), (64, 32), (32, 16)),
    (False, True): ((64, 32), (32, 32), (16, 16)),
}


def instance(
    source: str, dtype: str, widest: int, relative: bool, masked: bool, on_device: bool
) -> Instance:
    """
    The instance for heads of this width; on the CPU one that takes masks also serves calls without.
    """
    if not on_device:
        own, step, widths = HOST
        return Instance(
            source,
            ELEMENTS[dtype],
            own,
            step,
            next(width for width in widths if widest <= width),
            relative,
        )
    place = (widest > 64) + (widest > 128)
    own, step = DEVICE[dtype != "float32", relative][place]
    return Instance(source, ELEMENTS[dtype], own, step, 64 << place, relative, masked)
