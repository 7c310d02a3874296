"""The whole service in a thread of the test's process, and a client that speaks plain HTTP."""

import asyncio
import contextlib
import http.client
import itertools
import json
import os
import pwd
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import msgspec
import yaml

import patience
from forewarn.clock import Clock, SystemClock
from forewarn.connectors.port import Outcome
from forewarn.connectors.settings import CommandConnectorSettings
from forewarn.control.plane import Plane
from forewarn.control.service_clock import ServiceClock
from forewarn.maintenance.model import Changes, Machine, Operation, Sighting
from forewarn.protocol.versions import Version
from forewarn.server import settings
from forewarn.server.guest.documents import DocumentCache
from forewarn.server.guest.endpoint import Figures
from forewarn.server.operator.table import Route
from forewarn.server.service import Opened, Service, clock_of
from forewarn.server.sockets import HandedOver
from forewarn.settings import prepare_types
from forewarn.store.port import StoreUnavailable
from forewarn.store.queries import Reading
from forewarn.store.sql import Store, Transaction
from forewarn.store.sqlite import InMemoryStore
from forewarn.vocabulary import AccessRole, AgentStatus
from store.wrapped import Wrapped

ME = pwd.getpwuid(os.geteuid()).pw_name
"""By whom requests over the unix socket are."""

FLEET: Final = Path(__file__).with_name("fleet.yaml").read_text("utf-8")
NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)

Cli = Callable[..., tuple[int, str, str]]
"""Runs a command; returns its exit status and what it printed."""


class Sightings:
    """A guest plane without guests: what the test says was seen, was seen."""

    def __init__(self) -> None:
        self.machines: dict[str, Machine] = {}
        self.sightings: dict[str, Sighting] = {}
        self.documents = DocumentCache()
        self.asked_again: list[str] = []
        self.learned: list[Changes] = []
        self.closed = False
        self.hear: Callable[[str], None] = lambda machine: None
        self.suspended = False
        self.counted: Figures = {
            "guest_connections": 0,
            "guest_connections_accepted": 0,
            "guest_waiters": 0,
            "guest_requests": {},
            "guest_refusals": {},
        }

    def learn(self, changes: Changes) -> None:
        self.learned.append(changes)
        self.documents.learn(changes)
        for name in changes.removed_machines:
            del self.machines[name]
        self.machines.update((machine.key, machine) for machine in changes.machines)

    def document(self, scope: str, version: Version) -> bytes:
        return self.documents.page(scope, version).body

    def saw(
        self,
        machine: str,
        version: str = "2020-07-01",
        *,
        at: datetime = NOON,
        agent: AgentStatus | None = None,
        reason: str = "",
    ) -> None:
        self.sightings[machine] = Sighting(asked_at=at, version=version, agent=agent, reason=reason)
        self.hear(machine)

    def ask_again(self, operation: Operation) -> None:
        self.asked_again.append(operation.id)

    def tell_news(self, hear: Callable[[str], None]) -> None:
        self.hear = hear

    def suspend(self) -> None:
        self.suspended = True

    def resume(self) -> None:
        self.suspended = False

    def seen(self, machine_key: str) -> Sighting | None:
        return self.sightings.get(machine_key)

    async def open(self) -> tuple[str, ...]:
        return ()

    def figures(self) -> Figures:
        return self.counted

    def reload(self) -> None:
        return None

    async def drain(self, seconds: float) -> None:
        del seconds

    async def close(self) -> None:
        self.closed = True


def guids() -> Callable[[], str]:
    numbers = itertools.count(1)
    return lambda: f"00000000-0000-4000-8000-{next(numbers):012x}"


class Hurried(SystemClock):
    """A clock that shows noon at first, and by which a pause is over in a tenth of its seconds."""

    HASTE: Final = 10.0

    def __init__(self) -> None:
        self._began = super().monotonic()

    def now(self) -> datetime:
        return NOON + timedelta(seconds=self.monotonic() - self._began * self.HASTE)

    def monotonic(self) -> float:
        return super().monotonic() * self.HASTE

    async def wait(self, seconds: float, wake: asyncio.Event | None = None) -> None:
        await super().wait(seconds / self.HASTE, wake)


