"""The connections to the hosts: their facts, their copy of one machine, and each step.

Every call of libvirt may block: the opening of a connection to a daemon that is stopped never
returns. So each host is looked at on a thread of its own, which is given up, but not forgotten: a
host is not asked again before its thread has come back. So a program that uses this ends by
`os._exit`.
"""

import contextlib
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias, TypeVar

import libvirt

from forewarn.connectors.libvirt import facts
from forewarn.connectors.libvirt.decide import Do, Step

Connection: TypeAlias = Any
Domain: TypeAlias = Any
"""libvirt's own classes, which have no types."""

LOOK_SECONDS: Final = 20.0
"""The time limit of a host's answer to a look: SSH to a slow host, but not for ever."""

SURVEY_SECONDS: Final = 10.0
"""The time limit of a host's answer to a survey: the report of the others is in time all the same.
"""

HANGS_AFTER: Final = 1000
"""The milliseconds after which a QEMU that does not answer hangs; usually it takes one or two."""

KEEPALIVE: Final = (5, 3)
"""Seconds between two probes of a connection, and how many may stay unanswered."""

COMMAND_SECONDS: Final = 15.0
"""The time limit of a command that prints a boot id."""

MARKER_PREFIX: Final = "forewarn-task"

NO_DOMAIN: Final = 42
UNSUPPORTED: Final = frozenset({3, 8, 84})
"""libvirt's codes for a call, an argument or an operation that a driver does not know."""
UNTOLD: Final = UNSUPPORTED | {libvirt.VIR_ERR_OPERATION_INVALID}
"""The same, and its code for a domain that went off since its state was read."""
AGENT_TROUBLE: Final = frozenset({libvirt.VIR_ERR_AGENT_UNRESPONSIVE, 74, 86})
"""Its codes for a guest's agent that does not answer."""

UNDEFINE_ALL: Final = (
    libvirt.VIR_DOMAIN_UNDEFINE_MANAGED_SAVE
    | libvirt.VIR_DOMAIN_UNDEFINE_SNAPSHOTS_METADATA
    | libvirt.VIR_DOMAIN_UNDEFINE_CHECKPOINTS_METADATA
)

CALLS: Final = {Do.SUSPEND: "suspend", Do.RESUME: "resume", Do.ABORT: "abortJob"}
"""The steps that are one call."""

T = TypeVar("T")


class Suppressed:
    """Ends its block where libvirt refuses something in it with one of these codes, and goes on."""

    def __init__(self, *codes: int) -> None:
        self._codes = codes

    def __enter__(self) -> None:
        """Begin the block."""

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        """Return True if the block ends here by one of the codes."""
        return isinstance(error, libvirt.libvirtError) and error.get_error_code() in self._codes


def prepare() -> None:
    """Prepare libvirt for this process, before the first connection."""
    libvirt.registerErrorHandler(lambda *_: None, None)  # errors are raised; none is printed
    libvirt.virEventRegisterDefaultImpl()
    threading.Thread(target=_run_events, daemon=True).start()


def connected(uri: str, connection: Connection = None) -> Connection:
    """Return this connection while it is alive as far as libvirt knows, else a new one; may block.

    It works after `prepare`.
    """
    if connection is None or not connection.isAlive():
        connection = libvirt.open(uri)
        with contextlib.suppress(libvirt.libvirtError):  # a driver without a daemon has none
            connection.setKeepAlive(*KEEPALIVE)
    return connection


