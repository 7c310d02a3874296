"""The program's verbs: it reads an order on standard input, and its last line of output is JSON.

Exit status 0 says that it is done, or that the last line answers; FAILED that it is not done, and
the line says why; UNKNOWN that nobody can tell. Any other is a crash: another run goes on where
that one was.
"""

import json
import os
import signal
import sys
import threading
from typing import Final

from forewarn.connectors.libvirt import carry_out, facts, hypervisor
from forewarn.connectors.libvirt.decide import LOOK_AGAIN_SECONDS, Do
from forewarn.connectors.libvirt.hypervisor import Hypervisors

FAILED: Final = 10
UNKNOWN: Final = 11

CRASHED: Final = 1
"""What an exception leaves, as Python's own; its traceback is on standard error."""

ABORT_EVERY_SECONDS: Final = 2.0
"""How often a migration is asked to end once the time is over."""


class _Timer:
    """The time of this process; SIGTERM says that it is over."""

    def __init__(self, over: threading.Event) -> None:
        self._over = over
        self._parent = os.getppid()

    @property
    def stopping(self) -> bool:
        if os.getppid() != self._parent:
            # Whoever would read the result is gone, and another run may go on in its place.
            os._exit(UNKNOWN)
        return self._over.is_set()

    def now(self) -> float:
        return hypervisor.now()

    def wait(self, seconds: float) -> None:
        if self._over.is_set():  # for good: wait all the same, but not long
            threading.Event().wait(min(seconds, LOOK_AGAIN_SECONDS))
        else:
            self._over.wait(seconds)


def run(verb: str, text: str) -> int:
    """Do what the verb says with an order, or with the settings; return the exit status."""
    told = json.loads(text)
    if verb == "survey":
        _say(Hypervisors(facts.hosts_of(told)).survey())
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
        _say({"done": False})
        return 0
    _say({"hosts": {order.machine: end.host} if end.host else {}, "message": end.message})
    return {Do.DONE: 0, Do.UNKNOWN: UNKNOWN}.get(end.do, FAILED)


def _work(
    order: facts.Order, hosts: Hypervisors, over: threading.Event, *, check: bool
) -> carry_out.End | None:
    """Work on a thread, for a signal is heard by the first one only; None after an exception."""
    ends: list[carry_out.End] = []
    timer = _Timer(over)
    verb = carry_out.check if check else carry_out.carry_out
    worker = threading.Thread(target=lambda: ends.append(verb(order, hosts, timer)), daemon=True)
    worker.start()
    while worker.is_alive():
        worker.join(ABORT_EVERY_SECONDS)
        if over.is_set():
            threading.Thread(target=hosts.abort, args=(order,), daemon=True).start()
    return ends[0] if ends else None


def _say(line: object) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
