"""A whole service with a relay plane, and what relays say to it, over real sockets."""

import asyncio
import contextlib
import http.client
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

import patience
from forewarn.cli import main
from forewarn.control import fleet_sync
from forewarn.control.plane import Plane
from forewarn.server import relay_feed, settings
from forewarn.server.guest.listener import Listener
from forewarn.server.guest.plane import GuestPlane
from forewarn.server.sockets import HandedOver
from patience import eventually
from server.exchange import Exchanges, scraped
from server.running import Answer, Client, Running, guids, settings_in

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

    def relay(self, host: str) -> "RelayClient":
        return RelayClient(self.relays, self.token(host))


class RelayClient(Client):
    """Says of itself what the least of relays says, and trusts a certificate."""

    trusting: ssl.SSLContext | None = None

    def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> Answer:
        told = {relay_feed.STATE_HEADER: "{}"} if method == "GET" else {}
        return super().ask(method, path, body, told | (headers or {}))

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Have a request for the host wait; after that its connection is closed."""
        has = {"If-None-Match": self.ask("GET", relay_feed.HOST_PATH).headers["ETag"]}
        with contextlib.closing(self._connection()) as connection:
            headers = {"Authorization": f"Bearer {self._token}", relay_feed.STATE_HEADER: "{}"}
            connection.request("GET", relay_feed.HOST_PATH, headers=headers | has)
            yield

    def _connection(self) -> http.client.HTTPConnection:
        if self.trusting is None:
            return super()._connection()
        place = str(self._place).removeprefix("https://")
        return http.client.HTTPSConnection(place, timeout=patience.SECONDS, context=self.trusting)


class RelayExchanges(Exchanges):
    """A story so far, of relays and operators; `@b` behind who asks is another replica."""

    def __init__(self, begin: Callable[[], Served], end: Callable[[], None], *more: Served) -> None:
        self.services = {"": begin(), **{each.settings.replica.name: each for each in more}}
        super().__init__(self.services[""])
        self._begin, self.stop = begin, end
        self._tokens: dict[str, str] = {}

    def client(self, who: str) -> Client:
        name, _, replica = who.partition("@")
        if who in self.clients or not (replica or name.startswith(("relay", "looks"))):
            return super().client(who)
        service = self.services[replica]
        if name == "root":
            return self.clients.setdefault(who, service.client())
        _, of_host, host = name.partition("/")
        if of_host and host not in self._tokens:
            self._tokens[host] = self.services[""].token(host)
        kind, says = (Client, "looks") if name.startswith("looks") else (RelayClient, "relay")
        token = self._tokens[host] if of_host else self.spelled(name.removeprefix(says))
        return self.clients.setdefault(who, kind(service.relays, token))

    def waits(self, replica: str = "") -> None:
        """A relay's request waits at this replica."""
        eventually(self.services[replica].waiting_relays, 1)

    def restart(self) -> None:
        self.stop()
        self.service = self.services[""] = self._begin()
        self.root = self.service.client()
        self.clients = {"root": self.root}

    def restore(self, etag: str) -> None:
        """Restore the database, as after a loss; bind an ETag of the time before that is ahead."""
        self.stop()
        self.bound["epoch"], *_ = self.bound[etag].strip('"').rsplit(".", 2)
        self.bound["ahead"] = f'"{self.bound["epoch"]}.{10**6}.{"0" * 32}"'
        assert main.execute(["restore-check", self.service.settings.store.path]) == 0
        self.restart()

    def impossible(self, state: str) -> None:
        """A relay tells this of itself, and is refused."""
        told = {relay_feed.STATE_HEADER: state}
        answer = self.client("relay/h0").ask("GET", relay_feed.HOST_PATH, headers=told)
        self.compare_answer(answer, "400 {code: invalid}")

    def used(self, host: str) -> None:
        """The one token of a host has been used."""
        eventually(lambda: self.service.token_states(host), [True])

    def starts(self, answer: str = "yes") -> None:
        """Something may start, by and by, or nothing may."""
        if answer == "yes":
            eventually(self.service.starts, True)
        else:
            assert not self.service.starts()
