"""
A look at what the assembler makes of a kernel: registers that a product of a warp group still reads
must not be written.

``wgmma`` with its left factor in registers goes on reading them until it is waited for. PTX is
right or wrong about that (the machine sees it); an assembler may still move a write in between, as
ptxas 12.8 is known to do (triton-lang/triton #9433, fixed in ptxas 13.3). From each such HGMMA all
paths are walked to the WARPGROUP.DEPBAR that waits for it; no instruction on them may write one of
its registers.
"""

import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from attnverify.ptx.wheels import find_files

__all__ = ["Hazard", "Line", "assemble", "assemblers", "disassemble", "hazards", "products"]

FOLDERS = ("nvidia/*/bin", "triton/backends/nvidia/bin")


@dataclass(frozen=True)
class Line:
    """An instruction of the machine code, at its address."""

    address: int
    text: str

    @property
    def guarded(self) -> bool:
        return self.text.startswith("@")

    @property
    def bare(self) -> str:
        """Without its guard."""
        return re.sub(r"^@!?U?P[T\d]+\s+", "", self.text)

    @property
    def name(self) -> str:
        return self.bare.split()[0]


@dataclass(frozen=True)
class Hazard:
    """A write into a register that a product still reads."""

    product: Line
    write: Line
    registers: tuple[int, ...]

    def __str__(self) -> str:
        names = ", ".join(f"R{number}" for number in self.registers)
        at = f"{self.write.address:#x}: {self.write.text}"
        return (
            f"{at} writes {names}, which {self.product.address:#x}: {self.product.text} still reads"
        )


def products(lines: list[Line]) -> list[int]:
    """Find the indices of products whose left factor is in registers."""
    return [place for place, line in enumerate(lines) if PRODUCT.search(line.text)]


PRODUCT = re.compile(r"HGMMA\S*\s+R\d+, R(\d+), gdesc")
LAST_OF_GROUP = re.compile(r"HGMMA\b.*\bgsb0")
WAIT = re.compile(r"WARPGROUP\.DEPBAR\S*\s+gsb0, (0x[0-9a-f]+)")
BRANCH = re.compile(r"BRA\S*\s.*?(0x[0-9a-f]+)")


def hazards(lines: list[Line]) -> list[Hazard]:
    """Find every write on a path from a product to its wait that hits the product's left factor."""
    return [found for place in products(lines) for found in walk_paths(lines, place)]


def walk_paths(lines: list[Line], start: int) -> Iterator[Hazard]:
    """
    Follow all paths from a product on, with the groups that were closed since; a wait ends a path
    if it waits for the product's own.
    """
    match = PRODUCT.search(lines[start].text)
    assert match is not None
    used = set(range(int(match[1]), int(match[1]) + 4))
    at = {line.address: place for place, line in enumerate(lines)}
    todo, seen = [(start, 0)], set()
    while todo:
        place, groups = todo.pop()
        if (place, groups) in seen or place >= len(lines):
            continue
        seen.add((place, groups))
        line = lines[place]
        hit = sorted(find_written_registers(line) & used) if place != start else []
        if hit:
            yield Hazard(lines[start], line, tuple(hit))
            continue
        wait = WAIT.search(line.text)
        if wait and groups > int(wait[1], 16):
            continue
        todo += [
            (following, min(groups + bool(LAST_OF_GROUP.search(line.text)), 16))
            for following in next_lines(lines, place, at)
        ]


def next_lines(lines: list[Line], place: int, at: dict[int, int]) -> list[int]:
    """Tell where a thread may go on."""
    line = lines[place]
    branch = BRANCH.match(line.bare)
    found = [at[int(branch[1], 16)]] if branch and int(branch[1], 16) in at else []
    ends = branch or line.name.startswith(("EXIT", "RET"))
    return found if ends and not line.guarded else [*found, place + 1]


