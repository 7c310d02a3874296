"""`forewarn serve` and `restore-check`: run the service; make a restored database safe for it."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from forewarn.cli import output
from forewarn.cli.exits import ExitStatus, Failed, server_is_installed, settings_are_usable
from forewarn.cli.options import JsonOption, argument, flag, option

if TYPE_CHECKING:
    from forewarn.store.port import ChangesBeside, Store

BY: Final = 1_000_000
"""How far incarnations are raised: a scope whose events change once a second, day and night, takes
eleven days for as many."""

MAX_BY: Final = 10**12
"""The most that they may be raised by: thousands of times still fit what clients read exactly, as
JavaScript does up to 2**53."""

MAX_INCARNATION: Final = 2**53 - 1
"""The largest number that every JSON client reads exactly."""


def serve(
    *,
    config: Annotated[
        Path | None,
        option(
            "--config",
            "FILE",
            "The settings, TOML. Default: FOREWARN_CONFIG, the user's own file, "
            "or /etc/forewarn/forewarn.toml.",
        ),
    ] = None,
) -> None:
    """Run the service until SIGTERM or Ctrl-C."""
    from forewarn.server import settings

    with settings_are_usable():
        loaded = settings.load(config, os.environ)
    with server_is_installed("forewarn serve"):
        from forewarn.server import run

        if loaded.store.url:
            import psycopg  # noqa: F401 - the service imports it where it opens the store
    status = run.serve(loaded)
    if status:
        raise typer.Exit(status)


def restore_check(
    database: Annotated[
        Path, argument("DATABASE", "The restored SQLite file, such as forewarn.db.")
    ],
    *,
    by: Annotated[
        int, option("--by", "N", "How far each incarnation is raised.", min=1, max=MAX_BY)
    ] = BY,
    with_wal: Annotated[
        bool, flag("--with-wal", "Apply the -wal file beside it, which was restored with it.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Make a restored database safe to serve.

    Raises the incarnation of every scope, so that a guest never sees an old number with new
    content. Run it once, before the service starts. Changes nothing and fails if the file is
    damaged, or if a -wal file beside it would undo the restore.
    """
    if not database.is_file():
        message = f"no file {database}: name the restored database, such as forewarn.db"
        raise Failed(ExitStatus.NOT_FOUND, message)
    with server_is_installed("forewarn restore-check"):
        from forewarn.store import sqlite
        from forewarn.store.port import ChangesBeside, StoreError
    try:
        store = sqlite.open_store(database, thoroughly=True, whole=not with_wal)
        try:
            scopes, highest = _raise(store, by)
        finally:
            store.close()
    except ChangesBeside as error:
        raise Failed(ExitStatus.UNAVAILABLE, _what_to_do(error)) from error
    except StoreError as error:
        raise Failed(ExitStatus.UNAVAILABLE, str(error)) from error
    if as_json:
        output.document({"scopes": scopes, "raised_by": by, "highest": highest})
        return
    output.say(
        f"Raised the incarnations of {scopes} scopes by {by}; the highest is {highest}. "
        "The service may start."
    )


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


def _raise(store: "Store", by: int) -> tuple[int, int]:
    """Raise all incarnations in one transaction; return how many, and the highest.

    The events of a scope keep the incarnation that first showed them: that only orders them.
    """
    from msgspec.structs import replace

    from forewarn.control import tombstones
    from forewarn.maintenance.model import Changes

    with store.write() as transaction:
        scopes = transaction.scopes().values()
        highest = max((scope.incarnation for scope in scopes), default=0) + by
        most = max(highest, tombstones.highest(transaction) + by)
        if most > MAX_INCARNATION:
            message = (
                f"an incarnation would become {most}, but JSON clients read numbers exactly only "
                f"up to {MAX_INCARNATION}: give a smaller --by"
            )
            raise Failed(ExitStatus.REFUSED, message)
        raised = tuple(replace(s, incarnation=s.incarnation + by) for s in scopes)
        tombstones.lift(transaction, by)
        if raised:
            transaction.save(Changes(scopes=raised))
    return len(raised), highest if raised else 0
