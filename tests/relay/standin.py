"""A small service for one host's relay: real HTTP, real documents, and answers as told.

It keeps to `relay_feed`. A test changes what it has, tells it to answer otherwise, or stops it.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import h11

from forewarn.maintenance.model import Changes, Machine
from forewarn.protocol import codec
from forewarn.server import relay_feed
from forewarn.server.guest.documents import DocumentCache
from forewarn.server.relay_feed import GuestRules, HostDocument, RelayRefusal, RelayState
from guest import room

TOKEN = "a token of sixteen and more"

Answer = tuple[int, bytes]
Other = Callable[["Request"], Awaitable[Answer | None]]


class Request:
    def __init__(self, method: str, target: str, headers: dict[str, str], body: bytes) -> None:
        self.method = method
        self.path, _, self.query = target.partition("?")
        self.headers = headers
        self.body = body


class StandIn:
    """One replica."""

    def __init__(self, host: str = "h1", documents: DocumentCache | None = None) -> None:
        self.host = host
        self.documents = documents or DocumentCache()
        self.machines: dict[str, Machine] = {}
        self.version = 1
        """Of what it has: its ETag."""
        self.rules = GuestRules(rate_per_second=0)
        self.token = TOKEN
        self.published = {room.EVENT_ID}
        self.states: list[RelayState] = []
        self.approvals: list[relay_feed.GuestApproval] = []
        self.seen: list[relay_feed.AgedSighting] = []
        self.asked_for: list[tuple[str, ...]] = []
        self.etags: list[str] = []
        """What relays had when they asked."""
        self.claims: list[str] = []
        self.unknown: dict[str, Machine] = {}
        self.other: Other | None = None
        """Answers in its place, unless it returns None."""
        self.changed = asyncio.Event()
        self.awaited: tuple[str, ...] = ()
        self.shows_time = True
        self.hangs_up = False
        """Each connection has one answer, as behind some proxies."""
        self.connections: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.scheme, self.port = "http", 0

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    async def start(self, tls: ssl.SSLContext | None = None) -> None:
        self.scheme = "https" if tls else "http"
        self._server = await asyncio.start_server(self._begin, "127.0.0.1", self.port, ssl=tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for _ in range(2):
            await asyncio.sleep(0)  # what was accepted is a connection by then
        self.drop()
        await asyncio.sleep(0)

    def drop(self) -> None:
        """Cut all connections off."""
        for writer in list(self.connections):
            writer.transport.abort()

    def hold(self, machines: list[Machine], changes: Changes) -> None:
        self.documents.learn(changes)
        self.machines = {each.key: each for each in machines}

    def learn(self, changes: Changes) -> None:
        self.documents.learn(changes)
        for each in changes.machines:
            self.machines[each.key] = each
        for key in changes.removed_machines:
            self.machines.pop(key, None)
        self.tell()

    def tell(self) -> None:
        """Have it say again all that it has."""
        self.version += 1
        self.changed.set()
        self.changed = asyncio.Event()

    @property
    def etag(self) -> str:
        return f"e{self.version}"

    def document(self) -> HostDocument:
        scopes = {each.scope for each in self.machines.values()}
        return HostDocument(
            host=self.host,
            machines=tuple(self.machines.values()),
            scopes=tuple(self.documents.whole(key) for key in sorted(scopes)),
            rules=self.rules,
            awaited=self.awaited,
        )

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.add(writer)  # its task may be cancelled before it begins
        self._serving.add(task := asyncio.ensure_future(self._serve(reader, writer)))
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        http = h11.Connection(h11.SERVER)
        try:
            while True:
                request = await _read(http, reader)
                if request is None:
                    return
                status, body = await self._answer(request)
                headers = [("Content-Length", str(len(body)))] if status not in {204, 304} else []
                if status == 200 and request.path == relay_feed.HOST_PATH:
                    headers.append(("ETag", f'"{self.etag}"'))
                if self.shows_time:
                    now = codec.http_date(datetime.now(UTC)).decode()
                    headers.append((relay_feed.TIME_HEADER.decode(), now))
                if self.hangs_up:
                    headers.append(("Connection", "close"))
                writer.write(http.send(h11.Response(status_code=status, headers=headers)) or b"")
                if body:
                    writer.write(http.send(h11.Data(data=body)) or b"")
                writer.write(http.send(h11.EndOfMessage()) or b"")
                await writer.drain()
                if http.our_state is not h11.DONE:
                    return
                http.start_next_cycle()
        except (OSError, h11.RemoteProtocolError, asyncio.CancelledError):
            pass
        finally:
            self.connections.discard(writer)
            with contextlib.suppress(RuntimeError):
                writer.close()

    async def _answer(self, request: Request) -> Answer:
        if self.other is not None:
            other = await self.other(request)
            if other is not None:
                return other
        if request.headers.get("authorization") != f"Bearer {self.token}":
            return 401, relay_feed.encode(RelayRefusal(code="unauthorized", message="no"))
        match request.path:
            case relay_feed.HOST_PATH:
                return await self._host(request)
            case relay_feed.APPROVALS_PATH:
                return self._approve(relay_feed.decode_approval(request.body))
            case relay_feed.SIGHTINGS_PATH:
                self.seen += relay_feed.decode_sightings(request.body)
                return 204, b""
            case relay_feed.REQUESTS_PATH:
                self.asked_for.append(relay_feed.decode_requests(request.body).scopes)
                return 204, b""
            case relay_feed.UNKNOWN_PATH:
                return self._claim(relay_feed.decode_unknown(request.body))
        return 404, relay_feed.encode(RelayRefusal(code="not-found"))

    def _claim(self, asked: relay_feed.UnknownCaller) -> Answer:
        self.claims.append(asked.address)
        moved = self.unknown.pop(asked.address, None)
        if moved is None:
            return 404, relay_feed.encode(RelayRefusal(code="not-found"))
        self.learn(Changes(machines=(moved,)))
        return 204, b""

    async def _host(self, request: Request) -> Answer:
        state = request.headers.get(relay_feed.STATE_HEADER)
        if state is not None:
            self.states.append(relay_feed.decode_state(state.encode()))
        etag = request.headers.get("if-none-match", "").strip('"')
        self.etags.append(etag)
        while etag == self.etag:
            if request.query == relay_feed.AT_ONCE:
                return 304, b""
            await self.changed.wait()
        return 200, relay_feed.encode(self.document())

    def _approve(self, asked: relay_feed.GuestApproval) -> Answer:
        if asked.machine not in self.machines:
            return 403, relay_feed.encode(RelayRefusal(code="not-eligible"))
        for event_id in asked.event_ids:
            if event_id.upper() not in self.published:
                return 400, relay_feed.encode(RelayRefusal(code="not-found", event_id=event_id))
        self.approvals.append(asked)
        return 200, b""


async def _read(http: h11.Connection, reader: asyncio.StreamReader) -> Request | None:
    head: Any = None
    body = b""
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            data = await reader.read(65536)
            http.receive_data(data)
        elif isinstance(event, h11.Request):
            head = event
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.EndOfMessage):
            headers = {name.decode(): value.decode() for name, value in head.headers}
            return Request(head.method.decode(), head.target.decode(), headers, body)
        else:
            return None
