"""The relay plane: a plain ASGI application, which knows five requests, and its socket.

A client without a valid token learns nothing, and no token is ever logged. The token tells the
host; a request is about that host's machines alone, as the hub knows them now.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

import structlog
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message, Receive, Send

from forewarn.client import transport
from forewarn.clock import Clock
from forewarn.control.relay_watch import RelayWatch
from forewarn.maintenance import model
from forewarn.maintenance.accounts import Token
from forewarn.maintenance.model import Refused, Sighting
from forewarn.protocol import codec
from forewarn.server import relay_feed, secret_files, sockets
from forewarn.server.guest.endpoint import GuestBackend
from forewarn.server.operator import auth, connections, table
from forewarn.server.operator.routing import Backend
from forewarn.server.relay.hub import RelayHub, tag_of
from forewarn.server.relay_feed import Unreadable
from forewarn.settings import split_address
from forewarn.store.port import StoreError
from forewarn.version import __version__
from forewarn.vocabulary import ErrorCode

MAX_BODY: Final = 1024 * 1024
"""The most bytes of a request's body: the sightings of `relay_feed.MAX_SIGHTINGS` machines."""

JSON: Final = "application/json"

RETRY_SECONDS: Final = 5
"""The advice for the time to come back after 503."""

PROBES: Final = transport.Probes(silent_seconds=10, between_seconds=2, most=3)
"""A relay whose host is cut off is away soon after, even while its request waits. A probe costs
this process nothing, and of ten thousand relays the system sends a thousand a second."""

CUT_OFF: Final = "this replica does not reach the database: ask another one"
STOPPING: Final = "the service is stopping: ask another replica"

_log = structlog.get_logger(__name__)

T = TypeVar("T")


class _RelayRefused(Exception):  # noqa: N818 - an answer, not an error
    def __init__(self, status: int, code: ErrorCode, message: str = "", event_id: str = "") -> None:
        super().__init__(message)
        told = relay_feed.RelayRefusal(code=code, message=message, event_id=event_id)
        self.response = Response(relay_feed.encode(told), status, media_type=JSON)
        if status == 503:
            self.response.headers["retry-after"] = str(RETRY_SECONDS)
        if status == 401:
            self.response.headers["www-authenticate"] = 'Bearer realm="forewarn relay"'


