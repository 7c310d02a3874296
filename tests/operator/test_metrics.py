"""What Prometheus reads: the page's metrics and no others, and numbers that are right."""

import re
import sys
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

import patience
from forewarn.clock import ManualClock
from forewarn.connectors.port import Outcome
from forewarn.maintenance import alerts
from forewarn.server import settings
from forewarn.server.guest.endpoint import RESOURCES, Figures
from forewarn.server.guest.limits import Reason
from forewarn.server.operator.connections import OperatorLimit
from forewarn.store.sqlite import InMemoryStore
from forewarn.vocabulary import AgentStatus
from server.running import NOON, Client, Flaky, Running, fleet, request_reboot, settings_in

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "metrics.md").read_text()
COUNTED: Figures = {
    "guest_connections": 4,
    "guest_connections_accepted": 9,
    "guest_waiters": 6,
    "guest_requests": {("events", "200"): 5, ("events", "304"): 7, ("other", "404"): 1},
    "guest_refusals": {
        (reason.value,): 3 * (reason is Reason.UNKNOWN_ADDRESS) for reason in Reason
    },
    "machines_seen": 2,
}
Samples = dict[str, float]


def families(client: Client) -> list[Metric]:
    """Return what a scrape tells, read by Prometheus' own parser."""
    answer = client.ask("GET", "/metrics")
    assert answer.status == 200, answer.body
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    return list(text_string_to_metric_families(answer.body.decode()))


def scraped(client: Client) -> Samples:
    """Return the samples, each written as Prometheus writes it, labels in order."""
    found: Samples = {}
    for sample in (one for family in families(client) for one in family.samples):
        labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
        name = sample.name + (f"{{{labels}}}" if labels else "")
        assert name not in found
        found[name] = sample.value
    return found


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
    assert told['forewarn_guest_requests_total{code="200",resource="events"}'] == 5
    assert told['forewarn_guest_requests_total{code="304",resource="events"}'] == 7
    assert told['forewarn_guest_requests_total{code="404",resource="other"}'] == 1
    assert told['forewarn_guest_refusals_total{reason="unknown-address"}'] == 3
    assert told['forewarn_guest_refusals_total{reason="slow-reader"}'] == 0
    assert told["forewarn_guest_connections"] == 4
    assert told["forewarn_guest_connections_accepted_total"] == 9
    assert told["forewarn_guest_waiters"] == 6
    assert told["forewarn_machines_seen"] == 2


def test_the_life_of_an_operation_is_counted(
    service: Running, client: Client, clock: ManualClock
) -> None:
    quiet = scraped(client)
    assert quiet["forewarn_machines"] == len(service.guests.machines)
    assert quiet['forewarn_scopes{state="on"}'] == len(client.get("/v1/fleet/scopes")["scopes"])
    assert quiet['forewarn_scopes{state="off"}'] == 0
    assert not [name for name in quiet if "notice_left" in name or name.startswith("forewarn_ev")]
    request_reboot(client, machines=["web-0"])
    clock.advance(timedelta(minutes=5))
    service.guests.saw("web-1", agent=AgentStatus.READY)
    live = scraped(client)
    assert live['forewarn_agents{status="ready"}'] == 0
    service.guests.saw("web-0", agent=AgentStatus.HELD)
    live = scraped(client)
    assert live['forewarn_agents{status="held"}'] == 1
    assert live['forewarn_events{status="Scheduled",type="Reboot"}'] == 1
    assert live['forewarn_operations{status="Scheduled",type="Reboot"}'] == 1
    assert live["forewarn_notice_left_min_seconds"] == 600
    assert live['forewarn_alerts{kind="agent-held"}'] == 1
    assert live['forewarn_alerts{kind="failed"}'] == 0
    clock.advance(timedelta(minutes=10, seconds=2))
    service.plane.advance().result()
    started = scraped(client)
    assert started['forewarn_operations_started_total{cause="notice-over",type="Reboot"}'] == 1
    # Who advanced it, the ticker at NotBefore or this test 2 s later, is chance here.
    assert started["forewarn_start_lateness_seconds_count"] == 1
    assert started["forewarn_start_lateness_seconds_sum"] in {0, 2}
    assert started['forewarn_start_lateness_seconds_bucket{le="0.01"}'] in {0, 1}
    assert started['forewarn_start_lateness_seconds_bucket{le="2.5"}'] == 1
    assert started['forewarn_start_lateness_seconds_bucket{le="+Inf"}'] == 1
    assert started["forewarn_writer_jobs_waiting"] >= 0
    jobs = started["forewarn_writer_jobs_total"]
    assert jobs >= started["forewarn_commit_seconds_count"] > 0
    assert jobs > quiet["forewarn_writer_jobs_total"]
    assert started["forewarn_commit_seconds_sum"] > 0


