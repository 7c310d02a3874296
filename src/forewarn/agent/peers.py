"""Asks the agents of an event's other machines whether they are prepared."""

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Final

from forewarn import clock
from forewarn.agent import messages, status
from forewarn.agent.settings import MACHINE_PLACE
from forewarn.client import transport
from forewarn.client.transport import RequestFailed

LOGGER: Final = logging.getLogger("forewarn.agent")

ANSWER_SECONDS: Final = 2.0
"""For a peer's whole answer: a slower one is asked again a second later."""

PATH: Final = "/status"
MAX_PEERS: Final = 200
"""How many are asked at once: an update domain of the largest scale set has fewer."""


class Peers:
    """The other agents, by a pattern with `{machine}` or a list of addresses."""

    def __init__(
        self, addresses: str | Sequence[str], tell: Callable[[messages.Input], None]
    ) -> None:
        self._addresses = addresses
        self._tell = tell

    def ask(self, output: messages.AskPeers) -> None:
        """Ask all at once; tell who is prepared when all have answered or the time is over."""
        _start(self._round, output)  # if that fails, the decider asks again later

    def _round(self, output: messages.AskPeers) -> None:
        until = clock.monotonic() + ANSWER_SECONDS
        prepared: list[str] = []
        threads = [
            _start(_ask, address, output.event_id, prepared)
            for address in self._of(output.machines)[:MAX_PEERS]
        ]
        for thread in threads:
            if thread is not None:
                thread.join(max(0.0, until - clock.monotonic()))
        self._tell(messages.PeersAnswered(output.round, frozenset(tuple(prepared))))

    def _of(self, machines: Sequence[str]) -> list[str]:
        if isinstance(self._addresses, str):
            return [self._addresses.replace(MACHINE_PLACE, machine) for machine in machines]
        return list(self._addresses)


def _start(what: Callable[..., None], *told: object) -> threading.Thread | None:
    """Start a thread; return None where the system gives no more of them."""
    thread = threading.Thread(target=what, args=told, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        LOGGER.warning("asking the other machines: %s", error)
        return None
    return thread


def _ask(address: str, event_id: str, prepared: list[str]) -> None:
    url = address.rstrip("/") + PATH
    try:
        reply = transport.request("GET", url, seconds=ANSWER_SECONDS, max_body=status.MAX_ANSWER)
    except (RequestFailed, ValueError):
        return  # a peer that does not answer, or has an impossible address, is not prepared
    name = status.agreeing(reply.body, event_id) if reply.status == 200 else None
    if name is not None:
        prepared.append(name)
