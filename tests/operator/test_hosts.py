"""Hosts over the API and at the command line: plans, drains, what is stuck, and the ways out."""

from datetime import timedelta
from typing import Any

import pytest

import patience
from forewarn.cli.exits import ExitStatus
from forewarn.clock import ManualClock
from server.running import ME, Cli, Client


def drain(client: Client, *hosts: str, status: int = 200, **more: Any) -> Any:
    answer = client.ask("POST", "/v1/hosts/drain", {"hosts": hosts, **more})
    assert answer.status == status, answer.body
    return answer.json


def order(client: Client, host: str, kind: str, machine: str = "", status: int = 200) -> Any:
    body = {"order": kind, "machine": machine}
    answer = client.ask("POST", f"/v1/hosts/{host}/orders", body)
    assert answer.status == status, answer.body
    return answer.json


def until(client: Client, clock: ManualClock, host: str, *states: str) -> Any:
    """Approve and let time pass until a host is in a state; return the host."""

    def reached() -> Any:
        detail = client.get(f"/v1/hosts/{host}")
        if detail["host"]["status"] in states:
            return detail
        for event in client.get("/v1/events")["events"]:
            if event["status"] == "Scheduled":
                client.ask("POST", "/v1/approvals", {"references": [event["id"]]})
        clock.advance(timedelta(seconds=5))
        return None

    return patience.until(reached, lambda: client.get(f"/v1/hosts/{host}"))


def stuck(client: Client, clock: ManualClock, host: str = "h1") -> Any:
    """Get the drain of a host stuck: an operator cancels the move of web-1."""
    drain(client, host, reboot=True)
    events = patience.until(lambda: client.get("/v1/events?machine=web-1")["events"])
    client.ask("POST", "/v1/cancellations", {"references": [events[0]["operation"]]})
    return until(client, clock, host, "stuck")


def test_the_hosts_are_listed_with_what_runs_there(client: Client) -> None:
    found = client.get("/v1/hosts")
    hosts = {host["name"]: host for host in found["hosts"]}
    assert [*hosts] == ["h0", "h1", "h2"]
    assert hosts["h1"]["running"] == 2
    assert {host["status"] for host in hosts.values()} == {"up"}
    detail = client.get("/v1/hosts/h1")
    assert [guest["machine"] for guest in detail["guests"]] == ["batch_0", "web-1"]
    assert detail["drain"] is None
    assert client.ask("GET", "/v1/hosts/h9").status == 404


def test_a_hosts_name_may_have_a_slash(client: Client) -> None:
    machines = [{"name": "web-9", "host": "rack1/h1", "address": "10.0.0.99"}]
    assert client.ask("PUT", "/v1/fleet", {"machine": machines}).status == 200
    for path in ("rack1%2Fh1", "rack1%2fh1"):
        assert client.get(f"/v1/hosts/{path}")["host"]["name"] == "rack1/h1"
    drain(client, "rack1/h1")
    assert order(client, "rack1%2Fh1", "undrain")["host"]["name"] == "rack1/h1"
    assert client.ask("GET", "/v1/hosts/rack1/h1").status == 404
    for odd in ("rack1%252Fh1", "rack1%00h1x", "%2F"):
        unknown = client.ask("GET", f"/v1/hosts/{odd}")
        assert (unknown.status, unknown.error["code"]) == (404, "not-found")
        assert unknown.error["facts"]["what"] == "host"
    actions = {record["action"] for record in client.get("/v1/audit")["records"]}
    assert "POST /v1/hosts/rack1/h1/orders" in actions


def test_a_dry_run_plans_and_changes_nothing(client: Client) -> None:
    planned = client.ask("POST", "/v1/hosts/drain?dry_run=true", {"hosts": ["h1"]}).json
    (plan,) = planned["plans"]
    assert planned["dry_run"]
    assert {guest["name"] for guest in plan["guests"]} == {"web-1", "batch_0"}
    assert {guest["to_host"] for guest in plan["guests"]} == {"h0"}
    assert plan["problems"] == []
    assert client.get("/v1/events")["events"] == []
    assert client.get("/v1/hosts/h1")["drain"] is None


