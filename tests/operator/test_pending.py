"""What is pending, held, down or expiring, over the API."""

from datetime import datetime, time, timedelta
from typing import Any

import msgspec
import pytest

import patience
from builders import mint
from forewarn import times
from forewarn.cli import events
from forewarn.cli.exits import ExitStatus
from forewarn.clock import ManualClock
from forewarn.maintenance import fleet_file
from forewarn.maintenance.world import World
from forewarn.server.operator import schemas, views
from forewarn.vocabulary import AgentStatus
from server.running import ME, NOON, Cli, Client, Running, end, fleet, request_reboot, under_way


def reboot_of_web(client: Client, **more: Any) -> Any:
    answer = client.ask(
        "POST", "/v1/maintenances", {"event_type": "Reboot", "scopes": ["web"], **more}
    )
    assert answer.status == 201, answer.body
    return answer.json


def units_of(client: Client, number: int = 1) -> dict[str, Any]:
    shown = client.get(f"/v1/maintenances/{number}")["units"]
    return {unit["name"]: unit for unit in shown}


def test_the_update_domains_of_a_scope_are_units_that_have_their_turns(client: Client) -> None:
    plan = reboot_of_web(client)
    assert plan["maintenance"]["status"] == "running"
    assert plan["maintenance"]["announced"] == 1
    assert plan["maintenance"]["units"] == {
        "waiting": 2, "running": 1, "done": 0, "failed": 0, "skipped": 0,
    }  # fmt: skip
    shown = client.get("/v1/maintenances/1")
    first, *others = shown["units"]
    assert (first["name"], first["status"], first["operation"]) == ("web/0", "running", "1.1")
    assert [unit["machines"]["names"] for unit in others] == [["web-1"], ["web-2"]]
    assert shown["operations"][0]["unit"] == 0
    assert client.get("/v1/maintenances")["maintenances"] == [shown["maintenance"]]


def test_the_machines_of_a_unit_that_waits_follow_the_fleet(client: Client) -> None:
    reboot_of_web(client)
    client.ask("DELETE", "/v1/fleet/machines?name=web-1")
    assert units_of(client)["web/1"]["machines"]["count"] == 0
    assert units_of(client)["web/2"]["machines"]["names"] == ["web-2"]


def test_without_notice_is_kept_with_the_maintenance(client: Client) -> None:
    request_reboot(client, without_notice=True)
    request_reboot(client, machines=["Bastion"])
    newest, first = client.get("/v1/maintenances")["maintenances"]
    assert first["without_notice"]
    assert not newest["without_notice"]


@pytest.mark.parametrize(
    "body",
    [
        {"kind": "everything", "name": "web"},
        {"kind": "scope"},
        {"kind": "rack", "name": "r1"},
        {"kind": "scope", "name": "web", "reason": "a\nb"},
        {"kind": "scope", "name": "web", "why": "?"},
    ],
)
def test_an_ambiguous_hold_is_refused(client: Client, body: Any) -> None:
    refused = client.ask("POST", "/v1/holds", body)
    assert (refused.status, refused.error["code"]) == (400, "invalid")
    assert client.get("/v1/holds")["holds"] == []


@pytest.mark.parametrize("wrong", ["2026-03-01T15:30:00", "9999-12-31T23:59:59-14:00"])
def test_a_time_without_a_zone_or_beyond_all_years_is_refused(client: Client, wrong: str) -> None:
    request_reboot(client)
    body = {"references": ["1.1"], "not_before": wrong}
    refused = client.ask("POST", "/v1/postponements", body)
    assert (refused.status, refused.error["code"]) == (400, "invalid")


def kinds(client: Client) -> list[tuple[str, str]]:
    answer = client.get("/v1/alerts")
    assert answer["count"] == len(answer["items"])
    return [(item["kind"], item["about"]) for item in answer["items"]]


def test_all_is_well_at_first(client: Client) -> None:
    assert client.get("/v1/alerts") == {"now": "2026-03-01T12:00:00Z", "count": 0, "items": []}


def test_an_alert_tells_of_machines_that_cannot_see_their_event(
    client: Client, service: Running
) -> None:
    client.ask("POST", "/v1/maintenances", {"event_type": "Preempt", "scopes": ["batch"]})
    service.guests.saw("batch_0", "2017-08-01")
    assert ("unseen", "1.1") in kinds(client)
    service.guests.saw("batch_0", "2017-11-01")
    assert kinds(client) == [("unapproved", "1.1")]


def test_an_alert_tells_at_once_that_an_agent_could_not_prepare_its_machine(
    client: Client, service: Running
) -> None:
    service.guests.saw("web-0", agent=AgentStatus.PREPARING)
    request_reboot(client)
    assert kinds(client) == []
    service.guests.saw("web-0", agent=AgentStatus.HELD, reason="the drain failed")
    (item,) = client.get("/v1/alerts")["items"]
    assert (item["kind"], item["about"]) == ("agent-held", "1.1")
    assert "web-0 (the drain failed)" in item["message"]
    (event,) = client.get("/v1/events")["events"]
    assert event["agents"] == [{"machine": "web-0", "status": "held", "reason": "the drain failed"}]


