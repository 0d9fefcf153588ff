"""
What a pytest run has to do with us: what was collected, what is to be judged, and whether this very
command asked for it.
"""

import time
from dataclasses import dataclass, field
from typing import Any

import pytest

from attnverify.plugin import BACKENDS
from attnverify.plugin.closing import Collector
from attnverify.report.live.progress import name_of
from attnverify.report.next_steps import Cut
from attnverify.session import Verification
from attnverify.verdicts.journal import Journal


@dataclass
class State:
    """
    What a pytest run has to do with us.

    collected  whether differential tests were collected; cells: how many; selected: how many of
               them are left to run; chosen: their names, under xdist those of all tests
    problem    why they cannot run: an option that is wrong, told once everything is collected
    """

    collector: Collector = field(default_factory=Collector)
    verification: Verification | None = None
    journal: Journal | None = None
    started: float = field(default_factory=time.monotonic)
    collected: bool = False
    cells: int = 0
    selected: int = 0
    chosen: dict[str, None] = field(default_factory=dict)
    problem: str = ""

    def is_over(self, minutes: float | None) -> bool:
        """Tell whether no further cell is to begin."""
        return minutes is not None and time.monotonic() - self.started > 60 * minutes

    def never_reported(self) -> list[str]:
        """Name the tests of which no report was given: the run was broken off."""
        return [name for name in self.chosen if name not in self.collector.reported]

    def cut(self, run: Verification) -> Cut:
        """Find what was chosen and not judged, and what was found in the cell under way."""
        left = {name_of(name) for name in self.chosen if name not in self.collector.judged}
        cells = [x for x in run.cells(None) if f"{x.id} {x.aspect.lower()}" in left] if left else []
        return Cut(cells, self.collector.found)

    @property
    def tallies(self) -> list[dict[str, Any]]:
        return self.collector.tallies

    def counts(self) -> list[Any]:
        """Collect what the controller of pytest-xdist learns from a worker."""
        return [self.collected, self.cells, self.selected, self.problem]

    def learn(self, collected: bool, cells: int, selected: int, problem: str) -> None:
        self.collected, self.problem = self.collected or collected, self.problem or problem
        self.cells, self.selected = max(self.cells, cells), max(self.selected, selected)

    def is_narrowed(self) -> bool:
        """Tell whether somebody chose other tests: the cells were collected and none is left."""
        return self.cells > 0 and self.selected == 0


STATE = pytest.StashKey[State]()


def is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def named_on_the_line(config: pytest.Config) -> bool:
    """Tell whether this very command names a backend, and not the configuration of a project."""
    arguments = map(str, config.invocation_params.args)
    return any(argument.startswith("--attn-backend") for argument in arguments)


def is_about_backends(config: pytest.Config) -> bool:
    """Tell whether a run is about backends and nothing else."""
    return named_on_the_line(config) or (
        bool(sources_of(config)) and config.getoption("markexpr").strip() == "differential"
    )


def sources_of(config: pytest.Config) -> list[str]:
    """List the backends to judge: those of the options, or else those of the configuration."""
    return list(config.getoption("attn_backend") or config.getini(BACKENDS))
