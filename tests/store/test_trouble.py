"""A store that is away for a while says so in one line, has changed nothing, and comes back."""

import shutil
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import forked
import patience
from forewarn.maintenance.model import Changes, HoldKind
from forewarn.store import connections, sql, sqlite
from forewarn.store.port import OutcomeUnknown, StoreError, StoreUnavailable, StoreUnusable
from forewarn.vocabulary import EventStatus
from store.story import save
from store.values import BATCH, MINUTE, NOW, WEB, event, hold, machine, operation, with_maintenances

FLEET = Changes(scopes=(BATCH,), machines=tuple(machine(f"m{n}", "batch") for n in range(5000)))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[sql.SqlStore]:
    opened = sqlite.open_store(tmp_path / "it.db")
    assert isinstance(opened, sql.SqlStore)
    with opened.write() as transaction:
        transaction.save(Changes(scopes=(WEB,)))
    yield opened
    opened.close()


def assert_only_web_is_there(store: sql.SqlStore) -> None:
    with store.read() as reading:
        assert reading.scopes() == {"web": WEB}
        assert reading.machines() == {}


def limit_pages(store: sql.SqlStore, pages: int) -> None:
    with store._pool.taken() as connection:  # of its idle ones the writer has the last
        connection.run(f"PRAGMA max_page_count = {pages}")


def test_a_full_database_changes_nothing_and_takes_more_when_there_is_room(
    store: sql.SqlStore, tmp_path: Path
) -> None:
    limit_pages(store, 40)
    with pytest.raises(StoreUnavailable, match="SQLITE_FULL") as refused:
        save(store, FLEET)
    assert str(tmp_path / "it.db") in str(refused.value)
    assert "\n" not in str(refused.value)
    assert_only_web_is_there(store)
    limit_pages(store, 2**30)
    save(store, FLEET)
    with store.read() as reading:
        assert len(reading.machines()) == 5000


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_is_removed_or_replaced_takes_nothing_more_until_it_is_back(
    store: sql.SqlStore, tmp_path: Path, *, replaced: bool
) -> None:
    path, aside = tmp_path / "it.db", tmp_path / "aside.db"
    path.rename(aside)
    if replaced:
        shutil.copy(aside, path)
    with pytest.raises(StoreUnavailable, match="removed or replaced"):
        save(store, FLEET)
    assert_only_web_is_there(store)
    aside.replace(path)
    save(store, FLEET)
    with store.read() as reading:
        assert len(reading.machines()) == 5000


def test_nothing_is_committed_after_a_failure_that_was_swallowed(store: sql.SqlStore) -> None:
    limit_pages(store, 40)

    def stubborn() -> None:
        with store.write() as transaction:
            with pytest.raises(StoreUnavailable):
                transaction.save(FLEET)
            with pytest.raises(StoreUnavailable):
                transaction.put_setting("a", "b")

    with pytest.raises(StoreUnavailable, match="full"):
        stubborn()
    assert_only_web_is_there(store)
    with store.read() as reading:
        assert reading.setting("a") is None


ON_A_SMALL_DISK = """
import pathlib, subprocess, sys
from forewarn.store import port, sqlite
from store.story import save
from store.test_trouble import FLEET, assert_only_web_is_there
from forewarn.maintenance.model import Changes
from store.values import WEB

disk = pathlib.Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", disk], check=True)
store = sqlite.open_store(disk / "it.db")
save(store, Changes(scopes=(WEB,)))

def refused():
    try: save(store, FLEET)
    except port.StoreUnavailable as error: print(error)
    assert_only_web_is_there(store)

filler = disk / "filler"
try:
    with filler.open("wb", buffering=0) as file:
        while True: file.write(bytes(4096))
except OSError: pass
refused()
filler.unlink()
subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
save(store, FLEET)
store.close()
"""


def may_mount() -> bool:
    unshare = shutil.which("unshare") or "false"
    command = [unshare, "-rm", "mount", "-t", "tmpfs", "none", "/mnt"]
    return not forked.completed(command).returncode


@pytest.mark.skipif(not may_mount(), reason="nobody may mount a file system here")
def test_a_disk_that_is_full_can_still_be_read(tmp_path: Path) -> None:
    argv = ["unshare", "-rm", sys.executable, "-B", "-c", ON_A_SMALL_DISK, str(tmp_path)]
    ran = forked.completed(argv, cwd=Path(__file__).parents[1])
    assert ran.stderr == ""
    assert "SQLITE_FULL" in ran.stdout or "SQLITE_IOERR" in ran.stdout