class _Worker:
    """A thread that may be stuck in a call of libvirt; then it takes no other work."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None

    def start(self, work: Callable[[], T], empty: T) -> Callable[[float], T]:
        """Begin work on a thread; return a function that waits until a time for the result.

        The function returns `empty` if there is none by then.
        """
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


class _Link(_Worker):
    """One host: its connection, and the thread that may be stuck in it."""

    def __init__(self, address: facts.HostAddress) -> None:
        super().__init__()
        self.address = address
        self._connection: Connection = None

    def connection(self) -> Connection:
        """Return a connection that is alive as far as libvirt knows; may block."""
        self._connection = connected(self.address.uri, self._connection)
        return self._connection


class Hypervisors:
    """All hosts of the settings."""

    guest_seconds = 10.0
    """The time limit of a step that the guest answers: more than libvirt gives its agent to begin.
    """

    def __init__(self, hosts: Iterable[facts.HostAddress]) -> None:
        prepare()
        self._links = {host.name: _Link(host) for host in hosts}
        self._asking = _Worker()
        self._migrating = ""
        """The source of the migration that is waited for."""
        self._name = ""
        """The machine's name on its host, once that is known."""

    def ask(
        self,
        question: Callable[[facts.HostAddress, Connection], T],
        dark: Callable[[facts.HostAddress, str], T],
        seconds: float = LOOK_SECONDS,
        only: str = "",
    ) -> list[T]:
        """Ask all hosts at once, or `only` one, and return the answers in the settings' order.

        `question` is called with a host and its connection, on the host's own thread. `dark` makes
        the answer of a host that does not answer within `seconds`, from the reason.
        """
        late = f"no answer in {seconds:g} s"
        until = now() + seconds
        waits = [
            link.start(_guarded(link, question, dark), dark(link.address, late))
            for name, link in self._links.items()
            if only in {"", name}
        ]
        return [wait(until) for wait in waits]

    def look(self, order: facts.Order, only: str = "") -> tuple[facts.HostSight, ...]:
        """Return each host's copy of the order's machine, or that of `only` one."""

        def question(host: facts.HostAddress, connection: Connection) -> facts.HostSight:
            return _sight(order, host, connection, self._name or order.machine)

        def dark(host: facts.HostAddress, why: str) -> facts.HostSight:
            return facts.HostSight(name=host.name, answers=False, why=why, target=host.targets)

        sights = tuple(self.ask(question, dark, only=only))
        names = [sight.domain.name for sight in sights if sight.domain is not None]
        self._name = names[0] if names else self._name
        return sights

    def do(self, order: facts.Order, step: Step) -> tuple[int, str] | None:
        """Do a step; return libvirt's code and text where it refused.

        It may block for as long as a migration takes; `abort` ends that from another thread.
        """
        if step.do in {Do.PRESS, Do.SYNC_TIME}:  # a QEMU that hangs never answers, nor some agents
            silent: tuple[int, str] | None = (0, f"no answer in {self.guest_seconds:g} s")
            wait = self._asking.start(lambda: self._refusal(order, step), silent)
            return wait(now() + self.guest_seconds)
        return self._refusal(order, step)

    def _refusal(self, order: facts.Order, step: Step) -> tuple[int, str] | None:
        self._migrating = step.host if step.do is Do.MIGRATE else ""
        try:
            domain = self._domain(order, step.host)
            if step.do is Do.MARK and _marker(domain) != step.seen:
                return 0, "it was marked by another attempt meanwhile"
            self._do(order, step, domain)
        except libvirt.libvirtError as error:
            return error.get_error_code() or 0, error.get_error_message() or str(error)
        finally:
            self._migrating = ""
        return None

    def abort(self, order: facts.Order) -> None:
        """Cancel the migration that `do` waits for, if there is one."""
        if self._migrating:
            with contextlib.suppress(libvirt.libvirtError):
                self._domain(order, self._migrating).abortJob()

    def survey(self) -> dict[str, dict[str, object]]:
        """Return the facts of each host by its name, as the port's HostFacts has them."""
        return dict(zip(self._links, self.ask(_facts, _dark, SURVEY_SECONDS), strict=True))

    def _domain(self, order: facts.Order, host: str) -> Domain:
        return self._links[host].connection().lookupByUUIDString(order.vm_id)

    def _do(self, order: facts.Order, step: Step, domain: Domain) -> None:
        is_move = order.act is facts.Act.MOVE
        match step.do:
            case Do.MARK:
                _mark(step, domain)
            case Do.SUSPEND | Do.RESUME | Do.ABORT:
                getattr(domain, CALLS[step.do])()
            case Do.SYNC_TIME:
                domain.setTime({"seconds": 0, "nseconds": 0}, libvirt.VIR_DOMAIN_TIME_SYNC)
            case Do.PRESS:
                _press(domain)
            case Do.POWER_OFF:
                _power_off(domain, gracefully=not is_move)
            case Do.START:
                _start(domain)
            case Do.MIGRATE | Do.MOVE_DEFINITION:
                self._migrate(order, step, domain)
            case Do.AUTOSTART:
                domain.setAutostart(1)
            case Do.DEFINE:
                kept = libvirt.VIR_DOMAIN_XML_INACTIVE | libvirt.VIR_DOMAIN_XML_SECURE
                self._links[step.host].connection().defineXML(domain.XMLDesc(kept))
            case Do.DELETE_DISKS:
                for volume in _volumes(self._links[step.host].connection(), domain):
                    volume.delete(0)
            case Do.UNDEFINE:
                _undefine(domain, keep_firmware=is_move)
            case _:
                raise AssertionError(step)

    def _migrate(self, order: facts.Order, step: Step, domain: Domain) -> None:
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


