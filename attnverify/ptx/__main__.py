"""
The command line of the machine.

    python -m attnverify.ptx table               which instructions are there
    python -m attnverify.ptx read FILE.ptx ...   which instructions of these files are refused
    python -m attnverify.ptx sass FILE ...       registers overwritten under a product of a group,
                                                 in cubins or in PTX
    python -m attnverify.ptx run FILE ...        a program written for device="cuda", without a GPU
    python -m attnverify.ptx pytest tests/ ...   a suite of tests written for it; findings fail them
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from attnverify.ptx import sass, table
from attnverify.ptx.decode import decoded
from attnverify.ptx.findings import NotUnderstood
from attnverify.ptx.kernel import load


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m attnverify.ptx", description="A GPU made of NumPy."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("table", help="which instructions are there")
    for name, told in (
        ("read", "which instructions are refused"),
        ("sass", "registers overwritten under a product of a warp group"),
    ):
        commands.add_parser(name, help=told).add_argument("files", nargs="+", type=Path)
    for name, told in (("run", "a program written for CUDA"), ("pytest", "tests written for it")):
        add_program(commands.add_parser(name, help=told))
    given, first = parser.parse_known_args(arguments)
    if first and given.command != "pytest":
        parser.error(f"unrecognized arguments: {' '.join(first)}")
    if given.command in ("run", "pytest"):
        given.arguments = [*first, *given.arguments]
        return programs().execute(given)
    if given.command == "table":
        print("\n".join(table.lines()))
        return 0
    return read(given.files) if given.command == "read" else check(given.files)


def add_program(command: argparse.ArgumentParser) -> None:
    command.add_argument("--target", type=int, default=90, help="80, 86, 89 or 90 (sm_90a)")
    command.add_argument("--timeout", type=float, default=60, help="seconds for each launch")
    command.add_argument("--no-races", action="store_true", help="do not watch for races")
    told = "kernels may read what torch.empty allocated, and beyond the views that they are given"
    command.add_argument("--lenient", action="store_true", help=told)
    command.add_argument("--counts", action="store_true", help="conflicts of banks, sectors")
    command.add_argument("arguments", nargs=argparse.REMAINDER)


def programs() -> Any:
    """What runs whole programs needs PyTorch or CuPy: imported when it is asked for."""
    return import_module("attnverify.ptx.launchers.programs")


def read(files: list[Path]) -> int:
    """Decode every instruction, and tell each reason for a refusal once."""
    refused: Counter[str] = Counter()
    understood = 0
    for file in files:
        module = load(file.read_text())
        for name in module:
            kernel = module[name]
            for instruction in kernel.program.instructions:
                try:
                    decoded(instruction, kernel)
                    understood += 1
                except NotUnderstood as error:
                    refused[f"{instruction.name}: {error}"] += 1
    print(f"{understood} instructions understood, {sum(refused.values())} refused")
    for reason, count in refused.most_common():
        print(f"{count:6}  {reason}")
    return 1 if refused else 0


def check(files: list[Path]) -> int:
    """Check machine code statically; PTX is assembled by every ptxas that is here."""
    bad = 0
    for file in files:
        for label, cubin in binaries(file):
            for name, lines in sass.disassemble(cubin).items():
                found = sass.hazards(lines)
                bad += len(found)
                count = f"{len(sass.products(lines))} products from registers"
                print(f"{file.name} {label} {name}: {count}, {len(found)} overwritten")
                print("".join(f"  {hazard}\n" for hazard in found), end="")
    return 1 if bad else 0


def binaries(file: Path) -> Iterator[tuple[str, bytes]]:
    if file.suffix != ".ptx":
        yield "", file.read_bytes()
        return
    for version, path in sass.assemblers().items():
        yield f"ptxas {version}", sass.assemble(file.read_text(), path)


if __name__ == "__main__":
    sys.exit(main())
