"""``triton.autotune`` without a clock: a policy picks a configuration that compiles and fits."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from triton.compiler.errors import CompileTimeAssertionFailure
from triton.runtime.errors import OutOfResources, PTXASError

__all__ = ["Policy", "check_policy", "tuned"]

Policy = str | int
UNFIT = (OutOfResources, CompileTimeAssertionFailure, PTXASError)


class Compiler(Protocol):
    """A driver that can be told to compile and execute nothing."""

    compiling: bool


def order_configurations(configs: list[Any], policy: Policy) -> list[Any]:
    """Put the configurations in the order in which they are tried."""
    start = (
        {"first": 0, "last": len(configs) - 1}.get(policy, policy)
        if isinstance(policy, str)
        else policy % len(configs)
    )
    turned = configs[::-1] if policy == "last" else configs[int(start) :] + configs[: int(start)]
    return turned


def tuned(driver: Compiler, policy: Policy) -> Callable[..., Any]:
    """What stands for ``Autotuner.run``: the first configuration that compiles and fits is run."""

    def run(tuner: Any, *args: Any, **kwargs: Any) -> Any:
        tuner.nargs = dict(zip(tuner.arg_names, args, strict=False))
        failed: Exception | None = None
        for config in order_configurations(list(tuner.prune_configs(kwargs)), policy):
            given = {**kwargs, **config.all_kwargs()}
            try:
                with compiling(driver):
                    tuner.fn.run(*args, **given)
            except UNFIT as error:
                failed = error
                continue
            tuner.best_config = config
            if config.pre_hook is not None:
                config.pre_hook({**tuner.nargs, **given})
            return tuner.fn.run(*args, **given)
        raise failed or RuntimeError("no configuration")

    return run


@contextmanager
def compiling(driver: Compiler) -> Iterator[None]:
    """Launches compile, and execute nothing."""
    before, driver.compiling = driver.compiling, True
    try:
        yield
    finally:
        driver.compiling = before


def check_policy(policy: Policy) -> None:
    if not isinstance(policy, int) and policy not in ("first", "last"):
        raise ValueError(f'autotune: wanted "first", "last" or a number, got {policy!r}')
