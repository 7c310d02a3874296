"""The schema equals the sum of the migrations, and an older database keeps its data."""

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, text

from forewarn.maintenance.model import Changes
from forewarn.store import schema, sql, sqlite, tables
from store.values import WEB

SCRIPTS = ScriptDirectory(schema.SCRIPTS)
OLDER = [s.revision for s in SCRIPTS.walk_revisions() if s.revision != schema.HEAD]


def definitions(connection: Connection) -> dict[tuple[str, str], str]:
    """What SQLite says was created, each statement's spaces and order of constraints apart."""
    found = connection.execute(text("SELECT type, name, sql FROM sqlite_master")).fetchall()
    return {
        (row.type, row.name): " ".join(sorted((row.sql or "").replace(",", " ").split()))
        for row in found
        if row.name != "alembic_version" and "alembic_version" not in row.name
    }


def migrated(engine: Engine, revision: str = "head") -> None:
    config = Config()
    config.set_main_option("script_location", str(schema.SCRIPTS))
    with engine.execution_options(**{sqlite.WRITING: True}).begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)


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


def test_an_empty_file_becomes_a_database(tmp_path: Path) -> None:
    (tmp_path / "new.db").touch()
    store = sql.open_sqlite(tmp_path / "new.db")
    with store.write() as transaction:
        transaction.save(Changes(scopes=(WEB,)))
        assert transaction.scopes() == {"web": WEB}
    store.close()


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
