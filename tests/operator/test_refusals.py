"""What the operators' API refuses: where, why, and with which status."""

from typing import Any

import pytest

from forewarn.server.operator import schemas
from forewarn.vocabulary import ErrorCode
from server.running import Client, request_reboot


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code", "message"),
    [
        (
            "PUT",
            "/v1/fleet",
            {"availability_set": [{"name": "a", "machines": [{"name": 3}]}]},
            400,
            "invalid",
            "at availability_set[0].machines[0].name: expected `string`, got `integer`",
        ),
        (
            "PUT",
            "/v1/fleet",
            {"machine": [{"name": "a", "hots": "h1"}]},
            400,
            "invalid",
            (
                "at machine[0]: there is no key 'hots' here; did you mean 'host'? Known are host, "
                "address, listener, vm_id, update_domain, fault_domain, tags, azure_environment, "
                "location, os_type, vm_size, zone, resource_group, subscription_id, computer_name, "
                "mac_address, public_address, subnet, ipv6_address, name, priority, "
                "automatically_approve"
            ),
        ),
        (
            "PUT",
            "/v1/fleet",
            {"machine": [{"name": "_a"}]},
            400,
            "invalid",
            (
                "at machine[0].name: '_a' is no name: give 1 to 80 letters, digits, '.', '_' or "
                "'-', not starting with '_'"
            ),
        ),
        ("PUT", "/v1/fleet", b"{", 400, "invalid", "the body is no JSON: input data was truncated"),
        (
            "PUT",
            "/v1/fleet",
            b"",
            400,
            "invalid",
            "the body is empty: this wants JSON, such as /v1/schema describes",
        ),
        (
            "PUT",
            "/v1/fleet?dryrun=true",
            {},
            400,
            "invalid",
            (
                "there is no parameter 'dryrun' here; did you mean 'dry_run'? Known are prune, "
                "again, allow_empty, dry_run, by"
            ),
        ),
        (
            "PUT",
            "/v1/fleet?by=an%0An",
            {},
            400,
            "invalid",
            "at by: 'an\\nn' holds characters that cannot be printed",
        ),
        (
            "PUT",
            "/v1/fleet?prune=true&prune=false",
            {},
            400,
            "invalid",
            "the parameter 'prune' is given 2 times: give it once",
        ),
        (
            "PUT",
            "/v1/fleet?prune=perhaps",
            {},
            400,
            "invalid",
            "at prune: expected true or false, got 'perhaps'",
        ),
        (
            "POST",
            "/v1/maintenance",
            {"event_type": "Reboot", "scope": "web", "not_before": "2026-03-01T13:00:00"},
            400,
            "invalid",
            "at not_before: '2026-03-01T13:00:00' names no time zone: add one, as Z",
        ),
        (
            "POST",
            "/v1/maintenance",
            {"event_type": "reboot", "scope": "web"},
            400,
            "invalid",
            (
                "at event_type: 'reboot' is none of 'Freeze', 'Reboot', 'Redeploy', 'Preempt', "
                "'Terminate'; did you mean 'Reboot'?"
            ),
        ),
        (
            "POST",
            "/v1/maintenance",
            {"event_type": "Reboot", "scope": "web", "machines": ["web-0"]},
            400,
            "invalid",
            "name machines, or one scope, or one host: one of them",
        ),
        (
            "POST",
            "/v1/maintenance",
            {"event_type": "Reboot", "machines": ["nope"]},
            404,
            "not-found",
            "no machine of the fleet is called 'nope': see 'forewarn fleet list'",
        ),
        (
            "POST",
            "/v1/maintenance",
            {"event_type": "Reboot", "machines": [""]},
            404,
            "not-found",
            "no machine of the fleet is called '': see 'forewarn fleet list'",
        ),
        (
            "POST",
            "/v1/maintenance",
            {"event_type": "Reboot", "host": " "},
            404,
            "not-found",
            "no machine of the fleet is on host ' ': see 'forewarn fleet list'",
        ),
        (
            "POST",
            "/v1/holds",
            {"kind": "host", "name": " "},
            404,
            "not-found",
            "there is no host ' ' in the fleet: see 'forewarn fleet list'",
        ),
        (
            "POST",
            "/v1/maintenance",
            {"event_type": "Reboot", "scope": "web", "not_before": "2026-03-01T12:14:59Z"},
            422,
            "notice-too-short",
            (
                "NotBefore 2026-03-01 12:14:59Z would leave the guests less than their "
                "notice of 15 min: the earliest is 2026-03-01 12:15:00Z; leave it out to get "
                "that"
            ),
        ),
        (
            "POST",
            "/v1/maintenance",
            {"event_type": "Preempt", "scope": "web"},
            422,
            "not-eligible",
            "web is of regular priority: only low-priority machines can be preempted",
        ),
        (
            "POST",
            "/v1/maintenance",
            {"event_type": "Reboot", "scope": "web", "by": "a\u202eb"},
            400,
            "invalid",
            "at by: 'a\\u202eb' holds characters that cannot be printed",
        ),
        ("POST", "/v1/approvals", {"references": []}, 400, "invalid", None),
        ("POST", "/v1/cancellations", {"reference": "frog"}, 400, "invalid", None),
        ("POST", "/v1/cancellations", {"reference": "99"}, 404, "not-found", None),
        (
            "GET",
            "/v1/history?status=Failed&status=cancelled",
            None,
            400,
            "invalid",
            (
                "at status: 'cancelled' is none of 'Scheduled', 'Started', 'Completed', 'Failed', "
                "'Canceled'; did you mean 'Canceled'?"
            ),
        ),
        (
            "GET",
            "/v1/history?since=soon",
            None,
            400,
            "invalid",
            "at since: 'soon' is no time: give one such as 2026-03-01T12:00:00Z",
        ),
        (
            "GET",
            "/v1/history?maintenance=x",
            None,
            400,
            "invalid",
            "at maintenance: expected `integer`, got 'x'",
        ),
        (
            "GET",
            "/v1/history?since=2026-03-01T12:00:00",
            None,
            400,
            "invalid",
            "at since: 2026-03-01T12:00:00 names no time zone: add one, as Z",
        ),
        (
            "GET",
            "/v1/history?limit=1001",
            None,
            400,
            "invalid",
            "at limit: expected `integer` <= 1000, got '1001'",
        ),
        ("GET", "/v1/history?cursor=frog", None, 400, "invalid", None),
        ("GET", "/v1/maintenance?cursor=frog", None, 400, "invalid", None),
        ("GET", "/v1/maintenance/77", None, 404, "not-found", None),
        (
            "GET",
            "/v1/frogs",
            None,
            404,
            "not-found",
            "there is nothing at /v1/frogs: see /v1/schema for what there is",
        ),
        (
            "PUT",
            "/v1/clock",
            {},
            405,
            "invalid",
            "PUT is not for /v1/clock: see /v1/schema for what is",
        ),
    ],
)
def test_what_is_wrong_is_refused_with_its_place_and_its_status(
    client: Client,
    method: str,
    path: str,
    body: Any,
    status: int,
    code: str,
    message: str | None,
) -> None:
    answer = client.ask(method, path, body, {"Content-Type": "application/json"})
    assert (answer.status, answer.error["code"]) == (status, code), answer.error
    assert answer.headers["Content-Type"].startswith("application/json")
    if message is not None:
        assert answer.error["message"] == message


