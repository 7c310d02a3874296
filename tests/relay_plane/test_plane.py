"""Relays are answered over real sockets, at any replica, each about its own host alone."""

import shutil
import ssl
import threading
from collections.abc import Generator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

import patience
from forewarn.cli import main
from forewarn.clock import SystemClock
from forewarn.protocol import codec
from forewarn.server import relay_feed, settings
from forewarn.server.relay_feed import (
    AgedSighting,
    GuestApproval,
    RelayRefusal,
    UnknownCaller,
)
from forewarn.server.secret_files import SecretUnusable
from forewarn.store import sqlite
from forewarn.store.sqlite import InMemoryStore
from forewarn.vocabulary import AgentStatus
from patience import eventually
from relay_plane.served import AskingRelay, Served, with_relays
from server.exchange import REQUEST, Exchanges
from server.running import Answer, Client, fleet, request_reboot
from store.shared import SharedStore
from stories import stories_beside

T = TypeVar("T")


@pytest.fixture
def service(tmp_path: Path) -> Generator[Served]:
    wanted = with_relays(tmp_path)
    with Served(wanted, sqlite.open_store(Path(wanted.store.path))) as running:
        assert running.client().ask("PUT", "/v1/fleet", fleet()).status == 200
        yield running


def beside(work: Any, *given: Any) -> "Future[Any]":
    """What is done on a thread of its own."""
    done: Future[Any] = Future()

    def run() -> None:
        try:
            done.set_result(work(*given))
        except BaseException as error:  # noqa: BLE001 - the test's thread raises it
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return done


def refusal(answer: Any) -> tuple[int, str]:
    told: RelayRefusal = relay_feed.decode_refusal(answer.body)
    return answer.status, told.code


POSTED = (
    relay_feed.APPROVALS_PATH,
    relay_feed.SIGHTINGS_PATH,
    relay_feed.REQUESTS_PATH,
    relay_feed.UNKNOWN_PATH,
)


class RelayClient(Client):
    """Says of itself what the least of relays says."""

    def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> Answer:
        told = {relay_feed.STATE_HEADER: "{}"} if method == "GET" else {}
        return super().ask(method, path, body, told | (headers or {}))


class RelayExchanges(Exchanges):
    """A story so far, of relays and operators."""

    service: Served

    def client(self, who: str) -> Client:
        if who in self.clients or not who.startswith(("relay", "looks")):
            return super().client(who)
        _, of_host, host = who.partition("/")
        token = self.service.token(host) if of_host else self.spelled(who.removeprefix("relay"))
        kind = Client if who.startswith("looks") else RelayClient
        return self.clients.setdefault(who, kind(self.service.relays, token))

    def carry_out(self, row: str) -> None:
        verb, _, told = row.partition(" ")
        if verb == "waiting":
            asked = REQUEST.fullmatch(told)
            assert asked, told
            self.answer = beside(self.ask, asked)
            eventually(self.service.waiting_relays, 1)
        elif verb == "then":
            self.compare_answer(self.answer.result(patience.SECONDS), told)
        else:
            super().carry_out(row)

    def used(self, host: str) -> None:
        """The one token of a host has been used."""
        eventually(lambda: self.service.token_states(host), [True])


@pytest.mark.parametrize("rows", stories_beside(__file__, "plane.txt"))
def test_a_relay_hears_of_its_own_host(service: Served, rows: list[tuple[int, str]]) -> None:
    story = RelayExchanges(service)
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
    assert story.play("plane.txt", rows)


def test_a_relay_is_told_of_the_machines_of_its_host_rules_and_the_time(service: Served) -> None:
    relay = service.relay("h1")
    told = relay.host()
    assert told.host == "h1"
    assert told.rules == service.settings.guest_rules
    assert {machine.name for machine in told.machines} == {"web-1", "batch_0"}
    assert {one.scope.name: one.events for one in told.scopes} == {"web": (), "batch": ()}
    for answer in (relay.request(""), relay.ask("GET", "/nothing")):
        sent = codec.any_date(answer.headers[relay_feed.TIME_HEADER.decode()])
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
            answer = relay.send("POST", path, body)
            assert (path, body[:200], *refusal(answer)) == (path, body[:200], 400, "invalid")
            assert relay_feed.decode_refusal(answer.body).message


