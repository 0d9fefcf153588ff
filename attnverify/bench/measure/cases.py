"""
Named cases: an operation at a size of the field, in a dtype, forward or with its gradients.

The shapes are those that others publish (FlashAttention's grid, Transformer-XL wt103, conformer,
BLOOM, additive square and decoder), and the ones that the goals name. A case of a GPU shrinks to a
small size where it only has to run.
"""

from dataclasses import dataclass, field, replace
from itertools import product
from math import gcd
from typing import Any

from attnverify.catalogue.operation import CATALOGUE
from attnverify.inputs.recipe import Recipe

MODES = ("forward", "backward", "both")
HALVES = ("float16", "bfloat16")


@dataclass(frozen=True)
class Case:
    """
    One thing to be timed by several implementations.

    sizes    the letters of its shapes; options and mask as a Recipe has them
    mode     forward; backward (of a graph that stands already); both
    device   where it is meant to run: cpu, cuda
    seconds  how long its rounds may take in all
    without  labels of contestants that are not asked: a compiler takes half a minute for each kind
             of shape
    """

    name: str
    operation: str
    sizes: dict[str, int]
    dtype: str = "float32"
    mode: str = "forward"
    device: str = "cpu"
    mask: dict[str, Any] | None = None
    padding: dict[str, Any] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    seconds: float = 4.0
    without: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        return f"{self.name}-{self.dtype}-{self.mode}"

    @property
    def timed(self) -> str:
        """
        The operation of the catalogue that is called: the gradient's where gradients are asked for.
        """
        return self.operation if self.mode == "forward" else f"{self.operation}_grad"

    def recipe(self, seed: int) -> Recipe:
        values = {"family": "normal", "seed": seed}
        return Recipe(
            self.timed,
            self.sizes,
            values,
            mask=self.mask,
            padding=self.padding,
            options=self.options,
        )

    @property
    def small(self) -> "Case":
        """The same case at a size at which an interpreter runs it in a moment."""
        sizes = {letter: min(size, SMALL.get(letter, size)) for letter, size in self.sizes.items()}
        if "G" in sizes:
            sizes["G"] = gcd(sizes["G"], sizes["H"])
        if self.operation in SQUARE:
            sizes["M"] = sizes["N"]
        return replace(self, sizes=sizes, seconds=0.0)


SMALL = {
    "B": 2,
    "H": 2,
    "N": 37,
    "M": 45,
    "P": 45,
    "D": 16,
    "E": 16,
    "Q": 8,
    "K": 8,
    "A": 12,
    "F": 32,
    "S": 8,
    "L": 2,
    "R": 8,
    "T": 37,
    "U": 45,
}

SQUARE = ("alibi_multi_head_attention", "multi_head_self_attention", "self_attention")
"""What attends from a sequence to itself."""

CAUSAL = {"pattern": "causal", "axes": "N M", "form": "bool", "seed": 0}
WINDOW = CAUSAL | {"pattern": "window"}
PADDING = {"pattern": "right_padding", "seed": 0}
LEARNED, XL, ALIBI, PLAIN = (
    "learned_relative_attention",
    "transformer_xl_attention",
    "alibi_attention",
    "scaled_dot_product_attention",
)


def square(N: int, H: int = 8, D: int = 64, B: int = 1) -> dict[str, int]:
    return {"B": B, "H": H, "N": N, "M": N, "D": D, "E": D}


def relative(
    N: int, H: int = 8, D: int = 64, B: int = 1, M: int = 0, **more: int
) -> dict[str, int]:
    return square(N, H, D, B) | {"M": M or N, "P": max(N, M)} | more


END: dict[str, Any] = {"align": "end"}
ROWS = {"N": 256, "M": 256}
HEADS = {"B": 4, "H": 8, "F": 512} | ROWS


def learned(name: str, sizes: dict[str, int], **more: Any) -> Case:
    return Case(name, LEARNED, sizes, options=END, **more)


def additive(N: int, M: int, A: int, B: int, width: int = 64) -> dict[str, int]:
    return {"B": B, "N": N, "M": M, "Q": width, "K": width, "A": A, "E": width}


COMPILED = ("flex, compiled", "flex of FlashAttention 4", "torch.compile")
FEW: dict[str, Any] = {"without": (*COMPILED, "torch_impl:eager")}

