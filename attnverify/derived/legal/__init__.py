"""Legal evaluations of a graph, and the search for one beyond its bound."""

from attnverify.derived.legal.evaluations import climb

__all__ = ["climb"]
