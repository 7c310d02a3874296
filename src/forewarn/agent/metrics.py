"""The agent's metrics, in Prometheus' text form; by hand, for a library would be half of it.

`FAMILIES` is the one place that says what there is and what it means: each page has it as HELP, and
docs/reference/agent-metrics.md begins each section with it, which a test compares.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from forewarn.agent import view
from forewarn.agent.machine import Machine
from forewarn.agent.messages import Answered, Begin
from forewarn.agent.records import Approved, Ended, Fact, Gone, Taken

PREFIX: Final = "forewarn_agent_"
Labels = tuple[tuple[str, str], ...]


class Family(msgspec.Struct, frozen=True):
    """What is said of a metric beside its values."""

    kind: str
    """`counter` or `gauge`."""
    help: str
    """What it tells: one sentence, without a backslash or a line's end."""


FAMILIES: Final[Mapping[str, Family]] = MappingProxyType(
    {
        "events": Family("gauge", "Events in hand now, by type and phase."),
        "events_taken_total": Family("counter", "Events that a rule took, by type."),
        "notice_left_seconds": Family(
            "gauge", "The least notice that is left of any event of this machine."
        ),
        "approvals_total": Family("counter", "Approvals that the endpoint took."),
        "approvals_failed_total": Family(
            "counter", "Approvals that were sent and not taken, by reason."
        ),
        "approval_delay_seconds": Family(
            "gauge",
            "Of the event that was approved last: from the moment at which a rule took it to its "
            "approval.",
        ),
        "actions_total": Family("counter", "Actions that ended, by kind, phase and outcome."),
        "action_seconds_total": Family("counter", "The time that they took, by kind and phase."),
        "ready": Family(
            "gauge",
            "1 if /readyz says that the balancer may send requests here, 0 while the machine is "
            "taken out.",
        ),
        "stuck": Family("gauge", "Actions that could not be undone and wait for somebody."),
        "healthy": Family("gauge", "1 if /healthz says that the agent does its work, 0 otherwise."),
        "endpoint_up": Family(
            "gauge", "1 if the last look at the endpoint was answered, 0 otherwise."
        ),
        "last_look_timestamp_seconds": Family(
            "gauge", "When the endpoint answered last, in seconds since 1970."
        ),
        "looks_total": Family("counter", "Answers of the endpoint."),
    }
)
"""Every metric, by its name without PREFIX."""

REFUSED: Final = (("reason", "refused"),)
UNANSWERED: Final = (("reason", "unanswered"),)


class Live(msgspec.Struct, frozen=True, kw_only=True):
    """What a scrape finds out at its own moment."""

    healthy: bool
    """Whether `/healthz` says so."""
    endpoint_up: bool
    """Whether the last look was answered."""
    last_look: float | None
    """When one was answered last, in seconds since 1970; None before the first."""


class Metrics:
    """Counts what happens."""

    def __init__(self) -> None:
        self.looks = 0
        """Answers of the endpoint."""
        self._taken: Counter[Labels] = Counter()
        self._ended: Counter[Labels] = Counter()
        self._seconds: dict[Labels, float] = {}
        self._begun: dict[str, tuple[str, float]] = {}
        self._taken_at: dict[str, float] = {}
        self._approvals = 0
        self._approvals_failed: Counter[Labels] = Counter({REFUSED: 0, UNANSWERED: 0})
        self._delay = 0.0

    def began(self, command: Begin, now: float) -> None:
        """Take note that an action begins."""
        self._begun[command.effect] = command.step.kind, now

    def answered(self, answered: Answered) -> None:
        """Take note of what became of an approval; one that was taken is counted by its record."""
        if not answered.taken:
            self._approvals_failed[UNANSWERED if answered.taken is None else REFUSED] += 1

    def wrote(self, record: Fact, now: float) -> None:
        """Take note of a record."""
        match record:
            case Taken():
                self._taken[("type", str(record.event.event_type)),] += 1
                self._taken_at[record.event.event_id.upper()] = now
            case Ended() if record.effect in self._begun:
                kind, begun = self._begun.pop(record.effect)
                labels = ("kind", kind), ("phase", "undo" if record.undo else "prepare")
                self._seconds[labels] = self._seconds.get(labels, 0.0) + now - begun
                self._ended[*labels, ("outcome", record.outcome.value)] += 1
            case Approved():
                self._approvals += 1
                self._delay = now - self._taken_at.get(record.event_id, now)
            case Gone():
                self._taken_at.pop(record.event_id, None)

    def page(self, machine: Machine, now: float, *, dry: bool = False) -> str:
        """Return all of it as text, but for what `live_page` has."""
        cases = machine.ledger.cases.values()
        events: Counter[Labels] = Counter(
            (("type", str(case.event.event_type)), ("phase", case.phase.value)) for case in cases
        )
        left = [
            event.starts_by - now
            for event in machine.events.values()
            if event.starts_by is not None and event.concerns_me
        ]
        stuck = sum(effect.stuck is not None for effect in machine.ledger.effects.values())
        lines = [
            *_family("events", events),
            *_family("events_taken_total", self._taken),
            *_family("notice_left_seconds", {(): max(0.0, min(left))} if left else {}),
            *_family("approvals_total", {(): self._approvals}),
            *_family("approvals_failed_total", self._approvals_failed),
            *_family("approval_delay_seconds", {(): self._delay}),
            *_family("actions_total", self._ended),
            *_family("action_seconds_total", self._seconds),
            *_family("ready", {(): int(dry or view.ready(machine))}),
            *_family("stuck", {(): stuck}),
        ]
        return "\n".join(lines) + "\n"

    def live_page(self, live: Live) -> bytes:
        """Return the rest of the page, which changes without any cause; any thread may."""
        lines = [
            *_family("healthy", {(): int(live.healthy)}),
            *_family("endpoint_up", {(): int(live.endpoint_up)}),
            *_family(
                "last_look_timestamp_seconds",
                {} if live.last_look is None else {(): live.last_look},
            ),
            *_family("looks_total", {(): self.looks}),
        ]
        return ("\n".join(lines) + "\n").encode()


def _family(name: str, values: Mapping[Labels, float]) -> Iterator[str]:
    family = FAMILIES[name]
    yield f"# HELP {PREFIX}{name} {family.help}"
    yield f"# TYPE {PREFIX}{name} {family.kind}"
    for labels, value in values.items():
        yield f"{PREFIX}{name}{_labels(labels)} {round(value, DECIMALS)}"


def _labels(labels: Iterable[tuple[str, str]]) -> str:
    told = ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels)
    return f"{{{told}}}" if told else ""


DECIMALS: Final = 3
"""Of what is no whole number: milliseconds. Digits before the point are never left out: a counter
that grows by steps of a hundred would look as if it stood still."""

_ESCAPES: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
