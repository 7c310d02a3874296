"""The rooms below put together, started and stopped in order.

Memory takes the whole store as one change, and then listens to the changefeed, before a socket
opens: nothing can change between the two, and no guest ever meets an empty document that says
"over, recover" (protocol.md section 9). All memory belongs to the event loop's thread; a task, the
writer's thread or the changefeed that ends by itself ends the service.
"""

import asyncio
import hashlib
import os
import shutil
import socket
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import Future
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog

from forewarn.clock import Clock
from forewarn.connectors.command import CommandConnector, CommandUnusable, passed_on
from forewarn.connectors.libvirt.connector import LibvirtConnector, require_libvirt
from forewarn.connectors.libvirt.surveys import LibvirtSurveys
from forewarn.connectors.port import Connector
from forewarn.connectors.simulated import SimulatedConnector
from forewarn.control import recovery
from forewarn.control.control_plane import ControlPlane, ServicePart
from forewarn.control.executor import Executor
from forewarn.control.fleet_sync import FleetSync
from forewarn.control.outbox import FollowerThread
from forewarn.control.plane import Plane, Retention
from forewarn.control.service_clock import ClockJumped, ClockScale, ServiceClock
from forewarn.control.ticker import Contained, Ticker
from forewarn.control.webhooks import Deliveries
from forewarn.control.writer import ThreadWriter
from forewarn.maintenance.alerts import Alert, AlertKind
from forewarn.maintenance.model import Changes, Machine
from forewarn.server import sockets
from forewarn.server.checks import ProgramChecks
from forewarn.server.guest.plane import GuestPlane
from forewarn.server.operator import connections
from forewarn.server.operator.plane import OperatorPlane, Served
from forewarn.server.operator.routing import Backend, ServiceState
from forewarn.server.operator.webhook_requests import Sender
from forewarn.server.process import Crashed
from forewarn.server.relay.application import RelayPlane
from forewarn.server.secret_files import SecretUnusable
from forewarn.server.settings import SIMULATED_HOSTS_NAME, Settings
from forewarn.store.port import Replica, StoreError, StoreUnusable
from forewarn.store.queries import Reading
from forewarn.store.sql import Store
from forewarn.version import __version__
from forewarn.vocabulary import EventType

DRAIN_SECONDS: Final = 1.5
"""The time for clients to leave their connections before the service stops: one that polls once a
second has asked once more by then."""

OTHERS_SECONDS: Final = 3.0
"""The longest wait for requests of operators and relays while guests are still served: what they
take beyond that, and the next start, are below an outage that moves notices."""

STOP_SECONDS: Final = 9.5
"""The longest that `drain` and `close` take together, within the ten that stopping may last."""

LOST_SHOWN: Final = timedelta(days=1)
"""The duration of the alert that the database lost changes: long enough for somebody to look."""

LOOK_SECONDS: Final = 1.0
"""The pause between two looks at the age of guests' documents."""

PROBE_SECONDS: Final = 2.0
"""The time for a write before the store counts as away."""

PROBE_EVERY: Final = 2.0
"""The shortest pause between two probes: one takes the lock that all replicas wait for."""

OWNER_NAME: Final = "replica"
"""The file in the folder of the connector's runs with the name of the replica that began them."""

CHECKS_NAME: Final = "checks"
"""The folder of the programs that check units, in that of the connector's runs."""

CLOCK_SETTING: Final = "clock"
"""The store's setting with the clock's scale and origin."""

STOPPING: Final = "the service is stopping"

_log = structlog.get_logger(__name__)


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """The addresses of the service, and the size of its fleet."""

    operators: tuple[str, ...]
    """`unix:/path` and `http://address:port`."""
    guests: tuple[str, ...]
    """`http://address:port`."""
    relays: tuple[str, ...] = ()
    """The same, for relays."""
    machines: int
    scopes: int


