"""Hosts in memory, which do as libvirt's do: with copies, definitions, markers, and failures."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from forewarn.connectors.libvirt.decide import Do, Step
from forewarn.connectors.libvirt.facts import (
    Act,
    DomainSight,
    DomainState,
    HostSight,
    Marker,
    Order,
)

VM_ID = "6695eb01-f6a4-8304-79aa-97f2502e193f"
EARLY = "2026-03-02T12:00:00.250000Z"

ORDER = Order(
    operation="1.1",
    started_at=EARLY,
    attempt=1,
    machine="web-0",
    vm_id=VM_ID,
    act=Act.REBOOT,
    shutdown_seconds=30.0,
    retry_seconds=20.0,
)


def order(act: Act, **more: Any) -> Order:
    return replace(ORDER, act=act, **more)


def nothing() -> None:
    """Nothing happens."""


class KilledError(Exception):
    """The program is killed here."""


@dataclass
class Copy:
    """One machine on one host: its process, its definition, or both."""

    state: DomainState = DomainState.RUNNING
    live: Marker | None = None
    config: Marker | None = None
    defined: bool = True
    job: bool = False
    handed_over: bool = False
    boots: int = 0
    pauses: int = 0
    presses_ignored: int = 0
    restarts_on_poweroff: bool = False
    saved: bool = False
    autostart: bool = False
    disks: bool = True


@dataclass
class Host:
    name: str
    copy: Copy | None = None
    answers: bool = True
    hangs: int = 0
    """The seconds that a look takes while it does not answer."""
    target: bool = True
    free_memory_mib: int = 1000
    host_id: str = ""
    boot_id: str = "boot-1"
    name_taken: bool = False


class Timer:
    """Time that passes only by waiting, in which things happen; `over` is when SIGTERM comes."""

    def __init__(self, over: float = 1e9) -> None:
        self.time = 0.0
        self.over = over
        self.coming: list[tuple[float, Callable[[], None]]] = []

    @property
    def stopping(self) -> bool:
        return self.time >= self.over

    def now(self) -> float:
        return self.time

    def wait(self, seconds: float) -> None:
        self.time += max(seconds, 0.1)
        if self.time > 1e4:
            raise AssertionError("it waits for ever")
        while self.coming and self.coming[0][0] <= self.time + 1e-6:
            self.coming.pop(0)[1]()


@dataclass
class Hosts:
    """All hosts.

    Args:
        refusals: What libvirt answers to a step, once each: its code and text.
        kill_at: The number of the step that the program does not survive, from 0.
        kill_when: `before` the step, `after` it, or in its `middle`, which a migration has.
        when_off: What happens when the machine is off, one after another.
        around: What happens `before` or `after` a step.
    """

    hosts: list[Host]
    timer: Timer = field(default_factory=Timer)
    refusals: dict[Do, list[tuple[int, str]]] = field(default_factory=dict)
    kill_at: int | None = None
    kill_when: str = "before"
    done: list[Step] = field(default_factory=list)
    looks: int = 0
    disks_deleted: bool = False
    when_off: list[Callable[[], None]] = field(default_factory=list)
    around: dict[tuple[str, Do], Callable[[], None]] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Host:
        return next(host for host in self.hosts if host.name == name)

    @property
    def copies(self) -> list[tuple[str, Copy]]:
        return [(host.name, host.copy) for host in self.hosts if host.copy is not None]

    @property
    def running(self) -> list[str]:
        return [name for name, copy in self.copies if copy.state is DomainState.RUNNING]

    @property
    def active(self) -> list[str]:
        return [name for name, copy in self.copies if copy.state is not DomainState.OFF]

    @property
    def autostarting(self) -> list[str]:
        return [name for name, copy in self.copies if copy.autostart]

    @property
    def defined(self) -> list[str]:
        return [name for name, copy in self.copies if copy.defined]

    def look(self, asked: Order, only: str = "") -> tuple[HostSight, ...]:
        while self.when_off and not self.running:
            self.when_off.pop()()
        self.looks += 1
        asked_for = [host for host in self.hosts if only in {"", host.name}]
        for host in asked_for:
            if host.hangs and not host.answers:
                self.timer.wait(host.hangs)
        return tuple(_sight(host) for host in asked_for)

    def do(self, asked: Order, step: Step) -> tuple[int, str] | None:
        self.around.get(("before", step.do), nothing)()
        refused = self._carry_out(asked, step)
        self.around.get(("after", step.do), nothing)()
        return refused

    def _carry_out(self, asked: Order, step: Step) -> tuple[int, str] | None:
        number = len(self.done)
        self.done.append(step)
        dies = number == self.kill_at
        if dies and self.kill_when == "before":
            raise KilledError
        if not self[step.host].answers:
            return 38, "end of file while reading data"
        if self.refusals.get(step.do):
            return self.refusals[step.do].pop(0)
        if dies and self.kill_when == "middle":
            self._interrupt(step)
            raise KilledError
        refused = self._do(asked, step)
        if dies:
            raise KilledError
        return refused

    def _interrupt(self, step: Step) -> None:
        """Leave what a direct migration leaves whose caller died before its last step."""
        copy = self[step.host].copy
        if step.do is Do.MIGRATE and copy is not None:
            self[step.target].copy = replace(copy, handed_over=False, autostart=False)
            copy.state, copy.handed_over = DomainState.PAUSED, True

    def _do(self, asked: Order, step: Step) -> tuple[int, str] | None:
        host = self[step.host]
        copy = host.copy
        if copy is None:
            return 42, "no domain"
        active = copy.state is not DomainState.OFF
        match step.do:
            case Do.MARK if (copy.live if active else copy.config) != step.seen:
                return 0, "it was marked by another attempt meanwhile"
            case Do.MARK:
                copy.config = step.config if copy.defined else None
                copy.live = step.live if active else None
            case Do.SYNC_TIME:
                return 74, "no agent"
            case Do.MIGRATE | Do.MOVE_DEFINITION if active == (step.do is Do.MIGRATE):
                return self._move(host, self[step.target])
            case _:
                return self._change(host, copy, step.do, active=active)
        return None

    def _change(self, host: Host, copy: Copy, do: Do, *, active: bool) -> tuple[int, str] | None:
        match do:
            case Do.SUSPEND if copy.state is DomainState.RUNNING:
                copy.state = DomainState.PAUSED
                copy.pauses += 1
            case Do.RESUME if copy.state is DomainState.PAUSED:
                copy.state, copy.handed_over = DomainState.RUNNING, False
            case Do.PRESS if copy.state is DomainState.RUNNING:
                if copy.presses_ignored:
                    copy.presses_ignored -= 1
                else:
                    self._off(host)
            case Do.POWER_OFF if active:
                self._off(host)
            case Do.START if not active:
                copy.state, copy.live = DomainState.RUNNING, copy.config
                copy.boots += 1
            case Do.AUTOSTART:
                copy.autostart = True
            case Do.DEFINE:
                copy.defined, copy.config = True, copy.live
            case Do.ABORT:
                copy.job = False
            case Do.DELETE_DISKS:
                copy.disks, self.disks_deleted = False, True
            case Do.UNDEFINE if not active:
                host.copy = None
            case _:
                return 55, f"the domain is {copy.state}"
        return None

    def _off(self, host: Host) -> None:
        assert host.copy is not None
        host.copy.state, host.copy.live, host.copy.handed_over = DomainState.OFF, None, False
        if not host.copy.defined:
            host.copy = None

    def _move(self, source: Host, target: Host) -> tuple[int, str] | None:
        if not target.answers:
            return 1, "client socket is closed"
        if target.copy is not None:
            return 9, "domain already exists with uuid"
        assert source.copy is not None
        target.copy = replace(source.copy, autostart=False)
        source.copy = None
        return None


def _sight(host: Host) -> HostSight:
    if not host.answers:
        return HostSight(name=host.name, answers=False, why="connection refused")
    copy = host.copy
    return HostSight(
        name=host.name,
        target=host.target,
        free_memory_mib=host.free_memory_mib,
        host_id=host.host_id,
        boot_id=host.boot_id,
        name_taken=host.name_taken,
        domain=None
        if copy is None
        else DomainSight(
            name="web-0",
            state=copy.state,
            memory_mib=500,
            persistent=copy.defined,
            job=copy.job,
            handed_over=copy.handed_over,
            live=copy.live if copy.state is not DomainState.OFF else None,
            config=copy.config if copy.defined else None,
            restarts_on_poweroff=copy.restarts_on_poweroff,
            saved=copy.saved and copy.state is DomainState.OFF,
            autostart=copy.autostart,
        ),
    )


def pair(**first: Any) -> Hosts:
    """Return two hosts, the machine on the first."""
    return Hosts([Host("h1", Copy(**first)), Host("h2")])