SILENT = (
    *(
        "ST",
        "RED",
        "ATOMS.POPC",
        "BRA",
        "BAR",
        "ISETP",
        "FSETP",
        "HSETP",
        "DSETP",
        "PLOP3",
        "HGMMA",
        "WARPGROUP",
        "LDGSTS",
        "EXIT",
        "NOP",
    ),
    *(
        "WARPSYNC",
        "DEPBAR",
        "LDGDEPBAR",
        "BSSY",
        "BSYNC",
        "SYNCS",
        "FENCE",
        "MEMBAR",
        "R2UR",
        "ERRBAR",
        "CCTL",
        "RET",
        "YIELD",
        "NANOSLEEP",
    ),
)
"""
What begins so writes no register of a thread; nor does what begins with U, but USHF and the like
write uniform ones.
"""

DESTINATION = re.compile(r"\S+\s+(?:!?U?P[T\d]+,\s*)*R(\d+)\b")


def find_written_registers(line: Line) -> set[int]:
    """Find the registers that an instruction writes."""
    name = line.name
    if name.startswith(SILENT) or (name.startswith("U") and not name.startswith("UNPACK")):
        return set()
    match = DESTINATION.match(line.bare)
    return (
        set(range(int(match[1]), int(match[1]) + count_written_registers(name))) if match else set()
    )


def count_written_registers(name: str) -> int:
    """Count how many registers in a row an instruction writes."""
    if name.startswith("LDSM"):
        return int(name[-1]) if name[-1] in "24" else 1
    if name.startswith("HMMA"):
        return 2 if ".F16." in f"{name}." and ".F32" not in name else 4
    if name.startswith("CS2R"):
        return 1 if name.endswith(".32") else 2
    if ".128" in name:
        return 4
    return (
        2
        if ".64" in name or ".WIDE" in name or name.startswith(("DADD", "DMUL", "DFMA", "MOV64"))
        else 1
    )


# the tools


def find_tools(name: str) -> list[Path]:
    """Find a tool of CUDA: from wheels of NVIDIA's, and from Triton's."""
    return find_files(*(f"{folder}/{name}" for folder in FOLDERS))


def assemblers() -> dict[str, Path]:
    """Find every ptxas that is here, by its version."""
    return {read_version(path): path for path in find_tools("ptxas")}


def read_version(path: Path) -> str:
    told = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    match = re.search(r"V(\d+\.\d+\.\d+)", told)
    return match[1] if match else told.strip()


def assemble(ptx: str, ptxas: Path, target: str = "sm_90a") -> bytes:
    """Machine code of a PTX text."""
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(ptx)
        subprocess.run(
            [ptxas, f"--gpu-name={target}", "-O3", source, "-o", made],
            check=True,
            capture_output=True,
        )
        return made.read_bytes()


def disassemble(cubin: bytes) -> dict[str, list[Line]]:
    """List the functions of a binary and their instructions."""
    tools = {name: find_tools(name)[:1] for name in ("cuobjdump", "nvdisasm")}
    if not all(tools.values()):
        raise FileNotFoundError(
            "cuobjdump is not here: it comes with Triton, "
            "or pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm"
        )
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        folders = [str(path.parent) for found in tools.values() for path in found]
        environment = {"PATH": ":".join(folders)}  # the one calls the other
        text = subprocess.run(
            ["cuobjdump", "-sass", file.name],
            capture_output=True,
            text=True,
            check=True,
            env=environment,
        ).stdout
    return read(text)


def read(text: str) -> dict[str, list[Line]]:
    """Parse what ``cuobjdump -sass`` prints."""
    found = {}
    for part in re.split(r"\n\s*Function : ", text)[1:]:
        name, body = part.split("\n", 1)
        found[name.strip()] = [
            Line(int(at, 16), word.strip())
            for at, word in re.findall(r"/\*([0-9a-f]{4,})\*/\s+([^/;]+?)\s*;", body)
        ]
    return found
