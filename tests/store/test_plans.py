"""Each question is an index look-up, however long the history; and few queries in all."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from sqlalchemy import event

import patience
from control.busy import Busy
from forewarn.maintenance import fleet_file
from forewarn.maintenance.model import Changes
from forewarn.maintenance.planner import Request
from forewarn.store import sql, sqlite
from forewarn.store.port import AuditQuery, HistoryQuery, NewChange, Reading
from forewarn.vocabulary import EventStatus, EventType
from store import engines, values
from store.values import MINUTE, NOW, WEB, machine, operation, with_maintenances

LATER = NOW + 99 * MINUTE
IN_ORDER = "SCAN operations USING INDEX ix_operations_announced_at_sequence"
"""The first page of all there is: it walks the index of times, and no further than the page."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sql.SqlStore]:
    opened = sqlite.open_store(tmp_path_factory.mktemp("plans") / "it.db")
    assert isinstance(opened, sql.SqlStore)
    fill(opened)
    yield opened
    opened.close()


def fill(opened: sql.SqlStore) -> None:
    made = [
        operation(f"{n // 10}.{n}", values.event(f"E{n}", f"s{n % 7}", f"m{n % 50}"))
        for n in range(2000)
    ]
    with opened.write() as transaction:
        machines = tuple(machine(f"m{n}") for n in range(50))
        transaction.save(Changes(scopes=(WEB,), machines=machines))
        transaction.save(with_maintenances(*made))


@pytest.fixture(scope="module")
def on_postgresql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sql.SqlStore]:
    opened = engines.open_postgresql(tmp_path_factory.mktemp("plans"))
    assert isinstance(opened, sql.SqlStore)
    fill(opened)
    yield opened
    opened.close()


@contextmanager
def statements(store: sql.SqlStore) -> Iterator[list[tuple[str, object]]]:
    seen: list[tuple[str, object]] = []

    def note(_conn: object, _cursor: object, text: str, parameters: object, *_: object) -> None:
        seen.append((text, parameters))

    event.listen(store._engine, "before_cursor_execute", note)
    yield seen
    event.remove(store._engine, "before_cursor_execute", note)


def scans(store: sql.SqlStore, seen: list[tuple[str, object]]) -> dict[str, list[str]]:
    """Which tables each statement reads whole."""
    found: dict[str, list[str]] = {}
    with store._engine.connect() as connection:
        for text, parameters in seen:
            plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}", parameters).fetchall()
            found[text] = [row[3] for row in plan if row[3].startswith("SCAN")]
    return found


