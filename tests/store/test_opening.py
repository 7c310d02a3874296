"""What is no store of ours is refused in one line, and left as it was."""

import contextlib
import itertools
import os
import shutil
import sqlite3
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import forked
from forewarn.maintenance.model import Changes
from forewarn.store import sqlite
from forewarn.store.port import StoreUnusable
from store.values import WEB

NOBODY = 65534


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder; the lock may stay, and -shm is an index that SQLite makes anew."""
    return {
        p.name: b"" if p.name.endswith("-shm") else p.read_bytes()
        for p in folder.iterdir()
        if p.suffix != ".lock"
    }


def make_text(path: Path) -> None:
    path.write_bytes(b"these are my holiday plans, and no database at all\n" * 100)


def make_short(path: Path) -> None:
    path.write_bytes(b"SQLite")


def make_empty(path: Path) -> None:
    path.touch()


def made_by(statement: str) -> Callable[[Path], None]:
    """Return what makes a database by a statement of SQL."""

    def make(path: Path) -> None:
        with contextlib.closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(statement)
        assert path.stat().st_size

    return make


NEWER = "UPDATE meta SET value = '9999' WHERE name = 'schema'"


def make_newer(path: Path) -> None:
    sqlite.open_store(path).close()
    made_by(NEWER)(path)


def make_newer_after_a_crash(path: Path) -> None:
    """Its last changes are in the -wal file alone."""
    whole = path.with_name("whole.db")
    sqlite.open_store(whole).close()
    connection = sqlite3.connect(whole)
    connection.execute(NEWER)
    connection.commit()
    for end in ("", "-wal", "-shm"):
        shutil.copy(f"{whole}{end}", f"{path}{end}")
    connection.close()
    for left in path.parent.glob("whole.db*"):
        left.unlink()


def make_damaged(path: Path) -> None:
    sqlite.open_store(path).close()
    with path.open("r+b") as file:
        file.seek(100)
        file.write(b"\xff" * 4000)


@pytest.mark.parametrize(
    ("make", "fault"),
    [
        (make_text, "not an SQLite database"),
        (make_short, "not an SQLite database"),
        (make_empty, "empty"),
        (made_by("VACUUM"), "empty"),
        (made_by("CREATE TABLE songs (name TEXT)"), "another program's"),
        (made_by("CREATE TABLE meta (song TEXT)"), "another program's"),
        (make_newer, "release .*'9999'"),
        (make_newer_after_a_crash, "release .*'9999'"),
        (make_damaged, "damaged"),
    ],
)
def test_a_file_that_is_no_store_of_ours_is_refused_and_left_as_it_is(
    tmp_path: Path, make: Callable[[Path], None], fault: str
) -> None:
    path = tmp_path / "it.db"
    make(path)
    before = contents(tmp_path)
    with pytest.raises(StoreUnusable, match=fault) as refused:
        sqlite.open_store(path)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)
    assert contents(tmp_path) == before


def test_changes_of_a_database_that_is_gone_are_left_as_they_are(tmp_path: Path) -> None:
    make_newer_after_a_crash(tmp_path / "it.db")
    (tmp_path / "it.db").unlink()
    before = contents(tmp_path)
    with pytest.raises(StoreUnusable, match=r"it\.db-wal"):
        sqlite.open_store(tmp_path / "it.db")
    assert contents(tmp_path) == before


def test_a_new_database_is_told_of_once(tmp_path: Path) -> None:
    told: list[str] = []
    for _ in range(2):
        sqlite.open_store(tmp_path / "it.db", made=lambda: told.append("made")).close()
    assert told == ["made"]


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


@pytest.mark.skipif(getattr(os, "geteuid", lambda: 1)() != 0, reason="only root gives files away")
def test_a_lock_that_root_makes_is_the_databases_owners(open_folder: Path) -> None:
    path = open_folder / "it.db"
    sqlite.open_store(path).close()
    os.chown(path, NOBODY, NOBODY)
    (open_folder / "it.db.lock").unlink()
    sqlite.open_store(path).close()
    assert opened_by_nobody(path) == "opened"


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


def test_a_refused_file_is_not_held(tmp_path: Path) -> None:
    make_newer(tmp_path / "it.db")
    for _ in range(2):
        with pytest.raises(StoreUnusable, match="release"):
            sqlite.open_store(tmp_path / "it.db")


def test_a_folder_that_does_not_exist_is_named_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(StoreUnusable, match=f"{tmp_path}/none "):
        sqlite.open_store(tmp_path / "none" / "it.db")
    assert not list(tmp_path.iterdir())


def test_a_folder_in_the_place_of_the_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "it.db").mkdir()
    with pytest.raises(StoreUnusable, match="name a file"):
        sqlite.open_store(tmp_path / "it.db")
    assert not list((tmp_path / "it.db").iterdir())


def test_a_pipe_in_the_place_of_the_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "it.db")
    with pytest.raises(StoreUnusable, match="name a file"):
        sqlite.open_store(tmp_path / "it.db")


def test_a_place_without_a_write_ahead_log_is_refused() -> None:
    with (
        contextlib.closing(sqlite.SqliteConnection(Path(":memory:"))) as connection,
        pytest.raises(StoreUnusable, match="local disk"),
    ):
        sqlite.prepare(connection)


def opened_by_nobody(path: Path) -> str:
    """What a process says that has no right beyond a user's, as root has."""
    program = (
        "import os, pathlib, sys, tempfile\n"
        "from forewarn.store import port, sqlite\n"
        # The interpreter's and the package's files may be root's alone: load what can be loaded
        # before letting go.
        "with tempfile.TemporaryDirectory() as made:\n"
        "    sqlite.open_store(pathlib.Path(made) / 'x.db').close()\n"
        f"if os.geteuid() == 0: os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})\n"
        "try: sqlite.open_store(pathlib.Path(sys.argv[1])).close(); print('opened')\n"
        "except port.StoreError as error: print(type(error).__name__, error)\n"
    )
    ran = forked.run(["-c", program, str(path)])
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


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


