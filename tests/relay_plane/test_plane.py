"""Relays are answered over real sockets, at any replica, each about its own host alone."""

import asyncio
import shutil
import socket
import ssl
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from forewarn.clock import SystemClock
from forewarn.protocol import codec
from forewarn.server import relay_feed, settings
from forewarn.server.relay.application import RelayApplication
from forewarn.server.relay_feed import AgedSighting, GuestApproval, RelayRefusal, UnknownCaller
from forewarn.server.secret_files import SecretUnusable
from forewarn.store import sqlite
from forewarn.store.sqlite import InMemoryStore
from forewarn.vocabulary import AgentStatus, ErrorCode
from patience import eventually
from relay_plane.served import RelayClient, RelayExchanges, Served, with_relays
from server.running import Flaky, Hurried, fleet
from store.shared import SharedStore
from stories import Rows, stories_beside


@pytest.fixture
def lives() -> Generator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@pytest.fixture
def begin(tmp_path: Path, lives: ExitStack) -> Callable[[], Served]:
    """Begin a life of a service over the same folder."""
    wanted = with_relays(tmp_path)

    def begun() -> Served:
        return lives.enter_context(Served(wanted, sqlite.open_store(Path(wanted.store.path))))

    return begun


@pytest.fixture
def service(begin: Callable[[], Served]) -> Served:
    return begin()


def refusal(answer: Any) -> tuple[int, str]:
    told: RelayRefusal = relay_feed.decode_refusal(answer.body)
    return answer.status, told.code


POSTED = (
    relay_feed.APPROVALS_PATH,
    relay_feed.SIGHTINGS_PATH,
    relay_feed.REQUESTS_PATH,
    relay_feed.UNKNOWN_PATH,
)


def play(story: RelayExchanges, name: str, rows: Rows) -> int:
    """Play a story of a service with a fleet."""
    sighting = {"machine": "web-0", "version": "2020-07-01"}
    story.bound |= {
        "host": relay_feed.HOST_PATH,
        **{path.rpartition("/")[2]: path for path in POSTED},
        "too-many-ids": ["X"] * (relay_feed.MAX_EVENT_IDS + 1),
        "too-many-scopes": ["web"] * (relay_feed.MAX_SCOPES + 1),
        "too-many-sightings": [sighting] * (relay_feed.MAX_SIGHTINGS + 1),
        "immense": 1e300,
        "long": 1e11,
        "itself": '{"version":"1.2","machines":1}',
    }
    story.carry_out("PUT /v1/fleet $fleet")
    return story.play(name, rows)


@pytest.mark.parametrize("rows", stories_beside(__file__, "plane.txt"))
def test_a_relay_hears_of_its_own_host(
    begin: Callable[[], Served], lives: ExitStack, rows: Rows
) -> None:
    assert play(RelayExchanges(begin, lives.close), "plane.txt", rows)


@pytest.mark.parametrize("rows", stories_beside(__file__, "replicas.txt"))
def test_a_relay_may_ask_any_replica(tmp_path: Path, lives: ExitStack, rows: Rows) -> None:
    store = SharedStore()

    def replica(name: str) -> Served:
        own = settings.ReplicaSettings(name=name)
        (tmp_path / name).mkdir()
        return lives.enter_context(Served(with_relays(tmp_path / name, replica=own), store))

    story = RelayExchanges(lambda: replica("a"), lives.close, replica("b"))
    assert play(story, "replicas.txt", rows)


def test_a_relay_is_told_of_the_machines_of_its_host_rules_and_the_time(service: Served) -> None:
    service.client().ask("PUT", "/v1/fleet", fleet())
    relay = service.relay("h1")
    answer = relay.ask("GET", relay_feed.HOST_PATH)
    told = relay_feed.decode_host(answer.body)
    assert told.host == "h1"
    assert told.rules == service.settings.guest_rules
    assert {machine.name for machine in told.machines} == {"web-1", "batch_0"}
    assert {one.scope.name: one.events for one in told.scopes} == {"web": (), "batch": ()}
    for each in (answer, relay.ask("GET", "/nothing")):
        sent = codec.any_date(each.headers[relay_feed.TIME_HEADER.decode()])
        assert abs((SystemClock().now() - sent).total_seconds()) < 1800


NESTED = b"[" * 10_000
UNREADABLE = [
    b"",
    b"{",
    b"<html>",
    b"\xff",
    b'{"machine":"\xff"}',
    b'{"scopes":["\\ud800"]}',
    b'{"later":' + NESTED,
    NESTED,
]


def test_a_body_that_cannot_be_read_is_refused(service: Served) -> None:
    relay = service.relay("h0")
    for path in POSTED:
        for body in UNREADABLE:
            answer = relay.ask("POST", path, body)
            assert (path, body[:200], *refusal(answer)) == (path, body[:200], 400, "invalid")
            assert relay_feed.decode_refusal(answer.body).message


