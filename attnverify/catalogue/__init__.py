"""The operations of the specification and what is known of each."""

from attnverify.catalogue.operation import (
    ASPECTS,
    CATALOGUE,
    CHAPTERS,
    DTYPES,
    Operation,
    parse_name,
)

__all__ = ["ASPECTS", "CATALOGUE", "CHAPTERS", "DTYPES", "Operation", "parse_name"]
