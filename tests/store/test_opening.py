"""The opening of a database: what a new one has, and what is refused and left: opening.txt."""

import contextlib
import itertools
import os
import re
import shutil
import sqlite3
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

import forked
from forewarn.maintenance.model import Changes
from forewarn.store import schema, sqlite
from forewarn.store.port import StoreUnusable
from forewarn.store.sql import Store
from store import engines
from store.values import WEB
from stories import Told, stories_beside

NOBODY = 65534
NEWER = "UPDATE meta SET value = '9999' WHERE name = 'schema'"


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder; the lock may stay, and -shm is an index that SQLite makes anew."""
    return {
        p.name: b"" if p.name.endswith("-shm") else p.read_bytes()
        for p in folder.iterdir()
        if p.suffix != ".lock"
    }


def opened_by(path: Path, user: int = os.geteuid()) -> str:
    """What another process says that opens the database, if root starts it as this user."""
    program = (
        "import os, pathlib, sys, tempfile\n"
        "from forewarn.store import port, sqlite\n"
        # The interpreter's and the package's files may be root's alone: load what can be loaded
        # before letting go.
        "with tempfile.TemporaryDirectory() as made:\n"
        "    sqlite.open_store(pathlib.Path(made) / 'x.db').close()\n"
        f"if os.geteuid() == 0: os.setgroups([]); os.setgid({user}); os.setuid({user})\n"
        "try: sqlite.open_store(pathlib.Path(sys.argv[1])).close(); print('opened')\n"
        "except port.StoreError as error: print(type(error).__name__, error)\n"
    )
    ran = forked.run(["-c", program, str(path)])
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


class OpeningStory(Told):
    """A folder, and the database in it."""

    store: Store

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "it.db"
        self.before: dict[str, bytes] = {}

    def at_place(self, name: str) -> None:
        self.path = self.folder / name

    def make(self, what: str, *given: str) -> None:
        getattr(self, f"make_{what.replace('-', '_')}")(*given)
        if self.path.is_file():
            self.keep()

    def make_text(self) -> None:
        self.path.write_bytes(b"these are my holiday plans, and no database at all\n" * 100)

    def make_short(self) -> None:
        self.path.write_bytes(b"SQLite")

    def make_empty(self) -> None:
        self.path.touch()

    def make_database(self, statement: str) -> None:
        with contextlib.closing(sqlite3.connect(self.path)) as connection, connection:
            connection.executescript(statement)
        assert self.path.stat().st_size

    def make_old(self) -> None:
        """A build before the first release has made it."""
        mark = f"PRAGMA application_id = {sqlite.APPLICATION_ID};"
        self.make_database(f"{mark} CREATE TABLE alembic_version (version_num TEXT)")

    def make_newer(self) -> None:
        sqlite.open_store(self.path).close()
        self.make_database(NEWER)

    def make_newer_after_a_crash(self) -> None:
        """Its last changes are in the -wal file alone."""
        whole = self.folder / "whole.db"
        sqlite.open_store(whole).close()
        connection = sqlite3.connect(whole)
        connection.execute(NEWER)
        connection.commit()
        for end in ("", "-wal", "-shm"):
            shutil.copy(f"{whole}{end}", f"{self.path}{end}")
        connection.close()
        for left in self.folder.glob("whole.db*"):
            left.unlink()

    def make_damaged(self) -> None:
        sqlite.open_store(self.path).close()
        with self.path.open("r+b") as file:
            file.seek(100)
            file.write(b"\xff" * 4000)

    def make_one_without_a_table(self) -> None:
        sqlite.open_store(self.path).close()
        self.make_database("DROP TABLE state")

    def make_folder(self) -> None:
        self.path.mkdir()

    def make_pipe(self) -> None:
        os.mkfifo(self.path)

    def make_others_lock(self) -> None:
        lock = self.folder / "it.db.lock"
        lock.touch()
        lock.chmod(0o600 if os.geteuid() == 0 else 0o000)

    def keep(self) -> None:
        self.before = contents(self.folder)

    def remove(self, name: str) -> None:
        (self.folder / name).unlink()
        self.keep()

    def link_by(self, how: str, name: str) -> None:
        {"symlink": os.symlink, "hardlink": os.link}[how](self.path, self.folder / name)

    def mode(self, name: str, mode: str) -> None:
        (self.folder / name).chmod(int(mode, 8))

    def closed(self, name: str) -> None:
        """There is a folder that nobody else may enter."""
        (self.folder / name).mkdir(mode=0o700 if os.geteuid() == 0 else 0)

    def give_to_nobody(self, name: str) -> None:
        if os.geteuid() != 0:
            pytest.skip("only root gives files away")
        os.chown(self.folder / name, NOBODY, NOBODY)

    def held(self) -> None:
        self.store = sqlite.open_store(self.path)
        with self.store.write() as transaction:
            transaction.save(Changes(scopes=(WEB,)))

    def let_go(self) -> None:
        self.store.close()

    # What must be so.

    def refused(self, says: str) -> None:
        with pytest.raises(StoreUnusable, match=says) as refused:
            sqlite.open_store(self.path)
        assert str(self.path) in str(refused.value) or says in str(refused.value)
        assert "\n" not in str(refused.value)

    def left(self) -> None:
        assert contents(self.folder) == self.before

    def opens(self, made: str = "") -> None:
        told: list[str] = []
        sqlite.open_store(self.path, made=lambda: told.append("made")).close()
        assert told == [made] * bool(made)

    def files(self, *names: str) -> None:
        assert sorted(path.name for path in self.folder.iterdir()) == [*names]

    def other(self, says: str) -> None:
        assert says in opened_by(self.path)

    def nobody(self, says: str) -> None:
        said = opened_by(self.path, NOBODY)
        assert re.match(says, said), said


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that another user reaches; pytest's own are for its user alone."""
    with tempfile.TemporaryDirectory() as made:
        outer = Path(made)
        outer.chmod(0o755)
        inner = outer / "open"
        inner.mkdir()
        inner.chmod(0o777)
        yield inner
        inner.chmod(0o777)