async def test_an_approval_that_a_stop_gives_up_may_have_been_taken() -> None:
    begun, told = asyncio.Event(), asyncio.Queue[Any]()
    web = SimpleNamespace(name="web-0", scope="web")
    hub = SimpleNamespace(machine=lambda *_: web)
    watch = SimpleNamespace(token_of=lambda _: SimpleNamespace(host="h1"))

    def approve(*_: object, **__: object) -> Future[None]:
        begun.set()
        return Future()

    parts: list[Any] = [hub, watch, SimpleNamespace(approve=approve), SystemClock(), None, None]
    body = relay_feed.encode(GuestApproval(machine="web-0", address="", event_ids=("E1",)))
    asked = {"type": "http", "method": "POST", "path": relay_feed.APPROVALS_PATH}
    scope = asked | {"headers": [(b"authorization", b"Bearer x")]}

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": body}

    asking = asyncio.create_task(RelayApplication(*parts)(scope, receive, told.put))
    await begun.wait()
    asking.cancel()
    await asking
    assert (await told.get())["status"] == 503
    refusal = msgspec.json.decode((await told.get())["body"], type=RelayRefusal)
    assert refusal.code == ErrorCode.UNKNOWN_OUTCOME


def test_the_longest_sightings_fit_into_one_request(service: Served) -> None:
    longest = AgedSighting(
        machine="m" * 80,
        age_seconds=1234567.123456789,
        version="2020-07-01",
        agent=AgentStatus.RECOVERING,
        reason='"' * 200,
    )
    seen = [longest] * relay_feed.MAX_SIGHTINGS
    body = relay_feed.encode(seen)
    assert service.relay("h0").ask("POST", relay_feed.SIGHTINGS_PATH, body).status == 204


def test_an_unknown_caller_where_nothing_moves_has_its_host_surveyed(service: Served) -> None:
    due = service.surveyed("h0")
    caller = relay_feed.encode(UnknownCaller(listener="", address="10.0.0.11"))
    answer = service.relay("h0").ask("POST", relay_feed.UNKNOWN_PATH, caller)
    assert refusal(answer) == (404, "not-found")
    assert due.is_set()


def test_a_replica_that_is_cut_off_refuses_no_token_which_may_be_new(tmp_path: Path) -> None:
    store, own = Flaky(SharedStore()), settings.ReplicaSettings(name="a")
    with Served(with_relays(tmp_path, replica=own), store, real=Hurried()) as running:
        relay = RelayClient(running.relays, "unknown")
        for away, status in ((False, 401), (True, 503), (False, 401)):
            store.away = away
            eventually(lambda: relay.ask("GET", relay_feed.HOST_PATH).status, status)


def test_a_relay_whose_connection_is_lost_waits_no_more(service: Served) -> None:
    with service.relay("h0").waiting():
        eventually(service.waiting_relays, 1)
    eventually(service.waiting_relays, 0)
    assert service.waiting_relays() == 0


def test_bodies_that_never_come_keep_no_other_relay_out(tmp_path: Path) -> None:
    few = settings.RelaySettings(listen="127.0.0.1:0", connections=2)
    with ExitStack() as lives:
        wanted = msgspec.structs.replace(with_relays(tmp_path), relay=few)
        running = lives.enter_context(Served(wanted, InMemoryStore()))
        token, other = running.token("h0"), running.relay("h1")
        place = running.relays.removeprefix("http://").split(":")
        for _ in range(3):
            peer = lives.enter_context(socket.create_connection((place[0], int(place[1]))))
            peer.sendall(
                f"POST {relay_feed.SIGHTINGS_PATH} HTTP/1.1\r\nHost: a\r\n"
                f"Authorization: Bearer {token}\r\nExpect: 100-continue\r\n"
                "Content-Length: 9\r\n\r\n".encode()
            )
            assert peer.recv(100).startswith(b"HTTP/1.1 100")  # it is read, by its token
        assert other.ask("GET", relay_feed.HOST_PATH).status == 200


# Relays of other machines, by TLS alone.


CERTIFICATES = Path(__file__).parents[1] / "operator" / "certificates"


def encrypted(folder: Path, certificate: str = "first") -> settings.Settings:
    for kind in ("pem", "key"):
        shutil.copy(CERTIFICATES / f"{certificate}.{kind}", folder / f"tls.{kind}")
    files = {"tls_certificate": str(folder / "tls.pem"), "tls_key": str(folder / "tls.key")}
    relay = settings.RelaySettings(listen="127.0.0.1:0", **files)
    return msgspec.structs.replace(with_relays(folder), relay=relay)


def trust(certificate: str) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=CERTIFICATES / f"{certificate}.pem")


def test_a_relay_that_trusts_the_certificate_is_told_its_host_and_waits_also_when_it_is_renewed(
    tmp_path: Path,
) -> None:
    with Served(encrypted(tmp_path), InMemoryStore()) as running:
        assert running.relays.startswith("https://127.0.0.1:")
        relay = running.relay("h0")
        relay.trusting = trust("second")
        with pytest.raises(ssl.SSLCertVerificationError):
            relay.ask("GET", relay_feed.HOST_PATH)
        relay.trusting = trust("first")
        with relay.waiting():
            eventually(running.waiting_relays, 1)
        eventually(running.waiting_relays, 0)  # its connection is lost
        encrypted(tmp_path, "second")
        running.reload()
        relay.trusting = trust("second")
        assert relay.ask("GET", relay_feed.HOST_PATH).json["host"] == "h0"


def test_a_service_without_a_usable_certificate_does_not_start(tmp_path: Path) -> None:
    wanted = encrypted(tmp_path)
    (tmp_path / "tls.pem").write_text("nothing")
    with pytest.raises(SecretUnusable), Served(wanted, InMemoryStore()):
        pass
