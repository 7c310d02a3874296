"""Each verb of an operator, by the API, at the command line and by a form of the page.

What the rules make of a verb is proved below, without a service. Here each surface reaches the
plane with what was said, leaves the same record, and refuses with the same code.
"""

import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import patience
from forewarn.cli.exits import ExitStatus
from forewarn.clock import ManualClock
from forewarn.store.sqlite import InMemoryStore
from server.running import (
    ME,
    Answer,
    Cli,
    Client,
    Running,
    end,
    request_reboot,
    settings_in,
    under_way,
)

Given = Callable[[Running, Client], object]

FORM = {"Content-Type": "application/x-www-form-urlencoded"}
LATER = "2026-03-01T13:00:00Z"
WEB = {"kind": "scope", "name": "web", "reason": "release day"}
HELD = {
    **WEB,
    "by": ME,
    "at": "2026-03-01T12:00:00Z",
    "until": LATER,
    "operations": {"count": 1, "names": ["1.1"]},
}


@pytest.fixture
def service(tmp_path: Path, clock: ManualClock) -> Iterator[Running]:
    """A service with its page."""
    with Running(settings_in(tmp_path, listen="127.0.0.1:0"), InMemoryStore(), clock) as running:
        yield running


def nothing(service: Running, client: Client) -> None:
    """Leave the fleet alone."""


def asked(service: Running, client: Client) -> None:
    request_reboot(client)


def queued(service: Running, client: Client) -> None:
    for name in ("web-0", "web-1"):
        request_reboot(client, machines=[name])


def walk(service: Running, client: Client) -> None:
    """Ask for a scope: each update domain has its turn."""
    ordered(client, "POST", "/v1/maintenances", {"event_type": "Reboot", "scopes": ["web"]}, 201)


def held(service: Running, client: Client) -> None:
    request_reboot(client)
    ordered(client, "POST", "/v1/holds", WEB, 201)


def paused(service: Running, client: Client) -> None:
    walk(service, client)
    ordered(client, "POST", "/v1/maintenances/1/orders", {"order": "pause"})


def skipped(service: Running, client: Client) -> None:
    walk(service, client)
    ordered(client, "POST", "/v1/maintenances/1/orders", {"order": "skip", "unit": "web/2"})


def failed(service: Running, client: Client) -> None:
    """Let 1.1 fail; its machine is not back."""
    service.guests.saw("web-0")
    request_reboot(client)
    end(service, client, "1.1", well=False)


def doubtful(service: Running, client: Client) -> None:
    request_reboot(client)
    attempt = under_way(client, "1.1")
    service.plane.report_unknown("1.1", attempt, "its result was lost").result()


def draining(service: Running, client: Client) -> None:
    ordered(client, "POST", "/v1/hosts/drain", {"hosts": ["h1"]})
    patience.until(lambda: len(client.get("/v1/events")["events"]) == 2)


def stuck(service: Running, client: Client) -> None:
    """Get the drain of h1 stuck: an operator cancels the move of web-1."""
    ordered(client, "POST", "/v1/hosts/drain", {"hosts": ["h1"], "reboot": True})
    moves = patience.until(lambda: client.get("/v1/events?machine=web-1")["events"])
    ordered(client, "POST", "/v1/cancellations", {"references": [moves[0]["operation"]]})
    patience.eventually(lambda: host(client), "stuck")


def ordered(client: Client, method: str, path: str, body: Any, status: int = 200) -> None:
    answer = client.ask(method, path, body)
    assert answer.status == status, answer.body


def history(client: Client) -> Any:
    (operation,) = client.get("/v1/history?maintenance=1")["operations"][:1]
    return operation


def host(client: Client) -> Any:
    return client.get("/v1/hosts/h1")["host"]["status"]


def alerts(client: Client) -> Any:
    return client.get("/v1/alerts")["count"]


def state(client: Client) -> Any:
    return client.get("/v1/maintenances/1")["maintenance"]["status"]


def unit(client: Client) -> Any:
    return client.get("/v1/maintenances/1")["units"][2]["status"]


Call = tuple[str, str, Any]
"""Method, path and body of a request to the API."""


def post(path: str, *references: str, **body: Any) -> Call:
    return "POST", f"/v1/{path}", {**({"references": references} if references else {}), **body}


def delete(path: str) -> Call:
    return "DELETE", f"/v1/{path}", None


STEER, STEER_DRAIN = "maintenances/1/orders", "hosts/h1/orders"


