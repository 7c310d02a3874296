"""The schema equals the sum of the migrations, and an older database keeps its data."""

import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine, text

from forewarn.maintenance.model import Changes
from forewarn.store import migrations, sqlite, tables
from store.values import WEB

SCRIPTS = ScriptDirectory(migrations.SCRIPTS)


def definitions(connection: Connection) -> dict[tuple[str, str], str]:
    """What SQLite says was created, each statement's spaces and the order of its parts apart."""
    found = connection.execute(text("SELECT type, name, sql FROM sqlite_master")).fetchall()
    return {
        (row.type, row.name): " ".join(sorted(re.sub(r"([(),])", r" \1 ", row.sql or "").split()))
        for row in found
        if row.name != "alembic_version" and "alembic_version" not in row.name
    }


def test_the_schema_equals_the_sum_of_the_migrations() -> None:
    by_steps, at_once = create_engine("sqlite://"), create_engine("sqlite://")
    with by_steps.begin() as left, at_once.begin() as right:
        migrations.migrate(left)
        tables.metadata.create_all(right)
        context = MigrationContext.configure(left, opts={"compare_server_default": True})
        assert compare_metadata(context, tables.metadata) == []
        assert definitions(left) == definitions(right)
        assert len(definitions(left)) > len(tables.metadata.tables)
    by_steps.dispose()
    at_once.dispose()


def test_the_revision_in_the_code_is_the_newest_of_the_scripts() -> None:
    assert SCRIPTS.get_heads() == [migrations.HEAD]


def test_a_new_database_is_migrated_and_marked_as_ours(tmp_path: Path) -> None:
    sqlite.open_store(tmp_path / "new.db").close()
    connection = sqlite3.connect(tmp_path / "new.db")
    ((mark,),) = connection.execute("PRAGMA application_id")
    ((mode,),) = connection.execute("PRAGMA journal_mode")
    revisions = connection.execute("SELECT version_num FROM alembic_version").fetchall()
    connection.close()
    assert (mark, mode, revisions) == (sqlite.APPLICATION_ID, "wal", [(migrations.HEAD,)])


def older(path: Path, *statements: str) -> None:
    """Make a database of ours without a schema yet."""
    connection = sqlite3.connect(path)
    for statement in (f"PRAGMA application_id = {sqlite.APPLICATION_ID}", *statements):
        connection.execute(statement)
    connection.commit()
    connection.close()


def test_an_older_database_is_upgraded_and_its_data_kept(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    older(path, "CREATE TABLE kept (value TEXT)", "INSERT INTO kept VALUES ('here')")
    store = sqlite.open_store(path)
    with store.write() as transaction:
        transaction.save(Changes(scopes=(WEB,)))
    store.close()
    after = sqlite3.connect(path)
    assert after.execute("SELECT value FROM kept").fetchall() == [("here",)]
    assert after.execute("PRAGMA foreign_key_check").fetchall() == []
    found = after.execute("SELECT version_num FROM alembic_version").fetchall()
    after.close()
    assert found == [(migrations.HEAD,)]


def test_a_migration_that_fails_half_way_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "half.db"
    older(path, "CREATE TABLE settings (in_the_way TEXT)")  # the last one made
    with pytest.raises(Exception, match="settings already exists"):
        sqlite.open_store(path)
    after = sqlite3.connect(path)
    names = after.execute("SELECT name FROM sqlite_master").fetchall()
    after.close()
    assert names == [("settings",)]


def test_a_database_that_is_up_to_date_opens_without_alembic_and_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "100%" / "new.db"
    path.parent.mkdir()
    program = (
        "import sys, pathlib; from forewarn.store import sqlite; "
        "sqlite.open_store(pathlib.Path(sys.argv[1])).close(); print('alembic' in sys.modules)"
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
