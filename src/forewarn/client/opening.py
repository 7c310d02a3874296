"""What both shells begin with: the terms and the time; and how trouble is told."""

import os
import socket
from collections.abc import Callable
from typing import Final, TypeAlias

from forewarn import clock
from forewarn.client import chance, discovery
from forewarn.client.answers import Failure
from forewarn.client.errors import Misuse
from forewarn.client.event import Trouble
from forewarn.client.pace import Moment, Pace
from forewarn.client.terms import Terms, Turn
from forewarn.protocol.message import Reply

LOGGER: Final = "forewarn.client"
"""The name of the client's log."""

KEEPALIVE: Final = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
"""Seconds of silence, seconds between probes, probes without an echo: a server that dies without a
word while it holds an answer is missed within half a minute, not at the end of the wait."""

OnTrouble: TypeAlias = Callable[[Trouble], None]
"""What is called once for each change of the reason why no good answer comes."""

_clock: Final = clock.SystemClock()


def moment() -> Moment:
    """Return the time by the machine's clocks."""
    return Moment(_clock.now(), _clock.monotonic())


def turn(outcome: Reply | Failure | None, *, held: bool = False) -> Turn:
    """Return what was done, with the time and a new chance."""
    return Turn(outcome, moment(), chance.draw(), held)


def terms(pace: Pace | None, given: str | None, name: str | None) -> Terms:
    """Return what is known of the server before it was asked anything.

    Args:
        pace: The client's times.
        given: The endpoint's address; None to find it.
        name: The machine's name; None where it is to be learnt.

    Raises:
        Misuse: The address, or one in the environment, is none; or the name is empty.
    """
    if name is not None and not name.strip():
        message = f"name={name!r} is no machine's name: leave it out to have it learnt"
        raise Misuse(message)
    try:
        found = discovery.find(given, os.environ, _clock.now())
    except discovery.BadAddress as error:
        raise Misuse(str(error)) from error
    return Terms(pace or Pace(), [candidate.endpoint for candidate in found], name)


def tune(connected: socket.socket) -> None:
    """Send at once, and notice a peer that dies without a word, as far as the system can."""
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE:
        if hasattr(socket, option):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def tell(trouble: Trouble, where: Terms, on_trouble: OnTrouble | None) -> None:
    """Log a word about trouble, and tell the caller."""
    import logging  # noqa: PLC0415 - most clients never meet trouble, and start sooner without

    level = logging.INFO if trouble.over else logging.WARNING
    log = logging.getLogger(LOGGER)
    log.log(level, "%s: %s (%s)", where.endpoint, trouble.message, trouble.reason)
    if on_trouble is not None:
        on_trouble(trouble)
