"""Faults on demand between a handler and the endpoint, one request after another.

A `Fault` names the effect, the requests that it concerns, and their number; a playbook is a list of
faults with a name. `FaultPlan` decides which fault a request meets. Nothing here does I/O: `wire`
acts.
"""

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final

import msgspec

from forewarn.maintenance import model
from forewarn.protocol import codec, refusals
from forewarn.settings import explain, suggestion

MAX_TIMES: Final = 1_000_000

MAX_SECONDS: Final = 100 * 366 * 86_400
"""A hundred years: no maintenance is further off, and dates have an end."""

IN_A_ROW: Final = 3
"""The most requests in a row that a bad day spoils: a handler that asks again gets through."""


class FaultKind(StrEnum):
    """The kinds of faults."""

    STATUS = "status"
    """An error in JSON, or 429 in plain text: `status`, and Retry-After where `retry_after` is
    given."""
    DELAY = "delay"
    """The request waits for `seconds` of the emulator's clock before it is looked at."""
    CUT = "cut"
    """The connection is closed without an answer, and nothing was approved."""
    HALF_BODY = "half-body"
    """The connection is closed in the middle of the answer's body."""
    LOST_ANSWER = "lost-answer"
    """The request has its effect, and the connection is closed without an answer."""
    UNREACHABLE = "unreachable"
    """From this request on every connection is closed for `seconds` of the emulator's clock."""
    HTML = "html"
    """200 with a page of HTML, as a proxy's login has it."""
    EMPTY = "empty"
    """200 with nothing. An approval has its effect: that is how one is confirmed."""
    TEXT_PLAIN = "text-plain"
    """The right document, called `text/plain`."""
    WITHOUT_EVENTS = "without-events"
    """The document without its key `Events`."""
    INCARNATION_RESTARTS = "incarnation-restarts"
    """The incarnation is 1, whatever it was."""
    INCARNATION_REPEATS = "incarnation-repeats"
    """The incarnation is one less: a number that the handler has seen with other events."""
    LOWER_CASE = "lower-case"
    VANISHED = "vanished"
    """A document without any event, which returns with the next one."""
    DUPLICATES = "duplicates"


