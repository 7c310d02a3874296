"""The client over asyncio's streams: `AsyncClient`, `AsyncWatch` and `AsyncDocuments`."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from typing import Self, TypeVar

from forewarn.client import event, session, transport, watch
from forewarn.client.discovery import EndpointAddress
from forewarn.client.errors import Misuse
from forewarn.client.session import Attempt, Dialogue, Pause, Question, Session
from forewarn.client.transport import OnTrouble
from forewarn.client.watch import Watcher

T = TypeVar("T")


class AsyncClient(transport.AnyClient["StreamConnection"]):
    """`Client` for asyncio: the same arguments, and the same methods, awaited.

    It belongs to one event loop.
    """

    async def document(self) -> event.Document:
        """Return what the endpoint says now, as `Client.document`."""
        return await self._run(session.document(self._session, transport.clock_reading()))

    async def events(self, *, mine: bool = False) -> tuple[event.Event, ...]:
        """Return the events of now, as `Client.events`."""
        events = (await self.document()).events
        return tuple(each for each in events if not mine or each.concerns_me is not False)

    async def approve(
        self, *events: event.Event | str, within_seconds: float | None = None
    ) -> None:
        """Let events start before their notice is over, as `Client.approve`."""
        at = transport.clock_reading()
        await self._run(session.approval(self._session, events, within_seconds, at))

    async def report(self, status: str, reason: str = "") -> None:
        """Tell Forewarn how this machine fares, as `Client.report`."""
        await self._run(self._report(status, reason))

    async def machine(self) -> event.Machine:
        """Return what this machine is called, as `Client.machine`."""
        return await self._run(session.machine(self._session, transport.clock_reading()))

    def watch(
        self,
        *,
        since: str | None = None,
        types: Iterable[str] | None = None,
        mine: bool = False,
        on_trouble: OnTrouble | None = None,
    ) -> "AsyncWatch":
        """Return the changes of the events as they happen, as `Client.watch`."""
        wanted = watch.event_filter(types, mine=mine)
        watcher = Watcher(self._session, wanted, since, transport.clock_reading())
        return AsyncWatch(self._connection(), watcher, watcher.take, on_trouble)

    def documents(
        self, *, known: Iterable[event.Event] = (), on_trouble: OnTrouble | None = None
    ) -> "AsyncDocuments":
        """Return each new document, whole, as `Client.documents`."""
        watcher = Watcher(self._session, None, None, transport.clock_reading(), known)
        return AsyncDocuments(self._connection(), watcher, watcher.take_document, on_trouble)

    async def close(self) -> None:
        """End every watch and every question at once, and give back every socket."""
        self._close()
        await asyncio.sleep(0)  # in the loop's next turn the transports close their sockets

    async def __aenter__(self) -> Self:
        """Return the client."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close it."""
        await self.close()

    def _connect(self) -> "StreamConnection":
        return StreamConnection(self._session)

    async def _run(self, dialogue: Dialogue[T]) -> T:
        with self._lent() as connection:
            try:
                wanted = next(dialogue)
                while True:
                    wanted = dialogue.send(await connection.do(wanted))
            except StopIteration as done:
                result: T = done.value
                return result


class _Answers(transport.AnyAnswers["StreamConnection", T], AsyncIterator[T]):
    async def __anext__(self) -> T:
        """Return the next one, however long it takes; stop once closed."""
        while isinstance(found := self._next(), Question | Pause):
            try:
                self._watcher.heard(await self._connection.do(found))
            except transport.ConnectionClosed as closed:
                raise StopAsyncIteration from closed
        return found

    def close(self) -> None:
        """End it at once."""
        self._connection.close()

    async def __aenter__(self) -> Self:
        """Return it."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close it."""
        self.close()
        await asyncio.sleep(0)  # in the loop's next turn the transport closes its socket


class AsyncWatch(transport.AnyWatch["StreamConnection"], _Answers[event.Change]):
    """Changes as they happen; made by `AsyncClient.watch`."""


class AsyncDocuments(transport.AnyDocuments["StreamConnection"], _Answers[event.Document]):
    """Documents as they change; made by `AsyncClient.documents`."""


class StreamConnection:
    """One connection at a time to the endpoint; one task asks, any task may close."""

    def __init__(self, known: Session) -> None:
        self._session = known
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._exchange = transport.HttpExchange(known.endpoint)
        self._doing: asyncio.Task[Attempt] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing = False

    async def do(self, wanted: Question | Pause) -> Attempt:
        """Ask, or pause; one task at a time, until it is closed."""
        if self._doing is not None:
            raise Misuse("two tasks at once: give each its own watch")
        self._doing = asyncio.ensure_future(self._do(wanted))
        try:
            return await self._doing
        except asyncio.CancelledError:
            self._hang_up()
            task = asyncio.current_task()
            if self._closing and (task is None or not task.cancelling()):
                raise transport.ConnectionClosed from None
            raise
        finally:
            self._doing = None

    def close(self) -> None:
        """End every wait at once, and for ever."""
        self._closing = True
        if self._doing is not None:
            self._doing.cancel()
        self._hang_up()

    async def _do(self, wanted: Question | Pause) -> Attempt:
        if self._closing:
            raise transport.ConnectionClosed
        if isinstance(wanted, Pause):
            await asyncio.sleep(wanted.seconds)
            return transport.attempt(None)
        while True:
            try:
                return await self._ask_once(wanted)
            except transport.RequestFailed as broken:
                self._hang_up()
                if not broken.stale:  # and a fresh connection never is
                    return transport.attempt(broken.failure)

    async def _ask_once(self, question: Question) -> Attempt:
        if self._exchange.endpoint != question.endpoint:
            self._hang_up()
        reader, writer = self._streams or await self._connect(question.endpoint)
        held = bool(question.held) and not self._exchange.fresh
        seconds = question.answer_seconds + (question.held_seconds if held else 0.0)
        reply, limit = None, asyncio.timeout(seconds)
        try:
            async with limit:
                writer.write(self._exchange.ask(question))
                await writer.drain()
                while reply is None:
                    reply = self._exchange.receive(await reader.read(transport.READ_BYTES))
        except OSError as error:
            if limit.expired():  # a silent peer ends the connection with a TimeoutError too
                raise transport.no_answer(question.endpoint, seconds) from error
            raise self._exchange.cut(f"the connection broke: {error}") from error
        if not self._exchange.reuse():
            self._hang_up()
        return transport.attempt(reply, held=held)

    async def _connect(
        self, endpoint: EndpointAddress
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            async with asyncio.timeout(self._session.pace.connect_seconds):
                streams = await asyncio.open_connection(
                    endpoint.host, endpoint.port, limit=transport.READ_BYTES
                )
            self._streams = streams
            self._loop = asyncio.get_running_loop()
            transport.tune(streams[1].get_extra_info("socket"))
        except (OSError, UnicodeError) as error:  # UnicodeError: a name that no resolver takes
            raise transport.no_endpoint(endpoint, error) from error
        self._exchange = transport.HttpExchange(endpoint)
        return streams

    def _hang_up(self) -> None:
        if self._streams is not None:
            _abort(self._streams[1])
            self._streams = None

    def __del__(self) -> None:
        """Close a connection that nobody has closed; it may be collected in another thread."""
        if self._streams is not None and self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and its sockets with it
                self._loop.call_soon_threadsafe(_abort, self._streams[1])


def _abort(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
