"""What the operators' API refuses: with which status and code, where, and that nothing changes."""

import socket
from typing import Any

import pytest
from structlog.testing import capture_logs

from forewarn.server.operator import errors, routing
from forewarn.vocabulary import ErrorCode
from server.running import Client, Running, request_reboot

INVALID = (400, "invalid")
NOT_FOUND = (404, "not-found")


def everything(client: Client) -> dict[str, Any]:
    """All that the service holds."""
    paths = ["/v1/fleet/machines", "/v1/fleet/scopes", "/v1/maintenances", "/v1/history"]
    return {path: client.get(path) for path in paths}


def group(**more: Any) -> dict[str, Any]:
    return {"availability_set": [{"name": "set", "update_domains": 2, **more}]}


def machine(**more: Any) -> dict[str, Any]:
    return {"machine": [{"name": "z"}, {"name": "a", **more}]}


FLEETS: dict[str, tuple[Any, str | None, list[str]]] = {
    "an unknown key": ({"machin": []}, "", ["'machin'", "'machine'"]),
    "an unknown key like no other": ({"zoo": []}, "", ["'zoo'", "availability_set"]),
    "an unknown key of a machine": (machine(hots="h1"), "machine[1]", ["'hots'", "'host'"]),
    "an object for a list": ({"machine": {}}, "machine", ["array", "object"]),
    "a machine without a name": ({"machine": [{"host": "h1"}]}, "machine[0]", ["name"]),
    "null for a machine": ({"machine": [None]}, "machine[0]", ["null"]),
    "a number for a name": (group(machines=[{"name": 3}]),
                            "availability_set[0].machines[0].name", ["str", "int"]),
    "a number too large": (machine(update_domain=30), "machine[1].update_domain", ["19"]),
    "a text for a number": (machine(update_domain="3"), "machine[1].update_domain", ["int"]),
    "a text too long": (machine(host="h" * 300), "machine[1].host", ["256"]),
    "a tag that is a number": (machine(tags={"rack": 3}), "machine[1].tags[...]", ["str"]),
    "a tag too long": (machine(tags={"t" * 257: "y"}), "machine[1].tags", ["256"]),
    "an unknown choice": (machine(priority="Low"), "machine[1].priority", ["'regular'", "'low'"]),
    "an unknown event type": (machine(automatically_approve=["Reboot", "Rebot"]),
                              "machine[1].automatically_approve[1]", ["'Reboot'", "'Freeze'"]),
    "21 update domains": (group(update_domains=21), "availability_set[0].update_domains", []),
    "a list": ([], "", ["object", "array"]),
    "no JSON": (b'{"machine": [], }', None, ["JSON", "16"]),
    "JSON that is cut short": (b'{"machine": [{"name": "a"}', None, []),
    "no UTF-8": (b'{"machine": [{"name": "\xff"}]}', None, ["UTF-8"]),
    "nothing": (b"", None, ["empty", "/v1/schema"]),
    "deep nesting": (b'{"machine": [' + b"[" * 100_000, "machine[0]", []),
    "a doubled name": (group(machines=[{"name": "one"}, {"name": "ONE"}]),
                       "availability_set[0].machines[1]", ["ONE", "machines[0]"]),
    "a doubled address": (group(machines=[{"name": "one", "address": "10.9.9.9"},
                                          {"name": "two", "address": "10.9.9.9"}]),
                          "availability_set[0].machines[1]", ["10.9.9.9"]),
    "an address of another machine": (group(machines=[{"name": "one", "address": "10.0.0.10"}]),
                                      None, ["10.0.0.10", "one", "web-0"]),
    "a name of 300 characters": ({"machine": [{"name": "n" * 300}]}, "machine[0].name", ["80"]),
    "a name with a leading underscore": ({"machine": [{"name": "_a"}]}, "machine[0].name", ["_a"]),
    "a host for a machine's name": ({"machine": [{"name": "one", "host": {"host": "one"}}]},
                                    "machine[0].host", ["object"]),
    "too many tags": ({"machine": [{"name": "x", "tags": {f"t{n}": "" for n in range(51)}}]},
                      "machine[0]", ["50"]),
}  # fmt: skip

