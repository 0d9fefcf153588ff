"""
The text of a file with one thing changed: a statement moved, left out, repeated or added up, an
operator, a number, an argument or a name for another, a part for another part of the same function,
a part times a name; or one thing in several places: equal parts, a factor that moves to where it
belongs.

What a mend needs stands in the file for most slips (Martinez, Weimer and Monperrus, "Do the fix
ingredients already exist?", ICSE 2014, arXiv 1403.6322).
"""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, permutations, product
from typing import Any

from attnverify.repair.editing import File, Found, Function, first_line, shown
from attnverify.repair.functions import (
    INGREDIENTS,
    arguments_of,
    conditions_of,
    ingredients,
    names_of,
    sizes_of,
    unread_by,
)
from attnverify.repair.parts import (
    COLUMNS,
    DEFINED,
    FILLS,
    GROWN,
    GROWN_BY,
    HIDDEN,
    LARGEST,
    REDUCTIONS,
    expression,
    filled,
    is_docstring,
    is_named,
    is_place,
    is_read,
    is_stored,
    others_of,
)

PLACES = (
    *(ast.Assign, ast.AugAssign, ast.Call, ast.BinOp, ast.Return, ast.Tuple, ast.Slice),
    *(ast.Subscript, ast.keyword, ast.Compare),
)
SIMPLE = (ast.Assign, ast.AugAssign, ast.Expr)
FARTHEST = 5
"""So many statements further down a statement may be moved."""


@dataclass(frozen=True)
class Change:
    """
    One change of a file: its line, in words, and the texts of the file's statements with it, of
    which one, ``at``, is another.
    """

    line: int
    words: str
    statements: tuple[str, ...]
    at: int

    @property
    def text(self) -> str:
        return "\n".join(self.statements)


Reached = Callable[[ast.stmt], bool]


def single_changes(
    text: str, *reached: Reached, suspected: Reached | None = None
) -> Iterator[Change]:
    """
    List the changes of the statements of a file's functions that are reached, each text once: all
    of those that are suspected, then the likely ones of the first that is asked for and of the
    next, then the others of both. Raises SyntaxError for what is no Python.
    """
    files = [Changed(ast.parse(text), own) for own in reached or [lambda _: True]]
    first = [Changed(ast.parse(text), suspected)] if suspected else []
    own = files[0].statements
    seen = {*own}
    for is_likely, file in chain(product((True, False), first), product((True, False), files)):
        for line, words, at in file.changes(is_likely):
            if (changed := ast.unparse(file.tree.body[at])) not in seen:
                seen.add(changed)
                yield Change(line, words, (*own[:at], changed, *own[at + 1 :]), at)


