"""
What can be said of a file before any library is loaded: that it is not there, that it is no Python,
and which operations its functions name.
"""

import ast
import difflib
from pathlib import Path

from attnverify.backends.source import parse_source
from attnverify.options import operation_names


def find_unreadable(source: str) -> list[str]:
    """
    Say why a file cannot be judged, with the place where it is no Python; nothing where it can be
    read, and of what is named as a module.
    """
    path = Path(parse_source(source).place)
    if path.suffix != ".py" or path.is_dir():
        return []
    try:
        compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    except FileNotFoundError:
        near = difflib.get_close_matches(path.name, (p.name for p in path.parent.glob("*.py")), 1)
        hint = f"; did you mean {path.with_name(near[0])}?" if near else ""
        return [f"  {source}: broken (no file {path}){hint}"]
    except SyntaxError as error:
        told = f"{_broken(source, type(error).__name__)}: {error.msg} (line {error.lineno}))"
        return [told, *_show_place(error)]
    except (OSError, ValueError) as error:
        return [f"{_broken(source, type(error).__name__)}: {error})"]
    return []


def _broken(source: str, kind: str) -> str:
    """Begin as the report of a run does."""
    return f"  {source}: broken (cannot be imported: {kind}"


def _show_place(error: SyntaxError) -> list[str]:
    """Quote the line, with a mark below what is wrong."""
    if not error.text:
        return []
    line = error.text.rstrip()
    indent = len(line) - len(line.lstrip())
    return [f"    {line.lstrip()}", f"    {' ' * ((error.offset or 1) - 1 - indent)}^"]


def find_operations(source: str) -> list[str]:
    """List the operations that the functions of a file name, as its text says."""
    asked = parse_source(source)
    if asked.operation:
        return [asked.operation]
    if not asked.place.endswith(".py"):
        return []
    try:
        tree = ast.parse(Path(asked.place).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return []
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    if asked.function:
        names = [name for name in names if name == asked.function]
    found = (operation_of_name(name.removesuffix("_grad")) for name in names)
    return list(dict.fromkeys(operation for operation in found if operation))


def only_function(source: str) -> str:
    """
    Name the one function of a file that has no other, and gives nothing the name of an operation;
    "" otherwise.
    """
    try:
        tree = ast.parse(Path(source).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ""
    found = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    names = [name for name in found if name[0] != "_"]
    others = [n.id for n in ast.walk(tree) if isinstance(n, ast.Name)]
    others += [n.asname or n.name for n in ast.walk(tree) if isinstance(n, ast.alias)]
    return names[0] if len(names) == 1 and not any(map(operation_of_name, others)) else ""


def operation_of_name(name: str) -> str:
    """Read ``softmax`` of ``softmax_online``; "" where a name begins with no operation."""
    known = (one for one in operation_names() if name == one or name.startswith(f"{one}_"))
    return max(known, key=len, default="")
