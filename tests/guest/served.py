"""A plane whose sockets are open, and what runs it."""

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

import patience
from forewarn.server.guest.limits import Limits
from forewarn.server.guest.listener import Listener, Listeners
from forewarn.server.sockets import HandedOver
from guest import room
from guest.room import answers

HERE = Listener(address="127.0.0.1", port=0, default_vm="web-0")
GUESTS = Listener(address="0.0.0.0", port=0)
"""No loopback listener, so that its limits are those of a bridge; the peer is at 127.0.0.1."""
Reading = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Play = Callable[[Coroutine[Any, Any, None]], None]


async def in_time(play: Coroutine[Any, Any, None]) -> None:
    """End a play that hangs: pytest's alarm raises in any callback, and uvloop logs it and goes on.

    A wait within it ends before, and says why.
    """
    async with asyncio.timeout(2 * patience.SECONDS):
        await play


def run_by_asyncio(play: Coroutine[Any, Any, None]) -> None:
    asyncio.run(in_time(play))


def run_by_uvloop(play: Coroutine[Any, Any, None]) -> None:
    uvloop = pytest.importorskip("uvloop", reason="uvloop is not for this platform")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(in_time(play))


def played(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test on each event loop that the plane may run on."""

    def run(play: Play, **given: Any) -> None:
        play(test(**given))

    takes = inspect.signature(run).parameters["play"]
    own = inspect.signature(test)
    functools.update_wrapper(run, test)
    del run.__wrapped__  # type: ignore[attr-defined] # pytest would look at that one
    run.__signature__ = own.replace(  # type: ignore[attr-defined] # what pytest looks at
        parameters=[takes, *own.parameters.values()]
    )
    return run


class Served:
    """A plane whose sockets are open."""

    def __init__(self, plane: room.Room, listeners: Listeners, at: tuple[Listener, ...]) -> None:
        self.plane = plane
        self.listeners = listeners
        self.at = at

    async def connect(self, which: int = 0) -> Reading:
        return await asyncio.open_connection(self.at[which].address, self.at[which].port)

    async def stop(self, seconds: float) -> int:
        return await stop(self.plane, self.listeners, seconds)

    async def ask(self, data: bytes, which: int = 0) -> list[room.Answer]:
        """Send, close the sending side, and read all that comes."""
        reader, writer = await self.connect(which)
        writer.write(data)
        writer.write_eof()
        got = await reader.read()
        writer.close()
        return answers(got)


async def stop(plane: room.Room, listeners: Listeners, seconds: float) -> int:
    listeners.close()
    return await plane.connections.retire(seconds)


@asynccontextmanager
async def serving(
    *at: Listener, limits: Limits | None = None, handed_over: HandedOver | None = None
) -> AsyncIterator[Served]:
    loop = asyncio.get_running_loop()
    plane = room.Room(loop, limits)
    listeners = Listeners(loop, plane.connections)
    opened = await listeners.open(
        [(listener, None) for listener in at or (HERE,)], handed_over or HandedOver()
    )
    plane.connections.sweep_from_now_on()
    served = Served(plane, listeners, opened)
    try:
        yield served
    finally:
        await served.stop(0)
