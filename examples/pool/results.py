"""What a round came to, and what must hold."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

LEAST_RATE = 200.0
"""Requests per second. With fewer the pool is not under load."""

LEAST_LOSS = 0.01
"""The share of requests that must fail without agents; with less the comparison shows nothing."""

KINDS = ("quick new", "quick kept", "slow new", "slow kept")
"""The kinds of requests: how long they last, and over a new or a kept connection."""


class DemoFailed(Exception):  # noqa: N818 - the end of the demo, told in one line
    """Something did not happen as it should."""


class State(StrEnum):
    """The state of a machine in the pool."""

    SERVING = "serving"
    LEAVING = "leaving"
    """Its agent is not ready: it finishes its requests and soon gets no new ones."""
    DOWN = "down"
    RETURNING = "returning"
    """It runs, but gets no requests yet."""


def follow(before: State | None, *, on: bool, up: bool, ready: bool) -> State:
    """Return the new state of a machine: its processes are on, the balancer has it up.

    `before` is None at the start; `ready` is what its agent says, True without an agent.
    """
    if not on:
        return State.DOWN
    if up and ready:
        return State.SERVING
    return State.LEAVING if before in {State.SERVING, State.LEAVING} else State.RETURNING


@dataclass(frozen=True)
class Change:
    """A machine enters a state."""

    at: float
    """Seconds since the first request."""
    state: State


@dataclass
class Machine:
    """One machine in a round."""

    name: str
    update_domain: int
    boots: list[int]
    """The process id of its service at each boot."""
    changes: list[Change]


@dataclass(frozen=True)
class Failure:
    """A request without a good answer."""

    at: float
    """Seconds since the first request."""
    kind: str
    how: str


@dataclass(frozen=True)
class Event:
    """An operation of the rolling reboot; here each is one event."""

    operation: str
    machines: tuple[str, ...]
    approved_by: str
    by_guest: bool
    status: str
    at: float
    """When it was announced, in seconds since the first request."""


@dataclass
class Round:
    """One rolling reboot under load."""

    agents: bool
    seconds: float
    """From the first request to the end of the last."""
    asking_seconds: float
    """From the first request to the start of the last."""
    answered: dict[str, int]
    """Good answers by kind."""
    failures: list[Failure]
    slowest: dict[str, float]
    """The longest good answer in seconds, by kind."""
    approvals: int
    """Approvals that the service took from guests."""
    events: list[Event]
    machines: list[Machine]

    @property
    def requests(self) -> int:
        """Return the number of requests."""
        return sum(self.answered.values()) + len(self.failures)

    @property
    def rate(self) -> float:
        """Return the requests per second."""
        return self.requests / self.asking_seconds

    @property
    def share(self) -> float:
        """Return the share of the requests that failed, from 0 to 1."""
        return len(self.failures) / self.requests if self.requests else 0.0

    def slowest_of(self, kind: str) -> float:
        """Return the longest good answer, in seconds, of the kinds that start with `kind`."""
        return max((s for k, s in self.slowest.items() if k.startswith(kind)), default=0.0)

    def tree(self) -> dict[str, Any]:
        """Return the round as JSON values, with the totals."""
        totals = {
            "requests": self.requests,
            "failed": len(self.failures),
            "share": self.share,
            "rate": self.rate,
        }
        return totals | asdict(self)


def judge(played: Round) -> list[str]:
    """Return what holds for a round, in words; DemoFailed says what does not."""
    return [_judge_load(played), _judge_events(played), _judge_failures(played)]


def _judge_load(played: Round) -> str:
    if played.rate < LEAST_RATE:
        raise DemoFailed(f"only {played.rate:.0f} requests/s: is the machine busy?")
    for kind in KINDS:
        if not played.answered.get(kind):
            raise DemoFailed(f"no request of the kind {kind!r} was answered")
    return (
        f"{played.rate:.0f} requests/s over new and kept connections, some of them lasting "
        f"{played.slowest_of('slow'):.1f} s"
    )


def _judge_events(played: Round) -> str:
    named = sorted(name for event in played.events for name in event.machines)
    if named != sorted(machine.name for machine in played.machines):
        raise DemoFailed(f"the events named {', '.join(named)}")
    for event in played.events:
        if event.status != "Completed":
            raise DemoFailed(f"operation {event.operation} is {event.status}")
        if event.by_guest is not played.agents:
            raise DemoFailed(f"{event.operation} was approved by {event.approved_by or 'nobody'}")
        if played.agents and event.approved_by != event.machines[0]:
            raise DemoFailed(f"{event.operation} was approved by {event.approved_by}")
    expected = len(played.events) if played.agents else 0
    if played.approvals != expected:
        raise DemoFailed(f"guests sent {played.approvals} approvals for {expected} events")
    for machine in played.machines:
        if len(set(machine.boots)) != 2:
            raise DemoFailed(f"{machine.name} was booted {len(machine.boots)} times")
    sizes = _numbers([len(event.machines) for event in played.events])
    by = "each approved once, by its first machine" if played.agents else "approved by the operator"
    return f"{len(played.events)} events of {sizes} machines, {by}; every machine was restarted"


def _judge_failures(played: Round) -> str:
    count = f"{len(played.failures)} of {played.requests} requests failed ({played.share:.2%})"
    if played.agents and played.failures:
        first = played.failures[0]
        raise DemoFailed(f"{count}; the first after {first.at:.1f} s, {first.kind}: {first.how}")
    if not played.agents and played.share <= LEAST_LOSS:
        raise DemoFailed(f"{count} without agents: too few for a comparison")
    return count


def _numbers(numbers: Sequence[int]) -> str:
    return "/".join(str(number) for number in sorted(set(numbers)))
