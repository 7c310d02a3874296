"""A whole service with a relay plane, and what a relay says to it, over real sockets."""

import asyncio
import contextlib
import http.client
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

import patience
from forewarn.control import fleet_sync
from forewarn.control.plane import Plane
from forewarn.server import relay_feed, settings
from forewarn.server.guest.listener import Listener
from forewarn.server.guest.plane import GuestPlane
from forewarn.server.relay_feed import HostDocument, RelayState
from forewarn.server.sockets import HandedOver
from server.exchange import scraped
from server.running import Answer, Running, guids, settings_in

LISTENER = Listener(address="127.0.0.1", port=0)


def with_relays(folder: Path, **more: Any) -> settings.Settings:
    """Settings with a relay plane at any free port."""
    return msgspec.structs.replace(
        settings_in(folder), relay=settings.RelaySettings(listen="127.0.0.1:0"), **more
    )


class Served(Running):
    """A service with guests of its own, and relays."""

    def _guests_of(self, plane: Plane) -> Any:
        self._plane, watch = plane, self._watch
        return GuestPlane(
            listeners=(LISTENER,),
            limits=self.settings.guest,
            rules=self.settings.guest_rules,
            backend=plane,
            time=watch,
            wall=watch,
            request_time=watch,
            on_turn=watch.turn,
            mint=guids(),
            handed_over=HandedOver(),
        )

    @property
    def relays(self) -> str:
        """The address of the relay plane."""
        (address,) = self.opened.relays
        return address

    def surveyed(self, host: str) -> asyncio.Event:
        """Count a host as surveyed; return what is set when its next survey is called for."""
        assert self._service is not None
        due = self._service._sync._due.setdefault(host, fleet_sync._Due())
        return due.soon

    def waiting_relays(self) -> int:
        """How many requests of relays wait."""
        return int(scraped(self.client())["forewarn_relay_waiters"])

    def starts(self) -> bool:
        """Whether anything may start."""
        return self._plane.may_start()

    def token_states(self, host: str) -> list[bool]:
        """Of each valid token of a host, the oldest first: whether it was used."""
        with self._store.read() as reading:
            tokens = sorted(reading.tokens().values(), key=lambda token: token.created_at)
        return [token.used_at is not None for token in tokens if token.host == host]

    def token(self, host: str) -> str:
        answer = self.client().ask("POST", "/v1/relays/tokens", {"host": host})
        assert answer.status == 201, answer.body
        token: str = answer.json["token"]
        return token

    def relay(self, host: str) -> "AskingRelay":
        return AskingRelay(self.relays, self.token(host))


class AskingRelay:
    """Says what a relay says, one request at a time."""

    def __init__(self, address: str, token: str) -> None:
        self.address = address
        self.token = token
        self.etag = ""
        self.trusting: ssl.SSLContext | None = None

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        return self.send(method, path, None if body is None else relay_feed.encode(body), **headers)

    def send(self, method: str, path: str, data: bytes | None, **headers: str) -> Answer:
        with contextlib.closing(self._connection()) as connection:
            connection.request(method, path, body=data, headers={**self._headers, **headers})
            return Answer(connection.getresponse())

    @property
    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def _connection(self) -> http.client.HTTPConnection:
        scheme, _, place = self.address.partition("://")
        if scheme == "http":
            return http.client.HTTPConnection(place, timeout=patience.SECONDS)
        assert self.trusting is not None
        return http.client.HTTPSConnection(place, timeout=patience.SECONDS, context=self.trusting)

    def request(
        self,
        etag: str | None = None,
        state: RelayState | None = None,
        *,
        at_once: bool = False,
    ) -> Answer:
        """Ask for the host by an ETag, by default that of the document that was read last."""
        path = relay_feed.HOST_PATH + (f"?{relay_feed.WAIT}=0" if at_once else "")
        return self.ask("GET", path, **self._has(etag), **_told(state))

    def _has(self, etag: str | None = None) -> dict[str, str]:
        etag = self.etag if etag is None else etag
        return {"If-None-Match": f'"{etag}"'} if etag else {}

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Have a request for the host wait; after that its connection is closed."""
        with contextlib.closing(self._connection()) as connection:
            headers = {**self._headers, **self._has(), **_told()}
            connection.request("GET", relay_feed.HOST_PATH, headers=headers)
            yield

    def host(self, etag: str | None = None, state: RelayState | None = None) -> HostDocument:
        """Ask for the host, of which something changed."""
        answer = self.request(etag, state)
        assert answer.status == 200, (answer.status, answer.body)
        self.etag = answer.headers["ETag"].strip('"')
        return relay_feed.decode_host(answer.body)


def _told(state: RelayState | None = None) -> dict[str, str]:
    return {relay_feed.STATE_HEADER: relay_feed.encode(state or RelayState()).decode()}
