"""
The process in which a user's backend is judged: it may die without taking anything along.

It loads the backend and the catalogue once, then takes requests, one at a time, and answers each: a
cell (its tally), a recorded failure to be seen again, or its script. Before each case it writes on
a board, which its parent can read, what is about to be run. The parent
(attnverify/isolation/supervisor.py) does the rest: it watches the clock, the memory and the output.
"""

import ctypes
import faulthandler
import json
import os
import signal
import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from attnverify.backends.implementation import Backend, Implementation
from attnverify.backends.loader import load
from attnverify.backends.modules import PRIVATE
from attnverify.failures import record
from attnverify.failures.known_failures import KnownFailure
from attnverify.failures.replay import replay
from attnverify.failures.scripts.script import script
from attnverify.inputs.recipe import Recipe
from attnverify.isolation.answers import pack
from attnverify.isolation.second_look import bare_answer
from attnverify.isolation.status_board import SLOW, StatusBoard
from attnverify.judge import state_guard
from attnverify.judge.case import Case
from attnverify.judge.errors import DeviceLost, Disagreement, Unsupported
from attnverify.judge.invoke import announce, describe_error
from attnverify.judge.module_contents import planted
from attnverify.judge.state_guard import Change
from attnverify.specified import register_inherited
from attnverify.verdicts.cell import Cell, cells
from attnverify.verdicts.columns import judge_cell
from attnverify.verdicts.found_out import find_alone
from attnverify.verdicts.one_case import found_so_far
from attnverify.verdicts.tally import Options

Message = dict[str, Any]


def main() -> None:
    """``channel board output``: the descriptors that the parent has left open."""
    channel, board = Connection(int(sys.argv[1])), StatusBoard(int(sys.argv[2]))
    del sys.argv[1:]
    detach_from_terminal()
    board.write({"during": "its import"}, SLOW)
    backend, notes = load_backend(json.loads(channel.recv_bytes()))
    board.write({"during": "the time before its first cell"}, SLOW)
    send_message(channel, describe_loaded(backend, notes))
    with suppress(EOFError):
        while True:
            request = json.loads(channel.recv_bytes())
            announcer = Announcer(board)
            announce.set(announcer.tell)
            found_so_far.set(announcer.note)
            begins = {"during": "the beginning of the cell"}, SLOW
            board.write(*(request["case"], 1.0) if "case" in request else begins)
            answer = handle_request(backend, request)
            answer |= {"number": request["number"], "alone": backend.alone}
            if "died" not in answer:  # else the board says on what
                board.write(announcer.case | {"during": "the pause after its last case"}, SLOW)
            send_message(channel, answer)
    os._exit(0)  # what a user has registered for the exit is not waited for


