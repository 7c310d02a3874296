"""Keeps the fleet in step with its hosts: surveys each every few seconds, and records changes.

`maintenance.host_observations` compares the surveys and decides; the plane records. Each host has
rounds of its own, so that a slow one delays no other. The consequences of surveys are recorded one
host after another. All of it lives on the event loop's thread.
"""

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable
from datetime import timedelta
from typing import Final

import structlog

from forewarn.clock import Clock
from forewarn.connectors.port import DomainSurveys, Unanswered
from forewarn.control.plane import Plane
from forewarn.control.ticker import Contained
from forewarn.maintenance import host_observations, planner
from forewarn.maintenance.alerts import Alert
from forewarn.maintenance.host_observations import (
    FleetState,
    Recorded,
    RecordHost,
    Remark,
    Survey,
)
from forewarn.maintenance.model import Changes, Drain, HostState, Machine, Operation, Refused, key
from forewarn.store.port import StoreError
from forewarn.vocabulary import EventSource, EventStatus, EventType

SURVEY_EVERY: Final = timedelta(seconds=5)
"""The pause of a host between two surveys: a crash or a move is noticed within 10 s."""

REST: Final = timedelta(seconds=1)
"""The shortest pause: strangers on its network cannot trigger surveys more often."""

BY: Final = "fleet sync"
"""The requester of an unforeseen Reboot, in the history."""

DESCRIPTION: Final = "Virtual machine has encountered a failure."
"""The description of a crash for guests (protocol.md section 4)."""

AT_WORK: Final = frozenset({EventStatus.STARTED, EventStatus.RETURNING})

_log = structlog.get_logger(__name__)


class _Due:
    """The calls for another survey of a host, also while one is under way."""

    def __init__(self) -> None:
        self.at_once = asyncio.Event()
        self.soon = asyncio.Event()
        """Set by each call: the survey waits for REST, unless `at_once` is set too."""

    def set(self) -> None:
        """Call for a survey at once."""
        self.at_once.set()
        self.soon.set()