CPU = (
    learned("relative N=1024", relative(1024), seconds=12),
    learned("relative N=1024", relative(1024), mode="both", seconds=16),
    learned(
        "relative B=4 N=1024", relative(1024, B=4), without=(*FEW["without"], "cupy_impl", "SDPA")
    ),
    learned("relative causal N=1024", relative(1024), mask=CAUSAL, **FEW),
    Case("transformer-xl wt103 train", XL, relative(384, H=16, M=768), **FEW),
    Case("transformer-xl wt103 train", XL, relative(384, H=16, M=768), mode="both", **FEW),
    Case("transformer-xl wt103 eval", XL, relative(128, H=16, M=1728), **FEW),
    learned("conformer 30 s", relative(375), **FEW),
    Case("alibi N=2048", ALIBI, square(2048), seconds=16),
    Case("alibi N=1024", ALIBI, square(1024), mode="both", seconds=8, **FEW),
    Case("bloom N=512", ALIBI, square(512, H=16, D=128), **FEW),
    Case("plain N=1024", PLAIN, square(1024), **FEW),
    Case("plain N=1024", PLAIN, square(1024), mode="both", **FEW),
    Case("additive square 256", "additive_attention", additive(256, 256, 256, 8), seconds=12),
    Case("additive decoder", "additive_attention", additive(1, 512, 512, 32), **FEW),
    Case(
        "scores 256",
        "additive_score",
        {"N": 256, "M": 256, "Q": 64, "K": 64, "A": 256},
        options={"lead": (8,)},
    ),
    Case(
        "scores N=1024",
        "scaled_dot_product_score",
        {"N": 1024, "M": 1024, "D": 64},
        options={"lead": (8,)},
    ),
    Case(
        "merged masks",
        "merge_masks",
        {"B": 8, "H": 8, "N": 512, "M": 512},
        mask=WINDOW,
        padding=PADDING,
    ),
    Case(
        "memory 1600",
        "update_mems",
        {"B": 4, "L": 18, "N": 128, "S": 1600, "F": 256},
        options={"mem_len": 1600},
    ),
    Case(
        "layer of labml",
        "relative_multi_head_attention",
        relative(256, F=512),
        options=END,
    ),
    Case("transformer-xl layer", "transformer_xl_layer", relative(128, M=256, F=512) | {"S": 128}),
    Case("shift N=1024", "shift_right", {"N": 1024, "M": 1024}, options={"lead": (4,)}),
    Case("shift N=1024", "rel_shift", {"N": 1024, "M": 1024}, options={"lead": (4,)}),
    Case("mask N=1024", "causal_mask", {"N": 1024, "M": 1024}),
    Case(
        "window of 256 N=1024",
        "visible_keys",
        {"B": 1, "N": 1024, "M": 1024},
        options={"causal": True, "window": (255, None)},
    ),
    Case(
        "merge of 8 parts N=1024",
        "merge_attention",
        {"C": 8, "B": 1, "H": 8, "N": 1024, "E": 64},
    ),
    Case(
        "eight heads of two, window of 256 N=1024",
        "grouped_attention",
        square(1024) | {"G": 2},
        options={"causal": True, "window": (255, None)},
    ),
    Case(
        "eight heads of one latent, a cache of 1024",
        "latent_attention",
        {"B": 1, "H": 8, "N": 1, "M": 1024, "D": 64, "E": 512},
        options={"scale": 0.0721687836},
    ),
    Case(
        "sixteen blocks of 64 chosen, a cache of 4096",
        "selected_attention",
        {"B": 1, "H": 8, "G": 2, "N": 1, "M": 4096, "D": 64, "E": 64, "J": 16},
        options={"block": 64, "selection": {"seed": 5}},
    ),
    Case(
        "four sequences of 256 end to end",
        "packed_attention",
        {"B": 4, "T": 1024, "U": 1024, "H": 8, "G": 2, "D": 64, "E": 64},
        options={"causal": True, "query_starts": {"seed": 5}, "key_starts": {"seed": 5}},
    ),
    Case(
        "four sequences of 256 in pages of 16",
        "paged_attention",
        {"B": 4, "T": 4, "H": 8, "G": 2, "D": 64, "E": 64, "W": 16, "Y": 16, "Z": 80},
        options={
            **{"causal": True, "query_starts": {"seed": 5}},
            **{"page_table": {"seed": 5}, "lengths": {"seed": 5}},
        },
    ),
    Case(
        "rotary N=1024",
        "rotary_embedding",
        {"B": 1, "H": 8, "N": 1024, "D": 64, "R": 32},
        options={"pairing": "halves", "base": 10000.0, "positions": {"seed": 1}},
    ),
    Case(
        "a cache of 8 bits N=1024",
        "dequantize",
        {"N": 1024, "D": 64},
        options={"lead": (8,), "stored_as": "float8_e4m3fn", "stored": {"seed": 1}},
    ),
    Case("softmax N=1024", "softmax", {"N": 1024, "M": 1024}, options={"lead": (8,)}),
    Case("dropout N=1024", "dropout", {"N": 1024, "M": 1024}, options={"lead": (8,)}),
    Case("positions 1792", "sinusoidal_positions", {"M": 1792, "F": 1024}),
    Case("scores of transformer-xl N=512", "transformer_xl_score", relative(512)),
    Case("scores of offsets N=512", "learned_relative_score", relative(512), options=END),
    Case("slopes of 112 heads", "get_slopes", {"H": 112}),
    Case("biases of alibi N=1024", "get_alibi_biases", {"H": 8, "N": 1024, "M": 1024}, mask=CAUSAL),
    Case("empty memory 1600", "init_mems", {"B": 4, "L": 18, "F": 256}, options={"mem_len": 1600}),
    Case("one head F=512", "self_attention", {"B": 4, "E": 64, "K": 64, "F": 512} | ROWS),
    Case("eight heads F=512", "multi_head_attention", HEADS),
    Case("eight heads of x F=512", "multi_head_self_attention", HEADS),
    Case(
        "eight heads of alibi F=512",
        "alibi_multi_head_attention",
        HEADS,
        mask=CAUSAL,
    ),
    Case(
        "three layers",
        "transformer_xl",
        {"B": 1, "H": 8, "N": 128, "D": 64, "S": 128, "L": 3, "F": 512},
        options={"mem_len": 128},
    ),
)
"""What two cores measure in eleven minutes."""

