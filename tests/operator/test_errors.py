"""What the operators' API refuses: with which status and code, where, and that nothing changes."""

import asyncio
import socket
from typing import Any

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from structlog.testing import capture_logs

from forewarn.server.operator import errors, routing, table
from forewarn.vocabulary import ErrorCode
from server.running import Client, Running

INVALID = (400, "invalid")


def everything(client: Client) -> dict[str, Any]:
    """All that the service holds."""
    paths = ["/v1/fleet/machines", "/v1/fleet/scopes", "/v1/maintenances", "/v1/history"]
    return {path: client.get(path) for path in paths}


def machine(**more: Any) -> dict[str, Any]:
    return {"machine": [{"name": "z"}, {"name": "a", **more}]}


FLEETS: dict[str, tuple[Any, str | None, str]] = {
    "a text too long": (machine(host="h" * 300), "machine[1].host", "256"),
    "a tag too long": (machine(tags={"t" * 257: "y"}), "machine[1].tags", "256"),
    "no JSON": (b'{"machine": [], }', None, "JSON"),
    "JSON that is cut short": (b'{"machine": [{"name": "a"}', None, ""),
    "no UTF-8": (b'{"machine": [{"name": "\xff"}]}', None, "UTF-8"),
    "nothing": (b"", None, "/v1/schema"),
    "deep nesting": (b'{"machine": [' + b"[" * 100_000, "machine[0]", ""),
    "a long name": ({"machine": [{"name": "n" * 300}]}, "machine[0].name", "80"),
    "tags": (machine(tags={f"t{n}": "" for n in range(51)}), "machine[1]", "50"),
}


def test_a_bad_fleet_is_refused_whole_with_its_place(unchanged: Client) -> None:
    before = everything(unchanged)
    for name, (body, where, word) in FLEETS.items():
        refused = unchanged.ask("PUT", "/v1/fleet", body, {"Content-Type": "application/json"})
        assert refused.status in {400, 422}, name
        assert refused.headers["Content-Type"].startswith("application/json")
        message = refused.error["message"]
        assert refused.error["facts"].get("where") == where, message
        assert (where or "") in message
        assert word in message
    assert everything(unchanged) == before


def test_a_request_of_too_many_targets_or_names_is_refused(unchanged: Client) -> None:
    body = {"event_type": "Reboot", "machines": [f"m{n}" for n in range(100_000)]}
    many = unchanged.ask("POST", "/v1/maintenances", body)
    assert (many.status, many.error["code"]) == INVALID
    assert many.error["facts"]["where"] == "machines"
    names = unchanged.ask("DELETE", "/v1/fleet/machines?" + "&".join(["name=a"] * 1001))
    assert (names.status, names.error["code"]) == INVALID
    assert "name" in names.error["message"]


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


async def test_a_body_that_stands_still_is_refused() -> None:
    never: Any = asyncio.Event().wait
    request = Request({"type": "http", "headers": []}, never)
    with pytest.raises(HTTPException) as refused:
        await table.read_body(request, seconds=0.0)
    assert refused.value.status_code == 408


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