class Changed(File):
    """A file and the kinds of its changes."""

    def changes(self, is_likely: bool) -> Found:
        """Make the changes of the kinds that are likely, and rare, or of the others."""
        likely = (
            *(self.of_statements, self.of_assigned, self.of_parts, self.of_numbers, self.of_unread),
            *(self.of_words, self.of_attributes, self.of_moved, self.of_definitions),
            *(self.of_reductions, self.of_defined, self.of_sizes, self.of_names),
            *(self.of_everywhere, self.of_grown),
        )
        others = (
            *(self.of_ingredients, self.of_hidden, self.of_grown_by_names),
            *(self.of_repeated, self.of_elsewhere),
        )
        return chain.from_iterable(kind() for kind in (likely if is_likely else others))

    def of_statements(self) -> Found:
        """Statements that are left out, or stand behind one of those that follow them."""
        for block, field, own in self.blocks(self.tree):
            for at, one in enumerate(own):
                is_fixed = isinstance(one, (ast.Return, Function)) or is_docstring(one)
                if is_fixed or not self.is_reached(one):
                    continue
                first, others = first_line(one), [*own[:at], *own[at + 1 :]]
                if others:
                    words = f"without `{first}`"
                    yield from self.with_block(block, field, others, one.lineno, words)
                for to in range(at + 1, min(at + 1 + FARTHEST, len(own))):
                    if isinstance(own[to], ast.Return):
                        break
                    moved = [*others[:to], one, *others[to:]]
                    words = f"with `{first}` behind line {own[to].end_lineno}"
                    yield from self.with_block(block, field, moved, one.lineno, words)
            yield from self.of_runs(block, field, own)

    def of_runs(self, block: ast.AST, field: str, own: list[Any]) -> Found:
        """Two or three statements in a row that are left out together."""
        for at, length in product(range(len(own)), (2, 3)):
            run, others = own[at : at + length], [*own[:at], *own[at + length :]]
            free = [
                x for x in run if not (isinstance(x, (ast.Return, Function)) or is_docstring(x))
            ]
            if len(free) == length and others and all(map(self.is_reached, run)):
                words = f"without lines {run[0].lineno} to {run[-1].end_lineno}"
                yield from self.with_block(block, field, others, run[0].lineno, words)

    def of_assigned(self) -> Found:
        """What is added to a name, or to a place, and not put there; and the other way round."""
        for block, field, own in self.blocks(self.tree):
            turned = [added_up(one) if self.is_reached(one) else None for one in own]
            for at, new in enumerate(turned):
                if new is not None:
                    words = f"with `{first_line(new)}` instead of `{first_line(own[at])}`"
                    others = [*own[:at], new, *own[at + 1 :]]
                    yield from self.with_block(block, field, others, own[at].lineno, words)
                    if at + 1 < len(own) and (next_one := turned[at + 1]) is not None:
                        others[at + 1] = next_one
                        words += f", and `{first_line(next_one)}`"
                        yield from self.with_block(block, field, others, own[at].lineno, words)

    def of_repeated(self) -> Found:
        """Statements of a function that stand in a second place of it too."""
        for function in self.functions:
            once = [x for x in ast.walk(function) if isinstance(x, SIMPLE) and not is_docstring(x)]
            for block, field, own in self.blocks(function):
                for at, near in enumerate(own):
                    for one in once if self.is_reached(near) else ():
                        more, first = [*own[:at], one, *own[at:]], first_line(one)
                        words = f"with `{first}` before it too"
                        yield from self.with_block(block, field, more, near.lineno, words)

    def of_parts(self) -> Found:
        for _, part in self.parts:
            for new in others_of(part):
                yield from self.replaced(part, new)

    def of_names(self) -> Found:
        """A name for another of its function, or for an argument wherever that is given."""
        for function, part in self.parts:
            for name in self.names_in(function) if is_read(part) or is_place(part) else ():
                if name != getattr(part, "id", ""):
                    yield from self.replaced(part, ast.Name(name, ast.Load()))
            for name in arguments_of(function) if is_read(part) else ():
                if name != part.id:
                    given = expression(f"{part.id} if {name} is None else {name}")
                    yield from self.replaced(part, given)

    def of_everywhere(self) -> Found:
        """Equal parts of a statement, or of a function, in all places; a factor left out of all."""
        alike, factors = dict[tuple[Any, ...], list[Any]](), dict[tuple[Any, ...], list[Any]]()
        for function, part in self.parts:
            for whole in (self.statement_of(part), function):
                if isinstance(part, (*INGREDIENTS, ast.Constant)) and not is_stored(part):
                    alike.setdefault((whole, function, ast.unparse(part)), []).append(part)
                if isinstance(part, ast.BinOp):
                    factor = ast.unparse(ast.BinOp(ast.Name("x"), part.op, part.right))[1:]
                    factors.setdefault((whole, factor), []).append(part)
        for (_, factor), own in factors.items():
            if len(own) > 1:
                words = f"without `{factor.strip()}` in {len(own)} places"
                yield from self.all_replaced(own[::-1], lambda part: part.left, words)
        for (_, function, text), own in alike.items():
            for new in self.others_everywhere(function, own[0]) if len(own) > 1 else ():
                words = f"with `{shown(new)}` instead of `{text}` in {len(own)} places"
                yield from self.all_replaced(own, always(new), words)

    def others_everywhere(self, function: Function, part: Any) -> Iterator[ast.AST]:
        yield from others_of(part)
        if is_read(part):
            yield from (ast.Name(x, ast.Load()) for x in self.names_in(function) if x != part.id)
            yield from (filled(form, x=part) for form in COLUMNS)

    def of_definitions(self) -> Found:
        """A name for what it is said to be, with a change of that."""
        for function in self.functions:
            own = [x for x in ast.walk(function) if isinstance(x, ast.Assign)]
            once = {x.targets[0].id: x.value for x in own if isinstance(x.targets[0], ast.Name)}
            read = [x for f, x in self.parts if f is function and is_read(x) and x.id in once]
            texts = {name: [*self.other_texts(value)] for name, value in once.items()}
            for part in read:
                for text in texts[part.id]:
                    yield from self.replaced(part, expression(text))

    def other_texts(self, value: ast.expr) -> Iterator[str]:
        for part in [x for x in ast.walk(value) if x in self.parents]:
            for new in others_of(part):
                for _ in self.replaced(part, new):
                    yield ast.unparse(value)

    def of_attributes(self) -> Found:
        """What an object has for another that the file gives it, also in the place of a number."""
        own = [x for x in ast.walk(self.tree) if isinstance(x, ast.Attribute)]
        methods = [x for x in self.functions if isinstance(self.parents[x][0], ast.ClassDef)]
        found = {ast.unparse(x): (ast.unparse(x.value), x.attr) for x in own}
        found |= {f"self.{x.name}": ("self", x.name) for x in methods if x.name[:2] != "__"}
        for _, part in self.parts:
            is_index = is_place(part) and isinstance(self.parents[part][0], ast.Subscript)
            base = ast.unparse(part.value) if isinstance(part, ast.Attribute) else ""
            for value, name in found.values() if base or is_index else ():
                if value == (base or "self") and name != getattr(part, "attr", ""):
                    yield from self.replaced(part, expression(f"{value}.{name}"))

    def of_words(self) -> Found:
        """A word for another that its function has: the name of a weight, an option."""
        found = dict[Function, dict[str, None]]()
        strings = [(f, x) for f, x in self.parts if isinstance(getattr(x, "value", None), str)]
        for function, part in strings:
            found.setdefault(function, {})[part.value] = None
        for function, part in strings:
            for word in found[function]:
                yield from self.replaced(part, ast.Constant(word))

    def of_numbers(self) -> Found:
        """Numbers that the file gives a name which its functions read."""
        read = {x.id for _, x in self.parts if is_read(x)}
        for one in self.tree.body:
            if isinstance(one, ast.Assign) and any(is_named(x, read) for x in one.targets):
                for part in ast.walk(one.value):
                    for new in others_of(part):
                        yield from self.replaced(part, new)

    def of_ingredients(self) -> Found:
        """A part for another of the same function."""
        found = {function: ingredients(function) for function in self.functions}
        for function, part in self.replaceable():
            for other in found[function].values():
                yield from self.replaced(part, other)

    def of_elsewhere(self) -> Found:
        """A part for one of another function whose names are known here too."""
        found = {x: text for f in self.functions for text, x in ingredients(f).items()}
        of_file = {x.id for x in ast.walk(self.tree) if isinstance(x, ast.Name)}
        of_file -= {name for function in self.functions for name in names_of(function)}
        for function, part in self.replaceable():
            known = of_file.union(self.names_in(function))
            for other in found:
                if all(x.id in known for x in ast.walk(other) if isinstance(x, ast.Name)):
                    yield from self.replaced(part, other)

    def replaceable(self) -> Iterator[tuple[Function, Any]]:
        for function, part in self.parts:
            is_one = isinstance(part, INGREDIENTS) and isinstance(self.parents[part][0], PLACES)
            if is_one and not is_stored(part):
                yield function, part

    def of_grown(self) -> Found:
        for _, part in self.growing():
            for form in GROWN:
                yield from self.replaced(part, filled(form, x=part))

    def of_unread(self) -> Found:
        """A part beside an argument that its function never reads, or a place of it that it has."""
        for function, part in self.growing():
            own, names = (
                [x for x in ast.walk(part) if isinstance(x, ast.Subscript)],
                unread_by(function),
            )
            places = [ast.Subscript(ast.Name(name), x.slice) for name in names for x in own]
            texts = dict.fromkeys([*names, *map(ast.unparse, places)])
            yield from self.grown_by(part, [*texts])

    def of_grown_by_names(self) -> Found:
        """A part with a name of its function, or a number that the file names, beside it."""
        own = [x for x in self.tree.body if isinstance(x, ast.Assign) and is_number(x.value)]
        numbers = [name for x in own for name in named_by(x)]
        for function, part in self.growing():
            yield from self.grown_by(part, [*self.names_in(function), *numbers])

    def grown_by(self, part: Any, names: list[str]) -> Found:
        for name, form in product(names, GROWN_BY):
            yield from self.replaced(part, filled(form, x=part, y=expression(name)))

    def growing(self) -> Iterator[tuple[Function, Any]]:
        """The parts that are values: no functions, no modules."""
        imported = [x for x in ast.walk(self.tree) if isinstance(x, (ast.Import, ast.ImportFrom))]
        modules = {alias.asname or alias.name for one in imported for alias in one.names}
        for function, part in self.parts:
            is_value = isinstance(part, INGREDIENTS) and not is_stored(part)
            if is_value and self.parents[part][1] != "func" and not is_named(part, modules):
                yield function, part

    def of_moved(self) -> Found:
        """A factor, or a term, that another part has: of its statement, or a statement's value."""
        for function, part in self.parts:
            if not isinstance(part, ast.BinOp) or isinstance(part.op, ast.MatMult):
                continue
            own = self.statement_of(part)
            for other, target in self.growing():
                is_value = isinstance(self.parents[target][0], (ast.Return, *SIMPLE))
                if other is function and (is_value or self.statement_of(target) is own):
                    grown = ast.BinOp(target, part.op, part.right)
                    yield from self.both_replaced(part, part.left, target, grown)

    def of_reductions(self) -> Found:
        """The largest of each row for a number, and for the largest of all."""
        form = LARGEST[self.library]
        for function, part in self.parts:
            if is_number(part):
                for name in self.names_in(function):
                    yield from self.replaced(part, filled(form, x=ast.Name(name, ast.Load())))
            function_of = getattr(part, "func", None)
            if isinstance(function_of, ast.Attribute) and function_of.attr in REDUCTIONS:
                named = expression(form)
                yield from self.replaced(part, ast.Call(function_of, named.args, named.keywords))

    def of_defined(self) -> Found:
        """The value of a statement with a number where a row without keys leaves none."""
        for (_, part), form in product(self.values(), DEFINED[self.library]):
            yield from self.replaced(part, filled(form, x=part))

    def of_hidden(self) -> Found:
        """The value of a statement where a condition of its function holds, or does not."""
        module = "np" if self.library == "numpy" else self.library
        for function, part in self.values():
            where = f"{'tl' if function.decorator_list else module}.where"
            for condition, form, fill in product(conditions_of(function), HIDDEN, FILLS):
                hidden = ast.unparse(filled(form, c=expression(condition)))
                yield from self.replaced(part, filled(f"{where}({hidden}, x, {fill})", x=part))

    def values(self) -> list[tuple[Function, Any]]:
        """What is assigned."""
        return [(f, x) for f, x in self.growing() if isinstance(self.parents[x][0], SIMPLE)]

    def of_sizes(self) -> Found:
        """The difference of two sizes for a number."""
        for function, part in self.parts:
            if type(getattr(part, "value", None)) is int:
                own = chain.from_iterable(map(sizes_of, self.around(function)))
                for one, other in permutations(dict.fromkeys(own), 2):
                    yield from self.replaced(part, expression(f"{one} - {other}"))

    def names_in(self, function: Function) -> list[str]:
        """The names of a function, then those of the functions that it stands in."""
        return [*dict.fromkeys(chain.from_iterable(map(names_of, self.around(function))))]

    @property
    def library(self) -> str:
        imported = [x for x in self.tree.body if isinstance(x, ast.Import)]
        names = {alias.name for one in imported for alias in one.names}
        return "torch" if "torch" in names else "numpy"


def added_up(statement: Any) -> Any:
    """A statement that adds to what it assigns to, or that assigns what it adds; None of others."""
    if isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Add):
        return ast.Assign([statement.target], statement.value, lineno=statement.lineno)
    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
    if isinstance(target, (ast.Name, ast.Subscript)):
        return ast.AugAssign(target, ast.Add(), statement.value, lineno=statement.lineno)
    return None


def always(new: ast.AST) -> Callable[[ast.AST], ast.AST]:
    return lambda _: new


def named_by(statement: ast.Assign) -> list[str]:
    return [x.id for x in statement.targets if isinstance(x, ast.Name)]


def is_number(part: ast.AST) -> bool:
    return isinstance(getattr(part, "value", None), float)