REQUESTS: dict[str, tuple[dict[str, Any], tuple[int, str], str | None]] = {
    "a time in the past": ({"not_before": "2026-03-01T11:00:00Z"}, (422, "notice-too-short"), None),
    "a time too early": ({"not_before": "2026-03-01T12:14:59Z"}, (422, "notice-too-short"), None),
    "a time without a zone": ({"not_before": "2026-03-01T13:00:00"}, INVALID, "not_before"),
    "a time in words": ({"not_before": "soon"}, INVALID, "not_before"),
    "the year 9999": ({"not_before": "9999-12-31T23:59:59Z"}, INVALID, None),
    "a year after UTC's last": ({"not_before": "9999-12-31T23:59:59-14:00"}, INVALID, "not_before"),
    "a year before UTC's first": (
        {"not_before": "0001-01-01T00:00:00+14:00"}, INVALID, "not_before"
    ),
    "the year 10000": ({"not_before": "10000-01-01T00:00:00Z"}, INVALID, "not_before"),
    "a duration of -2": ({"duration_seconds": -2}, INVALID, "duration_seconds"),
    "100,000 targets": (
        {"machines": [f"m{n}" for n in range(100_000)], "scopes": []}, INVALID, "machines"
    ),
    "an unknown type": ({"event_type": "reboot"}, INVALID, "event_type"),
    "one start for several units": (
        {"machines": ["web-0"], "opens_at": "2026-03-01T13:00:00Z"}, INVALID, "opens_at"
    ),
    "nothing": ({"scopes": []}, INVALID, None),
    "an unknown machine": ({"machines": ["nope"], "scopes": []}, NOT_FOUND, None),
    "a machine without a name": ({"machines": [""], "scopes": []}, NOT_FOUND, None),
    "an unknown host": ({"hosts": [" "], "scopes": []}, NOT_FOUND, None),
    "a preemption of regular priority": ({"event_type": "Preempt"}, (422, "not-eligible"), None),
    "a name in the body": ({"by": "ann"}, INVALID, ""),
}  # fmt: skip