class FleetSync(Contained):
    """Watches the hosts of the fleet, in the machine's time, `real`."""

    def __init__(self, plane: Plane, clock: Clock, real: Clock, surveys: DomainSurveys) -> None:
        super().__init__("fleet sync", real, clock)
        self._plane = plane
        self._surveys = surveys
        self._observed = host_observations.Observations(surveys.hosts, clock.now())
        self._machines: dict[str, Machine] = {}
        """By vm_id."""
        self._vm_ids: dict[str, str] = {}
        """By key."""
        self._work: dict[str, tuple[str, ...]] = {}
        """The keys of the machines of each operation that is being carried out, or just was."""
        self._busy: Counter[str] = Counter()
        self._rebooting: set[str] = set()
        self._fleet = FleetState(self._machines, self._busy.keys(), self._rebooting)
        self._due = {host: _Due() for host in surveys.hosts}
        self._recording = asyncio.Lock()

    def learn(self, changes: Changes) -> None:
        """Follow changes."""
        if not self._due:  # nothing is kept then: a fleet may be large
            return
        for name in changes.removed_machines:
            self._machines.pop(self._vm_ids.pop(name, ""), None)
        self._put_machines(changes.machines)
        self._put_operations(changes.operations)
        self._put_drains(changes.drains)

    def alerts(self) -> list[Alert]:
        """Return the alerts."""
        return [*super().alerts(), *self._observed.alerts(self._fleet, self._time.now())]

    def survey_soon(self, host: str) -> None:
        """Survey a host within REST: its relay got a request from an unknown address.

        Somebody may have moved a machine there by hand, and its guest waits for the answer.
        """
        if host in self._due:
            self._due[host].soon.set()

    def stop(self) -> None:
        """Make `run` return."""
        self._stop.set()
        for due in self._due.values():
            due.set()

    async def run(self) -> None:
        """Watch every host until `stop`."""
        try:
            async with asyncio.TaskGroup() as group:
                for host in self._due:
                    group.create_task(self._follow(host))
                await self._stop.wait()
                await self._surveys.close()  # one may wait for a host that hangs
        finally:
            await self._surveys.close()

    async def _follow(self, host: str) -> None:
        due = self._due[host]
        while not self._stop.is_set():
            due.at_once.clear()
            due.soon.clear()
            with self._contained(f"host {host}"):
                await self._round(host)
            if not self._stop.is_set():
                await self._clock.wait(REST.total_seconds(), due.at_once)
                await self._clock.wait((SURVEY_EVERY - REST).total_seconds(), due.soon)

    async def _round(self, host: str) -> None:
        """Survey a host, and record what follows."""
        number = self._observed.begin()
        try:
            domains = await self._surveys.survey(host, self._observed.unknown(host, self._fleet))
        except Unanswered as error:
            is_new = self._observed.lost(host, str(error), self._time.now())
            if is_new and not self._stop.is_set():
                _log.warning("a host is lost", host=host, why=str(error))
            return
        async with self._recording:
            now = self._time.now()
            for action in self._observed.surveyed(host, number, domains, self._fleet, now):
                match action:
                    case Survey():
                        for each in [action.host] if action.host else self._due:
                            self._due[each].set()
                    case Remark():
                        _log.info(action.message, host=action.host, names=action.names)
                    case _:
                        with self._contained(action.machine.name):
                            await self._carry_out(action)

    def _put_machines(self, machines: Collection[Machine]) -> None:
        for machine in machines:  # all of them first: two may have swapped their ids
            self._machines.pop(self._vm_ids.get(machine.key, ""), None)
        for machine in machines:
            self._vm_ids[machine.key] = machine.vm_id
            self._machines[machine.vm_id] = machine

    def _put_operations(self, operations: Iterable[Operation]) -> None:
        for operation in operations:
            before = self._work.pop(operation.id, ())
            for name in before:
                self._busy[name] -= 1
                if not self._busy[name]:
                    del self._busy[name]
            if operation.status in AT_WORK:
                self._work[operation.id] = names = tuple(map(key, operation.machines))
                self._busy.update(names)
            else:  # a failure from now on is a crash, if a survey has seen the machine run
                self._survey_hosts_of(before)

    def _survey_hosts_of(self, names: Iterable[str]) -> None:
        for name in names:
            machine = self._machines.get(self._vm_ids.get(name, ""))
            if machine is not None and machine.host in self._due:
                self._due[machine.host].set()

    def _put_drains(self, drains: Iterable[Drain]) -> None:
        for drain in drains:
            if drain.state is HostState.REBOOTING:
                self._rebooting.add(drain.host)
                continue
            self._rebooting.discard(drain.host)
            if drain.state is HostState.BACK and drain.host in self._due:
                self._observed.host_rebooted(drain.host, self._time.now())
                self._due[drain.host].set()

    async def _carry_out(self, action: Recorded) -> None:
        """Record the result of a survey; the next survey finds again what the store cannot take."""
        known = self._machines.get(action.machine.vm_id)
        if known is None or known.key != action.machine.key:
            return  # renamed or replaced while others were recorded: the next survey decides
        try:
            await self._record(action)
        except Refused as refused:
            _log.error("a change of a host was refused", reason=refused.message)
        except StoreError as error:
            _log.warning("cannot record a change of a host", why=error)
            return
        self._observed.recorded(action, self._time.now())

    async def _record(self, action: Recorded) -> None:
        machine, host = action.machine, action.host
        if isinstance(action, RecordHost):
            await asyncio.wrap_future(self._plane.record_hosts({machine.key: host}))
            _log.info("a machine has moved", machine=machine.name, host=host, was=machine.host)
            return
        _log.warning("a machine has crashed", machine=machine.name, why=action.why)
        request = planner.Request(
            event_type=EventType.REBOOT,
            machines=(machine.name,),
            source=EventSource.PLATFORM,
            description=DESCRIPTION,
            no_notice=True,
            requested_by=BY,
        )
        await asyncio.wrap_future(self._plane.request(request))