class Verb(NamedTuple):
    """A verb as each surface has it, and what comes of it."""

    given: Given
    call: Call
    line: str
    """The command, without its program."""
    form: str
    """The order of the page and the fields of its form; `""` if the page does not have it."""
    leads: str
    """Where the page leads after it."""
    says: str
    """What the command prints."""
    detail: str
    """What the audit log tells."""
    seen: Callable[[Client], object]
    expected: object


VERBS = {
    "schedule": Verb(
        nothing,
        post("maintenances", event_type="Reboot", machines=["web-0"]),
        "schedule reboot web-0",
        "?event_type=Reboot&machines=web-0&action=start",
        *("/maintenance/1", "1.1", "maintenance 1: Reboot of web-0"),
        *(lambda client: history(client)["status"], "Scheduled"),
    ),
    "approve": Verb(
        asked,
        post("approvals", "1.1"),
        "approve 1.1",
        "approve?reference=1.1",
        *("/maintenance/1", "1.1 Reboot of web-0: Started", "1.1"),
        *(lambda client: history(client)["events"][0]["approval"]["by"], ME),
    ),
    "cancel": Verb(
        asked,
        post("cancellations", "1", reason="wrong host"),
        "cancel 1 --reason 'wrong host'",
        "cancel?reference=1&reason=wrong+host",
        *("/maintenance/1", "1.1 Reboot of web-0: Canceled", "1: wrong host"),
        *(lambda client: history(client)["outcome"], f"cancelled by {ME}: wrong host"),
    ),
    "postpone": Verb(
        asked,
        post("postponements", "1", not_before=LATER),
        "postpone 1 +1h",
        "postpone?reference=1&not_before=%2B1h",
        *("/maintenance/1", "13:00", "1 to 13:00Z"),
        *(lambda client: history(client)["not_before"], LATER),
    ),
    "hold": Verb(
        asked,
        post("holds", **{**WEB, "name": "WEB", "until": LATER}),
        "hold scope WEB --reason 'release day' --until +1h",
        "hold?reference=scope+WEB&reason=release+day&until=%2B1h",
        *("/machines?scope=WEB", "scope WEB is held until", "scope WEB until 13:00Z: release day"),
        *(lambda client: client.get("/v1/holds")["holds"], [HELD]),
    ),
    "release": Verb(
        held,
        delete("holds?kind=scope&name=web"),
        "release scope web",
        "release?reference=scope+web",
        *("/machines?scope=web", "1.1 Reboot of web-0: Scheduled", "scope web"),
        *(lambda client: client.get("/v1/holds")["holds"], []),
    ),
    "acknowledge": Verb(
        failed,
        post("acknowledgements", "1", even_if_down=True),
        "acknowledge 1 --even-if-down",
        "acknowledge?reference=1&even_if_down=yes",
        *("/maintenance/1", "1.1 Reboot of web-0: Failed", "1, even if down"),
        *(lambda client: (history(client)["acknowledged_by"], alerts(client)), (ME, 0)),
    ),
    "resolve": Verb(
        doubtful,
        post("resolutions", "1", verdict="failed"),
        "resolve 1 failed",
        "resolve?reference=1&verdict=failed",
        *("/maintenance/1", "1.1 Reboot of web-0: Failed", "1: failed"),
        *(lambda client: history(client)["outcome_unknown"], ""),
    ),
    "pause": Verb(
        walk,
        post(STEER, order="pause"),
        "maintenance pause 1",
        "pause?reference=1",
        *("/maintenance/1", "maintenance 1 is paused by ", "pause of maintenance 1"),
        *(state, "paused"),
    ),
    "resume": Verb(
        paused,
        post(STEER, order="resume"),
        "maintenance resume 1",
        "resume?reference=1",
        *("/maintenance/1", "maintenance 1 is running", "resume of maintenance 1"),
        *(state, "running"),
    ),
    "stop": Verb(
        walk,
        post(STEER, order="stop"),
        "maintenance stop 1",
        *("", "", "maintenance 1 is stopped by ", "stop of maintenance 1"),
        *(lambda client: (state(client), client.get("/v1/events")["events"]), ("stopped", [])),
    ),
    "skip": Verb(
        walk,
        post(STEER, order="skip", unit="web/2"),
        "maintenance skip 1 web/2",
        "skip?reference=1&unit=web/2",
        *("/maintenance/1", "web/2 is skipped", "skip web/2 of maintenance 1"),
        *(unit, "skipped"),
    ),
    "retry": Verb(
        skipped,
        post(STEER, order="retry", unit="web/2"),
        "maintenance retry 1 web/2",
        "retry?reference=1&unit=web/2",
        *("/maintenance/1", "web/2 is waiting", "retry web/2 of maintenance 1"),
        *(unit, "waiting"),
    ),
    "drain": Verb(
        nothing,
        post("hosts/drain", hosts=["h1"], reboot=True),
        "host drain h1 --reboot",
        "drain?reference=host+h1&reboot=yes",
        *("/machines?host=h1", "draining", "h1"),
        *(host, "draining"),
    ),
    "undrain": Verb(
        draining,
        post(STEER_DRAIN, order="undrain"),
        "host undrain h1",
        "reopen?reference=host+h1",
        *("/machines?host=h1", "up", "undrain in the drain of h1"),
        *(host, "up"),
    ),
    "return": Verb(
        stuck,
        post(STEER_DRAIN, order="return"),
        "host return h1",
        "bring-home?reference=host+h1",
        *("/machines?host=h1", "h1", "return in the drain of h1"),
        *(lambda client: client.get("/v1/hosts/h1")["host"]["closed"], False),
    ),
    "retry the drain": Verb(
        stuck,
        post(STEER_DRAIN, order="retry"),
        "host retry h1",
        "retry-drain?reference=host+h1",
        *("/machines?host=h1", "draining", "retry in the drain of h1"),
        *(host, "draining"),
    ),
    "skip a machine": Verb(
        stuck,
        post(STEER_DRAIN, order="skip", machine="web-1"),
        "host skip h1 web-1",
        *("", "", "h1", "skip web-1 in the drain of h1"),
        *(lambda client: host(client) in {"draining", "stuck"}, True),
    ),
    "stop a machine": Verb(
        stuck,
        post(STEER_DRAIN, order="stop", machine="web-1"),
        "host stop h1 web-1",
        *("", "", "h1", "stop web-1 in the drain of h1"),
        *(lambda client: host(client) == "stuck", False),
    ),
    "remove": Verb(
        nothing,
        delete("fleet/machines?name=WEB-0"),
        "fleet remove WEB-0",
        *("", "", "1 removed: web-0", "removed web-0"),
        *(lambda client: client.ask("GET", "/v1/fleet/machines/web-0").status, 404),
    ),
}


