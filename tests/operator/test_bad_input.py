"""Whatever an operator gives that must not be: a clear refusal, and nothing is changed."""

from typing import Any

import pytest

from server.running import Client, Running


def fleet_of(**group: Any) -> dict[str, Any]:
    return {"availability_set": [{"name": "set", "update_domains": 2, **group}]}


def everything(service: Running) -> dict[str, Any]:
    """All that the service holds."""
    client = service.client()
    paths = ["/v1/fleet/machines", "/v1/fleet/scopes", "/v1/maintenance", "/v1/history"]
    return {path: client.get(path) for path in paths}


FLEETS: dict[str, tuple[Any, str]] = {
    "a doubled name": (
        fleet_of(machines=[{"name": "one"}, {"name": "ONE"}]),
        "the machine name ONE is taken by availability_set[0].machines[0]",
    ),
    "a doubled address": (
        fleet_of(
            machines=[
                {"name": "one", "address": "10.9.9.9"},
                {"name": "two", "address": "10.9.9.9"},
            ]
        ),
        "10.9.9.9",
    ),
    "an address of another machine": (
        fleet_of(machines=[{"name": "one", "address": "10.0.0.10"}]),
        "the address 10.0.0.10 of one belongs to web-0",
    ),
    "21 update domains": (
        {"availability_set": [{"name": "set", "update_domains": 21, "machines": []}]},
        "update_domains",
    ),
    "a name of 300 characters": (
        {"machine": [{"name": "n" * 300}]},
        "is no name: give 1 to 80 letters",
    ),
    "no UTF-8": (b'{"machine": [{"name": "\xff"}]}', "the body is no UTF-8 text"),
    "a host that is below itself": (
        {"host": [{"name": "h1", "parent": "h2"}, {"name": "h2", "parent": "h1"}]},
        "the body: there is no key 'host' here; known are availability_set, scale_set",
    ),
    "a machine with a parent": (
        {"machine": [{"name": "one", "host": "h1", "parent": "one"}]},
        "at machine[0]: there is no key 'parent' here; known are host, address",
    ),
    "a host that is no name but a machine": (
        {"machine": [{"name": "one", "host": {"host": "one"}}]},
        "at machine[0].host: expected `string`, got `object`",
    ),
}
"""Hosts have no hosts: a fleet file has no words for a loop of them."""

REQUESTS: dict[str, tuple[dict[str, Any], str, str]] = {
    "a time in the past": (
        {"not_before": "2026-03-01T11:00:00Z"}, "notice-too-short", "the earliest is"
    ),
    "a time without a zone": ({"not_before": "2026-03-01T13:00:00"}, "invalid", "not_before"),
    "the year 9999": ({"not_before": "9999-12-31T23:59:59Z"}, "invalid", "366 days off"),
    "a year that UTC has not": (
        {"not_before": "9999-12-31T23:59:59-14:00"}, "invalid", "at not_before: 9999-12-31T23:59:59"
    ),
    "a year before the first": (
        {"not_before": "0001-01-01T00:00:00+14:00"}, "invalid", "before the year 1"
    ),
    "a year that is none": ({"not_before": "10000-01-01T00:00:00Z"}, "invalid", "not_before"),
    "a duration of -2": ({"duration_seconds": -2}, "invalid", "-1 for unknown"),
    "100,000 targets": (
        {"machines": [f"m{n}" for n in range(100_000)], "scope": ""},
        "invalid",
        "at machines: expected `array` of length <= 10000, got 100000",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("body", "said"), FLEETS.values(), ids=FLEETS)
def test_a_bad_fleet_is_refused_whole(
    service: Running, client: Client, body: Any, said: str
) -> None:
    before = everything(service)
    refused = client.ask("PUT", "/v1/fleet", body)
    assert refused.status in {400, 409, 422}, refused.body
    assert said in refused.error["message"]
    assert everything(service) == before


@pytest.mark.parametrize(("more", "code", "said"), REQUESTS.values(), ids=REQUESTS)
def test_a_bad_request_is_refused_whole(
    service: Running, client: Client, more: dict[str, Any], code: str, said: str
) -> None:
    before = everything(service)
    body = {"event_type": "Reboot", "scope": "web", **more}
    refused = client.ask("POST", "/v1/maintenance", body)
    assert 400 <= refused.status < 500, refused.body
    assert refused.error["code"] == code
    assert said in refused.error["message"]
    assert everything(service) == before


@pytest.mark.parametrize("number", ["9007199254740993", "99999999999999999999"])
def test_a_number_that_no_maintenance_can_have_is_refused(client: Client, number: str) -> None:
    for method, path, body in (
        ("GET", f"/v1/maintenance/{number}", None),
        ("POST", f"/v1/maintenance/{number}/resume", {}),
    ):
        refused = client.ask(method, path, body)
        assert (refused.status, refused.error["code"]) == (400, "invalid"), refused.body
        assert "at number" in refused.error["message"]
