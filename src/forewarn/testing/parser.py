"""The language of scenario files: text in; what to call on the harness, and what to expect, out.

A line is a time and a sentence: `at 5m  web-0 approves`. docs/guides/scenarios.md has the whole
language. The parser is strict: an error names the file and the line, what was found there and what
was expected.
"""

import functools
import re
import tomllib
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Concatenate, Final, NamedTuple, ParamSpec, TypeVar

import msgspec

from forewarn.connectors.port import Outcome
from forewarn.control.plane import Plane
from forewarn.maintenance import fleet, planner
from forewarn.maintenance.alerts import CLOCK, AlertKind
from forewarn.maintenance.model import HoldKind, Operation, Policy, RollingState, StartCause
from forewarn.protocol import codec, versions
from forewarn.protocol.agent_status import AgentReport
from forewarn.protocol.tolerant import Listed
from forewarn.protocol.versions import Version
from forewarn.server.settings import RulesSettings
from forewarn.testing.harness import BEGINNING, Harness
from forewarn.vocabulary import AgentStatus, ErrorCode, EventSource, EventStatus, EventType

MAX_LINES: Final = 10_000
"""The most lines of a scenario: nobody reviews a longer text."""

SPAN: Final = re.compile(r"(?:(\d{1,4})d)?(?:(\d{1,6})h)?(?:(\d{1,6})m)?(?:(\d{1,9})s)?", re.ASCII)
TOKEN: Final = re.compile(r'"[^"]*"|[,"]|#.*|[^\s,"]+')
OPERATION: Final = re.compile(r"\d{1,9}\.\d{1,6}", re.ASCII)
NUMBER: Final = re.compile(r"\d{1,9}", re.ASCII)

A_TIME: Final = "a time from the beginning, such as 1h30m"
A_MAINTENANCE: Final = "a maintenance, such as 1"

SUBJECTS: Final = (
    "an operator ('operator schedules ...'), the connector, the server, the clock, 'expect', "
    "a failure ('Reboot strikes web-0'), or a machine that approves, asks or says"
)

Word = TypeVar("Word", bound=StrEnum)
Block = TypeVar("Block")
P = ParamSpec("P")


class ScriptError(Exception):
    """A scenario file breaks the rules of the language; the message names file and line."""


Statement = Callable[[Harness], str]
"""Does what a sentence says; returns what is so instead of what it expects, `""` if that holds."""


class ScenarioLine(msgspec.Struct, frozen=True, kw_only=True):
    """One sentence of a scenario."""

    number: int
    text: str
    at: timedelta
    """From the beginning."""
    before_ticker: bool
    """Whether it comes before what the ticker does in that instant."""
    statement: Statement
    refused: ErrorCode | None
    """Why it must be refused; None where it must succeed."""


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """A whole file."""

    name: str
    fleet: fleet.Fleet
    policy: Policy
    lines: tuple[ScenarioLine, ...]


def parse(text: str, name: str) -> Scenario:
    """Parse a file's text; its name is for messages."""
    rows = text.splitlines()
    if len(rows) > MAX_LINES:
        raise ScriptError(f"{name}: {len(rows)} lines; a scenario has at most {MAX_LINES}")
    return _File(rows, name).scenario()