QUESTIONS: dict[str, Callable[[Reading], object]] = {
    "scopes by key": lambda r: r.scopes(["web"]),
    "machines by key": lambda r: r.machines(["m1", "m2"]),
    "machines by scope": lambda r: r.machines_of(["web"]),
    "machines by host": lambda r: r.machines_on(["h1", ""]),
    "relays' tokens by host": lambda r: r.relay_tokens(["h1", "h2"]),
    "operations by id": lambda r: r.operations(["0.1", "0.2"]),
    "operations by maintenance": lambda r: r.operations_of_maintenance(3),
    "operations by event": lambda r: r.operations_of_events(["E1"]),
    "live in scopes": lambda r: r.live_operations(["s1", "s2"]),
    "live": lambda r: r.live_operations(),
    "maintenances": lambda r: r.maintenances([1, 2]),
    "open maintenances": lambda r: r.open_maintenances(),
    "latest maintenances": lambda r: r.latest_maintenances(100, 10),
    "maintenance by idempotency key": lambda r: r.maintenance_of_key("k"),
    "next wakeup": lambda r: r.next_wakeup(),
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
    "a change": lambda r: r.change(5),
    "news after": lambda r: r.news_after(5, 10),
    "news trimmed": lambda r: r.news_trimmed(),
    "outcomes of maintenances": lambda r: r.outcomes([3, 4]),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_no_question_reads_a_whole_table(store: sql.SqlStore, question: str) -> None:
    with store.read() as reading, statements(store) as seen:
        QUESTIONS[question](reading)
    assert seen
    for text, found in scans(store, seen).items():
        in_order = question == "history" and "FROM operations" in text
        assert found == ([IN_ORDER] if in_order else []), text


def test_purging_reads_no_whole_table(store: sql.SqlStore) -> None:
    over = {"status": EventStatus.COMPLETED, "ended_at": NOW}
    with store.write() as transaction:
        transaction.save(with_maintenances(operation("1000.1", **over)))
    with store.write() as transaction, statements(store) as seen:
        assert transaction.purge(LATER, 10) == 1
    assert len(seen) == 3
    assert [found for found in scans(store, seen).values() if found] == []


def test_a_thousand_operations_are_read_and_written_in_few_statements(store: sql.SqlStore) -> None:
    with store.write() as transaction, statements(store) as seen:
        live = transaction.live_operations()
        assert len(live) == 2000
        assert len(seen) <= 5
        seen.clear()
        transaction.save(Changes(operations=tuple(live.values())))
        assert len(seen) <= 5


@pytest.mark.parametrize("many", [2, 40])
def test_a_batch_of_approvals_takes_the_same_few_statements(tmp_path: Path, many: int) -> None:
    store = sqlite.open_store(tmp_path / "it.db")
    assert isinstance(store, sql.SqlStore)
    busy, names = Busy(store), tuple(f"m{n}" for n in range(many))
    wanted = msgspec.convert({"machine": [{"name": name} for name in names]}, fleet_file.Fleet)
    busy.plane.apply_fleet(wanted).result(patience.SECONDS)
    plan = busy.plane.request(Request(event_type=EventType.FREEZE, machines=names)).result(
        patience.SECONDS
    )
    events = [operation.events[0] for operation in plan.operations]
    busy.hold()
    with statements(store) as seen:
        asked = [busy.plane.approve(e.scope, [e.id], by="m", address="") for e in events]
        busy.release()
        assert all(one.result(patience.SECONDS)[0].status is EventStatus.STARTED for one in asked)
    busy.close()
    verbs = [text.partition(" ")[0] for text, _ in seen]
    assert (verbs.count("SELECT"), verbs.count("INSERT")) == (1, 4)


def test_a_page_of_history_by_status_is_read_in_its_order(store: sql.SqlStore) -> None:
    scheduled = HistoryQuery(statuses=(EventStatus.SCHEDULED,), limit=10)
    with store.read() as reading, statements(store) as seen:
        reading.history(scheduled)
    (text, parameters), *_ = seen
    with store._engine.connect() as connection:
        plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}", parameters).fetchall()
    steps = [row[3] for row in plan]
    assert not any("TEMP B-TREE" in step for step in steps), steps


def postgresql_scans(store: sql.SqlStore, seen: list[tuple[str, object]]) -> dict[str, list[str]]:
    """Which tables each statement can only read whole, or sort, on PostgreSQL."""
    found: dict[str, list[str]] = {}
    with store._engine.connect() as connection:
        # Small tables are read whole in any case, unless that is forbidden where there is a way.
        connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
        for text, parameters in seen:
            plan = connection.exec_driver_sql(f"EXPLAIN {text}", parameters).fetchall()
            if whole := [row[0].strip() for row in plan if "Seq Scan" in row[0]]:
                found[text] = whole
    return found


@engines.NEEDS_POSTGRESQL
@pytest.mark.parametrize("question", QUESTIONS)
def test_no_question_reads_a_whole_table_on_postgresql(
    on_postgresql: sql.SqlStore, question: str
) -> None:
    with on_postgresql.read() as reading, statements(on_postgresql) as seen:
        QUESTIONS[question](reading)
    assert seen
    assert not {
        text: found for text, found in postgresql_scans(on_postgresql, seen).items() if found
    }


@engines.NEEDS_POSTGRESQL
def test_the_plan_of_a_whole_table_is_told(on_postgresql: sql.SqlStore) -> None:
    seen: list[tuple[str, object]] = [("SELECT * FROM operations WHERE description = 'x'", None)]
    assert postgresql_scans(on_postgresql, seen)


@engines.NEEDS_POSTGRESQL
def test_writing_reads_no_whole_table_on_postgresql(on_postgresql: sql.SqlStore) -> None:
    over = {"status": EventStatus.COMPLETED, "ended_at": NOW}
    with on_postgresql.write() as transaction, statements(on_postgresql) as seen:
        transaction.save(with_maintenances(operation("1000.1", **over)))
        change = NewChange(token="t", replica="r1", at=NOW, format=1, body=b"x")
        transaction.append(change, b"[1]")
        transaction.purge(LATER, 10)
        transaction.trim(LATER, 10)
        transaction.trim_news(LATER, 10)
        transaction.next_maintenance_number()
    written = [(text, p[0] if isinstance(p, list) else p) for text, p in seen]
    assert len(written) > 8
    assert not {
        text: found for text, found in postgresql_scans(on_postgresql, written).items() if found
    }
