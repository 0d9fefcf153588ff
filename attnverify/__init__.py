"""
Attention, verified: draw hard inputs, run any backend against the specification, and judge every
element by a derived bound.

The four columns are reached below this name, ``attnverify.spec`` among them, from an installation
and from a checkout alike. In a checkout their folders lie beside this one, where
:class:`CheckoutFinder` finds them.
"""

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnverify import spec
    from attnverify.interface import CheckFailed, Report, bound, check

__all__ = ["CheckFailed", "Report", "__version__", "bound", "check", "spec"]

__version__ = "0.2.0"

COLUMNS = ("spec", "numpy_ref", "torch_impl", "cupy_impl")


PACKAGE = Path(__file__).parent
ROOT = PACKAGE.parent
"""The root of the checkout, where this is one."""


class CheckoutFinder:
    """
    Finds the columns of a checkout, ``attnverify.spec`` in the folder ``spec`` beside this package.

    It answers for the four names alone: a search path extended to the root of the checkout would
    make ``attnverify.tests`` importable as well.
    """

    @classmethod
    def find_spec(cls, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Find the module specification of a column; None for every other name."""
        package, _, column = name.partition(".")
        if package != __name__ or column not in COLUMNS:
            return None
        folder = ROOT / column
        return spec_from_file_location(
            name, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )


IS_CHECKOUT = not (PACKAGE / "spec").is_dir()
"""Whether the columns lie beside this package (a checkout) and not inside it (an installation)."""


def describe_installation() -> str:
    """Tell which attnverify runs: its version and where it lies."""
    kind, folder = ("checkout", ROOT) if IS_CHECKOUT else ("installed", PACKAGE)
    return f"attnverify {__version__} ({kind}: {folder})"


if IS_CHECKOUT:
    sys.meta_path.insert(0, CheckoutFinder)


def __getattr__(name: str) -> Any:
    """The public interface, which is loaded when it is first asked for."""
    if name == "spec":
        return import_module("attnverify.spec")
    if name in __all__:
        return getattr(import_module("attnverify.interface"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
