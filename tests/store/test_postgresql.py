"""PostgreSQL: lost answers, frozen holders, standbys away, its errors, and whom it lets in."""

import contextlib
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

import forked
import patience
from forewarn.maintenance.model import Changes
from forewarn.store import postgresql
from forewarn.store.connections import ROWS_AT_ONCE
from forewarn.store.port import (
    OutcomeUnknown,
    Position,
    StoreError,
    StoreUnavailable,
    StoreUnusable,
)
from forewarn.store.postgresql import Patience, PostgresqlStore
from forewarn.store.sql import Store
from postgres import Postgres
from store.engines import EMPTY, NEEDS_POSTGRESQL, server
from store.story import StoreStory, append, append_alone, replica, save, seen
from store.values import BATCH, WEB, machine
from stories import stories_beside
from tcp_proxy import TcpProxy

pytestmark = NEEDS_POSTGRESQL

QUICK = Patience(idle=0.6, outcome=1.5)

SHORT = Patience(lock=1.0, answer=2.0, outcome=1.5, name=0.3)


@pytest.fixture(scope="module")
def troubled() -> Iterator[str]:
    made = server().create_database("troubled", template="template_of_tests")
    yield made
    server().drop_database("troubled")


@pytest.fixture
def url(troubled: str) -> Iterator[str]:
    """The address of an empty database that nobody is connected to."""
    yield troubled
    left = "FROM pg_stat_activity WHERE datname = 'troubled'"
    server().sql(f"SELECT pg_terminate_backend(pid) {left}")
    patience.eventually(lambda: server().sql(f"SELECT count(*) {left}"), "0")
    server().sql(EMPTY, "troubled")


@pytest.fixture
def proxy() -> Iterator[TcpProxy]:
    with TcpProxy(server().port) as opened:
        yield opened


def through(proxy: TcpProxy, url: str, has: Patience) -> "contextlib.closing[PostgresqlStore]":
    """Open a store that is reached through the proxy."""
    at = url.replace(f":{server().port}/", f":{proxy.port}/")
    return contextlib.closing(postgresql.open_store(at, patience=has))


@pytest.fixture
def store(url: str, proxy: TcpProxy) -> Iterator[PostgresqlStore]:
    with through(proxy, url, SHORT) as opened:
        yield opened


def test_a_start_gives_up_on_a_server_that_does_not_answer(url: str) -> None:
    with psycopg.connect(url) as locking:
        locking.execute(postgresql._TAKE_LOCK)
        with pytest.raises(StoreUnavailable):
            postgresql.open_store(
                f"{url}?options=-c%20lock_timeout%3D0", patience=Patience(reading=0.2)
            )


def test_rows_that_are_copied_do_not_gather_in_memory(store: PostgresqlStore) -> None:
    rows = iter([(1, 0, "[]")] * 2 * ROWS_AT_ONCE)
    with pytest.raises(psycopg.errors.UniqueViolation), store.write() as transaction:
        transaction._connection.write("INSERT INTO news {rows}", rows)
    assert len([*rows]) == ROWS_AT_ONCE


@pytest.fixture
def beside(url: str) -> Iterator[PostgresqlStore]:
    """Another replica's, which is reached without the proxy."""
    opened = postgresql.open_store(url, patience=SHORT)
    yield opened
    opened.close()


def end_backends(state: str) -> None:
    those = f"FROM pg_stat_activity WHERE datname = 'troubled' AND state = '{state}'"
    assert int(server().sql(f"SELECT count(pg_terminate_backend(pid)) {those}")) >= 1
    patience.eventually(lambda: server().sql(f"SELECT count(*) {those}"), "0")


def wait_for_locks(count: int) -> None:
    """Return when so many connections wait for a lock."""
    waiting = "FROM pg_stat_activity WHERE datname = 'troubled' AND wait_event_type = 'Lock'"
    patience.until(lambda: int(server().sql(f"SELECT count(*) {waiting}")) >= count)


COMMIT = b"COMMIT\0"
"""As it is sent: nothing else has these bytes."""

FAILURES = {"unavailable": StoreUnavailable, "unknown": OutcomeUnknown}


