"""Look, decide, do, until it is over: one machine's part of a task."""

from dataclasses import replace
from typing import Final, NamedTuple, Protocol

from forewarn.connectors.libvirt import decide
from forewarn.connectors.libvirt.decide import ENDS, LOOKS, Do, Past, Step
from forewarn.connectors.libvirt.facts import HostSight, Order

CONFIRM_SECONDS: Final = 0.2
"""How long after an end was decided it is looked at once more: the hosts are not looked at in one
instant, and a machine that moves meanwhile is on none of them, or on two."""

CHECK_SECONDS: Final = 30.0
"""How long a check waits for a job: with two slow looks, less than what the service gives it."""


class HostsOfMachine(Protocol):
    """All hosts."""

    def look(self, order: Order) -> tuple[HostSight, ...]:
        """Return what each host has of the order's machine."""

    def do(self, order: Order, step: Step) -> tuple[int, str] | None:
        """Do a step; return the code and the text of a refusal."""


class Timer(Protocol):
    """The time of one run."""

    @property
    def stopping(self) -> bool:
        """Whether its time is over: the machine is to be left running."""

    def now(self) -> float:
        """Return the time in seconds; only differences mean anything."""

    def wait(self, seconds: float) -> None:
        """Let time pass; shorter where the time is over meanwhile."""


class End(NamedTuple):
    """How a run ended."""

    do: Do
    """DONE, FAIL, UNKNOWN or FENCED."""
    message: str
    host: str
    """Where the machine is now; "" where that is unknown."""


def carry_out(order: Order, hosts: HostsOfMachine, timer: Timer) -> End:
    """Carry one machine's part out, from wherever an earlier run has left it."""
    past, ending = Past(), None
    while True:
        sights = hosts.look(order)
        past = replace(past, now=timer.now(), stopping=timer.stopping)
        step = decide.decide(order, sights, past)
        if step.do in ENDS:
            if step.do is ending:
                return End(step.do, step.message, decide.place(sights))
            timer.wait(CONFIRM_SECONDS)
        elif step.do in LOOKS:
            past = decide.after(past, step, order)
            timer.wait(step.seconds)
        else:
            refused = hosts.do(order, step)
            past = replace(past, now=timer.now())
            if refused is None:
                past = decide.after(past, step, order)
            else:
                past = decide.refused(past, step, *refused)
        ending = step.do


def check(order: Order, hosts: HostsOfMachine, timer: Timer) -> End:
    """Tell by looks alone whether it was done: DONE, FAIL for not done, or UNKNOWN."""
    until, ending = timer.now() + CHECK_SECONDS, None
    while True:
        sights = hosts.look(order)
        step = decide.verdict(order, sights)
        late = step.do not in ENDS and timer.now() >= until
        if late or (step.do in ENDS and step.do is ending):
            return End(Do.UNKNOWN if late else step.do, step.message, decide.place(sights))
        timer.wait(CONFIRM_SECONDS if step.do in ENDS else step.seconds)
        ending = step.do
