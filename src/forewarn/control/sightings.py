"""What the replicas saw of machines, as one: each writes what is news, and reads what others wrote.

A machine asks one replica, and another one may decide what waits for it: whether it listens, is
back, or has an agent that says how it fares (protocol.md section 10). What a machine told this
process counts at once; what it told another one, as of that one's last beat.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final

import msgspec

from forewarn.maintenance.model import Changes, Sighting, Sightings
from forewarn.store.port import SeenMachine

SAVE_EVERY: Final = timedelta(minutes=1)
"""How often it is written that a machine asks; a machine listens for five minutes after it did."""


class SharedSightings:
    """The latest that any replica saw of each machine.

    The event loop's thread tells of requests and changes; any thread may ask.

    Args:
        own: What this process saw.
    """

    def __init__(self, own: Sightings) -> None:
        self._own = own
        self._others: dict[str, Sighting] = {}
        self._saved: dict[str, datetime] = {}
        self._news: set[str] = set()

    def __call__(self, machine: str) -> Sighting | None:
        """Return what the machine told last, by its key; None if no replica has heard of it."""
        own, other = self._own(machine), self._others.get(machine)
        if own is None or other is None:
            return own or other
        earlier, later = (own, other) if own.asked_at < other.asked_at else (other, own)
        if later.agent is None and earlier.agent is not None:
            # A request without the header takes back nothing of what the agent said.
            return msgspec.structs.replace(later, agent=earlier.agent, reason=earlier.reason)
        return later

    def saw(self, machine: str, at: datetime, *, word: bool) -> None:
        """Note that a machine asked this process, and whether its agent said something new."""
        saved = self._saved.get(machine)
        if word or saved is None or at - saved >= SAVE_EVERY:
            self._news.add(machine)

    def news(self) -> list[SeenMachine]:
        """Return what has not been written yet; it counts as written from now on."""
        found = []
        for machine in self._news:
            seen = self(machine)  # with what an agent said to another replica
            if seen is not None:
                self._saved[machine] = seen.asked_at
                found.append(SeenMachine(machine=machine, **msgspec.structs.asdict(seen)))
        self._news = set()
        return found

    def keep(self, unsaved: Iterable[SeenMachine]) -> None:
        """Take back what could not be written."""
        self._news.update(one.machine for one in unsaved)

    def learn_others(self, found: Mapping[str, SeenMachine]) -> None:
        """Take over what replicas wrote."""
        for machine, seen in found.items():
            self._others[machine] = msgspec.convert(seen, Sighting, from_attributes=True)

    def learn(self, changes: Changes) -> None:
        """Forget the machines that left the fleet."""
        for machine in changes.removed_machines:
            self._news.discard(machine)
            self._others.pop(machine, None)
            self._saved.pop(machine, None)
