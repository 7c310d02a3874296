"""What a new database has, and what becomes of one that another build wrote."""

import contextlib
import sqlite3
from pathlib import Path

import psycopg
import pytest

from forewarn.store import schema, sqlite
from forewarn.store.port import StoreUnusable
from store import engines


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


def test_a_database_of_a_build_before_the_first_release_is_refused_and_left(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA application_id = {sqlite.APPLICATION_ID}")
        connection.execute("CREATE TABLE alembic_version (version_num TEXT)")
        connection.commit()
    before = path.read_bytes()
    with pytest.raises(StoreUnusable, match="before the first release"):
        sqlite.open_store(path)
    assert path.read_bytes() == before


def test_a_value_that_this_release_cannot_read_is_told_with_what_to_do() -> None:
    with pytest.raises(StoreUnusable, match=r"scope.*install the release"):
        schema.decoded("scope", '{"name": "web", "kind": "of tomorrow"}')
