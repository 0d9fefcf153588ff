"""The operations of the specification and what is known of each."""

from attnverify.catalogue.operation import CATALOGUE, Operation, parse_name
from attnverify.catalogue.traits import ASPECTS, CHAPTERS, DTYPES

__all__ = ["ASPECTS", "CATALOGUE", "CHAPTERS", "DTYPES", "Operation", "parse_name"]
