"""The operator plane of an emulator, for tests in other languages and for `forewarn`'s commands.

It is the service's own API, with a few requests more that only an emulator has: they move the
clock, end maintenance, bring faults, and wait for handlers. No token is asked for: nothing here is
real, and web pages cannot reach it. It needs the extra `server`, and runs on the emulator's thread.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

import msgspec

from forewarn.clock import ManualClock, SystemClock
from forewarn.connectors.simulated import SimulatedConnector
from forewarn.control.changefeed import NewsTail
from forewarn.control.host_drains import HostDrains
from forewarn.control.maintenances import Maintenances
from forewarn.control.outbox import Follower, everything, known_of
from forewarn.control.replicas import Replicas, SharedSightings
from forewarn.control.service_clock import ServiceClock
from forewarn.maintenance.host_plan import HostSurvey
from forewarn.maintenance.model import Refused
from forewarn.server import secret_files, sockets
from forewarn.server.checks import ProgramChecks
from forewarn.server.operator import application, auth, connections
from forewarn.server.operator.auth import OperatorAccount
from forewarn.server.operator.inventory import Inventory
from forewarn.server.operator.routing import Backend, ServiceState
from forewarn.server.operator.schemas import ErrorBody, ErrorDetail
from forewarn.store.port import Replica
from forewarn.testing import faults
from forewarn.testing.emulated_service import EmulatedService
from forewarn.testing.wire import MAX_EXCHANGES
from forewarn.version import __version__
from forewarn.vocabulary import AccessRole, ErrorCode

NAME: Final = "emulator"
"""The name of the only replica, and of every caller's account."""

MAX_BODY: Final = 64 * 1024
"""The most bytes of a request to the emulator: a few short values."""

MAX_WAIT_SECONDS: Final = 3600.0
"""The longest wait of a request for a handler: as long as a test may run."""

UntilAsked: TypeAlias = Callable[[str, int, float], None]


class AdvanceRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The distance by which the clock moves."""

    seconds: float


class EndRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The operation to end, one that has started; `""` for all of them."""

    operation: str = ""
    reason: str = "it failed"


class AskedRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The number of polls to wait for, as in `Emulator.until_asked`."""

    machine: str
    times: Annotated[int, msgspec.Meta(ge=1, le=MAX_EXCHANGES)] = 2
    seconds: Annotated[float, msgspec.Meta(ge=0, le=MAX_WAIT_SECONDS)] = 10.0


class Operators:
    """The API on a port of its own; made, opened and closed on the emulator's thread."""

    def __init__(self, service: EmulatedService, until_asked: UntilAsked) -> None:
        self._service = service
        guests, clock = service.guests, service.clock
        seen = SharedSightings(service.sighting)
        inventory = Inventory(guests.machines, seen)
        with service.store.read() as reading:
            inventory.learn(everything(known_of(reading)))
        service.feed.subscribe(inventory.learn)
        hosts = _NoDrains(
            service.plane,
            SimulatedConnector(clock, {}, guests.machines.values),
            clock,
            guests.machines.values,
            service.policy.host_back,
        )
        # Nobody runs either of them: the emulator takes turns itself, and no drain begins.
        checks = ProgramChecks((), Path(), {})
        maintenances = Maintenances(service.plane, clock, hosts.survey, checks)
        service.feed.subscribe(maintenances.learn)
        now = clock.now()
        own = Replica(name=NAME, process=NAME, version=__version__, started_at=now, beat_at=now)
        follower = Follower(service.store, service.feed, clock)
        machine = ManualClock(now)
        told = ServiceClock(machine)
        reached = connections.ReachedLimits()
        numbers = itertools.count(1)
        door = auth.Door(
            auth.AuditLog(service.plane, clock), clock, clock, lambda: f"request-{next(numbers)}"
        )
        news = self._news = NewsTail(service.store, SystemClock())
        with service.store.read() as reading:
            news.begin(reading.position().sequence)
        service.feed.tell(news.learn)
        backend = Backend(
            news=news,
            plane=service.plane,
            store=service.store,
            inventory=inventory,
            listeners=frozenset([""]),
            clock=clock,
            up_since=now,
            scale=1.0,
            readiness=_ready,
            heartbeat=service.heartbeat,
            replicas=Replicas(service.store, own, follower, told, machine, sightings=seen),
            policy=service.policy,
            collectors=(reached.counter,),
            figures=guests.figures,
            tasks=lambda: service.tasks_running,
            hosts=hosts,
            maintenances=maintenances,
            accounts=door.accounts,
            make_token=secret_files.new_token,
            document=guests.document,
        )
        served = _EmulatorApi(application.application(backend), service, until_asked)
        gate = auth.Gate(served, door, (), anyone=OperatorAccount(NAME, AccessRole.ADMIN))
        self._server = connections.Server(gate, reached)
        self._serving: asyncio.Task[None] | None = None

    def open(self, port: int) -> int:
        """Serve on 127.0.0.1; return the port."""
        opened = sockets.open_tcp("127.0.0.1", port)
        number: int = opened.getsockname()[1]
        self._serving = asyncio.get_running_loop().create_task(self._server.serve([opened]))
        return number

    async def close(self) -> None:
        """Stop serving."""
        self._news.close()
        self._server.should_exit = True
        if self._serving is not None:
            await self._serving


