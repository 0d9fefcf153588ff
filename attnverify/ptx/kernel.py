"""Modules of PTX and their kernels: loaded from text, launched on NumPy arrays."""

import re
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from attnverify.ptx import instructions
from attnverify.ptx.arguments import Argument, packed, paired, placed_argument, three
from attnverify.ptx.decode import Form, Step, decoded
from attnverify.ptx.execution.machine import NEVER, Machine, Setup
from attnverify.ptx.execution.meeting import ranks_of
from attnverify.ptx.execution.schedule import run_all
from attnverify.ptx.findings import NotUnderstood
from attnverify.ptx.kinds import BITS
from attnverify.ptx.numbers.errors import Draw
from attnverify.ptx.numbers.tensor_core import unit_of
from attnverify.ptx.storage.counts import Counts
from attnverify.ptx.storage.device import Allocation, Memory
from attnverify.ptx.storage.order import Order
from attnverify.ptx.text.collection import uncollected
from attnverify.ptx.text.reader import (
    read_body,
    read_function,
    read_parameters,
    read_variable,
)
from attnverify.ptx.text.syntax import Parameter, Program, Text, Variable

__all__ = ["Kernel", "Launched", "Module", "Recorded", "forget_kernels", "load"]

ENTRY = re.compile(
    r"\.(?P<what>entry|func)\s+(?:\((?P<results>[^)]*)\)\s*)?(?P<name>[\w$]+)\s*"
    r"(?:\((?P<parameters>[^)]*)\))?(?P<more>[^{;]*)(?P<opens>[{;])"
)
TARGET = re.compile(r"\.target\s+sm_(\d+)")
GLOBALS = re.compile(r"\.(global|const|shared)\s+((?:\.attribute\([^)]*\)\s*)?[^;]*);")
LIMIT = re.compile(r"\.(?:reqntid|maxntid)\s+([\d,\s]+)")

LANES, MOST = 4096, 1024
LONGEST = 20_000_000


@dataclass(frozen=True)
class Launched:
    """What a launch took: instructions that were executed (each for many threads), and blocks."""

    steps: int
    blocks: int


@dataclass(frozen=True)
class Recorded:
    """A launch with all that it was given."""

    kernel: "Kernel"
    setup: Setup
    memory: Memory
    seed: int
    latitude: float
    lanes: int

    def repeat(self, kernel: "Kernel | None" = None) -> tuple[Memory, set[int]]:
        """
        Launch it again, or another kernel in its place: what the memory holds then, and the
        instructions that ordered something.
        """
        memory, useful = self.memory.copy(), set[int]()
        random, draw = np.random.default_rng(self.seed), Draw(self.seed, self.latitude)
        (kernel or self.kernel).execute(self.setup, memory, random, draw, self.lanes, useful)
        return memory, useful


BLANK = {0: np.array([False])} | {n: np.full(n, 255, np.uint8).view(BITS[n]) for n in BITS}
"""What a register of so many bytes holds before anybody writes: all bits set, as in NaN."""