class _File:
    """The lines of a file, and the blocks of TOML that are indented below some of them."""

    def __init__(self, rows: list[str], name: str) -> None:
        self._rows = rows
        self._name = name
        self._next = 0
        self._at = timedelta()
        self._before_ticker = False

    def scenario(self) -> Scenario:
        first: fleet.Fleet | None = None
        policy = Policy()
        lines: list[ScenarioLine] = []
        while self._next < len(self._rows):
            number = self._next
            words = _Words(self._rows[number], f"{self._name}:{number + 1}")
            self._next += 1
            if words.empty:
                continue
            if self._rows[number][0].isspace():
                raise words.error("a line that is not indented: no block is open here")
            if not lines and words.take("fleet"):
                words.end()
                first = self._block(fleet.Fleet, number)
            elif not lines and words.take("settings"):
                words.end()
                rules = self._block(RulesSettings, number)
                if rules.preset:
                    raise ScriptError(f"{words.where}: no preset here: write its settings out")
                policy = rules.policy
            elif first is None:
                raise words.error("'fleet', with the machines indented below it")
            else:
                lines.append(self._line(words, number))
        if first is None or not lines:
            raise ScriptError(
                f"{self._name}:{len(self._rows)}: expected a fleet, and lines after it"
            )
        return Scenario(name=self._name, fleet=first, policy=policy, lines=tuple(lines))

    def _line(self, words: "_Words", number: int) -> ScenarioLine:
        if words.take("at"):
            at = words.span(A_TIME)
            if at < self._at:
                raise words.error(f"a time that is not before the line above it, {self._at}")
            edge = words.take("before", "the", "ticker")
            if at == self._at and edge and not self._before_ticker and at:
                raise words.error("no 'before the ticker': the ticker has run in this instant")
            self._at, self._before_ticker = at, edge
        statement = _statement(words)
        if statement is None:
            prune = words.take("and", "prunes")
            words.end()
            applied = self._block(fleet.Fleet, number)
            statement = _operates(Plane.apply_fleet, applied, prune=prune)
        refused = None
        if words.take("refused"):
            words.need("as")
            refused = words.one_of(ErrorCode, "a reason")
        words.end()
        return ScenarioLine(
            number=number + 1,
            text=" ".join(words.spoken.split()),
            at=self._at,
            before_ticker=self._before_ticker,
            statement=statement,
            refused=refused,
        )

    def _block(self, shape: type[Block], opened: int) -> Block:
        first = self._next
        while self._next < len(self._rows):
            row = self._rows[self._next]
            if row.strip() and not row[0].isspace():
                break
            self._next += 1
        where = f"{self._name}:{opened + 1}"
        try:
            tree = tomllib.loads("\n".join(self._rows[first : self._next]))
            return msgspec.convert(tree, shape)
        except tomllib.TOMLDecodeError as error:
            raise ScriptError(
                f"{where}: the block below is not TOML: {error} of the block"
            ) from error
        except msgspec.ValidationError as error:
            raise ScriptError(f"{where}: in the block below: {error}") from error


# Sentences, each by its subject


def _statement(words: "_Words") -> Statement | None:
    """Return the statement; None for a fleet that is applied, whose block follows."""
    for subject, sentence in _SUBJECTS.items():
        if words.take(subject):
            return sentence(words)
    if words.is_one_of(EventType):
        event_type = words.one_of(EventType, "a type")
        words.need("strikes")
        machines = words.names("the machines that it strikes")
        request = planner.Request(
            event_type=event_type, machines=machines, no_notice=True, requested_by="platform"
        )
        return _operates(Plane.request, request)
    machine = words.name(SUBJECTS)
    if words.take("asks"):
        return _acts(Harness.record_request, machine)
    if words.take("says"):
        report = AgentReport(words.one_of(AgentStatus, "what its agent says"), words.quoted())
        return _acts(Harness.record_request, machine, report)
    if not words.take("approves"):
        raise words.error(
            f"'approves', 'asks' or 'says' after a machine; or, in place of {machine!r}, {SUBJECTS}"
        )
    operations: list[str] = []
    while words.at_operation():
        operations.append(words.operation())
        words.take(",")
    return _acts(Harness.approve, machine, operations)


def _acts(
    act: Callable[Concatenate[Harness, P], object], *args: P.args, **kwargs: P.kwargs
) -> Statement:
    def statement(harness: Harness) -> str:
        act(harness, *args, **kwargs)
        return ""

    return statement


def _operates(
    request: Callable[Concatenate[Plane, P], Future[Any]], *args: P.args, **kwargs: P.kwargs
) -> Statement:
    return _acts(Harness.ask, lambda plane: request(plane, *args, **kwargs))


