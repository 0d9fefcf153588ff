"""
What relative positions cost in compiled instructions: Triton's gather against the warp-local skew
of the CUDA kernel.

No GPU is needed: both forward kernels are compiled for blocks of 64 x 64 and 128 threads, and the
instructions of the loop over the keys are counted, with positions and without. The difference is
what positions cost a thread for each block. Counts are no times.

    python benchmarks/skew.py > benchmarks/results/skew.json
"""

import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import triton
from cupy.cuda import nvrtc

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from attnverify.cupy_impl.cuda.kernel_configs import instance  # noqa: E402
from attnverify.cupy_impl.cuda.source import text  # noqa: E402
from attnverify.torch_impl.triton.kernels.block_sizes import Blocks  # noqa: E402
from test_triton_compiled import KERNELS, compiled  # noqa: E402

TOLD = (
    "SHFL",
    "SEL",
    "LDS",
    "STS",
    "BAR",
    "PRMT",
    "LOP3",
    "ISETP",
    "IMAD",
    "IADD3",
    "LDG",
    "LDSM",
    "HMMA",
    "HGMMA",
    "LDL",
    "STL",
)
CHECKED_PTX = ".version 8.7"
"""
NVRTC writes a newer version than the assembler that Triton carries reads; the kernels use nothing
of it.
"""


def disassembled(cubin: bytes) -> list[tuple[int, str]]:
    """Address and instruction of the forward kernel."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run(
            [triton.knobs.nvidia.cuobjdump.path, "-sass", file.name],
            capture_output=True,
            text=True,
            check=True,
        )
    kernels = {
        part.split("\n", 1)[0].strip(): part
        for part in re.split(r"\n\s*Function : ", done.stdout)[1:]
    }
    return [
        (int(at, 16), words)
        for at, words in re.findall(r"/\*([0-9a-f]{4,})\*/\s+(.*?);", kernels["forward"])
    ]


def loop_over_keys(instructions: list[tuple[int, str]]) -> Counter[str]:
    """
    The kinds of instructions in the longest loop that multiplies on tensor cores and takes one
    exponential a score.
    """
    backwards = (
        (int(to[1], 16), at)
        for at, words in instructions
        if (to := re.search(r"BRA.*?(0x[0-9a-f]+)", words))
    )
    loops = [
        Counter(map(kind, (words for at, words in instructions if first <= at <= last)))
        for first, last in backwards
        if first <= last
    ]
    return max(
        (loop for loop in loops if (loop["HMMA"] or loop["HGMMA"]) and loop["MUFU"] == 34),
        key=Counter.total,
    )


def kind(words: str) -> str:
    return re.sub(r"^@!?U?P[T\d]+ ", "", words).split()[0].split(".")[0]


def cuda(arch: int, relative: bool) -> bytes:
    made = instance("attention.cu", "bfloat16", 64, relative, False, True)
    assert (made.own, made.step, made.threads) == (64, 64, 128)
    program = nvrtc.createProgram(text(made.source), made.source, [], [])
    nvrtc.compileProgram(program, [f"-arch=compute_{arch}", "-std=c++17", *made.defines])
    ptx = re.sub(
        r"\.version \S+", CHECKED_PTX, nvrtc.getPTX(program).decode().rstrip("\0"), count=1
    )
    with tempfile.TemporaryDirectory() as folder:
        source, cubin = Path(folder, "k.ptx"), Path(folder, "k.cubin")
        source.write_text(ptx)
        subprocess.run(
            [triton.knobs.nvidia.ptxas.path, f"--gpu-name=sm_{arch}", source, "-o", cubin],
            check=True,
        )
        return cubin.read_bytes()


def by_triton(arch: int, relative: bool) -> bytes:
    kernel, _, _, given = KERNELS["forward, Transformer-XL" if relative else "forward"]
    cubin: bytes = compiled(kernel, given, Blocks(64, 4, 1), arch, "bf16", 64).asm["cubin"]
    return cubin


def main() -> None:
    found = {}
    for arch in (80, 90):
        for name, made in (("Triton's gather", by_triton), ("CUDA's skew", cuda)):
            plain, relative = (
                loop_over_keys(disassembled(made(arch, positions))) for positions in (False, True)
            )
            more = {of: relative[of] - plain[of] for of in TOLD if relative[of] != plain[of]}
            found[f"{name}, sm_{arch}"] = {
                "plain": plain.total(),
                "relative": relative.total(),
                "more of": more,
            }
    json.dump(found, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
