"""
How judging a case can end otherwise than with a verdict.
"""

from attnverify.judge.comparison import Comparison


class Disagreement(AssertionError):
    """
    An implementation did something else than the specification says.

    ``kind`` says what in a word or two, so that failures of different kinds are told apart;
    ``budget`` is the worst share of the bound. Where numbers were compared, ``comparison`` has
    them, and ``path`` says of which output they are; ``at`` has the lines of the file that the PTX
    machine stood at, ``without`` the arguments for whose gradients there was None.
    """

    at: tuple[str, ...] = ()
    without: tuple[str, ...] = ()

    def __init__(
        self,
        message: str,
        kind: str = "wrong type",
        budget: float = 0.0,
        comparison: Comparison | None = None,
        path: str = "output",
    ) -> None:
        super().__init__(message)
        self.kind, self.budget, self.comparison, self.path = kind, budget, comparison, path


class WrongDtype(Disagreement):
    """An output has another dtype than the specification says."""

    def __init__(self, path: str, wanted: str, got: str) -> None:
        super().__init__(f"{path}: wanted dtype {wanted}, got {got}", "wrong dtype", path=path)
        self.got = got


class NotCompiled(Disagreement):
    """The compiler of a kernel gives up: there is no answer, and nobody can take it for one."""

    def __init__(self, raised: str, reason: str) -> None:
        super().__init__(raised, DOES_NOT_COMPILE)
        self.reason = f"{DOES_NOT_COMPILE}: {reason}"


DOES_NOT_COMPILE = "does not compile"


class Unsupported(Exception):
    """The implementation says that it does not support this case."""


class DeviceLost(Exception):
    """
    After this call the device answers no more, whatever it is asked: nothing else can be judged in
    this process.
    """
