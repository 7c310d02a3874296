"""What both shells begin with: the address, the terms, the time; and how trouble is told."""

import os
import socket
from collections.abc import Callable
from typing import Final, TypeAlias

from forewarn import clock
from forewarn.client import address, chance
from forewarn.client.address import Address
from forewarn.client.answers import Failure
from forewarn.client.errors import Misuse
from forewarn.client.event import Trouble
from forewarn.client.pace import Moment
from forewarn.client.terms import Turn
from forewarn.protocol.message import Reply

LOGGER: Final = "forewarn.client"
"""The name of the client's log."""

ENDPOINT_VARIABLE: Final = "FOREWARN_ENDPOINT"
"""The environment's word on where the endpoint is."""

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


def endpoint(given: str | None) -> Address:
    """Return where the endpoint is.

    Raises:
        Misuse: What was given, or stands in the environment, is no address.
    """
    return address.parse(given or os.environ.get(ENDPOINT_VARIABLE) or address.LINK_LOCAL)


def name(given: str | None) -> str | None:
    """Return the machine's name as it was given; None where it is to be learnt.

    Raises:
        Misuse: It is empty.
    """
    if given is not None and not given.strip():
        message = f"name={given!r} is no machine's name: leave it out to have it learnt"
        raise Misuse(message)
    return given


def tune(connected: socket.socket) -> None:
    """Send at once, and notice a peer that dies without a word, as far as the system can."""
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE:
        if hasattr(socket, option):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def tell(trouble: Trouble, where: Address, on_trouble: OnTrouble | None) -> None:
    """Log a word about trouble, and tell the caller."""
    import logging  # noqa: PLC0415 - most clients never meet trouble, and start sooner without

    level = logging.INFO if trouble.over else logging.WARNING
    log = logging.getLogger(LOGGER)
    log.log(level, "%s: %s (%s)", where.url, trouble.message, trouble.reason)
    if on_trouble is not None:
        on_trouble(trouble)
