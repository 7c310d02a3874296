"""The schema equals the sum of the migrations, and an older database keeps its data."""

import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, text

from forewarn.maintenance.model import Approval, Changes
from forewarn.store import schema, sql, sqlite, tables
from forewarn.store.port import HistoryQuery
from forewarn.vocabulary import ApproverKind, EventStatus
from store import values
from store.values import BATCH, MINUTE, NOW, WEB, event, machine, operation

SCRIPTS = ScriptDirectory(schema.SCRIPTS)
FIRST_RELEASE = Path(__file__).with_name("first_release.sql")
APPROVAL = Approval(kind=ApproverKind.GUEST, by="Web-0", address="10.0.0.1", at=NOW)
replace = msgspec.structs.replace
OLDER = [s.revision for s in SCRIPTS.walk_revisions() if s.revision != schema.HEAD]


def definitions(connection: Connection) -> dict[tuple[str, str], str]:
    """What SQLite says was created, each statement's spaces and the order of its parts apart."""
    found = connection.execute(text("SELECT type, name, sql FROM sqlite_master")).fetchall()
    return {
        (row.type, row.name): " ".join(sorted(re.sub(r"([(),])", r" \1 ", row.sql or "").split()))
        for row in found
        if row.name != "alembic_version" and "alembic_version" not in row.name
    }


def migrated(engine: Engine, revision: str = "head") -> None:
    config = Config()
    config.set_main_option("script_location", str(schema.SCRIPTS))
    with engine.execution_options(**{sqlite.WRITING: True}).begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)


def first_release(folder: Path) -> Path:
    """A database as the first release left it: its schema and rows of its own writing."""
    path = folder / "first.db"
    engine = sqlite.file_engine(path)
    migrated(engine, "0001")
    engine.dispose()
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA application_id = {sqlite.APPLICATION_ID}")
    connection.executescript(FIRST_RELEASE.read_text())
    connection.close()
    return path


def test_the_schema_equals_the_sum_of_the_migrations() -> None:
    by_steps, at_once = sqlite.memory_engine(), sqlite.memory_engine()
    migrated(by_steps)
    tables.metadata.create_all(at_once)
    with by_steps.connect() as left, at_once.connect() as right:
        context = MigrationContext.configure(left, opts={"compare_server_default": True})
        assert compare_metadata(context, tables.metadata) == []
        assert definitions(left) == definitions(right)
        assert len(definitions(left)) > len(tables.metadata.tables)
    by_steps.dispose()
    at_once.dispose()


def test_the_revision_in_the_code_is_the_newest_of_the_scripts() -> None:
    assert SCRIPTS.get_heads() == [schema.HEAD]
    assert [s.revision for s in SCRIPTS.walk_revisions()][-1] == "0001"


def test_a_new_database_is_migrated_and_marked_as_ours(tmp_path: Path) -> None:
    sql.open_sqlite(tmp_path / "new.db").close()
    connection = sqlite3.connect(tmp_path / "new.db")
    ((mark,),) = connection.execute("PRAGMA application_id")
    ((mode,),) = connection.execute("PRAGMA journal_mode")
    revisions = connection.execute("SELECT version_num FROM alembic_version").fetchall()
    connection.close()
    assert (mark, mode, revisions) == (sqlite.APPLICATION_ID, "wal", [(schema.HEAD,)])


