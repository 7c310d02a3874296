"""Pages of names: each entry once, and nothing but a cursor is taken for one."""

import base64
from urllib.parse import quote

import pytest

from server.running import Client


def test_a_page_goes_on_after_the_entry_that_it_ended_with_though_that_is_gone(
    client: Client,
) -> None:
    cursor = client.get("/v1/fleet/machines?limit=4")["next"]
    client.ask("DELETE", "/v1/fleet/machines?name=web-0")
    client.ask("PUT", "/v1/fleet", {"machine": [{"name": "cart"}]})
    rest = client.get(f"/v1/fleet/machines?cursor={cursor}")["machines"]
    assert [machine["name"] for machine in rest] == ["web-1", "web-2"]


@pytest.mark.parametrize("kind", ["machines", "scopes", "tombstones"])
@pytest.mark.parametrize(
    "cursor",
    ["junk", "web-0", "b\u00fcro", "0", "=", "x" * 300, "bWFjaGluZXM", "bWFjaGluZXMv"],
    ids=["junk", "name", "letters", "number", "padding", "long", "kind alone", "no name"],
)
def test_a_cursor_that_is_none_is_refused(unchanged: Client, kind: str, cursor: str) -> None:
    refused = unchanged.ask("GET", f"/v1/fleet/{kind}?cursor={quote(cursor)}")
    assert (refused.status, refused.error["code"]) == (400, "invalid")
    assert kind in refused.error["message"]


@pytest.mark.parametrize(
    "forged", ["maintenances/x", "maintenances/9999999999999999", "machines/1"]
)
def test_a_cursor_of_maintenances_is_a_number(unchanged: Client, forged: str) -> None:
    cursor = base64.urlsafe_b64encode(forged.encode()).decode().rstrip("=")
    assert unchanged.ask("GET", f"/v1/maintenances?cursor={cursor}").status == 400


@pytest.mark.parametrize(
    "forged", ["operations/x", "operations/1", "operations/-1.1", "operations/" + "9" * 18 + ".1"]
)
def test_a_cursor_of_operations_is_a_time_and_a_number(unchanged: Client, forged: str) -> None:
    cursor = base64.urlsafe_b64encode(forged.encode()).decode().rstrip("=")
    refused = unchanged.ask("GET", f"/v1/history?cursor={cursor}")
    assert (refused.status, refused.error["code"]) == (400, "invalid")


def test_a_cursor_of_another_list_is_refused(unchanged: Client) -> None:
    of_machines = unchanged.get("/v1/fleet/machines?limit=2")["next"]
    of_scopes = unchanged.get("/v1/fleet/scopes?limit=2")["next"]
    assert unchanged.ask("GET", f"/v1/fleet/machines?cursor={of_scopes}").status == 400
    assert unchanged.ask("GET", f"/v1/fleet/scopes?cursor={of_machines}").status == 400
    assert unchanged.ask("GET", f"/v1/fleet/tombstones?cursor={of_machines}").status == 400
