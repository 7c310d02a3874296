"""A PostgreSQL that does not let us in, or is not safe, is refused in one line."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from forewarn.maintenance.model import Changes
from forewarn.store import postgresql
from forewarn.store.port import StoreError, StoreUnavailable, StoreUnusable
from postgres import Postgres
from store.engines import NEEDS_POSTGRESQL, SHORT, server
from store.story import save
from store.values import WEB

pytestmark = NEEDS_POSTGRESQL

SECRET = "correct horse battery"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The address of a database of ours."""
    yield server().create_database("ours", template="template_of_tests")
    server().drop_database("ours")


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
        refused = refusal(standby.url("ours"), "", tmp_path)
        assert type(refused) is StoreUnavailable
        both = f"127.0.0.1:{standby.port},127.0.0.1:{server().port}"
        store = postgresql.open_store(f"postgresql://postgres@{both}/ours")
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
