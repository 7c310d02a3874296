"""Each question is an index look-up, however long the history; and few queries in all."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import patience
from control.conftest import Busy
from forewarn.maintenance import fleet_file
from forewarn.maintenance.model import Changes
from forewarn.maintenance.planner import Request
from forewarn.store import postgresql, sql, sqlite
from forewarn.store.connections import DatabaseConnection, Pool
from forewarn.store.port import AuditQuery, ChangeRecord, HistoryQuery
from forewarn.store.queries import Reading
from forewarn.vocabulary import EventStatus, EventType
from store import engines, values
from store.values import MINUTE, NOW, WEB, machine, operation, with_maintenances

LATER = NOW + 99 * MINUTE
WALKS = {
    "history": "SCAN o USING INDEX operations_1",
    "position": "SCAN changes",
    "live": "SCAN operations USING INDEX operations_4",
    "open maintenances": "SCAN maintenances USING INDEX maintenances_1",
}
"""No further than one page or row, or through an index of what is live alone."""


Seen = list[tuple[str, Any]]
"""Statements, and the values of each."""


class Noting(DatabaseConnection):
    """Notes what it runs."""

    seen: Seen

    def _execute(self, sql: str, values: Any) -> Any:
        self.seen.append((sql, values))
        return super()._execute(sql, values)

    def _send(self, sql: str, values: Any) -> None:
        self.seen.append((sql, values))
        super()._send(sql, values)

    def _write(self, sql: str, rows: list[Any]) -> None:
        marks = ", ".join("?" * len(rows[0]))
        self.seen.append((sql.format(rows=f"VALUES ({marks})"), rows[0]))
        super()._write(sql, rows)


class NotingFile(Noting, sqlite.SqliteConnection):
    """In a file."""


class NotingServer(Noting, postgresql.PostgresqlConnection):
    """On a server."""


def noting(path: Path, seen: Seen) -> sql.SqlStore[Any]:
    def connect() -> NotingFile:
        made = NotingFile(path)
        made.seen = seen
        return made

    return sql.SqlStore(Pool(connect, patience.SECONDS, "it"))


def noting_server(url: str, seen: Seen) -> sql.SqlStore[Any]:
    access = postgresql.Access(url, None, postgresql.Patience())
    deciding = postgresql._Deciding(patience.SECONDS)

    def connect() -> NotingServer:
        made = NotingServer(access, deciding)
        made.seen = seen
        return made

    pool = Pool(connect, patience.SECONDS, "it", release=deciding.close)
    return postgresql.PostgresqlStore(pool, access)


class Noted:
    """A store with a long history, and what it was asked."""

    def __init__(self, engine: engines.Engine, folder: Path) -> None:
        self.in_file = engine is engines.SQLITE
        self.seen: Seen = []
        engine.open(folder).close()
        self.store = (
            noting(folder / "store.db", self.seen)
            if self.in_file
            else noting_server((folder / "postgresql.url").read_text(), self.seen)
        )
        made = [
            operation(f"{n // 10}.{n}", values.event(f"E{n}", f"s{n % 7}", f"m{n % 50}"))
            for n in range(2000)
        ]
        with self.store.write() as transaction:
            machines = tuple(machine(f"m{n}") for n in range(50))
            transaction.save(Changes(scopes=(WEB,), machines=machines))
            transaction.save(with_maintenances(*made))

    def plans(self, explain: str) -> dict[str, list[str]]:
        """How each statement is carried out, a line a step."""
        noted = [*self.seen]
        with self.store._pool.taken() as connection:
            if not self.in_file:
                # Small tables are read whole in any case, unless that is forbidden.
                connection.run("SET enable_seqscan = off")
            return {
                text: [str(row[-1]).strip() for row in connection.run(f"{explain} {text}", given)]
                for text, given in noted
            }

    def scans(self) -> dict[str, list[str]]:
        """Which tables each statement reads whole, or on PostgreSQL can only read whole."""
        if not self.in_file:
            found = self.plans("EXPLAIN")
            return {text: [s for s in steps if "Seq Scan" in s] for text, steps in found.items()}
        found = self.plans("EXPLAIN QUERY PLAN")
        return {
            # The keys that a statement is given are no table.
            text: [s for s in steps if s.startswith("SCAN") and NO_TABLE.isdisjoint(s.split())]
            for text, steps in found.items()
        }


NO_TABLE = {"json_each", "CONSTANT"}


@pytest.fixture(scope="module", params=engines.parameters(engines.ENGINES), ids=str)
def noted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Noted]:
    made = Noted(request.param, tmp_path_factory.mktemp("plans"))
    yield made
    made.store.close()


QUESTIONS: dict[str, Callable[[Reading], object]] = {
    "scopes": lambda r: r.scopes(),
    "machines": lambda r: r.machines(),
    "operations by id": lambda r: r.operations(["0.1", "0.2"]),
    "operations by maintenance": lambda r: r.operations_of_maintenance(3),
    "operations by event": lambda r: r.operations_of_events(["E1"]),
    "live": lambda r: r.live_operations(),
    "maintenances": lambda r: r.maintenances([1, 2]),
    "open maintenances": lambda r: r.open_maintenances(),
    "latest maintenances": lambda r: r.latest_maintenances(100, 10),
    "maintenance by idempotency key": lambda r: r.maintenance_of_key("k"),
    "ended": lambda r: r.ended(NOW, 10),
    "ends": lambda r: r.ends(NOW),
    "history": lambda r: r.history(HistoryQuery(limit=10)),
    "history by machine": lambda r: r.history(HistoryQuery(machine="m1", limit=10)),
    "history by scope": lambda r: r.history(HistoryQuery(scope="s1", limit=10)),
    "history by maintenance": lambda r: r.history(HistoryQuery(maintenance=1, limit=10)),
    "history by time": lambda r: r.history(HistoryQuery(since=NOW, until=LATER, limit=10)),
    "history by status": lambda r: r.history(
        HistoryQuery(statuses=(EventStatus.SCHEDULED,), limit=10)
    ),
    "audit by account": lambda r: r.audit(AuditQuery(by="ann", limit=10)),
    "audit page": lambda r: r.audit(AuditQuery(before=50, limit=10)),
    "setting": lambda r: r.setting("x"),
    "position": lambda r: r.position(),
    "changes after": lambda r: r.changes_after(5, 10),
    "news after": lambda r: r.news_after(5, 10),
    "news trimmed": lambda r: r.news_trimmed(),
    "outcomes of maintenances": lambda r: r.outcomes([3, 4]),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_no_question_reads_a_whole_table(noted: Noted, question: str) -> None:
    with noted.store.read() as reading:
        noted.seen.clear()
        QUESTIONS[question](reading)
    assert noted.seen
    walks = [WALKS[question]] if noted.in_file and question in WALKS else []
    for text, found in noted.scans().items():
        assert found == walks, text


def test_purging_and_writing_read_no_whole_table(noted: Noted) -> None:
    over = {"status": EventStatus.COMPLETED, "ended_at": NOW}
    with noted.store.write() as transaction:
        transaction.save(with_maintenances(operation("1000.1", **over)))
        change = ChangeRecord(token="t", replica="r1", at=NOW, format=1, body=b"[]")
        transaction.append(change, b"[1]")
    with noted.store.write() as transaction:
        noted.seen.clear()
        assert transaction.purge(LATER, 10) == 1
        transaction.trim(LATER, 10)
        transaction.trim_news(LATER, 10)
        transaction.next_maintenance_number()
        transaction.save(with_maintenances(operation("1001.1", **over)))
    assert len(noted.seen) > 8
    found = [steps for steps in noted.scans().values() if steps]
    # A trim reads the oldest rows.
    walks = [[WALKS["open maintenances"]], [WALKS["position"]], ["SCAN news"]]
    assert found == (walks if noted.in_file else [])


def test_a_thousand_operations_are_read_and_written_in_few_statements(noted: Noted) -> None:
    seen = noted.seen
    with noted.store.write() as transaction:
        seen.clear()
        live = transaction.live_operations()
        assert (len(live), len(seen)) == (2000, 1)
        seen.clear()
        had = {("operations", name): one for name, one in live.items()}
        transaction.save(Changes(operations=tuple(live.values())), had=had)
        assert len(seen) <= 2


@pytest.mark.parametrize("many", [2, 40])
def test_a_batch_of_approvals_takes_the_same_few_statements(tmp_path: Path, many: int) -> None:
    sqlite.open_store(tmp_path / "it.db").close()
    seen: Seen = []
    store = noting(tmp_path / "it.db", seen)
    busy, names = Busy(store), tuple(f"m{n}" for n in range(many))
    wanted = msgspec.convert({"machine": [{"name": name} for name in names]}, fleet_file.Fleet)
    busy.plane.apply_fleet(wanted).result(patience.SECONDS)
    plan = busy.plane.request(Request(event_type=EventType.FREEZE, machines=names)).result(
        patience.SECONDS
    )
    events = [operation.events[0] for operation in plan.operations]
    busy.hold()
    seen.clear()
    asked = [busy.plane.approve(e.scope, [e.id], by="m", address="") for e in events]
    busy.release()
    assert all(one.result(patience.SECONDS)[0].status is EventStatus.STARTED for one in asked)
    busy.close()
    store.close()
    verbs = [text.partition(" ")[0] for text, _ in seen]
    assert (verbs.count("SELECT"), verbs.count("INSERT")) == (1, 4)


def test_a_page_of_history_by_status_is_read_in_its_order(noted: Noted) -> None:
    scheduled = HistoryQuery(statuses=(EventStatus.SCHEDULED,), limit=10)
    with noted.store.read() as reading:
        noted.seen.clear()
        reading.history(scheduled)
    if noted.in_file:
        (steps,) = noted.plans("EXPLAIN QUERY PLAN").values()
        assert not any("TEMP B-TREE" in step for step in steps), steps


def test_the_plan_of_a_whole_table_is_told(noted: Noted) -> None:
    text = "SELECT * FROM operations WHERE body = 'x'"
    noted.seen[:] = [(text, ())]
    assert noted.scans()[text]