def test_a_relay_that_tells_impossible_things_of_itself_is_refused(service: Served) -> None:
    relay = service.relay("h0")
    for told in (
        *('{"version":"\\u0000"}', '{"version":1}', '{"later":1}', "[]", "{"),
        *('{"machines":-1}', '{"machines":1180591620717411303424}', '{"machines":1.5}'),
        *(
            f'{{"{name}":{number}}}'
            for name in ("age_seconds", "stale_seconds", "stalled_seconds")
            for number in ("-1", "1e300", "1e999", "NaN", "null")
        ),
    ):
        answer = relay.ask("GET", relay_feed.HOST_PATH, **{relay_feed.STATE_HEADER: told})
        assert (told, *refusal(answer)) == (told, 400, "invalid")
    answer = relay.ask("GET", f"{relay_feed.HOST_PATH}?{'&'.join(['wait=1'] * 99)}")
    assert refusal(answer) == (400, "invalid")
    (host,) = (one for one in service.client().get("/v1/hosts")["hosts"] if one["name"] == "h0")
    assert host["relay"]["state"] == "expected"  # it counts as never heard


def test_the_longest_sightings_fit_into_one_request(service: Served) -> None:
    longest = AgedSighting(
        machine="m" * 80,
        age_seconds=1234567.123456789,
        version="2020-07-01",
        agent=AgentStatus.RECOVERING,
        reason='"' * 200,
    )
    seen = [longest] * relay_feed.MAX_SIGHTINGS
    assert service.relay("h0").ask("POST", relay_feed.SIGHTINGS_PATH, seen).status == 204


def test_an_unknown_caller_where_nothing_moves_has_its_host_surveyed(service: Served) -> None:
    due = service.surveyed("h0")
    wanted = UnknownCaller(listener="", address="10.0.0.11")
    answer = service.relay("h0").ask("POST", relay_feed.UNKNOWN_PATH, wanted)
    assert refusal(answer) == (404, "not-found")
    assert due.is_set()


def test_a_relay_whose_connection_is_lost_waits_no_more(service: Served) -> None:
    relay = service.relay("h0")
    relay.host()
    with relay.waiting():
        eventually(service.waiting_relays, 1)
    eventually(service.waiting_relays, 0)
    assert service.waiting_relays() == 0


def test_a_service_that_stops_sends_its_relays_away(tmp_path: Path) -> None:
    wanted = with_relays(tmp_path)
    with Served(wanted, sqlite.open_store(Path(wanted.store.path))) as running:
        relay = running.relay("h0")
        relay.host()
        waiting = beside(relay.request)
        eventually(running.waiting_relays, 1)
    assert waiting.result(patience.SECONDS).status == 503


def known(wanted: Any) -> AskingRelay:
    """A relay that has the document of its host from a service that has ended since."""
    with Served(wanted, sqlite.open_store(Path(wanted.store.path))) as running:
        running.client().ask("PUT", "/v1/fleet", fleet())
        relay = running.relay("h0")
        relay.host()
        return relay


def test_a_relay_that_has_its_host_waits_on_after_a_restart(tmp_path: Path) -> None:
    wanted = with_relays(tmp_path)
    relay = known(wanted)
    with Served(wanted, sqlite.open_store(Path(wanted.store.path))) as running:
        relay.address = running.relays
        assert relay.request(at_once=True).status == 304
        waiting = beside(relay.host)
        eventually(running.waiting_relays, 1)
        request_reboot(running.client())
        (document,) = waiting.result(patience.SECONDS).scopes
        assert [one.event.resources for one in document.events] == [("web-0",)]


def test_after_a_restart_nothing_starts_before_each_relay_has_asked(tmp_path: Path) -> None:
    wanted = with_relays(tmp_path)
    relay = known(wanted)
    with Served(wanted, sqlite.open_store(Path(wanted.store.path))) as running:
        relay.address = running.relays
        assert not running.starts()
        relay.etag = ""
        relay.host()
        eventually(running.starts, True)


