"""The client over asyncio's streams: `AsyncClient`, `AsyncWatch` and `AsyncDocuments`.

`connect` and `HttpStream` are HTTP over these streams for other programs too: relays, and what
checks rollouts.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import TYPE_CHECKING, Final, Self, TypeVar

from forewarn import clock
from forewarn.client import event, session, transport
from forewarn.client.discovery import EndpointAddress
from forewarn.client.event import Misuse
from forewarn.client.session import Attempt, Dialogue, Pause, Question, Session
from forewarn.client.transport import OnTrouble
from forewarn.client.watch import Watcher
from forewarn.client.watch_file import SavePath, Unsaved
from forewarn.protocol.message import Reply

if TYPE_CHECKING:
    import ssl

MAX_ADDRESSES: Final = 8
"""Addresses of one name that are tried."""

_TCP: Final = socket.SOCK_STREAM

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
        since: SavePath | None = None,
        types: Iterable[str] | None = None,
        mine: bool = False,
        on_trouble: OnTrouble | None = None,
    ) -> "AsyncWatch":
        """Return the changes of the events as they happen, as `Client.watch`."""
        watcher, file = self._watcher(since, types, mine=mine)
        return AsyncWatch(self._connection(), watcher, watcher.take, on_trouble, file)

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
        while isinstance(found := self._next(), Question | Pause | Unsaved):
            if isinstance(found, Unsaved):
                self._saved(await asyncio.to_thread(found.file.write, found.text))
                continue
            try:
                self._heard(await self._connection.do(found))
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


class AsyncWatch(_Answers[event.Change]):
    """Changes as they happen; made by `AsyncClient.watch`."""

    async def done(self) -> None:
        """Save that the last change is done with, as `Watch.done`."""
        self._watcher.settle()
        if (unsaved := self._unsaved()) is not None:
            self._saved(await asyncio.to_thread(unsaved.file.write, unsaved.text))


class AsyncDocuments(transport.AnyDocuments["StreamConnection"], _Answers[event.Document]):
    """Documents as they change; made by `AsyncClient.documents`."""


class StreamConnection:
    """One connection at a time to the endpoint; one task asks, any task may close."""

    def __init__(self, known: Session) -> None:
        self._session = known
        self._stream: HttpStream | None = None
        self._doing: asyncio.Task[Attempt] | None = None
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

    def leave_to_parent(self) -> None:
        """Begin without a connection in a forked process: what is open is the parent's."""
        self._stream = self._doing = None

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
        if self._stream is not None and not self._stream.serves(question.endpoint):
            self._hang_up()
        stream = self._stream or await self._connect(question.endpoint)
        held = bool(question.held) and not stream.exchange.fresh
        seconds = question.answer_seconds + (question.held_seconds if held else 0.0)
        try:
            async with asyncio.timeout(seconds):
                reply = await stream.ask(stream.exchange.ask(question))
        except TimeoutError as error:
            raise transport.no_answer(question.endpoint, seconds) from error
        return transport.attempt(reply, held=held)

    async def _connect(self, endpoint: EndpointAddress) -> "HttpStream":
        exchange, seconds = transport.HttpExchange(endpoint), self._session.pace.connect_seconds
        try:
            self._stream = await connect(exchange, seconds)
        except (OSError, UnicodeError) as error:
            raise transport.no_endpoint(endpoint, error) from error
        return self._stream

    def _hang_up(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def __del__(self) -> None:
        """Close a connection that nobody has closed; it may be collected in another thread."""
        if self._stream is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and its sockets with it
                self._stream.loop.call_soon_threadsafe(self._stream.close)


class HttpStream:
    """One connection over asyncio's streams; one request at a time, on the loop that made it."""

    def __init__(
        self,
        exchange: transport.HttpExchange,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.exchange = exchange
        """Writes the next request."""
        self.loop = asyncio.get_running_loop()
        self._reader = reader
        self._writer = writer

    @property
    def is_open(self) -> bool:
        """Whether it may have another request: neither side has closed it."""
        return not self._writer.transport.is_closing() and not self._reader.at_eof()

    def serves(self, endpoint: EndpointAddress) -> bool:
        """Tell whether a request to an endpoint may be sent on it now."""
        is_ours = self.loop is asyncio.get_running_loop()
        return self.is_open and is_ours and self.exchange.endpoint == endpoint

    async def ask(self, sent: bytes) -> Reply:
        """Send the bytes of a request and return the response; RequestFailed without one.

        After an error, and when the caller is cancelled, the connection is closed.
        """
        reply = None
        try:
            self._writer.write(sent)
            await self._writer.drain()
            while reply is None:
                reply = self.exchange.receive(await self._reader.read(transport.READ_BYTES))
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise self.exchange.cut(f"the connection broke: {error}") from error
            raise
        if not self.exchange.reuse():
            self.close()
        return reply

    def close(self) -> None:
        """Close it at once."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, and its sockets with it
            self._writer.transport.abort()


async def addresses(endpoint: EndpointAddress, seconds: float) -> list[transport.Place]:
    """Return the addresses of an endpoint's host; OSError or UnicodeError without any."""
    where = endpoint.host, endpoint.port
    try:  # an address needs no resolver, which runs in a thread
        found = socket.getaddrinfo(*where, type=_TCP, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        async with asyncio.timeout(seconds):
            found = await asyncio.get_running_loop().getaddrinfo(*where, type=_TCP)
    return [(family, place) for family, _, _, _, place in found[:MAX_ADDRESSES]]


async def connect(
    exchange: transport.HttpExchange,
    seconds: float,
    *,
    places: Sequence[transport.Place] | None = None,
    tls: "ssl.SSLContext | None" = None,
    probes: transport.Probes = transport.PROBES,
) -> HttpStream:
    """Return a connection to an exchange's endpoint; OSError or UnicodeError without one.

    Args:
        exchange: A fresh one.
        seconds: For all of it; each address has its share.
        places: The endpoint's addresses; None to look them up.
        tls: By what it is encrypted; None for plain HTTP.
        probes: How the system notices that its path is dead.
    """
    deadline = clock.monotonic() + seconds
    if places is None:
        places = await addresses(exchange.endpoint, seconds)
    error: OSError = TimeoutError()
    for (family, place), share in transport.shares(places, deadline):
        try:
            async with asyncio.timeout(share):
                reader, writer = await asyncio.open_connection(
                    str(place[0]),
                    exchange.endpoint.port,
                    family=family,
                    ssl=tls,
                    server_hostname=exchange.endpoint.host if tls else None,
                    limit=transport.READ_BYTES,
                )
        except OSError as refused:
            error = refused
            continue
        transport.probe(writer.get_extra_info("socket"), probes)
        return HttpStream(exchange, reader, writer)
    raise error