def test_another_programs_lock_is_told_and_passes(store: sql.SqlStore, tmp_path: Path) -> None:
    with store._pool.taken() as connection:
        connection.run("PRAGMA busy_timeout = 1")
    other = sqlite3.connect(tmp_path / "it.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match="SQLITE_BUSY"):
        save(store, FLEET)
    with store.read() as reading:
        assert reading.scopes() == {"web": WEB}
    other.execute("ROLLBACK")
    other.close()
    save(store, FLEET)


def broken(name: str) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode, error.sqlite_errorname = getattr(sqlite3, name), name
    return error


class FailingOnce(sqlite.SqliteConnection):
    left = 1

    def begin(self, *, writing: bool) -> None:
        super().begin(writing=writing)
        if self.left:
            self.left -= 1
            raise broken("SQLITE_IOERR_READ")


@pytest.mark.parametrize("writing", [True, False])
def test_a_transaction_that_fails_as_it_begins_is_in_nobodys_way(
    store: sql.SqlStore, tmp_path: Path, *, writing: bool
) -> None:
    pool = connections.Pool(lambda: FailingOnce(tmp_path / "it.db"), patience.SECONDS, "it")
    failing = sql.SqlStore(pool)
    begin = failing.write if writing else failing.read
    with pytest.raises(StoreUnavailable, match="SQLITE_IOERR"), begin():
        pass
    save(failing, FLEET)
    with store.read() as reading:
        assert len(reading.machines()) == 5000
    failing.close()


def test_a_connection_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    path = tmp_path / "gone" / "it.db"
    store = sql.SqlStore(sqlite.connections(path))
    with pytest.raises(StoreUnavailable, match="open files"), store.read():
        pass


def test_what_is_purged_leaves_no_row(store: sql.SqlStore) -> None:
    both = operation("1.1", event("A", "web", "web-0", "web-1"))
    left = operation("1.1", event("A", "web", "web-1"), status=EventStatus.COMPLETED, ended_at=NOW)
    save(store, with_maintenances(both))
    save(store, with_maintenances(left))
    with store.write() as transaction:
        assert transaction.purge(NOW + MINUTE, 10) == 1
    with store._pool.taken() as connection:
        for table in ("operations", "names", "maintenances"):
            assert connection.run(f"SELECT count(*) FROM {table}") == [(0,)], table


class Failing(sqlite.SqliteConnection):
    def end(self, *, commit: bool) -> None:
        if commit:
            raise broken("SQLITE_FULL")
        super().end(commit=commit)


def test_a_commit_that_fails_is_told_and_changes_nothing(
    store: sql.SqlStore, tmp_path: Path
) -> None:
    pool = connections.Pool(lambda: Failing(tmp_path / "it.db"), patience.SECONDS, "it")
    failing = sql.SqlStore(pool)
    with pytest.raises(StoreUnavailable, match="SQLITE_FULL"):
        save(failing, FLEET)
    failing.close()
    assert_only_web_is_there(store)
    save(store, FLEET)


def test_a_second_hold_of_the_same_is_our_mistake_and_changes_nothing(store: sql.SqlStore) -> None:
    first = hold(HoldKind.SCOPE, "web")
    save(store, Changes(holds=(first,)))
    with pytest.raises(sqlite3.IntegrityError):
        save(store, Changes(scopes=(BATCH,), holds=(hold(HoldKind.SCOPE, "web", reason="again"),)))
    assert_only_web_is_there(store)
    with store.read() as reading:
        assert reading.holds() == (first,)


def test_a_file_that_is_damaged_while_it_is_open_is_told(
    store: sql.SqlStore, tmp_path: Path
) -> None:
    save(store, FLEET)
    store.close()
    path = tmp_path / "it.db"
    opened = sqlite.open_store(path)
    with path.open("r+b") as file:
        file.seek(4096 * 3)
        file.write(b"\xff" * 4096 * 60)

    def look() -> None:
        with opened.read() as reading:
            reading.machines()
            reading.scopes()

    with pytest.raises(StoreUnusable, match="damaged"):
        look()
    opened.close()


def test_a_second_transaction_in_the_thread_of_the_first_is_a_mistake(store: sql.SqlStore) -> None:
    with (
        store.write(),
        pytest.raises(AssertionError, match="this thread"),
        store.write(),
    ):
        pass
    save(store, FLEET)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (sqlite3.SQLITE_FULL, StoreUnavailable),
        (sqlite3.SQLITE_BUSY, StoreUnavailable),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, StoreUnavailable),
        (sqlite3.SQLITE_IOERR_WRITE, StoreUnavailable),
        (sqlite3.SQLITE_IOERR_FSYNC, OutcomeUnknown),
        (sqlite3.SQLITE_CANTOPEN, StoreUnavailable),
        (sqlite3.SQLITE_READONLY, StoreUnavailable),
        (sqlite3.SQLITE_READONLY_DBMOVED, StoreUnusable),
        (sqlite3.SQLITE_CORRUPT, StoreUnusable),
        (sqlite3.SQLITE_NOTADB, StoreUnusable),
    ],
)
def test_every_error_of_sqlites_has_one_meaning(code: int, kind: type[StoreError]) -> None:
    original = sqlite3.OperationalError("x")
    original.sqlite_errorcode = code
    explained = sqlite.explain(original, "/the/place")
    assert type(explained) is kind
    assert "/the/place" in str(explained)
