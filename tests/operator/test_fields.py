"""The table of fields has a row for each field of the requests, with the defaults of the bodies."""

import asyncio
import base64
import re
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest
from msgspec import structs
from starlette.requests import Request

from forewarn.cli.maintenance import ROLLOUT, SCHEDULE
from forewarn.maintenance.units import TurnPolicy
from forewarn.server.operator import errors, fields, openapi, schemas, table
from forewarn.server.operator.maintenance_schemas import MaintenanceRequest, PolicyBody
from forewarn.vocabulary import EventSource, EventType
from server.running import Client, roles

BODY_ALONE = {"policy", "host_boot_id", "idempotency_key"}
"""What nobody types."""


def of_body(name: str) -> structs.FieldInfo:
    shape = PolicyBody if fields.MAINTENANCE[name].in_policy else MaintenanceRequest
    return next(info for info in structs.fields(shape) if info.name == name)


def test_each_field_of_the_bodies_has_a_row_and_each_row_a_field() -> None:
    policy = {name for name, field in fields.MAINTENANCE.items() if field.in_policy}
    assert policy | {"notice_seconds"} == set(TurnPolicy.__struct_fields__)
    rest = fields.MAINTENANCE.keys() - policy
    assert rest | BODY_ALONE == set(MaintenanceRequest.__struct_fields__)


def test_each_row_is_an_option_of_schedule_or_rollout_but_the_arguments_and_no_drain() -> None:
    options = {option.name for option in (*SCHEDULE, *ROLLOUT)}
    assert fields.MAINTENANCE.keys() - options == {"event_type", "machines", "drain"}


IN_WORDS = {"waves", "not_before", "description", "to_host"}
"""Fields whose default is told in words."""


DEFAULTS = {name for name, field in fields.MAINTENANCE.items() if field.default}


@pytest.mark.parametrize("name", sorted(DEFAULTS - IN_WORDS - {"event_type"}))
def test_a_default_is_what_the_body_has(name: str) -> None:
    field = fields.MAINTENANCE[name]
    assert field.read(field.default) == of_body(name).default


@pytest.mark.parametrize("name", ["at_once", "waves", "spread", "windows", "blackouts"])
def test_what_cannot_be_read_is_refused_by_the_row(name: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        fields.MAINTENANCE[name].read("0%?")


def test_units_at_once_are_a_number_or_a_part() -> None:
    read = fields.MAINTENANCE["at_once"].read
    assert [read(text) for text in ("1", "10%", "100%")] == ["1", "10%", "100%"]
    for text in ("0", "0%", "101%", "-1", "", "01"):
        with pytest.raises(ValueError, match="1%"):
            read(text)


def test_choices_are_all_words_of_their_kinds() -> None:
    assert {value for value, _ in fields.MAINTENANCE["event_type"].choices} == set(EventType)
    assert {value for value, _ in fields.MAINTENANCE["source"].choices} == set(EventSource)


@pytest.mark.parametrize(
    ("given", "body"),
    [
        ({"machines": ["a"], "scopes": (), "tags": {}}, {"machines": ["a"]}),
        ({"duration_seconds": 0, "no_notice": False}, {"duration_seconds": 0}),
        ({"hosts": ["h"], "at_once": "2"}, {"hosts": ["h"], "policy": {"at_once": "2"}}),
    ],
)
def test_a_body_has_what_is_given(given: dict[str, Any], body: dict[str, Any]) -> None:
    assert fields.body(given) == body
    policy = {"policy": {}} | body
    assert fields.body(given, has_policy=True) == policy


def test_times_are_spans_from_now_too() -> None:
    assert fields.MAINTENANCE["not_before"].read("+20m") == timedelta(minutes=20)


PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "api.md"


def test_every_route_has_its_heading() -> None:
    headings = re.findall(r"^### `(\w+ \S+)`$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    routes = roles(table.API.routes)
    assert sorted(headings) == sorted(routes)


def test_every_code_is_told_with_its_status() -> None:
    told = re.findall(r"^\| `([a-z-]+)` \| (\d+)", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert dict(told) == {str(code): str(status) for code, status in errors.STATUS.items()}


def test_the_schema_is_made_once() -> None:
    assert openapi.document() is openapi.document()


def test_an_answer_is_json_before_the_loop_has_it() -> None:
    routes = table.RouteTable()

    @routes.route("GET", "/", None)
    async def list_holds() -> schemas.HoldList:
        return schemas.HoldList(holds=())

    scope = {"type": "http", "query_string": b"", "path_params": {}, "headers": []}
    request = Request({**scope, table.BACKEND: SimpleNamespace(beside=asyncio.to_thread)})
    answer = asyncio.run(table.answer(routes.routes[0], request))
    assert answer.body == b'{"holds":[]}'


CURSORS = ("junk", "web-0", "b\u00fcro", "0", "=", "x" * 300, "bWFjaGluZXM", "bWFjaGluZXMv")
"""Two of them are the letters of `machines` without a place."""

FORGED = {
    "maintenances": ("maintenances/x", "maintenances/9999999999999999", "machines/1"),
    "history": ("operations/x", "operations/1", "operations/-1.1", f"operations/{'9' * 18}.1"),
}


def test_a_cursor_that_nobody_gave_is_refused(unchanged: Client) -> None:
    refused = {
        (f"fleet/{kind}", quote(cursor))
        for kind in ("machines", "scopes", "tombstones")
        for cursor in CURSORS
    }
    for place, forged in FORGED.items():
        for each in forged:
            refused.add((place, base64.urlsafe_b64encode(each.encode()).decode().rstrip("=")))
    for place, cursor in refused:
        answer = unchanged.ask("GET", f"/v1/{place}?cursor={cursor}")
        assert (answer.status, answer.error["code"]) == (400, "invalid"), (place, cursor)
        assert place in FORGED or place.removeprefix("fleet/") in answer.error["message"]
