"""Neighbours who read while others attack, and a process that only notices that time passes."""

import json
import subprocess
import sys
import threading
from collections import defaultdict
from typing import Any

import machine
from guests import Guests
from networks import NEIGHBOUR, Network

EACH_SECONDS = 0.1
AT_A_TIME = 100


class Readers:
    """Machines that read their documents again and again, each of which it alone has.

    Args:
        network: Where they are.
        port: Where the service listens.
        events: The event of each by its address: its id, and the machine's name.
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
        # A NotBefore that moves is judged by the service's log: it may be the machine's fault.
        shown = [
            {
                "id": event["EventId"],
                "machine": ",".join(event["Resources"]),
                "status": event["EventStatus"],
            }
            for event in document["Events"]
        ]
        if shown != [own | {"status": "Scheduled"}]:
            self.wrong.append(f"{own['machine']} has {own}, unapproved, and read {shown}")


TICKING = """
import select, sys, time
last, stood_still = time.monotonic(), 0.0
while not select.select([sys.stdin], [], [], 0.05)[0]:
    now = time.monotonic()
    stood_still += now - last if now - last > 0.5 else 0.0
    last = now
print(stood_still)
"""


class Ticker:
    """A process on the service's core that wants twenty short turns a second, and little else.

    Where it does not get them, nobody did: the machine stood still, and not the service.
    """

    stood_still = 0.0
    """For how many seconds in all, in pieces of half a second or more; known at the end."""

    def __enter__(self) -> "Ticker":
        with machine.on_cores():
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", TICKING],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        said, _ = self._process.communicate()
        self.stood_still = float(said)
