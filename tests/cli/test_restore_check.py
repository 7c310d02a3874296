"""`forewarn restore-check`: no guest meets an incarnation again with other content."""

import contextlib
import json
import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime
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
from forewarn.maintenance.model import Changes, Tombstone
from forewarn.maintenance.planner import Request
from forewarn.maintenance.world import World
from forewarn.store import sqlite
from forewarn.store.sql import Transaction
from forewarn.vocabulary import EventType


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "forewarn.db"
    store = sqlite.open_store(path)
    plane = Plane(Writer(store, SystemClock(), Changefeed()), mint("b"))
    plane.apply_fleet(FLEET).result()
    plane.request(Request(event_type=EventType.REBOOT, machines=("web-0",))).result()
    store.close()
    return path


def incarnations(path: Path) -> dict[str, int]:
    store = sqlite.open_store(path)
    with store.read() as reading:
        found = {key: scope.incarnation for key, scope in reading.scopes().items()}
    store.close()
    return found


def test_every_incarnation_is_raised_by_as_much(
    database: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = incarnations(database)
    assert before["web"] == 1
    assert main.execute(["restore-check", str(database)]) == ExitStatus.OK
    assert incarnations(database) == {key: n + 1_000_000 for key, n in before.items()}
    assert capsys.readouterr().out == (
        "Raised the incarnations of 5 scopes by 1000000; the highest is 1000001. "
        "The service may start.\n"
    )
    assert main.execute(["restore-check", str(database), "--by", "7", "--json"]) == ExitStatus.OK
    assert json.loads(capsys.readouterr().out) == {"scopes": 5, "raised_by": 7, "highest": 1000008}
    assert incarnations(database) == {key: n + 1_000_007 for key, n in before.items()}


def test_numbers_that_were_given_after_the_backup_are_not_given_again(database: Path) -> None:
    """Programs, and what is left of their runs, go by the numbers of operations."""

    def operations(machine: str) -> list[str]:
        store = sqlite.open_store(database)
        plane = Plane(Writer(store, SystemClock(), Changefeed()), mint("c"))
        asked = Request(event_type=EventType.REBOOT, machines=(machine,))
        made = [o.id for o in plane.request(asked).result().operations]
        store.close()
        return made

    backup = database.read_bytes()
    assert operations("bastion") == ["2.1"]
    database.write_bytes(backup)
    assert main.execute(["restore-check", str(database)]) == ExitStatus.OK
    assert operations("web-1") == ["1002.1"]


def test_operations_of_units_get_no_number_from_after_the_backup(database: Path) -> None:
    store = sqlite.open_store(database)
    plane = Plane(Writer(store, SystemClock(), Changefeed()), mint("d"))
    asked = Request(event_type=EventType.REBOOT, scope="batch")
    maintenance = plane.request(asked).result().maintenance
    assert maintenance.units
    store.close()
    assert main.execute(["restore-check", str(database)]) == ExitStatus.OK
    store = sqlite.open_store(database)
    with store.read() as reading:
        assert reading.open_maintenances()[2].announced == maintenance.announced + 1000
    store.close()


def test_a_database_that_a_service_has_open_is_refused(
    database: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    service = sqlite.open_store(database)
    assert main.execute(["restore-check", str(database)]) == ExitStatus.UNAVAILABLE
    assert "is in use by another process" in capsys.readouterr().err
    service.close()
    assert incarnations(database)["web"] == 1


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


def files(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.parametrize("end", ["-wal", "-journal"])
def test_changes_beside_the_file_are_told_and_nothing_is_touched(
    database: Path, capsys: pytest.CaptureFixture[str], end: str
) -> None:
    crashed(database)
    beside = database.with_name(f"forewarn.db{end}")
    database.with_name("forewarn.db-wal").rename(beside)
    before = files(database.parent)
    assert main.execute(["restore-check", str(database)]) == ExitStatus.UNAVAILABLE
    assert files(database.parent) == before
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith(f"forewarn: {beside} holds changes")
    for advice in (f"move forewarn.db, forewarn.db{end} and", "--with-wal", "start the service"):
        assert advice in said


def test_a_wal_that_was_restored_with_the_file_is_taken_up_where_that_is_said(
    database: Path,
) -> None:
    crashed(database)
    assert main.execute(["restore-check", str(database), "--with-wal"]) == ExitStatus.OK
    assert "bastion" not in incarnations(database)
    assert incarnations(database)["web"] == 1_000_001


def test_an_empty_wal_and_an_index_are_no_obstacle(database: Path) -> None:
    crashed(database)
    database.with_name("forewarn.db-wal").write_bytes(b"")
    assert main.execute(["restore-check", str(database)]) == ExitStatus.OK
    assert incarnations(database)["bastion"] == 1_000_000


def test_a_mixture_of_two_states_is_told_and_left_as_it_is(
    database: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
    assert main.execute(["restore-check", str(database)]) == ExitStatus.UNAVAILABLE
    said = capsys.readouterr().err
    assert "damaged" in said
    assert said.count("\n") == 1
    assert database.read_bytes() == mixed


@pytest.mark.parametrize("content", ["cut short", "my notes, long enough to be something " * 10])
def test_what_is_no_whole_database_is_told_and_left_as_it_is(
    database: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    left = database.read_bytes()[:-4096] if content == "cut short" else content.encode()
    database.write_bytes(left)
    assert main.execute(["restore-check", str(database)]) == ExitStatus.UNAVAILABLE
    said = capsys.readouterr().err
    assert said.startswith("forewarn: ")
    assert said.count("\n") == 1
    assert database.read_bytes() == left


def test_a_file_that_is_not_there_is_not_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "none.db"
    assert main.execute(["restore-check", str(missing)]) == ExitStatus.NOT_FOUND
    assert str(missing) in capsys.readouterr().err
    assert not missing.exists()


def test_numbers_that_json_clients_cannot_read_are_refused(
    database: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = sqlite.open_store(database)
    with store.write() as transaction:
        web = msgspec.structs.replace(transaction.scopes()["web"], incarnation=2**53 - 10)
        transaction.save(Changes(scopes=(web,)))
    store.close()
    assert main.execute(["restore-check", str(database), "--by", "10"]) == ExitStatus.REFUSED
    assert "smaller --by" in capsys.readouterr().err
    assert incarnations(database)["batch"] == 0
    assert main.execute(["restore-check", str(database), "--by", "9"]) == ExitStatus.OK


def gone(transaction: Transaction, incarnation: int) -> None:
    when = datetime(2026, 3, 1, tzinfo=UTC)
    machine = Tombstone(name="gone-0", at=when, scope="web", incarnation=incarnation)
    transaction.save(Changes(tombstones=(machine,)))


def retired(transaction: Transaction, incarnation: int) -> None:
    transaction.put_setting(tombstones.SETTING, f'{{"gone":{incarnation}}}')


@pytest.mark.parametrize("leave", [gone, retired])
def test_numbers_of_what_was_removed_are_judged_likewise(
    database: Path,
    capsys: pytest.CaptureFixture[str],
    leave: Callable[[Transaction, int], None],
) -> None:
    store = sqlite.open_store(database)
    with store.write() as transaction:
        leave(transaction, 2**53 - 10)
    store.close()
    assert main.execute(["restore-check", str(database), "--by", "10"]) == ExitStatus.REFUSED
    assert str(2**53) in capsys.readouterr().err
    assert incarnations(database)["web"] == 1
    assert main.execute(["restore-check", str(database), "--by", "9"]) == ExitStatus.OK
    assert "the highest is 10." in capsys.readouterr().out
    store = sqlite.open_store(database)
    with store.read() as reading:
        assert tombstones.highest(World(outbox.state_of(reading))) == 2**53 - 1
    store.close()
