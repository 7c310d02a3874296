"""The table of fields and of routes, what the API refuses, and who may ask."""

import asyncio
import base64
import contextlib
import itertools
import re
import socket
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest
from msgspec import structs
from starlette.exceptions import HTTPException
from starlette.requests import Request
from structlog.testing import capture_logs

from forewarn.cli.maintenance import ROLLOUT, SCHEDULE
from forewarn.maintenance.units import TurnPolicy
from forewarn.server.operator import auth, errors, fields, openapi, routing, schemas, table
from forewarn.server.operator.maintenance_schemas import MaintenanceRequest, PolicyBody
from forewarn.store.sqlite import InMemoryStore
from forewarn.vocabulary import ErrorCode, EventSource, EventType
from server.exchange import Exchanges
from server.running import Client, Running, UnixConnection, roles, settings_in
from stories import stories_beside

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


# What is refused.


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
def test_a_fleet_of_nonsense_is_refused_before_it_is_decoded(
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


# Who may ask.


@pytest.fixture(scope="module")
def on_tcp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    wanted = settings_in(
        tmp_path_factory.mktemp("service"),
        listen="127.0.0.1:0",
        hosts=["ops.example", "https://proxy.example"],
    )
    with Running(wanted, InMemoryStore()) as running:
        yield running


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


@pytest.mark.parametrize("rows", stories_beside(__file__, "auth.txt"))
def test_who_asks_is_let_in_or_refused(on_tcp: Running, rows: list[tuple[int, str]]) -> None:
    story = Exchanges(on_tcp)
    token = Path(on_tcp.settings.operator.token_file).read_text(encoding="ascii").strip()
    story.bound |= {"token": token, "cut": token[:-1], "longer": f"{token}x"}
    story.bound |= {"url": on_tcp.opened.operators[1], "long": " " * (20 * 1024 * 1024)}
    assert story.play("auth.txt", rows)


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
def test_head_is_answered_as_get_without_the_body(on_tcp: Running, path: str) -> None:
    with contextlib.closing(UnixConnection(Path(on_tcp.settings.operator.socket))) as connection:
        for _ in range(2):  # and the connection goes on
            told = []
            for method in ("GET", "HEAD"):
                connection.request(method, path)
                answer = connection.getresponse()
                told.append((answer.status, answer.headers["content-type"], answer.read()))
            (status, kind, body), head = told
            assert (status, bool(body)) == (200, True)
            assert head == (status, kind, b"")
