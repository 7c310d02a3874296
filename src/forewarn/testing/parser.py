"""The language of scenario files: text in; what to call on the harness, and what to expect, out.

A line is a time and a sentence: `at 5m  web-0 approves`. docs/guides/scenarios.md has the whole
language. The parser is strict: an error names the file and the line, what was found there and what
was expected.
"""

import functools
import itertools
import re
import tomllib
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from forewarn.connectors.port import Outcome
from forewarn.control.plane import Plane
from forewarn.maintenance import fleet_file, model, planner
from forewarn.maintenance.alerts import AlertKind
from forewarn.maintenance.model import HoldKind, Operation, Policy, RollingState, StartCause
from forewarn.protocol import codec
from forewarn.protocol.codec import AgentReport, Listed
from forewarn.protocol.versions import NEWEST_VERSION, VERSION_BY_NAME
from forewarn.server.settings import RulesSettings
from forewarn.testing import faults
from forewarn.testing.harness import BEGINNING, Harness
from forewarn.testing.record import RecordedAnswer
from forewarn.vocabulary import AgentStatus, ErrorCode, EventSource, EventStatus, EventType

MAX_LINES: Final = 10_000
"""The most lines of a scenario: nobody reviews a longer text."""

SPAN: Final = re.compile(r"(?:(\d{1,4})d)?(?:(\d{1,6})h)?(?:(\d{1,6})m)?(?:(\d{1,9})s)?", re.ASCII)
TOKEN: Final = re.compile(r'"[^"]*"|[,"]|#.*|[^\s,"]+')
OPERATION: Final = re.compile(r"\d{1,9}\.\d{1,6}", re.ASCII)
NUMBER: Final = re.compile(r"\d{1,9}", re.ASCII)

EXPECTATION: Final = re.compile(r"(?:at \S+ (?:before the ticker )?)?expect ")

A_TIME: Final = "a time from the beginning, such as 1h30m"

SUBJECTS: Final = (
    "an operator ('operator schedules ...'), the connector, the server, the clock, 'faults', "
    "'expect', a failure ('Reboot strikes web-0'), or a machine that approves, asks or says"
)

Word = TypeVar("Word", bound=StrEnum)
Block = TypeVar("Block")


class ScriptError(Exception):
    """A scenario file breaks the rules of the language; the message names file and line."""


Statement = Callable[[Harness], str]
"""Carries out a sentence; returns what is so instead of what it expects, `""` if that holds."""


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

    @property
    def is_expectation(self) -> bool:
        """Whether it changes nothing, and says what must be so."""
        return EXPECTATION.match(self.text) is not None


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """A whole file."""

    name: str
    fleet: fleet_file.Fleet
    policy: Policy
    lines: tuple[ScenarioLine, ...]


def parse(text: str, name: str, beginning: datetime = BEGINNING) -> Scenario:
    """Parse a file's text; its name is for messages, and its times count from the beginning."""
    rows = text.splitlines()
    if len(rows) > MAX_LINES:
        raise ScriptError(f"{name}: {len(rows)} lines; a scenario has at most {MAX_LINES}")
    return _File(rows, name, beginning).scenario()


