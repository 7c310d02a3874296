"""`forewarn store copy`, and `restore-check`, of SQLite and of PostgreSQL.

After a restore no guest meets an incarnation again with other content.
"""

import contextlib
import json
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from builders import FLEET, mint
from forewarn.cli import main
from forewarn.cli.exits import ExitStatus
from forewarn.clock import SystemClock
from forewarn.control import outbox, tombstones
from forewarn.control.changefeed import Changefeed
from forewarn.control.plane import Plane
from forewarn.control.writer import Writer
from forewarn.maintenance.model import Changes, HoldKind
from forewarn.maintenance.planner import Request
from forewarn.maintenance.world import World
from forewarn.store import postgresql, schema, sqlite
from forewarn.store.port import HistoryQuery
from forewarn.store.queries import Reading
from forewarn.store.sql import Transaction
from forewarn.vocabulary import EventStatus, EventType
from store.engines import NEEDS_POSTGRESQL, server
from store.story import append_alone, replica
from store.values import NOW, drain, hold, operation, tombstone, with_maintenances

Capture = pytest.CaptureFixture[str]


@contextlib.contextmanager
def planned(path: Path, seed: str) -> Iterator[Plane]:
    store = sqlite.open_store(path)
    yield Plane(Writer(store, SystemClock(), Changefeed()), mint(seed))
    store.close()


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A fleet with live events."""
    with planned(tmp_path / "forewarn.db", "b") as plane:
        plane.apply_fleet(FLEET).result()
        plane.request(Request(event_type=EventType.REBOOT, machines=("web-0",))).result()
    return tmp_path / "forewarn.db"


@pytest.fixture
def full(database: Path) -> Path:
    """The same with a history, and one of everything else."""
    store = sqlite.open_store(database)
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
    return database


def restored(path: Path | str, *options: str) -> int:
    return main.execute(["restore-check", str(path), *options])


@contextlib.contextmanager
def read(place: Path | str) -> Iterator[Reading]:
    """Read a file of SQLite, or a database of PostgreSQL by its URL."""
    store = postgresql.open_store(place) if isinstance(place, str) else sqlite.open_store(place)
    with contextlib.closing(store), store.read() as reading:
        yield reading


def incarnations(place: Path | str) -> dict[str, int]:
    with read(place) as reading:
        return {key: scope.incarnation for key, scope in reading.scopes().items()}


# What is copied to PostgreSQL.


@pytest.fixture
def url() -> Iterator[str]:
    yield server().create_database("copied")
    server().drop_database("copied")


def everything(place: Path | str) -> list[object]:
    with read(place) as reading:
        kept = (reading.machines(), reading.live_operations(), reading.history(HistoryQuery()))
        over = (reading.latest_maintenances(None, 100), reading.tombstones())
        apart = (reading.holds(), reading.drains(), reading.setting("a"), reading.replicas())
        told = (reading.position(), reading.changes_after(0, 100), reading.news_after(0, 100))
        return [reading.scopes(), *kept, *over, *apart, *told]


@NEEDS_POSTGRESQL
def test_everything_is_copied_and_goes_on_with_its_numbers(
    full: Path, url: str, capsys: Capture
) -> None:
    assert main.execute(["store", "copy", str(full), url, "--json"]) == ExitStatus.OK
    shown = capsys.readouterr()
    told = json.loads(shown.out)
    assert told["scopes"] == 5
    assert told["live_operations"] == 1
    assert told["rows"] > 20
    assert {line.partition(":")[0] for line in shown.err.splitlines()} <= set(schema.TABLES)
    assert everything(url) == everything(full)
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


@NEEDS_POSTGRESQL
def test_a_copy_that_fails_half_way_leaves_nothing_and_one_that_is_not_empty_is_left_as_it_is(
    full: Path, url: str, capsys: Capture
) -> None:
    copied = ["store", "copy", str(full), url]
    postgresql.open_store(url).close()
    server().sql("ALTER TABLE operations ADD CONSTRAINT hard CHECK (id <> '7.2')", "copied")
    assert main.execute(copied) != ExitStatus.OK
    with read(url) as reading:
        assert reading.scopes() == reading.drains() == {}
        assert reading.position().sequence == 0
    server().sql("ALTER TABLE operations DROP CONSTRAINT hard", "copied")
    store = postgresql.open_store(url)
    with contextlib.closing(store), store.write() as transaction:
        transaction.put_setting("x", "y")
    assert main.execute(copied) == ExitStatus.UNAVAILABLE
    assert "not empty" in capsys.readouterr().err
    with read(url) as reading:
        assert (reading.scopes(), reading.setting("x")) == ({}, "y")


@NEEDS_POSTGRESQL
def test_nothing_is_copied_while_a_service_runs_on_either_side(
    full: Path, url: str, capsys: Capture
) -> None:
    old = sqlite.open_store(full)
    for command in (["store", "copy", str(full), url], ["restore-check", str(full)]):
        assert main.execute(command) == ExitStatus.UNAVAILABLE
        assert "in use by another process" in capsys.readouterr().err
    old.close()
    new = postgresql.open_store(url)
    member = new.join("r1")
    for command in (["store", "copy", str(full), url], ["restore-check", url]):
        assert main.execute(command) == ExitStatus.UNAVAILABLE
        assert "stop every replica" in capsys.readouterr().err
    member.close()
    assert main.execute(["store", "copy", str(full), url]) == ExitStatus.OK
    new.close()


@NEEDS_POSTGRESQL
def test_what_cannot_be_copied_is_told_in_one_line(full: Path, url: str, capsys: Capture) -> None:
    for source, target, status in (
        (str(full), f"{full}2", ExitStatus.USAGE),
        (f"{full}2", url, ExitStatus.NOT_FOUND),
        (str(full), "postgresql://postgres@127.0.0.1:1/x", ExitStatus.UNAVAILABLE),
    ):
        assert main.execute(["store", "copy", source, target]) == status
        assert len(capsys.readouterr().err.splitlines()) == 1, target


@NEEDS_POSTGRESQL
def test_the_incarnations_of_a_restored_postgresql_are_raised(
    full: Path, url: str, capsys: Capture
) -> None:
    assert main.execute(["store", "copy", str(full), url]) == ExitStatus.OK
    capsys.readouterr()
    assert main.execute(["restore-check", url, "--by", "7", "--json"]) == ExitStatus.OK
    assert json.loads(capsys.readouterr().out) == {"scopes": 5, "raised_by": 7, "highest": 8}
    assert incarnations(url) == {key: n + 7 for key, n in incarnations(full).items()}


# What a restored SQLite holds.


def test_every_incarnation_is_raised_by_as_much(database: Path, capsys: Capture) -> None:
    before = incarnations(database)
    assert before["web"] == 1
    assert restored(database) == ExitStatus.OK
    assert incarnations(database) == {key: n + 1_000_000 for key, n in before.items()}
    told = capsys.readouterr().out
    assert all(f" {number}" in told for number in (5, 1_000_000, 1_000_001))
    assert restored(database, "--by", "7", "--json") == ExitStatus.OK
    assert json.loads(capsys.readouterr().out) == {"scopes": 5, "raised_by": 7, "highest": 1000008}
    assert incarnations(database) == {key: n + 1_000_007 for key, n in before.items()}


def test_numbers_that_were_given_after_the_backup_are_not_given_again(database: Path) -> None:
    """Programs, and what is left of their runs, go by the numbers of operations."""

    def operations(**targets: tuple[str, ...] | str) -> list[str]:
        with planned(database, "c") as plane:
            asked = plane.request(Request(event_type=EventType.REBOOT, **targets))
            return [o.id for o in asked.result().operations]

    backup = database.read_bytes()
    assert operations(machines=("bastion",)) == ["2.1"]
    database.write_bytes(backup)
    with planned(database, "d") as plane:
        asked = Request(event_type=EventType.REBOOT, scope="batch")
        units = plane.request(asked).result().maintenance
    assert units.units
    assert restored(database) == ExitStatus.OK
    assert operations(machines=("web-1",)) == ["1003.1"]
    with read(database) as reading:
        assert reading.open_maintenances()[2].announced == units.announced + 1000


def crashed(database: Path) -> None:
    """Leave the database as a kill does: its last change, a scope less, is in the -wal alone."""
    store = sqlite.open_store(database)
    with store.write() as transaction:
        transaction.save(Changes(removed_machines=("bastion",), removed_scopes=("bastion",)))
    left = {end: database.with_name(database.name + end) for end in ("", "-wal", "-shm")}
    kept = {file: file.read_bytes() for file in left.values()}
    store.close()
    for file, content in kept.items():
        file.write_bytes(content)


def check_refused(database: Path, capsys: Capture) -> str:
    """Have it refused in one line, and see that it touches nothing; return the line."""
    before = {file.name: file.read_bytes() for file in database.parent.iterdir()}
    assert restored(database) == ExitStatus.UNAVAILABLE
    assert {file.name: file.read_bytes() for file in database.parent.iterdir()} == before
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("forewarn: ")
    return line


@pytest.mark.parametrize("end", ["-wal", "-journal"])
def test_changes_beside_the_file_are_told(database: Path, capsys: Capture, end: str) -> None:
    crashed(database)
    beside = database.with_name(f"forewarn.db{end}")
    database.with_name("forewarn.db-wal").rename(beside)
    said = check_refused(database, capsys)
    assert said.startswith(f"forewarn: {beside} holds changes")
    for advice in (f"move forewarn.db, forewarn.db{end} and", "--with-wal", "start the service"):
        assert advice in said


def test_a_wal_that_was_restored_with_the_file_is_taken_up_and_an_empty_one_is_no_obstacle(
    database: Path,
) -> None:
    before = database.read_bytes()
    crashed(database)
    assert restored(database, "--with-wal") == ExitStatus.OK
    assert "bastion" not in incarnations(database)
    assert incarnations(database)["web"] == 1_000_001
    database.write_bytes(before)
    crashed(database)
    database.with_name("forewarn.db-wal").write_bytes(b"")
    assert restored(database) == ExitStatus.OK
    assert incarnations(database)["bastion"] == 1_000_000


def test_a_mixture_of_two_states_is_told(database: Path, capsys: Capture) -> None:
    earlier = database.read_bytes()
    crashed(database)
    sqlite.open_store(database).close()
    with contextlib.closing(sqlite3.connect(database)) as connection:
        ((page,),) = connection.execute(
            "SELECT rootpage FROM sqlite_master WHERE tbl_name = 'state' AND type = 'index'"
        )
        ((size,),) = connection.execute("PRAGMA page_size")
    place = slice((page - 1) * size, page * size)
    mixed = bytearray(database.read_bytes())
    assert mixed[place] != earlier[place]
    mixed[place] = earlier[place]
    database.write_bytes(mixed)
    assert "damaged" in check_refused(database, capsys)


@pytest.mark.parametrize("content", ["cut short", "my notes, long enough to be something " * 10])
def test_what_is_no_whole_database_is_told(database: Path, capsys: Capture, content: str) -> None:
    left = database.read_bytes()[:-4096] if content == "cut short" else content.encode()
    database.write_bytes(left)
    check_refused(database, capsys)


def test_a_file_that_is_not_there_is_not_made(tmp_path: Path, capsys: Capture) -> None:
    missing = tmp_path / "none.db"
    assert restored(missing) == ExitStatus.NOT_FOUND
    assert str(missing) in capsys.readouterr().err
    assert not missing.exists()


def lives(transaction: Transaction, incarnation: int) -> None:
    web = msgspec.structs.replace(transaction.scopes()["web"], incarnation=incarnation)
    transaction.save(Changes(scopes=(web,)))


def retired(transaction: Transaction, incarnation: int) -> None:
    transaction.put_setting(tombstones.SETTING, f'{{"gone":{incarnation}}}')


@pytest.mark.parametrize("leave", [lives, retired])
def test_numbers_that_json_clients_cannot_read_are_refused(
    database: Path, capsys: Capture, leave: Callable[[Transaction, int], None]
) -> None:
    store = sqlite.open_store(database)
    with store.write() as transaction:
        leave(transaction, 2**53 - 10)
    store.close()
    assert restored(database, "--by", "10") == ExitStatus.REFUSED
    said = capsys.readouterr().err
    assert ("smaller --by" in said, str(2**53) in said) == (True, True)
    assert incarnations(database)["batch"] == 0
    assert restored(database, "--by", "9") == ExitStatus.OK
    with read(database) as reading:
        state = World(outbox.state_of(reading))
    assert tombstones.highest(state) == 2**53 - 1