@pytest.mark.skipif(os.name != "posix", reason="modes, pipes and links are POSIX's")
@pytest.mark.parametrize("rows", stories_beside(__file__, "opening.txt"))
def test_the_story_holds(open_folder: Path, rows: list[tuple[int, str]]) -> None:
    assert OpeningStory(open_folder).play("opening.txt", rows)


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
def test_nobody_else_may_read_a_new_database_or_what_is_beside_it(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        store = sqlite.open_store(tmp_path / "it.db")
        with store.write() as transaction:
            transaction.save(Changes(scopes=(WEB,)))
    finally:
        os.umask(before)
    found = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
    assert found == {f"it.db{end}": 0o600 for end in ("", "-wal", "-shm", ".lock")}
    store.close()


KILLED_WHILE_IT_IS_MADE = """
import os, pathlib, signal, sys
from forewarn.store import sqlite

def killed_at(number, path):
    child = os.fork()
    if child == 0:
        left = iter(range(number))
        class Mortal(sqlite.SqliteConnection):
            def _execute(self, *statement):
                if next(left, None) is None:
                    os.kill(os.getpid(), signal.SIGKILL)
                return super()._execute(*statement)
            end = lambda self, *, commit: self.run("COMMIT" if commit else "ROLLBACK")
        sqlite.SqliteConnection = Mortal
        pathlib.Path.rename = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        sqlite.open_store(path)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

path = pathlib.Path(sys.argv[1])
for number in (0, 1, 2, 5, 10, 20, 40, 1000):
    assert killed_at(number, path) == -signal.SIGKILL, number
    assert [p.name for p in path.parent.glob("it.db*")] == ["it.db.lock"], number
sqlite.open_store(path).close()
"""


@pytest.mark.skipif(os.name != "posix", reason="it forks")
def test_a_kill_while_a_database_is_made_leaves_none_and_the_next_start_makes_it(
    tmp_path: Path,
) -> None:
    ran = forked.run(["-c", KILLED_WHILE_IT_IS_MADE, str(tmp_path / "it.db")])
    assert (ran.returncode, ran.stderr) == (0, "")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["it.db", "it.db.lock"]


def test_a_place_without_a_write_ahead_log_is_refused() -> None:
    with (
        contextlib.closing(sqlite.SqliteConnection(Path(":memory:"))) as connection,
        pytest.raises(StoreUnusable, match="local disk"),
    ):
        sqlite.prepare(connection)


def test_what_is_committed_is_synced(tmp_path: Path) -> None:
    with contextlib.closing(sqlite.SqliteConnection(tmp_path / "it.db")) as connection:
        sqlite.prepare(connection)
        asked = ("synchronous", "journal_mode", "busy_timeout")
        found = [connection.run(f"PRAGMA {name}")[0][0] for name in asked]
        assert connection.driver.isolation_level is None
    assert found == [2, "wal", sqlite.BUSY_SECONDS * 1000]


def test_a_disk_that_is_full_while_the_database_is_made_is_told(tmp_path: Path) -> None:
    path = tmp_path / "it.db"
    program = (
        "import pathlib, resource, sys; from forewarn.store import port, sqlite\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))\n"
        "try: sqlite.open_store(pathlib.Path(sys.argv[1])); print('opened')\n"
        "except port.StoreUnavailable as error: print(error)\n"
    )
    for most in (2048, 4096, 32768, 65536):
        ran = forked.run(["-c", program, str(path), str(most)])
        assert ran.stderr == ""
        assert str(path) in ran.stdout
        assert "SQLITE_IOERR" in ran.stdout
        assert [file.name for file in tmp_path.iterdir()] == ["it.db.lock"]
    sqlite.open_store(path).close()


def test_swapped_pages_are_found_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "forewarn.db"
    sqlite.open_store(path).close()
    whole = path.read_bytes()
    size = int.from_bytes(whole[16:18], "big")
    pages = [whole[at : at + size] for at in range(0, len(whole), size)]
    assert len(pages) > 10
    unlike = [number for number in range(1, len(pages)) if pages[number][0] in {2, 5, 10, 13}]
    pairs = [(a, b) for a, b in itertools.pairwise(unlike) if pages[a] != pages[b]]
    assert len(pairs) > 10
    for first, second in pairs:
        swapped = list(pages)
        swapped[first], swapped[second] = swapped[second], swapped[first]
        path.write_bytes(b"".join(swapped))
        with pytest.raises(StoreUnusable):
            sqlite.open_store(path).close()


def test_a_new_database_has_this_releases_schema_and_is_marked_as_ours(tmp_path: Path) -> None:
    sqlite.open_store(tmp_path / "new.db").close()
    with contextlib.closing(sqlite3.connect(tmp_path / "new.db")) as connection:
        ((mark,),) = connection.execute("PRAGMA application_id")
        ((mode,),) = connection.execute("PRAGMA journal_mode")
        meta = connection.execute("SELECT * FROM meta").fetchall()
        columns = {
            table: [name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")]
            for table in schema.TABLES
        }
    assert (mark, mode, meta) == (sqlite.APPLICATION_ID, "wal", [("schema", schema.VERSION)])
    assert columns == {table: schema.columns_of(table) for table in schema.TABLES}


@engines.NEEDS_POSTGRESQL
def test_a_database_of_postgresql_has_the_same_columns_and_as_many_indexes(tmp_path: Path) -> None:
    engines.open_postgresql(tmp_path).close()
    url = (tmp_path / "postgresql.url").read_text()
    listed = (
        "SELECT table_name, array_agg(column_name::text ORDER BY ordinal_position) "
        "FROM information_schema.columns WHERE table_schema = 'public' GROUP BY table_name"
    )
    counted = "SELECT count(*) FROM pg_indexes WHERE indexname ~ '^[a-z_]+_[0-9]+$'"
    with psycopg.connect(url) as connection:
        assert dict(connection.execute(listed).fetchall()) == {
            table: schema.columns_of(table) for table in schema.TABLES
        }
        indexes = sum(len(over) for _, *over in schema.TABLES.values())
        assert connection.execute(counted).fetchone() == (indexes,)


def test_a_value_that_this_release_cannot_read_is_told_with_what_to_do() -> None:
    with pytest.raises(StoreUnusable, match=r"scope.*install the release"):
        schema.decoded("scope", '{"name": "web", "kind": "of tomorrow"}')
