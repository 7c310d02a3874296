"""`forewarn store copy`, and `restore-check`, of SQLite and of PostgreSQL, in stories.

After a restore no guest meets an incarnation again with other content.
"""

import contextlib
import sqlite3
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

import stories
from builders import FLEET, mint
from forewarn.cli import main
from forewarn.clock import SystemClock
from forewarn.control import outbox, tombstones
from forewarn.control.changefeed import Changefeed
from forewarn.control.plane import Plane
from forewarn.control.writer import Writer
from forewarn.maintenance.model import Changes, HoldKind, HostState
from forewarn.maintenance.planner import Request
from forewarn.maintenance.world import World
from forewarn.server.service import database_id
from forewarn.store import postgresql, sqlite
from forewarn.store.port import HistoryQuery
from forewarn.store.queries import Reading
from forewarn.vocabulary import EventStatus, EventType
from server.exchange import Exchanges
from store.engines import NEEDS_POSTGRESQL, server
from store.story import append_alone, replica
from store.values import NOW, drain, hold, operation, tombstone, with_maintenances


@contextlib.contextmanager
def read(place: Path | str) -> Iterator[Reading]:
    """Read a file of SQLite, or a database of PostgreSQL by its URL."""
    store = postgresql.open_store(place) if isinstance(place, str) else sqlite.open_store(place)
    with contextlib.closing(store), store.read() as reading:
        yield reading


def assert_about(number: int, least: int) -> None:
    """One more for each second that the story took is right."""
    assert least <= number < least + 60