def test_a_database_of_the_first_release_keeps_all_that_it_held(tmp_path: Path) -> None:
    path = first_release(tmp_path)
    store = sql.open_sqlite(path)
    with store.read() as reading:
        assert reading.scopes() == {"web": WEB, "batch": BATCH}
        assert reading.machines() == {
            "web-0": machine("Web-0", host="h2"),
            "web-1": machine("web-1", host="h1"),
            "b_0": machine("b_0", "batch"),
        }
        assert reading.maintenances([1, 2, 9]) == {
            1: replace(values.maintenance(1), announced=11),
            2: replace(values.maintenance(2), announced=1),
            9: values.maintenance(9),
        }
        events = (
            event("A", "web", "web-1", "Web-0", approval=APPROVAL),
            event("B", "batch", "b_0"),
        )
        live = operation("1.11", *events, hosts=("h1", "h2"))
        over = {"status": EventStatus.COMPLETED, "ended_at": NOW}
        unknown = operation("2.1", event("D", "batch", "b_0"))
        assert reading.operations(["1.2", "1.11", "2.1"]) == {
            "1.2": operation("1.2", event("C", "web", "Web-0"), **over),
            "1.11": live,
            "2.1": unknown,
        }
        assert reading.live_operations(["web"]) == {"1.11": live}
        found = reading.history(HistoryQuery(machine="web-0")).operations
        assert [o.id for o in found] == ["1.11", "1.2"]
        assert reading.due(live.not_before, 9) == {"1.11": live, "2.1": unknown}
        assert reading.open_maintenances() == reading.lost() == {}
        assert reading.holds() == ()
        assert reading.setting("origin") == "1"
    with store.write() as transaction:
        assert transaction.next_maintenance_number() == 10
        transaction.save(Changes(operations=(replace(live, outcome_unknown="?"),)))
        assert transaction.purge(NOW + MINUTE, 9) == 1
        assert transaction.operations(["1.2", "1.11"]) == {
            "1.11": replace(live, outcome_unknown="?")
        }
    store.close()
    after = sqlite3.connect(path)
    assert after.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert after.execute("PRAGMA foreign_key_check").fetchall() == []
    after.close()


def test_an_upgrade_that_fails_half_way_leaves_the_older_database_as_it_was(tmp_path: Path) -> None:
    path = first_release(tmp_path)

    def dump() -> list[str]:
        connection = sqlite3.connect(path)
        with closing(connection):
            return list(connection.iterdump())

    in_the_way = sqlite3.connect(path)
    in_the_way.execute("CREATE TABLE lost_machines (in_the_way TEXT)")  # the last one made
    in_the_way.close()
    before = dump()
    with pytest.raises(Exception, match="lost_machines already exists"):
        sql.open_sqlite(path)
    assert dump() == before
    away = sqlite3.connect(path)
    away.execute("DROP TABLE lost_machines")
    away.close()
    sql.open_sqlite(path).close()


@pytest.mark.parametrize("revision", ["base", *OLDER])
def test_an_older_database_is_upgraded_and_its_data_kept(tmp_path: Path, revision: str) -> None:
    path = tmp_path / "old.db"
    engine = sqlite.file_engine(path)
    with engine.begin() as connection:
        connection.exec_driver_sql(f"PRAGMA application_id = {sqlite.APPLICATION_ID}")
        connection.exec_driver_sql("CREATE TABLE kept (value TEXT)")
        connection.exec_driver_sql("INSERT INTO kept VALUES ('here')")
    if revision != "base":
        migrated(engine, revision)
    engine.dispose()
    store = sql.open_sqlite(path)
    with store.write() as transaction:
        transaction.save(Changes(scopes=(WEB,)))
    store.close()
    connection_after = sqlite3.connect(path)
    assert connection_after.execute("SELECT value FROM kept").fetchall() == [("here",)]
    found = connection_after.execute("SELECT version_num FROM alembic_version").fetchall()
    connection_after.close()
    assert found == [(schema.HEAD,)]


def test_a_migration_that_fails_half_way_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "half.db"
    engine = sqlite.file_engine(path)
    with engine.begin() as connection:
        connection.exec_driver_sql(f"PRAGMA application_id = {sqlite.APPLICATION_ID}")
        connection.exec_driver_sql("CREATE TABLE settings (in_the_way TEXT)")  # the last one made
    engine.dispose()
    with pytest.raises(Exception, match="settings already exists"):
        sql.open_sqlite(path)
    after = sqlite3.connect(path)
    names = after.execute("SELECT name FROM sqlite_master").fetchall()
    after.close()
    assert names == [("settings",)]


def test_a_database_that_is_up_to_date_opens_without_alembic_and_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "100%" / "new.db"
    path.parent.mkdir()
    program = (
        "import sys, pathlib; from forewarn.store import sql; "
        "sql.open_sqlite(pathlib.Path(sys.argv[1])).close(); print('alembic' in sys.modules)"
    )
    said = [
        subprocess.run(
            [sys.executable, "-c", program, str(path)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        for _ in range(2)
    ]
    assert [(s.stdout.strip(), s.stderr) for s in said] == [("True", ""), ("False", "")]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["100%"]
