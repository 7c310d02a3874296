"""The agent's metrics, in Prometheus' text form; by hand, for a library would be half of it.

forewarn_agent_events                    events in hand, by type and phase
forewarn_agent_events_taken_total        events that a rule took, by type
forewarn_agent_actions_total             actions that ended, by kind, phase and outcome
forewarn_agent_action_seconds_total      the time that they took, by kind and phase
forewarn_agent_approvals_total           approvals that the endpoint took
forewarn_agent_approval_delay_seconds    from taking the event approved last to its approval
forewarn_agent_notice_left_seconds       the least that is left of any event of this machine
forewarn_agent_ready                     1 if /readyz says so
forewarn_agent_stuck                     actions that could not be undone
forewarn_agent_looks_total               answers of the endpoint
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from forewarn.agent import view
from forewarn.agent.machine import Machine
from forewarn.agent.messages import Begin
from forewarn.agent.records import Approved, Ended, Fact, Gone, Taken

PREFIX: Final = "forewarn_agent_"
Labels = tuple[tuple[str, str], ...]


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
        self._delay = 0.0

    def began(self, command: Begin, now: float) -> None:
        """Take note that an action begins."""
        self._begun[command.effect] = command.step.kind, now

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
        """Return all of it as text, but for the looks."""
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
            *_family("events", "gauge", events),
            *_family("events_taken_total", "counter", self._taken),
            *_family("actions_total", "counter", self._ended),
            *_family("action_seconds_total", "counter", self._seconds),
            *_family("approvals_total", "counter", {(): self._approvals}),
            *_family("approval_delay_seconds", "gauge", {(): self._delay}),
            *_family("notice_left_seconds", "gauge", {(): max(0.0, min(left))} if left else {}),
            *_family("ready", "gauge", {(): int(dry or view.ready(machine))}),
            *_family("stuck", "gauge", {(): stuck}),
        ]
        return "\n".join(lines) + "\n"

    def looks_page(self) -> bytes:
        """Return the rest of the page, which changes each second; any thread may."""
        return ("\n".join(_family("looks_total", "counter", {(): self.looks})) + "\n").encode()


def _family(name: str, kind: str, values: Mapping[Labels, float]) -> Iterator[str]:
    yield f"# TYPE {PREFIX}{name} {kind}"
    for labels, value in values.items():
        yield f"{PREFIX}{name}{_labels(labels)} {value:.6g}"


def _labels(labels: Iterable[tuple[str, str]]) -> str:
    told = ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels)
    return f"{{{told}}}" if told else ""


_ESCAPES: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
