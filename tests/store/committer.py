"""Commits for ever and tells each commit, until it is killed: `python -m store.committer`."""

import sys
from pathlib import Path

import msgspec

from store.engines import ENGINES
from store.values import WEB, operation, with_maintenances


def commit_for_ever(engine: str, folder: Path) -> None:
    (found,) = (e for e in ENGINES if e.name == engine)
    store = found.open(folder)
    while True:
        with store.write() as transaction:
            scope = transaction.scopes().get("web", WEB)
            number = scope.incarnation + 1
            more = msgspec.structs.replace(
                with_maintenances(operation(f"1.{number}")),
                scopes=(msgspec.structs.replace(scope, incarnation=number),),
            )
            transaction.save(more)
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    commit_for_ever(sys.argv[1], Path(sys.argv[2]))