def _operator(words: "_Words") -> Statement | None:
    known = f"one of {', '.join(_VERBS)}"
    by = "operator" if words.is_one_of(_VERBS) else words.name(f"an operator's name, or {known}")
    if not words.is_one_of(_VERBS):
        raise words.error(known)
    return _VERBS[words.word(known)](words, by)


def _schedules(words: "_Words", by: str) -> Statement:
    event_type = words.one_of(EventType, "a type")
    words.need("of")
    of: dict[str, Any] = {}
    if words.take("scope"):
        of["scope"] = words.name("the name of the scope")
    elif words.take("host"):
        of["host"] = words.name("the name of the host")
    else:
        of["machines"] = words.names("'scope NAME', 'host NAME', or machines")
    options = words.options(
        {
            "for a user": ("source", lambda: EventSource.USER),
            "not before": ("not_before", words.moment),
            "lasting": ("duration_seconds", words.seconds),
            "without notice": ("without_notice", lambda: True),
            "refused": None,
        }
    )
    request = planner.Request(event_type=event_type, requested_by=by, **of, **options)
    return _operates(Plane.request, request)


def _postpones(words: "_Words", by: str) -> Statement:
    reference = words.reference()
    words.need("to")
    return _operates(Plane.postpone, reference, words.moment(), by=by)


def _applies(words: "_Words", _: str) -> None:
    words.need("fleet")


def _trusts(words: "_Words", _: str) -> Statement:
    words.need("the", "clock")
    return _acts(Harness.trust_clock)


_VERBS: Final[dict[str, Callable[["_Words", str], Statement | None]]] = {
    "schedules": _schedules,
    "cancels": lambda words, _: _operates(Plane.cancel, words.reference(), reason=words.quoted()),
    "approves": lambda words, by: _operates(Plane.approve_for_guests, [words.reference()], by=by),
    "acknowledges": lambda words, by: _operates(Plane.acknowledge, [words.reference()], by),
    "resumes": lambda words, by: _operates(Plane.resume, words.number(A_MAINTENANCE), by=by),
    "postpones": _postpones,
    "holds": lambda words, by: _operates(
        Plane.hold, *words.held("what it concerns"), reason=words.quoted(), by=by
    ),
    "releases": lambda words, by: _operates(Plane.release, *words.held("what it concerns"), by=by),
    "removes": lambda words, _: _operates(
        Plane.remove_machines, words.names("the machines to remove")
    ),
    "applies": _applies,
    "trusts": _trusts,
}
"""What an operator does, whose name comes second."""


def _connector(words: "_Words") -> Statement:
    failed = words.take("fails")
    if not failed:
        words.need("finishes")
    operation = words.operation()
    outcome = Outcome(succeeded=not failed, message=words.quoted())
    attempt = words.number("an attempt's number") if words.take("as", "attempt") else None
    return _acts(Harness.report, operation, outcome, attempt)


def _server(words: "_Words") -> Statement:
    if words.take("starts"):
        return _acts(Harness.start)
    words.need("is", "killed")
    in_commit = words.take("in", "the", "next", "commit")
    return _acts(Harness.doom if in_commit else Harness.kill)


def _clock(words: "_Words") -> Statement:
    words.need("jumps")
    return _acts(Harness.jump, words.signed_span())


def _expectation(words: "_Words") -> Statement:
    for phrase, expected in _EXPECTED.items():
        if words.take(*phrase.split()):
            return expected(words)
    if words.at_operation():
        return _operation_is(words)
    phrases = ", ".join(map(repr, list(_EXPECTED)[:-1]))
    machine = words.name(
        f"a machine, an operation such as 1.1, {phrases} or {list(_EXPECTED)[-1]!r}"
    )
    if words.take("is", "on", "host"):
        host = words.name("the name of the host")
        return lambda harness: _host(harness, machine, host)
    version = versions.NEWEST.name
    if words.take("by"):
        version = words.one_of_these(versions.BY_NAME, "an api-version")
    words.need("sees")
    events = [] if words.take("nothing") else [_expected_event(words)]
    while events and words.take("and"):
        events.append(_expected_event(words))
    return lambda harness: _document(harness, machine, versions.BY_NAME[version], events)


