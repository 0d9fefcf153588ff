"""The same operation in other libraries."""

from collections.abc import Iterator

from verify.catalogue import Operation


def section(operation: Operation) -> Iterator[str]:
    yield "to come\n"