@dataclass(eq=False, repr=False)
class RelayApplication:
    """The application; used on the event loop alone."""

    hub: RelayHub
    watch: RelayWatch
    backend: GuestBackend
    clock: Clock
    saw: Callable[[str, Sighting], None]
    """Called with a machine's key and its latest requests to a relay."""
    on_stranger: Callable[[str], None]
    """Called with a host whose relay got a request from an unknown address."""
    unavailable: str = ""
    """Why relays are sent to another replica; `""` while they are answered."""

    def __post_init__(self) -> None:
        """List the answers to what relays post."""
        self._posts = {
            relay_feed.APPROVALS_PATH: self._approve,
            relay_feed.SIGHTINGS_PATH: self._see,
            relay_feed.REQUESTS_PATH: self._record,
            relay_feed.UNKNOWN_PATH: self._claim,
        }

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            return
        try:
            response = await self._answer(scope, receive)
        except _RelayRefused as refused:
            response = refused.response
        except asyncio.CancelledError:  # by `connections.Server`, which waits no longer
            response = _RelayRefused(503, ErrorCode.UNKNOWN_OUTCOME, STOPPING).response
        except Exception:  # noqa: BLE001 - the relay gets an answer, the log the details
            _log.exception("could not answer a relay", path=scope["path"][:100])
            response = _RelayRefused(500, ErrorCode.INTERNAL).response
        response.raw_headers.append((relay_feed.TIME_HEADER, codec.http_date(self.clock.now())))
        await response(scope, receive, send)

    async def _answer(self, scope: Message, receive: Receive) -> Response:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        token = self._token_of(headers)
        method, path = scope["method"], scope["path"]
        if method == "GET" and path == relay_feed.HOST_PATH:
            scope[auth.ADMITTED] = True
            return await self._document(token, scope, headers)
        answer = self._posts.get(path)
        if method != "POST" or answer is None:
            raise _RelayRefused(404, ErrorCode.NOT_FOUND, f"no {method} {path[:100]} here")
        body = await _body(Request(scope, receive))
        scope[auth.ADMITTED] = True  # only now: one host's unsent bodies keep no other's relay out
        return await answer(token.host, body)

    def _token_of(self, headers: dict[bytes, bytes]) -> Token:
        kind, _, secret = headers.get(b"authorization", b"").partition(b" ")
        if kind.lower() == b"bearer":
            token = self.watch.token_of(secret_files.digest(secret.strip()))
            if token is not None:
                return token
        self._refuse_if_away()  # this replica may not have heard of a token that is new
        message = "no valid token: make one with 'forewarn relay token HOST'"
        raise _RelayRefused(401, ErrorCode.UNAUTHORIZED, message)

    # The requests.

    async def _document(
        self, token: Token, scope: Message, headers: dict[bytes, bytes]
    ) -> Response:
        host, query = token.host, scope["query_string"]
        if query not in {b"", relay_feed.AT_ONCE.encode()}:
            message = f"unknown query: expected none, or {relay_feed.AT_ONCE}"
            raise _RelayRefused(400, ErrorCode.INVALID, message)
        has = headers.get(b"if-none-match", b"").decode("latin-1").strip('" ')
        self._refuse_if_away()
        state = headers.get(relay_feed.STATE_HEADER.encode())
        if state is None:
            return self._current(host, has)
        told = _read(relay_feed.decode_state, state)
        self.watch.use(token)
        heard_at = self.watch.hear(
            host,
            version=told.version[:100],
            age_seconds=told.age_seconds,
            machines=told.machines,
            etag=str(tag_of(has)),
        )
        if told.stalled_seconds:
            self.watch.stalled(host, told.stalled_seconds)
        until = asyncio.get_running_loop().time()
        asked_for = self.hub.is_busy(host) or self.watch.is_coming_back(host)
        until += relay_feed.BUSY_WAIT_SECONDS if asked_for else relay_feed.IDLE_WAIT_SECONDS
        try:
            while (left := until - asyncio.get_running_loop().time()) > 0:
                answer = self._current(host, has)
                if answer.status_code == 200 or query:
                    return answer
                self.watch.expect(host, heard_at, left)
                if not await self.hub.wait(host, left, scope["state"][auth.LOST]):
                    break
                self._token_of(headers)  # its token may have been revoked meanwhile
                self._refuse_if_away()
            return Response(status_code=304)
        finally:
            self.watch.expect(host, heard_at, 0.0)

    def _current(self, host: str, has: str) -> Response:
        changed = self.hub.changed(host, has)
        if changed is None:
            return Response(status_code=304)
        etag, body = changed
        return Response(body, 200, {"etag": f'"{etag}"'}, JSON)

    async def _approve(self, host: str, body: bytes) -> Response:
        asked = _read(relay_feed.decode_approval, body)
        self._refuse_if_away()
        machine = self.hub.machine(host, asked.machine)
        if machine is None:
            message = f"machine {asked.machine[:80]!r} is not on host {host!r}"
            raise _RelayRefused(403, ErrorCode.NOT_ELIGIBLE, message)
        if asked.version:
            asked_at = _asked_at(self.clock.now(), asked.age_seconds)
            self.saw(machine.key, Sighting(asked_at=asked_at, version=asked.version[:40]))
        approved = self.backend.approve(
            machine.scope, asked.event_ids, by=machine.name, address=asked.address[:100]
        )
        await _done(approved)
        return Response()

    async def _see(self, host: str, body: bytes) -> Response:
        seen = _read(relay_feed.decode_sightings, body)
        now = self.clock.now()
        for one in seen:
            machine = self.hub.machine(host, one.machine)
            if machine is None:
                continue  # it has just moved away
            sighting = Sighting(
                asked_at=_asked_at(now, one.age_seconds),
                version=one.version[:40],
                agent=one.agent,
                reason=one.reason[:200],
            )
            self.saw(machine.key, sighting)
        return Response(status_code=204)

    async def _record(self, host: str, body: bytes) -> Response:
        asked = _read(relay_feed.decode_requests, body)
        self._refuse_if_away()
        own = tuple(key for key in asked.scopes if self.hub.has_scope(host, key))
        if own:
            await _done(self.backend.record_requests(own))
        return Response(status_code=204)

    async def _claim(self, host: str, body: bytes) -> Response:
        asked = _read(relay_feed.decode_unknown, body)
        self._refuse_if_away()
        if not self.hub.claim(host, asked.listener, asked.address):
            self.on_stranger(host)
            raise _RelayRefused(404, ErrorCode.NOT_FOUND, "no moving machine has this address")
        return Response(status_code=204)

    def _refuse_if_away(self) -> None:
        if self.unavailable:
            raise _RelayRefused(503, ErrorCode.UNAVAILABLE, self.unavailable)


def _asked_at(now: datetime, age_seconds: float) -> datetime:
    return (now - timedelta(seconds=age_seconds)).replace(microsecond=0)


