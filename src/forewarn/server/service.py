"""The rooms below put together, started and stopped in order.

Memory is filled from the store before a socket opens, and listens to the feed before anything can
change: so nothing is missed between the two, and no guest ever meets an empty document that tells
it "over, recover" (protocol.md section 9).
"""

import asyncio
import os
from collections.abc import Callable, Coroutine
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog

from forewarn.clock import Clock, ScaledClock, SystemClock
from forewarn.control.changefeed import Changefeed
from forewarn.control.executor import Executor
from forewarn.control.heartbeat import Heartbeat
from forewarn.control.plane import Plane
from forewarn.control.ticker import Ticker
from forewarn.control.watch import Watch
from forewarn.control.writer import ThreadWriter
from forewarn.maintenance.model import Changes, Enablement, Policy
from forewarn.server import carrying
from forewarn.server.guests import Guests
from forewarn.server.operator import api, auth, sockets
from forewarn.server.operator.inventory import Inventory
from forewarn.server.operator.metrics import Measured, OperationMetrics
from forewarn.server.operator.requests import Backend
from forewarn.server.secret_files import SecretUnusable
from forewarn.server.settings import OFF, RulesSettings, Settings
from forewarn.settings import split_address
from forewarn.store.port import Store, StoreError

CLOSE_SECONDS: Final = 9.0
"""The longest that `close` takes: a second is left of the ten that stopping may last."""

PROBE_SECONDS: Final = 2.0
"""How long the store may take to answer before it counts as away."""

CLOCK_SETTING: Final = "clock"
"""Where a scaled clock's origin is kept in the store."""

_log = structlog.get_logger(__name__)


class Crashed(Exception):  # noqa: N818 - what happened to it
    """A part that never ends has ended: the service must not limp on without it."""


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """Where the service is reached, and how much it serves."""

    operators: tuple[str, ...]
    """`unix:/path` and `http://address:port`."""
    guests: tuple[str, ...]
    """`http://address:port`."""
    machines: int
    scopes: int


