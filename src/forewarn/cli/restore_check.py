"""`forewarn restore-check`: makes a restored database safe to serve."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from forewarn.cli import output
from forewarn.cli.exits import ExitStatus, Failed
from forewarn.cli.operator import JsonOption

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


def restore_check(
    database: Annotated[
        Path,
        typer.Argument(metavar="DATABASE", help="The restored SQLite file, such as forewarn.db."),
    ],
    *,
    by: Annotated[
        int,
        typer.Option(
            "--by", metavar="N", min=1, max=MAX_BY, help="How far each incarnation is raised."
        ),
    ] = BY,
    with_wal: Annotated[
        bool,
        typer.Option(
            "--with-wal",
            help="The -wal file beside it was restored with it: apply it.",
        ),
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
    try:
        from forewarn.store import sqlite
        from forewarn.store.port import ChangesBeside, StoreError
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "forewarn":
            raise
        message = (
            f"'forewarn restore-check' needs the package {error.name}: "
            "pip install 'forewarn[server]'"
        )
        raise Failed(ExitStatus.MISSING_EXTRA, message) from error
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