def sent(client: Client, form: str) -> Answer:
    """Send a form of the page."""
    order, _, fields = form.partition("?")
    path = f"/page/orders/{order}" if order else "/page/maintenance"
    return client.ask("POST", path, fields.encode(), FORM)


@pytest.mark.parametrize("surface", ["api", "cli", "page"])
@pytest.mark.parametrize("name", VERBS)
def test_each_verb_does_the_same_on_each_surface(
    service: Running, client: Client, cli: Cli, name: str, surface: str
) -> None:
    verb = VERBS[name]
    if surface == "page" and not verb.form:
        return
    verb.given(service, client)
    if surface == "api":
        answer = client.ask(*verb.call)
        assert answer.status in {200, 201}, answer.body
    elif surface == "cli":
        status, printed, said = cli(*shlex.split(verb.line))
        assert status == ExitStatus.OK, said
        assert verb.says in printed
    else:
        answer = sent(client, verb.form)
        assert (answer.status, answer.headers["Location"]) == (303, verb.leads), answer.body
    patience.eventually(lambda: verb.seen(client), verb.expected)
    (record, *_) = client.get("/v1/audit?limit=1")["records"]
    assert (record["by"], record["outcome"], record["detail"]) == (ME, "done", verb.detail)


class Refusal(NamedTuple):
    """A verb that each surface refuses for the same reason."""

    given: Given
    call: Call
    line: str
    form: str
    status: int


REASONS = {
    404: ("not-found", ExitStatus.NOT_FOUND),
    409: ("conflict", ExitStatus.REFUSED),
    422: ("notice-too-short", ExitStatus.REFUSED),
}
SOON = {"event_type": "Reboot", "machines": ["web-0"], "not_before": "2026-03-01T12:01:00Z"}

