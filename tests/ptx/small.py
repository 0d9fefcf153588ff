"""Small kernels of PTX: one instruction applied to every element of some arrays."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from attnverify import ptx

__all__ = ["SIZES", "apply", "corners", "kernel", "launch", "numbers_of"]

SIZES = {"pred": 1, "8": 1, "16": 2, "32": 4, "64": 8}
UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
HEAD = ".version 8.7\n.target sm_90a\n.address_size 64\n"


def size_of(kind: str) -> int:
    if kind == "pred":
        return 1
    return (
        4
        if kind.endswith("x2")
        else int("".join(letter for letter in kind if letter.isdigit())) // 8
    )


def kernel(
    body: str,
    parameters: Sequence[str] = (),
    target: str = "sm_90a",
    outside: str = "",
    name: str = "k",
) -> ptx.Kernel:
    """A kernel of this body; parameters as ``.u64 x``."""
    given = ", ".join(f".param {each}" for each in parameters)
    text = (
        f".version 8.7\n.target {target}\n.address_size 64\n{outside}\n.visible .entry "
        f"{name}({given})\n{{\n{body}\nret;\n}}\n"
    )
    return ptx.load(text)[name]


def apply(
    instruction: str, result: str | Sequence[str], *given: tuple[str, Any], **settings: Any
) -> Any:
    """
    An instruction with ``%d`` (or ``%d0``, ``%d1``) and ``%a``, ``%b``, ``%c``, ``%e``, done for
    every element of its operands.

    Operands are (type, bits); results are bits.
    """
    results = [result] if isinstance(result, str) else list(result)
    count = len(given[0][1])
    lines = [
        ".reg .b64 %at, %base;",
        ".reg .b32 %tid, %part;",
        ".reg .pred %p;",
        "mov.u32 %tid, %tid.x;",
    ]
    for letter, (kind, _) in zip("abce", given, strict=False):
        lines += declared(f"%{letter}", kind) + loaded(f"%{letter}", kind, f"in_{letter}")
    names = ["%d"] if len(results) == 1 else [f"%d{place}" for place in range(len(results))]
    for name, kind in zip(names, results, strict=True):
        lines += declared(name, kind)
    lines.append(instruction)
    for place, (name, kind) in enumerate(zip(names, results, strict=True)):
        lines += stored(name, kind, f"out_{place}")
    parameters = [f".u64 in_{letter}" for letter, _ in zip("abce", given, strict=False)] + [
        f".u64 out_{place}" for place in range(len(results))
    ]
    inputs = [np.array(bits, dtype=UNSIGNED[size_of(kind)]) for kind, bits in given]
    outputs = [np.zeros(count, UNSIGNED[size_of(kind)]) for kind in results]
    launch(kernel("\n".join(lines), parameters), count, [*inputs, *outputs], **settings)
    return outputs[0] if len(results) == 1 else outputs


def launch(of: ptx.Kernel, threads: int, arguments: Sequence[Any], **settings: Any) -> ptx.Launched:
    """One block of so many threads, or several of 1024."""
    assert threads <= 1024, "give fewer elements"
    return of.launch(1, threads, arguments, **settings)


def declared(name: str, kind: str) -> list[str]:
    if kind == "pred":
        return [f".reg .pred {name};"]
    return [f".reg .b{8 * max(2, size_of(kind))} {name};"]


def loaded(name: str, kind: str, parameter: str) -> list[str]:
    size = size_of(kind)
    lines = [f"ld.param.u64 %base, [{parameter}];", f"mad.wide.u32 %at, %tid, {size}, %base;"]
    if kind == "pred":
        return [*lines, "ld.global.u8 %part, [%at];", f"setp.ne.u32 {name}, %part, 0;"]
    return [*lines, f"ld.global.b{8 * size} {name}, [%at];"]


def stored(name: str, kind: str, parameter: str) -> list[str]:
    size = size_of(kind)
    lines = [f"ld.param.u64 %base, [{parameter}];", f"mad.wide.u32 %at, %tid, {size}, %base;"]
    if kind == "pred":
        return [*lines, f"selp.u32 %part, 1, 0, {name};", "st.global.u8 [%at], %part;"]
    return [*lines, f"st.global.b{8 * size} [%at], {name};"]


def corners(kind: str) -> list[int]:
    """
    Bits of numbers where instructions go wrong: zeros, subnormal and largest numbers, ties,
    infinities, NaN, limits.
    """
    if kind[0] in "usb" and kind != "bf16":
        bits = int(kind[1:])
        top = 1 << bits
        return sorted(
            {
                x % top
                for x in (
                    0,
                    1,
                    2,
                    3,
                    7,
                    31,
                    32,
                    33,
                    top // 2 - 1,
                    top // 2,
                    top // 2 + 1,
                    top - 1,
                    top - 2,
                    0x12345678 % top,
                )
            }
        )
    fraction, exponent = {"f32": (23, 8), "f64": (52, 11), "f16": (10, 5), "bf16": (7, 8)}[kind]
    one = ((1 << (exponent - 1)) - 1) << fraction
    infinity = ((1 << exponent) - 1) << fraction
    positive = [
        0,
        1,
        (1 << fraction) - 1,
        1 << fraction,
        (1 << fraction) + 1,
        one - 1,
        one,
        one + 1,
        one + (1 << fraction),
    ]
    positive += [
        one + (1 << (fraction - 1)),
        one + (3 << (fraction - 2)),
        infinity - 1,
        infinity,
        infinity | (1 << (fraction - 1)),
        one // 2,
        one * 3 // 2,
    ]
    return positive + [x | (1 << (fraction + exponent)) for x in positive]


def numbers_of(kind: str, count: int, seed: int = 0) -> list[int]:
    """Bits of numbers of moderate size, whose sums and products round."""
    random = np.random.default_rng(seed)
    if kind[0] in "usb" and kind != "bf16":
        return [int.from_bytes(random.bytes(int(kind[1:]) // 8), "little") for _ in range(count)]
    x = random.standard_normal(count) * 2.0 ** random.integers(-12, 12, count)
    if kind == "f64":
        return [int(b) for b in x.view(np.uint64)]
    single = x.astype(np.float32)
    if kind == "f32":
        return [int(b) for b in single.view(np.uint32)]
    return [
        int(b)
        for b in (
            x.astype(np.float16).view(np.uint16)
            if kind == "f16"
            else (single.view(np.uint32) >> 16)
        )
    ]