def test_approvals_and_ends_are_counted_once_each(service: Running, client: Client) -> None:
    request_reboot(client, machines=["web-0"])
    request_reboot(client, machines=["bastion"])
    approval = {"references": ["1"]}
    for _ in range(2):
        assert client.ask("POST", "/v1/approvals", approval).status == 200
    service.plane.approve("bastion", [event_of(client, "bastion")], by="bastion", address="")
    request_reboot(client, machines=["web-1"])
    assert client.ask("POST", "/v1/cancellations", {"references": ["3"]}).status == 200
    told = scraped(client)
    assert told['forewarn_approvals_total{by="operator"}'] == 1
    assert told['forewarn_approvals_total{by="guest"}'] == 1
    assert told['forewarn_operations_started_total{cause="approved",type="Reboot"}'] == 2
    assert told['forewarn_operations_ended_total{status="Canceled",type="Reboot"}'] == 1
    assert told["forewarn_start_lateness_seconds_count"] == 0


def test_what_is_queued_or_down_is_counted_as_live_but_not_as_an_event(
    service: Running, client: Client
) -> None:
    for name in ("web-0", "web-1"):
        request_reboot(client, machines=[name])
    approved = client.ask("POST", "/v1/approvals", {"references": ["1"]})
    assert approved.status == 200
    path = "/v1/history?maintenance=1"
    attempt = patience.until(lambda: client.get(path)["operations"][0]["attempt"])
    service.plane.finish("1.1", attempt, Outcome(succeeded=False)).result()
    told = scraped(client)
    assert told['forewarn_operations{status="Queued",type="Reboot"}'] == 1
    assert told['forewarn_operations{status="Failed",type="Reboot"}'] == 1
    assert not [name for name in told if name.startswith("forewarn_events")]
    assert told['forewarn_operations_ended_total{status="Failed",type="Reboot"}'] == 1
    body = {"references": ["1"], "even_if_down": True}
    assert client.ask("POST", "/v1/acknowledgements", body).status == 200
    told = scraped(client)
    assert told['forewarn_operations{status="Scheduled",type="Reboot"}'] == 1
    assert told['forewarn_events{status="Scheduled",type="Reboot"}'] == 1
    assert 'forewarn_operations{status="Failed",type="Reboot"}' not in told
    assert told['forewarn_operations_ended_total{status="Failed",type="Reboot"}'] == 1


def event_of(client: Client, scope: str) -> str:
    (event,) = client.get(f"/v1/events?scope={scope}")["events"]
    return str(event["id"])


def test_the_service_tells_how_it_is(client: Client) -> None:
    told = scraped(client)
    (build,) = [name for name in told if name.startswith("forewarn_build_info")]
    assert 'version="' in build
    for name in ("build_info", "ready", "store_up"):
        (value,) = [told[one] for one in told if one.startswith(f"forewarn_{name}")]
        assert value == 1, name
    if sys.platform == "linux":
        assert told["process_resident_memory_bytes"] > 10_000_000
        assert told["process_open_fds"] > 3


def test_a_scrape_does_without_the_store(tmp_path: Path) -> None:
    store = Flaky(InMemoryStore())
    with Running(settings_in(tmp_path), store) as running:
        running.client().ask("PUT", "/v1/fleet", fleet())
        store.away = True
        told = scraped(running.client())
        store.away = False
    assert told["forewarn_store_up"] == told["forewarn_ready"] == 0
    assert told["forewarn_machines"] > 0
    assert not [name for name in told if name.startswith("forewarn_alerts")]


def test_scopes_that_are_off_are_counted(tmp_path: Path) -> None:
    rules = settings.RulesSettings(enablement="first-request")
    wanted = msgspec.structs.replace(settings_in(tmp_path), rules=rules)
    with Running(wanted, InMemoryStore(), ManualClock(NOON)) as running:
        client = running.client()
        client.ask("PUT", "/v1/fleet", fleet())
        every = len(client.get("/v1/fleet/scopes")["scopes"])
        running.plane.record_requests(["web"]).result()
        told = scraped(client)
    assert told['forewarn_scopes{state="on"}'] == 1
    assert told['forewarn_scopes{state="off"}'] == every - 1


@pytest.mark.parametrize(("token", "status"), [("", 401), ("right", 200), ("wrong", 401)])
def test_over_tcp_a_scrape_wants_the_token(tmp_path: Path, token: str, status: int) -> None:
    wanted = settings_in(tmp_path, listen="127.0.0.1:0")
    with Running(wanted, InMemoryStore()) as running:
        (url,) = [one for one in running.opened.operators if one.startswith("http")]
        known = Path(wanted.operator.token_file).read_text().strip()
        shown = {"right": known, "wrong": "x" * len(known)}.get(token, "")
        assert Client(url, shown).ask("GET", "/metrics").status == status
