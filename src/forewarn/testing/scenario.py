"""A scenario, played over the real rules, store and documents."""

from collections.abc import Iterator
from datetime import datetime, timedelta

import msgspec

from forewarn.maintenance.model import Refused
from forewarn.protocol import versions
from forewarn.protocol.versions import NEWEST_VERSION
from forewarn.testing import parser
from forewarn.testing.harness import Harness, Impossible, ServerKilled

TIME_PASSES = "time passes"
"""The text of an entry that no line caused: the ticker did what was due."""


class DocumentChange(msgspec.Struct, frozen=True, kw_only=True):
    """The new document of a scope."""

    scope: str
    machines: tuple[str, ...]
    """Who reads it."""
    incarnation: int
    events: tuple[versions.Event, ...]


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
    """Play a scenario line by line; yield what happens, up to the first line that is broken."""
    yield from _Play(scenario).run()


def carry_out(line: parser.ScenarioLine, harness: Harness) -> str:
    """Carry a line out; return what is so instead of what it expects, `""` if it holds."""
    try:
        broken = line.statement(harness)
    except Refused as refusal:
        if refusal.code is not line.refused:
            return f"it was refused as {refusal.code}: {refusal.message}"
        return ""
    except Impossible as error:
        return str(error)
    except ServerKilled:
        return ""  # as the line before asked: nobody gets an answer, and nothing has changed
    return broken or ("it was not refused" if line.refused else "")


def shown(entry: TimelineEntry) -> list[str]:
    """Return an entry as lines for people."""
    where = "" if entry.line is None else f"  (line {entry.line})"
    when = (
        f"{entry.time:%d %H:%M:%S}  +{parser.clock_face(timedelta(seconds=entry.elapsed_seconds))}"
    )
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
        self._seen: dict[str, versions.Document] = {}

    def run(self) -> Iterator[TimelineEntry]:
        self._look()
        for line in self._scenario.lines:
            for _ in self._harness.run_until(line.at, inclusive=not line.before_ticker):
                yield self._entry(None, TIME_PASSES)
            if broken := carry_out(line, self._harness):
                raise ScenarioBroken(self._scenario.name, line, broken)
            yield self._entry(line.number, line.text)

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
        for machine in self._harness.look(lambda reading: reading.machines()).values():
            members.setdefault(machine.scope, []).append(machine.name)
        changes = []
        for key, scope in self._harness.look(lambda reading: reading.scopes()).items():
            listing = self._harness.reads(key, NEWEST_VERSION)
            read = msgspec.convert(listing, versions.Document, from_attributes=True)
            before = self._seen.get(key, versions.Document(incarnation=0))
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


def _event(event: versions.Event) -> str:
    when = "" if event.not_before is None else f", not before {event.not_before:%d %H:%M:%S}"
    return f"{event.event_type} {event.status} of {', '.join(event.resources)}{when}"