LENGTHS = {"cpu": (512, 1024, 2048, 4096), "cuda": (512, 1024, 2048, 4096, 8192, 16384, 32768)}


def growing(device: str) -> tuple[Case, ...]:
    """Build the same attention at growing lengths: how time and memory grow."""
    B, H, dtype = (1, 2, "float32") if device == "cpu" else (1, 16, "bfloat16")
    slow = (*COMPILED, "torch_impl:eager", "cupy_impl", "documents") if device == "cpu" else ()
    more: dict[str, Any] = {"device": device, "dtype": dtype, "seconds": 2.0, "without": slow}
    return tuple(
        case
        for N in LENGTHS[device]
        for case in (
            learned(f"growth relative N={N}", relative(N, H, 64, B), **more),
            Case(f"growth alibi N={N}", ALIBI, square(N, H, 64, B), **more),
        )
    )


FLASH_GRID = ((32, 512), (16, 1024), (8, 2048), (4, 4096), (2, 8192), (1, 16384))
"""Batch and length of FlashAttention's benchmarks: 16384 positions in all, a model 2048 wide."""


def field_shapes() -> tuple[Case, ...]:
    """
    Yield what a GPU measures: the field's shapes in the dtypes that they are run in, forward,
    backward and both.
    """
    found = []
    for mode, (B, N), D in product(MODES, FLASH_GRID, (64, 128)):
        sizes = square(N, 2048 // D, D, B)
        found.append(Case(f"flash grid B={B} N={N} D={D}", PLAIN, sizes, "bfloat16", mode))
        if D == 64 and N >= 2048:
            relatives = relative(N, 32, D, B)
            found += [
                learned(f"relative B={B} N={N}", relatives, dtype="bfloat16", mode=mode),
                Case(f"transformer-xl B={B} N={N}", XL, relatives, "bfloat16", mode),
                Case(f"alibi B={B} N={N}", ALIBI, sizes, "bfloat16", mode),
                Case(f"plain causal B={B} N={N}", PLAIN, sizes, "bfloat16", mode, mask=CAUSAL),
            ]
    for mode, dtype in product(MODES, ("float32", *HALVES)):
        found += [
            Case("transformer-xl wt103 train", XL, relative(384, 16, 64, 16, 768), dtype, mode),
            learned("conformer B=16 T=1024", relative(1024, 8, 64, 16), dtype=dtype, mode=mode),
            Case("bloom N=2048", ALIBI, square(2048, 32, 128, 2), dtype, mode),
            Case(
                "additive square 512", "additive_attention", additive(512, 512, 256, 4), dtype, mode
            ),
        ]
    for dtype in ("float32", *HALVES):
        found += [
            Case("transformer-xl wt103 eval", XL, relative(128, 16, 64, 8, 1728), dtype),
            Case("additive decoder", "additive_attention", additive(1, 1024, 1024, 64), dtype),
            Case(
                "shift N=4096",
                "shift_right",
                {"N": 4096, "M": 4096},
                dtype,
                options={"lead": (16,)},
            ),
            Case(
                "shift N=4096", "rel_shift", {"N": 4096, "M": 4096}, dtype, options={"lead": (16,)}
            ),
            Case(
                "biases N=4096",
                "get_alibi_biases",
                {"H": 16, "N": 4096, "M": 4096},
                dtype,
                mask=CAUSAL,
            ),
            Case(
                "memory 1600",
                "update_mems",
                {"B": 16, "L": 18, "N": 128, "S": 1600, "F": 1024},
                dtype,
                options={"mem_len": 1600},
            ),
        ]
    return tuple(replace(case, device="cuda") for case in found)


def cases(chapter: str, device: str) -> list[Case]:
    """List the cases of a chapter of the spec that a device measures."""
    known = CPU if device == "cpu" else field_shapes()
    return [
        case for case in (*known, *growing(device)) if CATALOGUE[case.operation].chapter == chapter
    ]