OTHERS: dict[str, tuple[str, str, Any, tuple[int, str], list[str]]] = {
    "an unknown parameter": (
        "PUT", "/v1/fleet?dryrun=true", {}, INVALID, ["'dryrun'", "'dry_run'"]
    ),
    "a name in the query": ("PUT", "/v1/fleet?by=ann", {}, INVALID, ["by"]),
    "a doubled parameter": ("PUT", "/v1/fleet?prune=true&prune=false", {}, INVALID, ["prune"]),
    "no boolean": ("PUT", "/v1/fleet?prune=perhaps", {}, INVALID, ["prune", "'perhaps'"]),
    "a removal of nothing": ("DELETE", "/v1/fleet/machines", None, INVALID, ["name"]),
    "a removal of too many": (
        "DELETE", "/v1/fleet/machines?" + "&".join(["name=a"] * 1001), None, INVALID, ["name"]
    ),
    "a hold without a name": ("POST", "/v1/holds", {"kind": "scope"}, INVALID, ["scope"]),
    "everything by name": (
        "POST", "/v1/holds", {"kind": "everything", "name": "x"}, INVALID, ["'x'"]
    ),
    "a hold of an unknown host": (
        "POST", "/v1/holds", {"kind": "host", "name": " "}, NOT_FOUND, []
    ),
    "a release without a kind": ("DELETE", "/v1/holds", None, INVALID, ["'kind'"]),
    "a release of an unknown kind": ("DELETE", "/v1/holds?kind=rack", None, INVALID, ["'machine'"]),
    "a release without a name": ("DELETE", "/v1/holds?kind=host", None, INVALID, ["host"]),
    "no references": ("POST", "/v1/approvals", {"references": []}, INVALID, ["references"]),
    "a reference to nothing": (
        "POST", "/v1/cancellations", {"references": ["frog"]}, INVALID, ["frog"]
    ),
    "an unknown maintenance": ("POST", "/v1/cancellations", {"references": ["99"]}, NOT_FOUND, []),
    "an unknown verdict": (
        "POST", "/v1/resolutions", {"references": ["1.1"], "verdict": None}, INVALID, ["'repeat'"]
    ),
    "an unknown status": (
        "GET", "/v1/history?status=Failed&status=cancelled", None, INVALID,
        ["'cancelled'", "'Canceled'"],
    ),
    "a time in words": ("GET", "/v1/history?since=soon", None, INVALID, ["since", "'soon'"]),
    "a time without a zone": (
        "GET", "/v1/history?since=2026-03-01T12:00:00", None, INVALID, ["since", "zone"]
    ),
    "a time that UTC does not have": (
        "GET", "/v1/history?until=9999-12-31T23:59:59-14:00", None, INVALID, ["until"]
    ),
    "a number in words": ("GET", "/v1/history?maintenance=x", None, INVALID, ["maintenance"]),
    "too long a page": ("GET", "/v1/history?limit=1001", None, INVALID, ["limit", "1000"]),
    "no cursor": ("GET", "/v1/history?cursor=frog", None, INVALID, ["cursor"]),
    "no cursor of maintenances": ("GET", "/v1/maintenances?cursor=frog", None, INVALID, ["frog"]),
    "a number beyond any": ("GET", "/v1/maintenances/9007199254740993", None, INVALID, ["number"]),
    "an order beyond any": (
        "POST", "/v1/maintenances/99999999999999999999/orders", {"order": "pause"}, INVALID,
        ["number"],
    ),
    "a maintenance that does not exist": (
        "GET", "/v1/maintenances/77", None, NOT_FOUND, ["77", "forewarn maintenance list"]
    ),
    "an order about none": (
        "POST", "/v1/maintenances/77/orders", {"order": "pause"}, NOT_FOUND,
        ["77", "forewarn maintenance list"],
    ),
    "an order about a unit without its name": (
        "POST", "/v1/maintenances/77/orders", {"order": "skip"}, INVALID, ["unit"]
    ),
    "an unknown path": ("GET", "/v1/frogs", None, NOT_FOUND, ["/v1/frogs", "/v1/schema"]),
    "a path with a newline": (
        "POST", "/v1/holds%0A", {"kind": "everything", "reason": "x"}, NOT_FOUND, ["/v1/schema"]
    ),
    "another method": ("PUT", "/v1/clock", {}, (405, "invalid"), ["PUT", "/v1/clock"]),
}  # fmt: skip


@pytest.mark.parametrize(("body", "where", "words"), FLEETS.values(), ids=FLEETS)
def test_a_bad_fleet_is_refused_whole_with_its_place(
    unchanged: Client, body: Any, where: str | None, words: list[str]
) -> None:
    before = everything(unchanged)
    kind = {"Content-Type": "application/json"}
    refused = unchanged.ask("PUT", "/v1/fleet", body, kind)
    assert refused.status in {400, 409, 422}, refused.body
    assert refused.headers["Content-Type"].startswith("application/json")
    message = refused.error["message"]
    assert refused.error["facts"].get("where") == where, message
    assert [word for word in (where or "", *words) if word not in message] == []
    assert everything(unchanged) == before


@pytest.mark.parametrize(("more", "refusal", "where"), REQUESTS.values(), ids=REQUESTS)
def test_a_bad_request_is_refused_whole_with_its_place(
    unchanged: Client, more: dict[str, Any], refusal: tuple[int, str], where: str | None
) -> None:
    before = everything(unchanged)
    body = {"event_type": "Reboot", "scopes": ["web"], **more}
    refused = unchanged.ask("POST", "/v1/maintenances", body)
    assert (refused.status, refused.error["code"]) == refusal, refused.error
    assert refused.error["facts"].get("where") == where, refused.error
    assert everything(unchanged) == before


@pytest.mark.parametrize(
    ("method", "path", "body", "refusal", "words"), OTHERS.values(), ids=OTHERS
)
def test_what_is_wrong_is_refused_with_its_status_and_its_place(
    unchanged: Client, method: str, path: str, body: Any, refusal: tuple[int, str], words: list[str]
) -> None:
    refused = unchanged.ask(method, path, body)
    assert (refused.status, refused.error["code"]) == refusal, refused.error
    assert [word for word in words if word not in refused.error["message"]] == []