class Kernel:
    """One entry of a module."""

    def __init__(
        self,
        name: str,
        parameters: list[Parameter],
        program: Program,
        module: "Module",
        threads: int | None,
    ) -> None:
        self.name, self.parameters, self.program, self.module = name, parameters, program, module
        self.threads = threads
        self.waits = self.bulk = False
        self.smallest: dict[str, int] = {}
        self.places, self.shared_size = laid_out(
            v for v in [*module.variables, *program.variables] if v.space == "shared"
        )
        locals_, size = laid_out(v for v in program.variables if v.space == "local")
        self.places |= locals_ | {p.name: p.offset for p in parameters}
        self.local_size = -(-size // 16) * 16
        self.blank = [*(BLANK[r.size] for r in program.registers), BLANK[0], BLANK[0]]
        self.carry, self.votes = len(program.registers), len(program.registers) + 1
        self.asynchronous_registers = instructions.matrix.wgmma.used_registers(program.instructions)
        self.asynchronous = bool(self.asynchronous_registers)
        self.last = len(program.instructions) - 1
        self.tensor_core = unit_of(module.target)

    def __repr__(self) -> str:
        return f"<kernel {self.name} for sm_{self.module.target}: {self.last + 1} instructions>"

    @cached_property
    @uncollected
    def steps(self) -> list[Step]:
        """A closure for each instruction."""
        return [decoded(each, self) for each in self.program.instructions]

    @cached_property
    def ranks(self) -> list[int]:
        """Which instructions go first, where threads stand at several."""
        return ranks_of(self.program)

    # what builders ask

    def has_variable(self, name: str) -> bool:
        known = (*self.places, *self.module.dynamic, *(v.name for v in self.module.variables))
        return name in known

    def touches(self, space: str, size: int) -> None:
        """Some instruction accesses so many bytes of a space at once."""
        for each in ("shared", "global") if space == "generic" else (space,):
            self.smallest[each] = min(self.smallest.get(each, 16), size)

    def unit(self, space: str) -> int:
        """Find the bytes of the smallest access to a space."""
        return self.smallest.get(space, 16)

    def watched(self, form: Form, step: Step) -> Step:
        """The step, watched if it touches registers that products of warp groups use."""
        if not self.asynchronous_registers or form.name == "wgmma":
            return step
        return instructions.matrix.wgmma.watched(form, step, self.asynchronous_registers)

    # launching

    def launch(
        self,
        grid: int | Sequence[int],
        threads: int | Sequence[int],
        arguments: Sequence[Argument],
        *,
        shared: int = 0,
        memory: Memory | None = None,
        seed: int = 0,
        latitude: float = 1.0,
        races: bool = True,
        register_fences: bool = True,
        lanes: int = LANES,
        longest: int = LONGEST,
        timeout: float | None = None,
        replicated: bool = False,
        counts: Counts | None = None,
        record: "list[Recorded] | None" = None,
        tell: Callable[[str, int, int], None] | None = None,
    ) -> Launched:
        """
        Execute a grid of blocks.

        Arrays are copied to the device and back. ``shared`` are the bytes of dynamic shared memory;
        ``seed`` draws the errors of approximate instructions, the order of blocks and of sums;
        ``latitude`` 0 switches those errors off, ``races`` False the watch over races,
        ``register_fences`` False that over ``wgmma.fence`` (assemblers put in what is missing, with
        a remark C7519; Triton 3.6 relies on it); so many ``lanes`` are executed together at most,
        and a launch stops after ``longest`` instructions of the blocks that are executed together,
        or ``timeout`` seconds; ``replicated``: warps of a block hold copies of the same numbers, as
        Triton has it, and may read what one of them then writes; ``counts`` collects conflicts of
        banks and accesses that are spread out; ``tell`` is called with the kernel's name, how many
        blocks have ended, and how many there are. What is launched is kept in ``record``, to be
        launched again.
        """
        memory = Memory() if memory is None else memory
        sizes, shape = three(grid, "grid"), three(threads, "threads")
        placed = [
            placed_argument(x, memory, p) for x, p in paired(arguments, self.name, self.parameters)
        ]
        parameters = packed(placed, self.parameters)
        until = NEVER if timeout is None else time.monotonic() + timeout
        setup = Setup(
            *(sizes, shape, parameters, shared, races, register_fences, longest, until),
            *(replicated, counts),
        )
        self.check_threads(shape)
        if record is not None:
            record.append(Recorded(self, setup, memory.copy(), seed, latitude, lanes))
        random, draw = np.random.default_rng(seed), Draw(seed, latitude)
        steps = self.execute(setup, memory, random, draw, lanes, tell=tell)
        memory.forget_accesses()
        for x, given in zip(arguments, placed, strict=True):
            if isinstance(x, np.ndarray) and isinstance(given, Allocation) and given.touched:
                x.reshape(-1).view(np.uint8)[:] = given.contents
        return Launched(steps, int(np.prod(sizes)))

    def without(self, *indices: int) -> "Kernel":
        """Copy the kernel, some instructions of which do nothing then."""
        made = copy(self)
        steps = [(lambda m: None) if at in indices else step for at, step in enumerate(self.steps)]
        made.__dict__["steps"] = steps
        return made

    def check_threads(self, shape: tuple[int, int, int]) -> None:
        most = min(self.threads or MOST, MOST)
        if np.prod(shape) > most:
            raise ValueError(
                f"threads: wanted at most {most} in a block of {self.name}, got {shape}"
            )

    def execute(
        self,
        setup: Setup,
        memory: Memory,
        random: np.random.Generator,
        draw: Draw,
        lanes: int,
        useful: set[int] | None = None,
        tell: Callable[[str, int, int], None] | None = None,
    ) -> int:
        """
        Execute all blocks in a drawn order, so many together as there are lanes; the instructions
        that were executed.
        """
        assert (
            len(self.steps) == self.last + 1
        )  # what is not understood is refused before anything is placed
        addresses = (
            self.places
            | self.module.placed(memory)
            | {name: self.dynamic_start for name in self.module.dynamic}
        )
        blocks = random.permutation(int(np.prod(setup.grid)))
        width = -(-int(np.prod(setup.threads)) // 32) * 32
        together = max(1, lanes // width)
        order = Order(len(blocks), width // 32, setup.replicated, self.bulk)
        machines = (
            Machine(
                self,
                memory,
                setup,
                np.sort(blocks[first : first + together]),
                draw,
                addresses,
                order,
            )
            for first in range(0, len(blocks), together)
        )
        steps = ended = 0
        with np.errstate(all="ignore"):
            for machine in run_all(machines):
                steps, ended = steps + machine.steps, ended + len(machine.blocks)
                if tell is not None:
                    tell(self.name, ended, len(blocks))
                if useful is not None:
                    useful |= machine.useful
        return steps

    @property
    def dynamic_start(self) -> int:
        return -(-self.shared_size // 16) * 16


LIVING: "weakref.WeakSet[Module]" = weakref.WeakSet()


def forget_kernels() -> None:
    """
    Let go of what kernels were read to, 3 KB an instruction: whoever asks for one again has it read
    again. A closure knows its kernel, and a kernel its closures: nobody searches for such a circle
    among what is frozen, so it is opened here.
    """
    for module in LIVING:
        for kernel in module.kernels.values():
            vars(kernel).pop("steps", None)
        module.kernels.clear()


class Module:
    """A PTX text: its kernels by name, its variables, and what it was compiled for."""

    def __init__(self, text: str) -> None:
        self.text = Text(text)
        target = TARGET.search(self.text.text)
        if target is None:
            raise NotUnderstood("a PTX text without .target")
        self.target = int(target[1])
        entries = [
            (match, self.text.closing(match.end() - 1))
            for match in ENTRY.finditer(self.text.text)
            if match["opens"] == "{"
        ]
        self.variables, self.dynamic = self.outside(entries)
        self.bodies = {m["name"]: (m, end) for m, end in entries if m["what"] == "entry"}
        self.functions = {
            m["name"]: read_function(m.end(), end, m["parameters"] or "", m["results"] or "")
            for m, end in entries
            if m["what"] == "func"
        }
        self.kernels: dict[str, Kernel] = {}
        LIVING.add(self)

    def __getitem__(self, name: str) -> Kernel:
        if name not in self.bodies:
            raise KeyError(f"{name}: the module has {', '.join(self.bodies) or 'no kernels'}")
        if name not in self.kernels:
            match, end = self.bodies[name]
            limit = LIMIT.search(match["more"] or "")
            threads = None if limit is None else int(np.prod([int(n) for n in limit[1].split(",")]))
            parameters = read_parameters(match["parameters"] or "")
            program = read_body(self.text, match.end(), end, self.functions)
            self.kernels[name] = Kernel(name, parameters, program, self, threads)
        return self.kernels[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.bodies)

    def __len__(self) -> int:
        return len(self.bodies)

    def outside(self, entries: list[tuple[re.Match[str], int]]) -> tuple[list[Variable], list[str]]:
        """
        Collect the variables outside of all functions; and the names of the shared memory whose
        size a launch gives.
        """
        text, variables, dynamic = self.text.text, [], []
        inside = [(match.start(), end) for match, end in entries]
        for match in GLOBALS.finditer(text):
            if any(start <= match.start() < end for start, end in inside):
                continue
            made = read_variable(match[1], match[2])
            if match[1] == "shared" and made.size == 0:
                dynamic.append(made.name)
            else:
                variables.append(made)
        return variables, dynamic

    def placed(self, memory: Memory) -> dict[str, int]:
        """
        Find the addresses of the module's variables, which stay in a memory from launch to launch.
        """
        known = memory.variables.setdefault(self, {})
        for variable in self.variables:
            if variable.space != "shared" and variable.name not in known:
                made = memory.reserve(variable.size, variable.name, initialised=True)
                made.contents[:] = np.frombuffer(
                    variable.initial.ljust(variable.size, b"\0"), np.uint8
                )
                known[variable.name] = made.address
        return known


def load(text: str) -> Module:
    """
    Load the kernels of a PTX text.

    >>> from attnverify import ptx
    >>> ptx.load(text)["kernel"].launch(grid, threads, arguments)  # doctest: +SKIP
    """
    return Module(text)


def laid_out(variables: Iterable[Variable]) -> tuple[dict[str, int], int]:
    """
    Variables of one space one behind the other: where each begins, and how many bytes they take.
    """
    places: dict[str, int] = {}
    size = 0
    for variable in variables:
        size = -(-size // variable.align) * variable.align
        places[variable.name] = size
        size += variable.size
    return places, size