class ReplicaStory(StoreStory):
    """A replica's store, in which a thread may be at work as well."""

    def __init__(self, url: str, has: Patience = SHORT) -> None:
        super().__init__(postgresql.open_store(url, patience=has))
        self.threads = ThreadPoolExecutor(1)

    def close(self) -> None:
        self.threads.shutdown()
        self.store.close()

    def change(self, token: str) -> None:
        with self.store.write() as transaction:
            transaction.save(Changes(scopes=(WEB,)))
            append(transaction, token)

    def fails(self, how: str, verb: str, *words: str) -> None:
        with pytest.raises(StoreError) as failed:
            getattr(self, verb)(*words)
        assert type(failed.value) is FAILURES[how]

    def meanwhile(self, verb: str, *words: str) -> None:
        self.at_work = self.threads.submit(getattr(self, verb), *words)

    def joined(self) -> None:
        self.at_work.result(patience.SECONDS)

    def scopes(self, *names: str) -> None:
        with self.reading() as reading:
            assert {*reading.scopes()} == {*names}


class TroubleStory(ReplicaStory):
    """A replica that reaches the database through a proxy, and another `beside` it that needs none.

    A commit waits for a standby while one has a name.
    """

    def __init__(self, url: str, proxy: TcpProxy) -> None:
        self.url = url
        self.proxy = proxy
        self.locking: psycopg.Connection[Any] | None = None
        self.open(SHORT)

    def open(self, has: Patience) -> None:
        at = self.url.replace(f":{server().port}/", f":{self.proxy.port}/")
        super().__init__(at, has)
        self.other = ReplicaStory(self.url, has)

    def patience(self, **seconds: str) -> None:
        self.close()
        self.open(msgspec.convert(seconds, Patience, strict=False))

    def close(self) -> None:
        self.other.close()
        super().close()

    def beside(self, verb: str, *words: str) -> None:
        getattr(self.other, verb.replace("-", "_"))(*words)

    def lose_answers(self, times: str) -> None:
        self.proxy.lose_answers(COMMIT, times=int(times))

    def lost(self, times: str) -> None:
        assert self.proxy.lost == int(times)

    def server(self, how: str) -> None:
        getattr(self.proxy, how.replace("-", "_"))()

    def end_backends(self, state: str) -> None:
        end_backends(state)

    def two_connections(self) -> None:
        with self.store.read(), self.store.read():
            pass

    def standby(self, name: str) -> None:
        server().sql(f"ALTER SYSTEM SET synchronous_standby_names = '{name}'")
        server().sql("SELECT pg_reload_conf()")
        patience.eventually(lambda: server().sql("SHOW synchronous_standby_names"), name)
        if not name:  # what waited for one is over as well
            active = "FROM pg_stat_activity WHERE datname = 'troubled' AND state = 'active'"
            patience.eventually(lambda: server().sql(f"SELECT count(*) {active}"), "0")

    def cancel_wait(self) -> None:
        waiting = "FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        patience.until(lambda: int(server().sql(f"SELECT count(pg_cancel_backend(pid)) {waiting}")))

    def hold_row(self, of: str) -> None:
        self.locking = psycopg.connect(self.url)
        self.locking.execute(f"SELECT FROM {of} FOR UPDATE")

    def free_row(self) -> None:
        assert self.locking is not None
        self.locking.close()

    def locks(self, count: str) -> None:
        wait_for_locks(int(count))


@pytest.mark.parametrize("rows", stories_beside(__file__, "postgresql.txt"))
def test_the_story_holds(url: str, proxy: TcpProxy, rows: list[tuple[int, str]]) -> None:
    told = TroubleStory(url, proxy)
    try:
        assert told.play("postgresql.txt", rows)
    finally:
        told.standby("")
        told.close()


def what_is_there(store: Store) -> tuple[set[str], Position]:
    with store.read() as reading:
        return set(reading.scopes()), reading.position()


SAVED = ({"batch"}, Position(1, "a"))

HOLDER = """
import sys
from forewarn.store import postgresql
from forewarn.store.port import StoreUnavailable
from store.test_postgresql import QUICK, WEB, Changes, append

store = postgresql.open_store(sys.argv[1], patience=QUICK)
try:
    with store.write() as transaction:
        transaction.save(Changes(scopes=(WEB,)))
        append(transaction, "lost")
        print("holds the lock", flush=True)
        sys.stdin.readline()
except StoreUnavailable as error:
    print(type(error).__name__, flush=True)
store.close()
"""