def test_a_drain_tells_each_machines_way_and_operations(client: Client, clock: ManualClock) -> None:
    drain(client, "h1")
    detail = until(client, clock, "h1", "empty")
    assert detail["host"]["closed"]
    assert detail["host"]["running"] == 0
    for machine in detail["drain"]["machines"]:
        assert machine["way"] == "live"
        assert machine["leaves_by"]["status"] == "Completed"
        assert machine["host"] == machine["to_host"]
    assert detail["drain"]["requested_by"] == ME
    order(client, "h1", "return")
    detail = until(client, clock, "h1", "up")
    assert {machine["host"] for machine in detail["drain"]["machines"]} == {"h1"}


def test_a_stuck_drain_is_an_alert_and_a_metric_until_an_operator_decides(
    client: Client, clock: ManualClock
) -> None:
    detail = stuck(client, clock)
    assert detail["host"]["status"] == "stuck"
    (alert,) = (a for a in client.get("/v1/alerts")["items"] if a["kind"] == "host-stuck")
    assert alert["about"] == "host h1"
    metrics = client.ask("GET", "/metrics").body.decode()
    assert 'forewarn_hosts{state="stuck"} 1.0' in metrics
    assert order(client, "h1", "retry")["host"]["status"] == "draining"
    until(client, clock, "h1", "up")
    assert 'forewarn_hosts{state="stuck"} 0.0' in client.ask("GET", "/metrics").body.decode()


@pytest.mark.parametrize(("kind", "machine"), [("skip", ""), ("undrain", "web-1")])
def test_an_order_has_a_machine_if_it_is_about_one(client: Client, kind: str, machine: str) -> None:
    drain(client, "h1")
    body = {"order": kind, "machine": machine}
    assert client.ask("POST", "/v1/hosts/h1/orders", body).status == 400


def test_several_hosts_are_drained_one_after_another_as_units_of_a_maintenance(
    client: Client, clock: ManualClock
) -> None:
    assert drain(client, "h1")["maintenance"] is None
    order(client, "h1", "undrain")
    number = drain(client, "h1", "h2", reboot=True, stay="redeploy")["maintenance"]
    detail = client.get(f"/v1/maintenances/{number}")
    assert [(u["name"], u["kind"], u["drain"]) for u in detail["units"]] == [
        ("h1", "host", True),
        ("h2", "host", True),
    ]
    until(client, clock, "h1", "draining")
    assert client.get("/v1/hosts/h2")["drain"] is None
    assert client.get("/v1/hosts/h1")["drain"]["stay"] == "redeploy"
    until(client, clock, "h1", "up")
    until(client, clock, "h2", "draining")


def test_drains_that_cannot_be_are_refused(client: Client) -> None:
    drain(client, "h1", "h1", status=400)
    drain(client, status=400)
    assert client.ask("POST", "/v1/hosts/drain", {"hosts": ["h1"], "stay": "x"}).status == 400


def test_the_command_line_plans_drains_and_shows(
    cli: Cli, client: Client, clock: ManualClock
) -> None:
    status, out, _ = cli("host", "drain", "h1", "h2", "--reboot", "--dry-run")
    assert status == ExitStatus.OK
    assert {"web-1", "h1", "web-2"} <= set(out.replace(":", " ").split())
    assert client.get("/v1/events")["events"] == []
    status, out, _ = cli("host", "drain", "h1")
    assert status == ExitStatus.OK
    assert "draining" in out
    until(client, clock, "h1", "empty")
    for command in (["list"], ["show", "h1"], ["watch", "h1"]):
        status, out, _ = cli("host", *command)
        assert status == ExitStatus.OK
        assert "empty" in out
        assert max(map(len, out.splitlines())) <= 80
    status, out, _ = cli("host", "return", "h1")
    assert "returning" in out
    until(client, clock, "h1", "up")
    assert cli("host", "show", "h9")[0] == ExitStatus.NOT_FOUND


def test_the_command_line_names_the_maintenance_that_drains_several_hosts(
    cli: Cli, client: Client
) -> None:
    status, out, err = cli("host", "drain", "h0", "h2")
    assert status == ExitStatus.OK
    started = [one["number"] for one in client.get("/v1/maintenances")["maintenances"]]
    assert f"maintenance {started[-1]}" in out
    assert f"forewarn maintenance watch {started[-1]}" in err


def test_the_command_line_tells_what_can_be_done_about_a_stuck_drain(
    cli: Cli, client: Client, clock: ManualClock
) -> None:
    stuck(client, clock)
    _, out, _ = cli("host", "show", "h1")
    for way in ("retry", "skip", "stop", "return", "undrain"):
        assert f"forewarn host {way} h1" in out
    assert cli("host", "watch", "h1")[0] == ExitStatus.ALERTS