class Service:
    """Everything but the process around it.

    Args:
        settings: Judged, with absolute places.
        store: Open, and this process's alone; `close` closes it.
        clock: The service's time.
        guests: Makes the guest plane, which asks the control plane and reads the clock.
        mint: Gives a new GUID at each call.
        real: The machine's own clock; the system's if left out.
    """

    def __init__(
        self,
        *,
        settings: Settings,
        store: Store,
        clock: Clock,
        guests: Callable[[Plane, Watch], Guests],
        mint: Callable[[], str],
        real: Clock | None = None,
    ) -> None:
        self._settings = settings
        self._store = store
        self._feed = Changefeed()
        machines_own = real or SystemClock()
        watch = self._watch = Watch(clock, machines_own, settings.clock.scale)
        self._writer = ThreadWriter(store, watch, self._feed, machines_own)
        self._plane = Plane(
            self._writer, mint, policy_of(settings.rules), may_start=watch.may_start
        )
        self._guests = guests(self._plane, watch)
        self._inventory = Inventory(self._guests.machines)
        self._heartbeat = Heartbeat(self._plane, watch, machines_own)
        keep = timedelta(days=settings.history.retention_days)
        self._ticker = Ticker(self._plane, watch, keep, watch.may_start)
        self._executor = Executor(
            self._plane,
            carrying.chosen(settings, watch, os.environ),
            watch,
            settings.connector.kind,
            on_unknown=settings.connector.on_unknown,
        )
        self._counted = OperationMetrics()
        self._backend = Backend(
            plane=self._plane,
            store=store,
            inventory=self._inventory,
            callers=self._guests,
            listeners=frozenset(listener.name for listener in settings.guest.listener),
            clock=watch,
            up_since=watch.now(),
            scale=settings.clock.scale,
            ready=self.reasons,
            time=self._heartbeat,
            measured=Measured(
                policy=policy_of(settings.rules),
                collectors=(*self._counted.collectors, *self._writer.collectors),
                figures=self._guests.figures,
                tasks=lambda: self._executor.running,
            ),
        )
        self._servers: list[sockets.Server] = []
        self._tasks: dict[asyncio.Task[None], str] = {}
        self._state = "the service is starting"

    async def open(self) -> Opened:
        """Start everything; the sockets last, when memory is whole.

        Raises:
            SocketUnusable, TokenUnusable, StoreError: The service cannot run; `close` it.
        """
        loop = asyncio.get_running_loop()
        for learn in (self._guests.learn, self._inventory.learn, self._counted.learn, _tell):
            self._feed.subscribe_on_loop(loop, learn)
        self._ticker.follow(self._feed, loop)
        self._executor.follow(self._feed, loop)
        await self._heartbeat.begin()
        released = await asyncio.wrap_future(self._plane.release_claims())
        if released:
            _log.info("operations that were under way are taken up again", operations=released)
        await self._fill()
        operators = self._open_operators()
        guests = await self._guests.open()
        self._watch.open()
        self._start("the heartbeat", self._heartbeat.run())
        self._start("the ticker", self._ticker.run())
        self._start("the executor", self._executor.run())
        self._state = ""
        return Opened(
            operators=operators,
            guests=guests,
            machines=len(self._inventory.machines),
            scopes=len(self._inventory.scopes),
        )

    async def wait(self, stop: asyncio.Event) -> None:
        """Return when `stop` is set.

        Raises:
            Crashed: A part of the service has ended by itself.
        """
        waiting = asyncio.create_task(stop.wait())
        await asyncio.wait({waiting, *self._tasks}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        for task, name in self._tasks.items():
            if task.done():
                message = f"{name} has ended by itself"
                raise Crashed(message) from (None if task.cancelled() else task.exception())

    async def close(self) -> None:
        """Stop accepting, finish what is under way, leave the store clean.

        Raises:
            TimeoutError: It took longer than CLOSE_SECONDS; what was committed is safe.
        """
        self._state = "the service is stopping"
        async with asyncio.timeout(CLOSE_SECONDS):
            self._heartbeat.stop()
            for server in self._servers:
                server.should_exit = True
            serving = [task for task in self._tasks if self._tasks[task].startswith("the API")]
            await asyncio.gather(self._guests.close(), *serving, return_exceptions=True)
            self._ticker.stop()
            self._executor.stop()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await asyncio.to_thread(self._writer.close)
            await asyncio.to_thread(self._store.close)
        if self._servers and self._settings.operator.socket != OFF:
            sockets.remove(Path(self._settings.operator.socket))

    def reload(self) -> None:
        """Read again what may be changed while the service runs: the proxies' secrets."""
        try:
            self._guests.reload()
        except SecretUnusable as error:
            _log.error("the proxies' secrets stay as they were", why=str(error))
        else:
            _log.info("the proxies' secrets were read again")

    async def reasons(self) -> tuple[str, ...]:
        """Return what keeps the service from doing all its work; nothing when all is well."""
        found = [self._state] if self._state else []
        found += [f"{name} has ended" for task, name in self._tasks.items() if task.done()]
        if not found:
            found += self._watch.obstacles()
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                await self._backend.read(lambda reading: reading.setting(CLOCK_SETTING))
        except StoreError as error:
            found.append(str(error))
        except TimeoutError:
            found.append(f"the store has not answered within {PROBE_SECONDS:.0f} s")
        return tuple(found)

    async def _fill(self) -> None:
        """Fill memory; nothing else is asked of the plane until that is done."""
        scopes, machines, operations = await self._backend.read(
            lambda reading: (reading.scopes(), reading.machines(), reading.live_operations())
        )
        self._guests.fill(scopes.values(), machines.values(), operations.values())
        self._inventory.fill(scopes.values(), operations.values())
        self._counted.fill(operations.values())

    def _open_operators(self) -> tuple[str, ...]:
        application = api.application(self._backend)
        operator = self._settings.operator
        opened: list[str] = []
        if operator.socket != OFF:
            unix = sockets.open_unix(Path(operator.socket))
            gate = auth.Gate(application, None, None)
            self._serve(gate, unix, f"unix:{operator.socket}", opened)
        if operator.listen:
            token = auth.token(Path(operator.token_file))
            address, port = split_address(operator.listen)
            tcp = sockets.open_tcp(address, port)
            gate = auth.Gate(application, token, (address, *operator.hosts))
            self._serve(gate, tcp, shown(address, tcp.getsockname()[1]), opened)
        return tuple(opened)

    def _serve(
        self, gate: auth.Gate, opened: sockets.Socket, address: str, addresses: list[str]
    ) -> None:
        server = sockets.Server(gate)
        self._servers.append(server)
        self._start(f"the API at {address}", server.serve(sockets=[opened]))
        addresses.append(address)

    def _start(self, name: str, running: Coroutine[Any, Any, None]) -> None:
        self._tasks[asyncio.create_task(running)] = name


def policy_of(rules: RulesSettings) -> Policy:
    """Return what the settings decide about the rules."""
    return Policy(
        enablement=Enablement(rules.enablement),
        disable_after=timedelta(seconds=rules.disable_after_seconds),
        user_initiated_limit=rules.user_initiated_limit,
    )


def clock_of(store: Store, scale: float, real: Clock) -> Clock:
    """Return the service's clock: the machine's own, unless it is or ever was scaled here.

    A store that has run scaled has times in it that the machine's clock has not reached; its
    clock goes on from where it would be by now, at the new scale, and never back.

    Args:
        store: Where the clock's origin is kept.
        scale: The service's seconds in a real one.
        real: The machine's clock.
    """
    with store.read() as reading:
        kept = reading.setting(CLOCK_SETTING)
    if kept is None and scale == 1.0:
        return real
    now = real.now()
    origin = now
    if kept is not None:
        before = msgspec.json.decode(kept, type=_Origin)
        if before.scale == scale:
            return ScaledClock(scale, before.origin, before.real_origin)
        origin = ScaledClock(before.scale, before.origin, before.real_origin).now()
    wanted = _Origin(scale=scale, origin=origin, real_origin=now)
    with store.write() as transaction:
        transaction.put_setting(CLOCK_SETTING, msgspec.json.encode(wanted).decode())
    return ScaledClock(scale, origin, now)


class _Origin(msgspec.Struct, frozen=True, kw_only=True):
    """What a scaled clock showed, and when."""

    scale: float
    origin: datetime
    real_origin: datetime


def shown(address: str, port: int) -> str:
    """Return the URL of an address."""
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"


MOST_TOLD: Final = 20
"""The most operations of one change that get a line each; of more, only their number is told."""


def _tell(changes: Changes) -> None:
    """Log what became of operations; a claim or a renewal is no news."""
    news = [o for o in changes.operations if o.lease_until is None]
    if len(news) > MOST_TOLD:
        _log.info("operations changed", operations=len(news))
        return
    for operation in news:
        _log.info(
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
