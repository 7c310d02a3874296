"""Keeps the fleet in step with its libvirt hosts: a supervised program for each host.

The program (`connectors.libvirt_domains`) holds one connection and speaks JSON lines, so the
service never loads the C library, and a call that hangs is a process that is killed. Its death is a
lost host, never the service's: it is started again with growing pauses, and lists all domains
again, since events are lost meanwhile. What its lines mean is decided by `maintenance.observations`
and done here, one line after another. All of it lives on the event loop's thread.
"""

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Final

import msgspec
import structlog

from forewarn.clock import Clock
from forewarn.control.plane import Plane
from forewarn.control.ticker import Rounds
from forewarn.maintenance import host_observations, planner
from forewarn.maintenance.alerts import Alert
from forewarn.maintenance.fleet_import import Domain
from forewarn.maintenance.host_observations import (
    Action,
    FleetState,
    LookEverywhere,
    RaiseUnforeseen,
    RecordHost,
)
from forewarn.maintenance.model import Changes, Drain, HostState, Machine, Operation, Refused, key
from forewarn.store.port import StoreError
from forewarn.vocabulary import EventSource, EventStatus, EventType

SILENT_SECONDS: Final = 30.0
"""How long a program may say nothing: it says that it lives every 5 s. To open a connection may
take as long too."""

END_SECONDS: Final = 1.0
"""How long a program may take to end when its standard input has: a call may hang."""

PAUSES: Final = (1.0, 60.0)
"""The first pause before a program is started again, and the longest; each is twice the last."""

LOOK_EVERY: Final = timedelta(seconds=1)
"""How often it is looked what time alone makes of what was observed."""

MAX_LINE: Final = 16 * 1024 * 1024
"""The most bytes of a line: a list of 100,000 domains."""

BY: Final = "fleet sync"
"""Who asked for an unforeseen Reboot, in the history."""

DESCRIPTION: Final = "Virtual machine has encountered a failure."
"""What guests read of a crash (protocol.md section 4)."""

AT_WORK: Final = frozenset({EventStatus.STARTED, EventStatus.RETURNING})

_log = structlog.get_logger(__name__)


class _Line(msgspec.Struct, frozen=True):
    """What a program says."""

    domains: tuple[Domain, ...] | None = None
    domain: Domain | None = None
    event: str = ""
    detail: str = ""
    error: str = ""


class _Heard(msgspec.Struct):
    """When a program last said something, by the machine's monotonic time."""

    at: float
    taking: bool = False
    """Whether what it said is being recorded: the store may take long, and that is no silence."""