class _File:
    """The lines of a file, and the blocks of TOML that are indented below some of them."""

    def __init__(self, rows: list[str], name: str, beginning: datetime) -> None:
        self._beginning = beginning
        self._rows = rows
        self._name = name
        self._next = 0
        self._at = timedelta()
        self._before_ticker = False

    def scenario(self) -> Scenario:
        first: fleet_file.Fleet | None = None
        policy = Policy()
        lines: list[ScenarioLine] = []
        while self._next < len(self._rows):
            row = self._rows[self._next]
            self._next += 1
            words = _Words(row, f"{self._name}:{self._next}", self._indented, self._beginning)
            if words.empty:
                continue
            if row[0].isspace():
                raise words.error("a line that is not indented: no block is open here")
            if not lines and words.take("fleet"):
                first = words.block(fleet_file.Fleet)
            elif not lines and words.take("settings"):
                rules = words.block(RulesSettings)
                if rules.preset:
                    raise ScriptError(f"{words.where}: no preset here: write its settings out")
                policy = rules.policy
            elif first is None:
                raise words.error("'fleet', with the machines indented below it")
            else:
                lines.append(self._line(words, self._next))
        if first is None or not lines:
            message = f"{self._name}:{len(self._rows)}: expected a fleet, and lines after it"
            raise ScriptError(message)
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
        refused = None
        if words.take("refused"):
            words.need("as")
            refused = words.one_of(ErrorCode, "a reason")
        words.end()
        return ScenarioLine(
            number=number,
            text=" ".join(words.spoken.split()),
            at=self._at,
            before_ticker=self._before_ticker,
            statement=statement,
            refused=refused,
        )

    def _indented(self) -> list[str]:
        """Take the lines that are indented, or empty, up to the next one that is neither."""
        rows = itertools.takewhile(
            lambda row: not row.strip() or row[0].isspace(), self._rows[self._next :]
        )
        taken = list(rows)
        self._next += len(taken)
        return taken


# Sentences


def _plane(question: Callable[..., Future[Any]]) -> Callable[..., object]:
    return lambda harness, *values: harness.ask(lambda plane: question(plane, *values))


def _request(
    plane: Plane, by: str, event_type: EventType, target: dict[str, Any], options: dict[str, Any]
) -> Future[Any]:
    return plane.request(
        planner.Request(event_type=event_type, requested_by=by, **target, **options)
    )


def _strikes(event_type: EventType) -> Callable[..., object]:
    failed = {"no_notice": True}
    return _plane(
        lambda plane, names: _request(plane, "platform", event_type, {"machines": names}, failed)
    )


def _finishes(*, succeeded: bool) -> Callable[..., object]:
    return lambda harness, operation, message, attempt: harness.report(
        operation, Outcome(succeeded=succeeded, message=message), attempt
    )


def _incarnation(harness: Harness, name: str, number: int) -> str:
    scope = harness.look(lambda reading: reading.scopes()).get(name.lower())
    if scope is None:
        return f"there is no scope {name}"
    return "" if scope.incarnation == number else f"the incarnation is {scope.incarnation}"


def _rolling(harness: Harness, number: int, state: RollingState) -> str:
    maintenance = harness.look(lambda reading: reading.maintenances([number])).get(number)
    if maintenance is None:
        return f"there is no maintenance {number}"
    states = {rolling.state for rolling in maintenance.rolling_updates}
    return "" if states == {state} else f"it is: {_listed(states)}"


def _alerts(harness: Harness, *expected: tuple[AlertKind, str]) -> str:
    found = {(alert.kind, alert.about) for alert in harness.current_alerts()}
    told = _listed(f"{kind} {about}" for kind, about in found)
    return "" if found == set(expected) else f"the alerts are: {told}"


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


def _document(harness: Harness, name: str, version: str, expected: list[_Seen]) -> str:
    machine = harness.machine(name)
    if machine is None:
        return f"there is no machine {name}"
    listing = harness.reads(machine.scope, VERSION_BY_NAME[version])
    seen = [_seen(event, harness.origin) for event in listing.events]
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


def _seen(event: Listed, origin: datetime) -> _Seen:
    machines = tuple(name.removeprefix(codec.PREVIEW_PREFIX) for name in event.resources)
    at = None if event.not_before is None else event.not_before - origin
    return _Seen(event.event_type, event.status, machines, at)


def _operation(harness: Harness, name: str, expected: dict[str, object]) -> str:
    """Compare an operation's attributes; without any there must be no such operation."""
    operation = harness.operation(name)
    if operation is None:
        return f"there is no operation {name}" if expected else ""
    found = {"held": operation.held_at is not None, **msgspec.structs.asdict(operation)}
    holds = expected and found.items() >= expected.items()
    return "" if holds else _described(operation, harness.origin)


def _described(operation: Operation, origin: datetime) -> str:
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
        text += f" since {clock_face(operation.started_at - origin)}"
    text += f" not before {clock_face(operation.not_before - origin)}"
    return text + (f' "{operation.outcome}"' if operation.outcome else "")


