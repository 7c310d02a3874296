"""Neighbours who read while others attack, and remember what is wrong with what they read."""

import json
import threading
from collections import defaultdict
from typing import Any

from guests import Guests
from networks import NEIGHBOUR, Network

EACH_SECONDS = 0.1
AT_A_TIME = 100


class Readers:
    """Machines that read their documents again and again, each of which it alone has.

    Args:
        network: Where they are.
        port: Where the service listens.
        events: The event of each by its address: its id, the machine's name, and its NotBefore.
    """

    def __init__(self, network: Network, port: int, events: dict[str, dict[str, str]]) -> None:
        self.wrong: list[str] = []
        """What no answer may be, each in a sentence."""
        self._events = events
        self._incarnations: dict[str, int] = defaultdict(int)
        self._stop = threading.Event()
        addresses = network.addresses(NEIGHBOUR, range(len(events)))
        self.guests = Guests(port, addresses, host=network.service)
        self.guests.heard = self._judge
        self._thread = threading.Thread(target=self._read)

    def __enter__(self) -> "Readers":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.guests.close()

    def _read(self) -> None:
        try:
            while not self._stop.is_set():
                self.guests.ask(AT_A_TIME, each_seconds=EACH_SECONDS)
        except BaseException as error:  # noqa: BLE001 - it is a complaint
            self.wrong.append(f"the neighbours stopped reading: {error!r}")

    def _judge(self, address: str, status: str, body: bytes) -> None:
        own = self._events[address]
        if status != "200":
            self.wrong.append(f"{own['machine']} was answered {status}: {body[:200]!r}")
            return
        document: dict[str, Any] = json.loads(body)
        incarnation = document["DocumentIncarnation"]
        if incarnation < self._incarnations[address]:
            self.wrong.append(f"the incarnation of {own['machine']} went back to {incarnation}")
        self._incarnations[address] = incarnation
        shown = [
            {
                "id": event["EventId"],
                "machine": ",".join(event["Resources"]),
                "status": event["EventStatus"],
                "not_before": event["NotBefore"],
            }
            for event in document["Events"]
        ]
        if shown != [own | {"status": "Scheduled"}]:
            self.wrong.append(f"{own['machine']} has {own}, unapproved, and read {shown}")
