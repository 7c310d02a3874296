"""Tells open pages that something has changed: a page then asks for what it shows.

What comes together is told once, and the same to everybody, so that a busy fleet costs each page
two requests a second at most.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from forewarn.clock import Clock
from forewarn.maintenance.model import Changes, Refused
from forewarn.server.page import formats
from forewarn.vocabulary import ErrorCode

JOIN_SECONDS: Final = 0.5
"""How long what follows a change is joined with the next one."""

TICK_SECONDS: Final = 15.0
"""How often pages are told without a change: machines fall silent, and the time of day goes on. It
also shows both ends that the other is there."""

MAX_STREAMS: Final = 128
"""Open pages at once: a quarter of the operators' connections."""


class Live:
    """The open pages of this process; used on the event loop's thread."""

    def __init__(self, clock: Clock, real: Clock, process: str) -> None:
        self._clock = clock
        self._real = real
        self._process = process
        self._count = 0
        self._announced = self.state
        self._streams = 0
        self._told = asyncio.Event()
        self._soon: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()

    @property
    def state(self) -> str:
        """What changes with each change: a page says which it shows."""
        return f"{self._process}-{self._count}"

    def learn(self, changes: Changes) -> None:
        """Tell the pages soon."""
        del changes
        self._count += 1
        if self._soon is None:
            self._soon = asyncio.get_running_loop().create_task(self._tell_soon())

    def stream(self, since: str) -> AsyncIterator[bytes]:
        """Return what a page reads that shows the state `since`.

        Refused (LIMIT) if too many are open.
        """
        if self._streams >= MAX_STREAMS:
            message = f"{MAX_STREAMS} pages are open: close some"
            raise Refused(ErrorCode.LIMIT, message, most=MAX_STREAMS)
        return self._lines(since)

    def close(self) -> None:
        """End every stream."""
        self._closing.set()
        self._tell()

    async def _lines(self, shown: str) -> AsyncIterator[bytes]:
        self._streams += 1
        try:
            yield b": open\n\n"
            while not self._closing.is_set():
                if shown == self._announced:
                    await self._real.wait(TICK_SECONDS, self._told)
                shown = self._announced
                if not self._closing.is_set():
                    yield f"event: changed\ndata: {formats.millis(self._clock.now())}\n\n".encode()
        finally:
            self._streams -= 1

    async def _tell_soon(self) -> None:
        await self._real.wait(JOIN_SECONDS, self._closing)
        self._soon = None
        self._tell()

    def _tell(self) -> None:
        self._announced = self.state
        self._told.set()
        self._told = asyncio.Event()