async def _ready() -> ServiceState:
    return ServiceState(reasons=(), store_up=True)


class _NoDrains(HostDrains):
    """Hosts that are shown and never drained: nothing here could move their machines."""

    async def survey(self) -> HostSurvey:
        """Refuse the look that each drain begins with."""
        message = "an emulator drains no hosts: run 'forewarn demo --keep'"
        raise Refused(ErrorCode.CONFLICT, message)

    async def recent_survey(self) -> HostSurvey:
        """Return the look at all hosts that is only shown."""
        return await super().survey()


class _EmulatorApi:
    """The requests of an emulator alone, before the service's own API."""

    def __init__(
        self, application: auth.Application, service: EmulatedService, until_asked: UntilAsked
    ) -> None:
        self._application = application
        self._service = service
        self._until_asked = until_asked
        self._routes: dict[tuple[str, str], Callable[[bytes], Awaitable[None]]] = {
            ("POST", "/v1/clock/advance"): self._advance,
            ("POST", "/v1/finish"): self._finish,
            ("POST", "/v1/fail"): self._fail,
            ("POST", "/v1/faults"): self._add_faults,
            ("DELETE", "/v1/faults"): self._clear_faults,
            ("POST", "/v1/until-asked"): self._wait_until_asked,
        }

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401 - ASGI's
        """Answer a request, or pass it on."""
        route = self._routes.get((scope["method"], scope["path"]))
        if route is None:
            await self._application(scope, receive, send)
            return
        status, answer = 200, msgspec.json.encode({})
        try:
            await route(await _body(receive))
            await self._service.settle()
            answer = msgspec.json.encode({"time": self._service.clock.now()})
        except Refused as refusal:
            status, answer = 409, _error(refusal.code, refusal.message)
        except TimeoutError as error:
            status, answer = 409, _error(ErrorCode.CONFLICT, str(error))
        except (msgspec.MsgspecError, ValueError) as error:
            status, answer = 400, _error(ErrorCode.INVALID, str(error))
        headers = [(b"content-type", b"application/json")]
        headers.append((b"content-length", b"%d" % len(answer)))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    async def _advance(self, body: bytes) -> None:
        wanted = msgspec.json.decode(body, type=AdvanceRequest)
        self._service.run_until(self._service.elapsed + self._service.length(wanted.seconds))

    async def _finish(self, body: bytes) -> None:
        wanted = msgspec.json.decode(body or b"{}", type=EndRequest)
        self._service.finish(wanted.operation)

    async def _fail(self, body: bytes) -> None:
        wanted = msgspec.json.decode(body or b"{}", type=EndRequest)
        self._service.fail(wanted.operation, wanted.reason)

    async def _add_faults(self, body: bytes) -> None:
        wanted = msgspec.json.decode(body, type=dict[str, Any])
        self._service.add_faults(faults.named(str(wanted.pop("name", "")), **wanted))

    async def _clear_faults(self, body: bytes) -> None:
        del body
        self._service.wire.faults.clear()

    async def _wait_until_asked(self, body: bytes) -> None:
        wanted = msgspec.json.decode(body, type=AskedRequest)
        await asyncio.to_thread(self._until_asked, wanted.machine, wanted.times, wanted.seconds)


async def _body(receive: Callable[[], Awaitable[dict[str, Any]]]) -> bytes:
    found = bytearray()
    more = True
    while more:
        part = await receive()
        found += part.get("body", b"")
        more = part.get("more_body", False)
        if len(found) > MAX_BODY:
            raise ValueError(f"the body is longer than {MAX_BODY} bytes")
    return bytes(found)


def _error(code: ErrorCode, message: str) -> bytes:
    return msgspec.json.encode(ErrorBody(error=ErrorDetail(code=code, message=message)))