def test_a_read_only_file_is_refused_and_left_as_it_is(open_folder: Path) -> None:
    path = open_folder / "it.db"
    sqlite.open_store(path).close()
    path.chmod(0o444)
    before = contents(open_folder)
    said = opened_by_nobody(path)
    assert said.startswith("StoreUnusable")
    assert f" {path}: " in said
    assert contents(open_folder) == before


def test_a_read_only_folder_is_refused_and_left_as_it_is(open_folder: Path) -> None:
    path = open_folder / "it.db"
    sqlite.open_store(path).close()
    path.chmod(0o666)
    for lock in open_folder.glob("*.lock"):
        lock.unlink()
    open_folder.chmod(0o555)
    said = opened_by_nobody(path)
    assert said.startswith("StoreUnusable")
    assert f"the folder {open_folder}," in said
    assert [p.name for p in open_folder.iterdir()] == ["it.db"]
    open_folder.chmod(0o777)
    assert opened_by_nobody(path) == "opened"


def test_a_folder_that_may_not_be_entered_is_told(open_folder: Path) -> None:
    closed = open_folder / "closed"
    closed.mkdir(mode=0o700 if os.geteuid() == 0 else 0)
    said = opened_by_nobody(closed / "inner" / "it.db")
    assert said.startswith("StoreUnusable")
    assert f" {closed}/inner/it.db: " in said
    closed.chmod(0o700)


@pytest.mark.skipif(os.name != "posix", reason="folders are synced on POSIX only")
def test_a_new_database_that_cannot_be_made_lasting_is_not_left(open_folder: Path) -> None:
    path = open_folder / "it.db"
    open_folder.chmod(0o333)  # files can be made there, and the folder itself cannot be opened
    said = opened_by_nobody(path)
    open_folder.chmod(0o777)
    assert said.startswith("StoreUnavailable")
    assert f" {path} " in said
    assert "Permission denied" in said
    assert [p.name for p in open_folder.iterdir()] == ["it.db.lock"]
    assert opened_by_nobody(path) == "opened"


def test_a_lock_file_of_another_user_is_told(open_folder: Path) -> None:
    path = open_folder / "it.db"
    lock = open_folder / "it.db.lock"
    lock.touch()
    lock.chmod(0o600)
    if os.geteuid() != 0:
        lock.chmod(0o000)
    said = opened_by_nobody(path)
    assert said.startswith("StoreUnusable")
    assert str(lock) in said


def test_a_second_process_is_refused_until_the_first_has_closed(tmp_path: Path) -> None:
    path = tmp_path / "it.db"
    program = (
        "import pathlib, sys; from forewarn.store import port, sqlite\n"
        "try: sqlite.open_store(pathlib.Path(sys.argv[1])).close(); print('opened')\n"
        "except port.StoreUnusable as error: print(error)\n"
    )

    def other() -> str:
        ran = forked.run(["-c", program, str(path)])
        assert ran.returncode == 0, ran.stderr
        return ran.stdout.strip()

    store = sqlite.open_store(path)
    with store.write() as transaction:
        transaction.save(Changes(scopes=(WEB,)))
    assert f"{path}.lock" in other()
    with pytest.raises(StoreUnusable, match="in use"):
        sqlite.open_store(path)
    store.close()
    assert other() == "opened"


def test_one_file_by_two_names_is_one_store(tmp_path: Path) -> None:
    store = sqlite.open_store(tmp_path / "it.db")
    (tmp_path / "other.db").symlink_to(tmp_path / "it.db")
    with pytest.raises(StoreUnusable, match="in use"):
        sqlite.open_store(tmp_path / "other.db")
    store.close()


def test_closing_leaves_one_file_and_its_lock(tmp_path: Path) -> None:
    store = sqlite.open_store(tmp_path / "it.db")
    with store.write() as transaction:
        transaction.save(Changes(scopes=(WEB,)))
    with store.read() as reading:
        assert reading.scopes() == {"web": WEB}
    store.close()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["it.db", "it.db.lock"]


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


def test_a_database_with_two_names_is_opened_by_neither(tmp_path: Path) -> None:
    path = tmp_path / "forewarn.db"
    sqlite.open_store(path).close()
    other = tmp_path / "other"
    other.mkdir()
    (other / "same.db").hardlink_to(path)
    for name in (path, other / "same.db"):
        with pytest.raises(StoreUnusable, match="hard links"):
            sqlite.open_store(name)
    (other / "same.db").unlink()
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
