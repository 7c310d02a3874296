"""The engines that every promise is held against. A second one is added here, and only here."""

import atexit
import contextlib
import functools
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import psycopg
import pytest

import postgres
from forewarn.store import postgresql, schema, sqlite
from forewarn.store.sql import Store
from store.shared import SharedStore

NewStore: TypeAlias = Callable[[], Store]
"""Makes an empty store."""


@dataclass(frozen=True)
class Engine:
    """How tests open a store of one kind."""

    name: str
    open: Callable[[Path], Store]
    """Opens the one store that lives in a folder, as an empty one the first time."""
    emptied: Callable[[Path, Store], Store]
    """Returns a folder's open store without its content: faster than a new one."""

    def __str__(self) -> str:
        return self.name


NEEDS_POSTGRESQL = pytest.mark.skipif(not postgres.found(), reason="PostgreSQL is not installed")

DATABASES = 12
"""How many of PostgreSQL's databases are kept: each takes 8 MB."""

BY_PASSWORD: Final = ("fleet", "guest", "nobody")
"""Users whom `server` asks for a password over TCP."""

SHORT = postgresql.Patience(name=0.3)

_made: list[str] = []


@functools.cache
def server() -> postgres.Postgres:
    """The PostgreSQL of this process: no test of the suite cuts its power."""
    access = f"host all {','.join(BY_PASSWORD)} all scram-sha-256\n{postgres.TRUST}"
    started = postgres.Postgres("fsync = off", "full_page_writes = off", access=access).start()
    atexit.register(started.remove)
    started.create_database("template_of_tests")
    postgresql.open_store(started.url("template_of_tests")).close()
    return started


def open_postgresql(folder: Path) -> Store:
    """Open the folder's database, an empty one the first time: a copy takes 50 ms."""
    place = folder / "postgresql.url"
    if not place.exists():
        _made.append(f"t{len(_made)}")
        place.write_text(server().create_database(_made[-1], template="template_of_tests"))
        if len(_made) > DATABASES:
            server().drop_database(_made[-1 - DATABASES])
    return postgresql.open_store(place.read_text(), patience=SHORT)


EMPTY: Final = "".join(f"DELETE FROM {table};" for table in schema.TABLES if table != "meta")


def empty_sqlite(folder: Path, store: Store) -> Store:
    """Delete every row of the folder's file."""
    with contextlib.closing(sqlite3.connect(folder / "store.db")) as beside:
        beside.executescript(f"BEGIN;{EMPTY}COMMIT")
    return store


def empty_postgresql(folder: Path, store: Store) -> Store:
    """Delete every row of the folder's database."""
    with psycopg.connect((folder / "postgresql.url").read_text()) as beside:
        beside.execute(EMPTY)
    return store


SQLITE = Engine(
    "sqlite-file",
    lambda folder: sqlite.open_store(folder / "store.db"),
    emptied=empty_sqlite,
)
POSTGRESQL = Engine("postgresql", open_postgresql, emptied=empty_postgresql)
SHARED_IN_MEMORY = Engine(
    "shared-in-memory", lambda _: SharedStore(), emptied=lambda _, __: SharedStore()
)
ENGINES = [SQLITE, POSTGRESQL]
SHARED_ENGINES = [POSTGRESQL, SHARED_IN_MEMORY]
"""Stores that several processes, here threads, may have open."""


def parameters(engines: list[Engine]) -> list[Any]:
    """Return the engines as a fixture's parameters: one that is not installed is skipped."""
    return [
        pytest.param(each, marks=NEEDS_POSTGRESQL if each is POSTGRESQL else ()) for each in engines
    ]
