"""The operators' API over a real socket, on the real plane and store."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from jsonschema_rs import Draft202012Validator
from structlog.testing import capture_logs

from forewarn.clock import ManualClock
from forewarn.server.operator import schemas, table
from server.running import ME, NOON, Client, Running, end, fleet, request_reboot, roles

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


@pytest.mark.parametrize("more", ["", "&dry_run=true"], ids=["in earnest", "dry run"])
def test_a_prune_that_would_empty_the_fleet_is_refused_unless_it_is_meant(
    client: Client, more: str
) -> None:
    refused = client.ask("PUT", f"/v1/fleet?prune=true{more}", {})
    assert (refused.status, refused.error["code"]) == (409, "conflict")
    assert refused.error["facts"] == {"machines": 6}
    assert "--allow-empty" in refused.error["message"]
    assert len(client.get("/v1/fleet/machines")["machines"]) == 6
    emptied = client.ask("PUT", f"/v1/fleet?prune=true&allow_empty=true{more}", {})
    assert emptied.json["removed"]["count"] == 6
    left = client.get("/v1/fleet/machines")["machines"]
    assert len(left) == len(client.get("/v1/fleet/scopes")["scopes"]) + 2 * bool(more)
    assert bool(left) is bool(more)


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


def test_an_answer_spells_out_so_many_names_and_counts_all(service: Running) -> None:
    many = {"machine": [{"name": f"m{n}"} for n in range(schemas.MAX_NAMES + 1)]}
    added = service.client().ask("PUT", "/v1/fleet", many).json["added"]
    assert added["count"] == schemas.MAX_NAMES + 1
    assert len(added["names"]) == schemas.MAX_NAMES


@pytest.mark.parametrize(
    ("path", "of", "by", "names"),
    [
        (
            *("fleet/machines", "machines", "name"),
            ["Bastion", "batch_0", "FrontEnd_IN_0", "web-0", "web-1", "web-2"],
        ),
        ("fleet/scopes", "scopes", "name", ["Bastion", "batch", "Shop", "web"]),
        ("fleet/tombstones", "tombstones", "name", ["A", "b", "c"]),
        ("maintenances", "maintenances", "number", [3, 2, 1]),
    ],
)
def test_a_list_is_read_page_by_page_and_each_of_it_once(
    client: Client, service: Running, path: str, of: str, by: str, names: list[Any]
) -> None:
    if path in {"fleet/tombstones", "maintenances"}:
        lost = [{"name": name, "priority": "low"} for name in ("c", "A", "b")]
        client.ask("PUT", "/v1/fleet", {"machine": lost})
        for number, each in enumerate(lost, 1):
            request_reboot(client, event_type="Preempt", machines=[each["name"]])
            end(service, client, f"{number}.1", well=True)
    cursor, seen = "", []
    for _ in range(len(names)):
        page = client.get(f"/v1/{path}?limit=2&cursor={cursor}")
        seen += [one[by] for one in page[of]]
        cursor = page["next"]
        if not cursor:
            break
    assert seen == names
    assert cursor == ""


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
    assert routes == roles(table.API.routes).keys() - {
        "GET /v1/schema",
        "GET /v1/stream",
        "GET /metrics",
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


def faults(described: Any, shape: Any, value: Any) -> list[str]:
    """Return what a schema of the document refuses of a value."""
    judge = Draft202012Validator({**shape, "components": described["components"]})
    return [f"{error.instance_path}: {error.message}" for error in judge.iter_errors(value)]


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
    checked = set()
    for path, item in described["paths"].items():
        for method, operation in item.items():
            if "requestBody" not in operation:
                continue
            name = f"{method.upper()} {path}"
            shape = operation["requestBody"]["content"]["application/json"]["schema"]
            assert faults(described, shape, BODIES[name]) == [], name
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
    for path, item in described["paths"].items():
        if "get" not in item:
            continue
        kind = path.removesuffix("/{name}").rpartition("/")[2]
        asked = path.replace("{name}", named.get(kind, ""))
        answer = client.get(asked.replace("{number}", "1"))
        shape = item["get"]["responses"]["200"]["content"]["application/json"]["schema"]
        assert faults(described, shape, answer) == [], path


def test_the_schema_refuses_a_body_of_another_shape(client: Client) -> None:
    described = client.get("/v1/schema")
    for name, body in (
        ("ApprovalRequest", {"references": [1]}),
        ("ApprovalRequest", {"references": []}),
        ("ApprovalRequest", {}),
        ("HoldRequest", {"kind": "rack"}),
    ):
        assert faults(described, described["components"]["schemas"][name], body), (name, body)


def test_a_service_that_is_alone_is_the_only_replica(client: Client) -> None:
    (replica,) = client.get("/v1/replicas")["replicas"]
    assert (replica["this"], replica["live"], replica["behind_ms"]) == (True, True, 0)
    assert replica["claims"] == 0