class Service:
    """The whole service without the process around it; `close` closes the store, too."""

    _probing: Future[None] | None = None
    _probed_at = 0.0
    _state = "the service is starting"
    _following: FollowerThread | None = None
    _database = ""
    """Different for each database, and after each restore of one."""
    _is_serving = False
    """True while guests are answered."""

    def __init__(
        self,
        *,
        settings: Settings,
        store: Store,
        clock: ServiceClock,
        real: Clock,
        guests: Callable[[Plane], GuestPlane],
        mint: Callable[[], str],
        handed_over: sockets.HandedOver,
    ) -> None:
        self._settings = settings
        own = _own_row(settings, mint(), clock.now())
        control = self._control = ControlPlane(
            store=store,
            clock=clock,
            real=real,
            own=own,
            mint=mint,
            policy=settings.rules.policy,
            sighting=lambda machine: self._guests.seen(machine),  # noqa: PLW0108 - made below
            ask_again=lambda operation: self._guests.ask_again(operation),  # noqa: PLW0108 - as above
            may_start=lambda: (
                clock.may_start() and (self._relays is None or self._relays.watch.may_start())
            ),
            serves=lambda: self._is_serving,
            kind=ThreadWriter,
        )
        self._guests = guests(control.plane)
        self._ticker = _ticker_of(settings, control.plane, clock)
        replica = own.name if store.shared else ""
        connector = connector_of(settings, clock, os.environ, self._guests.machines.values, replica)
        self._executor = Executor(
            control.plane,
            connector,
            clock,
            own.name,
            on_unknown=settings.connector.on_unknown,
            replicas=control.replicas.live,
        )
        self._sync = sync_of(settings, control.plane, clock, real)
        self._sender = Sender(real, settings.webhooks.tls_ca)
        reached = connections.ReachedLimits("relay")
        self._backend = Backend.over(
            control,
            settings=settings,
            guests=self._guests,
            connector=connector,
            checks=_checks_of(settings),
            readiness=self.readiness,
            tasks=lambda: self._executor.running,
            collectors=[*control.writer.collectors, reached.counter],
            sender=self._sender,
            observed=self._observed,
        )
        self._relays = self._make_relays(handed_over, reached) if settings.relay.listen else None
        self._operators = OperatorPlane(self._backend, mint, own.process, handed_over)
        self._webhooks = Deliveries(
            control.plane, self._backend.read, clock, real, self._sender.send
        )
        self._parts = tuple(self._all_parts())
        self._tasks: dict[str, asyncio.Task[None]] = {}
        """The tasks that never end by themselves, by name."""
        self._kept: dict[str, Alert] = {}
        """The files that could not be read again, by their use."""
        self._serving: list[asyncio.Task[None]] = []
        """Those of them that serve operators and relays."""
        self._stop_by = 0.0
        """By the loop's time, once it stops."""

    def _make_relays(
        self, handed_over: sockets.HandedOver, reached: connections.ReachedLimits
    ) -> RelayPlane:
        on_stranger = self._sync.survey_soon
        return RelayPlane(
            self._backend, handed_over, reached, epoch=self._epoch, on_stranger=on_stranger
        )

    def _epoch(self) -> str:
        lost = self._control.follower.lost
        return f"{self._database}-{lost.token}" if lost is not None else self._database

    def _all_parts(self) -> Iterator[ServicePart]:
        """Yield each part once, in the order in which they learn of a change, start and stop."""
        control, backend = self._control, self._backend
        page, relays = self._operators.page, self._relays
        yield ServicePart("the writer", run=lambda: _until(control.writer.ended))
        yield ServicePart("the changefeed", run=lambda: _until(control.feed.ended))
        if control.store.shared:
            yield ServicePart("the follower", run=self._follow)
            yield ServicePart("the watch of the store", run=self._watch_store)
        # It counts before the inventory forgets what was.
        yield ServicePart(see=self._operators.counted.learn)
        if page is not None:
            yield ServicePart(learn=page.now.learn)
        yield ServicePart(learn=self._guests.learn)
        yield ServicePart(learn=backend.learn, begin=backend.news.begin, hear=backend.news.learn)
        # The last time that it saves is one at which guests could still read.
        yield ServicePart("the heartbeat", run=control.heartbeat.run, stop=control.heartbeat.stop)
        yield ServicePart.of("the ticker", self._ticker)
        yield ServicePart.of("the executor", self._executor)
        returns = ServicePart.of("the watch for returns", control.returns)
        yield returns._replace(begin=lambda _: control.returns.begin())
        yield ServicePart.of("the drains of hosts", backend.hosts)
        yield ServicePart.of("maintenances", backend.maintenances)
        yield ServicePart.of("the watch of the hosts", self._sync)
        yield ServicePart.of("webhooks", self._webhooks)._replace(hear=self._webhooks.hear)
        yield ServicePart(learn=control.sightings.learn)
        if relays is not None:
            yield ServicePart.of("the watch of the relays", relays.watch)._replace(
                learn=relays.learn,
                begin=relays.begin,
                hear=lambda reached: relays.hub.reach(reached.sequence),
            )
        yield ServicePart(see=_tell)
        if page is not None:
            yield ServicePart(see=page.live.learn)

    async def open(self) -> Opened:
        """Start everything; the sockets last, when memory is whole.

        After SocketUnusable, SecretUnusable or StoreError the service cannot run; `close` it.
        """
        control, following = self._control, None
        self._guests.tell_news(control.sightings.hear)
        if control.store.shared:
            own = control.replicas.own
            membership = await asyncio.to_thread(control.store.join, own.name)
            following = self._following = FollowerThread(
                control.follower, control.store, membership, own.process
            )
        released = await control.begin(alone=following is None)
        if released:
            _log.info("operations that were under way are taken up again", operations=released)
        self._database = await asyncio.wrap_future(
            control.plane.order(lambda unit: database_id(unit.store))
        )
        control.fill(self._parts)
        control.feed.deliver_on(asyncio.get_running_loop())
        if following is not None:
            following.start()
        operators = self._serve("the API", self._operators.open())
        relays = self._serve("the relay plane", self._relays.open() if self._relays else ())
        guests = await self._guests.open()
        self._is_serving = True
        control.replicas.own = msgspec.structs.replace(control.replicas.own, addresses=guests)
        control.clock.open()
        for part in self._parts:
            if part.run is not None:
                self._start(part.name, part.run())
        self._state = ""
        return Opened(
            operators=operators,
            guests=guests,
            relays=relays,
            machines=len(self._backend.inventory.machines),
            scopes=len(self._backend.inventory.scopes),
        )

    def _serve(self, what: str, opened: Iterable[Served]) -> tuple[str, ...]:
        """Serve each socket as soon as it is open; return their addresses."""
        addresses = []
        for address, serving in opened:
            self._serving.append(self._start(f"{what} at {address}", serving))
            addresses.append(address)
        return tuple(addresses)

    def _start(self, name: str, running: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = self._tasks[name] = asyncio.create_task(running, name=name)
        return task

    async def _compile_page(self) -> None:
        if self._operators.page is not None:
            await self._operators.page.renderer.compile(self._control.real)

    async def wait(self, stop: asyncio.Event) -> None:
        """Return when `stop` is set.

        Raises:
            ClockJumped: The wall clock has jumped, and the service cannot go on.
            Crashed: A part of the service has ended by itself.
        """
        waiting = asyncio.create_task(stop.wait())
        compiling = asyncio.create_task(self._compile_page())
        await asyncio.wait({waiting, *self._tasks.values()}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        compiling.cancel()
        for task in filter(asyncio.Task.done, self._tasks.values()):
            cause = None if task.cancelled() else task.exception()
            if isinstance(cause, ClockJumped):
                raise cause
            raise Crashed(f"{task.get_name()} has ended by itself") from cause
        self._control.heartbeat.leaving = True

    async def drain(self) -> None:
        """Ask clients to leave the connections that they keep, while all are still served.

        So nobody sends a request by a connection that is closed in the same moment. Then the
        sockets of operators and relays are closed, before `close` ends the guests'.
        """
        self._end_streams()
        if self._relays is not None:
            await self._relays.drain(0.0)
        await asyncio.gather(
            self._guests.drain(DRAIN_SECONDS), self._operators.drain(DRAIN_SECONDS)
        )
        self._stop_serving()
        if self._serving:
            await asyncio.wait(self._serving, timeout=OTHERS_SECONDS)

    def _stop_serving(self) -> None:
        self._operators.stop()
        if self._relays is not None:
            self._relays.stop()

    async def close(self) -> None:
        """Stop accepting, finish requests, leave the store clean; `drain` may come before.

        TimeoutError after STOP_SECONDS; what was committed is safe.
        """
        self._end_streams()
        async with asyncio.timeout_at(self._stop_by):
            self._stop_serving()
            for part in self._parts:
                if part.stop is not None:
                    part.stop()
                elif part.name in self._tasks:
                    self._tasks[part.name].cancel()
            ending = self._guests.close(), *self._tasks.values()
            await asyncio.gather(*ending, return_exceptions=True)
            self._operators.close()
            self._sender.close()
            await asyncio.to_thread(self._control.writer.close)
            if self._following is not None:
                await asyncio.to_thread(self._following.close)
            await asyncio.to_thread(self._control.store.close)

    def _end_streams(self) -> None:
        self._state = STOPPING
        self._stop_by = self._stop_by or asyncio.get_running_loop().time() + STOP_SECONDS
        self._operators.end_streams()

    def reload(self) -> None:
        """Read the files again that may change at run time: secrets, and the certificate."""
        files = {
            "the proxies' secrets": self._guests.reload,
            "the operators' token": self._operators.read_token,
            "the certificate": self._operators.certificate.read,
        }
        if self._relays is not None:
            files["the relays' certificate"] = self._relays.certificate.read
        for what, read in files.items():
            try:
                read()
            except SecretUnusable as error:
                message = f"could not read {what} again: the old value stays in use"
                _log.error(message, why=str(error))
                alert = Alert(
                    AlertKind.FAILING, what, f"{message}: {error}", self._control.clock.now()
                )
                self._kept.setdefault(what, alert)
            else:
                self._kept.pop(what, None)
                _log.info(f"read {what} again")

    async def readiness(self) -> ServiceState:
        """Find out if the service can do all its work; write something to test the store."""
        found = [self._state] if self._state else []
        found += [f"{task.get_name()} has ended" for task in self._tasks.values() if task.done()]
        if self._control.follower.cut_off:
            seconds = self._control.follower.behind_seconds
            found.append(f"the database has not been reached for {seconds:.0f} s")
        if not found:
            found += self._control.clock.obstacles()
            found += [rounds.obstacle for rounds in self._rounds() if rounds.obstacle]
        trouble = await self._probe()
        if trouble:
            found.append(trouble)
        return ServiceState(reasons=tuple(found), store_up=not trouble)

    def _rounds(self) -> Iterator[Contained]:
        return (part.rounds for part in self._parts if part.rounds is not None)

    def _observed(self) -> Iterator[Alert]:
        for rounds in self._rounds():
            yield from rounds.alerts()
        yield from self._kept.values()
        yield from self._of_lost_changes()
        yield from self._control.replicas.alerts()

    def _of_lost_changes(self) -> Iterator[Alert]:
        lost = self._control.follower.lost
        if lost is not None and self._control.clock.now() - lost.at < LOST_SHOWN:
            message = (
                f"the database lost its last changes, {lost.changes} at least: approvals may be "
                "among them, and what had started counts as begun elsewhere; look at what runs"
            )
            yield Alert(AlertKind.LOST_CHANGES, "database", message, lost.at)

    async def _follow(self) -> None:
        assert self._following is not None  # `open` made it
        await asyncio.wrap_future(self._following.ended)

    async def _watch_store(self) -> None:
        """Suspend guests' answers while memory is older than allowed."""
        limit = self._settings.replica.max_stale_seconds
        suspended = False
        while True:
            stale = self._control.follower.behind_seconds > limit
            if self._relays is not None:
                self._relays.cut_off(cut_off=self._control.follower.cut_off)
            if stale and not suspended:
                _log.error("guests are not answered: the database cannot be reached", seconds=limit)
                self._guests.suspend()
            elif suspended and not stale:
                _log.info("guests are answered again")
                self._guests.resume()
            if stale is not suspended:
                suspended, self._is_serving = stale, not stale
            await self._control.real.wait(LOOK_SECONDS)

    async def _probe(self) -> str:
        """Try to write; return the reason why that failed, `""` when a write was committed."""
        now = self._control.real.monotonic()
        lately = self._control.store.shared and now - self._probed_at < PROBE_EVERY
        # One at a time: a writer that is stuck keeps it.
        if self._probing is None or (self._probing.done() and not lately):
            self._probing, self._probed_at = self._control.plane.probe(), now
        probing, ended = asyncio.wrap_future(self._probing), asyncio.Event()
        probing.add_done_callback(lambda _: ended.set())
        try:
            await self._control.real.wait(PROBE_SECONDS, ended)
        finally:
            probing.cancel()
        if probing.cancelled():
            return f"a write to the store has not ended within {PROBE_SECONDS:.0f} s"
        try:
            await probing
        except StoreError as error:
            return str(error)
        return ""


def _ticker_of(settings: Settings, plane: Plane, clock: ServiceClock) -> Ticker:
    keep = Retention(
        history=timedelta(days=settings.history.retention_days),
        audit=timedelta(days=settings.history.audit_retention_days),
        news=timedelta(days=settings.history.news_retention_days),
    )
    return Ticker(plane, clock, keep)


def _checks_of(settings: Settings) -> ProgramChecks:
    state = Path(settings.connector.command.state) / CHECKS_NAME
    return ProgramChecks(settings.maintenance.check, state, os.environ, settings.clock.scale)


def _own_row(settings: Settings, process: str, now: datetime) -> Replica:
    name = settings.replica.name or socket.gethostname()
    return Replica(name=name, process=process, version=__version__, started_at=now, beat_at=now)


async def _until(ended: "Future[None]") -> None:
    await asyncio.wrap_future(ended)


def connector_of(
    settings: Settings,
    clock: Clock,
    environment: Mapping[str, str],
    machines: Callable[[], Iterable[Machine]],
    replica: str = "",
) -> Connector:
    """Return the connector that carries maintenance out; `machines` returns those of the fleet.

    `replica` is this one's name where others share the store; "" where it is alone.

    Raises:
        CommandUnusable: The operator's program or its folder cannot be used; one line says why.
    """
    connector = settings.connector
    state = Path(connector.command.state)
    if replica and connector.kind != "simulated":
        _keep_apart(state, replica)
    if connector.kind == "libvirt":
        return LibvirtConnector(connector.libvirt, state, environment, os.name)
    if connector.kind == "command":
        return CommandConnector(connector.command, state, environment, os.name)
    durations = {
        kind: timedelta(seconds=getattr(connector.simulated, f"{kind.lower()}_seconds"))
        for kind in EventType
    }
    return SimulatedConnector(
        clock,
        durations,
        machines,
        Path(settings.store.path).with_name(SIMULATED_HOSTS_NAME),
        timedelta(seconds=connector.simulated.host_reboot_seconds),
    )


def check_programs(settings: Settings, environment: Mapping[str, str]) -> None:
    """Look for the programs of the connector, before the first machine waits for them.

    Raises:
        CommandUnusable: One is not there; one line says which.
    """
    connector = settings.connector
    if connector.kind == "libvirt":
        require_libvirt(connector.libvirt, environment)
    if connector.kind != "command":
        return
    for name in ("program", "check_command"):
        argv = getattr(connector.command, name)
        if argv and shutil.which(argv[0]) is None:
            where = f"connector.command.{name}"
            message = f"{where}: there is no program {argv[0]}, or it may not be executed"
            raise CommandUnusable(message)


def _keep_apart(state: Path, replica: str) -> None:
    """Refuse another replica's folder: it would take that one's runs for finished ones."""
    owner = state / OWNER_NAME
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        kept = owner.read_text(encoding="utf-8") if owner.exists() else ""
        if not kept:  # new, or empty since the disk was full
            owner.write_text(replica, encoding="utf-8")
    except OSError as error:
        raise CommandUnusable(f"connector.command.state: {error}") from error
    if kept not in {"", replica}:
        raise CommandUnusable(
            f"connector.command.state: {state} belongs to the replica {kept!r}, and this one is "
            f"{replica!r}: give each a folder and a replica.name of its own"
        )


def sync_of(settings: Settings, plane: Plane, clock: Clock, real: Clock) -> FleetSync:
    """Return the watch of the fleet's hosts; it has none where `sync` is off."""
    hosts = settings.hypervisors if settings.fleet.libvirt.sync else {}
    surveys = LibvirtSurveys(hosts, settings.libvirt_python, passed_on(os.environ), real)
    return FleetSync(plane, clock, real, surveys)


def clock_of(store: Store, scale: float, real: Clock) -> ServiceClock:
    """Return the service's clock, which may run `scale` times as fast as the machine's.

    Replicas that share a database go by its clock.

    The database remembers the scale that it was first served with. A scaled clock's times lie
    beside the machine's for ever, so another scale is refused (StoreUnusable); the same goes on
    from where the clock would be by now.
    """
    at = None
    with store.read() as reading:
        kept = reading.setting(CLOCK_SETTING)
    if kept is None or store.shared:
        with store.write() as transaction:
            at = transaction.now()
            kept = transaction.setting(CLOCK_SETTING)  # replicas may start at once
            if kept is None:
                made = ClockScale(scale=scale, origin=at or real.now())
                kept = msgspec.json.encode(made).decode()
                transaction.put_setting(CLOCK_SETTING, kept)
    pace = msgspec.json.decode(kept, type=ClockScale)
    if pace.scale != scale:
        raise StoreUnusable(
            f"this database was served with clock.scale = {pace.scale:g}, so its times are "
            f"not those of {scale:g}: set clock.scale = {pace.scale:g}, or name another "
            "database in [store]"
        )
    return ServiceClock(real, at=at, pace=pace)


def database_id(reading: Reading) -> str:
    """Return a text that no other database has, and that a restored one loses.

    The clock's setting tells to the microsecond when the database was first served.
    """
    told = (reading.setting(CLOCK_SETTING), reading.setting(recovery.RESTORED))
    return hashlib.sha256(repr(told).encode()).hexdigest()[:16]


MOST_TOLD: Final = 20
"""The most operations of one change that get a line each; of more, only their number is logged."""


def _tell(changes: Changes) -> None:
    """Log the changes of operations; a claim or a renewal is no news."""
    news = [o for o in changes.operations if o.lease_until is None]
    if len(news) > MOST_TOLD:
        _log.info("operations changed", operations=len(news))
        return
    log = _log.bind()  # once for all
    for operation in news:
        log.info(
            "operation",
            operation=operation.id,
            type=operation.event_type,
            status=operation.status,
            machines=len(operation.machines),
            outcome=operation.outcome,
        )
    if changes.machines or changes.removed_machines:
        _log.info(
            "the fleet changed",
            machines=len(changes.machines),
            removed=len(changes.removed_machines),
        )
