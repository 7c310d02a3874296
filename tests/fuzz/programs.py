"""What a fuzzer's bytes mean: steps that a peer, the plane, the fleet and time take.

Any bytes are a program, and a small change of the bytes is a small change of the program, which is
what a coverage-guided fuzzer lives on. The first byte chooses the settings; then each step is one
byte and, where it wants them, what follows.
"""

import re
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

import stories
from forewarn.protocol import exchange
from guest import room

SECRET = b"between us two only"
"""Which a trusted proxy signs with."""

SIGNATURE = exchange.sign(b"web-0", SECRET).decode()


def spelled(text: str) -> bytes:
    """Return bytes that are written with backslashes."""
    return text.encode().decode("unicode_escape").encode("latin-1")


def token(row: str) -> bytes:
    """Return what a line of tokens.txt stands for."""
    row = re.sub(r"(\w)\*(\d+)", lambda many: many[1] * int(many[2]), row)
    kind, words, options = stories.split(row.replace("SIGNATURE", SIGNATURE))
    rest, blanks = spelled(options.pop("rest", "")), b" " * int(options.pop("blanks", "0"))
    match kind:
        case "get":
            return room.get(options.pop("target", room.EVENTS), *words, **options) + rest
        case "post":
            told = options.pop("body", None)
            body = (room.APPROVAL if told is None else spelled(told)) + blanks
            size = int(options.pop("size", "0"))
            return room.post(room.chunked(body, size) if size else body, *words, **options)
        case "approval":
            return room.APPROVAL
        case "pipelined":
            return room.post() + room.get()
    return spelled(words[0])


_TEXT = Path(__file__).with_name("tokens.txt").read_text(encoding="utf-8")
TOKENS = tuple(token(row) for _, row in stories.stories(_TEXT)[""] if not row.startswith("#"))
"""What peers send: whole requests, and the pieces of which they are made."""

_OFTEN = _TEXT.partition("remembered.\n")[2].splitlines()[:8]
POLLS = tuple(TOKENS.index(token(row)) for row in ("get", *_OFTEN))
"""The numbers of those that clients ask with most often."""

SECONDS = (0.0, 0.01, 0.5, 1.0, 4.99, 5.0, 9.99, 10.0, 30.0, 60.0, 75.0, 121.0)
"""How long time passes in one step: the limits of a connection's stages, and around them."""

MAX_STEPS = 400
"""Of one program: more add nothing that a fuzzer could learn from."""


class Do(IntEnum):
    """What a step does; with `number` or `data` where it says so."""

    SEND = 0
    """The peer sends `data`, given by the program byte for byte."""
    SEND_TOKEN = 1
    """The peer sends `data`, one of TOKENS."""
    SEND_AGAIN = 2
    """The peer sends what it sent last, `number` times."""
    CUT = 3
    """From now on what is sent comes in parts of `number` bytes; 0 is as a whole."""
    TAKE = 4
    """The peer takes what was written for it."""
    STOP_TAKING = 5
    """The peer takes nothing from now on."""
    END = 6
    """The peer closes its side."""
    RESET = 7
    """The connection is lost."""
    PASS_TIME = 8
    """SECONDS[`number`] pass, and the sweep comes by."""
    DECIDE = 9
    """The plane answers what it was asked."""
    HOLD_ANSWERS = 10
    """The plane answers at once, or does not; each time the other."""
    STORE = 11
    """The store goes away, or comes back."""
    CHANGE = 12
    """The fleet changes in the way of this `number`."""
    TURN = 13
    """The event loop does all that it has to."""
    CONNECT = 14
    """A peer connects of the kind `number`, or another one goes on."""
    RETIRE = 15
    """The plane stops taking requests."""


NUMBERED = {Do.SEND_AGAIN, Do.CUT, Do.PASS_TIME, Do.CHANGE, Do.CONNECT}


class Step(NamedTuple):
    """One step of a program."""

    do: Do
    number: int = 0
    data: bytes = b""


def read(program: bytes) -> list[Step]:
    """Return the steps of a program; those that its end cuts off take what there is."""
    steps: list[Step] = []
    at = 0
    while at < len(program) and len(steps) < MAX_STEPS:
        do = Do(program[at] & 15)
        at += 1
        argument = program[at] if at < len(program) else 0
        if do is Do.SEND:
            data = program[at + 1 : at + 2 + argument]
            steps.append(Step(do, data=data))
            at += 1 + len(data)
        elif do is Do.SEND_TOKEN:
            steps.append(Step(do, data=TOKENS[argument % len(TOKENS)]))
            at += 1
        elif do in NUMBERED:
            steps.append(Step(do, argument))
            at += 1
        else:
            steps.append(Step(do))
    return steps


def seeds() -> list[bytes]:
    """Return programs for a fuzzer to begin with: each token before a GET, and each step once."""
    tokens = [
        bytes([chosen, Do.CUT, cut, Do.SEND_TOKEN, number, Do.SEND_TOKEN, 0, Do.TURN])
        for number in range(len(TOKENS))
        for chosen, cut in ((0, 0), (3, 7), (1, 1))
    ]
    after_a_get = [bytes([2, Do.SEND_TOKEN, 0, do, 5, Do.TURN]) for do in Do]
    held = bytes([6, Do.HOLD_ANSWERS, Do.SEND_TOKEN, 15, Do.SEND_TOKEN, 0, Do.DECIDE, Do.TURN])
    blank = bytes([1, Do.CUT, 1, Do.SEND, 5, *b"\r\n" * 3, Do.SEND_TOKEN, 0, Do.TURN])
    choked = bytes([2, Do.STOP_TAKING, Do.SEND_TOKEN, 0, Do.SEND_AGAIN, 40, Do.TURN, Do.TAKE])
    return [*tokens, *after_a_get, held, blank, choked]