def detach_from_terminal() -> None:
    """
    Leave the terminal to the parent, and the world with it; be the first to go when the machine's
    memory ends.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.register(signal.SIGUSR1, all_threads=False)
    with suppress(Exception):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def send_message(channel: Connection, message: Message) -> None:
    with suppress(Exception):  # they may be closed, or gone
        sys.stdout.flush()
        sys.stderr.flush()
    channel.send_bytes(json.dumps(message, default=dict).encode())


def load_backend(source: str) -> tuple[Backend, list[str]]:
    """
    Load the backend, and what its import has changed: what the judge needs is put back, the rest is
    left as its author has it.
    """
    register_inherited()
    before = state_guard.snapshot()
    try:
        backend = load(source)
    except KeyboardInterrupt:
        backend = Backend(source, source, broken="cannot be imported: KeyboardInterrupt")
    changes = state_guard.diff_and_restore(before, keep=True)
    if found := planted(PRIVATE):
        changes.append(Change(f"torch's functions ({', '.join(found[:3])})", once=False))
    return backend, [
        f"its import {change}"
        for change in changes
        if not change.once or change.words.startswith("functions of others")
    ]


def describe_loaded(backend: Backend, notes: list[str]) -> Message:
    """Describe the backend as plain data."""
    names = (
        "name",
        "by_name",
        "broken",
        "line",
        "missing",
        "missing_package",
        "versions",
        "device",
        "deterministic",
        "sampled",
        "precision",
        "flushing",
        "unjudged",
    )
    found = [
        (implementation.operation.name, implementation.how, implementation.thorough)
        for implementation in backend.implementations
    ]
    features = {
        name: list(value) if isinstance(value, tuple | set | frozenset) else value
        for name, value in backend.declared.features.items()
    }
    return {name: getattr(backend, name) for name in names} | {
        "features": features,
        "dtypes": backend.declared.dtypes,
        "notes": backend.notes + notes,
        "refused": backend.refused,
        "implementations": found,
    }


class Announcer:
    """
    Writes what is about to be run on the board; the specification's own time is not the backend's.
    """

    def __init__(self, board: StatusBoard) -> None:
        self.board = board
        self.case: Message = {}
        self.check: tuple[str, Message] | None = None
        self.found: Message = {}
        self.begun = 0

    def note(self, found: Message) -> None:
        """Let the parent know of what was found so far, with what is run next."""
        self.found = {"found": found}

    def tell(
        self,
        implementation: Implementation,
        dtype: str,
        drawn: Case | None,
        check: Message | None,
    ) -> None:
        if check is not None:
            self.check = implementation.name, check
        elif self.check is not None and self.check[0] != implementation.name:
            self.check = None  # of this implementation no check is run any more
        case: Message = {
            "operation": implementation.operation.name,
            "implementation": implementation.name,
            "dtype": dtype,
        } | self.found
        self.begun += 1
        case |= (
            {"check": self.check[1]}
            if self.check
            else {"recipe": json.loads(drawn.recipe.text)}
            if drawn
            else {}
        )
        shown = case | {"begun": self.begun}
        if drawn is not None:
            self.board.write(shown | {"during": "the specification's answer before it"}, SLOW)
            drawn.prepare(implementation.precision(dtype))
        self.board.write(shown, 1.0)
        self.case = case


def handle_request(backend: Backend, request: Message) -> Message:
    """Find the answer to a request; ``died`` where this process is of no use any more."""
    record.forget_what_was_read()  # others have written failures down meanwhile
    try:
        return REQUESTS[request["do"]](backend, request)
    except DeviceLost as error:
        return {"died": str(error)}
    # it was raised where no implementation should run: a property, a thread, a patched function
    except BaseException as error:
        return {"died": f"raised outside of the call: {describe_error(error)}"}


def handle_judge(backend: Backend, request: Message) -> Message:
    """Compute the tally of a cell."""
    known, fatal = ([KnownFailure(**line) for line in request[name]] for name in ("known", "fatal"))
    cell = cell_of(backend, request)
    if not fatal:  # else what it is asked first may be what it dies of
        ask_if_alone(cell.implementation)
    options = Options(**request["options"])
    return {"tally": judge_cell(cell, options, tuple(known), tuple(fatal)).as_dict()}


def ask_if_alone(implementation: Implementation) -> None:
    """Find out, when a function is judged first, whether it returns its output alone."""
    backend, forward = implementation.backend, implementation.operation.forward.name
    if implementation.asked_as not in backend.alone:
        backend.alone |= find_alone(backend, forward)


def cell_of(backend: Backend, request: Message) -> Cell:
    found = cells([backend], (), (request["dtype"],))
    return next(
        cell
        for cell in found
        if (cell.implementation.name, cell.aspect) == (request["implementation"], request["aspect"])
    )


def handle_replay(backend: Backend, request: Message) -> Message:
    """Judge a recorded failure once more."""
    failure = record.FailureRecord(**request["failure"])
    implementation = next(i for i in backend.implementations if i.name == request["implementation"])
    ask_if_alone(implementation)
    if failure.check:
        announce.get()(implementation, failure.dtype, None, failure.check)
    if request["script"]:
        return {"script": script(failure, implementation)}
    try:
        return {"budget": replay(failure, implementation)}
    except Disagreement as error:
        return {"disagreement": str(error)}
    except Unsupported as error:
        return {"unsupported": str(error)}


def handle_answer(backend: Backend, request: Message) -> Message:
    """Answer a case, of which nothing more is worked out here."""
    asked = request["case"]
    implementation = next(i for i in backend.implementations if i.name == asked["implementation"])
    ask_if_alone(implementation)
    try:
        answer, inside = bare_answer(implementation, Recipe(**asked["recipe"]), asked["dtype"])
    except Disagreement as error:
        return {"disagreement": str(error)}
    except Unsupported as error:
        return {"unsupported": str(error)}
    return {"answer": pack(answer), "inside": sorted(inside)}


REQUESTS = {"judge": handle_judge, "see again": handle_replay, "answer": handle_answer}
