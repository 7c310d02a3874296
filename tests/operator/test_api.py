"""The operators' API over a real socket, on the real plane and store."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from forewarn.clock import ManualClock
from forewarn.server.operator import schemas
from server.json_schema import Judge
from server.running import ME, NOON, Client, Running, fleet, request_reboot

# The fleet.


def test_applying_a_fleet_tells_what_changed(service: Running) -> None:
    client = service.client()
    first = client.ask("PUT", "/v1/fleet", fleet()).json
    assert first["added"]["count"] == 6
    assert first["added"]["names"][:3] == ["web-0", "web-1", "web-2"]
    assert not first["dry_run"]
    again = fleet()
    again["availability_set"][0]["machines"][0]["host"] = "h9"
    del again["machine"]
    second = client.ask("PUT", "/v1/fleet", again).json
    assert second["changed"] == {"count": 1, "names": ["web-0"]}
    assert second["missing"] == {"count": 1, "names": ["Bastion"]}
    assert second["removed"]["count"] == 0
    assert second["unchanged"] == 4


def test_the_log_says_who_changed_the_fleet_and_not_who_only_tried(client: Client) -> None:
    cart = {"machine": [{"name": "cart"}]}
    with capture_logs() as told:
        client.ask("PUT", "/v1/fleet?dry_run=true", cart)
        client.ask("PUT", "/v1/fleet", cart)
        client.ask("PUT", "/v1/fleet", cart)  # changes nothing
        client.ask("DELETE", "/v1/fleet/machines?name=CART")
    assert [line for line in told if line["event"] == "an operator changed the fleet"] == [
        {"event": "an operator changed the fleet", "log_level": "info", "by": by, **what}
        for by, what in ((ME, {"added": ("cart",)}), (ME, {"removed": ("cart",)}))
    ]


def test_a_dry_run_changes_nothing_and_says_so(client: Client) -> None:
    tried = client.ask("PUT", "/v1/fleet?prune=true&dry_run=true", {"machine": [{"name": "x"}]})
    assert tried.json["dry_run"]
    assert tried.json["removed"]["count"] == 6
    assert client.ask("GET", "/v1/fleet/machines/x").status == 404
    assert len(client.get("/v1/fleet/machines")["machines"]) == 6


def test_pruning_removes_what_the_file_does_not_name(client: Client) -> None:
    left = {"machine": [{"name": "left"}]}
    assert client.ask("PUT", "/v1/fleet?prune=true", left).json["removed"]["count"] == 6
    assert [m["name"] for m in client.get("/v1/fleet/machines")["machines"]] == ["left"]
    assert [s["name"] for s in client.get("/v1/fleet/scopes")["scopes"]] == ["left"]


@pytest.mark.parametrize("body", [{}, {"scale_set": [{"name": "batch"}]}], ids=["empty", "hollow"])
@pytest.mark.parametrize("more", ["", "&dry_run=true"], ids=["in earnest", "dry run"])
def test_a_prune_that_would_empty_the_fleet_is_refused_unless_it_is_meant(
    client: Client, body: Any, more: str
) -> None:
    refused = client.ask("PUT", f"/v1/fleet?prune=true{more}", body)
    assert (refused.status, refused.error["code"]) == (409, "conflict")
    assert refused.error["facts"] == {"machines": 6}
    assert "--allow-empty" in refused.error["message"]
    assert len(client.get("/v1/fleet/machines")["machines"]) == 6
    assert client.ask("PUT", "/v1/fleet", body).status == 200


def test_a_fleet_may_be_emptied_on_purpose(client: Client) -> None:
    emptied = client.ask("PUT", "/v1/fleet?prune=true&allow_empty=true", {})
    assert emptied.json["removed"]["count"] == 6
    assert client.get("/v1/fleet/machines")["machines"] == []
    assert client.get("/v1/fleet/scopes")["scopes"] == []
    assert client.ask("PUT", "/v1/fleet?prune=true", {}).status == 200  # there is nothing to lose


@pytest.mark.parametrize("trying", ["false", "true"])
def test_a_listener_that_the_service_does_not_have_is_warned_of(
    client: Client, trying: str
) -> None:
    group = {
        "name": "g",
        "listener": "blue",
        "machines": [{"name": f"g-{n}", "address": f"10.1.0.{n}"} for n in range(7)],
    }
    path = f"/v1/fleet?dry_run={trying}"
    blue = client.ask("PUT", path, {"availability_set": [group]}).json
    (warning,) = blue["warnings"]
    assert "'blue'" in warning
    assert "g-0, g-1, g-2, g-3, g-4 and 2 more" in warning
    again = client.ask("PUT", path, {"availability_set": [group]}).json
    assert again["warnings"] == blue["warnings"]
    assert client.ask("PUT", path, fleet()).json["warnings"] == []


def test_a_hold_that_outlives_what_is_removed_is_warned_of(client: Client) -> None:
    for kind, name in (("machine", "WEB-0"), ("scope", "web"), ("machine", "web-1")):
        client.ask("POST", "/v1/holds", {"kind": kind, "name": name, "reason": "why"})
    removed = client.ask("DELETE", "/v1/fleet/machines?name=web-0").json
    (warning,) = removed["warnings"]
    assert warning.startswith(f"machine web-0 stays held, by {ME} (why)")
    assert "'forewarn release machine web-0'" in warning
    assert client.get("/v1/alerts")["count"] == 3
    only = {"machine": [{"name": "only"}]}
    for path in ("/v1/fleet?prune=true&dry_run=true", "/v1/fleet?prune=true"):
        pruned = client.ask("PUT", path, only).json
        told = [warning.split(" stays held")[0] for warning in pruned["warnings"]]
        assert sorted(told) == ["machine web-1", "scope web"]
    assert client.ask("PUT", "/v1/fleet", fleet()).json["warnings"] == []
    assert request_reboot(client)["operations"][0]["held_at"] is not None
    for kind, name in (("machine", "web-0"), ("scope", "web")):
        assert client.ask("DELETE", f"/v1/holds?kind={kind}&name={name}").status == 200


def test_an_answer_spells_out_so_many_names_and_counts_all(service: Running) -> None:
    many = {"machine": [{"name": f"m{n}"} for n in range(schemas.MAX_NAMES + 1)]}
    added = service.client().ask("PUT", "/v1/fleet", many).json["added"]
    assert added["count"] == schemas.MAX_NAMES + 1
    assert len(added["names"]) == schemas.MAX_NAMES


def test_machines_are_listed_page_by_page_each_once(client: Client) -> None:
    cursor, seen = "", []
    for _ in range(10):
        page = client.get(f"/v1/fleet/machines?limit=4&cursor={cursor}")
        seen += [machine["name"] for machine in page["machines"]]
        cursor = page["next"]
        if not cursor:
            break
    assert seen == ["Bastion", "batch_0", "FrontEnd_IN_0", "web-0", "web-1", "web-2"]


def test_a_page_that_ends_with_the_list_has_no_next(client: Client) -> None:
    assert client.get("/v1/fleet/machines?limit=6")["next"] == ""
    assert client.get("/v1/fleet/machines?limit=5")["next"] != ""


def test_machines_are_listed_by_scope_and_by_host(client: Client) -> None:
    of_web = client.get("/v1/fleet/machines?scope=WEB")["machines"]
    assert [machine["name"] for machine in of_web] == ["web-0", "web-1", "web-2"]
    on_h1 = client.get("/v1/fleet/machines?host=h1")["machines"]
    assert [machine["name"] for machine in on_h1] == ["batch_0", "web-1"]
    assert client.ask("GET", "/v1/fleet/machines?scope=nope").status == 404


def test_a_machine_shows_its_place_its_tags_and_its_live_events(
    client: Client, service: Running
) -> None:
    when = NOON - timedelta(seconds=5)
    service.guests.saw("web-0", "2020-07-01", at=when)
    event = request_reboot(client)["operations"][0]["events"][0]
    machine = client.get("/v1/fleet/machines/WEB-0")
    assert machine["name"] == "web-0"
    assert machine["scope"] == "web"
    assert machine["kind"] == "availability_set"
    assert machine["update_domain"] == 0
    assert machine["last_seen"] == {
        "at": "2026-03-01T11:59:55Z",
        "version": "2020-07-01",
        "agent": None,
        "reason": "",
    }
    assert machine["events"] == [event["id"]]
    assert machine["profile"]["os_type"] == "Linux"
    assert client.get("/v1/fleet/machines/batch_0")["tags"] == {"role": "leader"}
    assert client.get("/v1/fleet/machines/web-1")["last_seen"] is None


def test_a_scope_shows_its_domains_with_their_machines(client: Client) -> None:
    scope = client.get("/v1/fleet/scopes/web")
    assert scope["machines"] == 3
    assert scope["automatically_approve"] == ["Redeploy"]
    assert [domain["machines"]["names"] for domain in scope["domains"]] == [
        ["web-0"],
        ["web-1"],
        ["web-2"],
    ]
    assert scope["incarnation"] == 0
    request_reboot(client)
    assert client.get("/v1/fleet/scopes/web")["incarnation"] == 1


def test_scopes_are_listed_page_by_page(client: Client) -> None:
    first = client.get("/v1/fleet/scopes?limit=3")
    rest = client.get(f"/v1/fleet/scopes?limit=3&cursor={first['next']}")
    names = [scope["name"] for scope in first["scopes"] + rest["scopes"]]
    assert names == ["Bastion", "batch", "Shop", "web"]
    assert rest["next"] == ""


def test_machines_are_removed_all_or_none(client: Client) -> None:
    refused = client.ask("DELETE", "/v1/fleet/machines?name=web-0&name=nope")
    assert refused.status == 404
    assert client.ask("GET", "/v1/fleet/machines/web-0").status == 200
    removed = client.ask("DELETE", "/v1/fleet/machines?name=WEB-0&name=Bastion")
    assert removed.json["removed"] == {"count": 2, "names": ["web-0", "Bastion"]}
    assert client.ask("GET", "/v1/fleet/machines/web-0").status == 404
    assert client.ask("GET", "/v1/fleet/scopes/bastion").status == 404


def test_as_many_machines_are_removed_at_once_as_the_limit_says(service: Running) -> None:
    names = [f"{n:04}{'x' * 76}" for n in range(schemas.MAX_REMOVED)]
    client = service.client()
    client.ask("PUT", "/v1/fleet", {"machine": [{"name": name} for name in names]})
    removed = client.ask("DELETE", "/v1/fleet/machines?" + "&".join(f"name={n}" for n in names))
    assert removed.json["removed"]["count"] == schemas.MAX_REMOVED


# Maintenance.


def test_a_request_tells_the_operations_and_events_that_it_became(client: Client) -> None:
    plan = client.ask("POST", "/v1/maintenances", {"event_type": "Freeze", "scopes": ["Web"]}).json
    assert plan["maintenance"]["number"] == 1
    assert plan["maintenance"]["requested_by"] == ME
    assert plan["maintenance"]["targets"] == ["Web"]
    assert [operation["id"] for operation in plan["operations"]] == ["1.1"]
    operation = plan["operations"][0]
    assert operation["status"] == "Scheduled"
    assert operation["not_before"] == "2026-03-01T12:15:00Z"
    assert operation["notice_left_seconds"] == 900
    assert operation["description"] == "Host server is undergoing maintenance."
    assert operation["events"][0]["machines"] == ["web-0"]
    assert operation["events"][0]["scope"] == "web"


def test_a_dry_run_of_a_request_shows_the_plan_and_announces_nothing(client: Client) -> None:
    plan = client.ask(
        "POST", "/v1/maintenances?dry_run=true", {"event_type": "Reboot", "scopes": ["web"]}
    ).json
    assert plan["dry_run"]
    assert plan["maintenance"]["number"] == 0
    assert len(plan["operations"]) == 1
    assert [(unit["name"], unit["machines"]["names"]) for unit in plan["units"]] == [
        ("web/0", []),
        ("web/1", ["web-1"]),
        ("web/2", ["web-2"]),
    ]
    assert client.get("/v1/events")["events"] == []
    assert client.get("/v1/maintenances")["maintenances"] == []


def test_a_failure_supersedes_what_is_pending(client: Client) -> None:
    request_reboot(client)
    plan = request_reboot(client, no_notice=True)
    assert plan["operations"][0]["status"] == "Started"
    assert plan["operations"][0]["start_cause"] == "no-notice"
    assert [operation["id"] for operation in plan["superseded"]] == ["1.1"]


def test_a_time_with_another_zone_is_answered_in_utc(client: Client) -> None:
    plan = request_reboot(client, not_before="2026-03-01T15:00:00+02:00")
    assert plan["operations"][0]["not_before"] == "2026-03-01T13:00:00Z"


def test_what_its_scope_approves_automatically_waits_for_the_not_before_that_was_asked_for(
    client: Client,
) -> None:
    redeploy = {"event_type": "Redeploy", "machines": ["web-0"], "source": "User"}
    past = {**redeploy, "not_before": "2026-03-01T11:59:59Z"}
    refused = client.ask("POST", "/v1/maintenances", past)
    assert (refused.status, refused.error["code"]) == (422, "notice-too-short")
    later = {**redeploy, "not_before": "2026-03-01T12:05:00Z"}
    (operation,) = client.ask("POST", "/v1/maintenances", later).json["operations"]
    assert operation["status"] == "Scheduled"
    assert operation["not_before"] == "2026-03-01T12:05:00Z"
    at_once = {**redeploy, "machines": ["web-1"]}
    (operation,) = client.ask("POST", "/v1/maintenances", at_once).json["operations"]
    assert (operation["status"], operation["waits_for"]) == ("Queued", "1.1")
    client.ask("POST", "/v1/cancellations", {"references": ["1"]})
    (operation,) = client.get("/v1/history?maintenance=2")["operations"]
    assert operation["status"] == "Started"


def test_maintenances_are_listed_newest_first_page_by_page(client: Client) -> None:
    for name in ("web-0", "web-1", "web-2"):
        request_reboot(client, machines=[name])
    first = client.get("/v1/maintenances?limit=2")
    assert [m["number"] for m in first["maintenances"]] == [3, 2]
    rest = client.get(f"/v1/maintenances?limit=2&cursor={first['next']}")
    assert [m["number"] for m in rest["maintenances"]] == [1]
    assert rest["next"] == ""


def test_a_maintenance_shows_its_operations(client: Client) -> None:
    request_reboot(client, description="kernel 6.12")
    shown = client.get("/v1/maintenances/1")
    assert shown["maintenance"]["description"] == "kernel 6.12"
    assert [operation["id"] for operation in shown["operations"]] == ["1.1"]


def test_events_tell_the_notice_left_and_who_can_read_them(
    client: Client, service: Running, clock: ManualClock
) -> None:
    client.ask("POST", "/v1/maintenances", {"event_type": "Preempt", "scopes": ["batch"]})
    service.guests.saw("batch_0", "2017-08-01")
    (event,) = client.get("/v1/events")["events"]
    assert event["shown_to"] == {"machines": 1, "seen": 1, "showing": 0}
    service.guests.saw("batch_0", "2017-11-01")
    clock.advance(timedelta(seconds=10.5))
    answer = client.get("/v1/events")
    (event,) = answer["events"]
    assert event["shown_to"] == {"machines": 1, "seen": 1, "showing": 1}
    assert event["notice_left_seconds"] == 20
    assert answer["now"] == "2026-03-01T12:00:10.500000Z"


def test_events_are_listed_by_scope_and_by_machine(client: Client) -> None:
    request_reboot(client)
    request_reboot(client, machines=["bastion"], not_before="2026-03-01T12:20:00Z")
    everything = client.get("/v1/events")["events"]
    assert [event["machines"] for event in everything] == [["web-0"], ["Bastion"]]
    assert [e["machines"] for e in client.get("/v1/events?scope=bastion")["events"]] == [
        ["Bastion"]
    ]
    assert client.get("/v1/events?machine=web-1")["events"] == []
    assert client.get("/v1/events?machine=WEB-0")["events"] == everything[:1]
    assert client.ask("GET", "/v1/events?machine=nope").status == 404


def test_an_operators_approval_starts_it_and_is_recorded_as_such(client: Client) -> None:
    event = request_reboot(client)["operations"][0]["events"][0]
    answer = client.ask("POST", "/v1/approvals", {"references": [event["id"].lower()]})
    assert answer.status == 200
    (operation,) = answer.json["operations"]
    assert operation["status"] == "Started"
    approval = operation["events"][0]["approval"]
    assert approval == {"kind": "operator", "by": ME, "address": "", "at": "2026-03-01T12:00:00Z"}


def test_an_approval_is_all_or_nothing(client: Client) -> None:
    request_reboot(client)
    refused = client.ask("POST", "/v1/approvals", {"references": ["1.1", "7.7"]})
    assert refused.status == 404
    assert refused.error["code"] == "not-found"
    assert client.get("/v1/events")["events"][0]["approval"] is None


def test_a_cancellation_is_kept_with_who_and_why(client: Client) -> None:
    request_reboot(client)
    answer = client.ask("POST", "/v1/cancellations", {"references": ["1"], "reason": "wrong host"})
    (operation,) = answer.json["operations"]
    assert operation["status"] == "Canceled"
    assert operation["outcome"] == f"cancelled by {ME}: wrong host"
    assert operation["took_seconds"] is None
    assert client.get("/v1/events")["events"] == []


def test_history_tells_who_approved_from_where_and_when(client: Client, service: Running) -> None:
    event = request_reboot(client)["operations"][0]["events"][0]
    service.plane.approve("web", [event["id"]], by="web-1", address="10.0.0.11").result()
    (operation,) = client.get("/v1/history?machine=WEB-0")["operations"]
    assert operation["status"] == "Started"
    assert operation["start_cause"] == "approved"
    assert operation["events"][0]["approval"] == {
        "kind": "guest",
        "by": "web-1",
        "address": "10.0.0.11",
        "at": "2026-03-01T12:00:00Z",
    }
    assert operation["took_seconds"] is None


def test_history_is_filtered_and_paged(client: Client) -> None:
    for name in ("web-0", "web-1", "Bastion"):
        request_reboot(client, machines=[name])
    client.ask("POST", "/v1/cancellations", {"references": ["2"]})
    client.ask("POST", "/v1/maintenances", {"event_type": "Preempt", "scopes": ["batch"]})

    def ids(query: str) -> list[str]:
        return [o["id"] for o in client.get(f"/v1/history?{query}")["operations"]]

    assert sorted(ids("")) == ["1.1", "2.1", "3.1", "4.1"]
    assert ids("status=Canceled") == ["2.1"]
    assert sorted(ids("status=Canceled&status=Scheduled")) == ["1.1", "2.1", "3.1", "4.1"]
    assert ids("event_type=Preempt") == ["4.1"]
    assert ids("maintenance=3") == ["3.1"]
    assert sorted(ids("scope=WEB")) == ["1.1", "2.1"]
    assert ids("until=2026-03-01T12:00:00Z") == []
    assert len(ids("since=2026-03-01T14:00:00%2B02:00")) == 4
    first = client.get("/v1/history?limit=3")
    rest = client.get(f"/v1/history?limit=3&cursor={first['next']}")
    assert len(first["operations"]) == 3
    assert len(rest["operations"]) == 1
    assert rest["next"] == ""


# The service itself.


def test_the_clock_is_the_services_own(client: Client, clock: ManualClock) -> None:
    clock.advance(timedelta(hours=1))
    assert client.get("/v1/clock") == {"now": "2026-03-01T13:00:00Z", "scale": 1.0}


def test_health_and_readiness_are_told(client: Client) -> None:
    assert client.get("/healthz")["status"] == "alive"
    assert client.get("/readyz") == {"ready": True, "reasons": []}


def test_the_schema_describes_every_route_and_nothing_else(client: Client) -> None:
    described = client.get("/v1/schema")
    assert described["openapi"].startswith("3.")
    routes = {
        f"{method.upper()} {path}" for path, item in described["paths"].items() for method in item
    }
    assert routes == {
        "GET /v1/fleet",
        "GET /v1/webhooks",
        "POST /v1/webhooks",
        "DELETE /v1/webhooks",
        "POST /v1/webhooks/{name}/tests",
        "GET /v1/tokens",
        "POST /v1/tokens",
        "DELETE /v1/tokens",
        "POST /v1/tokens/page",
        "GET /v1/audit",
        "PUT /v1/fleet",
        "GET /v1/fleet/machines",
        "DELETE /v1/fleet/machines",
        "GET /v1/fleet/machines/{name}",
        "GET /v1/fleet/scopes",
        "GET /v1/fleet/scopes/{name}",
        "GET /v1/fleet/tombstones",
        "POST /v1/maintenances",
        "POST /v1/maintenances/{number}/orders",
        "POST /v1/postponements",
        "GET /v1/holds",
        "POST /v1/holds",
        "DELETE /v1/holds",
        "GET /v1/alerts",
        "POST /v1/acknowledgements",
        "POST /v1/resolutions",
        "GET /v1/maintenances",
        "GET /v1/maintenances/{number}",
        "GET /v1/events",
        "POST /v1/approvals",
        "POST /v1/cancellations",
        "GET /v1/history",
        "GET /v1/clock",
        "GET /v1/replicas",
        "GET /v1/hosts",
        "GET /v1/hosts/{name}",
        "POST /v1/hosts/drain",
        "POST /v1/relays/tokens",
        "DELETE /v1/relays/tokens",
        "POST /v1/hosts/{name}/orders",
        "GET /healthz",
        "GET /readyz",
    }


def test_the_schema_is_whole_every_reference_leads_somewhere(client: Client) -> None:
    described = client.get("/v1/schema")
    named = set(described["components"]["schemas"])

    def references(node: Any) -> Iterator[str]:
        if isinstance(node, dict):
            for name, value in node.items():
                if name == "$ref":
                    yield value.removeprefix("#/components/schemas/")
                else:
                    yield from references(value)
        elif isinstance(node, list):
            for value in node:
                yield from references(value)

    assert set(references(described)) == named
    for path, item in described["paths"].items():
        for operation in item.values():
            assert operation["operationId"]
            if path.startswith("/v1/"):
                failure = operation["responses"]["400"]["content"]["application/json"]["schema"]
                assert failure["$ref"].endswith("/ErrorBody")


def test_the_schema_has_bodies_and_filters_under_their_own_names(client: Client) -> None:
    paths = client.get("/v1/schema")["paths"]
    body = paths["/v1/maintenances"]["post"]["requestBody"]["content"]["application/json"]
    assert body["schema"]["$ref"].endswith("/MaintenanceRequest")
    names = [parameter["name"] for parameter in paths["/v1/history"]["get"]["parameters"]]
    assert names == [
        "machine",
        "scope",
        "maintenance",
        "event_type",
        "status",
        "since",
        "until",
        "cursor",
        "limit",
    ]


BODIES = {
    "PUT /v1/fleet": fleet(),
    "POST /v1/approvals": {"references": ["1.1", "2"]},
    "POST /v1/cancellations": {"references": ["1"], "reason": "wrong host"},
    "POST /v1/postponements": {"references": ["1"], "not_before": "2026-03-01T13:00:00Z"},
    "POST /v1/holds": {"kind": "scope", "name": "web", "reason": "release day"},
    "POST /v1/acknowledgements": {"references": ["1.1"], "even_if_down": True},
    "POST /v1/resolutions": {"references": ["1.1"], "verdict": "repeat"},
    "POST /v1/relays/tokens": {"host": "h1"},
    "POST /v1/tokens": {"name": "ann", "role": "viewer", "expires_at": "2027-01-01T00:00:00Z"},
    "POST /v1/tokens/page": {},
    "POST /v1/webhooks": {"name": "ours", "url": "https://a.example/", "types": ["hold"]},
    "POST /v1/webhooks/{name}/tests": {},
    "POST /v1/hosts/drain": {"hosts": ["h1"], "reboot": True, "stay": "stop"},
    "POST /v1/hosts/{name}/orders": {"order": "skip", "machine": "web-1"},
    "POST /v1/maintenances": {
        "event_type": "Reboot",
        "tags": {"role": "leader"},
        "policy": {
            "at_once": "10%",
            "waves": ["1", "rest"],
            "windows": ["daily 22:00-23:00"],
            "blackouts": [{"opens": "2026-03-01T13:00:00Z", "closes": "2026-03-01T14:00:00Z"}],
        },
    },
    "POST /v1/maintenances/{number}/orders": {"order": "skip", "unit": "h1"},
}


def test_the_schema_accepts_the_bodies_that_the_api_accepts(client: Client) -> None:
    described = client.get("/v1/schema")
    judge = Judge(described["components"]["schemas"])
    checked = set()
    for path, item in described["paths"].items():
        for method, operation in item.items():
            if "requestBody" not in operation:
                continue
            name = f"{method.upper()} {path}"
            shape = operation["requestBody"]["content"]["application/json"]["schema"]
            assert judge.faults(BODIES[name], shape) == [], name
            checked.add(name)
    assert checked == BODIES.keys()


def test_the_schema_accepts_the_answers_of_the_api(client: Client) -> None:
    request_reboot(client)
    client.ask("POST", "/v1/holds", {"kind": "scope", "name": "web"})
    client.ask("POST", "/v1/hosts/drain", {"hosts": ["h1"]})
    client.ask("POST", "/v1/maintenances", {"event_type": "Reboot", "machines": ["web-1"]})
    client.ask("POST", "/v1/tokens", BODIES["POST /v1/tokens"])
    client.ask("POST", "/v1/webhooks", BODIES["POST /v1/webhooks"])
    named = {"scopes": "web", "hosts": "h1", "machines": "web-0"}
    described = client.get("/v1/schema")
    judge = Judge(described["components"]["schemas"])
    for path, item in described["paths"].items():
        if "get" not in item:
            continue
        kind = path.removesuffix("/{name}").rpartition("/")[2]
        asked = path.replace("{name}", named.get(kind, ""))
        answer = client.get(asked.replace("{number}", "1"))
        shape = item["get"]["responses"]["200"]["content"]["application/json"]["schema"]
        assert judge.faults(answer, shape) == [], path


def test_the_schema_refuses_a_body_of_another_shape(client: Client) -> None:
    shapes = client.get("/v1/schema")["components"]["schemas"]
    for name, body in (
        ("ApprovalRequest", {"references": [1]}),
        ("ApprovalRequest", {"references": []}),
        ("ApprovalRequest", {}),
        ("HoldRequest", {"kind": "rack"}),
    ):
        assert Judge(shapes).faults(body, shapes[name]), (name, body)


def test_a_service_that_is_alone_is_the_only_replica(client: Client) -> None:
    (replica,) = client.get("/v1/replicas")["replicas"]
    assert (replica["this"], replica["live"], replica["behind_ms"]) == (True, True, 0)
    assert replica["claims"] == 0
