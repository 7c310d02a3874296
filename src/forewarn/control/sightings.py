"""What the replicas saw of machines, as one: each writes what is news, and reads what others wrote.

A machine asks one replica, and another one may decide what waits for it: whether it listens, is
back, or has an agent that says how it fares (protocol.md section 10). What a machine told this
process counts at once; what it told another one, as of that one's last beat.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from itertools import islice
from typing import Final

import msgspec

from forewarn.maintenance.model import Changes, Sighting, Sightings
from forewarn.store.port import SeenMachine

BEATS: Final = 30
"""In so many beats, a minute, every machine that went on asking is written again: five minutes
after it asked last, a machine does not listen any more."""


class SharedSightings:
    """The latest that any replica saw of each machine.

    The event loop's thread tells of requests and changes; any thread may ask.

    Args:
        own: What this process saw.
        beats: In how many calls of `news` each machine has its turn.
    """

    def __init__(self, own: Sightings, beats: int = BEATS) -> None:
        self._own = own
        self._beats = beats
        self._others: dict[str, Sighting] = {}
        self._relayed: dict[str, Sighting] = {}
        """What relays told this process."""
        self._saved: dict[str, datetime] = {}
        self._news: set[str] = set()
        self._due: Iterator[str] = iter(())
        """The machines that have not had their turn in this minute."""

    def __call__(self, machine: str) -> Sighting | None:
        """Return what the machine told last, by its key; None if no replica has heard of it."""
        return _latest(self._here(machine), self._others.get(machine))

    def _here(self, machine: str) -> Sighting | None:
        return _latest(self._own(machine), self._relayed.get(machine))

    def relay(self, machine: str, seen: Sighting) -> None:
        """Note what a machine's requests told the relay of its host."""
        before = self._relayed.get(machine)
        after = self._relayed[machine] = _latest(before, seen) or seen
        if before is None or (before.agent, before.reason) != (after.agent, after.reason):
            self._news.add(machine)

    def hear(self, machine: str) -> None:
        """Note that a machine asked this process for the first time, or its agent said news."""
        self._news.add(machine)

    def news(self) -> list[SeenMachine]:
        """Return what is to be written at this beat; it counts as written from now on."""
        taken, self._news = self._news, set()
        taken.update(self._asked_since())
        found = []
        for machine in taken:
            seen = self(machine)  # with what an agent said to another replica
            if seen is not None:
                self._saved[machine] = seen.asked_at
                found.append(SeenMachine(machine=machine, **msgspec.structs.asdict(seen)))
        return found

    def _asked_since(self) -> Iterator[str]:
        """Yield those that asked since they were written, of the machines whose turn it is."""
        turns = [*islice(self._due, len(self._saved) // self._beats + 1)]
        if not turns:
            self._due = iter([*self._saved])
        for machine in turns:
            own = self._here(machine)
            if own is not None and own.asked_at > self._saved.get(machine, own.asked_at):
                yield machine

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
            self._relayed.pop(machine, None)
            self._saved.pop(machine, None)


def _latest(one: Sighting | None, other: Sighting | None) -> Sighting | None:
    if one is None or other is None:
        return one or other
    earlier, later = (one, other) if one.asked_at < other.asked_at else (other, one)
    if later.agent is None and earlier.agent is not None:
        # A request without the header takes back nothing of what the agent said.
        return msgspec.structs.replace(later, agent=earlier.agent, reason=earlier.reason)
    return later
