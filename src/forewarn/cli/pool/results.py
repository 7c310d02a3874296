"""What a round came to: values, and what must hold of them.

Pure: what was counted goes in, words come out.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import msgspec

from forewarn.cli.demo.story import DemoFailed

LEAST_RATE: Final = 200.0
"""Requests in a second that the pool is shown under."""

TELLING_SHARE: Final = 0.01
"""More of the requests than this fail without agents, or the comparison shows nothing."""

KINDS: Final = ("quick new", "quick kept", "slow new", "slow kept")
"""The client's kinds of requests: how long they last, and over which connections."""


class State(StrEnum):
    """What a machine is to the pool."""

    SERVING = "serving"
    """It gets requests."""
    LEAVING = "leaving"
    """Its agent has said that it goes: it ends what it has, and soon gets nothing new."""
    DOWN = "down"
    """It is off."""
    RETURNING = "returning"
    """It is on, and gets no requests yet."""


def follow(before: State | None, *, on: bool, up: bool, ready: bool) -> State:
    """Return a machine's state.

    Args:
        before: What it was; None at the start.
        on: Whether its processes run.
        up: Whether the balancer sends it requests.
        ready: Whether its agent would have them; True where there is none.
    """
    if not on:
        return State.DOWN
    if up and ready:
        return State.SERVING
    return State.LEAVING if before in {State.SERVING, State.LEAVING} else State.RETURNING


class Change(msgspec.Struct, frozen=True):
    """A machine's state from a moment on."""

    at: float
    """Seconds since the first request."""
    state: State


class Machine(msgspec.Struct):
    """One machine in a round."""

    name: str
    update_domain: int
    boots: list[int]
    """The process id of its service at each boot."""
    changes: list[Change]


class Failure(msgspec.Struct, frozen=True):
    """A request that got no good answer."""

    at: float
    """When that was clear, in seconds since the first request."""
    kind: str
    how: str


class Event(msgspec.Struct, frozen=True):
    """An operation of the rolling reboot; each is one event here."""

    operation: str
    machines: tuple[str, ...]
    approved_by: str
    """A machine, or who did it in the operator's name; `""` for nobody."""
    guests_word: bool
    status: str
    at: float
    """When it was announced, in seconds since the first request."""


class Round(msgspec.Struct):
    """One rolling reboot under load."""

    agents: bool
    seconds: float
    """From the first request to the end of the last."""
    asking_seconds: float
    """From the first request to the beginning of the last."""
    answered: dict[str, int]
    """Good answers, by kind."""
    failures: list[Failure]
    slowest: dict[str, float]
    """The longest that a good answer took, in seconds, by kind."""
    approvals: int
    """How many approvals guests have sent and had taken."""
    events: list[Event]
    machines: list[Machine]

    @property
    def requests(self) -> int:
        """Return how many requests there were."""
        return sum(self.answered.values()) + len(self.failures)

    @property
    def rate(self) -> float:
        """Return how many requests there were in a second."""
        return self.requests / self.asking_seconds

    @property
    def share(self) -> float:
        """Return which part of the requests failed, from 0 to 1."""
        return len(self.failures) / self.requests if self.requests else 0.0

    def slowest_of(self, kind: str) -> float:
        """Return the longest that a good answer took of the kinds that begin so, in seconds."""
        return max((s for k, s in self.slowest.items() if k.startswith(kind)), default=0.0)

    def tree(self) -> dict[str, object]:
        """Return it as JSON's own values, with what follows from them."""
        counted = {
            "requests": self.requests,
            "failed": len(self.failures),
            "share": self.share,
            "rate": self.rate,
        }
        values: dict[str, object] = msgspec.to_builtins(self)
        return counted | values


def judge(played: Round) -> list[str]:
    """Return what holds of a round, in words.

    Raises:
        DemoFailed: Something does not.
    """
    return [_judge_load(played), _judge_events(played), _judge_failures(played)]


def _judge_load(played: Round) -> str:
    if played.rate < LEAST_RATE:
        raise DemoFailed(f"there were only {played.rate:.0f} requests/s: is the machine busy?")
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
        if event.guests_word is not played.agents:
            raise DemoFailed(f"{event.operation} was approved by {event.approved_by or 'nobody'}")
        if played.agents and event.approved_by != event.machines[0]:
            raise DemoFailed(f"{event.operation} was approved by {event.approved_by}")
    wanted = len(played.events) if played.agents else 0
    if played.approvals != wanted:
        raise DemoFailed(f"guests sent {played.approvals} approvals for {wanted} events")
    for machine in played.machines:
        if len(set(machine.boots)) != 2:
            raise DemoFailed(f"{machine.name} was booted {len(machine.boots)} times")
    sizes = _numbers([len(event.machines) for event in played.events])
    by = "each approved once, by its first machine" if played.agents else "approved by the operator"
    return f"{len(played.events)} events of {sizes} machines, {by}; every machine was restarted"


def _judge_failures(played: Round) -> str:
    told = f"{len(played.failures)} of {played.requests} requests failed ({played.share:.2%})"
    if played.agents and played.failures:
        first = played.failures[0]
        raise DemoFailed(f"{told}; the first after {first.at:.1f} s, {first.kind}: {first.how}")
    if not played.agents and played.share <= TELLING_SHARE:
        raise DemoFailed(f"{told} without agents: that compares with nothing")
    return told


def _numbers(numbers: Sequence[int]) -> str:
    return "/".join(str(number) for number in sorted(set(numbers)))
