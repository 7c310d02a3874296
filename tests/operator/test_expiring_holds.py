"""Holds with an end, over the API and at the command line."""

from datetime import datetime, time, timedelta

import pytest

import patience
from forewarn import times
from forewarn.cli.exits import ExitStatus
from forewarn.clock import ManualClock
from server.running import ME, NOON, Cli, Client


def until(client: Client) -> datetime | None:
    (hold,) = client.get("/v1/holds")["holds"]
    return hold["until"] and datetime.fromisoformat(hold["until"])


def test_a_hold_is_listed_with_its_end_and_gone_then(client: Client, clock: ManualClock) -> None:
    body = {"kind": "scope", "name": "web", "until": "2026-03-01T14:00:00+01:00"}
    assert client.ask("POST", "/v1/holds", body).status == 201
    assert until(client) == NOON + timedelta(hours=1)
    clock.advance(timedelta(hours=1))
    patience.until(lambda: client.get("/v1/holds")["holds"] == [])
    ended, held, *_ = client.get("/v1/audit")["records"]
    assert (ended["deed"], ended["detail"]) == ("expire", "scope web")
    assert ended["by"] == held["by"] == ME


@pytest.mark.parametrize(
    ("given", "ends"),
    [
        ("+2h", NOON + timedelta(hours=2)),
        ("2026-03-01T18:00:00Z", NOON + timedelta(hours=6)),
        ("11:00", times.next_time_of_day(time(11), NOON)),
    ],
)
def test_an_end_is_typed_as_a_time_a_span_or_a_time_of_day(
    cli: Cli, client: Client, given: str, ends: datetime
) -> None:
    status, out, _ = cli("hold", "scope", "web", "--until", given)
    assert status == ExitStatus.OK
    assert "until" in out
    assert until(client) == ends
    assert "UNTIL" in cli("hold", "list")[1]


def test_an_end_that_has_passed_is_refused_and_said_where(cli: Cli, client: Client) -> None:
    status, _, err = cli("hold", "everything", "--until", "-1m")
    assert status == ExitStatus.USAGE
    assert "--until" in err
    assert client.get("/v1/holds")["holds"] == []
