"""
In which order threads that took different ways go on, so that they meet again where the ways do.

That of the text does, as compilers mostly lay it out: both sides of a branch, then what follows. Of
a text in which a branch goes back to what is no loop, it is a weak topological order of its blocks
(Bourdoncle, "Efficient chaotic iteration strategies with widenings", 1993): the head of a loop, its
body, and then what follows it.
"""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from attnverify.ptx.text.operands import Symbol

if TYPE_CHECKING:
    from attnverify.ptx.text.syntax import Instruction, Program

__all__ = ["ranks_of"]

Blocks = dict[int, list[int]]
"""The blocks that follow each, by the number of their first instruction."""


def ranks_of(program: "Program") -> list[int]:
    """Return the rank of each instruction, and of the end: the least go first."""
    count = len(program.instructions)
    blocks = blocks_of(program)
    heads = set[int]()
    order = [*in_order({*blocks}, blocks, heads)]
    if all(to > at or to in heads for at, own in blocks.items() for to in own):
        return [*range(count + 1)]
    ends = dict(zip(sorted(blocks), [*sorted(blocks)[1:], count], strict=True))
    places = [index for at in order for index in range(at, ends[at])]
    ranks = [count] * (count + 1)
    for rank, index in enumerate(places):
        ranks[index] = rank
    return ranks


def blocks_of(program: "Program") -> Blocks:
    """Cut a program where threads may part or come from elsewhere."""
    follow = [[*followers(program, of)] for of in program.instructions]
    parting = [at for at, own in enumerate(follow) if own != [at + 1]]
    count = len(follow)
    starts = {0, *(at + 1 for at in parting), *(to for at in parting for to in follow[at])}
    first = sorted(at for at in starts if at < count)
    last = [at - 1 for at in (*first[1:], count)]
    return {
        at: [to for to in follow[end] if to < count] for at, end in zip(first, last, strict=True)
    }


def followers(program: "Program", of: "Instruction") -> Iterator[int]:
    """List the instructions that may come behind one."""
    if of.name in ("bra", "brx"):
        name = next(own.name for own in reversed(of.operands) if isinstance(own, Symbol))
        for label in program.tables.get(name, [name]) if of.name == "brx" else [name]:
            yield program.target(label, of.scopes)
    if of.guard is not None or of.name not in ("bra", "ret", "exit"):
        yield of.index + 1


def in_order(nodes: set[int], blocks: Blocks, heads: set[int]) -> Iterator[int]:
    """
    List some blocks, each loop behind what leads into it, its head first; note the heads of loops.
    """
    part_of = {at: part for part in components(nodes, blocks) for at in part}
    parts = {min(part): part for part in part_of.values()}
    after = {
        least: {min(part_of[to]) for at in part for to in blocks[at] if to in nodes} - {least}
        for least, part in parts.items()
    }
    left = dict.fromkeys(parts, 0)
    for own in after.values():
        for least in own:
            left[least] += 1
    ready = [least for least, count in left.items() if not count]
    heapify(ready)
    while ready:
        least = heappop(ready)
        yield from loop_in_order(parts[least], blocks, heads)
        for other in after[least]:
            left[other] -= 1
            if not left[other]:
                heappush(ready, other)


def loop_in_order(part: frozenset[int], blocks: Blocks, heads: set[int]) -> Iterator[int]:
    """List a loop from the block at which it is entered; or the one block that is none."""
    entered = {to for at, own in blocks.items() if at not in part for to in own} & part
    head = min(entered or part)
    yield head
    if len(part) > 1 or head in blocks[head]:
        heads.add(head)
        yield from in_order({*part} - {head}, blocks, heads)


def components(nodes: set[int], blocks: Blocks) -> list[frozenset[int]]:
    """Find the strongly connected parts (Kosaraju): once in the order of ends, once backwards."""
    back: Blocks = {at: [] for at in nodes}
    for at in nodes:
        for to in blocks[at]:
            if to in nodes:
                back[to].append(at)
    seen = set[int]()
    ends = [at for start in sorted(nodes) for at in reached(start, blocks, nodes, seen)]
    found, seen = list[frozenset[int]](), set()
    for start in reversed(ends):
        if part := frozenset(reached(start, back, nodes, seen)):
            found.append(part)
    return found


def reached(start: int, blocks: Blocks, nodes: set[int], seen: set[int]) -> Iterator[int]:
    """List what is reached and was not seen before, each behind all that follows it."""
    if start in seen:
        return
    seen.add(start)
    stack = [(start, iter(blocks[start]))]
    while stack:
        at, left = stack[-1]
        near = next((to for to in left if to in nodes and to not in seen), None)
        if near is None:
            yield stack.pop()[0]
        else:
            seen.add(near)
            stack.append((near, iter(blocks[near])))
