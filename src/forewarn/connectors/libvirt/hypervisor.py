"""The connections to the hosts: what is there of one machine, and the steps that change it.

Every call of libvirt may block: the opening of a connection to a daemon that is stopped never
returns. So each host is looked at on a thread of its own, which is given up, but not forgotten: a
host is not asked again before its thread has come back. Whoever uses this ends by `os._exit`.
"""

import contextlib
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar
from xml.etree import ElementTree as ET

import libvirt

from forewarn.connectors.libvirt.decide import Do, Step
from forewarn.connectors.libvirt.facts import (
    MARKER_URI,
    Act,
    DomainSight,
    HostAddress,
    HostSight,
    Marker,
    Order,
    State,
    marker_of,
)

LOOK_SECONDS: Final = 20.0
"""How long a host may take to answer a look: SSH to a slow host, but not for ever."""

KEEPALIVE: Final = (5, 3)
"""Seconds between two questions whether a host is there, and how many may stay unanswered."""

COMMAND_SECONDS: Final = 15.0
"""How long a command that prints a boot id may take."""

MARKER_PREFIX: Final = "forewarn-task"

NO_DOMAIN: Final = 42
UNSUPPORTED: Final = frozenset({3, 8, 84})
"""libvirt's codes for a call, an argument or an operation that a driver does not know."""

STATES: Final[Mapping[int, State]] = {
    libvirt.VIR_DOMAIN_PAUSED: State.PAUSED,
    libvirt.VIR_DOMAIN_PMSUSPENDED: State.PAUSED,
    libvirt.VIR_DOMAIN_CRASHED: State.CRASHED,
    libvirt.VIR_DOMAIN_SHUTOFF: State.CRASHED,  # active all the same: it was kept as it ended
}
"""The states of a domain that has a process, but for RUNNING."""

HANDED_OVER: Final = frozenset(
    {
        libvirt.VIR_DOMAIN_PAUSED_MIGRATION,
        libvirt.VIR_DOMAIN_PAUSED_POSTCOPY,
        libvirt.VIR_DOMAIN_PAUSED_POSTCOPY_FAILED,
        libvirt.VIR_DOMAIN_PAUSED_STARTING_UP,
    }
)
"""Why a domain is paused that is one of a migration's two copies."""

UNDEFINE_ALL: Final = (
    libvirt.VIR_DOMAIN_UNDEFINE_MANAGED_SAVE
    | libvirt.VIR_DOMAIN_UNDEFINE_SNAPSHOTS_METADATA
    | libvirt.VIR_DOMAIN_UNDEFINE_CHECKPOINTS_METADATA
)

T = TypeVar("T")


class _Link:
    """One host: its connection, and the thread that may be stuck in it."""

    def __init__(self, address: HostAddress) -> None:
        self.address = address
        self._connection: Any = None
        self._thread: threading.Thread | None = None

    def connection(self) -> Any:  # noqa: ANN401 - untyped
        """Return a connection that is alive as far as libvirt knows; may block."""
        if self._connection is None or not self._connection.isAlive():
            self._connection = libvirt.open(self.address.uri)
            with contextlib.suppress(libvirt.libvirtError):  # a driver without a daemon has none
                self._connection.setKeepAlive(*KEEPALIVE)
        return self._connection

    def start(self, work: Callable[[], T], empty: T) -> Callable[[float], T]:
        """Begin work on a thread; return what waits for it until a time, or returns `empty`."""
        results: list[T] = []
        if self._thread is not None and self._thread.is_alive():
            return lambda _: empty
        thread = threading.Thread(target=lambda: results.append(work()), daemon=True)
        self._thread = thread
        thread.start()

        def result(until: float) -> T:
            thread.join(max(0.0, until - now()))
            return results[0] if results else empty

        return result