def _mark(step: Step, domain: Domain) -> None:
    active, persistent = bool(domain.isActive()), bool(domain.isPersistent())
    if step.config is not None and persistent:
        _write(domain, step.config, libvirt.VIR_DOMAIN_AFFECT_CONFIG)
    if step.live is not None and active:
        _write(domain, step.live, libvirt.VIR_DOMAIN_AFFECT_LIVE)


def _press(domain: Domain) -> None:
    """Ask it to shut down: libvirt takes the agent if there is one, else the button."""
    with Suppressed(*AGENT_TROUBLE):
        domain.shutdown()
        return
    domain.shutdownFlags(libvirt.VIR_DOMAIN_SHUTDOWN_ACPI_POWER_BTN)


def _power_off(domain: Domain, *, gracefully: bool) -> None:
    if gracefully:
        with contextlib.suppress(libvirt.libvirtError):  # it had its time to write what it holds
            domain.destroyFlags(libvirt.VIR_DOMAIN_DESTROY_GRACEFUL)
            return
    domain.destroy()


def _start(domain: Domain) -> None:
    with Suppressed(*UNSUPPORTED):
        domain.createWithFlags(libvirt.VIR_DOMAIN_START_FORCE_BOOT)
        return
    domain.create()


def _undefine(domain: Domain, *, keep_firmware: bool) -> None:
    """Remove the definition; after a move, keep the firmware's files, which are still in use."""
    keep = "KEEP_" if keep_firmware else ""
    flags = UNDEFINE_ALL | getattr(libvirt, f"VIR_DOMAIN_UNDEFINE_{keep}NVRAM")
    tpm = getattr(libvirt, f"VIR_DOMAIN_UNDEFINE_{keep}TPM", 0)
    for more in (tpm, 0):  # a daemon before 8.9 knows no TPM flag
        with Suppressed(*UNSUPPORTED):
            domain.undefineFlags(flags | more)
            return
    domain.undefine()


def now() -> float:
    """Return the time in seconds; only differences mean anything."""
    return time.monotonic()  # noqa: TID251 - a process of its own, without the package's clock


def boot_id_of(host: facts.HostAddress) -> str:
    """Return the output of the host's own command; "" where it fails."""
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


