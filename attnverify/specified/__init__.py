"""
Operations from outside: one NumPy function with annotated axes, in somebody's own file, becomes an
operation of the catalogue for this run. The same judge serves it: recipes, cases, comparison,
shrinking, replay, causes, page.
"""

from attnverify.specified.operation import SpecifiedOperation
from attnverify.specified.registering import (
    is_specified_otherwise,
    register,
    register_file,
    register_inherited,
    register_recorded,
)

__all__ = [
    "SpecifiedOperation",
    "is_specified_otherwise",
    "register",
    "register_file",
    "register_inherited",
    "register_recorded",
]
