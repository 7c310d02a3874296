"""Maintenance by units and a policy, over the API and at the command line."""

import json
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

import patience
from forewarn.cli.exits import ExitStatus
from forewarn.clock import ManualClock
from forewarn.connectors.settings import CommandConnectorSettings
from forewarn.server.settings import MaintenanceSettings, UnitCheck
from forewarn.store.sqlite import InMemoryStore
from server.running import ME, Cli, Client, Running, fleet, settings_in


def start(client: Client, *, dry_run: bool = False, status: int = 201, **body: Any) -> Any:
    path = "/v1/maintenances?dry_run=true" if dry_run else "/v1/maintenances"
    answer = client.ask("POST", path, {"event_type": "Reboot", "policy": {}, **body})
    assert answer.status == status, answer.body
    return answer.json


def order(client: Client, kind: str, unit: str = "", *, number: int = 1, status: int = 200) -> Any:
    body = {"order": kind, "unit": unit}
    answer = client.ask("POST", f"/v1/maintenances/{number}/orders", body)
    assert answer.status == status, answer.body
    return answer.json


def until(
    client: Client,
    clock: ManualClock,
    ready: Callable[[Any], bool],
    *,
    number: int = 1,
    approving: bool = True,
    checking: bool = False,
) -> Any:
    """Approve and let time pass until a maintenance is so; return it.

    With `checking`, time passes slowly while no unit is under way: a real program runs.
    """

    def reached() -> Any:
        detail = client.get(f"/v1/maintenances/{number}")
        if ready(detail):
            return detail
        for event in client.get("/v1/events")["events"]:
            if approving and event["status"] == "Scheduled":
                client.ask("POST", "/v1/approvals", {"references": [event["id"]]})
        fast = is_running(detail) or not checking
        clock.advance(timedelta(seconds=5 if fast else 0.05))
        return None

    return patience.until(reached, lambda: client.get(f"/v1/maintenances/{number}"))


def is_state(*states: str) -> Callable[[Any], bool]:
    return lambda detail: detail["maintenance"]["status"] in states


def is_running(detail: Any) -> bool:
    return bool(detail["maintenance"]["units"]["running"])


def test_a_plan_tells_waves_and_what_goes_first_and_starts_nothing(client: Client) -> None:
    plan = start(client, dry_run=True, hosts=["h0", "h1"], duration_seconds=60)
    assert plan["dry_run"]
    assert plan["maintenance"]["number"] == 0
    (wave,) = plan["plan"]["waves"]
    assert sorted(wave["units"]) == ["h0", "h1"]
    assert len(plan["plan"]["first"]) == 1
    assert client.get("/v1/maintenances")["maintenances"] == []


def test_units_have_their_turns_to_the_end(client: Client, clock: ManualClock) -> None:
    started = start(client, machines=["web-0", "web-1"], policy={"waves": ["1", "rest"]})
    assert started["maintenance"]["number"] == 1
    assert started["maintenance"]["waves"] == 2
    assert started["maintenance"]["requested_by"] == ME
    detail = until(client, clock, is_state("done"))
    assert {unit["status"] for unit in detail["units"]} == {"done"}
    assert {unit["wave"] for unit in detail["units"]} == {1, 2}
    (listed,) = client.get("/v1/maintenances")["maintenances"]
    assert listed["units"]["done"] == 2
    assert listed["operations"] == {"Completed": 2}


def test_a_request_that_is_sent_again_starts_no_second_maintenance(client: Client) -> None:
    first = start(client, machines=["web-0"], idempotency_key="k1")
    again = start(client, machines=["WEB-0"], idempotency_key="k1")
    assert again["maintenance"]["number"] == first["maintenance"]["number"]
    start(client, machines=["web-1"], idempotency_key="k1", status=409)
    assert start(client, hosts=["h1"], idempotency_key="k3")["maintenance"]["number"] == 2
    start(client, hosts=["h1"], drain=True, idempotency_key="k3", status=409)
    start(client, machines=["web-1"], idempotency_key="k2")
    start(client, machines=["web-2"])
    start(client, machines=["web-2"])
    listed = {"idempotency_key": "k9", "policy": {"order": "listed"}}
    start(client, machines=["web-1", "web-2"], **listed)
    start(client, machines=["web-2", "web-1"], status=409, **listed)
    assert len(client.get("/v1/maintenances")["maintenances"]) == 6


def test_all_hosts_are_drained_and_rebooted(client: Client, clock: ManualClock) -> None:
    before = {host["name"]: host["boot_id"] for host in _hosts(client)}
    start(client, all_hosts=True, drain=True)
    until(client, clock, is_state("done"))
    after = {host["name"]: host["boot_id"] for host in _hosts(client)}
    assert before.keys() == after.keys()
    assert all(before[name] != after[name] for name in before)


