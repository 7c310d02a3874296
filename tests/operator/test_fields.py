"""The table of fields and of routes, what the API refuses, and who may ask."""

import asyncio
import itertools
import re
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from msgspec import structs
from starlette.exceptions import HTTPException
from starlette.requests import Request
from structlog.testing import capture_logs

from forewarn.cli.maintenance import ROLLOUT, SCHEDULE
from forewarn.maintenance.units import TurnPolicy
from forewarn.server.operator import auth, errors, fields, schemas, table
from forewarn.server.operator.maintenance_schemas import MaintenanceRequest, PolicyBody
from forewarn.vocabulary import ErrorCode, EventSource, EventType
from server.running import Running, roles

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


PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "api.md"


def test_every_route_has_its_heading() -> None:
    headings = re.findall(r"^### `(\w+ \S+)`$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    routes = roles(table.API.routes)
    assert sorted(headings) == sorted(routes)


def test_every_code_is_told_with_its_status() -> None:
    told = re.findall(r"^\| `([a-z-]+)` \| (\d+)", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert dict(told) == {code: str(errors.STATUS[code]) for code in ErrorCode}


BODIES = {
    route.path: route.body or route.signature.parameters["data"].annotation
    for route in table.API.routes
    if route.method in auth.WITH_BODY
}


@pytest.mark.parametrize("path", BODIES)
def test_no_part_of_a_body_takes_a_key_that_it_does_not_know(path: str) -> None:
    _, parts = msgspec.json.schema_components([BODIES[path]])
    objects = {name: part for name, part in parts.items() if part.get("type") == "object"}
    assert objects
    assert [name for name, part in objects.items() if part.get("additionalProperties", True)] == []


def test_an_answer_is_json_before_the_loop_has_it() -> None:
    routes = table.RouteTable()

    @routes.route("GET", "/", None)
    async def list_holds() -> schemas.HoldList:
        return schemas.HoldList(holds=())

    scope = {"type": "http", "query_string": b"", "path_params": {}, "headers": []}
    request = Request({**scope, table.BACKEND: SimpleNamespace(beside=asyncio.to_thread)})
    answer = asyncio.run(table.answer(routes.routes[0], request))
    assert answer.body == b'{"holds":[]}'


# What is refused.


async def test_a_body_that_stands_still_is_refused() -> None:
    never: Any = asyncio.Event().wait
    request = Request({"type": "http", "headers": []}, never)
    with pytest.raises(HTTPException) as refused:
        await table.read_body(request, seconds=0.0)
    assert refused.value.status_code == 408


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


# Who may ask.


def test_one_request_begins_in_each_round_of_the_loop_by_turns_of_accounts() -> None:
    async def play() -> list[list[str]]:
        turns = auth.Turns()
        rounds: list[list[str]] = [[]]

        async def ask(account: str) -> None:
            await turns.take(account)
            rounds[-1].append(account)

        asked = [asyncio.create_task(ask(account)) for account in ["ann"] * 6 + ["bob"]]
        await asyncio.sleep(0)
        asked[1].cancel()  # its client has gone
        while not all(each.done() for each in asked):
            rounds.append([])
            await asyncio.sleep(0)
        return rounds

    rounds = asyncio.run(play())
    assert max(map(len, rounds)) == 1
    begun = list(itertools.chain(*rounds))
    assert sorted(begun) == ["ann"] * 5 + ["bob"]
    assert "bob" in begun[:2]
