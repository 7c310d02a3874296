"""Asking the agents of an event's other machines whether they are prepared."""

import http.client
import threading
import urllib.parse
from collections.abc import Callable, Sequence
from typing import Final

from forewarn import clock
from forewarn.agent import view
from forewarn.agent.messages import Ask, Cause, Heard
from forewarn.agent.settings import MACHINE_PLACE

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
        threading.Thread(target=self._round, args=(told,), daemon=True).start()

    def _round(self, told: Ask) -> None:
        addresses = self._of(told.machines)
        prepared: list[str] = []
        threads = [
            threading.Thread(target=_ask, args=(address, told.event_id, prepared), daemon=True)
            for address in addresses[:MAX_PEERS]
        ]
        for thread in threads:
            thread.start()
        until = clock.monotonic() + ANSWER_SECONDS
        for thread in threads:
            thread.join(max(0.0, until - clock.monotonic()))
        self._tell(Heard(told.round, frozenset(list(prepared))))

    def _of(self, machines: Sequence[str]) -> list[str]:
        if isinstance(self._addresses, str):
            return [self._addresses.replace(MACHINE_PLACE, machine) for machine in machines]
        return list(self._addresses)


def _ask(address: str, event_id: str, prepared: list[str]) -> None:
    parts = urllib.parse.urlsplit(address)
    connection = http.client.HTTPConnection(
        parts.hostname or "", parts.port, timeout=ANSWER_SECONDS
    )
    try:
        connection.request("GET", parts.path.rstrip("/") + PATH)
        answer = connection.getresponse()
        body = answer.read(view.MAX_ANSWER + 1)
    except (OSError, http.client.HTTPException):
        return  # who does not answer is not prepared
    finally:
        connection.close()
    if answer.status != 200 or len(body) > view.MAX_ANSWER:
        return
    name = view.agreeing(body, event_id)
    if name is not None:
        prepared.append(name)
