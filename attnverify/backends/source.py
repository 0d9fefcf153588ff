"""
What was given to name a backend: a file, a package's folder or a module, and perhaps one function
of it: ``my_kernels.py:fast_softmax=softmax``; or a column of ours and what stands for its GPU:
``torch_impl@sm_90a``.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from attnverify.device_assignment import TARGETS

PROJECT_BACKENDS = ("numpy_ref", "torch_impl", "cupy_impl")


@dataclass(frozen=True)
class Source:
    """
    The place of a backend; where one function is meant, its dotted name there and the operation
    that it is, if its own name does not say; of a column of ours, the GPU that the PTX machine
    stands for.
    """

    place: str
    function: str = ""
    operation: str = ""
    target: str = ""

    @property
    def is_path(self) -> bool:
        path = Path(self.place)
        return path.suffix == ".py" or path.is_dir()

    @property
    def is_column(self) -> bool:
        """Tell whether it is one of ours, and no single function of it."""
        return self.place in PROJECT_BACKENDS and not self.function

    @property
    def name(self) -> str:
        """As it is reported."""
        if self.function:
            return self.function.rpartition(".")[2]
        if self.target:
            return f"{self.place}@{self.target}"
        return Path(self.place).stem if self.is_path else self.place


FUNCTION = re.compile(r"(?P<place>.+):(?P<function>[^\W\d][\w.]*)(=(?P<operation>\w+))?")


def parse_source(text: str) -> Source:
    """``place``, ``place:function``, ``place:function=operation`` or ``column@target``."""
    column, _, target = text.partition("@")
    if column in PROJECT_BACKENDS and target in TARGETS:
        return Source(column, target=target)
    found = FUNCTION.fullmatch(text)
    if found is None or Path(text).exists():
        return Source(text)
    return Source(found["place"], found["function"], found["operation"] or "")
