"""`forewarn store copy`, and `restore-check` for PostgreSQL."""

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from builders import FLEET, mint
from forewarn.cli import main
from forewarn.cli.exits import ExitStatus
from forewarn.clock import SystemClock
from forewarn.control.changefeed import Changefeed
from forewarn.control.plane import Plane
from forewarn.control.writer import Writer
from forewarn.maintenance.model import Changes, HoldKind
from forewarn.maintenance.planner import Request
from forewarn.store import postgresql, schema, sqlite
from forewarn.store.port import HistoryQuery
from forewarn.store.queries import Reading
from forewarn.store.sql import Store
from forewarn.vocabulary import EventStatus, EventType
from store.conformance_outbox import append_alone, replica
from store.engines import NEEDS_POSTGRESQL, server
from store.values import NOW, drain, hold, operation, tombstone, with_maintenances

pytestmark = NEEDS_POSTGRESQL


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A fleet with live events, a history, and one of everything else."""
    path = tmp_path / "forewarn.db"
    store = sqlite.open_store(path)
    plane = Plane(Writer(store, SystemClock(), Changefeed()), mint("b"))
    plane.apply_fleet(FLEET).result()
    plane.request(Request(event_type=EventType.REBOOT, machines=("web-0",))).result()
    over = {"status": EventStatus.COMPLETED, "ended_at": NOW}
    with store.write() as transaction:
        transaction.save(with_maintenances(operation("7.1", **over), operation("7.2", **over)))
        apart = Changes(
            holds=(hold(HoldKind.HOST, "h9"),), tombstones=(tombstone("b"),), drains=(drain("h9"),)
        )
        transaction.save(apart)
        transaction.put_setting("a", "b")
    append_alone(store, "token")
    store.beat(replica("r1"))
    store.close()
    return path


@pytest.fixture
def url() -> Iterator[str]:
    yield server().create_database("copied")
    server().drop_database("copied")


def everything(reading: Reading) -> dict[str, object]:
    return {
        "scopes": reading.scopes(),
        "machines": reading.machines(),
        "live": reading.live_operations(),
        "history": reading.history(HistoryQuery()),
        "maintenances": reading.latest_maintenances(None, 100),
        "holds": reading.holds(),
        "tombstones": reading.tombstones(),
        "drains": reading.drains(),
        "setting": reading.setting("a"),
        "position": reading.position(),
        "changes": reading.changes_after(0, 100),
        "news": reading.news_after(0, 100),
        "replicas": reading.replicas(),
    }


def looked_at(store: Store) -> dict[str, object]:
    with store.read() as reading:
        found = everything(reading)
    store.close()
    return found


def test_everything_is_copied_and_goes_on_with_its_numbers(
    database: Path, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.execute(["store", "copy", str(database), url, "--json"]) == ExitStatus.OK
    shown = capsys.readouterr()
    told = json.loads(shown.out)
    assert told["scopes"] == 5
    assert told["live_operations"] == 1
    assert told["rows"] > 20
    assert {line.partition(":")[0] for line in shown.err.splitlines()} <= set(schema.TABLES)
    before = looked_at(sqlite.open_store(database))
    assert looked_at(postgresql.open_store(url)) == before
    copied = postgresql.open_store(url)
    with copied.write() as transaction:
        number = transaction.next_maintenance_number()
        assert number == 8
        transaction.save(with_maintenances(operation("8.1"), operation("8.2")))
        latest = transaction.history(HistoryQuery(limit=100)).operations
        assert {"8.1", "8.2", "7.1"} <= {one.id for one in latest}
        last = transaction.position().sequence
    assert append_alone(copied, "next").sequence == last + 1 > 1
    copied.close()


def test_a_database_that_is_not_empty_is_left_as_it_is(
    database: Path, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    store = postgresql.open_store(url)
    with store.write() as transaction:
        transaction.put_setting("x", "y")
    assert main.execute(["store", "copy", str(database), url]) == ExitStatus.UNAVAILABLE
    assert "not empty" in capsys.readouterr().err
    with store.read() as reading:
        assert reading.scopes() == {}
        assert reading.setting("x") == "y"
    store.close()


def test_a_copy_that_fails_half_way_leaves_nothing(database: Path, url: str) -> None:
    postgresql.open_store(url).close()
    server().sql("ALTER TABLE operations ADD CHECK (id <> '7.2')", "copied")
    assert main.execute(["store", "copy", str(database), url]) != ExitStatus.OK
    store = postgresql.open_store(url)
    with store.read() as reading:
        assert reading.scopes() == reading.drains() == {}
        assert reading.position().sequence == 0
    store.close()


def test_nothing_is_copied_while_a_service_runs_on_either_side(
    database: Path, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    old = sqlite.open_store(database)
    assert main.execute(["store", "copy", str(database), url]) == ExitStatus.UNAVAILABLE
    assert "in use by another process" in capsys.readouterr().err
    old.close()
    new = postgresql.open_store(url)
    member = new.join("r1")
    for command in (["store", "copy", str(database), url], ["restore-check", url]):
        assert main.execute(command) == ExitStatus.UNAVAILABLE
        assert "stop every replica" in capsys.readouterr().err
    member.close()
    assert main.execute(["store", "copy", str(database), url]) == ExitStatus.OK
    new.close()


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["{file}", "{file}2"], ExitStatus.USAGE),
        (["{file}2", "{url}"], ExitStatus.NOT_FOUND),
        (["{file}", "postgresql://postgres@127.0.0.1:1/x"], ExitStatus.UNAVAILABLE),
    ],
)
def test_what_cannot_be_copied_is_told_in_one_line(
    database: Path,
    url: str,
    words: list[str],
    status: ExitStatus,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = [word.format(file=database, url=url) for word in words]
    assert main.execute(["store", "copy", *given]) == status
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_incarnations_of_a_restored_postgresql_are_raised(
    database: Path, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.execute(["store", "copy", str(database), url]) == ExitStatus.OK
    capsys.readouterr()
    assert main.execute(["restore-check", url, "--by", "7", "--json"]) == ExitStatus.OK
    assert json.loads(capsys.readouterr().out) == {"scopes": 5, "raised_by": 7, "highest": 8}
    found = looked_at(postgresql.open_store(url))
    before = looked_at(sqlite.open_store(database))
    raised = found["scopes"]
    assert isinstance(raised, dict)
    assert isinstance(before["scopes"], dict)
    assert raised == {
        key: msgspec.structs.replace(scope, incarnation=scope.incarnation + 7)
        for key, scope in before["scopes"].items()
    }