@pytest.mark.parametrize(
    "body",
    [
        machine(**{"- at `$.machine[7].nothing": 1}),
        {"x - at `$.machine[7].name": 1},
        machine(**{"k" * 10_000: 1}),
        b'{"machine": [{"name": 3}, "\xff"]}',
    ],
    ids=["a path", "a path at the top", "long", "no text"],
)
def test_a_refusal_is_one_short_line_whatever_the_body_has(unchanged: Client, body: Any) -> None:
    kind = {"Content-Type": "application/json"}
    error = unchanged.ask("PUT", "/v1/fleet", body, kind).error
    assert error["code"] == "invalid"
    assert len(error["message"]) < 2 * errors.MAX_SHOWN + 50
    assert "\n" not in error["message"]
    assert all(len(str(fact)) <= errors.MAX_SHOWN for fact in error["facts"].values())


def test_a_conflict_names_the_event_in_the_way(client: Client) -> None:
    event = request_reboot(client)["operations"][0]["events"][0]
    answer = client.ask("POST", "/v1/maintenances", {"event_type": "Freeze", "machines": ["web-0"]})
    assert (answer.status, answer.error["code"]) == (409, "conflict")
    assert answer.error["facts"]["event_id"] == event["id"]


def test_what_has_started_is_too_late_to_cancel(client: Client) -> None:
    request_reboot(client, no_notice=True)
    answer = client.ask("POST", "/v1/cancellations", {"references": ["1.1"]})
    assert (answer.status, answer.error["code"]) == (409, "too-late")


def test_the_methods_of_a_path_are_told_to_whoever_uses_another(client: Client) -> None:
    answer = client.ask("GET", "/v1/approvals")
    assert answer.status == 405
    assert answer.headers["Allow"].split(", ") == ["OPTIONS", "POST"]


def test_a_body_over_the_limit_is_refused_and_a_fleet_may_be_longer(client: Client) -> None:
    padding = b" " * (1024 * 1024)
    kind = {"Content-Type": "application/json"}
    short = client.ask("POST", "/v1/approvals", b"{}", {**kind, "Content-Length": "0000000002"})
    assert short.status == 400, short.body
    answer = client.ask("POST", "/v1/approvals", b"{}" + padding, kind)
    assert (answer.status, answer.error["code"]) == (413, "limit")
    assert "1048576" in answer.error["message"]
    longer = {"machine": [{"name": f"m{n}", "host": "h" * 250} for n in range(5_000)]}
    assert client.ask("PUT", "/v1/fleet?dry_run=true", longer).status == 200


def test_every_code_has_its_status() -> None:
    assert set(errors.STATUS) == set(ErrorCode)
    assert errors.STATUS[ErrorCode.STALE] == 409
    assert errors.STATUS[ErrorCode.UNAVAILABLE] == 503
    assert errors.STATUS[ErrorCode.INTERNAL] == 500


@pytest.mark.parametrize(
    "body",
    [
        b'{"machine": [' + b"{}," * routing.MAX_OBJECTS + b"{}]}",
        b'{"machine": [{"name": "m", "tags": {' + b'"t":"",' * 150_000 + b'"t":""}}]}',
    ],
    ids=["a million objects", "one object without end"],
)
def test_a_fleet_that_no_machines_need_is_refused_before_it_is_decoded(
    unchanged: Client, body: bytes
) -> None:
    refused = unchanged.ask("PUT", "/v1/fleet", body)
    assert (refused.status, refused.error["code"]) == (422, "limit")


def test_a_client_that_leaves_in_mid_body_is_no_fault_of_ours(service: Running) -> None:
    head = b"PUT /v1/fleet HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    with capture_logs() as told, socket.socket(socket.AF_UNIX) as leaving:
        leaving.connect(service.settings.operator.socket)
        leaving.sendall(head + b"Content-Length: 100\r\n\r\n{")
        leaving.shutdown(socket.SHUT_WR)
        while leaving.recv(1024):
            pass
        service.client().get("/healthz")
    assert [line for line in told if line["log_level"] == "error"] == []
