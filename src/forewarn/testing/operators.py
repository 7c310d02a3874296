"""The operator plane of an emulator, for tests in other languages and for `forewarn`'s commands.

It is the service's own API, with a few requests more that only an emulator has: they move the
clock, end maintenance, bring faults, and wait for handlers. No token is asked for: nothing here is
real, and web pages cannot reach it. It needs the extra `server`, and runs on the emulator's thread.
"""

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from starlette.requests import Request

from forewarn.connectors.simulated import SimulatedConnector
from forewarn.control.control_plane import ServicePart
from forewarn.control.host_drains import HostDrains
from forewarn.maintenance.host_plan import HostSurvey
from forewarn.maintenance.model import Refused
from forewarn.server.checks import ProgramChecks
from forewarn.server.operator import table
from forewarn.server.operator.auth import OperatorAccount
from forewarn.server.operator.plane import OperatorPlane
from forewarn.server.operator.routing import Backend, ServiceState
from forewarn.server.operator.table import RouteTable
from forewarn.server.settings import OperatorSettings
from forewarn.server.sockets import HandedOver
from forewarn.settings import OFF
from forewarn.testing import faults
from forewarn.testing.emulated_service import EmulatedService
from forewarn.testing.harness import NAME
from forewarn.testing.wire import MAX_EXCHANGES
from forewarn.vocabulary import AccessRole, ErrorCode

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


class EmulatorTime(msgspec.Struct, frozen=True):
    """The clock's time after a request and all its consequences."""

    time: datetime


@dataclass(eq=False, repr=False, kw_only=True)
class EmulatorBackend(Backend):
    """The rooms below, as the handlers of an emulator reach them."""

    service: EmulatedService
    until_asked: UntilAsked

    async def change(self, act: Callable[[EmulatedService], object]) -> EmulatorTime:
        """Change the emulator, and return once all consequences have happened."""
        try:
            act(self.service)
        except ValueError as error:
            raise Refused(ErrorCode.INVALID, str(error)) from error
        await self.service.settle()
        return EmulatorTime(self.service.clock.now())


EMULATOR: Final = RouteTable()
"""The requests that only an emulator has."""


@EMULATOR.route("POST", "/v1/clock/advance", AccessRole.ADMIN)
async def _advance(backend: EmulatorBackend, data: AdvanceRequest) -> EmulatorTime:
    return await backend.change(
        lambda service: service.run_until(service.elapsed + service.length(data.seconds))
    )


@EMULATOR.route("POST", "/v1/finish", AccessRole.ADMIN)
async def _finish(backend: EmulatorBackend, request: Request) -> EmulatorTime:
    ends = table.decoded(await table.read_body(request) or b"{}", EndRequest)
    return await backend.change(lambda service: service.finish(ends.operation))


@EMULATOR.route("POST", "/v1/fail", AccessRole.ADMIN)
async def _fail(backend: EmulatorBackend, request: Request) -> EmulatorTime:
    ends = table.decoded(await table.read_body(request) or b"{}", EndRequest)
    return await backend.change(lambda service: service.fail(ends.operation, ends.reason))


@EMULATOR.route("POST", "/v1/faults", AccessRole.ADMIN, body=dict)
async def _add_faults(backend: EmulatorBackend, data: bytes) -> EmulatorTime:
    def add(service: EmulatedService) -> None:
        values = msgspec.json.decode(data, type=dict[str, Any])
        service.wire.bring(faults.named(str(values.pop("name", "")), **values))

    return await backend.change(add)


@EMULATOR.route("DELETE", "/v1/faults", AccessRole.ADMIN)
async def _clear_faults(backend: EmulatorBackend) -> EmulatorTime:
    return await backend.change(lambda service: service.wire.faults.clear())


@EMULATOR.route("POST", "/v1/until-asked", AccessRole.ADMIN)
async def _wait_until_asked(backend: EmulatorBackend, data: AskedRequest) -> EmulatorTime:
    try:
        await asyncio.to_thread(backend.until_asked, data.machine, data.times, data.seconds)
    except TimeoutError as error:
        raise Refused(ErrorCode.CONFLICT, str(error)) from error
    return await backend.change(lambda _: None)


class Operators(OperatorPlane):
    """The API on a port of its own; made, opened and closed on the emulator's thread."""

    _serving: asyncio.Task[None] | None = None

    def __init__(self, service: EmulatedService, until_asked: UntilAsked, port: int) -> None:
        guests = service.guests
        wanted = OperatorSettings(socket=OFF, listen=f"127.0.0.1:{port}", page=False)
        # Nobody runs the maintenances: the emulator takes turns itself, and no drain begins.
        backend = EmulatorBackend.over(
            service.control,
            settings=msgspec.structs.replace(service.settings, operator=wanted),
            guests=guests,
            connector=SimulatedConnector(service.clock, {}, guests.machines.values),
            checks=ProgramChecks((), Path(), {}),
            drains=_NoDrains,
            readiness=_ready,
            tasks=lambda: service.tasks_running,
            service=service,
            until_asked=until_asked,
        )
        numbers = itertools.count(1)
        super().__init__(
            backend,
            lambda: f"request-{next(numbers)}",
            NAME,
            HandedOver(),
            anyone=OperatorAccount(NAME, AccessRole.ADMIN),
            more=EMULATOR,
        )
        news = backend.news
        service.control.fill(
            (
                ServicePart(learn=backend.learn, begin=news.begin, hear=news.learn),
                ServicePart(learn=backend.maintenances.learn),
            )
        )

    def open_port(self) -> str:
        """Serve, and return the URL."""
        ((address, serving),) = self.open()
        self._serving = asyncio.get_running_loop().create_task(serving)
        return address

    async def end(self) -> None:
        """Stop serving."""
        self.end_streams()
        self.stop()
        if self._serving is not None:
            await self._serving
        self.close()


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
