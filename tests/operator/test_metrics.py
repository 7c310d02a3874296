"""What Prometheus reads: the page's metrics and no others, and numbers that are right."""

import re
import sys
from datetime import timedelta
from pathlib import Path

import msgspec

from forewarn.clock import ManualClock
from forewarn.control.replicas import SharedSightings
from forewarn.maintenance import alerts
from forewarn.maintenance.model import Sighting
from forewarn.server import settings
from forewarn.server.guest.endpoint import RESOURCES, Figures
from forewarn.server.guest.limits import Reason
from forewarn.server.operator.connections import OperatorLimit
from forewarn.store.sqlite import InMemoryStore
from server.exchange import Exchanges, families, scraped
from server.running import NOON, Client, Running, request_reboot, settings_in

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "metrics.md").read_text()
COUNTED: Figures = {
    "guest_connections": 4,
    "guest_connections_accepted": 9,
    "guest_waiters": 6,
    "guest_requests": {("events", "200"): 5, ("events", "304"): 7, ("other", "404"): 1},
    "guest_refusals": {
        (reason.value,): 3 * (reason is Reason.UNKNOWN_ADDRESS) for reason in Reason
    },
}


def test_the_page_has_a_heading_for_each_metric_and_for_no_other(client: Client) -> None:
    request_reboot(client, machines=["web-0"])
    told = families(client)
    names = {
        f"{one.name}_total" if one.type == "counter" else one.name
        for one in told
        if not (one.name == "forewarn_build" or one.name.startswith("process_"))
    }
    headings = re.findall(r"^### `([a-z_]+)`$", PAGE, re.MULTILINE)
    assert len(set(headings)) == len(headings)
    ours = {name for name in headings if name.startswith("forewarn_")}
    assert names - ours == set()
    assert ours - names == set()
    if sys.platform == "linux":
        process = {one.samples[0].name for one in told if one.name.startswith("process_")}
        assert process == set(headings) - ours
    for one in told:
        assert one.documentation.endswith("."), one.name
        assert one.type in {"counter", "gauge", "histogram"}, one.name


def test_the_page_explains_every_value_of_every_closed_list() -> None:
    for value in (*Reason, *RESOURCES, *alerts.AlertKind, *OperatorLimit):
        assert f"`{value}`" in PAGE


def test_what_the_guest_plane_counted_is_told(service: Running, client: Client) -> None:
    service.guests.counted = COUNTED
    told = scraped(client)
    for name, count in {
        "guest_requests_total{code=200,resource=events}": 5,
        "guest_requests_total{code=304,resource=events}": 7,
        "guest_requests_total{code=404,resource=other}": 1,
        "guest_refusals_total{reason=unknown-address}": 3,
        "guest_refusals_total{reason=slow-reader}": 0,
        "guest_connections": 4,
        "guest_connections_accepted_total": 9,
        "guest_waiters": 6,
    }.items():
        assert told[f"forewarn_{name}"] == count, name


def test_machines_that_ask_this_process_or_a_relay_are_counted_as_long_as_they_do(
    service: Running, clock: ManualClock, client: Client
) -> None:
    shared = service.plane.sighting
    assert isinstance(shared, SharedSightings)
    service.guests.saw("web-0")
    shared.relay("web-1", Sighting(asked_at=NOON + timedelta(minutes=1), version=""))
    assert scraped(client)["forewarn_machines_listening"] == 2
    clock.advance(timedelta(minutes=5, seconds=30))
    assert scraped(client)["forewarn_machines_listening"] == 1


def test_scopes_that_are_off_are_counted(tmp_path: Path) -> None:
    rules = settings.RulesSettings(enablement="first-request")
    wanted = msgspec.structs.replace(settings_in(tmp_path), rules=rules)
    with Running(wanted, InMemoryStore(), ManualClock(NOON)) as running:
        story = Exchanges(running)
        story.carry_out("PUT /v1/fleet $fleet")
        running.plane.record_requests(["web"]).result()
        story.check("metric scopes{state=on} 1", "metric scopes{state=off} 3")
