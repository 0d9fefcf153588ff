"""
The names of ``typing`` that the specification uses: the whole module takes Brython a second to
compile.
"""

from jaxtyping import Annotation

Any = object
Annotated = Unpack = Annotation()


class TypedDict:
    """The base of a record of options, which a live cell gives by name."""

    def __init_subclass__(cls, **said):
        pass


def NamedTuple(name, fields):
    """Make the class of a record of fields, each given as its name and its type."""
    names = [field for field, _ in fields]

    class Record:
        def __init__(self, *values):
            for name, value in zip(names, values, strict=True):
                setattr(self, name, value)

        def _replace(self, **changed):
            return Record(*[changed.get(name, getattr(self, name)) for name in names])

    return Record