class Hypervisors:
    """All hosts of the settings."""

    def __init__(self, hosts: Iterable[HostAddress]) -> None:
        libvirt.registerErrorHandler(lambda *_: None, None)  # errors are raised; none is printed
        libvirt.virEventRegisterDefaultImpl()
        threading.Thread(target=_run_events, daemon=True).start()
        self._links = {host.name: _Link(host) for host in hosts}
        self._migrating = ""
        """The source of the migration that is waited for."""
        self._name = ""
        """What the machine is called on its host, once that is known."""

    @property
    def addresses(self) -> tuple[HostAddress, ...]:
        """The hosts, in the order of the settings."""
        return tuple(link.address for link in self._links.values())

    def ask(
        self,
        question: Callable[[HostAddress, Any], T],
        dark: Callable[[HostAddress, str], T],
        seconds: float = LOOK_SECONDS,
    ) -> list[T]:
        """Ask all hosts at once, and return the answers in the settings' order.

        Args:
            question: Is called with a host and its connection, on the host's own thread.
            dark: What to answer for a host that does not, and why.
            seconds: How long a host may take.
        """
        late = f"no answer in {seconds:g} s"
        until = now() + seconds
        waits = [
            link.start(_guarded(link, question, dark), dark(link.address, late))
            for link in self._links.values()
        ]
        return [wait(until) for wait in waits]

    def look(self, order: Order) -> tuple[HostSight, ...]:
        """Return what each host has of the order's machine."""

        def question(host: HostAddress, connection: Any) -> HostSight:  # noqa: ANN401 - untyped
            return _sight(order, host, connection, self._name or order.machine)

        def dark(host: HostAddress, why: str) -> HostSight:
            return HostSight(name=host.name, answers=False, why=why, target=host.target)

        sights = tuple(self.ask(question, dark))
        names = [sight.domain.name for sight in sights if sight.domain is not None]
        self._name = names[0] if names else self._name
        return sights

    def do(self, order: Order, step: Step) -> tuple[int, str] | None:
        """Do a step; return libvirt's code and text where it refused.

        It may block for as long as a migration takes; `abort` ends that from another thread.
        """
        self._migrating = step.host if step.do is Do.MIGRATE else ""
        try:
            domain = self._domain(order, step.host)
            STEPS[step.do](self, order, step, domain)
        except libvirt.libvirtError as error:
            return error.get_error_code() or 0, error.get_error_message() or str(error)
        finally:
            self._migrating = ""
        return None

    def abort(self, order: Order) -> None:
        """Cancel the migration that `do` waits for, if there is one."""
        if self._migrating:
            with contextlib.suppress(libvirt.libvirtError):
                self._domain(order, self._migrating).abortJob()

    def _domain(self, order: Order, host: str) -> Any:  # noqa: ANN401 - untyped
        return self._links[host].connection().lookupByUUIDString(order.vm_id)

    def _mark(self, order: Order, step: Step, domain: Any) -> None:  # noqa: ANN401 - untyped
        del order
        active, persistent = bool(domain.isActive()), bool(domain.isPersistent())
        if step.config is not None and persistent:
            _write(domain, step.config, libvirt.VIR_DOMAIN_AFFECT_CONFIG)
        if step.live is not None and active:
            _write(domain, step.live, libvirt.VIR_DOMAIN_AFFECT_LIVE)

    def _press(self, order: Order, step: Step, domain: Any) -> None:  # noqa: ANN401 - untyped
        """Ask it to shut down: libvirt takes the agent if there is one, else the button."""
        del order, step
        try:
            domain.shutdown()
        except libvirt.libvirtError as error:
            if error.get_error_code() not in AGENT_TROUBLE:
                raise
            domain.shutdownFlags(libvirt.VIR_DOMAIN_SHUTDOWN_ACPI_POWER_BTN)

    def _power_off(self, order: Order, step: Step, domain: Any) -> None:  # noqa: ANN401 - untyped
        del step
        if order.act is not Act.MOVE:
            try:
                domain.destroyFlags(libvirt.VIR_DOMAIN_DESTROY_GRACEFUL)
            except libvirt.libvirtError:
                pass  # it had its time to write what it holds
            else:
                return
        domain.destroy()

    def _start(self, order: Order, step: Step, domain: Any) -> None:  # noqa: ANN401 - untyped
        del order, step
        try:
            domain.createWithFlags(libvirt.VIR_DOMAIN_START_FORCE_BOOT)
        except libvirt.libvirtError as error:
            if error.get_error_code() not in UNSUPPORTED:
                raise
            domain.create()

    def _migrate(self, order: Order, step: Step, domain: Any) -> None:  # noqa: ANN401 - untyped
        ways, offline = order.migration, step.do is Do.MOVE_DEFINITION
        target = self._links[step.target]
        flags = libvirt.VIR_MIGRATE_OFFLINE if offline else libvirt.VIR_MIGRATE_LIVE
        if domain.isPersistent():
            flags |= libvirt.VIR_MIGRATE_PERSIST_DEST | libvirt.VIR_MIGRATE_UNDEFINE_SOURCE
        parameters: dict[str, object] = {}
        if target.address.migrate_uri:
            parameters[libvirt.VIR_MIGRATE_PARAM_URI] = target.address.migrate_uri
        if not offline:
            flags |= libvirt.VIR_MIGRATE_ABORT_ON_ERROR
            chosen = (
                (ways.disks == "copy", libvirt.VIR_MIGRATE_NON_SHARED_DISK),
                (ways.auto_converge, libvirt.VIR_MIGRATE_AUTO_CONVERGE),
                (ways.tls, libvirt.VIR_MIGRATE_TLS),
            )
            for wanted, flag in chosen:
                flags |= flag if wanted else 0
            if ways.bandwidth_mib:
                parameters[libvirt.VIR_MIGRATE_PARAM_BANDWIDTH] = ways.bandwidth_mib
        if ways.unsafe:
            flags |= libvirt.VIR_MIGRATE_UNSAFE
        if ways.by == "p2p":
            flags |= libvirt.VIR_MIGRATE_PEER2PEER
            domain.migrateToURI3(target.address.uri, parameters, flags)
        else:
            domain.migrate3(target.connection(), parameters, flags)

    def _delete_disks(
        self,
        order: Order,
        step: Step,
        domain: Any,  # noqa: ANN401 - untyped
    ) -> None:
        del order
        connection = self._links[step.host].connection()
        for volume in _volumes(connection, domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE)):
            volume.delete(0)

    def _undefine(self, order: Order, step: Step, domain: Any) -> None:  # noqa: ANN401 - untyped
        """Remove the definition; after a move, without the firmware's files, which it still has."""
        del step
        kept = order.act is Act.MOVE
        nvram = "VIR_DOMAIN_UNDEFINE_KEEP_NVRAM" if kept else "VIR_DOMAIN_UNDEFINE_NVRAM"
        tpm = "VIR_DOMAIN_UNDEFINE_KEEP_TPM" if kept else "VIR_DOMAIN_UNDEFINE_TPM"
        flags = UNDEFINE_ALL | getattr(libvirt, nvram)
        for more in (getattr(libvirt, tpm, 0), 0):  # a daemon before 8.9 knows no TPM flag
            try:
                domain.undefineFlags(flags | more)
            except libvirt.libvirtError as error:
                if error.get_error_code() not in UNSUPPORTED:
                    raise
            else:
                return
        domain.undefine()