def _incarnation(words: "_Words") -> Statement:
    name = words.name("the name of the scope")
    words.need("is")
    number = words.number("the incarnation")

    def expectation(harness: Harness) -> str:
        scope = harness.look(lambda reading: reading.scopes()).get(name.lower())
        if scope is None:
            return f"there is no scope {name}"
        return "" if scope.incarnation == number else f"the incarnation is {scope.incarnation}"

    return expectation


def _rolling_update(words: "_Words") -> Statement:
    number = words.number(A_MAINTENANCE)
    words.need("is")
    state = words.one_of(RollingState, "the state of its rolling updates")

    def expectation(harness: Harness) -> str:
        maintenance = harness.look(lambda reading: reading.maintenances([number])).get(number)
        if maintenance is None:
            return f"there is no maintenance {number}"
        states = {rolling.state for rolling in maintenance.rolling_updates}
        return "" if states == {state} else f"it is: {_listed(states)}"

    return expectation


def _alerts(words: "_Words", *, any_expected: bool = True) -> Statement:
    expected: set[tuple[AlertKind, str]] = set()
    while any_expected and (not expected or words.take(",")):
        kind = words.one_of(AlertKind, "the kind of an alert")
        if kind is AlertKind.HELD:
            about = " ".join(words.held("what is held")).rstrip()
        elif kind is AlertKind.DOUBTED:
            words.need(about := CLOCK)
        else:
            about = words.reference()
        expected.add((kind, about))

    def expectation(harness: Harness) -> str:
        found = {(alert.kind, alert.about) for alert in harness.current_alerts()}
        told = _listed(f"{kind} {about}" for kind, about in found)
        return "" if found == expected else f"the alerts are: {told}"

    return expectation


def _no_machine(words: "_Words") -> Statement:
    name = words.name("the name of the machine")
    return lambda harness: _host(harness, name, None)


def _host(harness: Harness, name: str, host: str | None) -> str:
    machine = harness.machine(name)
    if machine is None:
        return "" if host is None else f"there is no machine {name}"
    if machine.host and machine.host == host:
        return ""
    return f"{machine.name} is on host {machine.host or 'unknown'}"


class _Seen(NamedTuple):
    """An event in the document of a guest."""

    event_type: str
    status: str
    machines: tuple[str, ...]
    not_before: timedelta | None
    """From the beginning; in an expectation None is any."""


def _expected_event(words: "_Words") -> _Seen:
    event_type = words.one_of(EventType, "'nothing', or a type")
    if words.is_one_of(set(EventStatus) - {EventStatus.SCHEDULED, EventStatus.STARTED}):
        raise words.error("Scheduled or Started: guests never see another status")
    status = words.one_of(EventStatus, "a status")
    words.need("of")
    machines = words.names("the machines of the event")
    not_before = words.span(A_TIME) if words.take("at") else None
    return _Seen(event_type, status, machines, not_before)


def _document(harness: Harness, name: str, version: Version, expected: list[_Seen]) -> str:
    machine = harness.machine(name)
    if machine is None:
        return f"there is no machine {name}"
    seen = [_seen(event) for event in harness.reads(machine.scope, version).events]
    if len(seen) == len(expected) and all(
        event[:3] == wanted[:3] and wanted.not_before in {None, event.not_before}
        for event, wanted in zip(seen, expected, strict=True)
    ):
        return ""
    told = [
        f"{event.event_type} {event.status} of {', '.join(event.machines)}"
        + ("" if event.not_before is None else f" at {clock_face(event.not_before)}")
        for event in seen
    ]
    return f"{machine.name} sees {' and '.join(told) or 'nothing'}"


