"""The operators' API over a real socket, beside its stories: the schema, and limits."""

import asyncio
import contextlib
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import yaml
from jsonschema_rs import Draft202012Validator
from starlette.requests import Request
from starlette.responses import Response
from structlog.testing import capture_logs

import patience
from builders import MINUTE, Bench, mint, survey_of
from forewarn.clock import ManualClock
from forewarn.control.accounts import OperatorRequest
from forewarn.maintenance import commands, fleet_file
from forewarn.maintenance.world import World
from forewarn.server.operator import api, application, auth, routing, table, views
from forewarn.server.operator.inventory import Inventory
from forewarn.store import sqlite
from forewarn.store.sqlite import InMemoryStore
from forewarn.vocabulary import EventType
from server.exchange import Text
from server.running import (
    ME,
    NOON,
    Client,
    Running,
    Stuck,
    fleet,
    request_reboot,
    roles,
    settings_in,
)

# The fleet.


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


def test_a_dry_run_waits_for_no_writer(tmp_path: Path) -> None:
    wanted, go_on = settings_in(tmp_path), threading.Event()
    store = sqlite.open_store(Path(wanted.store.path))
    with closing(store), Running(wanted, store) as running:
        client, cart = running.client(), {"machine": [{"name": "cart"}]}
        client.ask("PUT", "/v1/fleet", cart)
        writing = running.plane.order(lambda *_: go_on.wait(patience.SECONDS))
        try:
            cart["machine"].append({"name": "horse"})
            change = client.ask("PUT", "/v1/fleet?dry_run=true", cart).json
            assert change["added"]["names"] == ["horse"]
            reboot = {"event_type": "Reboot", "machines": ["cart"]}
            plan = client.ask("POST", "/v1/maintenances?dry_run=true", reboot).json
            assert plan["operations"][0]["events"][0]["machines"] == ["cart"]
            assert not writing.done()
        finally:
            go_on.set()
            writing.result(patience.SECONDS)


def test_guests_are_answered_while_many_hosts_are_shown() -> None:
    hosts = SimpleNamespace(drains={})
    backend: Any = SimpleNamespace(hosts=hosts, relays=None, now=lambda: NOON)

    async def look(turns: int = 0) -> int:
        names = map(str, range(5 * api.HOSTS_AT_ONCE))
        task = asyncio.ensure_future(api.shown_hosts(backend, names, survey_of({})))
        while not task.done():
            turns += 1
            await asyncio.sleep(0)
        return turns

    assert asyncio.run(look()) > 5


def test_no_operation_took_less_than_no_time_though_the_clock_was_set_back() -> None:
    bench = Bench()
    bench.ask(EventType.REBOOT, "bastion")
    bench.let_pass(15 * MINUTE)
    bench.finish("1.1", succeeded=False)
    bench.now -= 60 * MINUTE
    bench.decide(commands.set_back, 60 * MINUTE)
    inventory = Inventory({}, bench.sightings.get)
    (shown,) = views.operations([bench.operation("1.1")], inventory, bench.now)
    assert (shown.ended_at, shown.took_seconds) == (bench.now, 0)


@pytest.mark.parametrize(
    ("machine", "listeners", "words"),
    [
        ({"address": "10.0.0.1"}, ["", "green"], []),
        ({"address": "10.0.0.1", "listener": "green"}, ["green"], []),
        ({}, ["green"], []),
        ({"address": "10.0.0.1"}, [], ["no listener", "zz", "no answer"]),
        ({"listener": "blue"}, [], ["no listener", "zz", "no answer"]),
        ({"listener": "blue"}, ["red", "green", ""], ["'blue'", "'green', 'red'", "zz", "403"]),
        ({"address": "10.0.0.1"}, ["red", "green"], ["'green', 'red'", "zz", "403"]),
    ],
)
def test_a_listener_that_does_not_exist_is_warned_of(
    machine: dict[str, Any], listeners: list[str], words: list[str]
) -> None:
    wanted = msgspec.convert({"machine": [{"name": "zz", **machine}]}, fleet_file.Fleet)
    applied = fleet_file.apply(World(), wanted, prune=False, mint=mint("d"))
    told = views.fleet_change(applied, dry_run=True, listeners=listeners).warnings
    assert len(told) == bool(words)
    assert [word for word in words if word not in told[0]] == []


# The schema.


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


def faults(described: Any, shape: Any, value: Any) -> list[str]:
    """Return what a schema of the document refuses of a value."""
    judge = Draft202012Validator({**shape, "components": described["components"]})
    return [f"{error.instance_path}: {error.message}" for error in judge.iter_errors(value)]


BODIES: dict[str, Any] = yaml.load(
    Path(__file__).with_name("bodies.yaml").read_text(encoding="utf-8"), Text
)
"""A body for each route that takes one."""


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
            assert faults(described, shape, {"no such field": 1}), name
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


