"""A scenario, played over the real rules, store and documents."""

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import assert_never

import msgspec

from forewarn.maintenance.model import Operation, Refused
from forewarn.protocol import codec, document, versions
from forewarn.protocol.tolerant import Listed
from forewarn.testing import parser
from forewarn.testing.harness import Harness, Impossible, ServerDown, ServerKilled
from forewarn.testing.parser import BEGINNING
from forewarn.vocabulary import EventStatus

TIME_PASSES = "time passes"
"""The text of an entry that no line caused: the ticker did what was due."""


class DocumentChange(msgspec.Struct, frozen=True, kw_only=True):
    """The new document of a scope."""

    scope: str
    machines: tuple[str, ...]
    """Who reads it."""
    incarnation: int
    events: tuple[document.Event, ...]


class TimelineEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened, and the documents that it changed."""

    elapsed_seconds: float
    """From the beginning."""
    time: datetime
    """By the wall clock."""
    line: int | None
    """The line of the file; None for what the ticker did."""
    said: str
    sights: tuple[DocumentChange, ...]


class ScenarioBroken(Exception):  # noqa: N818 - the result of a scenario, not a fault of the code
    """A line of a scenario does not hold; `message` is what is so instead."""

    def __init__(self, name: str, line: parser.ScenarioLine, message: str) -> None:
        super().__init__(f"{name}:{line.number}: {line.text}\n    but {message}")
        self.line = line.number
        self.message = message


def play(scenario: parser.Scenario) -> Iterator[TimelineEntry]:
    """Play a scenario line by line; yield what happens.

    Raises:
        ScenarioBroken: A line does not hold.
    """
    yield from _Play(scenario).run()


def shown(entry: TimelineEntry) -> list[str]:
    """Return an entry as lines for people."""
    where = "" if entry.line is None else f"  (line {entry.line})"
    when = f"{entry.time:%d %H:%M:%S}  +{_clock_face(timedelta(seconds=entry.elapsed_seconds))}"
    lines = [f"{when}  {entry.said}{where}"]
    for sight in entry.sights:
        who = ", ".join(sight.machines) or f"nobody in {sight.scope}"
        sees = "sees" if len(sight.machines) == 1 else "see"
        events = "; ".join(map(_event, sight.events)) or "nothing"
        lines.append(f"{'':>13}{who} {sees} [{sight.incarnation}] {events}")
    return lines


class _Play:
    def __init__(self, scenario: parser.Scenario) -> None:
        self._scenario = scenario
        self._harness = Harness(scenario.fleet, scenario.policy)
        self._seen: dict[str, document.Document] = {}

    def run(self) -> Iterator[TimelineEntry]:
        self._look()
        for line in self._scenario.lines:
            try:
                for _ in self._harness.run_until(line.at, inclusive=not line.before_ticker):
                    yield self._entry(None, TIME_PASSES)
                self._play(line)
            except (ServerDown, Impossible) as error:
                raise ScenarioBroken(self._scenario.name, line, str(error)) from error
            yield self._entry(line.number, line.text)

    def _play(self, line: parser.ScenarioLine) -> None:
        broken = ""
        try:
            if isinstance(line.statement, parser.Expectation):
                broken = complaint(self._harness, line.statement)
            else:
                line.statement.act(self._harness)
        except Refused as refusal:
            if refusal.code is not line.refused:
                broken = f"it was refused as {refusal.code}: {refusal.message}"
        except ServerKilled:
            return  # as the line before asked: nobody gets an answer, and nothing has changed
        else:
            broken = broken or ("it was not refused" if line.refused else "")
        if broken:
            raise ScenarioBroken(self._scenario.name, line, broken)

    def _entry(self, line: int | None, said: str) -> TimelineEntry:
        return TimelineEntry(
            elapsed_seconds=self._harness.elapsed.total_seconds(),
            time=self._harness.clock.now(),
            line=line,
            said=said,
            sights=tuple(self._look()),
        )

    def _look(self) -> list[DocumentChange]:
        """Return the documents that have changed since the last look; none of a server down."""
        if not self._harness.up:
            return []
        members: dict[str, list[str]] = {}
        for machine in self._harness.machines().values():
            members.setdefault(machine.scope, []).append(machine.name)
        changes = []
        for key, scope in self._harness.scopes().items():
            listing = self._harness.reads(key, versions.NEWEST)
            read = msgspec.convert(listing, document.Document, from_attributes=True)
            before = self._seen.get(key, document.Document(incarnation=0))
            self._seen[key] = read
            if read != before:
                changes.append(
                    DocumentChange(
                        scope=scope.name,
                        machines=tuple(sorted(members.get(key, ()))),
                        incarnation=read.incarnation,
                        events=read.events,
                    )
                )
        return changes


def complaint(harness: Harness, expected: parser.Expectation) -> str:
    """Return what is different from an expectation; `""` if it holds."""
    match expected:
        case parser.ExpectDocument():
            return _document(harness, expected)
        case parser.ExpectOperation():
            return _operation(harness, expected)
        case parser.ExpectIncarnation():
            scope = harness.scopes().get(expected.scope.lower())
            if scope is None:
                return f"there is no scope {expected.scope}"
            found = scope.incarnation
            return "" if found == expected.number else f"the incarnation is {found}"
        case parser.ExpectRolling():
            maintenance = harness.maintenance(expected.maintenance)
            if maintenance is None:
                return f"there is no maintenance {expected.maintenance}"
            states = {rolling.state for rolling in maintenance.rolling_updates}
            return "" if states == {expected.state} else f"it is: {_listed(states)}"
        case parser.ExpectAlerts():
            alerts = {(alert.kind, alert.about) for alert in harness.current_alerts()}
            told = _listed(f"{kind} {about}" for kind, about in alerts)
            return "" if alerts == expected.alerts else f"the alerts are: {told}"
        case parser.ExpectHost():
            machine = harness.machine(expected.machine)
            if machine is None:
                return "" if expected.host is None else f"there is no machine {expected.machine}"
            if machine.host and machine.host == expected.host:
                return ""
            return f"{machine.name} is on host {machine.host or 'unknown'}"
        case _:
            assert_never(expected)


def _document(harness: Harness, expected: parser.ExpectDocument) -> str:
    machine = harness.machine(expected.machine)
    if machine is None:
        return f"there is no machine {expected.machine}"
    version = versions.BY_NAME[expected.version]
    events = harness.reads(machine.scope, version).events
    pairs = list(zip(events, expected.events, strict=False))
    if len(events) == len(expected.events) and all(_is_as_expected(*pair) for pair in pairs):
        return ""
    told = []
    for event in events:
        at = "" if event.not_before is None else f" at {_clock_face(event.not_before - BEGINNING)}"
        told.append(f"{event.event_type} {event.status} of {', '.join(_names(event))}{at}")
    return f"{machine.name} sees {' and '.join(told) or 'nothing'}"


def _names(event: Listed) -> tuple[str, ...]:
    return tuple(name.removeprefix(codec.PREVIEW_PREFIX) for name in event.resources)


def _is_as_expected(event: Listed, expected: parser.ExpectedEvent) -> bool:
    at = None if event.not_before is None else event.not_before - BEGINNING
    return (
        (event.event_type, event.status) == (expected.event_type, expected.status)
        and _names(event) == expected.machines
        and expected.not_before in {None, at}
    )


def _operation(harness: Harness, expected: parser.ExpectOperation) -> str:
    operation = harness.operation(expected.operation)
    if operation is None:
        return "" if expected.status is None else f"there is no operation {expected.operation}"
    started = operation.started_at
    since = None if started is None else started - BEGINNING
    not_before = operation.not_before - BEGINNING
    holds = (
        operation.status is expected.status
        and expected.because in {None, operation.start_cause}
        and operation.waits_for == expected.waits_for
        and expected.awaited in {None, operation.awaited}
        and (operation.held_at is not None) == expected.held
        and expected.since in {None, since}
        and expected.not_before in {None, not_before}
    )
    return "" if holds else _described(operation, since, not_before)


def _described(operation: Operation, since: timedelta | None, not_before: timedelta) -> str:
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
    if since is not None:
        text += f" since {_clock_face(since)}"
    text += f" not before {_clock_face(not_before)}"
    return text + (f' "{operation.outcome}"' if operation.outcome else "")


def _listed(words: Iterable[str]) -> str:
    return ", ".join(sorted(words)) or "nothing"


def _event(event: document.Event) -> str:
    when = "" if event.not_before is None else f", not before {event.not_before:%d %H:%M:%S}"
    return f"{event.event_type} {event.status} of {', '.join(event.resources)}{when}"


def _clock_face(span: timedelta) -> str:
    """Return a span as hours, minutes and seconds, such as `0:15:00`."""
    minutes, seconds = divmod(round(span.total_seconds()), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"
