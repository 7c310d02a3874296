"""`forewarn restore-check` and `store copy`: what is done to a database while no service runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from forewarn.cli import output
from forewarn.cli.command import command, group
from forewarn.cli.exits import ExitStatus, Failed, server_is_installed, system_can
from forewarn.cli.options import FILE, JSON, argument, flag, option
from forewarn.server.operator import fields

if TYPE_CHECKING:
    from forewarn.store.port import ChangesBeside
    from forewarn.store.sql import Store

BY: Final = 1_000_000
"""The step by which incarnations are raised: a scope whose events change once a second, day and
night, takes eleven days for as many."""

MAX_BY: Final = 10**12
"""The most that they may be raised by: thousands of times still fit what clients read exactly, as
JavaScript does up to 2**53."""

MAX_INCARNATION: Final = 2**53 - 1
"""The largest number that every JSON client reads exactly."""

URL_STARTS: Final = ("postgresql://", "postgres://")

COPY_SECONDS: Final = 3600.0
"""The limit of one step of a copy: the largest history is written by one COMMIT."""

PASSWORD_FILE: Final = option("--password-file FILE", "The file with the password for a URL.")


@command(
    argument("database DATABASE", "The restored SQLite file, or a URL of PostgreSQL."),
    option(
        "--by N",
        f"How far each incarnation is raised. Default: {BY}, and one more for each second since "
        "the last change.",
        fields.within(1, MAX_BY),
    ),
    flag("--with-wal", "Apply the -wal file beside it, which was restored with it."),
    PASSWORD_FILE,
    JSON,
)
def restore_check(
    database: str, *, by: int | None, with_wal: bool, password_file: Path | None, as_json: bool
) -> None:
    """Make a restored database safe to serve.

    Raises the incarnation of every scope, so that a guest never sees an old number with new
    content, and halts running maintenance, which may have gone on since. Run it once, before the
    service starts. Changes nothing and fails if the file is damaged, if a -wal file beside it
    would undo the restore, or if a replica runs.
    """
    with server_is_installed("forewarn restore-check"), _told():
        if database.startswith(URL_STARTS):
            with _postgresql(database, password_file) as store:
                scopes, by, highest = _raise(store, by)
        else:
            with _sqlite(Path(database), with_wal=with_wal) as store:
                scopes, by, highest = _raise(store, by)
    if as_json:
        output.document({"scopes": scopes, "raised_by": by, "highest": highest})
        return
    output.say(
        f"Raised the incarnation of each scope by {by} (scopes: {scopes}; highest: {highest}). "
        "The service may start."
    )


@command(
    argument("source FROM", "The SQLite file.", FILE),
    argument("target TO", "A URL of PostgreSQL, to a database of its own."),
    PASSWORD_FILE,
    JSON,
)
def copy(source: Path, target: str, *, password_file: Path | None, as_json: bool) -> None:
    """Copy everything to an empty PostgreSQL database.

    The fleet, its live events and the history are copied in one transaction: all, or nothing. Stop
    the service first; the SQLite file stays as it is.
    """
    if not target.startswith(URL_STARTS):
        message = f"invalid URL {target!r}: expected one such as postgresql://forewarn@db/forewarn"
        raise Failed(ExitStatus.USAGE, message)
    with server_is_installed("forewarn store copy"), _told():
        from forewarn.store import sql

        with (
            _sqlite(source, with_wal=True) as old,
            _postgresql(target, password_file) as new,
            old.read() as reading,
            new.write() as transaction,
        ):
            rows = sql.copy(reading, transaction, _show)
            scopes = len(transaction.scopes())
            live = len(transaction.live_operations())
    if as_json:
        output.document({"rows": rows, "scopes": scopes, "live_operations": live})
        return
    output.say(
        f"Copied all rows: {rows} (scopes: {scopes}; live operations: {live}). Set "
        f"store.url in place of store.path, and move {source} away: no service may start with it."
    )


def _show(table: str, done: int, total: int) -> None:
    output.note(f"{table}: {done} of {total}")


@contextmanager
def _told() -> Iterator[None]:
    from forewarn.store.port import ChangesBeside, StoreError

    try:
        yield
    except StoreError as error:
        told = _what_to_do(error) if isinstance(error, ChangesBeside) else str(error)
        raise Failed(ExitStatus.UNAVAILABLE, told) from error


@contextmanager
def _sqlite(path: Path, *, with_wal: bool) -> "Iterator[Store]":
    with system_can(f"read {path}"):
        is_there = path.is_file()
    if not is_there:
        message = f"no file {path}: name the database, such as forewarn.db"
        raise Failed(ExitStatus.NOT_FOUND, message)
    from forewarn.store import sqlite

    store = sqlite.open_store(path, thoroughly=True, whole=not with_wal)
    try:
        yield store
    finally:
        store.close()


@contextmanager
def _postgresql(url: str, password_file: Path | None) -> "Iterator[Store]":
    from forewarn.store import postgresql

    patience = postgresql.Patience(answer=COPY_SECONDS, idle=COPY_SECONDS)
    store = postgresql.open_store(url, password_file=password_file, patience=patience)
    try:
        with store.alone():
            yield store
    finally:
        store.close()


def _what_to_do(error: "ChangesBeside") -> str:
    """Return the message for a -wal: who put it there decides, and that is not written in it."""
    path, beside = error.path, error.beside
    return (
        f"{beside} holds changes, and SQLite writes them into {path.name} on opening it, whether "
        "they belong to it or not; nothing was changed. If you copied a backup there: move "
        f"{path.name}, {beside.name} and {path.name}-shm away together, copy the backup again, "
        "and run this again. If both come from one snapshot of the disk: add --with-wal. If you "
        "restored nothing: start the service, which needs no restore-check after a crash"
    )


def _raise(store: "Store", by: int | None) -> tuple[int, int, int]:
    """Raise all incarnations in one transaction; return how many, how far, and the highest.

    The events of a scope keep the incarnation that first showed them: that only orders them.
    """
    from forewarn.clock import SystemClock
    from forewarn.control import outbox, recovery, tombstones
    from forewarn.control.unit_of_work import UnitOfWork
    from forewarn.maintenance.world import World
    from forewarn.server import process

    with store.write() as transaction:
        at = transaction.now() or SystemClock().now()
        more = recovery.passed(transaction, at)
        by = BY + more if by is None else by
        unit = UnitOfWork(transaction, World(outbox.state_of(transaction)), at)
        world = unit.world
        tombstones.lift(world, by)
        if (most := max(tombstones.highest(world), by)) > MAX_INCARNATION:
            message = (
                f"an incarnation would become {most}, but JSON clients read numbers exactly only "
                f"up to {MAX_INCARNATION}: give a smaller --by"
            )
            raise Failed(ExitStatus.REFUSED, message)
        recovery.restored(unit, process.mint(), more)
        highest = max((scope.incarnation for scope in world.scopes.values()), default=0)
    return len(world.scopes), by, highest


commands = group("Move the database.", {"copy": copy})