class Databases(Exchanges):
    """A story so far: a database with a fleet and live events, and what is beside it."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str], url: str = "") -> None:
        self.folder, self.capsys, self.url = folder, capsys, url
        self.path = folder / "forewarn.db"
        self.bound = {"db": str(self.path), "url": url, "folder": str(folder)}
        self.seeds = iter("bcdefghijk")
        self.kept: dict[Path, bytes] = {}
        self.seen: list[tuple[str, str]] = []
        self.opened = contextlib.ExitStack()
        with self.plane() as plane:
            plane.apply_fleet(FLEET).result()
            plane.request(Request(event_type=EventType.REBOOT, machines=("web-0",))).result()
        self.before, self.earlier = self.incarnations(self.path), self.path.read_bytes()

    def cli(self, *argv: str) -> tuple[int, str, str]:
        self.capsys.readouterr()
        status = main.execute(list(argv))
        printed = self.capsys.readouterr()
        return status, printed.out, printed.err

    @contextlib.contextmanager
    def plane(self) -> Iterator[Plane]:
        with contextlib.closing(sqlite.open_store(self.path)) as store:
            yield Plane(Writer(store, SystemClock(), Changefeed()), mint(next(self.seeds)))

    @staticmethod
    def incarnations(place: Path | str) -> dict[str, int]:
        with read(place) as reading:
            return {key: scope.incarnation for key, scope in reading.scopes().items()}

    def place(self, name: str) -> Path | str:
        return self.url if name == "postgresql" else self.path

    # What is there.

    def everything_else(self) -> None:
        """Add a history, and one of everything else."""
        store = sqlite.open_store(self.path)
        over = {"status": EventStatus.COMPLETED, "ended_at": NOW}
        with store.write() as transaction:
            transaction.save(with_maintenances(operation("7.1", **over), operation("7.2", **over)))
            alone = (hold(HoldKind.HOST, "h9"),), (tombstone("b"),), (drain("h9"),)
            transaction.save(Changes(holds=alone[0], tombstones=alone[1], drains=alone[2]))
            transaction.put_setting("a", "b")
        append_alone(store, "token")
        store.beat(replica("r1"))
        store.close()

    def reboot(self, first: str, *machines: str) -> None:
        """Ask for reboots, whose first operation has this number."""
        with self.plane() as plane:
            asked = Request(event_type=EventType.REBOOT, machines=machines)
            maintenance, _, ordinal = plane.request(asked).result().operations[0].id.partition(".")
        assert_about(int(maintenance), int(first.partition(".")[0]))
        assert ordinal == first.partition(".")[2]

    def claimed(self, attempt: str, *elsewhere: str) -> None:
        """A service that starts takes up what is under way, which may have begun elsewhere."""
        with self.plane() as plane:
            if attempt == "1":
                asked = Request(event_type=EventType.REBOOT, machines=("web-1",), no_notice=True)
                plane.request(asked).result()
            plane.release_claims("host").result()
            (task,) = plane.claim("host", timedelta(minutes=1), 10).result()
            assert (task.attempt, task.claimed_elsewhere) == (int(attempt), elsewhere)

    def units(self, number: str, scope: str, later: str = "0") -> None:
        """Ask for a scope's units, or find those that were asked for, so much later."""
        if not int(later):
            with self.plane() as plane:
                asked = Request(event_type=EventType.REBOOT, scope=scope)
                self.announced = plane.request(asked).result().maintenance.announced
        with read(self.path) as reading:
            found = reading.open_maintenances()[int(number)]
        assert found.units
        assert_about(found.announced, self.announced + int(later))
        assert found.state == ("halted" if int(later) else "running")

    def drained(self, host: str, state: str) -> None:
        """Have a host that is drained, or find it in a state."""
        with contextlib.closing(sqlite.open_store(self.path)) as store, store.write() as saving:
            if host not in saving.drains():
                saving.save(Changes(drains=(drain(host, state=HostState(state)),)))
            assert saving.drains()[host].state == state

    def incarnation(self, scope: str, number: str) -> None:
        """Have a scope at this incarnation, or one that is `gone`."""
        with contextlib.closing(sqlite.open_store(self.path)) as store, store.write() as saving:
            if scope == "gone":
                saving.save(Changes(), retired={scope: int(number)})
            else:
                web = msgspec.structs.replace(saving.scopes()[scope], incarnation=int(number))
                saving.save(Changes(scopes=(web,)))

    # Files.

    def keep(self) -> None:
        self.kept = {file: file.read_bytes() for file in self.folder.iterdir()}

    def put_back(self) -> None:
        for file, content in self.kept.items():
            file.write_bytes(content)

    def later(self, seconds: str) -> None:
        """So much time has passed since the last change."""
        with contextlib.closing(sqlite3.connect(self.path)) as connection, connection:
            connection.execute("UPDATE changes SET at = at - ?", (int(seconds) * 1_000_000,))

    def another_database(self) -> None:
        """It passes for another one than before."""
        with read(self.path) as reading:
            self.seen.append((database_id(reading), reading.position().token))
        assert len({name for name, _ in self.seen}) == len({*self.seen}) == len(self.seen)

    def everything(self) -> list[object]:
        return [(file.name, file.read_bytes()) for file in sorted(self.folder.iterdir())]

    def crash(self) -> None:
        """Leave the database as a kill does: its last change, a scope less, is in the -wal."""
        store = sqlite.open_store(self.path)
        with store.write() as transaction:
            transaction.save(Changes(removed_machines=("bastion",), removed_scopes=("bastion",)))
        self.keep()
        store.close()
        self.put_back()

    def rename(self, name: str, to: str) -> None:
        (self.folder / name).rename(self.folder / to)

    def write(self, name: str, text: str, times: str = "1") -> None:
        (self.folder / name).write_text(text * int(times))

    def cut(self, size: str) -> None:
        self.path.write_bytes(self.path.read_bytes()[: -int(size)])

    def mix(self) -> None:
        """Leave a page of the first state in a later one."""
        sqlite.open_store(self.path).close()
        with contextlib.closing(sqlite3.connect(self.path)) as connection:
            ((page,),) = connection.execute(
                "SELECT rootpage FROM sqlite_master WHERE tbl_name = 'state' AND type = 'index'"
            )
            ((size,),) = connection.execute("PRAGMA page_size")
        place = slice((page - 1) * size, page * size)
        mixed = bytearray(self.path.read_bytes())
        assert mixed[place] != self.earlier[place]
        mixed[place] = self.earlier[place]
        self.path.write_bytes(mixed)

    # PostgreSQL.

    def sql(self, statement: str) -> None:
        server().sql(statement, "copied")

    def open(self, engine: str) -> None:
        """Have a service run on it."""
        if engine == "sqlite":
            self.opened.callback(sqlite.open_store(self.path).close)
            return
        store = postgresql.open_store(self.url)
        self.opened.callback(store.close)
        self.opened.callback(store.join("r1").close)

    def close(self) -> None:
        self.opened.close()

    def put(self, name: str, value: str) -> None:
        store = postgresql.open_store(self.url)
        with contextlib.closing(store), store.write() as transaction:
            transaction.put_setting(name, value)

    # What is expected.

    def raised(self, by: str, place: str = "sqlite") -> None:
        """Each incarnation is so much higher than at first."""
        after = self.incarnations(self.place(place))
        for raised in (number - self.before[key] for key, number in after.items()):
            assert_about(raised, int(by))

    def shows(self, scope: str, number: str) -> None:
        """Compare a scope's incarnation; `-` for none."""
        assert str(self.incarnations(self.path).get(scope, "-")) == number

    def highest(self, number: str) -> None:
        with read(self.path) as reading:
            state = World(outbox.state_of(reading))
        assert tombstones.highest(state) == int(number)

    def empty(self, setting: str = "") -> None:
        """Nothing is in PostgreSQL but a setting."""
        name, _, value = setting.partition(":")
        with read(self.url) as reading:
            assert reading.scopes() == reading.drains() == {}
            assert reading.position().sequence == 0
            assert (reading.setting(name) or "") == value

    def copied(self) -> None:
        assert self.content(self.url) == self.content(self.path)

    @staticmethod
    def content(place: Path | str) -> list[object]:
        with read(place) as reading:
            kept = (reading.machines(), reading.live_operations(), reading.history(HistoryQuery()))
            over = (reading.latest_maintenances(None, 100), reading.tombstones())
            apart = (reading.holds(), reading.drains(), reading.setting("a"), reading.replicas())
            told = (reading.position(), reading.changes_after(0, 100), reading.news_after(0, 100))
            return [reading.scopes(), *kept, *over, *apart, *told]

    def goes_on(self, number: str) -> None:
        """What comes next has this number, and the next place in the log."""
        store = postgresql.open_store(self.url)
        with contextlib.closing(store):
            with store.write() as transaction:
                assert transaction.next_maintenance_number() == int(number)
                more = [operation(f"{number}.{each}") for each in (1, 2)]
                transaction.save(with_maintenances(*more))
                latest = transaction.history(HistoryQuery(limit=100)).operations
                assert {"8.1", "8.2", "7.1"} <= {one.id for one in latest}
                last = transaction.position().sequence
            assert append_alone(store, "next").sequence == last + 1 > 1


@pytest.mark.parametrize("rows", stories.stories_beside(__file__, "restored.txt"))
def test_the_story_of_a_restore_holds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rows: stories.Rows
) -> None:
    assert Databases(tmp_path, capsys).play("restored.txt", rows)


@NEEDS_POSTGRESQL
@pytest.mark.parametrize("rows", stories.stories_beside(__file__, "copied.txt"))
def test_the_story_of_a_copy_holds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rows: stories.Rows
) -> None:
    try:
        url = server().create_database("copied")
        assert Databases(tmp_path, capsys, url).play("copied.txt", rows)
    finally:
        server().drop_database("copied")
