"""A relay whose sockets are open, in front of stand-ins for the service, on one event loop."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from forewarn.clock import SystemClock
from forewarn.maintenance.model import Changes
from forewarn.relay.relay import HostRelay
from forewarn.relay.settings import (
    HostRelaySettings,
    RelayGuestSettings,
    RelayStateSettings,
    RelayStatusSettings,
    UpstreamSettings,
)
from forewarn.server.guest.listener import Listener
from forewarn.server.sockets import HandedOver
from guest import room
from guest.room import Answer, answers, get
from relay.standin import TOKEN, StandIn

HERE = Listener(address="127.0.0.1", port=0, default_vm="web-0")
GUESTS = Listener(address="0.0.0.0", port=0)
"""No loopback listener: who asks is known by the address, which is 127.0.0.1 here."""
SCOPES = (room.SCOPES[0], room.SCOPES[1])


class AheadClock(SystemClock):
    """The machine's time, moved ahead by hand; its time of day may be wrong, and pauses short.

    Short ones are of no use where something must come before a pause is over.
    """

    def __init__(self, haste: float = 20.0, wrong_by: timedelta = timedelta(0)) -> None:
        self.haste, self.wrong_by = haste, wrong_by
        self.ahead = 0.0

    def now(self) -> datetime:
        return super().now() + self.wrong_by + timedelta(seconds=self.ahead)

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead

    async def wait(self, seconds: float, wake: asyncio.Event | None = None) -> None:
        await super().wait(seconds / self.haste, wake)


def filled(host: str = "h1") -> StandIn:
    standin = StandIn(host)
    operations = (room.operation(room.event()),)
    standin.hold(room.MACHINES[:2], Changes(scopes=SCOPES, operations=operations))
    return standin


def token_file(folder: Path, token: str = TOKEN) -> Path:
    path = folder / "relay.token"
    path.write_text(token)
    path.chmod(0o600)
    return path


def settings(
    folder: Path, *standins: StandIn, listener: Listener = HERE, **upstream: Any
) -> HostRelaySettings:
    defaults: dict[str, Any] = {
        "urls": tuple(each.url for each in standins),
        "token_file": str(token_file(folder)),
    }
    return HostRelaySettings(
        upstream=UpstreamSettings(**(defaults | upstream)),
        guest=RelayGuestSettings(listener=(listener,)),
        status=RelayStatusSettings(listen="off"),
        state=RelayStateSettings(folder=str(folder / "state")),
    )


class Running:
    def __init__(self, relay: HostRelay) -> None:
        self.relay = relay
        self.port = 0

    async def open(self) -> None:
        (address,) = await self.relay.open()
        self.port = int(address.rpartition(":")[2])

    async def ask(self, data: bytes | None = None) -> Answer:
        """Return the answer, which there must be."""
        found = await self.reply(data)
        assert found is not None
        return found

    async def reply(self, data: bytes | None = None, *, ends: bool = True) -> Answer | None:
        """Return the answer; None where the connection was closed without one."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(get() if data is None else data)
            if ends:
                writer.write_eof()
            got = await reader.read()
        except ConnectionError:
            return None
        finally:
            writer.close()
        found = answers(got)
        return found[0] if found else None

    async def status(self, data: bytes | None = None) -> int:
        answer = await self.reply(data)
        return 0 if answer is None else answer.status

    async def incarnation(self) -> str:
        return (await self.ask()).headers["etag"]

    @property
    def heard(self) -> bool:
        return self.relay._freshness.is_true


def made(own: HostRelaySettings, clock: SystemClock | None = None) -> Running:
    relay = HostRelay(
        settings=own,
        mint=lambda: "00000000-0000-4000-8000-a3c5e7091b2d",
        chance=lambda: 0.0,
        handed_over=HandedOver(),
        clock=clock or AheadClock(),
    )
    return Running(relay)


@asynccontextmanager
async def relaying(
    own: HostRelaySettings, clock: SystemClock | None = None
) -> AsyncIterator[Running]:
    running = made(own, clock)
    try:
        await running.open()
        yield running
    finally:
        await running.relay.close()


@asynccontextmanager
async def started(*standins: StandIn) -> AsyncIterator[None]:
    """Stand-ins that answer, until they are stopped at the end or before."""
    for each in standins:
        await each.start()
    try:
        yield
    finally:
        for each in standins:
            await each.stop()


@asynccontextmanager
async def relayed(
    folder: Path, clock: SystemClock | None = None, **own: Any
) -> AsyncIterator[tuple[StandIn, Running]]:
    """A stand-in for the service, and a relay in front of it."""
    service = filled()
    async with started(service), relaying(settings(folder, service, **own), clock) as relay:
        yield service, relay