class FleetSync(Rounds):
    """Watches the hosts of the fleet.

    `programs` are those of each host with their arguments, by the name that the fleet has for it.
    They live in the machine's time, `real`.
    """

    def __init__(
        self,
        plane: Plane,
        clock: Clock,
        real: Clock,
        programs: Mapping[str, tuple[str, ...]],
        environment: Mapping[str, str],
    ) -> None:
        super().__init__("fleet sync", real, clock)
        self._plane = plane
        self._programs = programs
        self._environment = environment
        self._observed = host_observations.Observations(programs, clock.now())
        self._machines: dict[str, Machine] = {}
        """By vm_id."""
        self._vm_ids: dict[str, str] = {}
        """By key."""
        self._work: dict[str, tuple[str, ...]] = {}
        """The keys of the machines of each operation that is being carried out, or just was."""
        self._busy: Counter[str] = Counter()
        self._rebooting: set[str] = set()
        self._fleet = FleetState(self._machines, self._busy.keys(), self._rebooting)
        self._running: dict[str, Process] = {}
        self._again = {host: asyncio.Event() for host in programs}
        """Set where a host that was lost is to be tried again at once."""
        self._turn = asyncio.Lock()

    def learn(self, changes: Changes) -> None:
        """Follow what changed."""
        if not self._programs:  # nothing is kept then: a fleet may be large
            return
        for name in changes.removed_machines:
            self._machines.pop(self._vm_ids.pop(name, ""), None)
        self._put_machines(changes.machines)
        self._put_operations(changes.operations)
        self._put_drains(changes.drains)

    def alerts(self) -> list[Alert]:
        """Return what needs an operator."""
        return [*super().alerts(), *self._observed.alerts(self._fleet, self._time.now())]

    def stop(self) -> None:
        """Make `run` end its programs and return."""
        super().stop()
        for again in self._again.values():
            again.set()

    async def run(self) -> None:
        """Watch every host until `stop`."""
        if not self._programs:
            await self._stop.wait()
            return
        async with asyncio.TaskGroup() as group:
            for host, argv in self._programs.items():
                group.create_task(self._follow(host, argv))
            group.create_task(super().run())

    def _put_machines(self, machines: Iterable[Machine]) -> None:
        for machine in machines:
            before = self._vm_ids.get(machine.key)
            if before is not None and before != machine.vm_id:
                self._machines.pop(before, None)
            self._vm_ids[machine.key] = machine.vm_id
            self._machines[machine.vm_id] = machine

    def _put_operations(self, operations: Iterable[Operation]) -> None:
        for operation in operations:
            for name in self._work.pop(operation.id, ()):
                self._busy[name] -= 1
                if not self._busy[name]:
                    del self._busy[name]
            if operation.status in AT_WORK:
                self._work[operation.id] = names = tuple(map(key, operation.machines))
                self._busy.update(names)

    def _put_drains(self, drains: Iterable[Drain]) -> None:
        for drain in drains:
            if drain.state is HostState.REBOOTING:
                self._rebooting.add(drain.host)
                continue
            self._rebooting.discard(drain.host)
            if drain.state is HostState.BACK and drain.host in self._again:
                self._observed.host_rebooted(drain.host, self._time.now())
                self._again[drain.host].set()

    async def _round(self) -> timedelta:
        """Let time pass for what was observed."""
        async with self._turn:
            await self._do(self._observed.time_passed(self._fleet, self._time.now()))
        return LOOK_EVERY

    async def _follow(self, host: str, argv: tuple[str, ...]) -> None:
        """Run a host's program again and again."""
        first, longest = PAUSES
        pause = first
        while not self._stop.is_set():
            began = self._clock.monotonic()
            try:
                why = await self._watch(host, argv)
            except Exception as error:  # noqa: BLE001 - one host's trouble is not the service's
                _log.exception("could not follow a host", host=host)
                why = f"an internal error: {error}"
            if self._stop.is_set():
                return
            if self._observed.host_lost(host, why, self._time.now()):
                _log.warning("a host is lost", host=host, why=why)
            again = self._again[host]
            if self._clock.monotonic() - began > longest or again.is_set():
                pause = first
            await self._clock.wait(pause, again)
            again.clear()
            pause = min(2 * pause, longest)

    async def _watch(self, host: str, argv: tuple[str, ...]) -> str:
        """Run a host's program once; return why it ended."""
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=PIPE,
                stdout=PIPE,
                stderr=DEVNULL,
                limit=MAX_LINE,
                env=dict(self._environment),
                start_new_session=True,  # Ctrl-C is for the service, which ends it
            )
        except OSError as error:
            return f"cannot run {argv[0]}: {error.strerror}"
        self._running[host] = process
        heard = _Heard(self._clock.monotonic())
        reading = asyncio.create_task(self._read(host, process, heard))
        silent = asyncio.create_task(self._be_silent(heard))
        stopped = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({reading, silent, stopped}, return_when=asyncio.FIRST_COMPLETED)
            return reading.result() if reading.done() else f"no word in {SILENT_SECONDS:.0f} s"
        finally:
            del self._running[host]
            for task in (reading, silent, stopped):
                task.cancel()
            await _end(process)

    async def _be_silent(self, heard: "_Heard") -> None:
        """Return when a program has said nothing for too long."""
        never = asyncio.Event()
        whole = SILENT_SECONDS
        while (left := whole if heard.taking else heard.at + whole - self._clock.monotonic()) > 0:
            await self._clock.wait(left, never)

    async def _read(self, host: str, process: Process, heard: "_Heard") -> str:
        """Take a program's lines until it ends; return why."""
        assert process.stdout is not None
        why = "the program that watches it has ended"
        while True:
            try:
                data = await process.stdout.readline()
            except ValueError:
                return f"a line of more than {MAX_LINE} bytes"
            if not data:
                return why
            heard.at = self._clock.monotonic()
            try:
                line = msgspec.json.decode(data, type=_Line)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                return f"an invalid line of the program that watches it: {error}"
            if line.error:
                why = line.error
                continue
            heard.taking = True
            async with self._turn:
                await self._take(host, line)
            heard.taking, heard.at = False, self._clock.monotonic()

    async def _take(self, host: str, line: _Line) -> None:
        now = self._time.now()
        if line.domains is not None:
            _log.info("a host is watched", host=host, domains=len(line.domains))
            actions = self._observed.host_listed(host, line.domains, self._fleet, now)
        elif line.domain is None:
            return
        elif line.event:
            kind = (line.event, line.detail)
            actions = self._observed.domain_changed(host, kind, line.domain, self._fleet, now)
        else:
            actions = self._observed.domain_looked(host, line.domain, self._fleet, now)
        await self._do(actions)

    async def _do(self, actions: Iterable[Action]) -> None:
        for action in actions:
            is_done = False
            try:
                with self._contained(_about(action)):
                    try:
                        await self._carry_out(action)
                    except Refused as refused:
                        _log.error("what a host told was refused", reason=refused.message)
                    is_done = True
            except StoreError as error:
                _log.warning("cannot record what a host told", why=error)
            if not is_done and isinstance(action, RaiseUnforeseen):
                self._observed.retry(action, self._time.now())

    async def _carry_out(self, action: Action) -> None:
        match action:
            case LookEverywhere():
                for process in self._running.values():
                    assert process.stdin is not None
                    if process.stdin.is_closing():
                        continue  # it lists all again when it is back
                    process.stdin.write(f"look {action.uuid}\n".encode())
            case RecordHost():
                machine, host = action.machine, action.host
                await asyncio.wrap_future(self._plane.record_hosts({machine.key: host}))
                _log.info("a machine has moved", machine=machine.name, host=host, was=machine.host)
            case RaiseUnforeseen():
                name = action.machine.name
                _log.warning("a machine has crashed", machine=name, why=action.why)
                request = planner.Request(
                    event_type=EventType.REBOOT,
                    machines=(name,),
                    source=EventSource.PLATFORM,
                    description=DESCRIPTION,
                    no_notice=True,
                    requested_by=BY,
                )
                await asyncio.wrap_future(self._plane.request(request))
            case host_observations.Remark():
                _log.info(action.message, host=action.host, names=action.names)


def _about(action: Action) -> str:
    """Return what an action is about: a machine, a host or a domain."""
    match action:
        case RecordHost() | RaiseUnforeseen():
            return action.machine.name
        case LookEverywhere():
            return f"domain {action.uuid}"
        case host_observations.Remark():
            return f"host {action.host}"


async def _end(process: Process) -> None:
    """Wait for the end of a program; kill one that does not end by itself now."""
    assert process.stdin is not None
    process.stdin.close()  # it ends then, if it can
    try:
        async with asyncio.timeout(END_SECONDS):
            await process.wait()
    except TimeoutError:
        # With its ssh, which never ends by itself where the host hangs.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