@pytest.fixture
def holder(url: str) -> Iterator[forked.Forked]:
    """A process that has the lock, until it is told to go on."""
    with forked.Forked(
        ["-c", HOLDER, url],
        cwd=Path(__file__).parents[1],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "holds the lock\n"
        yield child
        child.kill()


def told_to_go_on(holder: forked.Forked) -> str:
    """Return what a holder says until its end."""
    assert holder.stdin is not None
    with holder.stdin as line:
        line.write("go on\n")
    said: str = holder.communicate(patience.SECONDS)[0]
    return said


def test_a_holder_of_the_lock_that_is_frozen_loses_it_and_changes_nothing(
    url: str, holder: forked.Forked
) -> None:
    holder.send_signal(signal.SIGSTOP)
    with opened(url) as patient:
        with patient.write() as transaction:  # waits until the other has lost the lock
            transaction.save(Changes(scopes=(BATCH,)))
            append(transaction, "a")
        holder.send_signal(signal.SIGCONT)
        assert told_to_go_on(holder) == "StoreUnavailable\n"
        assert what_is_there(patient) == SAVED


def test_a_holder_of_the_lock_that_decides_for_long_keeps_it(
    beside: PostgresqlStore, holder: forked.Forked
) -> None:
    assert SHORT.lock > QUICK.idle
    with pytest.raises(StoreUnavailable), beside.write():
        pass
    assert told_to_go_on(holder) == ""
    assert what_is_there(beside) == ({"web"}, Position(1, "lost"))


def test_a_reader_may_take_its_time_between_two_questions(url: str) -> None:
    """A start makes a whole fleet of what it has read, and holds up nobody meanwhile."""
    opened = postgresql.open_store(url, patience=QUICK)
    with opened.read() as reading:
        assert reading.scopes() == {}
        server().sql(f"SELECT pg_sleep({1.5 * QUICK.idle})")
        assert reading.machines() == {}
    opened.close()


def test_what_is_saved_goes_to_the_server_with_the_commit_or_before_a_question(
    store: PostgresqlStore, beside: PostgresqlStore
) -> None:
    its = "FROM pg_stat_activity WHERE datname = 'troubled' AND state = 'idle in transaction'"
    with store.write() as transaction:
        transaction.save(Changes(scopes=(BATCH,)))
        append(transaction, "a")
        assert "INSERT" not in server().sql(f"SELECT query {its}")
        assert set(transaction.scopes()) == {"batch"}
    assert what_is_there(beside) == SAVED


def test_a_sign_of_life_may_come_at_any_instant_of_a_transaction(
    store: PostgresqlStore, beside: PostgresqlStore
) -> None:
    often = postgresql._Deciding(0.0001)
    with store._pool.taken() as connection:
        connection._deciding = often
    for number in range(200):
        with store.write() as transaction:
            transaction.save(Changes(scopes=(WEB,)))
            assert transaction.scopes()
            append(transaction, str(number))
    assert what_is_there(beside)[1] == Position(200, "199")
    often.close()


def test_what_a_beat_wrote_after_a_removal_is_news_since_then(url: str) -> None:
    with opened(url) as removes, opened(url) as beats, ThreadPoolExecutor(1) as threads:
        save(removes, Changes(scopes=(WEB,), machines=(machine("a"), machine("b"))))
        with removes.write() as transaction:
            transaction.save(Changes(removed_machines=("a",)))
            beating = threads.submit(beats.beat, replica(), seen("b"))
            wait_for_locks(1)
            removed_at = removes.beat(replica())
        assert beating.result(patience.SECONDS) > removed_at
        with beats.read() as reading:
            assert [*reading.sightings(removed_at)] == ["b"]


def opened(url: str) -> "contextlib.closing[PostgresqlStore]":
    # What another test makes slow is no lock that is held for too long.
    long = Patience(lock=patience.SECONDS, answer=patience.SECONDS)
    return contextlib.closing(postgresql.open_store(url, patience=long))


def test_replicas_increments_are_all_counted_and_their_changes_are_in_order(url: str) -> None:
    stores = [postgresql.open_store(url) for _ in range(4)]
    save(stores[0], Changes(scopes=(WEB,)))

    def increment(number: int) -> None:
        with stores[number % 4].write() as transaction:
            scope = transaction.scopes()["web"]
            more = msgspec.structs.replace(scope, incarnation=scope.incarnation + 1)
            transaction.save(Changes(scopes=(more,)))
            append(transaction, str(more.incarnation))

    with ThreadPoolExecutor(8) as threads:
        assert len(list(threads.map(increment, range(80)))) == 80
    with stores[0].read() as reading:
        assert reading.scopes()["web"].incarnation == 80
        found = [(change.sequence, change.token) for change in reading.changes_after(0, 100)]
    assert found == [(number, str(number)) for number in range(1, 81)]
    for each in stores:
        each.close()


def test_the_time_is_the_databases(store: PostgresqlStore, beside: PostgresqlStore) -> None:
    with store.write() as transaction:
        first = transaction.now()
        assert first is not None
        append(transaction, "a", first)
    beat = beside.beat(replica("r2", beat_at=first.replace(year=2900)))
    with beside.read() as reading:
        assert first < reading.replicas()["r2"].beat_at <= beat
    with beside.write() as transaction:
        second = transaction.now()
    assert second is not None
    assert first < beat < second


def test_a_name_whose_connection_is_lost_is_free_and_its_holder_is_told(
    store: PostgresqlStore, beside: PostgresqlStore, proxy: TcpProxy
) -> None:
    member = store.join("r1")
    with pytest.raises(StoreUnusable):
        beside.join("r1")
    proxy.cut()
    with pytest.raises(StoreUnavailable):
        member.wait(patience.SECONDS)
    member.close()
    again = beside.join("r1")
    append_alone(beside, "a")
    assert again.wait(patience.SECONDS) == 1
    again.close()


@pytest.mark.parametrize("said", ["", "hello", "-1", "9" * 7000])
def test_a_notification_of_a_stranger_is_no_change(url: str, said: str) -> None:
    with contextlib.closing(postgresql.open_store(url)) as store:
        member = store.join("r1")
        server().sql(f"NOTIFY forewarn, '{said}'", "troubled")
        assert member.wait(patience.SECONDS) == 0
        member.close()


MEANINGS = {
    StoreUnavailable: "08006 25006 25P03 40P01 53100 53300 55P03 57014 57P01 58030",
    StoreUnusable: "28P01 3D000 42501 42P01 XX001",
    type(None): "23505 22021",
}


@pytest.mark.parametrize(
    ("kind", "sqlstate"), [(kind, one) for kind, every in MEANINGS.items() for one in every.split()]
)
def test_every_error_of_postgresqls_has_one_meaning(
    kind: type[StoreError] | None, sqlstate: str
) -> None:
    error = psycopg.errors.lookup(sqlstate)("it failed")
    explained = postgresql.explain(error, "postgresql://h/db")
    assert type(explained) is kind
    assert explained is None or "postgresql://h/db" in str(explained)


def test_an_argument_that_cannot_be_sent_is_no_lost_connection() -> None:
    assert postgresql.explain(psycopg.DataError("no NUL"), "postgresql://h/db") is None
    lost = postgresql.explain(psycopg.OperationalError("gone"), "postgresql://h/db")
    assert type(lost) is StoreUnavailable


SECRET = "correct horse battery"


@pytest.fixture(scope="module")
def strict() -> Iterator[Postgres]:
    """The server, with users whom it asks for a password over TCP."""
    asks = server()
    asks.sql(f"CREATE ROLE fleet LOGIN PASSWORD '{SECRET}'")
    asks.sql("CREATE ROLE guest LOGIN PASSWORD 'guest'")
    asks.sql("CREATE DATABASE fleet OWNER fleet")
    yield asks
    asks.drop_database("fleet")
    asks.sql("DROP ROLE fleet, guest")


def strict_url(strict: Postgres, database: str = "fleet", user: str = "fleet") -> str:
    return f"postgresql://{user}@127.0.0.1:{strict.port}/{database}"


def refusal(url: str, secret: str, folder: Path) -> StoreError:
    file = folder / "secret"
    file.write_text(secret + "\n")
    file.chmod(0o600)
    with pytest.raises(StoreError) as refused:
        postgresql.open_store(url, password_file=file, patience=SHORT).close()
    said = str(refused.value)
    assert "\n" not in said
    assert not secret or secret not in said
    return refused.value


def test_the_password_is_read_from_its_file_for_each_connection(
    strict: Postgres, tmp_path: Path
) -> None:
    file = tmp_path / "secret"
    file.write_text(f"{SECRET}\n")
    file.chmod(0o640)
    made: list[str] = []
    for _ in range(2):
        store = postgresql.open_store(
            strict_url(strict), password_file=file, made=lambda: made.append("made")
        )
        save(store, Changes(scopes=(WEB,)))
        store.close()
    assert made == ["made"]


@pytest.mark.parametrize("mode", [0o644, 0o620, 0o604])
def test_a_password_that_others_may_read_or_change_is_refused(
    strict: Postgres, tmp_path: Path, mode: int
) -> None:
    file = tmp_path / "secret"
    file.write_text(f"{SECRET}\n")
    file.chmod(mode)
    with pytest.raises(StoreUnusable, match=f"{mode:04o}"):
        postgresql.open_store(strict_url(strict), password_file=file)


@pytest.mark.parametrize(
    ("database", "user", "secret", "kind", "fault"),
    [
        ("fleet", "fleet", "wrong", StoreUnusable, "password"),
        ("fleet", "fleet", "", StoreUnusable, "password"),
        ("fleet", "nobody", "x", StoreUnusable, "nobody"),
        ("lost", "fleet", SECRET, StoreUnusable, "lost"),
        ("postgres", "guest", "guest", StoreUnusable, "permission"),
    ],
)
def test_whom_the_server_does_not_let_in_is_told_why(
    strict: Postgres,
    tmp_path: Path,
    database: str,
    user: str,
    secret: str,
    kind: type[StoreError],
    fault: str,
) -> None:
    refused = refusal(strict_url(strict, database, user), secret, tmp_path)
    assert type(refused) is kind
    assert fault in str(refused)


@pytest.mark.parametrize("host", ["127.0.0.1:1", "no-such-host.invalid"])
def test_a_server_that_is_not_there_may_come_back(tmp_path: Path, host: str) -> None:
    refused = refusal(f"postgresql://fleet@{host}/fleet", "", tmp_path)
    assert type(refused) is StoreUnavailable
    assert host.partition(":")[0] in str(refused)


def test_a_standby_alone_is_not_enough_and_the_primary_is_found_behind_it(
    url: str, tmp_path: Path
) -> None:
    standby = server().standby("s1").start()
    try:
        refused = refusal(standby.url("troubled"), "", tmp_path)
        assert type(refused) is StoreUnavailable
        both = f"127.0.0.1:{standby.port},127.0.0.1:{server().port}"
        store = postgresql.open_store(f"postgresql://postgres@{both}/troubled")
        save(store, Changes(scopes=(WEB,)))
        store.close()
    finally:
        standby.remove()


@pytest.mark.parametrize(
    ("statement", "fault"),
    [
        ("UPDATE meta SET value = '9999' WHERE name = 'schema'", "'9999'"),
        ("COMMENT ON TABLE meta IS NULL", "another program"),
        ("ALTER DATABASE spoilt SET synchronous_commit = off", "synchronous_commit"),
        ("ALTER TABLE changes RENAME TO gone", "missing"),
    ],
)
def test_a_database_that_is_not_ours_or_not_safe_is_refused(statement: str, fault: str) -> None:
    url = server().create_database("spoilt", template="template_of_tests")
    server().sql(statement, "spoilt")
    with (
        pytest.raises(StoreUnusable) as refused,
        contextlib.closing(postgresql.open_store(url)) as opened,
    ):
        save(opened, Changes(scopes=(WEB,)))
    server().drop_database("spoilt")
    assert fault in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_database_that_is_not_in_utf8_is_refused() -> None:
    server().sql(
        "CREATE DATABASE latin TEMPLATE template0 ENCODING LATIN1 LC_COLLATE 'C' LC_CTYPE 'C'"
    )
    with pytest.raises(StoreUnusable, match="LATIN1"):
        postgresql.open_store(server().url("latin"))
    server().drop_database("latin")


@pytest.mark.parametrize(
    ("version", "encoding", "synchronous_commit", "fault"),
    [
        (13, "UTF8", "on", "14"),
        (15, "SQL_ASCII", "on", "SQL_ASCII"),
        (15, "UTF8", "off", "synchronous_commit"),
        (14, "UTF8", "on", ""),
        (18, "UTF8", "remote_apply", ""),
    ],
)
def test_a_server_that_cannot_keep_the_promises_has_a_fault(
    version: int, encoding: str, synchronous_commit: str, fault: str
) -> None:
    found = postgresql.fault_of_server(version, encoding, synchronous_commit)
    assert fault in found
    assert bool(found) == bool(fault)
