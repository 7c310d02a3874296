"""Hosts that are drained, rebooted and refilled: what the service drives, and what its looks find.

Where machines really are is the connector's; a host comes back from a reboot when chance has it.
"""

from __future__ import annotations

import functools
import zlib
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from forewarn.connectors.port import Task
from forewarn.maintenance import host_drain
from forewarn.maintenance.host_drain import DrainOrder
from forewarn.maintenance.host_plan import HostSurvey
from forewarn.maintenance.model import Drain, GuestFacts, HostFacts, HostState, Stay
from simulation.judge import Wrong

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from forewarn.maintenance.host_drain import DrainStep, DrainView
    from simulation.town import Town

MAX_STEPS: Final = 200
"""Of a drain at one instant: ten times what any takes. More is a drain that does not rest."""

MEMORY_MIB: Final = 1024
ROOM_MIB: Final = 1024 * 1024

ENDINGS: Final = 6
"""How often operators give orders at the end before they undrain every host."""

ORDERS: Final = (
    DrainOrder.RETRY,
    DrainOrder.RETRY,
    DrainOrder.RETRY,
    DrainOrder.SKIP,
    DrainOrder.SKIP,
    DrainOrder.STOP,
    DrainOrder.RETURN,
    DrainOrder.UNDRAIN,
)