AGENT_TROUBLE: Final = frozenset({libvirt.VIR_ERR_AGENT_UNRESPONSIVE, 74, 86})

_Doing = Callable[[Hypervisors, Order, Step, Any], None]

STEPS: Final[Mapping[Do, _Doing]] = {
    Do.MARK: Hypervisors._mark,  # noqa: SLF001 - its own table
    Do.SUSPEND: lambda _all, _order, _step, domain: domain.suspend(),
    Do.RESUME: lambda _all, _order, _step, domain: domain.resume(),
    Do.SYNC_TIME: lambda _all, _order, _step, domain: domain.setTime(
        {"seconds": 0, "nseconds": 0}, libvirt.VIR_DOMAIN_TIME_SYNC
    ),
    Do.PRESS: Hypervisors._press,  # noqa: SLF001 - its own table
    Do.POWER_OFF: Hypervisors._power_off,  # noqa: SLF001 - its own table
    Do.START: Hypervisors._start,  # noqa: SLF001 - its own table
    Do.MIGRATE: Hypervisors._migrate,  # noqa: SLF001 - its own table
    Do.MOVE_DEFINITION: Hypervisors._migrate,  # noqa: SLF001 - its own table
    Do.ABORT: lambda _all, _order, _step, domain: domain.abortJob(),
    Do.DELETE_DISKS: Hypervisors._delete_disks,  # noqa: SLF001 - its own table
    Do.UNDEFINE: Hypervisors._undefine,  # noqa: SLF001 - its own table
}
"""How each step is done."""