async def _body(request: Request) -> bytes:
    try:
        return await table.read_body(request, MAX_BODY)
    except ClientDisconnect:
        message = "the connection ended within the body"
        raise _RelayRefused(400, ErrorCode.INVALID, message) from None
    except HTTPException as refused:
        raise _RelayRefused(refused.status_code, ErrorCode.LIMIT, refused.detail) from None


def _read(decode: Callable[[bytes], T], body: bytes) -> T:
    try:
        return decode(body)
    except Unreadable as error:
        message = f"{error} (a relay may not be of a later release than the service, {__version__})"
        raise _RelayRefused(400, ErrorCode.INVALID, message) from None


async def _done(job: "Future[Any]") -> None:
    """Await a change; it is made even if the relay goes away meanwhile."""
    try:
        await asyncio.shield(asyncio.wrap_future(job))
    except StoreError as error:
        raise _RelayRefused(503, error.code, str(error)) from None
    except asyncio.CancelledError:
        if not job.cancelled():
            raise
        raise _RelayRefused(503, ErrorCode.UNAVAILABLE) from None
    except Refused as refused:
        if refused.code is not ErrorCode.NOT_FOUND or "event_id" not in refused.facts:
            raise
        event_id = str(refused.facts["event_id"])
        raise _RelayRefused(400, ErrorCode.NOT_FOUND, refused.message, event_id) from None


class RelayPlane:
    """The relay plane: hub, watch and socket. Made and used on the event loop.

    `epoch` returns a text that changes whenever the store may have lost changes; `on_stranger` is
    called with a host whose relay got a request from an unknown address.
    """

    def __init__(
        self,
        backend: Backend,
        handed_over: sockets.HandedOver,
        reached: connections.ReachedLimits,
        *,
        epoch: Callable[[], str],
        on_stranger: Callable[[str], None],
    ) -> None:
        self._settings = backend.settings.relay
        self._handed_over = handed_over
        guests, replicas, clock = backend.guests, backend.replicas, backend.clock
        self.hub = RelayHub(
            guests.machines,
            guests.whole,
            backend.settings.guest_rules,
            epoch=epoch,
            alone=not backend.store.shared,
        )
        self.watch = RelayWatch(
            backend.plane,
            backend.store,
            clock,
            backend.real,
            replica=replicas.own.name,
            has_all=self.hub.has_all,
            on_void=self.hub.wake,
        )
        self.hub.on_change, self.hub.on_lost = self.watch.changed, self.watch.settle
        saw = replicas.sightings.relay
        self._application = RelayApplication(
            self.hub, self.watch, backend.plane, clock, saw, on_stranger=on_stranger
        )
        self._reached = reached
        self._server: connections.Server | None = None
        self.certificate = secret_files.Certificate(
            self._settings.tls_certificate, self._settings.tls_key, "relay.tls_certificate"
        )
        backend.relays, backend.relay_waiters = self.watch, lambda: self.hub.waiting

    def learn(self, changes: model.Changes) -> None:
        """Follow changes, after the guest plane."""
        self.hub.learn(changes)
        self.watch.learn(changes)

    def begin(self, sequence: int) -> None:
        """Count changes from this number of the outbox on, and expect relays from now on."""
        self.hub.begin(sequence)
        self.watch.settle()

    def open(self) -> Iterator[tuple[str, Coroutine[Any, Any, None]]]:
        """Open the socket; yield its address, and the coroutine that serves it.

        SocketUnusable, or SecretUnusable for the certificate, if that is not possible.
        """
        self.certificate.read()
        address, port = split_address(self._settings.listen)
        tcp = self._handed_over.take(sockets.tcp_address(address, port))
        tcp = tcp or sockets.open_tcp(address, port, "relay.listen")
        transport.probe(tcp, PROBES)
        scheme = self.certificate.scheme
        tls = self.certificate.context if scheme == "https" else None
        most = self._settings.connections
        server = connections.Server(self._application, self._reached, most=most, tls=tls)
        self._server = server
        yield f"{scheme}://{sockets.shown(address, tcp.getsockname()[1])}", server.serve([tcp])

    def cut_off(self, *, cut_off: bool) -> None:
        """Send relays to another replica while this one does not reach the database."""
        reason = CUT_OFF if cut_off else ""
        if self._application.unavailable not in {reason, STOPPING}:
            self._application.unavailable = reason
            if cut_off:
                self.hub.wake_all()

    async def drain(self, seconds: float) -> None:
        """Send relays to another replica, and end the connections that they keep."""
        self._application.unavailable = STOPPING
        self.hub.wake_all()
        if self._server is not None:
            await self._server.drain(seconds)

    def stop(self) -> None:
        """End the coroutine of `open`."""
        self._application.unavailable = STOPPING
        self.hub.wake_all()
        if self._server is not None:
            self._server.should_exit = True
