"""Units, holds, postponements, alerts, acknowledgements and resolutions over the API."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest

import patience
from forewarn.cli import events
from forewarn.clock import ManualClock
from forewarn.connectors.port import Outcome
from forewarn.server.operator import schemas
from forewarn.vocabulary import AgentStatus
from server.running import ME, Client, Running, fleet, request_reboot


def reboot_of_web(client: Client, **more: Any) -> Any:
    answer = client.ask(
        "POST", "/v1/maintenances", {"event_type": "Reboot", "scopes": ["web"], **more}
    )
    assert answer.status == 201, answer.body
    return answer.json


def under_way(client: Client, reference: str) -> int:
    """Approve an operation; return the attempt of the executor that took it."""
    client.ask("POST", "/v1/approvals", {"references": [reference]})
    (operation,) = patience.until(
        lambda: [
            each
            for each in client.get(f"/v1/history?maintenance={reference[0]}")["operations"]
            if each["attempt"]
        ]
    )
    return int(operation["attempt"])


def end(service: Running, client: Client, reference: str, *, well: bool) -> None:
    """Let an operation end, reported in the place of the executor that took it."""
    attempt = under_way(client, reference)
    outcome = Outcome(succeeded=well, message="" if well else "no such host")
    service.plane.finish(reference, attempt, outcome).result()


def audited(client: Client) -> tuple[str, str, str]:
    """Return the latest record of the audit log: what was asked, by whom, about what."""
    (record, *_) = client.get("/v1/audit?limit=1")["records"]
    return record["action"], record["by"], record["detail"]


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


def test_a_host_is_maintained_as_one_operation_across_scopes(client: Client) -> None:
    plan = client.ask("POST", "/v1/maintenances", {"event_type": "Freeze", "hosts": ["h1"]}).json
    (operation,) = plan["operations"]
    assert plan["maintenance"]["targets"] == ["h1"]
    assert operation["hosts"] == ["h1"]
    assert [(e["scope"], e["machines"]) for e in operation["events"]] == [
        ("batch", ["batch_0"]),
        ("web", ["web-1"]),
    ]
    assert client.get("/v1/events?scope=web")["events"][0]["hosts"] == ["h1"]
    nothing = client.ask("POST", "/v1/maintenances", {"event_type": "Freeze", "hosts": ["h77"]})
    assert (nothing.status, nothing.error["code"]) == (404, "not-found")


def test_without_notice_is_kept_with_the_maintenance(client: Client) -> None:
    request_reboot(client, without_notice=True)
    request_reboot(client, machines=["Bastion"])
    newest, first = client.get("/v1/maintenances")["maintenances"]
    assert first["without_notice"]
    assert not newest["without_notice"]


def test_a_halted_maintenance_is_resumed_and_another_is_not(client: Client) -> None:
    reboot_of_web(client)

    def order(number: int = 1, kind: str = "resume", **more: Any) -> Any:
        body = {"order": kind, **more}
        return client.ask("POST", f"/v1/maintenances/{number}/orders", body)

    assert order().error["code"] == "conflict"
    assert order(9).status == 404
    assert order(sure=True).status == 400
    client.ask("POST", "/v1/cancellations", {"references": ["1.1"]})
    halted = client.get("/v1/maintenances/1")["maintenance"]
    assert halted["status"] == "halted"
    assert "1.1 is Canceled" in halted["status_detail"]
    resumed = order()
    assert resumed.status == 200
    assert audited(client) == ("POST /v1/maintenances/1/orders", ME, "resume of maintenance 1")
    assert units_of(client)["web/1"]["operation"] == "1.2"
    assert resumed.json["maintenance"]["status"] == "running"
    assert order(kind="retry", unit="web/0").json["maintenance"]["units"]["failed"] == 0
    client.ask("POST", "/v1/cancellations", {"references": ["1"]})
    stopped = client.get("/v1/maintenances/1")["maintenance"]
    assert stopped["status"] == "stopped"
    assert order().error["code"] == "too-late"


def test_what_is_held_does_not_start_and_gets_its_notice_back(
    client: Client, clock: ManualClock
) -> None:
    request_reboot(client)
    clock.advance(timedelta(minutes=5))
    body = {"kind": "scope", "name": "WEB", "reason": "release day"}
    answer = client.ask("POST", "/v1/holds", body)
    assert answer.status == 201
    assert audited(client) == ("POST /v1/holds", ME, "scope WEB: release day")
    (held,) = answer.json["operations"]
    assert held["held_at"] == "2026-03-01T12:05:00Z"
    clock.advance(timedelta(minutes=8))
    (event,) = client.get("/v1/events")["events"]
    assert event["held_at"] == held["held_at"]
    assert event["notice_left_seconds"] == 600
    (hold,) = client.get("/v1/holds")["holds"]
    assert hold == {
        "kind": "scope",
        "name": "web",
        "reason": "release day",
        "by": ME,
        "at": "2026-03-01T12:05:00Z",
        "operations": {"count": 1, "names": ["1.1"]},
        "until": None,
    }
    again = client.ask("POST", "/v1/holds", body)
    assert (again.status, again.error["code"]) == (409, "conflict")
    released = client.ask("DELETE", "/v1/holds?kind=scope&name=web")
    assert audited(client) == ("DELETE /v1/holds", ME, "scope web")
    assert released.json["operations"][0]["not_before"] == "2026-03-01T12:23:00Z"
    assert released.json["operations"][0]["held_at"] is None
    assert client.get("/v1/holds")["holds"] == []
    assert client.ask("DELETE", "/v1/holds?kind=scope&name=web").status == 404


@pytest.mark.parametrize(
    ("kind", "name", "shown"),
    [("everything", "", ""), ("host", "h0", "h0"), ("machine", "WEB-0", "web-0")],
)
def test_everything_a_host_and_a_machine_can_be_held(
    client: Client, kind: str, name: str, shown: str
) -> None:
    request_reboot(client)
    request_reboot(client, machines=["Bastion"])
    held = client.ask("POST", "/v1/holds", {"kind": kind, "name": name}).json["operations"]
    assert {o["id"] for o in held} == ({"1.1", "2.1"} if kind == "everything" else {"1.1"})
    (hold,) = client.get("/v1/holds")["holds"]
    assert (hold["kind"], hold["name"], hold["by"]) == (kind, shown, ME)
    client.ask("POST", "/v1/approvals", {"references": ["1.1"]})
    assert client.get("/v1/history?maintenance=1")["operations"][0]["status"] == "Scheduled"
    (released, *_) = client.ask("DELETE", f"/v1/holds?kind={kind}&name={name}").json["operations"]
    assert released["status"] == "Started"


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


def test_an_event_moves_later_and_never_earlier(client: Client) -> None:
    request_reboot(client)
    later = {"references": ["1"], "not_before": "2026-03-01T14:00:00+01:00"}
    (moved,) = client.ask("POST", "/v1/postponements", later).json["operations"]
    assert moved["not_before"] == "2026-03-01T13:00:00Z"
    postponed = "1 to 13:00Z"
    assert audited(client) == ("POST /v1/postponements", ME, postponed)
    sooner = {"references": ["1.1"], "not_before": "2026-03-01T12:30:00Z"}
    refused = client.ask("POST", "/v1/postponements", sooner)
    assert (refused.status, refused.error["code"]) == (422, "notice-too-short")
    naked = {"references": ["1.1"], "not_before": "2026-03-01T15:30:00"}
    assert client.ask("POST", "/v1/postponements", naked).status == 400
    timeless = {"references": ["1.1"], "not_before": "9999-12-31T23:59:59-14:00"}
    refused = client.ask("POST", "/v1/postponements", timeless)
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


def test_an_alert_tells_what_is_held_halted_or_not_approved_in_time(
    client: Client, service: Running, clock: ManualClock
) -> None:
    for name in ("web-0", "bastion"):
        service.guests.saw(name, "2020-07-01")
    reboot_of_web(client)
    assert kinds(client) == []
    client.ask("POST", "/v1/cancellations", {"references": ["1.1"], "reason": "wrong day"})
    assert kinds(client) == [("halted", "1")]
    client.ask("POST", "/v1/cancellations", {"references": ["1"]})
    request_reboot(client)
    client.ask("POST", "/v1/holds", {"kind": "machine", "name": "bastion", "reason": "why not"})
    clock.advance(timedelta(minutes=13, seconds=30))
    assert ("unseen", "2.1") in kinds(client)  # it has not asked for so long
    service.guests.saw("web-0", at=clock.now())
    assert sorted(kinds(client)) == [("held", "machine bastion"), ("unapproved", "2.1")]
    message = {i["about"]: i["message"] for i in client.get("/v1/alerts")["items"]}
    assert "why not" in message["machine bastion"]


def test_the_alert_of_a_failure_ends_with_its_acknowledgement(
    client: Client, service: Running
) -> None:
    service.guests.saw("web-0", "2020-07-01")
    request_reboot(client)
    early = client.ask("POST", "/v1/acknowledgements", {"references": ["1.1"]})
    assert (early.status, early.error["code"]) == (409, "conflict")
    end(service, client, "1.1", well=False)
    (item,) = client.get("/v1/alerts")["items"]
    assert (item["kind"], item["about"]) == ("failed", "1.1")
    assert "no such host" in item["message"]
    assert client.ask("POST", "/v1/acknowledgements", {"references": ["1.1", "7.1"]}).status == 404
    assert kinds(client) == [("failed", "1.1")]
    unheard = client.ask("POST", "/v1/acknowledgements", {"references": ["1"]})
    assert (unheard.status, unheard.error["code"]) == (409, "conflict")
    assert unheard.error["facts"]["machine"] == "web-0"
    assert kinds(client) == [("failed", "1.1")]
    body = {"references": ["1"], "even_if_down": True}
    (acknowledged,) = client.ask("POST", "/v1/acknowledgements", body).json["operations"]
    assert acknowledged["acknowledged_by"] == ME
    (record, *_) = client.get("/v1/audit")["records"]
    assert record["detail"] == "1, even if down"
    assert kinds(client) == []


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


def test_tombstones_are_listed_page_by_page_each_once(client: Client, service: Running) -> None:
    spots = [{"name": name, "priority": "low"} for name in ("c", "A", "b")]
    client.ask("PUT", "/v1/fleet", {"machine": spots})
    for number, spot in enumerate(spots, 1):
        wanted = {"event_type": "Preempt", "machines": [spot["name"]]}
        client.ask("POST", "/v1/maintenances", wanted)
        end(service, client, f"{number}.1", well=True)
    first = client.get("/v1/fleet/tombstones?limit=2")
    rest = client.get(f"/v1/fleet/tombstones?limit=2&cursor={first['next']}")
    assert [one["name"] for one in first["tombstones"] + rest["tombstones"]] == ["A", "b", "c"]
    assert rest["next"] == ""


def test_machines_whose_host_is_not_known_are_found(client: Client) -> None:
    found = client.get("/v1/fleet/machines?host=unknown")["machines"]
    assert [machine["name"] for machine in found] == ["Bastion"]


def test_an_operation_whose_outcome_is_unknown_stays_until_an_operator_resolves_it(
    client: Client, service: Running
) -> None:
    request_reboot(client)
    path = "/v1/resolutions"
    sure = client.ask("POST", path, {"references": ["1.1"], "verdict": "succeeded"})
    assert (sure.status, sure.error["code"]) == (409, "conflict")
    attempt = under_way(client, "1.1")
    service.plane.report_unknown("1.1", attempt, "its result was lost").result()
    assert kinds(client) == [("unknown", "1.1")]
    assert client.get("/v1/events")["events"][0]["outcome_unknown"] == "its result was lost"
    perhaps = client.ask("POST", path, {"references": ["1.1"], "verdict": "perhaps"})
    assert perhaps.status == 400
    nowhere = client.ask("POST", path, {"references": ["9.9", "1.1"], "verdict": "failed"})
    assert nowhere.status == 404
    (resolved,) = client.ask("POST", path, {"references": ["1"], "verdict": "failed"}).json[
        "operations"
    ]
    assert (resolved["status"], resolved["outcome_unknown"]) == ("Failed", "")
    assert ME in resolved["outcome"]


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


def test_what_waits_for_an_operator_says_which_command_ends_that(
    client: Client, service: Running
) -> None:
    two_domains(service, client)
    end(service, client, "1.1", well=False)
    queued = live(client)["2.1"]
    assert "acknowledge 1.1" in queued["status_detail"]
    assert "web-0" not in queued["status_detail"]


def test_what_is_queued_can_be_cancelled_and_moved_but_not_approved(client: Client) -> None:
    request_reboot(client)
    request_reboot(client, machines=["web-1"])
    early = client.ask("POST", "/v1/approvals", {"references": ["2.1"]})
    assert (early.status, early.error["code"]) == (409, "conflict")
    later = {"references": ["2.1"], "not_before": "2026-03-01T13:00:00Z"}
    (moved,) = client.ask("POST", "/v1/postponements", later).json["operations"]
    assert (moved["status"], moved["not_before"]) == ("Queued", later["not_before"])
    client.ask("POST", "/v1/cancellations", {"references": ["1"]})
    assert live(client)["2.1"]["status"] == "Scheduled"
    assert live(client)["2.1"]["not_before"] == later["not_before"]
    request_reboot(client, machines=["web-0"])
    (gone,) = client.ask("POST", "/v1/cancellations", {"references": ["3"]}).json["operations"]
    assert gone["status"] == "Canceled"


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


def test_a_machine_that_does_not_come_back_fails_its_operation(
    client: Client, service: Running, clock: ManualClock
) -> None:
    two_domains(service, client)
    end(service, client, "1.1", well=True)
    clock.advance(timedelta(minutes=10))
    becomes(client, "1.1", "Failed")
    (item,) = client.get("/v1/alerts")["items"]
    assert (item["kind"], item["about"]) == ("failed", "1.1")
    assert "web-0 did not come back" in item["message"]
    assert item["message"].endswith("; 2.1 waits")


def test_a_failure_keeps_its_domain_down_until_it_is_acknowledged(
    client: Client, service: Running, clock: ManualClock
) -> None:
    request_reboot(client)
    for name in ("web-1", "web-2"):
        request_reboot(client, machines=[name])
    end(service, client, "1.1", well=False)
    (item,) = client.get("/v1/alerts")["items"]
    assert "no such host" in item["message"]
    assert "2.1" in item["message"]
    assert standing_of(client, 1) == "Failed, not acknowledged"
    assert {status_of(client, reference) for reference in ("2.1", "3.1")} == {"Queued"}
    early = client.ask("POST", "/v1/acknowledgements", {"references": ["1.1"]})
    assert (early.status, status_of(client, "2.1")) == (409, "Queued")
    comes_back(service, clock, "web-0")
    assert client.ask("POST", "/v1/acknowledgements", {"references": ["1.1"]}).status == 200
    assert standing_of(client, 1) == "Failed"
    assert status_of(client, "2.1") == "Scheduled"
    assert (live(client)["3.1"]["status"], live(client)["3.1"]["waits_for"]) == ("Queued", "2.1")
    assert kinds(client) == []


def test_a_failure_lets_go_when_its_machines_are_removed(
    client: Client, clock: ManualClock, service: Running
) -> None:
    request_reboot(client)
    request_reboot(client, machines=["web-1"])
    end(service, client, "1.1", well=False)
    assert status_of(client, "2.1") == "Queued"
    assert client.ask("DELETE", "/v1/fleet/machines?name=web-0").status == 200
    clock.advance(timedelta(seconds=1))
    becomes(client, "2.1", "Scheduled")
    assert "not acknowledged" in standing_of(client, 1)
    assert kinds(client) == [("failed", "1.1")]


def test_a_failure_lets_go_when_the_same_machines_are_maintained_well(
    client: Client, service: Running
) -> None:
    request_reboot(client)
    request_reboot(client, machines=["web-1"])
    end(service, client, "1.1", well=False)
    request_reboot(client)
    assert live(client)["3.1"]["status"] == "Scheduled"
    assert live(client)["2.1"]["waits_for"] == "1.1"
    end(service, client, "3.1", well=True)
    assert status_of(client, "2.1") == "Scheduled"


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


def test_a_domain_settles_before_the_next_is_announced(
    client: Client, service: Running, clock: ManualClock
) -> None:
    slow = fleet()
    slow["availability_set"][0]["settle_seconds"] = 60
    client.ask("PUT", "/v1/fleet", slow)
    assert client.get("/v1/fleet/scopes/web")["settle_seconds"] == 60
    request_reboot(client)
    request_reboot(client, machines=["web-1"])
    end(service, client, "1.1", well=True)
    (operation,) = client.get("/v1/history?maintenance=1")["operations"]
    assert (operation["status"], operation["up_at"]) == ("Completed", "2026-03-01T12:01:00Z")
    assert status_of(client, "2.1") == "Queued"
    assert "12:01Z" in standing_of(client, 1)
    clock.advance(timedelta(minutes=1))
    becomes(client, "2.1", "Scheduled")


def test_a_scope_may_announce_at_once_and_wait_to_start_only(
    client: Client, service: Running
) -> None:
    early = fleet()
    early["availability_set"][0]["queue"] = "start"
    client.ask("PUT", "/v1/fleet", early)
    two_domains(service, client)
    under_way(client, "1.1")
    client.ask("POST", "/v1/approvals", {"references": ["2.1"]})
    waiting = live(client)["2.1"]
    assert (waiting["status"], waiting["waits_for"]) == ("Scheduled", "1.1")
    assert standing(waiting) == f"Scheduled, {waiting['status_detail']}"
    assert "web-0" in waiting["status_detail"]
