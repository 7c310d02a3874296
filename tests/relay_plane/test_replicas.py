"""A relay goes from one replica to another, over real sockets."""

from collections.abc import Generator
from pathlib import Path

import pytest

import patience
from forewarn.server import relay_feed, settings
from forewarn.server.relay_feed import AgedSighting, GuestApproval
from patience import eventually
from relay_plane.served import Served, with_relays
from relay_plane.test_plane import beside, refusal
from server.running import fleet, request_reboot
from store.shared import SharedStore


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


def test_a_relay_goes_on_at_another_replica_from_where_it_was(
    replicas: tuple[Served, Served],
) -> None:
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


def test_a_token_is_valid_at_every_replica_and_revoked_at_every_one(
    replicas: tuple[Served, Served],
) -> None:
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