def test_who_knows_more_than_a_restored_database_is_told_what_that_has(tmp_path: Path) -> None:
    wanted = with_relays(tmp_path)
    path, relay = Path(wanted.store.path), known(wanted)
    epoch, _, _ = relay.etag.rsplit(".", 2)
    relay.etag = f"{epoch}.{10**6}.{'0' * 32}"
    assert main.execute(["restore-check", str(path)]) == 0
    with Served(wanted, sqlite.open_store(path)) as running:
        relay.address = running.relays
        relay.host()
        assert not relay.etag.startswith(f"{epoch}.")


# From one replica to another.


@pytest.fixture
def replicas(tmp_path: Path) -> Generator[tuple[Served, Served]]:
    store = SharedStore()

    def one(name: str) -> Served:
        own = settings.ReplicaSettings(name=name)
        folder = tmp_path / name
        folder.mkdir()
        return Served(with_relays(folder, replica=own), store)

    with one("a") as first, one("b") as second:
        first.client().ask("PUT", "/v1/fleet", fleet())
        eventually(lambda: second.client().ask("GET", "/v1/fleet/machines/web-0").status, 200)
        yield first, second


def test_a_relay_goes_on_at_another_replica_where_it_was(replicas: tuple[Served, Served]) -> None:
    first, second = replicas
    relay = first.relay("h0")
    relay.host()
    relay.address = second.relays
    eventually(lambda: relay.request(at_once=True).status, 304)
    waiting = beside(relay.host)
    eventually(second.waiting_relays, 1)
    request_reboot(first.client())
    told = waiting.result(patience.SECONDS)
    ((event,),) = (document.events for document in told.scopes)
    wanted = GuestApproval(machine="web-0", address="10.0.0.10", event_ids=(event.event.event_id,))
    assert relay.ask("POST", relay_feed.APPROVALS_PATH, wanted).status == 200
    relay.address = first.relays
    (document,) = relay.host().scopes
    assert document.events[0].event.status == "Started"


def test_a_token_is_valid_and_revoked_at_every_replica(replicas: tuple[Served, Served]) -> None:
    first, second = replicas
    relay = first.relay("h0")
    relay.address = second.relays
    eventually(lambda: relay.request("", at_once=True).status, 200)
    relay.host()
    waiting = beside(relay.request)
    eventually(second.waiting_relays, 1)
    first.client().ask("DELETE", "/v1/relays/tokens?host=h0")
    assert refusal(waiting.result(patience.SECONDS)) == (401, "unauthorized")


def test_what_a_relay_tells_one_replica_all_of_them_know(replicas: tuple[Served, Served]) -> None:
    first, second = replicas
    relay = first.relay("h0")
    relay.host()
    relay.ask(
        "POST", relay_feed.SIGHTINGS_PATH, [AgedSighting(machine="web-0", version="2020-07-01")]
    )

    def known() -> tuple[bool, str]:
        seen = second.client().get("/v1/fleet/machines/web-0")["last_seen"]
        hosts = second.client().get("/v1/hosts")["hosts"]
        (relay,) = (host["relay"] for host in hosts if host["name"] == "h0")
        return seen is not None, relay["state"] if relay else ""

    eventually(known, (True, "present"))
    assert service_of(second, "h0") == "a"


def service_of(asked: Served, name: str) -> str:
    """The replica that heard a host's relay last, by the word of another."""
    told: str = asked.client().get(f"/v1/hosts/{name}")["host"]["relay"]["replica"]
    return told


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
            relay.host()
        relay.trusting = trust("first")
        assert relay.host().host == "h0"
        with relay.waiting():
            eventually(running.waiting_relays, 1)
        eventually(running.waiting_relays, 0)  # its connection is lost
        encrypted(tmp_path, "second")
        running.reload()
        relay.trusting = trust("second")
        assert relay.host("").host == "h0"


def test_a_service_without_a_usable_certificate_does_not_start(tmp_path: Path) -> None:
    wanted = encrypted(tmp_path)
    (tmp_path / "tls.pem").write_text("nothing")
    with pytest.raises(SecretUnusable), Served(wanted, InMemoryStore()):
        pass


@pytest.mark.parametrize(
    "given",
    [
        {"listen": "10.0.0.1:8173", "tls_certificate": "tls.pem"},
        {"listen": "[::1]:8173"},
        {"listen": ""},
    ],
)
def test_with_a_certificate_or_on_loopback_relays_may_ask(given: dict[str, str]) -> None:
    assert settings.RelaySettings(**given).listen == given["listen"]
