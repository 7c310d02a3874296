"""Asking the agents of an event's other machines whether they are prepared."""

import contextlib
import http.client
import logging
import socket
import threading
import urllib.parse
from collections.abc import Callable, Sequence
from typing import Final

from forewarn import clock
from forewarn.agent import deadline, view
from forewarn.agent.messages import Ask, Cause, Heard
from forewarn.agent.settings import MACHINE_PLACE

LOGGER: Final = logging.getLogger("forewarn.agent")

ANSWER_SECONDS: Final = 2.0
"""For a peer's whole answer: who is slower is asked again a second later."""

PATH: Final = "/status"
MAX_PEERS: Final = 200
"""How many are asked at once: an update domain of the largest scale set has fewer."""


class Peers:
    """The other agents.

    Args:
        addresses: A pattern with `{machine}`, or a list.
        tell: Takes what is to be told, from any thread.
    """

    def __init__(self, addresses: str | Sequence[str], tell: Callable[[Cause], None]) -> None:
        self._addresses = addresses
        self._tell = tell

    def ask(self, told: Ask) -> None:
        """Ask each of them at once, and tell who is prepared when all answered or time is over."""
        _start(self._round, told)  # where that fails the decider asks again in a while

    def _round(self, told: Ask) -> None:
        until = clock.monotonic() + ANSWER_SECONDS
        prepared: list[str] = []
        threads = [
            _start(_ask, address, told.event_id, prepared, until)
            for address in self._of(told.machines)[:MAX_PEERS]
        ]
        for thread in threads:
            if thread is not None:
                thread.join(max(0.0, until - clock.monotonic()))
        self._tell(Heard(told.round, frozenset(list(prepared))))

    def _of(self, machines: Sequence[str]) -> list[str]:
        if isinstance(self._addresses, str):
            return [self._addresses.replace(MACHINE_PLACE, machine) for machine in machines]
        return list(self._addresses)


def _start(what: Callable[..., None], *told: object) -> threading.Thread | None:
    """Begin a thread; return None where the system gives no more of them."""
    thread = threading.Thread(target=what, args=told, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        LOGGER.warning("asking the other machines: %s", error)
        return None
    return thread


def _ask(address: str, event_id: str, prepared: list[str], until: float) -> None:
    try:
        body = _told(address, until)
    except (OSError, ValueError, http.client.HTTPException):
        return  # who does not answer, or has no address that can be, is not prepared
    name = view.agreeing(body, event_id)
    if name is not None:
        prepared.append(name)


def _told(address: str, until: float) -> bytes:
    """Return a peer's status; what is no status, or too long for one, is said to be none."""
    parts = urllib.parse.urlsplit(address)
    connection = http.client.HTTPConnection(
        parts.hostname or "", parts.port, timeout=ANSWER_SECONDS
    )
    with contextlib.closing(connection):
        connection.request("GET", parts.path.rstrip("/") + PATH)
        with contextlib.closing(_Answer(connection.sock, until)) as answer:
            answer.begin()
            body = answer.read(view.MAX_ANSWER + 1)
            return body if answer.status == 200 and len(body) <= view.MAX_ANSWER else b""


class _Answer(http.client.HTTPResponse):
    """An answer that has one time limit for all of it, and not one for each of its bytes."""

    def __init__(self, connected: socket.socket, until: float) -> None:
        super().__init__(connected, method="GET")
        self.fp.close()
        self.fp = deadline.reader(connected, until)