def settings_in(
    folder: Path, simulated: settings.SimulatedSettings | None = None, **operator: Any
) -> settings.Settings:
    """Return settings whose places are all in a folder."""
    wanted = {"socket": str(folder / "operator.sock"), **operator}
    return settings.Settings(
        store=settings.StoreSettings(path=str(folder / "forewarn.db")),
        # Checks run in this folder too: without one, in whoever runs the tests'.
        connector=settings.ConnectorSettings(
            simulated=simulated or settings.SimulatedSettings(),
            command=CommandConnectorSettings(state=str(folder / "commands")),
        ),
        operator=msgspec.convert(
            {"token_file": str(folder / "operator.token"), **wanted}, settings.OperatorSettings
        ),
    )


class Running:
    """A service, from `open` to `close`, on a loop of its own.

    `real` is the clock by which it pauses and waits, the machine's own by default.
    """

    def __init__(
        self,
        wanted: settings.Settings,
        store: Store,
        clock: Clock | None = None,
        *,
        real: Clock | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.settings = wanted
        self.guests = Sightings()
        self.opened = Opened(operators=(), guests=(), machines=0, scopes=0)
        self._store = store
        self._clock = clock
        self._real = real or SystemClock()
        self._plane: Plane | None = None
        self._service: Service | None = None
        self._loop = loop or asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def plane(self) -> Plane:
        assert self._plane is not None
        return self._plane

    def __enter__(self) -> "Running":
        prepare_types()
        self._thread.start()
        assert self._ready.wait(patience.SECONDS)
        if self._error is not None:
            self._thread.join(patience.SECONDS)
            raise self._error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        with contextlib.suppress(RuntimeError):
            self.stop()
        self._thread.join(patience.SECONDS)
        assert not self._thread.is_alive()
        if self._error is not None and error is None:
            raise self._error

    def end_a_part(self, name: str) -> None:
        """Cancel one of the service's tasks, as a mistake in it would end it, and await the end."""

        def cancel() -> None:
            assert self._service is not None
            self._service._tasks[name].cancel()

        self._loop.call_soon_threadsafe(cancel)
        self._thread.join(patience.SECONDS)

    def stop(self) -> None:
        """Have it stop."""
        self._loop.call_soon_threadsafe(self._stop.set)

    def wait(self) -> None:
        """Wait for an end that comes by itself."""
        self._thread.join(patience.SECONDS)

    def end(self) -> None:
        """Wait for that, and raise what it came of."""
        self.wait()
        if self._error is not None:
            raise self._error

    def reload(self) -> None:
        """Have the service read its files again, as SIGHUP does."""

        async def read() -> None:
            assert self._service is not None
            self._service.reload()

        asyncio.run_coroutine_threadsafe(read(), self._loop).result()

    def client(self) -> "Client":
        return Client(Path(self.settings.operator.socket))

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        except BaseException as error:  # noqa: BLE001 - the test's thread raises it
            self._error = error
        finally:
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()
            self._ready.set()

    def _guests_of(self, plane: Plane) -> Any:
        self._plane = plane
        return self.guests

    async def _serve(self) -> None:
        real = SystemClock()
        if self._clock is None:
            self._watch = clock_of(self._store, self.settings.clock.scale, real)
        else:
            self._watch = ServiceClock(self._clock, loop=real)
        service = self._service = Service(
            settings=self.settings,
            store=self._store,
            clock=self._watch,
            real=self._real,
            guests=self._guests_of,
            mint=guids(),
            handed_over=HandedOver(),
        )
        try:
            self.opened = await service.open()
            self._ready.set()
            await service.wait(self._stop)
            await service.drain()
        finally:
            await service.close()


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=patience.SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


class Answer:
    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = response.headers
        self.body = response.read()

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> Any:
        return self.json["error"]


class Client:
    """Speaks to the operator plane over its socket, or over TCP with a URL."""

    def __init__(self, place: Path | str, token: str = "", source: str = "") -> None:
        self._place = place
        self._token = token
        self._source = (source, 0) if source else None

    def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> Answer:
        """Send a request; a body that is no bytes goes as JSON."""
        sent = {} if body is None else {"Content-Type": "application/json"}
        if self._token:
            sent["Authorization"] = f"Bearer {self._token}"
        sent.update(headers or {})
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        with contextlib.closing(self._connection()) as connection:
            connection.request(method, path, body=data, headers=sent)
            return Answer(connection.getresponse())

    def get(self, path: str) -> Any:
        answer = self.ask("GET", path)
        assert answer.status == 200, answer.body
        return answer.json

    def _connection(self) -> http.client.HTTPConnection:
        if isinstance(self._place, Path):
            return UnixConnection(self._place)
        return http.client.HTTPConnection(
            self._place.removeprefix("http://"),
            timeout=patience.SECONDS,
            source_address=self._source,
        )


_numbers = itertools.count(256)


def stranger(url: str, token: str = "") -> Client:
    """Return a client with an address of its own: who fails too often waits for each answer."""
    high, low = divmod(next(_numbers), 256)
    return Client(url, token, source=f"127.0.{high}.{low}")


def fleet() -> dict[str, Any]:
    """Return a fleet with a scope of every kind."""
    found: dict[str, Any] = yaml.safe_load(FLEET)
    return found


def request_reboot(client: Client, **more: Any) -> Any:
    answer = client.ask(
        "POST", "/v1/maintenances", {"event_type": "Reboot", "machines": ["web-0"], **more}
    )
    assert answer.status == 201, answer.body
    return answer.json


def under_way(client: Client, reference: str) -> int:
    """Approve an operation; return the attempt of the executor that took it."""
    client.ask("POST", "/v1/approvals", {"references": [reference]})
    (operation,) = patience.until(
        lambda: [
            each
            for each in client.get(f"/v1/history?maintenance={reference[0]}")["operations"]
            if each["id"] == reference and each["attempt"]
        ]
    )
    return int(operation["attempt"])


def end(running: Running, client: Client, reference: str, *, well: bool) -> None:
    """Let an operation end, reported in the place of the executor that took it."""
    attempt = under_way(client, reference)
    outcome = Outcome(succeeded=well, message="" if well else "no such host")
    running.plane.finish(reference, attempt, outcome).result()


class Flaky(Wrapped):
    """A real store that is away when it is told to be, or whose writes have some trouble."""

    away = False
    error: Exception = StoreUnavailable("the disk is full: make room")
    trouble: Callable[[], object] = staticmethod(lambda: None)
    """Is called before each write, to fail or to take long."""

    @contextmanager
    def write(self) -> Iterator[Transaction]:
        self._fail()
        self.trouble()
        with super().write() as transaction:
            yield transaction

    @contextmanager
    def read(self) -> Iterator[Reading]:
        self._fail()
        with super().read() as reading:
            yield reading

    def _fail(self) -> None:
        if self.away:
            raise self.error


class Stuck(Wrapped):
    """A store whose questions are answered only when the test lets them."""

    def __init__(self) -> None:
        super().__init__(InMemoryStore())
        self.asked, self.answers = threading.Semaphore(0), threading.Event()
        self.answers.set()

    def stick(self) -> None:
        self.answers.clear()
        self.asked = threading.Semaphore(0)

    @contextmanager
    def read(self) -> Iterator[Reading]:
        self.asked.release()
        assert self.answers.wait(patience.SECONDS)
        with super().read() as reading:
            yield reading


def roles(routes: Iterable[Route]) -> dict[str, AccessRole | None]:
    """Return the role that each route needs, by its method and path as the reference has them."""
    found: dict[str, AccessRole | None] = {}
    for route in routes:
        shown = f"{route.method} {route.shown_path}"
        assert shown not in found
        found[shown] = route.needs
    return found
