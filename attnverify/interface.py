"""
The public interface in Python: check a function, ask for a bound, read a report.

>>> import numpy as np
>>> import attnverify as av
>>> av.check(av.spec.shift_right, "shift_right", dtype="float32").passed
True
>>> bound = av.bound("softmax", {"score": np.array([[0.0, 1.0]])}, dtype="float16")
>>> bool((bound < 1e-3).all())
True
"""

import inspect
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from attnverify import bounds
from attnverify.backends.declarations import read_declarations
from attnverify.backends.implementation import Backend
from attnverify.backends.loader import implementation_of_function
from attnverify.backends.modules import imported_library
from attnverify.catalogue.dtypes import round_to
from attnverify.catalogue.operation import CATALOGUE
from attnverify.catalogue.pytrees import map_leaves
from attnverify.catalogue.traits import ASPECTS
from attnverify.inputs.given import save_inputs, speaks_of_gradients
from attnverify.isolation.second_look import judge_here
from attnverify.isolation.supervisor import describe_backend, judge_in_worker
from attnverify.isolation.worker_process import Limits, Worker
from attnverify.judge.case import refuse_given
from attnverify.judge.module_contents import functions_of_judge, set_functions_of_judge
from attnverify.options import (
    ANSWER,
    FAILURES,
    REQUIRED,
    parse_dtype,
    parse_operation,
    parse_profile,
    parse_require,
)
from attnverify.precision import DTYPES, resolve
from attnverify.report.causes.root_causes import triage
from attnverify.report.html import framed_page
from attnverify.report.json_report import describe_origin, json_text, read_report
from attnverify.report.next_steps import lines_to_add
from attnverify.report.table import format_table, summary_line
from attnverify.specified import register
from attnverify.verdicts.cell import cells
from attnverify.verdicts.found_out import find_alone
from attnverify.verdicts.tally import CellResult, Options

__all__ = ["CheckFailed", "Report", "bound", "check"]


@dataclass(frozen=True, repr=False)
class Report:
    """What a run showed: one result for each implementation, dtype and aspect of the verdict."""

    results: tuple[CellResult, ...]
    about: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """When the run was, how long it took, and of which versions, by the keys of the JSON."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What was noticed and is no failure: what a kernel calls inside, and what it changed."""
        of_backends = (backend["notes"] for backend in self.about.get("backends", ()))
        return (*self.about.get("notes", ()), *chain.from_iterable(of_backends))

    def to_json(self) -> str:
        """Write the report as :meth:`from_json` reads it."""
        return json_text({**self.about, "tallies": [result.as_dict() for result in self.results]})

    @classmethod
    def from_json(cls, text: str) -> "Report":
        """
        Read the report that ``attnverify run --report-json`` wrote. Raises ValueError otherwise.
        """
        read = read_report(text)
        results = tuple(CellResult.from_dict(tally) for tally in read.pop("tallies"))
        return cls(results, read)

    @classmethod
    def read(cls, path: str | Path) -> "Report":
        """Read the same by the path of its file."""
        return cls.from_json(Path(path).read_text(encoding="utf-8"))

    def verdict(self, operation: str, dtype: str, aspect: str = "values") -> str:
        """Find the verdict on an operation: passed, failed, known failure, unsupported ..."""
        found = {
            result.verdict
            for result in self.results
            if (result.operation, result.dtype, result.aspect) == (operation, dtype, aspect)
        }
        worst = (verdict for verdict in ("failed", "weak") if verdict in found)
        return next(worst, max(found, default="not judged"))

    @property
    def failed(self) -> tuple[CellResult, ...]:
        """The results that are failures."""
        return tuple(result for result in self.results if result.verdict == "failed")

    @property
    def passed(self) -> bool:
        """Whether something passed, nothing failed and nothing is weak."""
        verdicts = {result.verdict for result in self.results}
        return "passed" in verdicts and not {"failed", "weak"} & verdicts

    def __str__(self) -> str:
        return "\n".join(format_table([result.as_dict() for result in self.results]))

    def __repr__(self) -> str:
        return f"<Report: {summary_line([result.as_dict() for result in self.results])}>"

    def _repr_html_(self) -> str:
        """Show the report in a notebook: the page of a run, maps included, in a frame."""
        tallies = [result.as_dict() for result in self.results]
        causes = [cause.as_dict() for cause in triage(tallies)]
        return framed_page({**self.about, "tallies": tallies, "root_causes": causes})