REFUSALS = {
    "schedule of a stranger": Refusal(
        nothing,
        post("maintenances", event_type="Reboot", machines=["web-9"]),
        "schedule reboot web-9",
        "?event_type=Reboot&machines=web-9&action=start",
        404,
    ),
    "schedule too soon": Refusal(
        nothing,
        post("maintenances", **SOON),
        "schedule reboot web-0 --not-before +1m",
        "?event_type=Reboot&machines=web-0&not_before=%2B1m&action=start",
        422,
    ),
    "approve one of two": Refusal(
        *(asked, post("approvals", "1.1", "7.7"), "approve 1.1 7.7"),
        *("approve?reference=1.1&reference=7.7", 404),
    ),
    "approve what is queued": Refusal(
        *(queued, post("approvals", "2.1"), "approve 2.1", "approve?reference=2.1", 409),
    ),
    "cancel what is not there": Refusal(
        *(asked, post("cancellations", "9"), "cancel 9", "cancel?reference=9", 404),
    ),
    "postpone to an earlier time": Refusal(
        *(asked, post("postponements", "1.1", not_before="2026-03-01T12:10:00Z")),
        *("postpone 1.1 +10m", "postpone?reference=1.1&not_before=%2B10m", 422),
    ),
    "hold what is held": Refusal(
        *(held, post("holds", **WEB), "hold scope web", "hold?reference=scope+web", 409),
    ),
    "hold what is not there": Refusal(
        *(nothing, post("holds", kind="scope", name="nope"), "hold scope nope"),
        *("hold?reference=scope+nope", 404),
    ),
    "release what is not held": Refusal(
        *(nothing, delete("holds?kind=scope&name=web"), "release scope web"),
        *("release?reference=scope+web", 404),
    ),
    "acknowledge what goes on": Refusal(
        *(asked, post("acknowledgements", "1.1"), "acknowledge 1.1"),
        *("acknowledge?reference=1.1", 409),
    ),
    "acknowledge what is down": Refusal(
        *(failed, post("acknowledgements", "1"), "acknowledge 1", "acknowledge?reference=1", 409),
    ),
    "resolve what is known": Refusal(
        *(asked, post("resolutions", "1.1", verdict="succeeded"), "resolve 1.1 succeeded"),
        *("resolve?reference=1.1&verdict=succeeded", 409),
    ),
    "resume what goes on": Refusal(
        *(walk, post(STEER, order="resume"), "maintenance resume 1", "resume?reference=1", 409),
    ),
    "pause what is not there": Refusal(
        *(nothing, post(STEER, order="pause"), "maintenance pause 1", "pause?reference=1", 404),
    ),
    "retry of what waits": Refusal(
        *(walk, post(STEER, order="retry", unit="web/1"), "maintenance retry 1 web/1"),
        *("retry?reference=1&unit=web/1", 409),
    ),
    "skip of a stranger": Refusal(
        *(walk, post(STEER, order="skip", unit="web/9"), "maintenance skip 1 web/9"),
        *("skip?reference=1&unit=web/9", 404),
    ),
    "drain of a stranger": Refusal(
        *(nothing, post("hosts/drain", hosts=["h9"]), "host drain h9"),
        *("drain?reference=host+h9", 404),
    ),
    "undrain of what was not drained": Refusal(
        *(nothing, post(STEER_DRAIN, order="undrain"), "host undrain h1"),
        *("reopen?reference=host+h1", 404),
    ),
    "retry of a drain that goes on": Refusal(
        *(draining, post(STEER_DRAIN, order="retry"), "host retry h1"),
        *("retry-drain?reference=host+h1", 409),
    ),
    "skip of a machine of another host": Refusal(
        *(stuck, post(STEER_DRAIN, order="skip", machine="web-2"), "host skip h1 web-2", "", 404),
    ),
    "remove one of two": Refusal(
        *(nothing, delete("fleet/machines?name=web-0&name=nope"), "fleet remove web-0 nope"),
        *("", 404),
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_each_surface_refuses_with_the_same_code_and_nothing_changes(
    service: Running, client: Client, cli: Cli, name: str
) -> None:
    refusal = REFUSALS[name]
    refusal.given(service, client)
    code, exit_status = REASONS[refusal.status]
    before = changed(client)
    answer = client.ask(*refusal.call)
    assert (answer.status, answer.error["code"]) == (refusal.status, code)
    status, printed, said = cli(*shlex.split(refusal.line))
    assert (status, printed, len(said.splitlines())) == (exit_status, "", 1), said
    if refusal.form:
        page = sent(client, refusal.form)
        assert page.status == refusal.status, page.body
        assert 'role="alert"' in page.body.decode()
    assert changed(client) == before


def changed(client: Client) -> object:
    """Return what these verbs may change."""
    places = ("history", "maintenances", "holds", "hosts", "fleet/machines")
    return [{**client.get(f"/v1/{place}"), "now": ""} for place in places]
