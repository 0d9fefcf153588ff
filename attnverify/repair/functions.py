"""
What a function of a file has: the names that it reads, its sizes, the conditions on elements, the
expressions that another part may be.
"""

import ast

from attnverify.repair.editing import Function
from attnverify.repair.parts import expression, is_named, is_read, is_stored

INGREDIENTS = (ast.Name, ast.BinOp, ast.Subscript, ast.Call, ast.Attribute)
SIZED = ".shape", "len("


def names_of(function: Function) -> list[str]:
    """The arguments of a function, then the other names that it gives; those never read first."""
    named = [x for x in ast.walk(function) if isinstance(x, ast.Name)]
    read = {x.id for x in named if is_read(x)}
    made = sorted({x.id for x in named if not is_read(x)})
    return sorted(dict.fromkeys((*arguments_of(function), *made)), key=lambda name: name in read)


def unread_by(function: Function) -> list[str]:
    """The arguments that a function never reads."""
    read = {x.id for x in ast.walk(function) if isinstance(x, ast.Name)}
    return [x for x in arguments_of(function) if x not in read]


def arguments_of(function: Function) -> list[str]:
    return [x.arg for x in (*function.args.args, *function.args.kwonlyargs)]


def sizes_of(function: Function) -> list[str]:
    """The names that a function takes from a shape or a length, or counts up to."""
    found = list[str]()
    for one in ast.walk(function):
        if isinstance(one, ast.Assign) and any(x in ast.unparse(one.value) for x in SIZED):
            found += (x.id for x in ast.walk(one.targets[0]) if isinstance(x, ast.Name))
        elif isinstance(one, ast.Call) and ast.unparse(one.func).endswith("range"):
            found += (x for x in names_of(function) if any(is_named(y, {x}) for y in ast.walk(one)))
    return [*dict.fromkeys(found)]


def conditions_of(function: Function) -> list[str]:
    """The conditions on elements that a function has: what it compares, and names for that."""
    own = [x for x in ast.walk(function) if isinstance(x, ast.Assign)]
    compared = [x for x in own if any(isinstance(y, ast.Compare) for y in ast.walk(x.value))]
    named = [x.targets[0].id for x in compared if isinstance(x.targets[0], ast.Name)]
    named += [x for x in arguments_of(function) if "mask" in x]
    return [*dict.fromkeys((*named, *(ast.unparse(x.value) for x in compared)))]


def ingredients(function: Function) -> dict[str, ast.AST]:
    """Copies of the expressions of a function that are more than a name, by their text."""
    parts = [
        part.value if isinstance(part, ast.Assign) else part
        for part in ast.walk(function)
        if isinstance(part, (*INGREDIENTS[1:], ast.Assign)) and not is_stored(part)
    ]
    return {text: expression(text) for text in dict.fromkeys(map(ast.unparse, parts))}
