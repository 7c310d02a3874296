"""A connection over asyncio's streams: asks, waits and pauses, and leaves no socket behind."""

import asyncio
import contextlib

from forewarn.client import http, opening
from forewarn.client.errors import Misuse
from forewarn.client.terms import Ask, Pause, Terms, Turn


class Closed(Exception):  # noqa: N818 - between the lines and the client; the client turns it round
    """The line was closed, maybe by another task, and waits for nothing any more."""


class Line:
    """One connection at a time to the endpoint; one task asks, any task may close."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._exchange = http.Exchange(terms.endpoint)
        self._doing: asyncio.Task[Turn] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing = False

    async def do(self, wanted: Ask | Pause) -> Turn:
        """Ask, or pause.

        Raises:
            Closed: The line is closed, or was meanwhile.
            Misuse: Another task asks on it already.
        """
        if self._closing:
            raise Closed
        if self._doing is not None:
            message = "two tasks at once: give each its own watch"
            raise Misuse(message)
        self._doing = asyncio.ensure_future(self._do(wanted))
        try:
            return await self._doing
        except asyncio.CancelledError:
            self._hang_up()
            task = asyncio.current_task()
            if self._closed_meanwhile() and (task is None or not task.cancelling()):
                raise Closed from None
            raise
        finally:
            self._doing = None

    def _closed_meanwhile(self) -> bool:
        return self._closing

    def close(self) -> None:
        """End every wait at once, and for ever."""
        self._closing = True
        if self._doing is not None:
            self._doing.cancel()
        self._hang_up()

    async def _do(self, wanted: Ask | Pause) -> Turn:
        if isinstance(wanted, Pause):
            await asyncio.sleep(wanted.seconds)
            return opening.turn(None)
        while True:
            try:
                return await self._ask_once(wanted)
            except http.Broken as broken:
                self._hang_up()
                if not broken.stale:  # and a fresh connection never is
                    return opening.turn(broken.failure)

    async def _ask_once(self, ask: Ask) -> Turn:
        if self._exchange.endpoint != self._terms.endpoint:
            self._hang_up()
        reader, writer = self._streams or await self._connect()
        held = bool(ask.held) and not self._exchange.fresh
        seconds = ask.answer_seconds + (ask.held_seconds if held else 0.0)
        reply = None
        try:
            async with asyncio.timeout(seconds):
                writer.write(self._exchange.ask(ask))
                await writer.drain()
                while reply is None:
                    reply = self._exchange.receive(await reader.read(http.READ_BYTES))
        except TimeoutError as error:
            raise http.Broken(http.no_answer(self._exchange.endpoint, seconds)) from error
        except OSError as error:
            raise self._exchange.cut(f"the connection broke: {error}") from error
        if not self._exchange.reuse():
            self._hang_up()
        return opening.turn(reply, held=held)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        endpoint = self._terms.endpoint
        try:
            async with asyncio.timeout(self._terms.pace.connect_seconds):
                streams = await asyncio.open_connection(
                    endpoint.host, endpoint.port, limit=http.READ_BYTES
                )
            self._streams = streams
            self._loop = asyncio.get_running_loop()
            opening.tune(streams[1].get_extra_info("socket"))
        except (OSError, UnicodeError) as error:  # UnicodeError: a name that no resolver takes
            raise http.Broken(http.no_connection(endpoint, error)) from error
        self._exchange = http.Exchange(endpoint)
        return streams

    def _hang_up(self) -> None:
        if self._streams is not None:
            _abort(self._streams[1])
            self._streams = None

    def __del__(self) -> None:
        """Close what was forgotten; whoever collects it may be in another thread."""
        if self._streams is not None and self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and its sockets with it
                self._loop.call_soon_threadsafe(_abort, self._streams[1])


def _abort(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
