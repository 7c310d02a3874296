"""A connector that touches nothing: a task lasts as long as the settings say, and succeeds.

Its hosts are those of the fleet's machines. Every machine runs and can be moved; one that moves
goes where the task says, or to the host with the fewest machines.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import msgspec

from forewarn.clock import Clock
from forewarn.connectors.port import AsItIs, Connector, Found, Outcome, Task, unchanged
from forewarn.maintenance.model import GuestFacts, HostFacts, Machine
from forewarn.vocabulary import EventType

DURATIONS: Mapping[EventType, timedelta] = {
    EventType.FREEZE: timedelta(seconds=9),
    EventType.REBOOT: timedelta(seconds=90),
    EventType.REDEPLOY: timedelta(minutes=3),
    EventType.PREEMPT: timedelta(seconds=30),
    EventType.TERMINATE: timedelta(seconds=30),
}
"""The default duration of a task of each type: about that of a real one."""

HOST_REBOOT: Final = timedelta(minutes=3)
"""The default duration of a host's reboot: servers test their memory first."""

MEMORY_MIB: Final = 1024

HOST_MEMORY_MIB: Final = 1024 * 1024
"""The memory of every host: enough for any fleet."""

BATCH: Final = 1000
"""A survey lets the event loop go on after this many machines, and after a tenth as many hosts:
100,000 machines take 50 ms."""

LOOK_EVERY: Final = 1.0
"""Seconds between two looks at whether a host has rebooted."""


class _Reboots(msgspec.Struct, frozen=True):
    """A host's number of reboots, and the end of the latest one."""

    reboots: int = 0
    up_at: datetime | None = None


@dataclass(eq=False, repr=False)
class SimulatedConnector(Connector):
    """Waits out a task's duration from its start: DURATIONS for the types that are left out.

    It keeps nothing of tasks: the progress of one follows from its start, so a restart goes on
    where the process before would be. It keeps the names of hosts, and the times of their reboots.
    """

    clock: Clock
    durations: Mapping[EventType, timedelta]
    """The durations of tasks that differ from DURATIONS."""
    machines: Callable[[], Iterable[Machine]] = tuple
    file: Path | None = None
    """Remembers the hosts; None to forget them at a restart."""
    host_reboot: timedelta = HOST_REBOOT
    _hosts: dict[str, _Reboots] = field(default_factory=dict)
    _saving: asyncio.Lock = field(default_factory=asyncio.Lock)
    _off: set[str] = field(default_factory=set)
    """The GUIDs of machines that are shut down until their hosts have rebooted."""

    def __post_init__(self) -> None:
        """Read the file: nothing where a power cut has left it empty."""
        if self.file is not None:
            with suppress(FileNotFoundError, msgspec.DecodeError):
                self._hosts = msgspec.json.decode(self.file.read_bytes(), type=dict[str, _Reboots])

    async def perform(self, task: Task, as_it_is: AsItIs = unchanged) -> Outcome:
        """Return when the task's duration since its start is over."""
        del as_it_is  # it waits for no turn
        self._off.update(task.vm_ids if task.host_boot_id else ())
        try:
            while (left := self._left(task)) > timedelta(0) or self._awaits_boot(task):
                seconds = max(left.total_seconds(), LOOK_EVERY)
                await self.clock.wait(seconds)
        finally:
            self._off.difference_update(task.vm_ids)
        return self._done(task)

    async def check(self, task: Task) -> Outcome | Found:
        """Return that it is done if its duration is over."""
        over = self._left(task) <= timedelta(0) and not self._awaits_boot(task)
        return self._done(task) if over else Found.NOT_DONE

    async def survey(self) -> dict[str, HostFacts]:
        """Return every host that a machine of the fleet is or was on."""
        guests: dict[str, list[GuestFacts]] = {host: [] for host in self._hosts}
        for number, machine in enumerate(tuple(self.machines()), 1):
            if number % BATCH == 0:
                await asyncio.sleep(0)
            if machine.host:
                guest = GuestFacts(
                    vm_id=machine.vm_id,
                    name=machine.name,
                    running=machine.vm_id not in self._off,
                    memory_mib=MEMORY_MIB,
                )
                guests.setdefault(machine.host, []).append(guest)
        if new := guests.keys() - self._hosts.keys():
            await self._keep({host: _Reboots() for host in new})
        facts: dict[str, HostFacts] = {}
        for number, (host, there) in enumerate(sorted(guests.items()), 1):
            if number % (BATCH // 10) == 0:
                await asyncio.sleep(0)
            facts[host] = self._facts(host, there)
        return facts

    async def reboot_host(self, host: str) -> Outcome:
        """Make the host unreachable for the duration of its reboot."""
        up_at = self.clock.now() + self.host_reboot
        await self._keep({host: _Reboots(self._host(host).reboots + 1, up_at)})
        return Outcome(succeeded=True)

    async def _keep(self, hosts: dict[str, _Reboots]) -> None:
        self._hosts |= hosts
        if self.file is not None:
            async with self._saving:  # hosts may reboot at the same time
                await asyncio.to_thread(_replace, self.file, msgspec.json.encode(self._hosts))

    def _facts(self, host: str, guests: list[GuestFacts]) -> HostFacts:
        if self._is_away(host):
            return HostFacts(answers=False, why="it is booting", can_reboot=True)
        used = sum(guest.memory_mib for guest in guests if guest.running)
        return HostFacts(
            answers=True,
            boot_id=self._boot_id(host),
            free_memory_mib=max(0, HOST_MEMORY_MIB - used),
            can_reboot=True,
            guests=tuple(guests),
        )

    def _host(self, host: str) -> _Reboots:
        return self._hosts.get(host, _Reboots())

    def _is_away(self, host: str) -> bool:
        up_at = self._host(host).up_at
        return up_at is not None and up_at > self.clock.now()

    def _boot_id(self, host: str) -> str:
        return f"{host}-{self._host(host).reboots}"

    def _awaits_boot(self, task: Task) -> bool:
        return bool(task.host_boot_id) and any(
            self._is_away(host) or self._boot_id(host) == task.host_boot_id for host in task.hosts
        )

    def _done(self, task: Task) -> Outcome:
        if not (task.live_migration or task.event_type is EventType.REDEPLOY):
            return Outcome(succeeded=True)
        if task.to_host:
            return Outcome(succeeded=True, hosts=dict.fromkeys(task.machines, task.to_host))
        there = Counter(machine.host for machine in self.machines() if machine.host)
        known = {*there, *self._hosts}.difference(task.closed_hosts)
        hosts: dict[str, str] = {}
        for name, host in zip(task.machines, task.hosts, strict=True):
            if choice := known - {host}:
                hosts[name] = min(choice, key=lambda h: (there[h], h))
                there[hosts[name]] += 1
        return Outcome(succeeded=True, hosts=hosts)

    def _left(self, task: Task) -> timedelta:
        kind = task.event_type
        return task.started_at + self.durations.get(kind, DURATIONS[kind]) - self.clock.now()


def _replace(file: Path, content: bytes) -> None:
    """Write a file so that a kill leaves the old content or the new."""
    unfinished = file.with_name(f".{file.name}.unfinished")
    unfinished.write_bytes(content)
    unfinished.replace(file)