def now() -> float:
    """Return the time in seconds; only differences mean anything."""
    return time.monotonic()  # noqa: TID251 - a process of its own, without the package's clock


def boot_id_of(host: HostAddress) -> str:
    """Return what the host's own command prints; "" where it fails."""
    if not host.boot_id:
        return ""
    try:
        ran = subprocess.run(  # noqa: S603 - from the settings, without a shell
            host.boot_id,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=COMMAND_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return ran.stdout.decode("utf-8", "replace").strip() if ran.returncode == 0 else ""


def free_memory(host: HostAddress, connection: Any) -> int:  # noqa: ANN401 - untyped
    """Return how many MiB further machines may have.

    What the running machines may use is taken off, not what they use now: they would all get it
    only until each of them asks for its own.
    """
    total = host.memory_mib or connection.getInfo()[1]
    try:
        flags = libvirt.VIR_CONNECT_GET_ALL_DOMAINS_STATS_ACTIVE
        flags |= libvirt.VIR_CONNECT_GET_ALL_DOMAINS_STATS_NOWAIT
        told = connection.getAllDomainStats(libvirt.VIR_DOMAIN_STATS_BALLOON, flags)
        given = sum(stats.get("balloon.maximum", 0) for _, stats in told)
    except libvirt.libvirtError as error:
        if error.get_error_code() not in UNSUPPORTED:
            raise
        domains = connection.listAllDomains(libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE)
        given = sum(domain.maxMemory() for domain in domains)
    return max(0, min(int(total) - int(given) // 1024, _unused(connection)))


def state_of(domain: Any) -> tuple[State, bool]:  # noqa: ANN401 - untyped
    """Return what a domain does, and whether it is one of a migration's two copies."""
    if not domain.isActive():
        return State.OFF, False
    number, why = domain.state()
    state = STATES.get(number, State.RUNNING)
    return state, state is State.PAUSED and why in HANDED_OVER


def has_job(domain: Any) -> bool:  # noqa: ANN401 - untyped
    """Return whether something is under way that excludes other work."""
    try:
        return bool(domain.jobInfo()[0] != libvirt.VIR_DOMAIN_JOB_NONE)
    except libvirt.libvirtError as error:
        if error.get_error_code() in UNSUPPORTED or not domain.isActive():
            return False
        raise


def _run_events() -> None:
    while True:
        libvirt.virEventRunDefaultImpl()


def _guarded(
    link: _Link,
    question: Callable[[HostAddress, Any], T],
    dark: Callable[[HostAddress, str], T],
) -> Callable[[], T]:
    def work() -> T:
        try:
            return question(link.address, link.connection())
        except libvirt.libvirtError as error:
            return dark(link.address, error.get_error_message() or str(error))

    return work


def _sight(
    order: Order,
    host: HostAddress,
    connection: Any,  # noqa: ANN401 - untyped
    name: str,
) -> HostSight:
    sight = _domain_sight(order, connection)
    moves = order.act is Act.MOVE
    return HostSight(
        name=host.name,
        target=host.target,
        boot_id=boot_id_of(host) if order.host_boot_id else "",
        host_id=_host_id(connection) if moves else "",
        free_memory_mib=free_memory(host, connection) if moves else 0,
        domain=sight,
        name_taken=moves and sight is None and _has(connection, name),
    )


def _domain_sight(order: Order, connection: Any) -> DomainSight | None:  # noqa: ANN401 - untyped
    try:
        domain = connection.lookupByUUIDString(order.vm_id)
        state, handed_over = state_of(domain)
        persistent = bool(domain.isPersistent())
        active = state is not State.OFF
        config = libvirt.VIR_DOMAIN_AFFECT_CONFIG
        return DomainSight(
            name=domain.name(),
            state=state,
            memory_mib=domain.maxMemory() // 1024,
            persistent=persistent,
            job=active and has_job(domain),
            handed_over=handed_over,
            live=_read(domain, libvirt.VIR_DOMAIN_AFFECT_LIVE) if active else None,
            config=_read(domain, config) if persistent else None,
            restarts_on_poweroff=order.act is Act.REBOOT and _restarts_on_poweroff(domain),
        )
    except libvirt.libvirtError as error:
        if error.get_error_code() == NO_DOMAIN:
            return None
        raise


def _restarts_on_poweroff(domain: Any) -> bool:  # noqa: ANN401 - untyped
    xml = domain.XMLDesc(0)
    return ET.fromstring(xml).findtext("on_poweroff") == "restart"  # noqa: S314 - of libvirt


def _read(domain: Any, flags: int) -> Marker | None:  # noqa: ANN401 - untyped
    kind = libvirt.VIR_DOMAIN_METADATA_ELEMENT
    try:
        return marker_of(domain.metadata(kind, MARKER_URI, flags))
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN_METADATA:
            return None
        if error.get_error_code() == libvirt.VIR_ERR_OPERATION_INVALID:
            return None  # it went off since its state was read: the next look shows it
        raise


def _write(domain: Any, marker: Marker, flags: int) -> None:  # noqa: ANN401 - untyped
    kind = libvirt.VIR_DOMAIN_METADATA_ELEMENT
    domain.setMetadata(kind, marker.xml(), MARKER_PREFIX, MARKER_URI, flags)


def _has(connection: Any, name: str) -> bool:  # noqa: ANN401 - untyped
    try:
        connection.lookupByName(name)
    except libvirt.libvirtError as error:
        if error.get_error_code() == NO_DOMAIN:
            return False
        raise
    return True


def _host_id(connection: Any) -> str:  # noqa: ANN401 - untyped
    root = ET.fromstring(connection.getCapabilities())  # noqa: S314 - of libvirt
    return root.findtext("host/uuid") or ""


def _unused(connection: Any) -> int:  # noqa: ANN401 - untyped
    """Return the MiB of memory that nobody uses, what the kernel would give back included."""
    try:
        stats = connection.getMemoryStats(libvirt.VIR_NODE_MEMORY_STATS_ALL_CELLS)
    except libvirt.libvirtError as error:
        if error.get_error_code() not in UNSUPPORTED:
            raise
        return int(connection.getInfo()[1])
    return int(sum(stats.get(name, 0) for name in ("free", "buffers", "cached"))) // 1024


def _volumes(connection: Any, xml: str) -> list[Any]:  # noqa: ANN401 - untyped
    """Return the volumes of a machine's own disks, as far as a storage pool has them."""
    volumes = []
    for disk in ET.fromstring(xml).iterfind("devices/disk"):  # noqa: S314 - of libvirt
        source = disk.find("source")
        shared = disk.find("readonly") is not None or disk.find("shareable") is not None
        if source is None or shared or disk.get("device", "disk") != "disk":
            continue
        try:
            if pool := source.get("pool"):
                found = connection.storagePoolLookupByName(pool)
                volumes.append(found.storageVolLookupByName(source.get("volume")))
            elif place := source.get("file") or source.get("dev"):
                volumes.append(connection.storageVolLookupByPath(place))
        except libvirt.libvirtError as error:
            if error.get_error_code() != libvirt.VIR_ERR_NO_STORAGE_VOL:
                raise
    return volumes