def _seen(event: Listed) -> _Seen:
    machines = tuple(name.removeprefix(codec.PREVIEW_PREFIX) for name in event.resources)
    at = None if event.not_before is None else event.not_before - BEGINNING
    return _Seen(event.event_type, event.status, machines, at)


def _no_operation(words: "_Words") -> Statement:
    name = words.operation()

    def expectation(harness: Harness) -> str:
        operation = harness.operation(name)
        return "" if operation is None else _described(operation)

    return expectation


def _operation_is(words: "_Words") -> Statement:
    name = words.operation()
    words.need("is")
    status = words.one_of(EventStatus, "a status")
    behind = "behind" if status is EventStatus.QUEUED else "waiting for"
    options = words.options(
        {
            "because": ("start_cause", lambda: words.one_of(StartCause, "why it started")),
            behind: ("waits_for", words.operation),
            "awaiting": ("awaited", lambda: _awaited(words)),
            "held": ("held", lambda: True),
            "since": ("started_at", words.moment),
            "not before": ("not_before", words.moment),
        }
    )
    expected = {"status": status, "waits_for": "", "held": False, **options}

    def expectation(harness: Harness) -> str:
        operation = harness.operation(name)
        if operation is None:
            return f"there is no operation {name}"
        found = {"held": operation.held_at is not None, **msgspec.structs.asdict(operation)}
        return "" if found.items() >= expected.items() else _described(operation)

    return expectation


def _described(operation: Operation) -> str:
    text = f"{operation.id} is {operation.status}"
    if operation.start_cause is not None:
        text += f" because {operation.start_cause}"
    if operation.waits_for:
        queued = operation.status is EventStatus.QUEUED
        text += f" {'behind' if queued else 'waiting for'} {operation.waits_for}"
    if operation.awaited:
        text += f" awaiting {', '.join(operation.awaited)}"
    if operation.held_at is not None:
        text += " held"
    if operation.started_at is not None:
        text += f" since {clock_face(operation.started_at - BEGINNING)}"
    text += f" not before {clock_face(operation.not_before - BEGINNING)}"
    return text + (f' "{operation.outcome}"' if operation.outcome else "")


def _listed(words: Iterable[str]) -> str:
    return ", ".join(sorted(words)) or "nothing"