def _hosts(client: Client) -> list[Any]:
    found: list[Any] = client.get("/v1/hosts")["hosts"]
    return [client.get(f"/v1/hosts/{host['name']}")["host"] for host in found]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400),
        ({"machines": ["web-0"], "drain": True}, 400),
        ({"scopes": ["web"], "machines": ["web-0"]}, 400),
        ({"machines": ["web-0"], "policy": {"approval_until": "2020-01-01T00:00:00Z"}}, 400),
        ({"hosts": ["h9"]}, 404),
        ({"machines": ["web-0"], "policy": {"windows": ["never"]}}, 400),
        ({"machines": ["web-0"], "policy": {"zone": "Nowhere"}}, 400),
        ({"machines": ["web-0"], "policy": {"at_once": "0"}}, 400),
        ({"machines": ["web-0"], "policy": {"wave": ["1"]}}, 400),
        ({"machines": ["web-0"], "policy": {"waves": ["1", "x"]}}, 400),
        ({"machines": ["web-0"], "policy": {"waves": ["1", "rest", "1"]}}, 400),
        ({"machines": ["web-0"], "policy": {"spread": "rack"}}, 400),
        ({"machines": ["web-0"], "policy": {"stop_after": 0}}, 400),
        ({"machines": ["web-0"], "description": "a\nb"}, 400),
        (
            {
                "machines": ["web-0"],
                "policy": {
                    "blackouts": [{"opens": "2026-03-02T00:00:00", "closes": "2026-03-03T00:00:00"}]
                },
            },
            400,
        ),
        ({"machines": ["web-0", "web-0"]}, 201),
    ],
)
def test_what_cannot_be_planned_is_refused(
    client: Client, body: dict[str, Any], status: int
) -> None:
    answer = start(client, dry_run=True, status=status, **body)
    assert ("error" in answer) is (status != 201)


@pytest.mark.parametrize(("kind", "unit"), [("skip", ""), ("pause", "web-0")])
def test_an_order_has_a_unit_if_it_is_about_one(client: Client, kind: str, unit: str) -> None:
    start(client, machines=["web-0"])
    order(client, kind, unit, status=400)
    assert client.ask("GET", "/v1/maintenances/9").status == 404


# At the command line.


def test_the_command_line_plans_starts_orders_and_shows(
    client: Client, clock: ManualClock, cli: Cli
) -> None:
    given = ("reboot", "--machine", "web-0", "--machine", "web-1", "--waves", "1,rest")
    status, printed, noted = cli("rollout", "plan", *given, "--duration", "1m")
    assert status == ExitStatus.OK
    assert "WAVE" in printed
    assert "plan" in noted
    status, printed, _ = cli("rollout", "start", *given, "--pause", "confirm")
    assert status == ExitStatus.OK
    assert "maintenance 1" in printed
    until(client, clock, is_running, approving=False)
    assert "running" in cli("maintenance", "list")[1]
    until(client, clock, lambda detail: detail["maintenance"]["units"]["done"] == 1)
    until(client, clock, lambda detail: "resume" in detail["maintenance"]["status_detail"])
    status, printed, noted = cli("maintenance", "watch", "1")
    assert status == ExitStatus.ALERTS
    assert "resume 1" in noted
    assert cli("maintenance", "resume", "1")[0] == ExitStatus.OK
    until(client, clock, is_state("done"))
    status, printed, _ = cli("maintenance", "watch", "1")
    assert status == ExitStatus.OK
    assert "web-0" in printed
    status, printed, _ = cli("maintenance", "show", "1")
    assert "2 done" in printed
    document = json.loads(cli("maintenance", "show", "1", "--json")[1])
    assert document["maintenance"]["status"] == "done"


def test_windows_and_blackouts_are_given_at_the_command_line(cli: Cli) -> None:
    status, printed, _ = cli(
        *("rollout", "plan", "reboot", "--machine", "web-0", "--window", "daily 22:00-23:00"),
        *("--zone", "Europe/Berlin", "--cutoff", "10m", "--notice", "20m", "--json"),
        *("--blackout", "2026-03-01T00:00:00Z/2026-03-05T00:00:00Z"),
    )
    assert status == ExitStatus.OK
    window = json.loads(printed)["plan"]["window"]
    assert window["opens"] == "2026-03-05T21:00:00Z"


@pytest.mark.parametrize(
    "given",
    [
        ("--tag", "role"),
        ("--tag", "a=b", "--tag", "a=c"),
        ("--machine", "web-0", "--blackout", "2026-03-01T00:00:00Z"),
        ("--machine", "web-0", "--blackout", "+1h/+2h"),
        ("--machine", "web-0", "--pause", "soon"),
    ],
)
def test_mistakes_at_the_command_line_are_told(cli: Cli, given: tuple[str, ...]) -> None:
    assert cli("rollout", "plan", "reboot", *given)[0] == ExitStatus.USAGE