class Drains:
    """Each method is one thing that happens to hosts."""

    def __init__(self, town: Town) -> None:
        self._town = town
        self._chance = town.chance
        self._boots: Counter[str] = Counter()
        self._booting: set[str] = set()
        self._commanded: dict[str, str] = {}
        """The boot in which each host was told to reboot, until an operator has it tried again."""
        self._off: set[str] = set()
        """Machines that are shut down until their hosts have rebooted, by GUID."""
        self.waiting: dict[str, Task] = {}
        """Their operations."""

    # Operators.

    def request(self) -> None:
        """Somebody has a host drained; several are units of a maintenance."""
        chance, town = self._chance, self._town
        terms: dict[str, Any] = {
            "reboot": chance.random() < 0.7,
            "bring_home": chance.random() < 0.7,
            "stay": chance.choice([*Stay, Stay.STOP, Stay.STOP]),
            "without_notice": chance.random() < 0.7,
        }
        wanted = Drain(
            host=chance.choice(town.hosts),
            state=HostState.UP,
            requested_by=town.operators.someone(),
            requested_at=town.now,
            changed_at=town.now,
            **terms,
        )
        town.ask("drain", town.plane.drain_host, wanted, self.survey())

    def order(self) -> None:
        """Somebody says how a drain goes on; most wait until it is stuck."""
        drains = [d for d in self._town.memory.all_drains.values() if d.state is not HostState.UP]
        stuck = [d for d in drains if d.state is HostState.STUCK]
        if stuck and self._chance.random() < 0.8:
            drains = stuck
        if not drains:
            return
        drain, kind = self._chance.choice(drains), self._chance.choice(ORDERS)
        by_unit = kind is DrainOrder.RETRY and self._town.steps % 3 > 0
        if not (by_unit and self._town.maintenances.retry(drain.host)):
            self.give(drain, kind)

    def give(self, drain: Drain, kind: DrainOrder) -> bool:
        """Give an order; tell whether it was taken."""
        names = [guest.name for guest in drain.guests] or ["nobody"]
        about_one = kind in {DrainOrder.SKIP, DrainOrder.STOP}
        machine = self._chance.choice(names) if about_one else ""

        def order(view: DrainView, now: datetime) -> DrainStep:
            return host_drain.order(view, kind, now, machine)

        with self.ordering(drain.host):
            taken = self._town.ask(f"drain {kind}", self._town.plane.order_drain, drain.host, order)
        return taken is not None

    @contextmanager
    def ordering(self, host: str) -> Iterator[None]:
        """An operator's order about a host: one that changes its drain has it rebooted again.

        It counts also where the process died after it was written.
        """
        before = self._town.memory.all_drains.get(host)
        self._town.judge.ordered = host
        yield
        self._town.judge.ordered = ""
        if self._town.memory.all_drains.get(host) != before:
            self._commanded.pop(host, None)

    # The service.

    def drive(self) -> None:
        """Take the steps of a drain that follow now, as `control.host_drains` does."""
        known = self._town.memory.all_drains.values()
        going = [d.host for d in known if d.goes_on or d.rests]
        if going:
            self.drive_one(self._chance.choice(going))

    def drive_all(self) -> None:
        """Take the steps of all drains that follow now."""
        for drain in list(self._town.memory.all_drains.values()):
            if drain.goes_on:
                self.drive_one(drain.host)

    def drive_one(self, host: str) -> None:
        town, survey = self._town, None
        for _ in range(MAX_STEPS):
            stepped = town.ask("drain step", town.plane.step_drain, host, survey)
            if stepped is None:
                return  # the process died
            if stepped.reboot:
                self._reboot(host)
            if stepped.survey:
                survey = self.survey()
            elif not stepped.changed:
                return
        raise Wrong(f"the drain of {host} does not come to rest")

    def _reboot(self, host: str) -> None:
        """The host's command runs, or fails, or is lost with the process that was to run it."""
        boot, running = self.boot_id(host), self.running_on(host)
        if running:
            raise Wrong(f"{host} is rebooted, and has {', '.join(running)}")
        if self._commanded.get(host) == boot:
            raise Wrong(f"{host} is rebooted twice, and nobody said so")
        self._commanded[host] = boot
        fate = self._chance.random()
        if fate < 0.1:
            self._town.counts["reboot lost"] += 1
        elif fate < 0.2:
            town = self._town
            asked_at = town.memory.all_drains[host].reboot_asked_at
            town.ask("reboot failed", town.plane.record_failed_reboot, host, asked_at, "no power")
        else:
            self._town.counts["reboot"] += 1
            self._boots[host] += 1
            self._booting.add(host)

    # The connector.

    def hold_back(self, task: Task) -> bool:
        """Shut a machine down where that lasts as long as its host's reboot; tell whether.

        A newer attempt goes on in the place of one that waits: both look before they do anything.
        """
        if (older := self.waiting.get(task.operation)) is not None:
            self.start(older)
        if not task.host_boot_id or self._has_rebooted(task):
            return False
        self._town.counts["shut down"] += 1
        self._off.update(task.vm_ids)
        self.waiting[task.operation] = task
        return True

    def booted(self) -> list[Task]:
        """Take the tasks whose hosts have rebooted: their machines are started."""
        done = [task for task in self.waiting.values() if self._has_rebooted(task)]
        for task in done:
            self.start(task)
        return done

    def start(self, task: Task) -> None:
        """Start the machines of a task, if it had them off."""
        self.waiting.pop(task.operation, None)
        self._off.difference_update(task.vm_ids)

    def _has_rebooted(self, task: Task) -> bool:
        return self.boot_id(task.hosts[0]) != task.host_boot_id

    def boot_id(self, host: str) -> str:
        """Return the id of a host's present boot."""
        return f"{host}-{self._boots[host]}"

    def survey(self) -> HostSurvey:
        """Look at all hosts: some do not answer, have no room, or have a machine of nobody's."""
        chance, town = self._chance, self._town
        if chance.random() < 0.02:
            return HostSurvey(began_at=town.now, hosts={}, keys={}, trouble="no route")
        guests: dict[str, list[GuestFacts]] = {host: [] for host in town.hosts}
        keys: dict[str, str] = {}
        for key, machine in town.memory.all_machines.items():
            host = town.connector.place(machine)
            if not host:
                continue
            keys[machine.vm_id] = key
            guest = _guest(machine.vm_id, machine.name, machine.vm_id not in self._off)
            guests.setdefault(host, []).append(guest)
        hosts = {host: self._facts(host, there) for host, there in guests.items()}
        return HostSurvey(began_at=town.now, hosts=hosts, keys=keys)

    def _facts(self, host: str, guests: list[GuestFacts]) -> HostFacts:
        chance = self._chance
        if host in self._booting and chance.random() < 0.5:
            return HostFacts(answers=False, why="it is booting", can_reboot=True)
        self._booting.discard(host)
        fate = chance.random()
        if fate < 0.01:
            return HostFacts(answers=False, why="no route", can_reboot=True)
        if fate < 0.02:
            name = "11111111-0000-4000-8000-000000000000"
            stranger = GuestFacts(vm_id=name, name=name, running=True, memory_mib=MEMORY_MIB)
            guests = [*guests, stranger]
        return HostFacts(
            answers=True,
            boot_id=self.boot_id(host),
            free_memory_mib=0 if fate > 0.99 else ROOM_MIB,
            can_reboot=True,
            guests=tuple(guests),
        )

    def running_on(self, host: str) -> list[str]:
        """Return the fleet's machines that run on a host."""
        town = self._town
        return [
            machine.name
            for machine in town.memory.all_machines.values()
            if town.connector.place(machine) == host and machine.vm_id not in self._off
        ]

    # The end.

    def settle(self) -> None:
        """Every drain has ended, rests, or says why it is stuck; operators end those.

        Raises:
            Wrong: A drain neither ends nor says why.
        """
        town = self._town
        for _ in range(ENDINGS):
            drains = [d for d in town.memory.all_drains.values() if d.state is not HostState.UP]
            if not drains:
                return
            listed = {item.about for item in town.items()}
            if going := self.under_way():
                raise Wrong(f"the drain of {going[0].host} never rests: {going[0].reason!r}")
            for drain in drains:
                if drain.state is HostState.STUCK and f"host {drain.host}" not in listed:
                    raise Wrong(f"the drain of {drain.host} is stuck, and nobody is told")
            for drain in drains:
                self.give(drain, self._chance.choice(ORDERS))
            town.carry_on()
        for drain in town.memory.all_drains.values():
            if drain.state is not HostState.UP and not self.give(drain, DrainOrder.UNDRAIN):
                raise Wrong(f"{drain.host} is {drain.state}, and cannot be undrained")
        town.carry_on()

    def under_way(self) -> list[Drain]:
        """Return the drains that go on without an operator."""
        return [drain for drain in self._town.memory.all_drains.values() if drain.goes_on]


@functools.lru_cache(maxsize=4096)
def _guest(vm_id: str, name: str, running: bool) -> GuestFacts:
    """Return what its host says of a machine; one in four cannot be moved."""
    tied = zlib.crc32(name.lower().encode()) % 4 == 0
    return GuestFacts(
        vm_id=vm_id,
        name=name,
        running=running,
        memory_mib=MEMORY_MIB,
        obstacles=("a device",) if tied else (),
    )