def test_a_conflict_names_the_event_in_the_way(client: Client) -> None:
    event = request_reboot(client)["operations"][0]["events"][0]
    answer = client.ask("POST", "/v1/maintenance", {"event_type": "Freeze", "machines": ["web-0"]})
    assert (answer.status, answer.error["code"]) == (409, "conflict")
    assert answer.error["facts"]["event_id"] == event["id"]


def test_what_has_started_is_too_late_to_cancel(client: Client) -> None:
    request_reboot(client, no_notice=True)
    answer = client.ask("POST", "/v1/cancellations", {"reference": "1.1"})
    assert (answer.status, answer.error["code"]) == (409, "too-late")


def test_more_than_is_taken_at_once_is_refused_by_its_limit(client: Client) -> None:
    tags = {f"t{n}": "" for n in range(51)}
    answer = client.ask("PUT", "/v1/fleet", {"machine": [{"name": "x", "tags": tags}]})
    assert (answer.status, answer.error["code"]) == (422, "limit")


def test_a_method_that_a_path_does_not_know_is_told_which_it_does(client: Client) -> None:
    answer = client.ask("GET", "/v1/approvals")
    assert answer.status == 405
    assert "POST" in answer.headers["Allow"]


def test_a_body_over_the_limit_is_refused_and_a_fleet_may_be_longer(client: Client) -> None:
    padding = b" " * (1024 * 1024)
    answer = client.ask(
        "POST", "/v1/approvals", b"{}" + padding, {"Content-Type": "application/json"}
    )
    assert (answer.status, answer.error["code"]) == (413, "limit")
    assert answer.error["message"] == "the body is over 1048576 bytes, the most that is taken here"
    longer = client.ask("PUT", "/v1/fleet", b"{}" + padding, {"Content-Type": "application/json"})
    assert longer.status == 200


def test_every_code_has_its_status() -> None:
    assert set(schemas.STATUS) == set(ErrorCode)
    assert schemas.STATUS[ErrorCode.STALE] == 409
    assert schemas.STATUS[ErrorCode.UNAVAILABLE] == 503
    assert schemas.STATUS[ErrorCode.INTERNAL] == 500