class CheckFailed(AssertionError):
    """A function that is not what the specification says; ``report`` has all that was judged."""

    def __init__(self, words: str, report: Report) -> None:
        super().__init__(words)
        self.report = report


def check(
    function: Callable[..., Any] | str | Path,
    operation: str = "",
    *,
    spec: Callable[..., Any] | None = None,
    dtype: str | Iterable[str] = (),
    profile: str = "quick",
    seed: int = 0,
    precision: Any = None,
    arrays: str = "",
    require: str = "answer",
    failures: str = FAILURES,
    inputs: Mapping[str, Any] | None = None,
    seconds: float = 60.0,
) -> Report:
    """
    Judge a function as an operation of the catalogue, or by a specification of one's own, in this
    process; or a file, by its path, in a process of its own that is gone afterwards.

    spec       a NumPy function with annotated axes: what the function is to compute
    dtype      one or several (default: what DTYPES says beside it, else float32)
    precision  what its arithmetic claims, as a backend's PRECISION
    arrays     whose arrays it takes: torch, cupy, jax or numpy (default: what its module imports)
    require    what must hold: answer (values and gradients), contract (refusals, side effects and
               NaN in slots hidden from all too) or isolation (also in slots hidden from some)
    failures   where failures are recorded, for attnverify replay
    inputs     arrays by the names of arguments, to be judged in place of drawn ones; gradients are
               where there is a d_output
    seconds    what each call of a file may take

    A file says itself what precision it claims and whose arrays it takes; what that of a function
    declares (FEATURES, LAYOUT, ARGUMENTS ...) holds for the function, but for what is given here.

    Raises CheckFailed with the finding where something that must hold does not, where no case was
    discriminating or nothing could be judged; ValueError for an argument that is wrong.
    """
    __tracebackhide__ = True  # pytest shows the line of the user's test, and the finding
    began, changed = time.time(), _put_back()
    names = [dtype] if isinstance(dtype, str) else [*dtype]
    dtypes = tuple(_read("dtype", parse_dtype, name) for name in names)
    if spec is not None:
        operation = register(spec).name
    else:
        _read("operation", parse_operation, operation)
    options = Options(_read("profile", parse_profile, profile), seed, failures)
    columns: tuple[str, ...] = ASPECTS
    if inputs is not None:
        options = replace(options, inputs=save_inputs(inputs, failures))
        refuse_given(CATALOGUE[operation], options.inputs, (dtypes or USUAL_DTYPE)[0])
        columns = ANSWER if speaks_of_gradients(inputs) else ANSWER[:1]
    aspects = REQUIRED[_read("require", parse_require, require)]
    if callable(function):
        backend = _backend_of(function, operation)
        module = inspect.getmodule(function)
        dtypes = dtypes or _dtypes_of(module)
        backend.declared = read_declarations(module, dtypes)
        backend.precision = getattr(module, "PRECISION", None) if precision is None else precision
        library = arrays or _library_of(module)
        implementation_of_function(backend, function, operation, library)
        backend.alone = find_alone(backend)
        asked = cells([backend], (), dtypes, None, columns)
        results = tuple(judge_here(cell, options) for cell in asked)
    else:
        _refuse_of_file(spec=spec, precision=precision, arrays=arrays or None)
        limits = Limits(seconds)
        backend, results = _judge_file(str(function), operation, dtypes, columns, options, limits)
    plain, declared = [result.as_dict() for result in results], {backend.name: backend.declared}
    notes = [*changed, *backend.notes, *lines_to_add(plain, declared, [backend])]
    report = Report(results, {**describe_origin(began), "notes": notes})
    if backend.broken or backend.missing:
        raise CheckFailed(f"{function}: {backend.broken or backend.missing}", report)
    judged = [result for result in report.results if result.aspect in aspects]
    wrong = [result for result in judged if result.verdict in ("failed", "weak")]
    if wrong or not any(result.verdict == "passed" for result in judged):
        reasons = dict.fromkeys(result.reason for result in wrong or judged)
        words = "\n\n".join(reasons) or "; ".join(backend.refused) or "nothing was judged"
        raise CheckFailed(words, report)
    return report


