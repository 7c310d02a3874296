"""Relays are answered over real sockets, each about its own host alone."""

import threading
from collections.abc import Generator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import pytest

import patience
from forewarn.cli import main
from forewarn.clock import SystemClock
from forewarn.protocol import codec
from forewarn.server import relay_feed
from forewarn.server.relay_feed import (
    AgedSighting,
    RelayRefusal,
    UnknownCaller,
)
from forewarn.store import sqlite
from forewarn.vocabulary import AgentStatus
from patience import eventually
from relay_plane.served import AskingRelay, Served, with_relays
from server.exchange import REQUEST, Exchanges
from server.running import Answer, Client, fleet, request_reboot
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
def test_a_relay_is_answered_about_its_own_host(
    service: Served, rows: list[tuple[int, str]]
) -> None:
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


def test_a_relay_is_told_of_the_machines_of_its_host_the_rules_and_the_time(
    service: Served,
) -> None:
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
