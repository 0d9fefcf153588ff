"""Whether anything was imported twice: a column by its bare name, or one file under two names."""

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from attnverify import COLUMNS, PACKAGE, ROOT


def second_imports(modules: Mapping[str, ModuleType | None]) -> list[str]:
    """What was imported under a name that it should not have, in words."""
    ours = {
        name: Path(file)
        for name, module in list(modules.items())
        if (file := getattr(module, "__file__", None)) and _is_ours(Path(file))
    }
    bare = [f"{name} by its bare name" for name in ours if name.partition(".")[0] in COLUMNS]
    names = defaultdict(list)
    for name, file in ours.items():
        names[file].append(name)
    return bare + [" and ".join(two) for two in names.values() if len(two) > 1]


def _is_ours(file: Path) -> bool:
    return any(file.is_relative_to(folder) for folder in (PACKAGE, *(ROOT / c for c in COLUMNS)))


def operators_defined_twice(modules: Mapping[str, ModuleType | None]) -> list[str]:
    """The operators of PyTorch that belong to us under more than one namespace."""
    torch = modules.get("torch")
    if torch is None:
        return []
    found = defaultdict(set)
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, operator = name.partition("::")
        if namespace.endswith("torch_impl"):
            found[operator].add(namespace)
    return [operator for operator, namespaces in found.items() if len(namespaces) > 1]