def free_memory(host: facts.HostAddress, connection: Connection) -> int:
    """Return the MiB of memory that is left for further machines.

    The maximum of each running machine is subtracted, not its use at present, which can grow at any
    time.
    """
    total = host.memory_mib or connection.getInfo()[1]
    return max(0, min(int(total) - _given(connection) // 1024, _unused(connection)))


def _given(connection: Connection) -> int:
    flags = libvirt.VIR_CONNECT_GET_ALL_DOMAINS_STATS_ACTIVE
    flags |= libvirt.VIR_CONNECT_GET_ALL_DOMAINS_STATS_NOWAIT
    with Suppressed(*UNSUPPORTED):
        told = connection.getAllDomainStats(libvirt.VIR_DOMAIN_STATS_BALLOON, flags)
        return sum(int(stats.get("balloon.maximum", 0)) for _, stats in told)
    domains = connection.listAllDomains(libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE)
    return sum(int(domain.maxMemory()) for domain in domains)


def state_of(domain: Domain) -> tuple[facts.DomainState, bool]:
    """Return a domain's state, and True if it is one of a migration's two copies."""
    active = bool(domain.isActive())
    number, reason = domain.state() if active else (facts.OFF, 0)
    if number == facts.OFF and active:  # it was kept as it ended, or went off meanwhile
        active = bool(domain.isActive())
    return facts.state_of(number, reason, active=active)


def hangs(domain: Domain) -> bool:
    """Return True if its QEMU has not answered for a while: questions about jobs would wait too."""
    with Suppressed(*UNTOLD):
        state, _, milliseconds = domain.controlInfo()
        return bool(state == libvirt.VIR_DOMAIN_CONTROL_OCCUPIED and milliseconds > HANGS_AFTER)
    return False


def has_job(domain: Domain) -> bool:
    """Return True if a job is under way that excludes other work."""
    try:
        return bool(domain.jobInfo()[0] != libvirt.VIR_DOMAIN_JOB_NONE)
    except libvirt.libvirtError as error:
        if error.get_error_code() in UNTOLD or not domain.isActive():
            return False
        raise


def _run_events() -> None:
    while True:
        libvirt.virEventRunDefaultImpl()


def _guarded(
    link: _Link,
    question: Callable[[facts.HostAddress, Connection], T],
    dark: Callable[[facts.HostAddress, str], T],
) -> Callable[[], T]:
    def work() -> T:
        try:
            return question(link.address, link.connection())
        except libvirt.libvirtError as error:
            return dark(link.address, error.get_error_message() or str(error))

    return work


def _sight(
    order: facts.Order, host: facts.HostAddress, connection: Connection, name: str
) -> facts.HostSight:
    sight = _domain_sight(order, connection)
    moves = order.act is facts.Act.MOVE
    waits = bool(order.host_boot_id) and sight is not None and not sight.active
    return facts.HostSight(
        name=host.name,
        target=host.targets,
        boot_id=boot_id_of(host) if waits else "",
        host_id=_host_id(connection) if moves else "",
        free_memory_mib=free_memory(host, connection) if moves else 0,
        domain=sight,
        name_taken=moves and sight is None and _has(connection, name),
    )


def _domain_sight(order: facts.Order, connection: Connection) -> facts.DomainSight | None:
    with Suppressed(NO_DOMAIN):
        domain = connection.lookupByUUIDString(order.vm_id)
        state, handed_over = state_of(domain)
        persistent = bool(domain.isPersistent())
        active = state is not facts.DomainState.OFF
        config = libvirt.VIR_DOMAIN_AFFECT_CONFIG
        moves = order.act is facts.Act.MOVE
        return facts.DomainSight(
            name=domain.name(),
            state=state,
            memory_mib=domain.maxMemory() // 1024,
            persistent=persistent,
            job=active and not hangs(domain) and has_job(domain),
            handed_over=handed_over,
            live=_read(domain, libvirt.VIR_DOMAIN_AFFECT_LIVE) if active else None,
            config=_read(domain, config) if persistent else None,
            restarts_on_poweroff=order.act is facts.Act.REBOOT
            and facts.parse(domain.XMLDesc(0)).findtext("on_poweroff") == "restart",
            saved=moves and not active and bool(domain.hasManagedSaveImage(0)),
            autostart=moves and persistent and bool(domain.autostart()),
        )
    return None


def _read(domain: Domain, flags: int) -> facts.Marker | None:
    # OPERATION_INVALID: it went off since its state was read, and the next look shows it.
    with Suppressed(libvirt.VIR_ERR_NO_DOMAIN_METADATA, libvirt.VIR_ERR_OPERATION_INVALID):
        kind = libvirt.VIR_DOMAIN_METADATA_ELEMENT
        return facts.marker_of(domain.metadata(kind, facts.MARKER_URI, flags))
    return None


def _marker(domain: Domain) -> facts.Marker | None:
    """Return the marker that counts."""
    live, config = libvirt.VIR_DOMAIN_AFFECT_LIVE, libvirt.VIR_DOMAIN_AFFECT_CONFIG
    return _read(domain, live if domain.isActive() else config)


def _write(domain: Domain, marker: facts.Marker, flags: int) -> None:
    kind = libvirt.VIR_DOMAIN_METADATA_ELEMENT
    domain.setMetadata(kind, marker.xml(), MARKER_PREFIX, facts.MARKER_URI, flags)


def _has(connection: Connection, name: str) -> bool:
    with Suppressed(NO_DOMAIN):
        connection.lookupByName(name)
        return True
    return False


def _host_id(connection: Connection) -> str:
    return facts.parse(connection.getCapabilities()).findtext("host/uuid") or ""


def _unused(connection: Connection) -> int:
    """Return the MiB of unused memory, including the kernel's caches."""
    with Suppressed(*UNSUPPORTED):
        stats = connection.getMemoryStats(libvirt.VIR_NODE_MEMORY_STATS_ALL_CELLS)
        return int(sum(stats.get(name, 0) for name in ("free", "buffers", "cached"))) // 1024
    return int(connection.getInfo()[1])


def _volumes(connection: Connection, domain: Domain) -> list[Any]:
    """Return the volumes of a machine's own disks, as far as a storage pool has them."""
    volumes = []
    tree = facts.parse(domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE))
    for disk in tree.iterfind("devices/disk"):
        source = disk.find("source")
        shared = disk.find("readonly") is not None or disk.find("shareable") is not None
        if source is None or shared or disk.get("device", "disk") != "disk":
            continue
        with Suppressed(libvirt.VIR_ERR_NO_STORAGE_VOL):
            if pool := source.get("pool"):
                found = connection.storagePoolLookupByName(pool)
                volumes.append(found.storageVolLookupByName(source.get("volume")))
            elif place := source.get("file") or source.get("dev"):
                volumes.append(connection.storageVolLookupByPath(place))
    return volumes


# What the hosts are like: memory, guests, and what keeps a guest from moving while it runs.


def _dark(host: facts.HostAddress, why: str) -> dict[str, object]:
    can_reboot = _can_reboot(host)
    return {"answers": False, "why": why, "target": host.targets, "can_reboot": can_reboot}


def _can_reboot(host: facts.HostAddress) -> bool:
    return bool(host.reboot and host.boot_id)  # without a boot id nothing would prove the reboot


def _facts(host: facts.HostAddress, connection: Connection) -> dict[str, object]:
    boot_id = boot_id_of(host)
    guests = [_guest(domain) for domain in connection.listAllDomains()]
    return {
        "answers": True,
        "boot_id": boot_id,
        "free_memory_mib": free_memory(host, connection),
        "target": host.targets,
        "can_reboot": _can_reboot(host),
        "guests": [guest for guest in guests if guest],
    }


def _guest(domain: Domain) -> dict[str, object]:
    with Suppressed(NO_DOMAIN):
        state, _ = state_of(domain)
        return {
            "vm_id": domain.UUIDString(),
            "name": domain.name(),
            "running": state is not facts.DomainState.OFF,
            "memory_mib": domain.maxMemory() // 1024,
            "obstacles": _obstacles(domain, state),
        }
    return {}


def _obstacles(domain: Domain, state: facts.DomainState) -> list[str]:
    if state is facts.DomainState.OFF:
        return ["it is off"]
    found = []
    if state is not facts.DomainState.RUNNING:
        found.append(f"it is {state}")
    if hangs(domain):
        found.append("it does not answer libvirt")
    elif has_job(domain):
        found.append("a job is under way")
    for device in facts.parse(domain.XMLDesc(0)).iterfind("devices/*"):
        if device.tag == "hostdev" and device.find("teaming") is None:
            found.append(f"it has a device of its host ({device.get('type', 'unknown')})")
        if device.tag == "filesystem":
            found.append("it has a folder of its host")
    if domain.isPersistent() and domain.snapshotNum():
        found.append("it has snapshots")
    return found