# Guests' loop.


class OffLoop(dict[str, Any]):
    """Values that no code may look through on the loop's thread."""

    def __init__(self, known: Mapping[str, Any]) -> None:
        super().__init__(known)
        self.loops = threading.get_ident()

    def values(self) -> Any:
        assert threading.get_ident() != self.loops
        return super().values()


BESIDE = (
    *("/v1/fleet/machines", "/v1/fleet/machines?host=h0", "/v1/fleet/machines/web-0"),
    *("/v1/fleet/scopes", "/v1/fleet/scopes/web", "/v1/events", "/v1/holds", "/v1/maintenances/1"),
    *("/machines", "/machines/web-0", "/holds"),
    *("/orders/hold?reference=everything", "/orders/hold?reference=host%20h0"),
)


def test_a_list_of_operators_is_made_beside_the_loop_of_guests(tmp_path: Path) -> None:
    wanted = settings_in(tmp_path, listen="127.0.0.1:0")
    with Running(wanted, InMemoryStore(), ManualClock(NOON)) as running:
        client = running.client()
        client.ask("PUT", "/v1/fleet", fleet())
        request_reboot(client, machines=[], scopes=["web"])
        client.ask("POST", "/v1/holds", {"kind": "everything"})

        async def guard() -> None:
            inventory = running._service._backend.inventory
            inventory.operations = OffLoop(inventory.operations)
            inventory.machines = OffLoop(inventory.machines)

        asyncio.run_coroutine_threadsafe(guard(), running._loop).result()
        assert {path: client.ask("GET", path).status for path in BESIDE} == dict.fromkeys(
            BESIDE, 200
        )


def test_what_operators_ask_takes_no_thread_from_the_service(tmp_path: Path) -> None:
    store = Stuck()
    with Running(settings_in(tmp_path), store, ManualClock(NOON)) as running:
        client = running.client()
        client.ask("PUT", "/v1/fleet", fleet())
        store.stick()
        tail, loop = running._service._backend.news, running._loop
        following = [asyncio.run_coroutine_threadsafe(tail.after(0), loop) for _ in range(40)]
        history = ("GET", "/v1/history")
        asking = [threading.Thread(target=client.ask, args=history) for _ in range(40)]
        for each in asking:
            each.start()
        for _ in range(routing.READERS):
            assert store.asked.acquire(timeout=patience.SECONDS)
        # Its heartbeat, the relays' and programs' ends are on the loop's own threads.
        free = asyncio.run_coroutine_threadsafe(asyncio.to_thread(int), loop)
        assert free.result(patience.SECONDS) == 0
        assert client.ask("GET", "/v1/clock").status == 200
        store.answers.set()
        assert all(each.result(patience.SECONDS).told for each in following)
        for each in asking:
            each.join()


def test_an_account_sends_one_large_body_at_a_time(client: Client) -> None:
    with contextlib.closing(client._connection()) as first, ThreadPoolExecutor(1) as other:
        first.putrequest("PUT", "/v1/fleet?dry_run=true")
        first.putheader("Content-Type", "application/json")
        first.putheader("Content-Length", "2")
        first.endheaders(b"{")
        client.get("/v1/clock")
        second = other.submit(client.ask, "PUT", "/v1/fleet", fleet())
        for _ in range(20):
            client.get("/v1/clock")
        assert not second.done()  # or the memory of several fleets would be a viewer's to take
        first.send(b"}")
        assert (first.getresponse().status, second.result().status) == (200, 200)


async def test_of_an_accounts_unread_large_answers_one_is_in_memory() -> None:
    accounts, made = auth.Accounts(), list[str]()
    read, lost = asyncio.Event(), [asyncio.Future[None]() for _ in range(3)]

    async def whole(request: Request) -> Response:
        made.append(auth.request_of(request.scope).request)
        return Response(bytes(application.LARGE_BYTES + 1))

    path = application.RoutedPath({"GET": table.Route(whole, "GET", "/v1/fleet", None)})

    async def send(_: object) -> None:
        await read.wait()

    async def ask(place: int) -> None:
        caller = OperatorRequest(by="ann", role=None, address="", action="", request=str(place))
        scope = {"type": "http", "method": "GET", "path": "/v1/fleet", "headers": ()}
        scope |= {"query_string": b"", "state": {auth.LOST: lost[place]}, auth.REQUEST: caller}
        scope |= {table.BACKEND: SimpleNamespace(accounts=accounts), table.PAGE_CONTEXT: None}
        await path(scope, table.read_body, send)

    asking = [asyncio.create_task(ask(place)) for place in range(3)]
    await patience.settled()
    lost[1].set_result(None)  # the second is not made again
    read.set()
    await asyncio.gather(*asking)
    assert made == ["0", "1", "2", "2"]
    assert not accounts._locks