def clock_face(span: timedelta) -> str:
    """Return a span as hours, minutes and seconds, such as `0:15:00`."""
    minutes, seconds = divmod(round(span.total_seconds()), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"


def _awaited(words: "_Words") -> tuple[str, ...]:
    return () if words.take("nobody") else words.names("'nobody', or the machines that it awaits")


_EXPECTED: Final[dict[str, Callable[["_Words"], Statement]]] = {
    "incarnation of": _incarnation,
    "rolling update of": _rolling_update,
    "alerts": _alerts,
    "no alerts": functools.partial(_alerts, any_expected=False),
    "no machine": _no_machine,
    "no operation": _no_operation,
}
"""What may be expected; and what a machine sees, and how an operation is."""

_SUBJECTS: Final[dict[str, Callable[["_Words"], Statement | None]]] = {
    "operator": _operator,
    "connector": _connector,
    "server": _server,
    "clock": _clock,
    "expect": _expectation,
}


class _Words:
    """The words of one line, taken one after the other; `where` is its file and number."""

    def __init__(self, row: str, where: str) -> None:
        self.where = where
        self._words: list[str] = []
        self.spoken = ""
        """The line without its comment."""
        for match in TOKEN.finditer(row):
            if match[0].startswith("#"):
                break
            if match[0] == '"':
                raise ScriptError(f'{where}: a quoted text begins with " and has no end')
            self._words.append(match[0])
            self.spoken = row[: match.end()]
        self._next = 0

    @property
    def empty(self) -> bool:
        return not self._words

    @property
    def more(self) -> bool:
        return self._next < len(self._words)

    @property
    def _word(self) -> str:
        return self._words[self._next] if self.more else ""

    def error(self, expected: str) -> ScriptError:
        found = f"found {self._word!r}" if self.more else "the line ends"
        return ScriptError(f"{self.where}: {found}; expected {expected}")

    def take(self, *words: str) -> bool:
        if self._words[self._next : self._next + len(words)] != list(words):
            return False
        self._next += len(words)
        return True

    def need(self, *words: str) -> None:
        if not self.take(*words):
            raise self.error(repr(" ".join(words)))

    def word(self, expected: str) -> str:
        if self._word in {"", ","}:
            raise self.error(expected)
        self._next += 1
        return self._words[self._next - 1]

    def options(self, known: dict[str, tuple[str, Callable[[], object]] | None]) -> dict[str, Any]:
        """Take options in any order, up to the end of the line, or to one that is None.

        `known` has, by its first words, an option's attribute and what takes its value.
        """
        found: dict[str, Any] = {}
        while self.more:
            for words, option in known.items():
                if option is None and self.is_one_of([words]):
                    return found
                if option is not None and self.take(*words.split()):
                    found[option[0]] = option[1]()
                    break
            else:
                raise self.error(", ".join(map(repr, known)) + ", or the end of the line")
        return found

    def end(self) -> None:
        if self.more:
            raise self.error("the end of the line")

    def quoted(self) -> str:
        """Take a text in quotes, if one comes next."""
        return self.word("a text").strip('"') if self._word.startswith('"') else ""

    def name(self, expected: str) -> str:
        if self.more and not fleet.NAME.fullmatch(self._word):
            raise self.error(expected)
        return self.word(expected)

    def names(self, expected: str) -> tuple[str, ...]:
        found = [self.name(expected)]
        while self.take(","):
            found.append(self.name(expected))
        return tuple(found)

    def span(self, expected: str) -> timedelta:
        span = _span(self._word)
        if span is None:
            raise self.error(expected)
        self._next += 1
        return span

    def seconds(self) -> int:
        return int(self.span("a span, such as 90s").total_seconds())

    def signed_span(self) -> timedelta:
        """Take a span with its sign, such as `+24h`."""
        sign, span = self._word[:1], _span(self._word[1:])
        if sign not in {"+", "-"} or span is None:
            raise self.error("a span with its sign, such as +24h or -1h")
        self._next += 1
        return span if sign == "+" else -span

    def moment(self) -> datetime:
        return BEGINNING + self.span(A_TIME)

    def held(self, expected: str) -> tuple[HoldKind, str]:
        """Take what a hold covers: `everything`, or a kind and a name."""
        kind = self.one_of(HoldKind, expected)
        return kind, "" if kind is HoldKind.EVERYTHING else self.name(f"the name of the {kind}")

    def number(self, expected: str) -> int:
        if not NUMBER.fullmatch(self._word):
            raise self.error(expected)
        return int(self.word(expected))

    def reference(self) -> str:
        """Take an operation (`1.2`) or a maintenance (`1`)."""
        expected = "an operation such as 1.2, or a maintenance such as 1"
        return self.operation() if self.at_operation() else str(self.number(expected))

    def at_operation(self) -> bool:
        return OPERATION.fullmatch(self._word) is not None

    def operation(self) -> str:
        if not self.at_operation():
            raise self.error("an operation, such as 1.2")
        return self.word("an operation")

    def is_one_of(self, known: Iterable[str]) -> bool:
        return self._word in set(known)

    def one_of_these(self, known: Iterable[str], expected: str) -> str:
        if not self.is_one_of(known):
            raise self.error(f"{expected}: {', '.join(known)}")
        return self.word(expected)

    def one_of(self, kind: type[Word], expected: str) -> Word:
        return kind(self.one_of_these(kind, expected))


def _span(text: str) -> timedelta | None:
    match = SPAN.fullmatch(text) if text else None
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
