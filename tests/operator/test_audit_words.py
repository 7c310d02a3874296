"""The audit log in words: what was done and what was refused, with its subject and reason."""

from pathlib import Path

import pytest

from forewarn.cli.exits import ExitStatus
from forewarn.clock import ManualClock
from forewarn.maintenance.accounts import WORDS, AuditRecord, Deed, summary
from forewarn.server.operator import administration
from forewarn.server.operator.table import API
from forewarn.store.sqlite import InMemoryStore
from forewarn.vocabulary import AccessRole
from server.running import NOON, Cli, Client, Running, settings_in


def said(client: Client, query: str = "") -> list[str]:
    return [one["summary"] for one in client.get(f"/v1/audit{query}")["records"]]


def record(deed: str, detail: str = "", outcome: str = "done") -> AuditRecord:
    return AuditRecord(
        at=NOON,
        by="ann",
        role=AccessRole.OPERATOR,
        address="::1",
        action="POST /v1/things",
        deed=deed,
        detail=detail,
        outcome=outcome,
        request="1",
    )


def test_each_change_is_told_by_its_subject_and_its_reason(client: Client) -> None:
    reboot = {"event_type": "Reboot", "machines": ["web-0"]}
    assert client.ask("POST", "/v1/maintenances", reboot).status == 201
    later = {"references": ["1"], "not_before": "2026-03-01T14:23:10Z"}
    assert client.ask("POST", "/v1/postponements", later).status == 200
    hold = {"kind": "scope", "name": "web", "reason": "backup"}
    assert client.ask("POST", "/v1/holds", hold).status == 201
    assert client.ask("DELETE", "/v1/holds?kind=scope&name=web").status == 200
    cancel = {"references": ["1"], "reason": "not today"}
    assert client.ask("POST", "/v1/cancellations", cancel).status == 200
    assert said(client)[:5] == [
        "cancelled 1: not today",
        "released scope web",
        "held scope web: backup",
        "postponed 1 to 14:23Z",
        "asked for maintenance 1: Reboot of web-0",
    ]


def test_what_is_refused_is_told_by_its_subject(client: Client, service: Running) -> None:
    reboot = {"event_type": "Reboot", "machines": ["web-0"]}
    for status in (201, 409):
        assert client.ask("POST", "/v1/maintenances", reboot).status == status
    assert client.ask("DELETE", "/v1/holds?kind=scope&name=web").status == 404
    service.plane.probe().result()  # a refusal is recorded while its answer is on the way
    assert said(client)[:2] == ["refused: release scope web", "refused: Reboot of web-0"]


@pytest.mark.parametrize("deed", Deed)
def test_each_kind_has_words(deed: Deed) -> None:
    done = summary(record(deed, "x"))
    assert done.endswith(" x")
    assert summary(record(deed, "x", "forbidden")) != done
    assert "/v1" not in done


def test_a_request_that_is_refused_early_is_told_by_its_handlers_name() -> None:
    assert summary(record("hold", outcome="forbidden")) == "refused: hold"
    assert summary(record("", outcome="unauthorized")) == "refused: POST /v1/things"
    handlers = {route.handler.__name__ for route in API.routes if route.method != "GET"}
    pages = {Deed.LOG_IN, Deed.LOG_OUT, Deed.LOG_IN_LINK, Deed.EXPIRE}
    assert handlers - {administration.create_page_token.__name__} == {*WORDS} - pages


def test_links_to_log_in_are_listed_if_asked_for(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, listen="127.0.0.1:0")
    with Running(settings, InMemoryStore(), ManualClock(NOON)) as running:
        client = running.client()
        assert client.ask("POST", "/v1/tokens/page", {}).status == 201
        assert said(client) == []
        (told,) = said(client, "?logins=true")
        assert told.startswith("made a link to log in:")


def test_the_command_line_shows_the_words(cli: Cli) -> None:
    assert cli("hold", "everything", "--reason", "storm")[0] == ExitStatus.OK
    status, out, _ = cli("audit", "--logins")
    assert status == ExitStatus.OK
    assert "held everything: storm" in out
