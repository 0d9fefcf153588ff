"""
``cupy.cuda.nvrtc`` for files that compile for themselves, with the options that they choose.

What stands for a binary is the PTX that NVRTC makes of the source for the same GPU, under a mark;
the version that is told is no real one's, so that a cache of binaries keeps the two apart.
"""

from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from attnverify.ptx.launchers.nvrtc import Compiled, compile_text, version

__all__ = ["read_binary", "stand_in"]

MARK = "// attnverify's machine: PTX in place of a binary\n"


class NVRTCError(RuntimeError):
    """A source that does not compile."""


@dataclass
class Program:
    """A source, the names that are to be instantiated, and what the compiler says of them."""

    source: str
    names: list[str] = field(default_factory=list)
    text: str = ""
    log: str = ""


def compile_program(program: Program, options: list[str]) -> None:
    """Compile for the GPU that ``-arch`` names, real or virtual."""
    given = [option.replace("-arch=sm_", "-arch=compute_") for option in options]
    given = [f"{x}a" if x == "-arch=compute_90" else x for x in given]
    try:
        program.text, _ = compile_text(program.source, tuple(given), tuple(program.names))
    except ValueError as error:
        program.log = str(error)
        raise NVRTCError(program.log) from error


def read_binary(path: Path) -> Compiled:
    """Load what :func:`stand_in` gave out as a binary; another cannot be executed here."""
    content = path.read_bytes()
    if not content.startswith(MARK.encode()):
        raise NotImplementedError(
            "RawModule(path=...): a compiled binary cannot be executed here, give code="
        )
    return Compiled(content.decode(), {})


def stand_in() -> ModuleType:
    """Build the module, as far as a file that compiles one source needs it."""
    made = ModuleType("cupy.cuda.nvrtc")
    answers = {
        "NVRTCError": NVRTCError,
        "getVersion": lambda: (*version(), "attnverify's machine"),
        "createProgram": lambda source, name, headers, includes: Program(source),
        "addNameExpression": lambda program, name: program.names.append(name),
        "compileProgram": compile_program,
        "getProgramLog": lambda program: program.log,
        "getPTX": lambda program: (MARK + program.text).encode(),
        "getCUBIN": lambda program: (MARK + program.text).encode(),
        "destroyProgram": lambda program: None,
    }
    for name, answer in answers.items():
        setattr(made, name, answer)
    return made