def _listed(words: Iterable[str]) -> str:
    return ", ".join(sorted(words)) or "nothing"


def clock_face(span: timedelta) -> str:
    """Return a span as hours, minutes and seconds, such as `0:15:00`."""
    minutes, seconds = divmod(round(span.total_seconds()), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"


SENTENCES: Final[dict[str, Callable[..., object]]] = {
    "operator BY schedules TYPE of TARGET OPTIONS": _plane(_request),
    "operator BY cancels REFERENCE REASON": _plane(
        lambda plane, _, reference, reason: plane.cancel([reference], reason=reason)
    ),
    "operator BY approves REFERENCE": _plane(
        lambda plane, by, reference: plane.approve_for_guests([reference], by=by)
    ),
    "operator BY acknowledges REFERENCE": _plane(
        lambda plane, by, reference: plane.acknowledge([reference], by)
    ),
    "operator BY resumes MAINTENANCE": _plane(
        lambda plane, by, number: plane.resume(number, by=by)
    ),
    "operator BY postpones REFERENCE to TIME": _plane(
        lambda plane, by, reference, at: plane.postpone([reference], at, by=by)
    ),
    "operator BY holds HELD REASON": _plane(
        lambda plane, by, held, reason: plane.hold(*held, reason=reason, by=by)
    ),
    "operator BY releases HELD": _plane(lambda plane, by, held: plane.release(*held, by=by)),
    "operator BY removes MACHINES": _plane(lambda plane, _, names: plane.remove_machines(names)),
    "operator BY applies fleet PRUNES BLOCK": _plane(
        lambda plane, _, prune, applied: plane.apply_fleet(applied, prune=prune)
    ),
    **{f"{event_type} strikes MACHINES": _strikes(event_type) for event_type in EventType},
    "MACHINE approves OPERATIONS": Harness.approve,
    "MACHINE asks": Harness.record_request,
    "MACHINE says REPORT": Harness.record_request,
    "connector finishes OPERATION REASON ATTEMPT": _finishes(succeeded=True),
    "connector fails OPERATION REASON ATTEMPT": _finishes(succeeded=False),
    "faults FAULT CONDITIONS": lambda harness, name, values: harness.add_faults(
        faults.named(name, **values)
    ),
    "endpoint answers ANSWER": lambda harness, answer: harness.replay(answer),
    "server starts": Harness.start,
    "server is killed WHEN": lambda harness, in_commit: (
        harness.doom() if in_commit else harness.kill()
    ),
    "clock jumps SIGNED": lambda harness, by: harness.jump(by),
    "expect SUBJECT sees EVENTS": lambda harness, name, events: _document(
        harness, name, NEWEST_VERSION.name, events
    ),
    "expect SUBJECT by VERSION sees EVENTS": _document,
    "expect SUBJECT is on host HOST": _host,
    "expect SUBJECT has read it": lambda harness, name: harness.has_read(name),
    "expect SUBJECT is STATE": _operation,
    "expect no operation OPERATION": lambda harness, name: _operation(harness, name, {}),
    "expect no machine NAME": lambda harness, name: _host(harness, name, None),
    "expect incarnation of SCOPE is NUMBER": _incarnation,
    "expect rolling update of MAINTENANCE is ROLLING": _rolling,
    "expect alerts ALERTS": lambda harness, alerts: _alerts(harness, *alerts),
    "expect no alerts": _alerts,
}
"""What each sentence calls, with the harness and the values of the words in capitals."""


def _statement(words: "_Words") -> Statement:
    """Take a sentence word by word, as long as one in the table begins so."""
    left = {pattern: pattern.split() for pattern in SENTENCES}
    values: list[Any] = []
    place = 0
    while (whole := next((p for p, parts in left.items() if len(parts) == place), None)) is None:
        following = dict.fromkeys(parts[place] for parts in left.values())
        fixed = [word for word in following if not word.isupper()]
        if words.is_one_of(fixed):
            taken = words.word("")
        elif capitals := set(following) - set(fixed):
            (taken,) = capitals
            values.append(SLOTS[taken](words))
        else:
            raise words.error(f"one of {', '.join(fixed)}" if fixed[1:] else repr(fixed[0]))
        left = {pattern: parts for pattern, parts in left.items() if parts[place] == taken}
        place += 1
    return functools.partial(_run, whole, values)


def _run(pattern: str, values: list[Any], harness: Harness) -> str:
    told = SENTENCES[pattern](harness, *values)
    return str(told) if pattern.startswith("expect") else ""


# What stands for the words in capitals


def _by(words: "_Words") -> str:
    verbs = {pattern.split()[2]: None for pattern in SENTENCES if pattern.startswith("operator")}
    known = f"an operator's name, or one of {', '.join(verbs)}"
    return "operator" if words.is_one_of(verbs) else words.name(known)


def _target(words: "_Words") -> dict[str, Any]:
    for kind in ("scope", "host"):
        if words.take(kind):
            return {kind: words.name(f"the name of the {kind}")}
    return {"machines": words.names("'scope NAME', 'host NAME', or machines")}


def _options(words: "_Words") -> dict[str, Any]:
    return words.options(
        {
            "for a user": ("source", lambda: EventSource.USER),
            "not before": ("not_before", words.moment),
            "lasting": ("duration_seconds", words.seconds),
            "without notice": ("without_notice", lambda: True),
            "refused": None,
        }
    )


def _conditions(words: "_Words") -> dict[str, Any]:
    return words.options(
        {
            "of": ("machine", lambda: model.key(words.name("the name of a machine"))),
            "after": ("after", lambda: words.number("a number of requests")),
            "times": ("times", lambda: words.number("a number of requests")),
            "status": ("status", lambda: words.number("a status, such as 503")),
            "retry after": ("retry_after", words.seconds),
            "for": ("seconds", words.seconds),
            "seed": ("seed", lambda: words.number("a number")),
            "refused": None,
        }
    )


def _operations(words: "_Words") -> list[str]:
    found: list[str] = []
    while words.at_operation():
        found.append(words.operation())
        words.take(",")
    return found


def _held(words: "_Words") -> tuple[HoldKind, str]:
    kind = words.one_of(HoldKind, "what it concerns")
    return kind, "" if kind is HoldKind.EVERYTHING else words.name(f"the name of the {kind}")


def _events(words: "_Words") -> list[_Seen]:
    events = [] if words.take("nothing") else [_event(words)]
    while events and words.take("and"):
        events.append(_event(words))
    return events


def _event(words: "_Words") -> _Seen:
    event_type = words.one_of(EventType, "'nothing', or a type")
    if words.is_one_of(set(EventStatus) - {EventStatus.SCHEDULED, EventStatus.STARTED}):
        raise words.error("Scheduled or Started: guests never see another status")
    status = words.one_of(EventStatus, "a status")
    words.need("of")
    machines = words.names("the machines of the event")
    not_before = words.span(A_TIME) if words.take("at") else None
    return _Seen(event_type, status, machines, not_before)


def _state(words: "_Words") -> dict[str, object]:
    status = words.one_of(EventStatus, "a status")
    behind = "behind" if status is EventStatus.QUEUED else "waiting for"
    nobody_or = "'nobody', or the machines that it awaits"
    options = words.options(
        {
            "because": ("start_cause", lambda: words.one_of(StartCause, "why it started")),
            behind: ("waits_for", words.operation),
            "awaiting": ("awaited", lambda: () if words.take("nobody") else words.names(nobody_or)),
            "held": ("held", lambda: True),
            "since": ("started_at", words.moment),
            "not before": ("not_before", words.moment),
        }
    )
    return {"status": status, "waits_for": "", "held": False, **options}


def _expected_alerts(words: "_Words") -> set[tuple[AlertKind, str]]:
    alerts: set[tuple[AlertKind, str]] = set()
    while not alerts or words.take(","):
        kind = words.one_of(AlertKind, "the kind of an alert")
        is_hold = kind is AlertKind.HELD
        about = " ".join(_held(words)).rstrip() if is_hold else words.reference()
        alerts.add((kind, about))
    return alerts


SLOTS: Final[dict[str, Callable[["_Words"], Any]]] = {
    "ALERTS": _expected_alerts,
    "ANSWER": lambda words: words.block(RecordedAnswer),
    "ATTEMPT": lambda words: words.number("a number") if words.take("as", "attempt") else None,
    "BLOCK": lambda words: words.block(fleet_file.Fleet),
    "BY": _by,
    "EVENTS": _events,
    "CONDITIONS": _conditions,
    "FAULT": lambda words: words.one_of_these([*faults.PLAYBOOKS, *faults.FaultKind], "a fault"),
    "HELD": _held,
    "HOST": lambda words: words.name("the name of the host"),
    "MACHINE": lambda words: words.name(SUBJECTS),
    "MACHINES": lambda words: words.names("the names of machines"),
    "MAINTENANCE": lambda words: words.number("a maintenance, such as 1"),
    "NAME": lambda words: words.name("the name of the machine"),
    "NUMBER": lambda words: words.number("a number"),
    "OPERATION": lambda words: words.operation(),
    "OPERATIONS": _operations,
    "OPTIONS": _options,
    "PRUNES": lambda words: words.take("and", "prunes"),
    "REASON": lambda words: words.quoted(),
    "REFERENCE": lambda words: words.reference(),
    "REPORT": lambda words: AgentReport(
        words.one_of(AgentStatus, "what its agent says"), words.quoted()
    ),
    "ROLLING": lambda words: words.one_of(RollingState, "the state of its rolling updates"),
    "SCOPE": lambda words: words.name("the name of the scope"),
    "SIGNED": lambda words: words.signed_span(),
    "STATE": _state,
    "SUBJECT": lambda words: words.name("a machine, an operation, 'no', or what is expected"),
    "TARGET": _target,
    "TIME": lambda words: words.moment(),
    "TYPE": lambda words: words.one_of(EventType, "a type"),
    "WHEN": lambda words: words.take("in", "the", "next", "commit"),
    "VERSION": lambda words: words.one_of_these(VERSION_BY_NAME, "an api-version"),
}
"""What takes the value of a word in capitals."""


class _Words:
    """The words of one line, taken one after the other; `where` is its file and number."""

    def __init__(
        self, row: str, where: str, below: Callable[[], list[str]], beginning: datetime
    ) -> None:
        self.where = where
        self._beginning = beginning
        self._below = below
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

    def block(self, shape: type[Block]) -> Block:
        """Take the end of the line, and the TOML that is indented below it."""
        self.end()
        try:
            return msgspec.convert(tomllib.loads("\n".join(self._below())), shape)
        except tomllib.TOMLDecodeError as error:
            message = f"{self.where}: the block below is not TOML: {error} of the block"
            raise ScriptError(message) from error
        except msgspec.ValidationError as error:
            raise ScriptError(f"{self.where}: in the block below: {error}") from error

    def quoted(self) -> str:
        """Take a text in quotes, if one comes next."""
        return self.word("a text").strip('"') if self._word.startswith('"') else ""

    def name(self, expected: str) -> str:
        if self.more and not fleet_file.NAME.fullmatch(self._word):
            raise self.error(expected)
        return self.word(expected)

    def names(self, expected: str) -> tuple[str, ...]:
        found = [self.name(expected)]
        while self.take(","):
            found.append(self.name(expected))
        return tuple(found)

    def span(self, expected: str) -> timedelta:
        found = span(self._word)
        if found is None:
            raise self.error(expected)
        self._next += 1
        return found

    def seconds(self) -> int:
        return int(self.span("a span, such as 90s").total_seconds())

    def signed_span(self) -> timedelta:
        """Take a span with its sign, such as `+24h`."""
        sign, found = self._word[:1], span(self._word[1:])
        if sign not in {"+", "-"} or found is None:
            raise self.error("a span with its sign, such as +24h or -1h")
        self._next += 1
        return found if sign == "+" else -found

    def moment(self) -> datetime:
        return self._beginning + self.span(A_TIME)

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


def span(text: str) -> timedelta | None:
    """Return a span such as `1h30m`; None for what is none."""
    match = SPAN.fullmatch(text) if text else None
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