USUAL_DTYPE = ("float32",)


def _dtypes_of(module: Any) -> tuple[str, ...]:
    """What DTYPES of a function's module says, where it names ours; a module may mean others."""
    said = getattr(module, "DTYPES", ())
    names = isinstance(said, tuple | list) and all(isinstance(each, str) for each in said)
    return tuple(said) if names and {*said} <= {*DTYPES} and said else USUAL_DTYPE


AS_IMPORTED = functions_of_judge().copy()


def _put_back() -> list[str]:
    """Put the judge's own functions back as they were imported, and say which were others."""
    changed = AS_IMPORTED.differs(functions_of_judge())
    set_functions_of_judge(AS_IMPORTED)
    return [f"the judge's own function {name} was changed, and put back" for name in changed]


def _refuse_of_file(**given: Any) -> None:
    """Raise ValueError where something is said of a file that the file says itself."""
    __tracebackhide__ = True
    for name, thing in given.items():
        if thing is not None:
            raise ValueError(f"{name}: wanted none beside a file, which says it itself")


def _judge_file(
    path: str,
    operation: str,
    dtypes: tuple[str, ...],
    columns: tuple[str, ...],
    options: Options,
    limits: Limits,
) -> tuple[Backend, tuple[CellResult, ...]]:
    """Judge a file in a process of its own, which ends with the last of its cells."""
    worker = Worker(path, limits)
    try:
        backend = describe_backend(worker)
        asked = cells(
            [backend], (operation,), dtypes or backend.declared.dtypes or USUAL_DTYPE, None, columns
        )
        return backend, tuple(judge_in_worker(worker, cell, options) for cell in asked)
    finally:
        worker.close()


def _read(argument: str, parse: Callable[[str], str], text: str) -> str:
    __tracebackhide__ = True
    try:
        return parse(text)
    except ValueError as error:
        raise ValueError(f"{argument}: {error}") from None


def _backend_of(function: Callable[..., Any], operation: str) -> Backend:
    """Build a backend that consists of a function; its source says how to load it again."""
    name = getattr(function, "__qualname__", type(function).__name__)
    module = inspect.getmodule(function)
    file = getattr(module, "__file__", None) or ""
    is_script = file.endswith(".py") and not getattr(module, "__package__", None)
    place = file if is_script else getattr(module, "__name__", "")
    source = f"{place}:{name}" if name == operation else f"{place}:{name}={operation}"
    return Backend(name.rpartition(".")[2], source, by_name=True)


def _library_of(module: ModuleType | None) -> str:
    """Name the library that a module says it takes arrays of, or imports."""
    said = getattr(module, "ARRAYS", None)
    return said if isinstance(said, str) else imported_library([module] if module else [])


def bound(
    operation: str, inputs: Mapping[str, Any], *, dtype: str = "float32", precision: Any = "eager"
) -> Any:
    """
    Tell how far off each element of an operation's output may be, in the shape of the output: None
    for an operation that moves numbers and computes none. The inputs are rounded to the dtype
    first.
    """
    name, dtype = _read("operation", parse_operation, operation), _read("dtype", parse_dtype, dtype)
    if CATALOGUE[name].exact:
        return None
    rounded = {
        key: map_leaves(lambda leaf: _round_leaf(leaf, dtype), value)
        for key, value in inputs.items()
    }
    return bounds.bound(name, rounded, resolve(precision, name, name, dtype))


def _round_leaf(leaf: Any, dtype: str) -> Any:
    if isinstance(leaf, np.ndarray) and leaf.dtype.kind == "f":
        return round_to(leaf.astype(np.float64), dtype)
    return leaf