def test_a_preempted_machine_is_remembered_and_added_again_only_on_purpose(
    client: Client, service: Running
) -> None:
    assert client.get("/v1/fleet/tombstones") == {"tombstones": [], "next": ""}
    client.ask("POST", "/v1/maintenances", {"event_type": "Preempt", "scopes": ["batch"]})
    end(service, client, "1.1", well=True)
    assert client.ask("GET", "/v1/fleet/machines/batch_0").status == 404
    (tombstone,) = client.get("/v1/fleet/tombstones?limit=1")["tombstones"]
    assert tombstone == {
        "name": "batch_0",
        "event_type": "Preempt",
        "operation": "1.1",
        "at": "2026-03-01T12:00:00Z",
        "scope": "batch",
        "incarnation": 3,
    }
    left_out = client.ask("PUT", "/v1/fleet", fleet()).json
    assert left_out["tombstones"] == {"count": 1, "names": ["batch_0"]}
    assert left_out["added"]["count"] == 0
    added = client.ask("PUT", "/v1/fleet?again=true", fleet()).json
    assert added["added"]["names"] == ["batch_0"]
    assert client.get("/v1/fleet/tombstones")["tombstones"] == []


def test_machines_whose_host_is_not_known_are_found(client: Client) -> None:
    found = client.get("/v1/fleet/machines?host=unknown")["machines"]
    assert [machine["name"] for machine in found] == ["Bastion"]


def live(client: Client) -> dict[str, Any]:
    """Return the live events by their operation."""
    return {event["operation"]: event for event in client.get("/v1/events")["events"]}


def status_of(client: Client, reference: str) -> str:
    found = client.get(f"/v1/history?maintenance={reference[0]}")["operations"]
    (status,) = [operation["status"] for operation in found if operation["id"] == reference]
    return str(status)


def becomes(client: Client, reference: str, status: str) -> None:
    """Wait until an operation has a status; the service notices by itself."""
    patience.eventually(lambda: status_of(client, reference), status)


def standing(event: Any) -> str:
    """Return what the command line shows as the status of a live event."""
    return events.standing(msgspec.convert(event, schemas.LiveEvent))


def standing_of(client: Client, number: int) -> str:
    """Return what the command line shows as the status of a maintenance's operation."""
    (operation,) = client.get(f"/v1/history?maintenance={number}")["operations"]
    return events.standing(msgspec.convert(operation, schemas.OperationView))


def comes_back(
    service: Running, clock: ManualClock, machine: str, agent: AgentStatus | None = None
) -> None:
    """Let a machine ask in a later second, and the service look."""
    service.guests.saw(machine, at=clock.now() + timedelta(seconds=1), agent=agent)
    clock.advance(timedelta(seconds=2))


def two_domains(service: Running, client: Client, agent: AgentStatus | None = None) -> None:
    """Ask for two machines that listen, of two update domains."""
    service.guests.saw("web-0", agent=agent)
    service.guests.saw("web-1")
    request_reboot(client)
    request_reboot(client, machines=["web-1"])


def test_what_would_take_another_domain_is_listed_with_what_it_waits_for(
    client: Client, service: Running
) -> None:
    two_domains(service, client)
    queued = live(client)["2.1"]
    assert (queued["status"], queued["waits_for"]) == ("Queued", "1.1")
    assert "1.1" in queued["status_detail"]
    assert "web-0" not in queued["status_detail"]
    assert queued["notice_left_seconds"] is None
    under_way(client, "1.1")
    queued = live(client)["2.1"]
    behind = queued["status_detail"]
    assert "web-0" in behind
    assert standing(queued) == f"Queued, {behind}"
    (shown,) = client.get("/v1/maintenances/2")["operations"]
    assert (shown["status"], shown["status_detail"]) == ("Queued", behind)
    body = {"event_type": "Reboot", "machines": ["web-2"]}
    (tried,) = client.ask("POST", "/v1/maintenances?dry_run=true", body).json["operations"]
    assert (tried["status"], tried["waits_for"]) == ("Queued", "1.1")
    assert tried["status_detail"] == behind
    assert set(live(client)) == {"1.1", "2.1"}


def test_an_operation_is_over_when_its_machines_have_asked_again(
    client: Client, service: Running, clock: ManualClock
) -> None:
    two_domains(service, client)
    end(service, client, "1.1", well=True)
    returning = live(client)["1.1"]
    assert (returning["status"], returning["awaited"]) == ("Returning", ["web-0"])
    assert returning["carried_out_at"] == "2026-03-01T12:00:00Z"
    assert returning["back_by"] == "2026-03-01T12:10:00Z"
    assert standing(returning) == f"Returning, {returning['status_detail']}"
    assert "web-0" in returning["status_detail"]
    assert "12:10Z" in returning["status_detail"]
    assert status_of(client, "2.1") == "Queued"
    early = client.ask("POST", "/v1/acknowledgements", {"references": ["1.1"]})
    assert (early.status, early.error["code"]) == (409, "conflict")
    comes_back(service, clock, "web-0")
    becomes(client, "1.1", "Completed")
    assert set(live(client)) == {"2.1"}
    assert status_of(client, "2.1") == "Scheduled"
    assert kinds(client) == []