class Concerns(StrEnum):
    """The requests that a fault is for."""

    EVENTS = "events"
    """GETs of the document."""
    APPROVALS = "approvals"
    INSTANCE = "instance"
    """The machine's own name, and whatever else is neither of the two."""
    ALL = "all"


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A fault of some requests."""

    kind: FaultKind
    concerns: Concerns = Concerns.EVENTS
    machine: str = ""
    """The name of the only machine that meets it; `""` for all."""
    after: Annotated[int, msgspec.Meta(ge=0, le=MAX_TIMES)] = 0
    times: Annotated[int, msgspec.Meta(ge=1, le=MAX_TIMES)] = 1
    status: Annotated[int, msgspec.Meta(ge=400, le=599)] = 503
    """The status of STATUS."""
    retry_after: int | None = None
    """The Retry-After of STATUS, in seconds; None for no such header."""
    seconds: Annotated[float, msgspec.Meta(gt=0, le=MAX_SECONDS)] = 120.0
    """The duration of DELAY and UNREACHABLE, by the emulator's clock: Azure holds a first answer
    for up to two minutes."""


KINDS_WITH: Final = {
    "status": (FaultKind.STATUS,),
    "retry_after": (FaultKind.STATUS,),
    "seconds": (FaultKind.DELAY, FaultKind.UNREACHABLE),
}
"""The kinds that have a value that not all have."""


def _bad_day(seed: int) -> list[Fault]:
    """Return twenty faults, between requests that pass."""
    kinds: tuple[tuple[FaultKind, dict[str, int]], ...] = (
        (FaultKind.STATUS, {"status": 429, "retry_after": 1}),
        (FaultKind.STATUS, {"status": 410}),
        (FaultKind.STATUS, {"status": 500}),
        (FaultKind.STATUS, {"status": 503, "retry_after": 1}),
        (FaultKind.CUT, {}),
        (FaultKind.HALF_BODY, {}),
        (FaultKind.HTML, {}),
        (FaultKind.EMPTY, {}),
        (FaultKind.WITHOUT_EVENTS, {}),
        (FaultKind.LOST_ANSWER, {}),
    )
    found: list[Fault] = []
    for number in range(20):
        chance = zlib.crc32(b"%d %d" % (seed, number))  # any fixed spread does
        kind, values = kinds[chance % len(kinds)]
        passing = (chance >> 8) % 3 or int((number + 1) % IN_A_ROW == 0)
        found.append(
            msgspec.convert({"kind": kind, "concerns": "all", "after": passing, **values}, Fault)
        )
    return found


PLAYBOOKS: Final[Mapping[str, Callable[[int], list[Fault]]]] = {
    "azure-bad-day": _bad_day,
    "slow-start": lambda _: [Fault(kind=FaultKind.DELAY)],
    "throttled": lambda _: [
        Fault(kind=FaultKind.STATUS, status=429, retry_after=1, times=5, concerns=Concerns.ALL)
    ],
    "host-update": lambda _: [
        Fault(kind=FaultKind.STATUS, status=410, times=3, concerns=Concerns.ALL),
        Fault(kind=FaultKind.UNREACHABLE, seconds=30.0, concerns=Concerns.ALL),
        Fault(kind=FaultKind.STATUS, status=503, times=2, concerns=Concerns.ALL),
    ],
    "lost-approvals": lambda _: [
        Fault(kind=FaultKind.LOST_ANSWER, concerns=Concerns.APPROVALS),
        Fault(kind=FaultKind.STATUS, status=503, concerns=Concerns.APPROVALS),
        Fault(kind=FaultKind.CUT, concerns=Concerns.APPROVALS),
    ],
    "restarted": lambda _: [
        Fault(kind=FaultKind.INCARNATION_RESTARTS, times=2),
        Fault(kind=FaultKind.INCARNATION_REPEATS),
    ],
    "flapping": lambda _: [
        Fault(kind=FaultKind.VANISHED, after=1),
        Fault(kind=FaultKind.DUPLICATES),
        Fault(kind=FaultKind.LOWER_CASE),
        Fault(kind=FaultKind.VANISHED, after=1),
    ],
    "wrong-answers": lambda _: [
        Fault(kind=FaultKind.HTML),
        Fault(kind=FaultKind.EMPTY),
        Fault(kind=FaultKind.WITHOUT_EVENTS),
        Fault(kind=FaultKind.HALF_BODY),
        Fault(kind=FaultKind.TEXT_PLAIN),
    ],
    "hanging": lambda _: [
        Fault(kind=FaultKind.DELAY, seconds=MAX_SECONDS, times=2, concerns=Concerns.ALL)
    ],
}
"""The faults of each playbook, in their order, for a seed; only a bad day depends on that."""

REWRITTEN: Final = frozenset(
    (
        FaultKind.TEXT_PLAIN,
        FaultKind.WITHOUT_EVENTS,
        FaultKind.INCARNATION_RESTARTS,
        FaultKind.INCARNATION_REPEATS,
        FaultKind.LOWER_CASE,
        FaultKind.VANISHED,
        FaultKind.DUPLICATES,
    )
)
"""Faults that need the whole document: a handler that has it already gets it all the same."""

ENTITY_HEADERS: Final = frozenset((b"if-none-match", b"prefer"))
"""Headers that keep a server from sending a whole document at once."""


def named(name: str, *, seed: int = 0, **values: object) -> list[Fault]:
    """Return a playbook's faults, or one of a kind with these values.

    Raises:
        ValueError: There is no such name, or the values do not fit.
    """
    playbook = PLAYBOOKS.get(name)
    if playbook is None:
        if name not in set(FaultKind):
            hint = suggestion(name, [*PLAYBOOKS, *FaultKind])
            raise ValueError(f"no fault and no playbook named {name!r}{hint}")
        return [_single(FaultKind(name), values)]
    if unknown := values.keys() - {"machine"}:
        raise ValueError(f"a playbook has no {', '.join(sorted(unknown))}: {name!r}")
    machine = msgspec.convert(values.get("machine", ""), str)
    faults = playbook(msgspec.convert(seed, int))
    return [msgspec.structs.replace(fault, machine=machine) for fault in faults]


def _single(kind: FaultKind, values: Mapping[str, object]) -> Fault:
    for name, kinds in KINDS_WITH.items():
        if name in values and kind not in kinds:
            message = f"the fault {str(kind)!r} has no {name}: it is for {', '.join(kinds)}"
            raise ValueError(message)
    try:
        return msgspec.convert({"kind": kind, **values}, Fault)
    except msgspec.ValidationError as error:
        raise ValueError(str(explain(error, Fault))) from error


@dataclass
class _Sequence:
    faults: list[Fault]
    passed: int = 0
    met: int = 0


class FaultPlan:
    """The faults that are still to come. Of several sequences the first that has one wins."""

    def __init__(self) -> None:
        self._sequences: list[_Sequence] = []

    def __bool__(self) -> bool:
        """Return True if any fault is still to come."""
        return bool(self._sequences)

    def add(self, faults: list[Fault]) -> None:
        """Add faults that come one after another."""
        self._sequences.append(_Sequence(list(faults)))

    def clear(self) -> None:
        """Remove all faults."""
        self._sequences.clear()

    def next(self, concerned: Concerns, machine: str) -> Fault | None:
        """Return the fault that a request of a machine (its key) meets; None if it passes."""
        for sequence in self._sequences:
            fault = sequence.faults[0]
            concerns = fault.concerns in {Concerns.ALL, concerned}
            if not concerns or model.key(fault.machine) not in {"", machine}:
                continue
            if sequence.passed < fault.after:
                sequence.passed += 1
                continue
            sequence.met += 1
            if sequence.met == fault.times:
                del sequence.faults[0]
                sequence.passed = sequence.met = 0
                if not sequence.faults:
                    self._sequences.remove(sequence)
            return fault
        return None


def rewritten(fault: Fault, body: bytes) -> bytes:
    """Return a document with a fault in it; any other body stays as it is."""
    try:
        document = msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError:
        return body
    events = document.get(codec.EVENTS)
    if not isinstance(events, list):
        return body
    event_id = codec.EVENT_NAMES["event_id"]
    match fault.kind:
        case FaultKind.WITHOUT_EVENTS:
            del document[codec.EVENTS]
        case FaultKind.INCARNATION_RESTARTS:
            document[codec.INCARNATION] = 1
        case FaultKind.INCARNATION_REPEATS:
            document[codec.INCARNATION] = max(0, document[codec.INCARNATION] - 1)
        case FaultKind.LOWER_CASE:
            document[codec.EVENTS] = [{**e, event_id: e[event_id].lower()} for e in events]
        case FaultKind.VANISHED:
            document |= {codec.INCARNATION: document[codec.INCARNATION] + 1, codec.EVENTS: []}
        case FaultKind.DUPLICATES:
            document[codec.EVENTS] = [each for event in events for each in (event, event)]
        case _:
            return body
    return msgspec.json.encode(document)


HTML: Final = b"<html><head><title>Sign in</title></head><body>Sign in to continue.</body></html>"


def made_up(fault: Fault, *, keep: bool) -> bytes:
    """Return the whole answer of a fault without the guest plane."""
    headers = [b"Server: Microsoft-IIS/10.0", b"Content-Type: application/json; charset=utf-8"]
    status, body = 200, b""
    if fault.kind is FaultKind.STATUS:
        status, body = fault.status, b'{"error":"An injected fault of the emulator"}'
        if status == refusals.TOO_MANY_REQUESTS.status:  # as the original: not even JSON
            headers[1] = b"Content-Type: text/plain; charset=utf-8"
            body = refusals.TOO_MANY_REQUESTS.text.encode()
        if fault.retry_after is not None:
            headers.append(b"Retry-After: %d" % fault.retry_after)
    elif fault.kind is FaultKind.HTML:
        headers[1], body = b"Content-Type: text/html; charset=utf-8", HTML
    if not keep:
        headers.append(b"Connection: close")
    return _message(b"HTTP/1.1 %d Injected" % status, headers, body)


def changed(fault: Fault, answer: bytes) -> bytes:
    """Return a whole answer of the guest plane with a fault in it."""
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *headers = head.split(b"\r\n")
    if b" 200 " not in first:
        return answer
    changed_body = rewritten(fault, body)
    kept = [line for line in headers if not line.lower().startswith((b"content-length", b"etag"))]
    if fault.kind is FaultKind.TEXT_PLAIN:
        kept = [line for line in kept if not line.lower().startswith(b"content-type")]
        kept.append(b"Content-Type: text/plain; charset=utf-8")
    return _message(first, kept, changed_body)


def _message(first: bytes, headers: list[bytes], body: bytes) -> bytes:
    length = b"Content-Length: %d" % len(body)
    return b"\r\n".join([first, *headers, length, b"", body])


def half(answer: bytes) -> bytes:
    """Return an answer up to the middle of its body."""
    head, separator, body = answer.partition(b"\r\n\r\n")
    return head + separator + body[: len(body) // 2]


def ask_for_all(headers: list[tuple[bytes, bytes]]) -> None:
    """Leave out the headers of a request that ask for less than the whole document."""
    headers[:] = [each for each in headers if each[0].lower() not in ENTITY_HEADERS]
