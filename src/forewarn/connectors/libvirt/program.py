"""The program: it looks, decides and does, until one machine's part of a task is over.

It reads an order on standard input, and its last line of output is JSON.

Exit status 0 says that it is done, or that the last line answers; FAILED that it is not done, and
the line says why; UNKNOWN that the result is unknown. Any other is a crash: another run goes on
from there.
"""

import json
import os
import select
import signal
import sys
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from forewarn.connectors.libvirt import decide, facts
from forewarn.connectors.libvirt.decide import ENDS, LOOK_AGAIN_SECONDS, LOOKS, Do, Past, Step
from forewarn.connectors.libvirt.facts import HostSight, Order

if TYPE_CHECKING:  # only `run` needs libvirt itself
    from forewarn.connectors.libvirt.hypervisor import Hypervisors

FAILED: Final = 10
UNKNOWN: Final = 11

NO_LIBVIRT: Final = 12
"""The exit status of a Python without the module `libvirt`."""

CRASHED: Final = 1
"""The exit status after an exception, as Python's own; its traceback is on standard error."""

ABORT_EVERY_SECONDS: Final = 2.0
"""The pause between two requests to end a migration once the time is over."""

CONFIRM_SECONDS: Final = 0.2
"""The delay of a second look before an end is final: the hosts are not looked at in one instant,
and a machine that moves meanwhile is on none of them, or on two."""

CHECK_SECONDS: Final = 30.0
"""The longest wait of a check for a job: with two slow looks, less than the service's limit."""


class HostsOfMachine(Protocol):
    """All hosts."""

    def look(self, order: Order, only: str = "") -> tuple[HostSight, ...]:
        """Return each host's copy of the order's machine, or that of `only` one."""

    def do(self, order: Order, step: Step) -> tuple[int, str] | None:
        """Do a step; return the code and the text of a refusal."""


class Timer(Protocol):
    """The time of one run."""

    @property
    def stopping(self) -> bool:
        """True if its time is over: the machine is to be left running."""

    def now(self) -> float:
        """Return the time in seconds; only differences mean anything."""

    def wait(self, seconds: float) -> None:
        """Wait; for a shorter time where the time limit passes meanwhile."""


class End(NamedTuple):
    """The end of a run."""

    do: Do
    message: str
    host: str
    """The machine's host now; "" where that is unknown."""


def carry_out(order: Order, hosts: HostsOfMachine, timer: Timer) -> End:
    """Carry one machine's part out, from wherever an earlier run has left it."""
    past, ending = Past(), None
    while True:
        sights = _looked(order, hosts, past)
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


def _looked(order: Order, hosts: HostsOfMachine, past: Past) -> tuple[HostSight, ...]:
    """Look at all hosts; at the machine's alone while it is paused and must not wait for others."""
    if past.paused_on:
        sights = hosts.look(order, past.paused_on)
        if any(sight.domain is not None for sight in sights):
            return sights
    return hosts.look(order)


def check_done(order: Order, hosts: HostsOfMachine, timer: Timer) -> End:
    """Find out by looks alone if it was done: DONE, FAIL for not done, or UNKNOWN."""
    until, ending = timer.now() + CHECK_SECONDS, None
    while True:
        sights = hosts.look(order)
        step = decide.verdict(order, sights)
        late = step.do not in ENDS and timer.now() >= until
        if late or (step.do in ENDS and step.do is ending):
            return End(Do.UNKNOWN if late else step.do, step.message, decide.place(sights))
        timer.wait(CONFIRM_SECONDS if step.do in ENDS else step.seconds)
        ending = step.do


class _ProcessTimer:
    """The time of this process; SIGTERM says that it is over."""

    def __init__(self, over: threading.Event) -> None:
        self._over = over
        self._reader = select.poll()
        self._reader.register(sys.stdout.fileno(), 0)

    @property
    def stopping(self) -> bool:
        if self._reader.poll(0):
            # The reader of the result is gone, and another run may go on in its place.
            os._exit(UNKNOWN)
        return self._over.is_set()

    def now(self) -> float:
        return time.monotonic()  # noqa: TID251 - a process of its own, without the package's clock

    def wait(self, seconds: float) -> None:
        if self._over.is_set():  # for good: wait all the same, but not long
            threading.Event().wait(min(seconds, LOOK_AGAIN_SECONDS))
        else:
            self._over.wait(seconds)


def run(verb: str, text: str) -> int:
    """Run a verb with an order, or with the settings; return the exit status."""
    from forewarn.connectors.libvirt.hypervisor import Hypervisors  # noqa: PLC0415 - here only

    told = json.loads(text)
    if verb == "survey":
        say(Hypervisors(facts.hosts_of(told)).survey())
        return 0
    order = facts.order_of(told)
    over = threading.Event()
    if told["stopping"]:
        over.set()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    hosts = Hypervisors(order.hosts)
    end = _work(order, hosts, over, check=verb == "check")
    if end is None:
        return CRASHED
    if verb == "check" and end.do is Do.FAIL:
        say({"done": False})
        return 0
    say({"hosts": {order.machine: end.host} if end.host else {}, "message": end.message})
    return {Do.DONE: 0, Do.UNKNOWN: UNKNOWN}.get(end.do, FAILED)


def _work(order: Order, hosts: "Hypervisors", over: threading.Event, *, check: bool) -> End | None:
    """Work on a thread, for only the first one receives signals; return None after an exception."""
    ends: list[End] = []
    timer = _ProcessTimer(over)
    verb = check_done if check else carry_out
    worker = threading.Thread(target=lambda: ends.append(verb(order, hosts, timer)), daemon=True)
    worker.start()
    while worker.is_alive():
        worker.join(ABORT_EVERY_SECONDS)
        if over.is_set():
            threading.Thread(target=hosts.abort, args=(order,), daemon=True).start()
    return ends[0] if ends else None


def end_group() -> None:
    """End the processes of this program's connections: an ssh to a host that hangs never ends."""
    if os.getpgrp() == os.getpid():  # otherwise the group is the caller's
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.killpg(0, signal.SIGTERM)


def say(line: object) -> None:
    """Print a JSON line."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