def test_the_alert_of_an_agent_that_is_not_back_ends_with_its_acknowledgement(
    client: Client, service: Running, clock: ManualClock
) -> None:
    two_domains(service, client, AgentStatus.READY)
    end(service, client, "1.1", well=True)
    comes_back(service, clock, "web-0", AgentStatus.RECOVERING)
    becomes(client, "1.1", "Completed")
    assert "web-0" in standing_of(client, 1)
    assert "web-0" in standing_of(client, 2)
    assert kinds(client) == []
    clock.advance(timedelta(minutes=5))
    service.guests.saw("web-1", at=clock.now())
    (item,) = client.get("/v1/alerts")["items"]
    assert (item["kind"], item["about"]) == ("not-back", "1.1")
    assert "web-0" in item["message"]
    assert item["message"].endswith("; 2.1 waits")
    (done,) = client.ask("POST", "/v1/acknowledgements", {"references": ["1.1"]}).json["operations"]
    assert (done["acknowledged_by"], done["awaited"]) == (ME, [])
    assert kinds(client) == []
    assert live(client)["2.1"]["status"] == "Scheduled"
    again = client.ask("POST", "/v1/acknowledgements", {"references": ["1.1"]})
    assert (again.status, again.error["code"]) == (409, "conflict")


def until(client: Client) -> datetime | None:
    (hold,) = client.get("/v1/holds")["holds"]
    return hold["until"] and datetime.fromisoformat(hold["until"])


def test_a_hold_is_listed_with_its_end_and_gone_then(client: Client, clock: ManualClock) -> None:
    body = {"kind": "scope", "name": "web", "until": "2026-03-01T14:00:00+01:00"}
    assert client.ask("POST", "/v1/holds", body).status == 201
    assert until(client) == NOON + timedelta(hours=1)
    clock.advance(timedelta(hours=1))
    patience.until(lambda: client.get("/v1/holds")["holds"] == [])
    ended, held, *_ = client.get("/v1/audit")["records"]
    assert (ended["deed"], ended["detail"]) == ("expire", "scope web")
    assert ended["by"] == held["by"] == ME


@pytest.mark.parametrize(
    ("given", "ends"),
    [
        ("+2h", NOON + timedelta(hours=2)),
        ("2026-03-01T18:00:00Z", NOON + timedelta(hours=6)),
        ("11:00", times.next_time_of_day(time(11), NOON)),
    ],
)
def test_an_end_is_typed_as_a_time_a_span_or_a_time_of_day(
    cli: Cli, client: Client, given: str, ends: datetime
) -> None:
    status, out, _ = cli("hold", "scope", "web", "--until", given)
    assert status == ExitStatus.OK
    assert "until" in out
    assert until(client) == ends
    assert "UNTIL" in cli("hold", "list")[1]


def test_an_end_that_has_passed_is_refused_and_said_where(cli: Cli, client: Client) -> None:
    status, _, err = cli("hold", "everything", "--until", "-1m")
    assert status == ExitStatus.USAGE
    assert "--until" in err
    assert client.get("/v1/holds")["holds"] == []


def warnings(machine: dict[str, Any], *listeners: str) -> tuple[str, ...]:
    wanted = msgspec.convert({"machine": [{"name": "zz", **machine}]}, fleet_file.Fleet)
    applied = fleet_file.apply(World(), wanted, prune=False, mint=mint("d"))
    return views.fleet_change(applied, dry_run=True, listeners=listeners).warnings


@pytest.mark.parametrize(
    ("machine", "listeners"),
    [
        ({"address": "10.0.0.1"}, ["", "green"]),
        ({"address": "10.0.0.1", "listener": "green"}, ["green"]),
        ({}, ["green"]),
    ],
    ids=["without a name", "by its name", "without an address"],
)
def test_nobody_is_warned_of_a_machine_that_a_listener_answers(
    machine: dict[str, Any], listeners: list[str]
) -> None:
    assert warnings(machine, *listeners) == ()


@pytest.mark.parametrize(
    ("machine", "listeners", "words"),
    [
        ({"listener": "blue"}, ["red", "green", ""], ["'blue'", "'green', 'red'", "zz", "403"]),
        ({"address": "10.0.0.1"}, [], ["no listener", "zz", "no answer"]),
        ({"listener": "blue"}, [], ["no listener", "zz", "no answer"]),
        ({"address": "10.0.0.1"}, ["red", "green"], ["'green', 'red'", "zz", "403"]),
    ],
    ids=["another", "none", "none by name", "only named ones"],
)
def test_a_listener_that_does_not_exist_is_warned_of(
    machine: dict[str, Any], listeners: list[str], words: list[str]
) -> None:
    (warning,) = warnings(machine, *listeners)
    assert [word for word in words if word not in warning] == []