def test_schedule_means_all_of_several_targets(client: Client, cli: Cli) -> None:
    status, printed, _ = cli("schedule", "reboot", "--host", "h0", "--host", "h1")
    assert status == ExitStatus.OK
    assert "maintenance 1" in printed
    detail = client.get("/v1/maintenances/1")
    assert sorted(unit["name"] for unit in detail["units"]) == ["h0", "h1"]
    assert not any(unit["drain"] for unit in detail["units"])
    status, *_ = cli("schedule", "reboot", "web-0", "--scope", "batch", "--dry-run")
    assert status == ExitStatus.OK
    assert len(client.get("/v1/maintenances")["maintenances"]) == 1
    for more in (("--opens", "+1h"), ("--already-failed",), ("--to-host", "h2")):
        status, *_ = cli("schedule", "reboot", "--host", "h0", "--host", "h1", *more)
        assert status == ExitStatus.USAGE
    assert cli("schedule", "reboot")[0] == ExitStatus.USAGE


def test_schedule_takes_a_window(client: Client, cli: Cli) -> None:
    status, printed, _ = cli(
        "schedule", "reboot", "web-0", "--opens", "+1h", "--closes", "+2h", "--json"
    )
    assert status == ExitStatus.OK
    (operation,) = json.loads(printed)["operations"]
    assert operation["opens_at"] == operation["not_before"] == "2026-03-01T13:00:00Z"
    assert operation["closes_at"] == "2026-03-01T14:00:00Z"
    assert client.get("/v1/events")["events"][0]["opens_at"] == "2026-03-01T13:00:00Z"


# The check.


@pytest.fixture
def checked(tmp_path: Path, clock: ManualClock) -> Iterator[Client]:
    """A client of a service with a check that passes once there is a file."""
    settings = settings_in(tmp_path)
    good = tmp_path / "good"
    checks = (
        UnitCheck(name="file", program=("test", "-e", str(good))),
        UnitCheck(name="fine", program=("true",)),
    )
    connector = msgspec.structs.replace(
        settings.connector, command=CommandConnectorSettings(state=str(tmp_path / "commands"))
    )
    settings = msgspec.structs.replace(
        settings, maintenance=MaintenanceSettings(check=checks), connector=connector
    )
    with Running(settings, InMemoryStore(), clock) as running:
        assert running.client().ask("PUT", "/v1/fleet", fleet()).status == 200
        yield running.client()


def test_a_maintenance_halts_with_what_its_check_says_and_goes_on_when_it_passes(
    checked: Client, clock: ManualClock, tmp_path: Path
) -> None:
    policy = {"check": "file", "check_tries": 1, "check_within_seconds": 30}
    plan = start(checked, dry_run=True, machines=["web-0", "web-1"], policy=policy)
    assert len(plan["plan"]["first"]) == 1
    start(checked, machines=["web-0", "web-1"], policy=policy)
    detail = until(checked, clock, is_state("halted"), checking=True)
    assert "file" in detail["maintenance"]["status_detail"]
    assert "exit status 1" in detail["maintenance"]["status_detail"]
    assert detail["policy"]["check"] == "file"
    assert {alert["kind"] for alert in checked.get("/v1/alerts")["items"]} == {"halted"}
    metrics = checked.ask("GET", "/metrics").body.decode()
    assert 'forewarn_maintenances{state="halted"} 1.0' in metrics
    assert 'forewarn_maintenances{state="running"} 0.0' in metrics
    assert 'forewarn_units{state="done"} 1.0' in metrics
    assert 'forewarn_units{state="waiting"} 1.0' in metrics
    (tmp_path / "good").touch()
    order(checked, "resume")
    until(checked, clock, is_state("done"), checking=True)
    metrics = checked.ask("GET", "/metrics").body.decode()
    assert 'forewarn_units{state="done"} 0.0' in metrics


def test_a_check_that_no_setting_names_is_refused(checked: Client) -> None:
    answer = start(checked, machines=["web-0"], policy={"check": "other"}, status=404)
    assert answer["error"]["code"] == "not-found"


def test_until_a_time_a_unit_waits_for_approval(client: Client, clock: ManualClock) -> None:
    later = (clock.now() + timedelta(hours=9)).isoformat()
    policy = {"approval_until": later}
    start(client, machines=["web-0"], policy=policy)
    until(client, clock, is_running, approving=False)
    (event,) = client.get("/v1/events")["events"]
    assert datetime.fromisoformat(event["not_before"]) >= datetime.fromisoformat(later)
    until(client, clock, is_state("done"))
    naive = {"approval_until": "2026-03-02T12:00:00"}
    start(client, machines=["web-0"], policy=naive, status=400)


def test_checks_and_approval_are_options_of_the_command(cli: Cli) -> None:
    status, out, _ = cli(
        "rollout", "plan", "reboot", "--machine", "web-0", "--approval-until", "+9h"
    )
    assert status == 0
    assert "web-0" in out
    status, _, _ = cli("rollout", "plan", "reboot", "--machine", "web-0", "--check", "other")
    assert status == ExitStatus.NOT_FOUND
